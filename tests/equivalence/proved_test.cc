// Layers that are rarer than those of transformers, under strategies that they meet: the verifier
// accepts every plan, and its ranks train as one device does that cuts nothing.
#include "equivalence/numbers.h"
#include "equivalence/random_model.h"
#include "piper/plan/verify.h"

namespace piper::proved_test {
namespace {

// A product, an activation, something rare, a product and the mean of squares.
class RareLayers : public ModelMaker {
 public:
  explicit RareLayers(const std::string& kind, int64_t width = 8) : ModelMaker(1), width_(width) {
    scope_ = "model";
    input("x", {4});
    const bool weighed = kind == "weighed pixels";
    input("y", {weighed ? width : 3});
    scope_ = "a";
    std::string h = made("Tanh", {linear("x", 4, width)});
    scope_ = "rare";
    h = rare(kind, h);
    scope_ = "b";
    if (weighed) {
      const std::string each = made("Mul", {made("Mul", {h, h}), "y"});
      attribute(node("ReduceMean", {each}, "loss"), "keepdims", {0}, false);
      finish_with_loss();
      return;
    }
    if (kind == "coupled") {
      classes_that_couple(linear(h, width, kClasses));
      return;
    }
    const bool penalised = kind == "penalised";
    squares(made("Sub", {linear(h, width, 3, kind), "y"}), penalised ? "mean" : "loss");
    if (penalised) penalise(weight_);
    finish_with_loss();
  }
  // Of the last product, or, of classes that couple, its bias.
  const std::string& weight() const { return weight_; }

 private:
  // A weight as [to, from], what the layer makes of it, and a bias.
  std::string linear(const std::string& x, int64_t from, int64_t to, const std::string& kind = "") {
    std::string weight = parameter({to, from}, 0.1f, 0.5f);
    if (scope_ == "b") weight_ = weight;
    if (kind == "sum") weight = made("Add", {weight, parameter({to, from}, 0.1f, 0.5f)});
    if (kind == "of low rank") weight = combined(3, to, from, 0.5f);
    if (kind.starts_with("norm")) weight = normed(weight, kind == "norm of rows" ? 1 : 0);
    if (kind == "standardised") weight = standardised(weight);
    onnx::NodeProto& turned = node("Transpose", {weight});
    attribute(turned, "perm", {1, 0}, true);
    const std::string product = made("MatMul", {x, turned.output(0)});
    bias_ = parameter({to}, 0, 0.3f);
    return made("Add", {product, bias_});
  }
  // A cross-entropy, and the squares of the classes' means over all samples.
  void classes_that_couple(const std::string& logits) {
    input("labels", {}, onnx::TensorProto::INT64);
    node("SoftmaxCrossEntropyLoss", {logits, "labels"}, "mean");
    const std::string mean = made("ReduceMean", {logits, integers({0})});
    onnx::NodeProto& sum = node("ReduceSum", {made("Mul", {mean, mean})});
    attribute(sum, "keepdims", {0}, false);
    node("Add", {"mean", sum.output(0)}, "loss");
    weight_ = bias_;
    finish_with_loss();
  }
  std::string shaped(const std::string& from, const std::vector<int64_t>& shape) {
    return made("Reshape", {from, integers(shape)});
  }
  std::string rare(const std::string& kind, const std::string& h) {
    if (kind == "number") return made("Mul", {h, parameter({}, 0.7f, 0.1f)});
    if (kind.ends_with("pixels")) {  // of which channels become rows and columns
      const std::string mixed = made("MatMul", {shaped(h, {-1, 4, 4}), parameter({4, 4}, 0, 0.5f)});
      onnx::NodeProto& turned = node("Transpose", {shaped(mixed, {-1, 2, 4, 2})});
      attribute(turned, "perm", {0, 2, 1, 3}, true);
      const std::string rows = turned.output(0);
      return shaped(rows, {-1, 16});
    }
    if (kind == "constants") return made("Mul", {h, constants(width_)});
    if (kind == "running statistics") return batch_norm(h, width_);
    if (kind == "repeated number") {
      const std::string wide = made("Expand", {parameter({1, 1}, 0.1f, 0.1f), integers({4, 6})});
      return made("Add", {h, made("ReduceSum", {wide, integers({0, 1})})});
    }
    if (kind == "joined vectors") {  // of which ranks have parts, then halves of each row
      const auto joined = [&](const std::string& a, const std::string& b) {
        onnx::NodeProto& both = node("Concat", {a, b});
        attribute(both, "axis", {0}, false);
        return both.output(0);
      };
      const auto two = [&](const char* scope) {
        scope_ = scope;
        const std::string one = parameter({width_}, 0, 0.5f);
        return shaped(joined(one, parameter({width_}, 0, 0.5f)), {1, 2 * width_});
      };
      const std::string whole = two("rare"), rows = joined(whole, two("cut"));
      const auto half = [&](int64_t row, int64_t first) {
        const auto part = [&](const std::string& x, int64_t from, int64_t to) {
          return made("Slice", {x, integers({from}), integers({to}), integers({0})});
        };
        return part(shaped(part(rows, row, row + 1), {2 * width_}), first, first + width_);
      };
      return made("Mul", {made("Add", {h, half(0, 0)}), half(1, width_)});
    }
    if (kind == "a mask of the data") {  // which takes more work than all else
      input("mask", {64});
      std::string mask = "mask";
      for (int i = 0; i < 8; ++i) mask = made(i % 2 ? "Tanh" : "Sigmoid", {mask});
      return made("Mul", {h, made("ReduceMean", {mask, integers({1})})});
    }
    return h;
  }

  static constexpr int64_t kClasses = Numbers::kClasses;
  const int64_t width_;
  std::string weight_, bias_;
};

struct Case {
  const char* name;
  const char* kind;
  int64_t width;
  const char* mesh;
  std::string directives;  // with WEIGHT for the weight of the last product
  bool wide = true;
  int stages = 1;
};

const std::string kStages =
    "  - place: {where: {stage: s}, on: {pp: s}}\n  - split: {dim: batch, into: 2}\n";

class Proved : public ::testing::TestWithParam<Case> {};

TEST_P(Proved, TrainsAsOneDevice) {
  const Case& of = GetParam();
  const Folder folder;
  const RareLayers model(of.kind, of.width);
  std::string directives = of.directives;
  if (const size_t at = directives.find("WEIGHT"); at != directives.npos)
    directives.replace(at, 6, model.weight());
  CompileOptions options;
  options.model = folder.write("model.onnx", model.bytes());
  options.strategy = folder.write(
      "strategy.yaml", fmt::format("piper: 1\nmesh: {}\nannotate: [balance: {{tag: stage, into: "
                                   "{}}}]\ntrain: {{global_batch: 4, optimizer: {{sgd: {{lr: 0.05, "
                                   "momentum: 0.9}}}}, clip_norm: 0.3}}\ndirectives:\n{}{}",
                                   of.mesh, of.stages, directives,
                                   of.wide ? "  - precision: {compute: f64}\n" : ""));
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const jobs::Trained got = train_on_numbers(compiled->set, of.name),
                      want = train_on_numbers(*compiled->uncut, of.name);
  ASSERT_EQ(want.losses.size(), 3U);
  EXPECT_LT(jobs::largest_difference(got, want), of.wide ? 1e-12 : 1e-5);
  EXPECT_GT(std::abs(want.losses[2] - want.losses[0]), 1e-4);
}

const std::string kColumns = "  - shard: {match: \"a.*\", dim: 0, over: tp}\n",
                  kRows = "  - shard: {match: WEIGHT, dim: 1, over: tp}\n",
                  kZeros =
                      "  - shard: {match: \"a.*\", dim: 0, over: tp, pad: true}\n"
                      "  - shard: {match: WEIGHT, dim: 1, over: tp, pad: true}\n",
                  kParts = "  - split: {dim: batch, into: 2}\n",
                  kPixels = "  - shard: {match: \"rare.*\", dim: 1, over: tp}\n",
                  kStates = "  - replicate: {over: dp, shard: [optimizer]}\n",
                  kAll = "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n";

INSTANTIATE_TEST_SUITE_P(
    All, Proved,
    ::testing::Values(Case{"number-zero1", "number", 8, "{dp: 2}", kStates},
                      Case{"number-zero3", "number", 8, "{dp: 4}", kAll},
                      Case{"number-columns-zero3", "number", 8, "{dp: 2, tp: 2}", kColumns + kAll},
                      Case{"constants", "constants", 8, "{tp: 2}", kColumns},
                      Case{"constants-f32", "constants", 16, "{tp: 4}", kColumns, false},
                      Case{"one-element-a-rank", "none", 2, "{tp: 2}", kColumns, false},
                      Case{"two-axes-one-element", "none", 4, "{dp: 2, tp: 4}", kColumns + kAll,
                           false},
                      Case{"running-statistics", "running statistics", 8, "{tp: 2}", kColumns},
                      Case{"statistics-in-other-blocks", "running statistics", 8, "{a: 2, b: 2}",
                           "  - shard: {match: \"a.*\", dim: 0, over: a}\n"
                           "  - shard: {match: \"rare.*\", dim: 0, over: b}\n"},
                      Case{"sum-in-parts", "sum", 8, "{}", kParts},
                      Case{"sum-of-replicas", "sum", 8, "{dp: 2}", kParts + kStates},
                      Case{"sum-zero3", "sum", 8, "{dp: 2}", kParts + kAll},
                      Case{"sum-rows", "sum", 8, "{tp: 2}", kParts + kRows},
                      Case{"low-rank", "of low rank", 8, "{dp: 2}", kParts + kAll},
                      Case{"pixels", "pixels", 16, "{tp: 2}", kPixels},
                      Case{"pixels-zeros", "pixels", 16, "{tp: 3}",
                           "  - shard: {match: \"rare.*\", dim: 1, over: tp, pad: true}\n"},
                      Case{"pixels-most-zeros", "weighed pixels", 16, "{tp: 5}",
                           "  - shard: {match: \"rare.*\", dim: 1, over: tp, pad: true}\n"},
                      Case{"pixels-zeros-beside", "weighed pixels", 16, "{a: 2, b: 4}",
                           "  - shard: {match: \"a.*\", dim: 0, over: a}\n"
                           "  - shard: {match: \"rare.*\", dim: 1, over: b, pad: true}\n"},
                      Case{"pixels-zero3", "pixels", 16, "{dp: 2, tp: 2}", kPixels + kAll},
                      Case{"joined-vectors", "joined vectors", 8, "{tp: 2}",
                           "  - shard: {match: \"cut.*\", dim: 0, over: tp}\n"},
                      Case{"norm-of-rows", "norm of rows", 8, "{tp: 4}", kColumns + kRows},
                      Case{"norm-of-columns", "norm of columns", 8, "{tp: 4}", kRows},
                      Case{"norm-zeros", "norm of rows", 5, "{tp: 2}", kZeros},
                      Case{"norm-zero3", "norm of rows", 8, "{dp: 2, tp: 2}", kRows + kAll},
                      Case{"standardised", "standardised", 8, "{tp: 2}", kColumns + kRows},
                      Case{"standardised-zero3", "standardised", 8, "{dp: 2, tp: 2}", kRows + kAll},
                      Case{"empty-stages", "a mask of the data", 8, "{pp: 4}", kStages, true, 4},
                      Case{"own-block-of-a-statistic", "coupled", 8, "{tp: 2}",
                           "  - shard: {match: WEIGHT, dim: 0, over: tp}\n"},
                      Case{"penalised", "penalised", 8, "{tp: 2}", kRows},
                      Case{"penalised-zeros", "penalised", 7, "{tp: 4}", kZeros}),
    [](const auto& info) { return jobs::identifier(info.param.name); });

// A Reshape whose shapes leave open which dim is cut says it in `blocks`. The verifier refuses plans in which that is wrong.
TEST(ProvedControl, ShapesSayWhichDimIsCut) {
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", RareLayers("pixels", 16).bytes());
  options.strategy = folder.write(
      "strategy.yaml", fmt::format("piper: 1\nmesh: {{tp: 2}}\ntrain: {{global_batch: 4, "
                                   "optimizer: {{sgd: {{lr: 0.05}}}}}}\ndirectives:\n{}",
                                   kPixels));
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  int silent = 0;  // of which are refused
  for (Program& program : set.roles[0].programs)
    for (ProgramOp& op : program.ops) {
      const std::vector<int64_t> said = op.attrs.integers("blocks");
      if (op.op != "Reshape" || said.empty()) continue;
      const auto is_refused = [&](const std::vector<int64_t>& says) {
        op.attrs.set("blocks", says);
        const auto report = verify_plan_set(set, &*compiled->single);
        return report && !report->findings.empty();
      };
      for (const int64_t dim : {said[1] + 1, int64_t{9}})
        EXPECT_TRUE(is_refused({said[0], dim})) << dim;
      silent += is_refused({});
      op.attrs.set("blocks", said);
    }
  EXPECT_GE(silent, 1);
}

// An optimizer of whole matrices beside sharded states: the verifier follows blocks along dp from
// the first op of a forward on.
struct OfFile {
  const char* model;  // in tests/data
  int batch;
  const char* directives;
  const char* data;  // in tests/data; empty: numbers
};
const OfFile kOfFiles[] = {
    // The first sample's rank has a new value alone, as a term of a sum over all ranks.
    {"parameters/changed_number.onnx", 4, "shard: [optimizer, gradients]", ""},
    {"batch_norm/spectral.onnx", 8, "shard: [optimizer, gradients]",
     "batch_norm/spectral.safetensors"},
    // A constant of zeros has a row for each sample.
    {"families/scattered/model.onnx", 4, "shard: [optimizer]",
     "families/scattered/reference.safetensors"},
    // One sample is a dim of one element, beside others.
    {"families/older-fresh/model.onnx", 4,
     "shard: [optimizer, gradients]}\n  - split: {dim: batch, into: 2",
     "families/older-fresh/reference.safetensors"},
    // Some of equal elements are equal.
    {"coupled/masked_bias.onnx", 8, "shard: [optimizer]}\n  - split: {dim: samples, into: 2", ""}};

Result<Compiled> compile_of(const OfFile& of, const std::string& model = "") {
  const Folder folder;
  CompileOptions options;
  options.model = model.empty() ? std::string(PIPER_SOURCE_DIR "/tests/data/") + of.model : model;
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\nmesh: {{dp: 2}}\ntrain: {{global_batch: {}, optimizer: {{adafactor: "
                  "{{lr: 1e-2}}}}}}\ndirectives:\n  - replicate: {{over: dp, {}}}\n",
                  of.batch, of.directives));
  return compile(options);
}

bool is_refused(const PlanSet& set, const Compiled& compiled) {
  const auto report = verify_plan_set(set, &*compiled.single);
  return report && !report->findings.empty();
}

TEST(ProvedAlongReplicas, TrainAsOneDevice) {
  for (const OfFile& of : kOfFiles) {
    const auto compiled = compile_of(of);
    ASSERT_TRUE(compiled) << of.model << print_error(compiled.error());
    auto needs = data_needs(compiled->set);
    ASSERT_TRUE(needs) << of.model;
    std::unique_ptr<const BatchSource> data;
    if (*of.data) {
      DataOptions sources;
      sources.sources = {std::string(PIPER_SOURCE_DIR "/tests/data/") + of.data};
      auto opened = open_data(sources, *needs, of.batch);
      ASSERT_TRUE(opened) << print_error(opened.error());
      data = *std::move(opened);
    } else {
      data = std::make_unique<Numbers>(*std::move(needs));
    }
    JobOptions options;
    options.steps = 3;
    options.threads = 1;
    options.verify.against = VerifyAgainst::kSingle;
    const auto job = run_job(compiled->set, data.get(), &*compiled->single, data.get(), options);
    EXPECT_TRUE(job) << of.model << print_error(job.error());
  }
}

TEST(ProvedAlongReplicas, ValuesOfOneRankAreBesideZeros) {
  const auto compiled = compile_of(kOfFiles[1]);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  int exchanged = 0;
  for (Program& program : set.roles[0].programs)
    for (ProgramOp& op : program.ops) {
      if (op.op != "Where" || program.values[op.inputs[0]].shape != Shape{}) continue;
      std::swap(op.inputs[1], op.inputs[2]);
      EXPECT_TRUE(is_refused(set, *compiled));
      std::swap(op.inputs[1], op.inputs[2]);
      ++exchanged;
    }
  EXPECT_GE(exchanged, 1);
}

// Also where nothing says what one device compares with.
TEST(ProvedAlongReplicas, TheFirstSamplesRankHasTheValue) {
  const auto compiled = compile_of(kOfFiles[1]);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  const auto is_found = [&] {
    const auto report = verify_plan_set(set, nullptr);
    return report && !report->findings.empty();
  };
  EXPECT_FALSE(is_found());
  int changed = 0;
  for (Program& program : set.roles[0].programs)
    for (const ProgramOp& op : program.ops)
      for (auto& [value, bytes] : program.literals) {
        if (op.op != "Equal" || std::ranges::count(op.inputs, value) == 0 || bytes.size() != 8)
          continue;
        bytes[0] = 2;
        EXPECT_TRUE(is_found());
        bytes[0] = 0;
        ++changed;
      }
  EXPECT_GE(changed, 1);
}

// A sum of equal elements depends on their number, though each of them may be any other.
TEST(ProvedAlongReplicas, SumsOfEqualElementsAreOfAsMany) {
  const Folder folder;
  const std::string model = folder.write("model.onnx", RareLayers("repeated number").bytes());
  const auto compiled =
      compile_of({.model = "", .batch = 4, .directives = "shard: [optimizer]"}, model);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  EXPECT_FALSE(is_refused(set, *compiled));
  int changed = 0;
  for (Program& program : set.roles[0].programs)
    for (ProgramOp& op : program.ops) {
      if (op.op != "Expand" || op.attrs.integers("shape") != Shape{4, 6}) continue;
      Shape& shape = program.values[op.outputs[0]].shape;
      op.attrs.set("shape", shape = {2, 6});
      EXPECT_TRUE(is_refused(set, *compiled));
      op.attrs.set("shape", shape = {4, 6});
      ++changed;
    }
  EXPECT_GE(changed, 1);
}

TEST(ProvedAlongReplicas, RowsOfConstantsAreEqual) {
  const auto compiled = compile_of(kOfFiles[2]);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  int changed = 0;
  for (auto& [name, bytes] : set.tensors) {
    if (name != "constant_1/block") continue;
    std::vector<std::byte> other(bytes.data, bytes.data + bytes.size);
    other[bytes.size / 2] = std::byte{1};
    bytes = Bytes::copy_of(other.data(), other.size());
    ++changed;
  }
  ASSERT_EQ(changed, 1);
  EXPECT_TRUE(is_refused(set, *compiled));
}

}  // namespace
}  // namespace piper::proved_test
