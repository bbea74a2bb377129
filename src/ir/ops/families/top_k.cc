// TopK{axis, k, largest}(x): the k largest (or smallest) elements along the axis, in order, and
// their places as i64. Of equal elements the first comes first; NaN is greater than any number.
#include "rules.h"

namespace piper {
namespace {

TypesResult top_k_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  if (use.inputs[0].dtype == DType::kBool) return fail("input 0 must be a number, but is bool");
  PIPER_ASSIGN(const size_t axis, check_axis(use.attrs, "axis", use.inputs[0].shape.size()));
  const int64_t k = use.attrs.integer("k", -1);
  Shape shape = use.inputs[0].shape;
  if (k < 0 || k > shape[axis]) {
    return fail("k {} is not in the {} elements of dim {} of {}", k, shape[axis], axis,
                operands(use));
  }
  shape[axis] = k;
  return std::vector<TensorType>{{use.inputs[0].dtype, shape}, {DType::kI64, shape}};
}

Grads top_k_gradient(Builder& build, const GradientArgs& args) {
  if (!args.output_grads[0].valid()) return {ValueId()};
  return {
      build.op1("GatherElementsGrad", {args.output_grads[0], args.outputs[1]},
                {{"axis", args.attrs.integer("axis")}, {"sizes", build.shape(args.inputs[0])}})};
}

LoopRule top_k_rule(const OpTypes& use) {
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  LoopBuilder build;
  Dims dims = build.letters(use.inputs[0].shape);
  build.mark_whole(dims[axis][0]);
  build.rule.inputs = {dims};
  dims[axis] = {build.whole(use.outputs[0].shape[axis])};
  build.rule.outputs = {dims, dims};
  return build.rule;
}

}  // namespace

std::vector<OpDef> top_k_ops() {
  OpDef def{.name = "TopK",
            .types = top_k_types,
            .gradient = top_k_gradient,
            .loops = top_k_rule,
            .cost = element_cost<4>};
  auto of = [](int64_t axis, int64_t k, int64_t largest) {
    return Attrs{{"axis", axis}, {"k", k}, {"largest", largest}};
  };
  def.samples = {{.inputs = {f64({4, 5})}, .attrs = of(1, 2, 1)},
                 {.inputs = {f64({3, 4, 2})}, .attrs = of(1, 4, 0)},
                 {.inputs = {i64({4, 3})}, .attrs = of(0, 1, 1)}};
  def.attributes = {{"axis"}, {"k"}, {"largest"}};
  return {def};
}

}  // namespace piper
