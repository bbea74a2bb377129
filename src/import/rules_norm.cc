// Normalisations.
#include "rules.h"

namespace piper::onnx_import {
namespace {

Result<Vals> layer_norm(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank()));
  Vals inputs{x, c.in(1)};
  if (c.has(2)) inputs.push_back(c.in(2));
  return c.ops("LayerNorm", inputs,
               {{"axis", static_cast<int64_t>(axis)}, {"epsilon", c.real("epsilon", 1e-5)}});
}

std::vector<int64_t> axes_from(size_t first, size_t rank) {
  std::vector<int64_t> axes;
  for (size_t d = first; d < rank; ++d) axes.push_back(static_cast<int64_t>(d));
  return axes;
}

Result<Val> mean_over(RuleContext& c, const Val& x, const std::vector<int64_t>& axes) {
  double count = 1;
  for (const int64_t a : axes) count *= static_cast<double>(x.shape[static_cast<size_t>(a)]);
  PIPER_ASSIGN(const Val sum, c.reduce_sum(x, axes, true));
  return c.pointwise("Mul", {sum, c.number(1 / count, sum)});
}

// x / sqrt(mean(x²) + epsilon)
Result<Val> over_root_mean_square(RuleContext& c, const Val& x, const std::vector<int64_t>& axes,
                                  double epsilon) {
  PIPER_ASSIGN(Val square, c.pointwise("Mul", {x, x}));
  PIPER_ASSIGN(square, mean_over(c, square, axes));
  PIPER_ASSIGN(square, c.pointwise("Add", {square, c.number(epsilon, x)}));
  PIPER_ASSIGN(square, c.pointwise("Sqrt", {square}));
  PIPER_ASSIGN(const Val factor, c.pointwise("Reciprocal", {square}));
  return c.pointwise("Mul", {x, factor});
}

Result<Vals> rms_norm(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank()));
  PIPER_ASSIGN(const Val y,
               over_root_mean_square(c, x, axes_from(axis, x.rank()), c.real("epsilon", 1e-5)));
  return single(c.pointwise("Mul", {y, c.in(1)}));
}

// Per-channel scale and bias of a value [batch, channels, …].
Result<Val> per_channel(RuleContext& c, Val y, const Val& scale, const Val& bias) {
  Shape shape(y.rank() - 1, 1);
  shape[0] = y.shape[1];
  PIPER_ASSIGN(const Val s, c.reshape(scale, shape));
  PIPER_ASSIGN(const Val b, c.reshape(bias, shape));
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, s}));
  return c.pointwise("Add", {y, b});
}

Result<Val> groups_normalised(RuleContext& c, const Val& x, int64_t groups) {
  if (x.rank() < 3 || groups < 1 || x.shape[1] % groups != 0 || num_elements(x.shape) == 0) {
    return c.error("cannot normalise {} in {} groups", to_string(x.shape), groups);
  }
  PIPER_ASSIGN(Val y,
               c.reshape(x, {x.shape[0], groups, num_elements(x.shape) / (x.shape[0] * groups)}));
  PIPER_ASSIGN(const Val mean, mean_over(c, y, {2}));
  PIPER_ASSIGN(y, c.pointwise("Sub", {y, mean}));
  PIPER_ASSIGN(y, over_root_mean_square(c, y, {2}, c.real("epsilon", 1e-5)));
  return c.reshape(y, x.shape);
}

// Before opset 21 scale and bias are per group: each for all channels of it.
Result<Val> of_channels(RuleContext& c, const Val& per_group, int64_t groups, int64_t channels) {
  if (c.opset >= 21) return per_group;
  PIPER_ASSIGN(const Val column, c.reshape(per_group, {groups, 1}));
  return c.reshape(c.expand(column, {groups, channels / groups}), {channels});
}

Result<Vals> group_norm(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  const Val& x = c.in(0);
  const int64_t groups = c.integer("num_groups", 0);
  PIPER_ASSIGN(const Val y, groups_normalised(c, x, groups));
  const int64_t count = c.opset >= 21 ? x.shape[1] : groups;
  if (c.in(1).shape != Shape{count} || c.in(2).shape != Shape{count})
    return c.error("its scale and bias must have {} elements", count);
  PIPER_ASSIGN(const Val scale, of_channels(c, c.in(1), groups, x.shape[1]));
  PIPER_ASSIGN(const Val bias, of_channels(c, c.in(2), groups, x.shape[1]));
  return single(per_channel(c, y, scale, bias));
}

Result<Vals> instance_norm(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  if (c.in(0).rank() < 3)
    return c.error("needs [batch, channels, …], got {}", to_string(c.in(0).shape));
  PIPER_ASSIGN(const Val y, groups_normalised(c, c.in(0), c.in(0).shape[1]));
  return single(per_channel(c, y, c.in(1), c.in(2)));
}

constexpr ImportRule kRules[] = {
    {"GroupNormalization", 18, kNewest, group_norm},
    {"InstanceNormalization", 6, kNewest, instance_norm},
    {"LayerNormalization", 17, kNewest, layer_norm},
    {"RMSNormalization", 23, kNewest, rms_norm},
};

}  // namespace

std::span<const ImportRule> norm_rules() { return kRules; }

}  // namespace piper::onnx_import
