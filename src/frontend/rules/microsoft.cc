// Operators of com.microsoft that onnxruntime's optimizer fuses others into: norms with a residual,
// activations with a bias, products. Written out in the closed op set again.
#include <algorithm>
#include <numeric>

#include "rule.h"

namespace piper::onnx_import {
namespace {

// ---- Activations --------------------------------------------------------------------------------

Result<Vals> fused_gelu(RuleContext& c, const char* approximate, size_t most) {
  PIPER_TRY(c.need(most == 2 && c.node.op == "BiasGelu" ? 2 : 1, most));
  Val x = c.in(0);
  if (c.has(1)) {
    PIPER_ASSIGN(x, c.add(x, c.in(1)));
  }
  return single(c.pointwise("Gelu", {x}, {{"approximate", std::string(approximate)}}));
}
Result<Vals> plain_gelu(RuleContext& c) { return fused_gelu(c, "none", 1); }
Result<Vals> bias_gelu(RuleContext& c) { return fused_gelu(c, "none", 2); }
Result<Vals> fast_gelu(RuleContext& c) { return fused_gelu(c, "tanh", 2); }

Result<Vals> quick_gelu(RuleContext& c) {  // x · sigmoid(alpha · x)
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  PIPER_ASSIGN(Val y, c.pointwise("Mul", {x, c.number(c.real("alpha", 1.702), x)}));
  PIPER_ASSIGN(y, c.pointwise("Sigmoid", {y}));
  return single(c.pointwise("Mul", {x, y}));
}

// ---- Norms --------------------------------------------------------------------------------------

Result<Val> sum_with_bias(RuleContext& c, size_t bias) {
  const Val& x = c.in(0);
  PIPER_ASSIGN(Val sum, c.add(x, c.in(1)));
  if (c.has(bias)) {
    PIPER_ASSIGN(sum, c.add(sum, c.in(bias)));
  }
  if (sum.shape != x.shape)
    return c.error("adds {} to {}", to_string(c.in(1).shape), to_string(x.shape));
  return sum;
}

// Of the sum of input, skip and perhaps a bias: the result, two statistics that only a backward
// pass of its own would want, and the sum.
Result<Vals> norm_of_sum(RuleContext& c, std::string_view op, size_t bias, Vals scales) {
  for (size_t i = 1; i < std::min<size_t>(c.node.outputs.size(), 3); ++i)
    if (!c.node.outputs[i].empty()) return c.error("its output {} is not supported", i);
  const Val& x = c.in(0);
  if (x.rank() == 0) return c.error("normalises a scalar");
  PIPER_ASSIGN(Val sum, sum_with_bias(c, bias));
  Vals inputs{sum};
  for (const Val& scale : scales) {
    if (!scale.present()) continue;
    PIPER_ASSIGN(inputs.emplace_back(), c.expand(scale, {x.shape.back()}));
  }
  const Attrs attrs{{"axis", static_cast<int64_t>(x.rank()) - 1},
                    {"epsilon", c.real("epsilon", 1e-12)}};
  PIPER_ASSIGN(Val y, c.op(op, inputs, attrs));
  return Vals{std::move(y), Val(), Val(), std::move(sum)};
}

Result<Vals> skip_layer_norm(RuleContext& c) {
  PIPER_TRY(c.need(3, 5));
  return norm_of_sum(c, "LayerNorm", 4, {c.in(2), c.in(3)});
}
Result<Vals> skip_rms_norm(RuleContext& c) {
  PIPER_TRY(c.need(3, 4));
  return norm_of_sum(c, "RmsNorm", 3, {c.in(2)});
}

Result<Vals> simplified_norm(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank()));
  const Shape shape(x.shape.begin() + static_cast<int64_t>(axis), x.shape.end());
  PIPER_ASSIGN(const Val scale, c.expand(c.in(1), shape));
  return single(c.op("RmsNorm", {x, scale},
                     {{"axis", static_cast<int64_t>(axis)}, {"epsilon", c.real("epsilon", 1e-5)}}));
}

// ---- Products -----------------------------------------------------------------------------------

// Swaps dims. `batch`: its first dim moves after the other batch dims.
Result<Val> with_dims_turned(RuleContext& c, const Val& x, bool last_two, bool batch) {
  std::vector<int64_t> perm(x.rank());
  std::iota(perm.begin(), perm.end(), 0);
  if (batch && perm.size() > 2) std::rotate(perm.begin(), perm.begin() + 1, perm.end() - 1);
  if (last_two && perm.size() > 1) std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return c.transpose(x, perm);
}

Result<Vals> fused_matmul(RuleContext& c) {  // alpha · a · b
  PIPER_TRY(c.need(2, 2));
  if (c.in(0).rank() < 2 || c.in(1).rank() < 2)
    return c.error("multiplies {} by {}", to_string(c.in(0).shape), to_string(c.in(1).shape));
  PIPER_ASSIGN(const Val a, with_dims_turned(c, c.in(0), c.integer("transA", 0) != 0,
                                             c.integer("transBatchA", 0) != 0));
  PIPER_ASSIGN(const Val b, with_dims_turned(c, c.in(1), c.integer("transB", 0) != 0,
                                             c.integer("transBatchB", 0) != 0));
  PIPER_ASSIGN(const Val y, c.matmul(a, b));
  const double alpha = c.real("alpha", 1);
  if (alpha == 1) return Vals{y};
  return single(c.pointwise("Mul", {y, c.number(alpha, y)}));
}

constexpr ImportRule kMicrosoftRules[] = {
    {"SimplifiedLayerNormalization", 1, kNewest, simplified_norm},  // stands in ai.onnx
    {"com.microsoft::BiasGelu", 1, kNewest, bias_gelu},
    {"com.microsoft::FastGelu", 1, kNewest, fast_gelu},
    {"com.microsoft::FusedMatMul", 1, kNewest, fused_matmul},
    {"com.microsoft::Gelu", 1, kNewest, plain_gelu},
    {"com.microsoft::QuickGelu", 1, kNewest, quick_gelu},
    {"com.microsoft::SimplifiedLayerNormalization", 1, kNewest, simplified_norm},
    {"com.microsoft::SkipLayerNormalization", 1, kNewest, skip_layer_norm},
    {"com.microsoft::SkipSimplifiedLayerNormalization", 1, kNewest, skip_rms_norm},
};

}  // namespace

std::span<const ImportRule> microsoft_rules() { return kMicrosoftRules; }

}  // namespace piper::onnx_import
