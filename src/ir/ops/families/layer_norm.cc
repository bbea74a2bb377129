// LayerNorm{axis, epsilon}(x, scale, bias?) -> (y, mean, rstd) over the dims from axis on; mean and
// rstd have x's shape with those dims 1. LayerNormGradX{axis}(dy, x, scale, mean, rstd) -> dx and
// LayerNormGradParams{axis}(dy, x, mean, rstd) -> (dscale, dbias) are separate, so that a split
// backward repeats nothing.
#include "norms.h"

namespace piper {
namespace {

TypesResult layer_norm_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 3));
  PIPER_TRY(check_float(use, 0));
  const TensorType& x = use.inputs[0];
  PIPER_ASSIGN(const size_t axis, check_rows_of(use, x));
  PIPER_TRY(check_type(use, 1, "scale", normalised(x, axis)));
  if (has_input(use, 2)) PIPER_TRY(check_type(use, 2, "bias", normalised(x, axis)));
  return std::vector<TensorType>{x, statistics(x, axis), statistics(x, axis)};
}

TypesResult layer_norm_grad_x_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 5, 5));
  PIPER_TRY(check_float(use, 0));
  const TensorType& x = use.inputs[1];
  PIPER_ASSIGN(const size_t axis, check_rows_of(use, x));
  PIPER_TRY(check_type(use, 0, "dy", x));
  PIPER_TRY(check_type(use, 2, "scale", normalised(x, axis)));
  PIPER_TRY(check_type(use, 3, "mean", statistics(x, axis)));
  PIPER_TRY(check_type(use, 4, "rstd", statistics(x, axis)));
  return std::vector<TensorType>{x};
}

TypesResult layer_norm_grad_params_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 4, 4));
  PIPER_TRY(check_float(use, 0));
  const TensorType& x = use.inputs[1];
  PIPER_ASSIGN(const size_t axis, check_rows_of(use, x));
  PIPER_TRY(check_type(use, 0, "dy", x));
  PIPER_TRY(check_type(use, 2, "mean", statistics(x, axis)));
  PIPER_TRY(check_type(use, 3, "rstd", statistics(x, axis)));
  return std::vector<TensorType>{normalised(x, axis), normalised(x, axis)};
}

// Returns the adjoint of x that the adjoints of mean and rstd make; invalid: neither has one.
ValueId of_statistics(Builder& build, const GradientArgs& args) {
  const ValueId x = args.inputs[0], mean = args.outputs[1], rstd = args.outputs[2];
  const ValueId dmean = args.output_grads[1], drstd = args.output_grads[2];
  const Shape shape = build.shape(x);
  int64_t count = 1;
  for (size_t d = static_cast<size_t>(args.attrs.integer("axis")); d < shape.size(); ++d)
    count *= shape[d];
  const auto spread = [&](ValueId value, double factor) {
    const ValueId share =
        build.scalar(factor / static_cast<double>(count), build.type(value).dtype);
    return build.expand(build.mul(value, build.expand(share, build.shape(value))), shape);
  };
  const ValueId of_mean = dmean.valid() ? spread(dmean, 1) : ValueId();
  if (!drstd.valid()) return of_mean;
  // rstd = 1 / √(mean of (x - mean)² + epsilon)
  const ValueId cube = build.mul(build.mul(rstd, rstd), rstd);
  const ValueId of_rstd =
      build.mul(spread(build.mul(drstd, cube), -1), build.sub(x, build.expand(mean, shape)));
  return of_mean.valid() ? build.add(of_mean, of_rstd) : of_rstd;
}

Grads layer_norm_gradient(Builder& build, const GradientArgs& args) {
  const ValueId dy = args.output_grads[0], x = args.inputs[0];
  const ValueId mean = args.outputs[1], rstd = args.outputs[2];
  const Attrs axis{{"axis", args.attrs.integer("axis")}};
  Grads grads(args.inputs.size());
  if (args.wanted[0]) {
    grads[0] = of_statistics(build, args);
    if (dy.valid()) {
      const ValueId dx = build.op1("LayerNormGradX", {dy, x, args.inputs[1], mean, rstd}, axis);
      grads[0] = grads[0].valid() ? build.add(dx, grads[0]) : dx;
    }
  }
  const bool biased = args.inputs.size() > 2 && args.wanted[2];
  if (dy.valid() && (args.wanted[1] || biased)) {
    const std::vector<ValueId> params = build.op("LayerNormGradParams", {dy, x, mean, rstd}, axis);
    if (args.wanted[1]) grads[1] = params[0];
    if (biased) grads[2] = params[1];
  }
  return grads;
}

LoopRule layer_norm_rule(const OpTypes& use) {
  NormLetters n = letters_of(use, 0);
  mark_params_whole(n);
  n.build.rule.inputs = {n.x, n.params};
  if (use.inputs.size() > 2) n.build.rule.inputs.push_back(use.present[2] ? n.params : Dims{});
  n.build.rule.outputs = {n.x, n.statistics, n.statistics};
  return n.build.rule;
}

LoopRule layer_norm_grad_x_rule(const OpTypes& use) {
  NormLetters n = letters_of(use, 1);
  mark_params_whole(n);
  n.build.rule.inputs = {n.x, n.x, n.params, n.statistics, n.statistics};
  n.build.rule.outputs = {n.x};
  n.build.rule.linear = {{0}};
  return n.build.rule;
}

LoopRule layer_norm_grad_params_rule(const OpTypes& use) {
  NormLetters n = letters_of(use, 1);
  n.build.rule.inputs = {n.x, n.x, n.statistics, n.statistics};
  n.build.rule.outputs = {n.params, n.params};
  n.build.rule.linear = {{0}};
  return n.build.rule;
}

}  // namespace

std::vector<OpDef> layer_norm_ops() {
  OpDef norm{.name = "LayerNorm",
             .types = layer_norm_types,
             .gradient = layer_norm_gradient,
             .loops = layer_norm_rule};
  norm.cost = element_cost<8>;
  norm.autocast = OpDef::Autocast::kF32;
  norm.nonzero = {2};
  auto at = [](int64_t axis) { return Attrs{{"axis", axis}, {"epsilon", 1e-5}}; };
  norm.samples = {{.inputs = {f64({4, 6}), f64({6}), f64({6})}, .attrs = at(1)},
                  {.inputs = {f64({2, 3, 4}), f64({4})}, .attrs = at(2)},
                  {.inputs = {f64({2, 3, 4}), f64({3, 4}), f64({3, 4})}, .attrs = at(1)}};
  OpDef grad_x{
      .name = "LayerNormGradX", .types = layer_norm_grad_x_types, .loops = layer_norm_grad_x_rule};
  grad_x.cost = element_cost<10>;
  grad_x.takes = 1;
  const Attrs last{{"axis", int64_t{2}}};
  grad_x.samples = {
      {.inputs = {f64({2, 3, 4}), f64({2, 3, 4}), f64({4}), f64({2, 3, 1}), f64({2, 3, 1})},
       .attrs = last,
       .low = 0.5}};
  OpDef grad_params{.name = "LayerNormGradParams",
                    .types = layer_norm_grad_params_types,
                    .loops = layer_norm_grad_params_rule};
  grad_params.cost = element_cost<5>;
  grad_params.samples = {
      {.inputs = {f64({2, 3, 4}), f64({2, 3, 4}), f64({2, 3, 1}), f64({2, 3, 1})},
       .attrs = last,
       .low = 0.5}};
  norm.attributes = {{"axis"}, {"epsilon", kReal}};
  grad_x.attributes = grad_params.attributes = {{"axis"}};
  return {norm, grad_x, grad_params};
}

}  // namespace piper
