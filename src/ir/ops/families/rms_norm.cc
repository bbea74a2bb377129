// RmsNorm{axis, epsilon}(x, scale) -> (y, rstd): y = x · rstd · scale with rstd =
// 1/sqrt(mean(x²) + epsilon) over the dims from axis on; rstd has x's shape with those dims 1.
// RmsNormGradX{axis}(dy, x, scale, rstd) -> dx and RmsNormGradScale{axis}(dy, x, rstd) -> dscale
// are separate, so that a split backward repeats nothing.
#include "norms.h"

namespace piper {
namespace {

TypesResult rms_norm_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_float(use, 0));
  const TensorType& x = use.inputs[0];
  PIPER_ASSIGN(const size_t axis, check_rows_of(use, x));
  PIPER_TRY(check_type(use, 1, "scale", normalised(x, axis)));
  return std::vector<TensorType>{x, statistics(x, axis)};
}

TypesResult rms_norm_grad_x_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 4, 4));
  PIPER_TRY(check_float(use, 0));
  const TensorType& x = use.inputs[1];
  PIPER_ASSIGN(const size_t axis, check_rows_of(use, x));
  PIPER_TRY(check_type(use, 0, "dy", x));
  PIPER_TRY(check_type(use, 2, "scale", normalised(x, axis)));
  PIPER_TRY(check_type(use, 3, "rstd", statistics(x, axis)));
  return std::vector<TensorType>{x};
}

TypesResult grad_scale_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  PIPER_TRY(check_float(use, 0));
  const TensorType& x = use.inputs[1];
  PIPER_ASSIGN(const size_t axis, check_rows_of(use, x));
  PIPER_TRY(check_type(use, 0, "dy", x));
  PIPER_TRY(check_type(use, 2, "rstd", statistics(x, axis)));
  return std::vector<TensorType>{normalised(x, axis)};
}

Grads rms_norm_gradient(Builder& build, const GradientArgs& args) {
  if (args.output_grads[1].valid()) return {};  // rstd is for the backward ops alone
  const ValueId dy = args.output_grads[0], x = args.inputs[0], rstd = args.outputs[1];
  const Attrs axis{{"axis", args.attrs.integer("axis")}};
  Grads grads(2);
  if (args.wanted[0]) grads[0] = build.op1("RmsNormGradX", {dy, x, args.inputs[1], rstd}, axis);
  if (args.wanted[1]) grads[1] = build.op1("RmsNormGradScale", {dy, x, rstd}, axis);
  return grads;
}

LoopRule rms_norm_rule(const OpTypes& use) {
  NormLetters n = letters_of(use, 0);
  mark_params_whole(n);
  n.build.rule.inputs = {n.x, n.params};
  n.build.rule.outputs = {n.x, n.statistics};
  return n.build.rule;
}

LoopRule rms_norm_grad_x_rule(const OpTypes& use) {
  NormLetters n = letters_of(use, 1);
  mark_params_whole(n);
  n.build.rule.inputs = {n.x, n.x, n.params, n.statistics};
  n.build.rule.outputs = {n.x};
  n.build.rule.linear = {{0}};
  return n.build.rule;
}

LoopRule grad_scale_rule(const OpTypes& use) {
  NormLetters n = letters_of(use, 1);
  n.build.rule.inputs = {n.x, n.x, n.statistics};
  n.build.rule.outputs = {n.params};
  n.build.rule.linear = {{0}};
  return n.build.rule;
}

}  // namespace

std::vector<OpDef> rms_norm_ops() {
  OpDef norm{.name = "RmsNorm",
             .types = rms_norm_types,
             .gradient = rms_norm_gradient,
             .loops = rms_norm_rule};
  norm.cost = element_cost<5>;
  norm.autocast = OpDef::Autocast::kF32;
  norm.nonzero = {1};
  auto at = [](int64_t axis) { return Attrs{{"axis", axis}, {"epsilon", 1e-5}}; };
  norm.samples = {{.inputs = {f64({4, 6}), f64({6})}, .attrs = at(1)},
                  {.inputs = {f64({2, 3, 4}), f64({4})}, .attrs = at(2)},
                  {.inputs = {f64({2, 3, 4}), f64({3, 4})}, .attrs = at(1)}};
  const Attrs last{{"axis", int64_t{2}}};
  const TensorType x = f64({2, 3, 4}), rstd = f64({2, 3, 1});
  OpDef grad_x{
      .name = "RmsNormGradX", .types = rms_norm_grad_x_types, .loops = rms_norm_grad_x_rule};
  grad_x.cost = element_cost<8>;
  grad_x.takes = 1;
  grad_x.samples = {{.inputs = {x, x, f64({4}), rstd}, .attrs = last, .low = 0.5}};
  OpDef grad_scale{.name = "RmsNormGradScale", .types = grad_scale_types, .loops = grad_scale_rule};
  grad_scale.cost = element_cost<3>;
  grad_scale.samples = {{.inputs = {x, x, rstd}, .attrs = last, .low = 0.5}};
  norm.attributes = {{"axis"}, {"epsilon", kReal}};
  grad_x.attributes = grad_scale.attributes = {{"axis"}};
  return {norm, grad_x, grad_scale};
}

}  // namespace piper
