// The conformance test: rows of the op table, types, costs and results in other types, on every
// sample of every row.
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "piper/base/float16.h"
#include "piper/ir/signatures.h"
#include "unit/op_uses.h"

namespace piper::ops_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not that of plans

TEST(Ops, TheTableIsSortedAndComplete) {
  std::vector<std::string> names;
  for (const OpDef* def : all_ops()) {
    names.emplace_back(def->name);
    EXPECT_EQ(find_op(def->name), def);
    EXPECT_NE(def->types, nullptr) << def->name;
    EXPECT_NE(def->loops, nullptr) << def->name;
    EXPECT_NE(def->cost, nullptr) << def->name;
    EXPECT_FALSE(def->samples.empty()) << def->name;
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(find_op("Nonsense"), nullptr);
  const std::vector<std::string> kernels = cpu_ops();
  for (const std::string& name : names) {
    const bool has = std::binary_search(kernels.begin(), kernels.end(), name);
    const bool is_taken_apart = name == "Linear";
    EXPECT_EQ(has, name != "StepSum" && !is_taken_apart && !find_op(name)->collective) << name;
  }
}

TEST(Ops, GraphsHaveTheTypesOfTheTable) {
  Graph graph;
  const TensorType type{DType::kF32, {2, 3}};
  Value x;
  x.name = "x", x.type = type, x.kind = ValueKind::kInput;
  Node node;
  node.op = "Neg", node.name = "y", node.inputs = {graph.add_value(x)};
  const ValueId y = graph.node(graph.add_node(node, std::vector{type})).outputs[0];
  EXPECT_TRUE(check_types(graph));
  graph.value(y).type.shape = {3};
  const Status wrong = check_types(graph);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("is f32[3], and node 'y' (Neg) makes f32[2,3]"),
            std::string::npos)
      << wrong.error().message;
}

TEST(Ops, TypesAgreeWithTheKernels) {
  for_each_use([](const Use& use, std::mt19937_64&) {
    const std::vector<Tensor> outputs = use.run();  // checks the number of bytes
    ASSERT_EQ(outputs.size(), use.types.outputs.size());
    for (const Tensor& output : outputs) {
      for (double value : output.values) ASSERT_TRUE(std::isfinite(value));
    }
  });
}

// The same use of floats of another type; nothing for an op of f64 scalars alone.
std::optional<Use> in_type(const Use& use, DType dtype) {
  // Scalars of the update are f64 whatever the parameter is, an optimizer's states and attention's
  // statistics f32 at least: the choice with most inputs of the type, then of f32.
  const DType choices[] = {dtype, DType::kF32, DType::kF64};
  Use other = use;
  std::optional<Use> best;
  int best_score = 0;
  const auto choose = [&](size_t i, int score, const auto& self) -> void {
    if (i == other.inputs.size()) {
      const Result<std::vector<TensorType>> types = use.def->types(other.types);
      if (!types || score <= best_score) return;
      best = other;
      best->types.outputs = *types;
      best_score = score;
      return;
    }
    if (!other.inputs[i] || use.types.inputs[i].dtype != DType::kF64)
      return self(i + 1, score, self);
    for (int c = 0; c < 3; ++c) {
      other.inputs[i]->type.dtype = other.types.inputs[i].dtype = choices[c];
      self(i + 1, score + (c == 0 ? 10 : c == 1 ? 1 : 0), self);
    }
  };
  choose(0, 0, choose);
  return best;
}

TEST(Ops, SinglePrecisionAgreesWithDouble) {
  for_each_use([](const Use& use, std::mt19937_64&) {
    const std::optional<Use> single = in_type(use, DType::kF32);
    if (!single) return;
    const std::vector<Tensor> expected = use.run(), actual = single->run();
    for (size_t i = 0; i < expected.size(); ++i) expect_near(actual[i], expected[i], 2e-6);
  });
}

Tensor rounded(const Tensor& tensor, DType dtype) {
  const TensorType type{dtype, tensor.type.shape};
  return test::to_tensor(type, test::to_bytes({type, tensor.values}));
}

// 16-bit floats are stored in 16 bits and computed with in 32: a result is that of f32 operands of
// the same values, rounded once.
TEST(Ops, HalfPrecisionRoundsTheResultsOfSingle) {
  std::set<std::string_view> ran;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for_each_use([&](const Use& use, std::mt19937_64&) {
      std::optional<Use> half = in_type(use, dtype);
      if (!half || use.def->name == "StepSum") return;  // the Dag expands it: it is never run
      Use single = *half;
      bool some = false;
      for (size_t i = 0; i < half->inputs.size(); ++i) {
        if (!half->inputs[i] || half->types.inputs[i].dtype != dtype) continue;
        some = true;
        half->inputs[i] = rounded(*half->inputs[i], dtype);
        single.inputs[i] =
            Tensor{{DType::kF32, half->types.inputs[i].shape}, half->inputs[i]->values};
        single.types.inputs[i].dtype = DType::kF32;
      }
      if (!some) return;
      ran.insert(use.def->name);
      for (TensorType& type : single.types.outputs)
        if (type.dtype == dtype) type.dtype = DType::kF32;
      const std::vector<Tensor> wide = single.run(), narrow = half->run();
      for (size_t i = 0; i < narrow.size(); ++i) {
        const DType made = half->types.outputs[i].dtype;
        const Tensor want = made == dtype ? rounded(wide[i], dtype) : wide[i];
        EXPECT_EQ(narrow[i].values, want.values) << info(dtype).name << " output " << i;
      }
    });
  }
  for (const OpDef* def : all_ops()) {
    const bool floats =
        std::any_of(def->samples.begin(), def->samples.end(), [](const auto& sample) {
          return std::any_of(sample.inputs.begin(), sample.inputs.end(), is_float);
        });
    const std::set<std::string_view> wide{"ClipFactor",    "GlobalNorm", "LossScale",
                                          "NextLossScale", "NotFinite",  "StepSum"};
    EXPECT_EQ(ran.count(def->name) == 1, floats && !def->collective && !wide.contains(def->name))
        << def->name;
  }
}

TEST(Ops, CostsAreNumbers) {
  for_each_use([](const Use& use, std::mt19937_64&) {
    const Cost cost = use.def->cost(use.types);
    EXPECT_GE(cost.flops, 0);
    EXPECT_TRUE(std::isfinite(cost.flops));
    const std::set<std::string_view> products{
        "MatMul", "Linear", "GroupedMatMul", "GroupedMatMulGrad", "Attention", "AttentionGrad"};
    EXPECT_EQ(cost.is_matmul, products.count(use.def->name) == 1);
  });
}

// ---- Columns that other rooms read --------------------------------------------------------------

TEST(Ops, TheFirstByteIsWhereTheOutputStands) {
  std::set<std::string_view> ran;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    if (!use.def->first_byte) return;
    const std::optional<int64_t> first =
        use.def->first_byte(use.types.inputs[0], use.types.outputs[0], use.types.attrs);
    const Bytes from = test::to_bytes(*use.inputs[0]), to = test::to_bytes(use.run()[0]);
    if (!first) return;
    ran.insert(use.def->name);
    ASSERT_LE(static_cast<size_t>(*first) + to.size, from.size);
    EXPECT_EQ(std::memcmp(from.data + *first, to.data, to.size), 0);
  });
  EXPECT_EQ(ran, (std::set<std::string_view>{"Cast", "Expand", "Reshape", "Slice", "Transpose"}));
}

TEST(Ops, ElementsThatAreNotMadeAreTheInputs) {
  using Elements = OpDef::Elements;
  std::map<Elements, int> ran;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    if (use.def->elements == Elements::kMade) return;
    ++ran[use.def->elements];
    std::vector<double> from = use.inputs[0]->values, to = use.run()[0].values;
    EXPECT_TRUE(use.def->elements == Elements::kPart || from.size() == to.size());
    std::sort(from.begin(), from.end());
    std::sort(to.begin(), to.end());
    EXPECT_TRUE(std::includes(from.begin(), from.end(), to.begin(), to.end()));
  });
  EXPECT_EQ(ran.size(), 2u);
}

TEST(Ops, OperandsThatCommuteMaySwap) {
  int ran = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    if (!use.def->commutes) return;
    ++ran;
    EXPECT_EQ(use.run()[0].values, use.run({use.inputs[1], use.inputs[0]})[0].values);
  });
  EXPECT_GT(ran, 0);
}

// An update writes the parameter, its states and, if it keeps one, the average in place.
TEST(Ops, UpdatesHaveTheirStates) {
  int updates = 0;
  for (const OpDef* def : all_ops()) {
    if (def->states < 0) continue;
    ++updates;
    EXPECT_EQ(def->in_place.size(), static_cast<size_t>(2 + def->states)) << def->name;
    for (const auto& [output, input] : def->in_place)
      EXPECT_EQ(input, output == 0 ? 0 : output + 1) << def->name;
  }
  EXPECT_EQ(updates, 7);
}

TEST(Ops, IndicesChooseFromTheFirstInput) {
  int ran = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    if (!use.def->indices) return;
    ++ran;
    const OpDef::Indices indices = use.def->indices(use.types);
    const Shape& shape = use.types.inputs[0].shape;
    if (indices.extent < 0) return;  // they may count from the end
    EXPECT_NE(std::find(shape.begin(), shape.end(), indices.extent), shape.end());
    Operands last = use.inputs;
    for (double& index : last[1]->values) index = static_cast<double>(indices.extent - 1);
    bool some = false;
    for (const double value : use.run(last)[0].values) some = some || value != 0;
    EXPECT_TRUE(some) << "the last of them chooses nothing";
  });
  EXPECT_GT(ran, 0);
}

// What another room knows of an op is a column of the table. An op may be made by its name; to
// compare names or to list them is left to files whose work is those very ops.
const std::map<std::string, std::string> kComparesNames = {
    {"autodiff/backward.cc", "takes the rounding of gradients off: Casts, and that of products"},
    {"autodiff/evaluate.cc", "leaves out what is drawn, and the statistics of a batch"},
    {"executor/between_steps.cc", "the room that plans have for rows of experts"},
    {"executor/peak.cc", "makes the product that it times"},
    {"autodiff/groups.cc", "what parameters are is by the ops that use them"},
    {"autodiff/saved.cc", "keeps the slope of a Gelu in place of its input"},
    {"compile/compile.cc", "rows that travel packed keep the order of one device"},
    {"compile/emit.cc", "writes updates as ONNX's optimizers"},
    {"compile/rate_curve.cc", "plots the learning rates of a plan"},
    {"dag/kept.cc", "casts of parameters, and the number of the step"},
    {"dag/update.cc", "takes the norm apart that clipping and loss scales read"},
    {"lower/index_reads.cc", "follows indices through what models compute of them"},
    {"collectives/arithmetic.cc", "makes the programs that it runs"},
    {"dag/direction.cc", "the norm of all gradients is made of no single one"},
    {"directives/parts.cc", "casts of parameters and slices of inputs are of no region"},
    {"directives/precision.cc", "adds Casts, and leaves out those of the model"},
    {"directives/recompute.cc", "a Reshape makes no bytes"},
    {"bundle/flops.cc", "counts products and attention without what they are added to"},
    {"directives/rounded_gathers.cc", "adds Casts, and knows those of the model"},
    {"directives/shard.cc", "attention is chosen by name"},
    {"directives/tokens.cc", "the cost of causal attention grows with what is before it"},
    {"directives/train_parts.cc", "parts of a parameter are cast as it is"},
    {"program/columns.cc", "attention reads and writes columns of packed operands"},
    {"program/products.cc", "an empty product takes nothing along"},
    {"program/apart.cc", "the composites that it writes out"},
    {"program/widen.cc", "adds Casts, before Slices and Reshapes and after a Concat"},
    {"lower/cell.cc", "what each collective is in a plan"},
    {"lower/segments.cc", "sums and gradients of logits in place stay in order"},
    {"lower/programs.cc", "collectives are instructions, products packed"},
    {"sharding/axis_attention.cc", "how attention is done in turn or by heads"},
    {"sharding/axis_choice.cc", "a cast may be of a sum that is not whole"},
    {"sharding/axis_conversions.cc", "which collective a conversion is"},
    {"sharding/axis_rewriter.cc", "makes the collectives, and sums of what they leave"},
    {"sharding/axis_state.cc", "casts of sums that are not whole, and other shapes of a value"},
    {"sharding/parts.cc", "which collective a conversion is"},
    {"sharding/propagate.cc", "what is all zeros is a Fill"},
    {"sharding/shard_axis.cc", "own blocks of inputs are cut again by later axes"},
    {"sharding/shard_batch.cc", "makes a sum, or a cast of one"},
    {"sharding/tokens.cc", "only causal attention reads what other chunks make"},
    {"sharding/unroll.cc", "what each collective is over parts on one device"},
    {"summary/train.cc", "the words of optimizers for people"},
    {"verify/effects.cc", "how one device rounds what ranks send in blocks"},
    {"verify/facts.cc", "what rounds a copy"},
    {"verify/layouts_cut.cc", "the gradient of attention's mask is terms of a sum"},
    {"verify/layouts_ops.cc", "layouts of ops that move elements"},
    {"verify/layouts_program.cc",
     "layouts of ops that move elements, of products and of attention"},
    {"verify/layouts_turns.cc", "casts of parts"},
    {"verify/meaning.cc", "which program casts and adds what messages bring"},
    {"verify/scalars.cc", "what the scalars of an update are made of"},
    {"verify/switch.cc", "which numbers of a step are alike in all stages of a job"},
    {"verify/terms.cc", "terms of ops that move elements"},
    {"verify/travel.cc", "follows terms of sums through casts and blocks"},
    {"verify/values.cc", "values of ops that move elements, of products and of attention"},
    {"verify/whole.cc", "ops whose whole is made of parts otherwise than part by part"},
    {"verify/whole_moves.cc", "whole values of ops that move elements"},
};

// Names of ops in a source, but where it makes them.
std::vector<std::string> names_compared(const std::string& source) {
  static const std::regex unread(
      "//[^\n]*|((op1|op|try_op|add|emit|make|push_back)\\(\\s*\\{?|\\.op = )\"[A-Za-z0-9]+\"");
  static const std::regex literal("\"([A-Z][A-Za-z0-9]+)\"");
  const std::string rest = std::regex_replace(source, unread, "");
  std::vector<std::string> names;
  for (std::sregex_iterator at(rest.begin(), rest.end(), literal), end; at != end; ++at)
    if (find_op((*at)[1].str())) names.push_back((*at)[1].str());
  return names;
}

TEST(Ops, OtherRoomsReadColumnsInPlaceOfNames) {
  namespace fs = std::filesystem;
  const fs::path sources = fs::path(PIPER_SOURCE_DIR) / "src";
  std::set<std::string> compare;
  for (const auto& entry : fs::recursive_directory_iterator(sources)) {
    if (!entry.is_regular_file()) continue;
    const fs::path path = fs::relative(entry.path(), sources);  // WING/ROOM/…
    const std::string room = *std::next(path.begin());
    const std::string file = room + "/" + path.filename().string();
    const std::set<std::string> own = {"ops",    "onnx",     "rules", "params",
                                       "import", "patterns", "cpu",   "cuda_kernels"};
    if (own.contains(room)) continue;
    const std::string source = must(read_text_file(entry.path().string(), 1 << 24));
    for (const std::string& name : names_compared(source)) {
      compare.insert(file);
      EXPECT_TRUE(kComparesNames.contains(file))
          << file << " names " << name << ": make what it knows of the op a column of OpDef";
    }
  }
  for (const auto& [file, why] : kComparesNames)
    EXPECT_TRUE(compare.contains(file)) << file << " names no op any more";
}

TEST(Ops, NamesComparedAreSeen) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_compared("if (node.op == \"MatMul\") {"), Names{"MatMul"});
  EXPECT_EQ(names_compared("  {\"Sgd\", 1}, {\"Adagrad\", 1}};"), (Names{"Sgd", "Adagrad"}));
  EXPECT_EQ(names_compared("build.op1(\"Cast\", {x}); node.op = \"Add\";  // not \"Mul\""),
            Names{});
}

// ---- Uses that plans may have -----------------------------------------------------------------

TensorType f32_matrix(int64_t rows, int64_t columns) { return {DType::kF32, {rows, columns}}; }

std::string use_error(const OpDef& def, const OpTypes& use) {
  const Status checked = check_use(def.name, use);
  return checked ? "" : checked.error().message;
}

// Each sample is allowed; with another attribute, another kind of one, another result or none, one
// input less or one that is not there it is not.
TEST(Uses, AreThoseOfTheTable) {
  for_each_use([](const Use& use, std::mt19937_64&) {
    if (use.def->sums_step) {
      EXPECT_EQ(use_error(*use.def, use.types), "is not for a single device");
      return;
    }
    EXPECT_EQ(use_error(*use.def, use.types), "") << use.label;
    OpTypes changed = use.types;
    changed.attrs.set("nonsense", int64_t{1});
    EXPECT_EQ(use_error(*use.def, changed), "has no attribute 'nonsense'") << use.label;
    for (const OpAttribute& each : use.def->attributes) {
      changed = use.types;
      const bool number = each.kind == OpAttribute::kInteger;
      changed.attrs.set(std::string(each.name), number ? AttrValue("3") : AttrValue(int64_t{3}));
      EXPECT_EQ(use_error(*use.def, changed),
                fmt::format("attribute '{}' is {}", each.name, number ? "a text" : "an integer"))
          << use.label;
    }
    for (TensorType& type : (changed = use.types).outputs) {
      type.shape.push_back(2);
      EXPECT_NE(use_error(*use.def, changed), "") << use.label;
      type.shape.pop_back();
    }
    changed.outputs.pop_back();
    EXPECT_NE(use_error(*use.def, changed), "") << use.label;
    for (size_t i = 0; i < use.types.inputs.size(); ++i) {
      if (!use.types.present[i]) continue;
      changed = use.types;
      changed.inputs[i] = {DType::kBool, {7, 7}};
      EXPECT_NE(use_error(*use.def, changed), "") << use.label << " input " << i;
    }
  });
  EXPECT_EQ(check_use("Fused", {}).error().message, "there is no such op");
}

// Where no kernel reads an attribute, plans that differ in it would mean the same.
TEST(Uses, HaveNoAttributeThatNothingReads) {
  std::map<std::string, int> refused;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    for (const OpAttribute& each : use.def->attributes) {
      if (each.is_read == nullptr || use.def->sums_step) continue;
      OpTypes changed = use.types;
      const std::string name(each.name);
      if (!changed.attrs.find(name))
        changed.attrs.set(
            name, each.kind == OpAttribute::kReal ? AttrValue(-1.0) : AttrValue(int64_t{64}));
      const bool is_read = each.is_read(*use.def, changed);
      const std::string unread =
          fmt::format("has the attribute '{}', which nothing reads here", name);
      EXPECT_EQ(use_error(*use.def, changed) == unread, !is_read) << use.label << " " << name;
      refused[name] += is_read ? 0 : 1;
    }
  });
  for (const char* name : {"keys", "masked_score", "offset", "parts", "whole"})
    EXPECT_GT(refused[name], 0) << name;
}

TEST(Uses, AProductMayBeAddedToASum) {
  const TensorType a = f32_matrix(4, 6), b = f32_matrix(6, 3), sum = f32_matrix(4, 3);
  const OpDef& product = *find_op("MatMul");
  OpTypes use{{a, b, sum}, {true, true, true}, {sum}, {{"accumulate", int64_t{1}}}};
  EXPECT_EQ(use_error(product, use), "");
  use.present[2] = false;
  EXPECT_NE(use_error(product, use), "");
  use.present[2] = true;
  use.inputs[2] = f32_matrix(3, 4);
  EXPECT_EQ(use_error(product, use),
            "is added to the last of f32[4,6], f32[6,3], f32[3,4], but makes f32[4,3]");
  use.attrs = {};
  EXPECT_EQ(use_error(product, use), "takes 2 inputs, but has 3");
}

// What kernels rely on beside types.
TEST(Uses, NumbersAreInTheirRanges) {
  const auto error = [](std::string_view op, std::vector<TensorType> inputs, Attrs attrs) {
    OpTypes use;
    use.present.assign(inputs.size(), true);
    use.inputs = std::move(inputs);
    use.attrs = std::move(attrs);
    return use_error(*find_op(op), use);
  };
  const TensorType step{DType::kI64, {}}, x{DType::kF32, {4, 6}}, rows{DType::kI64, {2}};
  EXPECT_EQ(error("LearningRate", {step}, {{"rate", "lr rate *"}}), "a formula has no word 'rate'");
  EXPECT_EQ(error("LearningRate", {step}, {}), "a formula makes 0 numbers, not one");
  EXPECT_EQ(error("Gather", {x, rows, step}, {{"axis", int64_t{0}}, {"whole", int64_t{0}}}),
            "a part of 0 in all");
  EXPECT_EQ(error("ScatterElements", {x, {DType::kI64, {4, 6}}, x},
                  {{"axis", int64_t{0}}, {"reduction", "mean"}}),
            "there is no reduction 'mean'");
  EXPECT_EQ(error("LayerNorm", {{DType::kF32, {4, 0}}, {DType::kF32, {0}}}, {{"axis", int64_t{1}}}),
            "there is nothing to normalise in f32[4,0]");
  using List = std::vector<int64_t>;
  const auto draw = [&](List cuts, List zeros) {
    return error("Dropout", {x, step, step, rows, step}, {{"cuts", cuts}, {"zeros", zeros}});
  };
  EXPECT_EQ(draw({5, 2}, {}), "2 parts of 5 rows of 24 elements");
  EXPECT_EQ(draw({INT64_MIN, 2}, {}), "2 parts of -9223372036854775808 rows of 24 elements");
  EXPECT_EQ(draw({4, INT64_MAX}, {}), "9223372036854775807 parts of 4 rows of 24 elements");
  EXPECT_EQ(draw({4, 2}, {1, 4, 6}), "6 zeros after 4 rows of 24 elements");
  EXPECT_EQ(draw({4, 2, 4, 2}, {}), "4 numbers of cuts for 1 axes");
}

// ---- Error sentences --------------------------------------------------------------------------

std::string types_error(std::string_view op, std::vector<TensorType> inputs, Attrs attrs = {}) {
  OpTypes use;
  use.present.assign(inputs.size(), true);
  use.inputs = std::move(inputs);
  use.attrs = std::move(attrs);
  const auto types = find_op(op)->types(use);
  return types ? "ok" : types.error().message;
}

TEST(Ops, TypeErrorsNameShapes) {
  auto f32 = [](Shape shape) { return TensorType{DType::kF32, std::move(shape)}; };
  auto i64 = [](Shape shape) { return TensorType{DType::kI64, std::move(shape)}; };
  EXPECT_EQ(types_error("Add", {f32({2, 3}), f32({4, 3})}),
            "the shapes of f32[2,3], f32[4,3] do not broadcast");
  EXPECT_EQ(types_error("Add", {f32({2}), i64({2})}),
            "the operands must be numbers of one type, but are f32[2], i64[2]");
  EXPECT_EQ(types_error("Add", {f32({2})}), "takes 2 inputs, but has 1");
  EXPECT_EQ(types_error("MatMul", {f32({2, 3}), f32({4, 5})}),
            "the inner extents 3 and 4 of f32[2,3], f32[4,5] differ");
  EXPECT_EQ(types_error("MatMul", {f32({2, 3}), f32({3, 5})}, {{"trans_b", int64_t{1}}}),
            "the inner extents 3 and 5 of f32[2,3], f32[3,5] differ (trans_a=0, trans_b=1)");
  EXPECT_EQ(types_error("MatMul", {f32({3}), f32({3, 5})}),
            "the operands must be matrices or stacks of them, but are f32[3], f32[3,5]");
  EXPECT_EQ(types_error("MatMul", {f32({2, 3}), f32({3, 5})}, {{"to", "bf16"}}),
            "products of f32[2,3], f32[3,5] are not made in {to=\"bf16\"}");
  EXPECT_EQ(types_error("MatMul", {{DType::kF64, {2, 3}}, {DType::kF64, {3, 5}}}, {{"to", "f32"}}),
            "products of f64[2,3], f64[3,5] are not made in {to=\"f32\"}");
  EXPECT_EQ(types_error("Reshape", {f32({2, 3})}, {{"shape", Shape{4}}}),
            "f32[2,3] with 6 elements cannot have the shape [4] of 4");
  EXPECT_EQ(types_error("Reshape", {f32({2, 3})}, {{"shape", Shape{-1}}}),
            "shape [-1] has a negative extent");
  EXPECT_EQ(types_error("Fill", {}, {{"shape", Shape{1 << 30, 1 << 30}}, {"dtype", "f32"}}),
            "shape [1073741824,1073741824] has too many elements");
  EXPECT_EQ(types_error("Transpose", {f32({2, 3})}, {{"perm", Shape{0, 0}}}),
            "perm [0,0] does not name each of the 2 dims once");
  EXPECT_EQ(types_error("Softmax", {f32({2, 3})}, {{"axis", int64_t{2}}}),
            "axis 2 is outside of the 2 dims");
  EXPECT_EQ(types_error("Slice", {f32({4})},
                        {{"starts", Shape{0}}, {"ends", Shape{5}}, {"steps", Shape{1}}}),
            "0:5:1 is not a range of dim 0 of f32[4]");
  EXPECT_EQ(types_error("Concat", {f32({2, 3}), f32({3, 3})}, {{"axis", int64_t{1}}}),
            "f32[2,3], f32[3,3] cannot be joined along dim 1");
  EXPECT_EQ(types_error("Gather", {f32({2, 3}), f32({1})}, {{"axis", int64_t{0}}}),
            "input 1 must hold i64 or i32 indices, but is f32[1]");
  EXPECT_EQ(types_error("CrossEntropySum", {f32({8, 5}), i64({7})}),
            "input 1 (labels) must be i64[8], but is i64[7]");
  EXPECT_EQ(types_error("Cast", {f32({1})}, {{"to", "f33"}}), "'f33' is not an element type");
  const auto in_blocks = [&](const char* to, int64_t block, int64_t run,
                             std::vector<int64_t> piece) {
    return types_error(
        "ToBlocks", {f32({8, 6})},
        {{"to", std::string(to)}, {"block", block}, {"run", run}, {"piece", std::move(piece)}});
  };
  EXPECT_EQ(in_blocks("int4", 64, 0, {}), "'int4' is no type of 8 bits");
  EXPECT_EQ(in_blocks("int8", 48, 0, {}), "there are no blocks of 48");
  EXPECT_EQ(in_blocks("int8", 64, -1, {}), "there are no runs of -1");
  EXPECT_EQ(in_blocks("int8", 64, 0, {9, 6}), "[8,6] is not cut into pieces of [9,6]");
  EXPECT_EQ(in_blocks("int8", 64, 0, {8}), "[8,6] is not cut into pieces of [8]");
  EXPECT_EQ(types_error("Expand", {f32({3})}, {{"shape", Shape{3, 2}}}),
            "f32[3] does not expand to [3,2]");
  EXPECT_EQ(types_error("Pad", {f32({3})}, {{"before", Shape{-2}}, {"after", Shape{-2}}}),
            "padding -2 before and -2 after does not fit dim 0 of f32[3]");
  EXPECT_EQ(types_error("ReduceSum", {f32({3, 2})}, {{"axes", Shape{1, 0}}}),
            "axes [1,0] are not ascending dims of f32[3,2]");
}

TEST(Builder, MakesNothingWithoutNeed) {
  Graph graph;
  Builder build(graph);
  const ValueId x = build.op1("Fill", {}, {{"shape", Shape{2, 3}}, {"dtype", "f32"}});
  EXPECT_EQ(build.reshape(x, {2, 3}), x);
  EXPECT_EQ(build.expand(x, {2, 3}), x);
  EXPECT_EQ(build.sum_to(x, {2, 3}), x);
  EXPECT_EQ(build.reduce_sum(x, {}, false), x);
  const ValueId half = build.scalar(0.5, DType::kF32);
  EXPECT_EQ(build.scalar(0.5, DType::kF32), half);
  EXPECT_EQ(Builder(graph).scalar(0.5, DType::kF32), half);
  EXPECT_NE(build.scalar(0.5, DType::kF64), half);
  // Below 2^-14, where f16 has steps of 2^-24.
  EXPECT_EQ(float_at(DType::kF16, graph.value(build.scalar(5e-5, DType::kF16)).data.data),
            839 * 0x1p-24);
  EXPECT_EQ(graph.nodes.size(), 1u);
  const auto wrong = build.try_op("Add", {x, build.scalar(1, DType::kF64)}, {}, {"m.onnx", 0, 0});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message,
            "Add: the operands must be numbers of one type, but are f32[2,3], f64[]");
}

TEST(Builder, ScalarsOfEveryType) {
  Graph graph;
  Builder build(graph);
  auto bits = [&](double value, DType dtype) {
    uint16_t word = 0;
    std::memcpy(&word, graph.value(build.scalar(value, dtype)).data.data, sizeof word);
    return word;
  };
  EXPECT_EQ(bits(1, DType::kBF16), 0x3f80);
  EXPECT_EQ(bits(-0.5, DType::kBF16), 0xbf00);
  EXPECT_EQ(bits(1.0 / 3, DType::kBF16), 0x3eab);
  EXPECT_EQ(bits(1, DType::kF16), 0x3c00);
  EXPECT_EQ(bits(-2, DType::kF16), 0xc000);
  EXPECT_EQ(bits(1.0 / 3, DType::kF16), 0x3555);
  EXPECT_EQ(bits(1e9, DType::kF16), 0x7c00);
  EXPECT_EQ(bits(0, DType::kF16), 0x0000);
}

}  // namespace
}  // namespace piper::ops_test
