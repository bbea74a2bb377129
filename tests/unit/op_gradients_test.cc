// Gradients of every row of the op table against central differences in double.
#include <map>
#include <set>

#include "unit/op_uses.h"

namespace piper::op_gradients_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not that of plans

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

// Ops whose further results only their backward reads.
const std::set<std::string_view> kOfTheFirst{"Attention", "CrossEntropySum", "GroupNorm",
                                             "RmsNorm"};

void check_gradient(const Use& use, std::mt19937_64& random) {
  GradientGraph g = gradient_graph(use, true);
  if (!g.differentiable && kOfTheFirst.contains(use.def->name)) g = gradient_graph(use, false);
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

// The one row whose gradient is another than its slope.
constexpr std::string_view kDetach = "Detach";

TEST(Ops, NoGradientFlowsThroughDetach) {
  size_t uses = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    if (use.def->name != kDetach) return;
    ++uses;
    const GradientGraph g = gradient_graph(use, true);
    ASSERT_EQ(g.grads.size(), 1u);
    EXPECT_FALSE(g.grads[0].valid());
  });
  EXPECT_GT(uses, 0u);
}

TEST(Ops, GradientsAgreeWithDifferences) {
  for_each_use([](const Use& use, std::mt19937_64& random) {
    if (!use.def->gradient || use.def->name == kDetach) return;
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
    {"AttentionMerge", "of parts of Attention, taken apart behind the backward pass"},
    {"ClipFactor", "a scalar of the update"},
    {"CrossEntropyGrad", "a gradient"},
    {"CrossEntropyOfTerms", "a part of CrossEntropySum, taken apart behind the backward pass"},
    {"CrossEntropyTerms", "a part of CrossEntropySum, taken apart behind the backward pass"},
    {"GatherGrad", "a gradient"},
    {"GeluAndSlope", "made beside a gradient"},
    {"GeluGrad", "a gradient"},
    {"GlobalNorm", "a scalar of the update"},
    {"GroupNormGradParams", "a gradient"},
    {"GroupNormGradX", "a gradient"},
    {"GroupedMatMulGrad", "a gradient"},
    {"LayerNormGradParams", "a gradient"},
    {"LayerNormGradX", "a gradient"},
    {"LogSoftmaxGrad", "a gradient"},
    {"Adafactor", "an update"},
    {"Lion", "an update"},
    {"Muon", "an update"},
    {"LossScale", "a scalar of the update"},
    {"NextLossScale", "a scalar of the update"},
    {"OnnxAdam", "an update"},
    {"ReduceExtremeGrad", "a gradient"},
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

}  // namespace
}  // namespace piper::op_gradients_test
