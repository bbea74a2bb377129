// Ops along dims that keep the shape and are linear: CumSum{axis, exclusive, reverse}, Trilu{upper,
// k}.
#include "rules.h"

namespace piper {
namespace {

TypesResult cumsum_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_axis(use.attrs, "axis", use.inputs[0].shape.size()));
  if (use.inputs[0].dtype == DType::kBool) return fail("input 0 must be a number, but is bool");
  return std::vector<TensorType>{use.inputs[0]};
}

Grads cumsum_gradient(Builder& build, const GradientArgs& args) {
  Attrs attrs = args.attrs;
  attrs.set("reverse", int64_t{args.attrs.integer("reverse") == 0});
  return {build.op1("CumSum", {args.output_grads[0]}, std::move(attrs))};
}

LoopRule same_dims(const OpTypes& use, std::vector<size_t> whole) {
  LoopBuilder build;
  const Dims dims = build.letters(use.inputs[0].shape);
  for (size_t d : whole) build.mark_whole(dims[d][0]);
  build.rule.inputs = {dims};
  build.rule.outputs = {dims};
  build.rule.linear = {{0}};
  return build.rule;
}

LoopRule cumsum_rule(const OpTypes& use) {
  return same_dims(use, {static_cast<size_t>(use.attrs.integer("axis"))});
}

TypesResult trilu_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  if (use.inputs[0].shape.size() < 2) {
    return fail("input 0 must be a matrix or a stack of them, but is {}", operands(use));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

Grads trilu_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("Trilu", {args.output_grads[0]}, args.attrs)};
}

LoopRule trilu_rule(const OpTypes& use) {
  const size_t rank = use.inputs[0].shape.size();
  return same_dims(use, {rank - 2, rank - 1});
}

}  // namespace

std::vector<OpDef> scan_ops() {
  OpDef cumsum{
      .name = "CumSum", .types = cumsum_types, .gradient = cumsum_gradient, .loops = cumsum_rule};
  cumsum.cost = element_cost<1>;
  cumsum.autocast = OpDef::Autocast::kF32;
  cumsum.absent = 0;  // behind the end there is the sum of all
  cumsum.nonzero = {0};
  auto scan = [](int64_t axis, int64_t exclusive, int64_t reverse) {
    return Attrs{{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}};
  };
  cumsum.samples = {{.inputs = {f64({4, 3})}, .attrs = scan(1, 0, 0)},
                    {.inputs = {f64({4, 3, 2})}, .attrs = scan(1, 1, 0)},
                    {.inputs = {f64({4, 3})}, .attrs = scan(0, 0, 1)},
                    {.inputs = {i64({2, 4})}, .attrs = scan(1, 1, 1)}};
  OpDef trilu{
      .name = "Trilu", .types = trilu_types, .gradient = trilu_gradient, .loops = trilu_rule};
  trilu.cost = moves;
  auto triangle = [](int64_t upper, int64_t k) { return Attrs{{"upper", upper}, {"k", k}}; };
  trilu.samples = {{.inputs = {f64({2, 4, 4})}, .attrs = triangle(0, 0)},
                   {.inputs = {f64({3, 5})}, .attrs = triangle(1, 1)},
                   {.inputs = {f64({4, 3})}, .attrs = triangle(0, -1)}};
  cumsum.attributes = {{"axis"}, {"exclusive"}, {"reverse"}};
  trilu.attributes = {{"upper"}, {"k"}};
  return {cumsum, trilu};
}

}  // namespace piper
