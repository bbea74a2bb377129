// GroupNorm{groups, epsilon}(x[N, C, …], scale[C], bias[C]) -> (y, mean[N, groups], rstd[N,
// groups]): each sample's channels are normalised in groups of C / groups, over all that follows
// them. GroupNormGradX{groups}(dy, x, scale, mean, rstd) -> dx and GroupNormGradParams{groups}(dy,
// x, mean, rstd) -> (dscale, dbias) are separate, so that a split backward repeats nothing.
#include "rules.h"

namespace piper {
namespace {

struct Group {
  TensorType params, statistics;
};
Result<Group> group_of(const OpTypes& use, size_t x_input) {
  const TensorType& x = use.inputs[x_input];
  PIPER_TRY(check_float(use, x_input));
  const int64_t groups = use.attrs.integer("groups");
  if (x.shape.size() < 2 || groups < 1 || x.shape[1] % groups != 0)
    return fail("cannot normalise {} in {} groups", to_string(x), groups);
  return Group{{x.dtype, {x.shape[1]}}, {x.dtype, {x.shape[0], groups}}};
}

TypesResult group_norm_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  PIPER_ASSIGN(const Group group, group_of(use, 0));
  PIPER_TRY(check_type(use, 1, "scale", group.params));
  PIPER_TRY(check_type(use, 2, "bias", group.params));
  return std::vector<TensorType>{use.inputs[0], group.statistics, group.statistics};
}

TypesResult group_norm_grad_x_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 5, 5));
  PIPER_ASSIGN(const Group group, group_of(use, 1));
  PIPER_TRY(check_type(use, 0, "dy", use.inputs[1]));
  PIPER_TRY(check_type(use, 2, "scale", group.params));
  PIPER_TRY(check_type(use, 3, "mean", group.statistics));
  PIPER_TRY(check_type(use, 4, "rstd", group.statistics));
  return std::vector<TensorType>{use.inputs[1]};
}

TypesResult group_norm_grad_params_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 4, 4));
  PIPER_ASSIGN(const Group group, group_of(use, 1));
  PIPER_TRY(check_type(use, 0, "dy", use.inputs[1]));
  PIPER_TRY(check_type(use, 2, "mean", group.statistics));
  PIPER_TRY(check_type(use, 3, "rstd", group.statistics));
  return std::vector<TensorType>{group.params, group.params};
}

Grads group_norm_gradient(Builder& build, const GradientArgs& args) {
  // The statistics are for the backward ops only.
  if (args.output_grads[1].valid() || args.output_grads[2].valid()) return {};
  const ValueId dy = args.output_grads[0], x = args.inputs[0];
  const ValueId mean = args.outputs[1], rstd = args.outputs[2];
  const Attrs groups{{"groups", args.attrs.integer("groups")}};
  Grads grads(3);
  if (args.wanted[0])
    grads[0] = build.op1("GroupNormGradX", {dy, x, args.inputs[1], mean, rstd}, groups);
  if (args.wanted[1] || args.wanted[2]) {
    const std::vector<ValueId> params =
        build.op("GroupNormGradParams", {dy, x, mean, rstd}, groups);
    if (args.wanted[1]) grads[1] = params[0];
    if (args.wanted[2]) grads[2] = params[1];
  }
  return grads;
}

// Only samples can be cut: a block of channels would need another number of groups.
struct GroupLetters {
  LoopBuilder build;
  Dims x, params, statistics;
};
GroupLetters group_norm_letters_of(const OpTypes& use, size_t input, bool params_only) {
  GroupLetters l;
  const Shape& shape = use.inputs[input].shape;
  const int64_t groups = use.attrs.integer("groups");
  const char sample = l.build.letter(shape[0]);
  const char group = l.build.whole(groups), channel = l.build.whole(shape[1] / groups);
  l.x = {{sample}, {group, channel}};
  for (size_t d = 2; d < shape.size(); ++d)
    l.x.push_back({params_only ? l.build.letter(shape[d]) : l.build.whole(shape[d])});
  l.params = {{group, channel}};
  l.statistics = {{sample}, {group}};
  return l;
}

LoopRule group_norm_rule(const OpTypes& use) {
  GroupLetters l = group_norm_letters_of(use, 0, false);
  l.build.rule.inputs = {l.x, l.params, l.params};
  l.build.rule.outputs = {l.x, l.statistics, l.statistics};
  return l.build.rule;
}

LoopRule group_norm_grad_x_rule(const OpTypes& use) {
  GroupLetters l = group_norm_letters_of(use, 1, false);
  l.build.rule.inputs = {l.x, l.x, l.params, l.statistics, l.statistics};
  l.build.rule.outputs = {l.x};
  l.build.rule.linear = {{0}};
  return l.build.rule;
}

LoopRule group_norm_grad_params_rule(const OpTypes& use) {
  GroupLetters l = group_norm_letters_of(use, 1, true);
  l.build.rule.inputs = {l.x, l.x, l.statistics, l.statistics};
  l.build.rule.outputs = {l.params, l.params};
  l.build.rule.linear = {{0}};
  return l.build.rule;
}

}  // namespace

std::vector<OpDef> group_norm_ops() {
  auto in = [](int64_t groups) { return Attrs{{"groups", groups}, {"epsilon", 1e-5}}; };
  OpDef norm{.name = "GroupNorm",
             .types = group_norm_types,
             .gradient = group_norm_gradient,
             .loops = group_norm_rule};
  norm.cost = element_cost<8>;
  norm.autocast = OpDef::Autocast::kF32;
  norm.nonzero = {2};
  norm.samples = {{.inputs = {f64({2, 4, 3}), f64({4}), f64({4})}, .attrs = in(2)},
                  {.inputs = {f64({3, 3, 2, 2}), f64({3}), f64({3})}, .attrs = in(3)},
                  {.inputs = {f64({2, 6}), f64({6}), f64({6})}, .attrs = in(1)}};
  const TensorType x = f64({2, 4, 3}), statistics = f64({2, 2});
  OpDef grad_x{
      .name = "GroupNormGradX", .types = group_norm_grad_x_types, .loops = group_norm_grad_x_rule};
  grad_x.cost = element_cost<10>;
  grad_x.samples = {
      {.inputs = {x, x, f64({4}), statistics, statistics}, .attrs = in(2), .low = 0.5}};
  OpDef grad_params{.name = "GroupNormGradParams",
                    .types = group_norm_grad_params_types,
                    .loops = group_norm_grad_params_rule};
  grad_params.cost = element_cost<5>;
  grad_params.samples = {{.inputs = {x, x, statistics, statistics}, .attrs = in(2), .low = 0.5}};
  norm.attributes = grad_x.attributes = grad_params.attributes = {{"groups"}, {"epsilon", kReal}};
  return {norm, grad_x, grad_params};
}

}  // namespace piper
