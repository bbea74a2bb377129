// Silu(x) = x · sigmoid(x), SiluGrad(x, dy) -> dx, and SwiGlu(x, y) = Silu(x) · y, whose gradients
// are made of these: nothing between the gate and the product is stored.
#include "rules.h"

namespace piper {
namespace {

TypesResult pair_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_type(use, 1, "other operand", use.inputs[0]));
  return std::vector<TensorType>{use.inputs[0]};
}

Grads silu_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("SiluGrad", {args.inputs[0], args.output_grads[0]})};
}

Grads swiglu_gradient(Builder& build, const GradientArgs& args) {
  const ValueId dy = args.output_grads[0];
  Grads grads(2);
  if (args.wanted[0])
    grads[0] = build.op1("SiluGrad", {args.inputs[0], build.mul(dy, args.inputs[1])});
  if (args.wanted[1]) grads[1] = build.op1("SwiGlu", {args.inputs[0], dy});
  return grads;
}

LoopRule silu_rule(const OpTypes& use) { return pointwise_loops(use, {}); }
LoopRule pair_rule(const OpTypes& use) { return pointwise_loops(use, {{1}}); }

OpDef pointwise(OpDef def, int inputs) {
  def.pointwise = true;
  def.cost = element_cost<12>;
  for (int i = 0; i < inputs; ++i) def.in_place.emplace_back(0, i);
  def.samples = {{.inputs = std::vector<TensorType>(static_cast<size_t>(inputs), f64({4, 6}))}};
  return def;
}

}  // namespace

std::vector<OpDef> silu_ops() {
  return {
      pointwise(
          {.name = "Silu", .types = float_types, .gradient = silu_gradient, .loops = silu_rule}, 1),
      pointwise({.name = "SiluGrad", .types = pair_types, .loops = pair_rule}, 2),
      pointwise(
          {.name = "SwiGlu", .types = pair_types, .gradient = swiglu_gradient, .loops = pair_rule},
          2)};
}

}  // namespace piper
