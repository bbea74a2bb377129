// Further pointwise functions, written out in the closed op set.
#include <limits>

#include "rule.h"

namespace piper::onnx_import {
namespace {

Result<Vals> same(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return single(c.pointwise(c.node.op, {c.in(0)}));
}

// Computes scale·x for x > 0, else slope·(exp(x / width) - 1): of the numbers below only, so that
// nothing overflows.
Result<Val> exponential_below(RuleContext& c, const Val& x, double scale, double slope,
                              double width) {
  PIPER_ASSIGN(const Val positive, c.pointwise("Greater", {x, c.number(0, x)}));
  PIPER_ASSIGN(Val y, c.pointwise("Where", {positive, c.number(0, x), x}));
  if (width != 1) {
    PIPER_ASSIGN(y, c.pointwise("Div", {y, c.number(width, x)}));
  }
  PIPER_ASSIGN(y, c.pointwise("Exp", {y}));
  PIPER_ASSIGN(y, c.pointwise("Sub", {y, c.number(1, x)}));
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, c.number(slope, x)}));
  Val above = x;
  if (scale != 1) {
    PIPER_ASSIGN(above, c.pointwise("Mul", {x, c.number(scale, x)}));
  }
  return c.pointwise("Where", {positive, above, y});
}

Result<Vals> elu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return single(exponential_below(c, c.in(0), 1, c.real("alpha", 1), 1));
}

Result<Vals> selu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const bool old = c.opset < 6;  // of fewer digits
  const double gamma = c.real("gamma", old ? 1.0507 : 1.05070102214813232421875);
  const double alpha = c.real("alpha", old ? 1.6732 : 1.67326319217681884765625);
  return single(exponential_below(c, c.in(0), gamma, gamma * alpha, 1));
}

Result<Vals> celu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const double alpha = c.real("alpha", 1);
  if (alpha == 0) return c.error("alpha must not be 0");
  return single(exponential_below(c, c.in(0), 1, alpha, alpha));
}

Result<Vals> softsign(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  PIPER_ASSIGN(Val size, c.pointwise("Abs", {c.in(0)}));
  PIPER_ASSIGN(size, c.pointwise("Add", {size, c.number(1, size)}));
  return single(c.pointwise("Div", {c.in(0), size}));
}

Result<Vals> thresholded_relu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const Val above, c.pointwise("Greater", {x, c.number(c.real("alpha", 1), x)}));
  return single(c.pointwise("Where", {above, x, c.number(0, x)}));
}

Result<Vals> shrink(RuleContext& c) {  // towards zero by `bias` outside of [-lambd, lambd]
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  const double lambd = c.real("lambd", 0.5), bias = c.real("bias", 0);
  PIPER_ASSIGN(const Val low, c.pointwise("Add", {x, c.number(bias, x)}));
  PIPER_ASSIGN(const Val high, c.pointwise("Sub", {x, c.number(bias, x)}));
  PIPER_ASSIGN(const Val below, c.pointwise("Less", {x, c.number(-lambd, x)}));
  PIPER_ASSIGN(const Val above, c.pointwise("Greater", {x, c.number(lambd, x)}));
  PIPER_ASSIGN(const Val rest, c.pointwise("Where", {above, high, c.number(0, x)}));
  return single(c.pointwise("Where", {below, low, rest}));
}

Result<Vals> mish(RuleContext& c) {  // x · tanh(softplus(x))
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  PIPER_ASSIGN(Val y, c.pointwise("Softplus", {x}));
  PIPER_ASSIGN(y, c.pointwise("Tanh", {y}));
  return single(c.pointwise("Mul", {x, y}));
}

Result<Vals> is_infinite(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  const double infinity = std::numeric_limits<double>::infinity();
  const bool negative = c.integer("detect_negative", 1) != 0;
  const bool positive = c.integer("detect_positive", 1) != 0;
  if (negative && positive) {
    PIPER_ASSIGN(const Val size, c.pointwise("Abs", {x}));
    return single(c.pointwise("Equal", {size, c.number(infinity, x)}));
  }
  if (negative || positive)
    return single(c.pointwise("Equal", {x, c.number(negative ? -infinity : infinity, x)}));
  return single(c.expand(number_val(0, DType::kBool), x.shape));
}

constexpr ImportRule kActivationRules[] = {
    {"Acos", 7, kNewest, same},
    {"Acosh", 9, kNewest, same},
    {"Asin", 7, kNewest, same},
    {"Asinh", 9, kNewest, same},
    {"Atan", 7, kNewest, same},
    {"Atanh", 9, kNewest, same},
    {"Celu", 12, kNewest, celu},
    {"Cosh", 9, kNewest, same},
    {"Elu", 1, kNewest, elu},
    {"IsInf", 10, kNewest, is_infinite},
    {"Mish", 18, kNewest, mish},
    {"Selu", 1, kNewest, selu},
    {"Shrink", 9, kNewest, shrink},
    {"Sinh", 9, kNewest, same},
    {"Softsign", 1, kNewest, softsign},
    {"Tan", 7, kNewest, same},
    {"ThresholdedRelu", 10, kNewest, thresholded_relu},
};

}  // namespace

std::span<const ImportRule> activation_rules() { return kActivationRules; }

}  // namespace piper::onnx_import
