// Imports the normalisations of ONNX.
#include "rule.h"

namespace piper::onnx_import {
namespace {

// Imports LayerNorm or RmsNorm over the dims from `axis` on, with a scale and perhaps a bias
// (inputs 1, 2) that are broadcast to these. One of more dims, as of each head, acts on the result.
Result<Vals> normalised_from_axis(RuleContext& c, std::string_view op, const Val& x) {
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank()));
  const Shape shape(x.shape.begin() + static_cast<int64_t>(axis), x.shape.end());
  const bool inside = c.in(1).rank() <= shape.size() && c.in(2).rank() <= shape.size();
  const Attrs attrs{{"axis", static_cast<int64_t>(axis)}, {"epsilon", c.real("epsilon", 1e-5)}};
  Vals inputs{x};
  PIPER_ASSIGN(inputs.emplace_back(), c.expand(inside ? c.in(1) : c.number(1, x), shape));
  if (inside && c.has(2)) {
    PIPER_ASSIGN(inputs.emplace_back(), c.expand(c.in(2), shape));
  }
  PIPER_ASSIGN(Vals made, c.ops(op, inputs, attrs));
  if (inside) return made;
  PIPER_ASSIGN(const Val scale, c.expand(c.in(1), x.shape));
  PIPER_ASSIGN(made[0], c.pointwise("Mul", {made[0], scale}));
  if (c.has(2)) {
    PIPER_ASSIGN(const Val bias, c.expand(c.in(2), x.shape));
    PIPER_ASSIGN(made[0], c.pointwise("Add", {made[0], bias}));
  }
  return made;
}

Result<Vals> layer_norm(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  return normalised_from_axis(c, "LayerNorm", c.in(0));
}

Result<Vals> rms_norm(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  // The result has the type of the scale.
  PIPER_ASSIGN(const Val x, c.cast(c.in(0), c.in(1).dtype));
  PIPER_ASSIGN(const Vals made, normalised_from_axis(c, "RmsNorm", x));
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
    PIPER_ASSIGN(const Val wide, c.expand(column, {count, channels / count}));
    PIPER_ASSIGN(inputs.emplace_back(), c.reshape(wide, {channels}));
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

constexpr ImportRule kNormRules[] = {
    {"GroupNormalization", 18, kNewest, group_norm},
    {"InstanceNormalization", 1, kNewest, instance_norm},
    {"LayerNormalization", 1, kNewest, layer_norm},
    {"RMSNormalization", 23, kNewest, rms_norm},
};

}  // namespace

std::span<const ImportRule> norm_rules() { return kNormRules; }

}  // namespace piper::onnx_import
