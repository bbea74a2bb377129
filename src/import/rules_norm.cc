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

Result<Vals> rms_norm(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank()));
  Val scale = c.in(1);
  const Shape shape(x.shape.begin() + static_cast<int64_t>(axis), x.shape.end());
  if (scale.shape != shape) scale = c.expand(scale, shape);
  PIPER_ASSIGN(const Vals made,
               c.ops("RmsNorm", {x, scale},
                     {{"axis", static_cast<int64_t>(axis)}, {"epsilon", c.real("epsilon", 1e-5)}}));
  return Vals{made[0]};
}

// Scale and bias have one element per group or, as normalisation needs them, per channel.
Result<Vals> normalised_in_groups(RuleContext& c, int64_t groups, bool per_group) {
  PIPER_TRY(c.need(3, 3));
  const Val& x = c.in(0);
  if (x.rank() < 3 || groups < 1 || x.shape[1] % groups != 0 || num_elements(x.shape) == 0)
    return c.error("cannot normalise {} in {} groups", to_string(x.shape), groups);
  const int64_t channels = x.shape[1], count = per_group ? groups : channels;
  if (c.in(1).shape != Shape{count} || c.in(2).shape != Shape{count})
    return c.error("its scale and bias must have {} elements", count);
  Vals inputs{x};
  for (size_t i : {1, 2}) {
    PIPER_ASSIGN(const Val column, c.reshape(c.in(i), {count, 1}));
    PIPER_ASSIGN(Val param, c.reshape(c.expand(column, {count, channels / count}), {channels}));
    inputs.push_back(std::move(param));
  }
  PIPER_ASSIGN(const Vals made, c.ops("GroupNorm", inputs,
                                      {{"groups", groups}, {"epsilon", c.real("epsilon", 1e-5)}}));
  return Vals{made[0]};
}

Result<Vals> group_norm(RuleContext& c) {  // before opset 21 scale and bias are per group
  return normalised_in_groups(c, c.integer("num_groups", 0), c.opset < 21);
}

Result<Vals> instance_norm(RuleContext& c) {
  if (c.num_inputs() == 0 || c.in(0).rank() < 3)
    return c.error("needs [batch, channels, …], got {}", to_string(c.in(0).shape));
  return normalised_in_groups(c, c.in(0).shape[1], false);
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
