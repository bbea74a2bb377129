// The conformance test: every rule of every row of the op table on every sample of the row.
#include "piper/ops.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "evaluate.h"

namespace piper {
namespace {

using test::draw;
using test::evaluate;
using test::must;
using test::Operands;
using test::Tensor;

constexpr uint64_t kSeed = 20240607;

bool is_float(const TensorType& type) { return info(type.dtype).is_float; }

// One sample of one op, with drawn inputs.
struct Use {
  const OpDef* def;
  const OpSample* sample;
  OpTypes types;
  Operands inputs;
  std::string label;

  std::vector<Tensor> run() const { return run(inputs); }
  std::vector<Tensor> run(const Operands& operands) const {
    return evaluate(def->name, types.attrs, operands, types.outputs);
  }
};

Use make_use(const OpDef& def, size_t index, std::mt19937_64& random) {
  Use use{&def, &def.samples[index], {}, {}, fmt::format("{} sample {}", def.name, index)};
  const OpSample& sample = *use.sample;
  use.types.inputs = sample.inputs;
  use.types.present.assign(sample.inputs.size(), true);
  for (int i : sample.absent) {
    use.types.present[i] = false;
    use.types.inputs[i] = {};
  }
  use.types.attrs = sample.attrs;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    if (!use.types.present[i]) {
      use.inputs.emplace_back();
      continue;
    }
    use.inputs.push_back(draw(sample.inputs[i], random, sample.low, sample.high, sample.int_high));
  }
  use.types.outputs = must(def.types(use.types));
  return use;
}

template <class F>
void for_each_use(F f) {
  for (const OpDef* def : all_ops()) {
    for (size_t i = 0; i < def->samples.size(); ++i) {
      std::mt19937_64 random(kSeed + i);
      Use use = make_use(*def, i, random);
      SCOPED_TRACE(fmt::format("{} (seed {})", use.label, kSeed));
      f(use, random);
    }
  }
}

double scale_of(const Tensor& tensor) {
  double scale = 1;
  for (double value : tensor.values) scale = std::max(scale, std::abs(value));
  return scale;
}

// Largest difference relative to the largest element, or to 1.
void expect_near(const Tensor& actual, const Tensor& expected, double bound) {
  ASSERT_EQ(actual.values.size(), expected.values.size());
  const double scale = scale_of(expected);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_LE(std::abs(actual.values[i] - expected.values[i]) / scale, bound)
        << "element " << i << ": " << actual.values[i] << " instead of " << expected.values[i];
  }
}

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
    EXPECT_EQ(has, name != "StepSum") << name;
  }
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
      if (!half) return;
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
    EXPECT_EQ(ran.count(def->name) == 1, floats && !wide.contains(def->name)) << def->name;
  }
}

TEST(Ops, CostsAreNumbers) {
  for_each_use([](const Use& use, std::mt19937_64&) {
    const Cost cost = use.def->cost(use.types);
    EXPECT_GE(cost.flops, 0);
    EXPECT_TRUE(std::isfinite(cost.flops));
    const std::set<std::string_view> products{"MatMul", "Attention", "AttentionGrad"};
    EXPECT_EQ(cost.is_matmul, products.count(use.def->name) == 1);
  });
}

// ---- Gradients --------------------------------------------------------------------------------

// The op and its gradient in a graph: inputs 0… are the op's, then one adjoint for each float
// output.
struct GradientGraph {
  Graph graph;
  std::vector<ValueId> inputs, adjoints, grads;  // invalid where there is none
  bool differentiable = false;
};

GradientGraph gradient_graph(const Use& use, bool all_outputs) {
  GradientGraph g;
  auto add_input = [&](const TensorType& type) {
    Value value;
    value.name = "v";
    value.type = type;
    value.kind = ValueKind::kInput;
    g.graph.inputs.push_back(g.graph.add_value(std::move(value)));
    return g.graph.inputs.back();
  };
  const auto wanted = std::make_unique<bool[]>(use.inputs.size());
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    g.inputs.push_back(use.inputs[i] ? add_input(use.types.inputs[i]) : ValueId());
    wanted[i] = use.inputs[i] && is_float(use.types.inputs[i]);
  }
  for (size_t i = 0; i < use.types.outputs.size(); ++i) {
    const bool has = is_float(use.types.outputs[i]) && (i == 0 || all_outputs);
    g.adjoints.push_back(has ? add_input(use.types.outputs[i]) : ValueId());
  }
  Builder build(g.graph);
  const std::vector<ValueId> outputs =
      build.op(use.def->name, std::vector<ValueId>(g.inputs), use.types.attrs);
  g.grads = use.def->gradient(
      build, {g.inputs, outputs, g.adjoints, use.types.attrs, {wanted.get(), use.inputs.size()}});
  g.differentiable = !g.grads.empty();
  return g;
}

double objective(const Use& use, const Operands& inputs, const Operands& adjoints) {
  const std::vector<Tensor> outputs = use.run(inputs);
  double sum = 0;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!adjoints[o]) continue;
    for (size_t i = 0; i < outputs[o].values.size(); ++i) {
      sum += outputs[o].values[i] * adjoints[o]->values[i];
    }
  }
  return sum;
}

double central_difference(const Use& use, const Operands& adjoints, size_t input, size_t element) {
  constexpr double kStep = 1e-6;
  Operands inputs = use.inputs;
  double& x = inputs[input]->values[element];
  const double at = x;
  x = at + kStep;
  const double above = objective(use, inputs, adjoints);
  x = at - kStep;
  const double below = objective(use, inputs, adjoints);
  return (above - below) / (2 * kStep);
}

void check_gradient(const Use& use, std::mt19937_64& random) {
  GradientGraph g = gradient_graph(use, true);
  if (!g.differentiable) g = gradient_graph(use, false);
  ASSERT_TRUE(g.differentiable);
  ASSERT_EQ(g.grads.size(), use.inputs.size());
  test::Values values(g.graph.values.size());
  Operands adjoints;
  for (size_t o = 0; o < g.adjoints.size(); ++o) {
    adjoints.emplace_back();
    if (!g.adjoints[o].valid()) continue;
    adjoints[o] = draw(use.types.outputs[o], random, -1, 1, 1);
    values[g.adjoints[o].index()] = adjoints[o];
  }
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    if (g.inputs[i].valid()) values[g.inputs[i].index()] = use.inputs[i];
  }
  values = evaluate(g.graph, std::move(values));
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    if (!g.inputs[i].valid() || !is_float(use.types.inputs[i])) {
      EXPECT_FALSE(g.grads[i].valid()) << "an adjoint of integers";
      continue;
    }
    Tensor expected = *use.inputs[i];
    for (size_t e = 0; e < expected.values.size(); ++e) {
      expected.values[e] = central_difference(use, adjoints, i, e);
    }
    Tensor actual{expected.type, std::vector<double>(expected.values.size(), 0.0)};
    if (g.grads[i].valid()) actual = *values[g.grads[i].index()];
    ASSERT_EQ(actual.type, expected.type) << "adjoint of input " << i;
    SCOPED_TRACE(fmt::format("adjoint of input {}", i));
    expect_near(actual, expected, 1e-7);
  }
}

TEST(Ops, GradientsAgreeWithDifferences) {
  for_each_use([](const Use& use, std::mt19937_64& random) {
    if (!use.def->gradient) return;
    bool wanted = false;
    for (const TensorType& type : use.types.inputs) wanted = wanted || is_float(type);
    if (wanted && is_float(use.types.outputs[0])) check_gradient(use, random);
  });
}

// Rows that make floats of floats and have no gradient, and why.
constexpr std::pair<std::string_view, std::string_view> kNoGradient[] = {
    {"Adagrad", "an update"},
    {"AdamW", "an update"},
    {"AttentionGrad", "a gradient"},
    {"ClipFactor", "a scalar of the update"},
    {"CrossEntropyGrad", "a gradient"},
    {"GatherGrad", "a gradient"},
    {"GeluAndSlope", "made beside a gradient"},
    {"GeluGrad", "a gradient"},
    {"GlobalNorm", "a scalar of the update"},
    {"GroupNormGradParams", "a gradient"},
    {"GroupNormGradX", "a gradient"},
    {"LayerNormGradParams", "a gradient"},
    {"LayerNormGradX", "a gradient"},
    {"LogSoftmaxGrad", "a gradient"},
    {"LossScale", "a scalar of the update"},
    {"NextLossScale", "a scalar of the update"},
    {"OnnxAdam", "an update"},
    {"ReduceProdGrad", "a gradient"},
    {"RmsNormGradScale", "a gradient"},
    {"RmsNormGradX", "a gradient"},
    {"Sgd", "an update"},
    {"SiluGrad", "a gradient"},
    {"SoftmaxGrad", "a gradient"},
    {"StepSum", "expanded by the Dag"},
    {"SumSquares", "a scalar of the update"},
};

TEST(Ops, EveryDifferentiableRowHasAGradientThatWasChecked) {
  std::set<std::string_view> without, checked;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    bool from_floats = false, to_floats = false;
    for (size_t i = 0; i < use.inputs.size(); ++i) {
      from_floats = from_floats || (use.inputs[i] && is_float(use.types.inputs[i]));
    }
    for (const TensorType& type : use.types.outputs) to_floats = to_floats || is_float(type);
    if (!from_floats || !to_floats) return;
    if (!use.def->gradient) without.insert(use.def->name);
    // As GradientsAgreeWithDifferences chooses its uses.
    if (use.def->gradient && is_float(use.types.outputs[0])) checked.insert(use.def->name);
  });
  std::set<std::string_view> listed;
  for (const auto& [name, reason] : kNoGradient) listed.insert(name);
  EXPECT_EQ(without, listed);
  for (const OpDef* def : all_ops()) {
    EXPECT_EQ(checked.count(def->name) == 1, def->gradient != nullptr) << def->name;
  }
}

// ---- Loops ------------------------------------------------------------------------------------

// A dim as [outer, size of the letter, inner].
struct Place {
  size_t dim = 0;
  int64_t outer = 1, size = 1;
};

std::optional<Place> place_of(const LoopRule& rule, const std::vector<LoopRule::Dim>& dims,
                              char letter) {
  auto size = [&](char wanted) {
    for (const auto& [name, extent] : rule.sizes) {
      if (name == wanted) return extent;
    }
    ADD_FAILURE() << "letter " << wanted << " has no size";
    return int64_t{1};
  };
  for (size_t d = 0; d < dims.size(); ++d) {
    int64_t outer = 1;
    for (char at : dims[d]) {
      if (at == letter) return Place{d, outer, size(letter)};
      outer *= size(at);
    }
  }
  return std::nullopt;
}

Shape block_shape(const Shape& shape, const Place& place, int64_t count) {
  Shape block = shape;
  block[place.dim] = block[place.dim] / place.size * count;
  return block;
}

// Calls f(position in the whole, position in the block) for the elements [from, from + count) of
// the letter.
template <class F>
void for_block(const Shape& shape, const Place& place, int64_t from, int64_t count, F f) {
  int64_t inner = 1, outer = place.outer;
  for (size_t d = place.dim + 1; d < shape.size(); ++d) inner *= shape[d];
  for (size_t d = 0; d < place.dim; ++d) outer *= shape[d];
  inner *= shape[place.dim] / place.size / place.outer;
  size_t to = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t l = from; l < from + count; ++l) {
      for (int64_t i = 0; i < inner; ++i) {
        f(static_cast<size_t>((o * place.size + l) * inner + i), to++);
      }
    }
  }
}

Tensor cut(const Tensor& whole, const Place& place, int64_t from, int64_t count) {
  Tensor part{{whole.type.dtype, block_shape(whole.type.shape, place, count)}, {}};
  for_block(whole.type.shape, place, from, count,
            [&](size_t at, size_t) { part.values.push_back(whole.values[at]); });
  return part;
}

Shape local_shape(const Use& use, const LoopRule& rule, size_t output, char letter, int64_t count) {
  const auto place = place_of(rule, rule.outputs[output], letter);
  const Shape& shape = use.types.outputs[output].shape;
  return place ? block_shape(shape, *place, count) : shape;
}

// What sharding tells an op that draws random numbers: which of two halves it has.
void place_draw(Use& local, const Use& use, const Place& place, int64_t from) {
  int64_t rows = place.outer;
  for (size_t d = 0; d < place.dim; ++d) rows *= use.types.outputs[0].shape[d];
  local.types.attrs.set("rows", rows);
  local.types.attrs.set("shards", int64_t{2});
  local.types.inputs.push_back({DType::kI64, {1}});
  local.types.present.push_back(true);
  local.inputs.push_back(Tensor{{DType::kI64, {1}}, {from > 0 ? 1.0 : 0.0}});
}

// The use that a shard makes of the op: elements [from, from + count) of the letter.
Use local_use(const Use& use, const LoopRule& rule, char letter, int64_t from, int64_t count) {
  Use local = use;
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const auto place = place_of(rule, rule.inputs[i], letter);
    if (!use.inputs[i] || !place) continue;
    local.inputs[i] = cut(*use.inputs[i], *place, from, count);
    local.types.inputs[i] = local.inputs[i]->type;
  }
  std::vector<Shape> shapes;
  for (size_t o = 0; o < use.types.outputs.size(); ++o) {
    shapes.push_back(local_shape(use, rule, o, letter, count));
  }
  if (use.def->localise) local.types.attrs = use.def->localise(use.types, shapes);
  if (use.def->draws >= 0) {
    place_draw(local, use, *place_of(rule, rule.outputs[0], letter), from);
  }
  local.types.outputs = must(use.def->types(local.types));
  return local;
}

// What two shards of one letter make together.
std::vector<Tensor> run_in_shards(const Use& use, const LoopRule& rule, char letter, int64_t size) {
  std::vector<Tensor> joined;
  for (const TensorType& type : use.types.outputs) {
    joined.push_back({type, std::vector<double>(num_elements(type.shape), 0.0)});
  }
  for (int shard = 0; shard < 2; ++shard) {
    const int64_t from = shard == 0 ? 0 : size / 2;
    const int64_t count = shard == 0 ? size / 2 : size - size / 2;
    const Use local = local_use(use, rule, letter, from, count);
    const std::vector<Tensor> parts = local.run();
    for (size_t o = 0; o < joined.size(); ++o) {
      EXPECT_EQ(parts[o].type.shape, local_shape(use, rule, o, letter, count)) << "output " << o;
      const auto place = place_of(rule, rule.outputs[o], letter);
      for (size_t i = 0; !place && i < parts[o].values.size(); ++i) {
        joined[o].values[i] += parts[o].values[i];
      }
      if (!place) continue;
      for_block(joined[o].type.shape, *place, from, count,
                [&](size_t at, size_t in) { joined[o].values[at] = parts[o].values[in]; });
    }
  }
  return joined;
}

// Every dim of an operand is the product of its letters, unless one of them is whole.
void check_dims(const LoopRule& rule, const std::vector<LoopRule::Dim>& dims, const Shape& shape) {
  ASSERT_EQ(dims.size(), shape.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    int64_t product = 1;
    bool whole = false;
    for (char letter : dims[d]) {
      for (const auto& [name, size] : rule.sizes) product *= name == letter ? size : 1;
      whole = whole || rule.whole.find(letter) != std::string::npos;
    }
    ASSERT_TRUE(whole || product == shape[d]) << "dim " << d;
  }
}

TEST(Ops, EveryLetterCanBeSplit) {
  int split = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    const LoopRule rule = use.def->loops(use.types);
    ASSERT_EQ(rule.inputs.size(), use.inputs.size());
    ASSERT_EQ(rule.outputs.size(), use.types.outputs.size());
    for (size_t i = 0; i < use.inputs.size(); ++i) {
      check_dims(rule, rule.inputs[i], use.types.inputs[i].shape);
    }
    for (size_t i = 0; i < rule.outputs.size(); ++i) {
      check_dims(rule, rule.outputs[i], use.types.outputs[i].shape);
    }
    const std::vector<Tensor> whole = use.run();
    for (const auto& [letter, size] : rule.sizes) {
      if (size < 2 || rule.whole.find(letter) != std::string::npos) continue;
      SCOPED_TRACE(fmt::format("letter {} of {}", letter, size));
      const std::vector<Tensor> joined = run_in_shards(use, rule, letter, size);
      for (size_t o = 0; o < whole.size(); ++o) {
        // LabelCount and casts make f32, whose sums are exact here too.
        expect_near(joined[o], whole[o], 1e-12);
      }
      ++split;
    }
  });
  EXPECT_GT(split, 250);
}

// Twice the elements cost at most twice as much, and products of matrices exactly: what a plan's
// parts cost adds up to the whole.
TEST(Ops, CostsGrowWithTheLettersOfTheLoops) {
  int split = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    const LoopRule rule = use.def->loops(use.types);
    const Cost whole = use.def->cost(use.types);
    for (const auto& [letter, size] : rule.sizes) {
      if (size < 2 || rule.whole.find(letter) != std::string::npos) continue;
      double sum = 0;
      for (const auto& [from, count] :
           {std::pair(int64_t{0}, size / 2), {size / 2, size - size / 2}}) {
        const Cost part = use.def->cost(local_use(use, rule, letter, from, count).types);
        EXPECT_LE(part.flops, whole.flops) << "letter " << letter;
        sum += part.flops;
      }
      EXPECT_GE(sum, whole.flops * (1 - 1e-12)) << "letter " << letter;
      if (use.def->name == "MatMul") {
        EXPECT_DOUBLE_EQ(sum, whole.flops);
      }
      ++split;
    }
  });
  EXPECT_GT(split, 250);
}

// f(u + v) = f(u) + f(v) in each linear set of inputs.
TEST(Ops, LinearSetsAreLinear) {
  int checked = 0;
  for_each_use([&](const Use& use, std::mt19937_64& random) {
    for (const std::vector<int>& set : use.def->loops(use.types).linear) {
      Use u = use, v = use, sum = use;
      for (int i : set) {
        const OpSample& sample = *use.sample;
        v.inputs[i] = draw(sample.inputs[i], random, sample.low, sample.high, sample.int_high);
        for (size_t e = 0; e < v.inputs[i]->values.size(); ++e) {
          sum.inputs[i]->values[e] += v.inputs[i]->values[e];
        }
      }
      const std::vector<Tensor> of_u = u.run(), of_v = v.run(), of_sum = sum.run();
      for (size_t o = 0; o < of_u.size(); ++o) {
        Tensor expected = of_u[o];
        for (size_t e = 0; e < expected.values.size(); ++e) {
          expected.values[e] += of_v[o].values[e];
        }
        expect_near(of_sum[o], expected, of_u[o].type.dtype == DType::kF32 ? 1e-6 : 1e-12);
      }
      ++checked;
    }
  });
  EXPECT_GT(checked, 60);
}

std::string dims_text(const std::vector<LoopRule::Dim>& dims) {
  std::string text;
  for (const LoopRule::Dim& dim : dims) {
    if (!text.empty()) text += " ";
    text += dim.empty() ? "-" : std::string(dim.begin(), dim.end());
  }
  return text;
}

std::string rule_text(const LoopRule& rule) {
  std::vector<std::string> inputs, outputs;
  for (const auto& dims : rule.inputs) inputs.push_back(dims_text(dims));
  for (const auto& dims : rule.outputs) outputs.push_back(dims_text(dims));
  return join(inputs, ", ") + " -> " + join(outputs, ", ") +
         (rule.whole.empty() ? "" : " whole " + rule.whole);
}

std::string reshape_rule(Shape from, Shape to) {
  OpTypes use;
  use.inputs = {{DType::kF32, std::move(from)}};
  use.present = {true};
  use.outputs = {{DType::kF32, std::move(to)}};
  return rule_text(find_op("Reshape")->loops(use));
}

TEST(Ops, ReshapeFindsCommonFactors) {
  EXPECT_EQ(reshape_rule({8, 16, 4}, {128, 4}), "a b c -> ab c");
  EXPECT_EQ(reshape_rule({128, 4}, {8, 16, 4}), "ab c -> a b c");
  EXPECT_EQ(reshape_rule({8, 16, 12}, {8, 16, 3, 4}), "a b cd -> a b c d");
  EXPECT_EQ(reshape_rule({8, 3, 1, 5}, {8, 15}), "a b - c -> a bc");
  EXPECT_EQ(reshape_rule({6, 4}, {4, 6}), "ab e -> ac d whole bcde");
  EXPECT_EQ(reshape_rule({2, 3, 4}, {2, 4, 3}), "a b d -> a c e whole bcde");
  EXPECT_EQ(reshape_rule({3, 4, 5}, {4, 3, 5}), "a c e -> b d e whole abcd");
  EXPECT_EQ(reshape_rule({1}, {}), "- -> ");
  EXPECT_EQ(reshape_rule({0, 3}, {3, 0}), "a b -> c d whole abcd");
}

TEST(Ops, LoopsOfAForm) {
  EXPECT_EQ(rule_text(loops("mk,kn->mn", {{4, 5}, {5, 6}}, {{4, 6}})), "m k, k n -> m n");
  EXPECT_EQ(rule_text(loops(".mk,.kn->.mn", {{2, 7, 4, 5}, {1, 5, 6}}, {{2, 7, 4, 6}})),
            "A B m k, - k n -> A B m n");
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
            "f32[2,3], f32[3,3] cannot stand behind each other along dim 1");
  EXPECT_EQ(types_error("Gather", {f32({2, 3}), f32({1})}, {{"axis", int64_t{0}}}),
            "input 1 must hold i64 or i32 indices, but is f32[1]");
  EXPECT_EQ(types_error("CrossEntropySum", {f32({8, 5}), i64({7})}),
            "input 1 (labels) must be i64[8], but is i64[7]");
  EXPECT_EQ(types_error("Cast", {f32({1})}, {{"to", "f33"}}), "'f33' is not an element type");
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
}  // namespace piper
