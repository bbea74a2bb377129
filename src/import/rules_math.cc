// Pointwise ops.

#include "calls.h"
#include "rules.h"

namespace piper::onnx_import {
namespace {

Result<Vals> same_unary(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return single(c.pointwise(c.node.op, {c.in(0)}));
}

Result<Vals> same_binary(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  return single(c.pointwise(c.node.op, {c.in(0), c.in(1)}));
}

Result<Vals> old_binary(RuleContext& c) {  // opset 1 and 6: broadcasting by attributes
  if (c.integer("broadcast", 0) != 0)
    return c.error("broadcasting as before opset 7 is not supported");
  return same_binary(c);
}

Result<Vals> mod(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  Attrs attrs;
  if (c.integer("fmod", 0) != 0) attrs.set("fmod", int64_t{1});
  return single(c.pointwise("Mod", {c.in(0), c.in(1)}, attrs));
}

Result<Vals> where(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  return single(c.pointwise("Where", {c.in(0), c.in(1), c.in(2)}));
}

// Max, Min, Sum, Mean of any number of operands.
Result<Val> chain(RuleContext& c, std::string_view op) {
  PIPER_TRY(c.need(1));
  Val out = c.in(0);
  for (size_t i = 1; i < c.num_inputs(); ++i) {
    PIPER_ASSIGN(out, c.pointwise(op, {out, c.in(i)}));
  }
  return out;
}
Result<Vals> variadic(RuleContext& c) {
  return single(chain(c, c.node.op == "Sum" ? "Add" : c.node.op));
}
Result<Vals> mean(RuleContext& c) {
  PIPER_ASSIGN(const Val sum, chain(c, "Add"));
  return single(
      c.pointwise("Mul", {sum, c.number(1.0 / static_cast<double>(c.num_inputs()), sum)}));
}

// ---- Casts --------------------------------------------------------------------------------------

Result<Val> cast_to(RuleContext& c, const Val& x, DType dtype) {
  if (x.dtype == dtype) return x;
  return c.pointwise("Cast", {x}, {{"to", std::string(info(dtype).name)}});
}

Result<Vals> cast(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const std::optional<DType> dtype = dtype_of_code(c.integer("to", 0));
  if (!dtype)
    return c.error("casts to element type {}, which is not supported", c.integer("to", 0));
  return single(cast_to(c, c.in(0), *dtype));
}

Result<Vals> cast_like(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  return single(cast_to(c, c.in(0), c.in(1).dtype));
}

// ---- Powers -------------------------------------------------------------------------------------

std::optional<double> constant_number(const Val& v) {
  if (!v.is_constant() || num_elements(v.stored) != 1) return {};
  return read_number(v.data, v.dtype, 0);
}

Result<Vals> pow(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(0);
  const std::optional<double> exponent = constant_number(c.in(1));
  const bool scalar = num_elements(c.in(1).shape) == 1 && c.in(1).rank() <= x.rank();
  if (exponent && scalar && *exponent == 1) return Vals{x};
  if (exponent && scalar && (*exponent == 2 || *exponent == 3)) {
    PIPER_ASSIGN(Val out, c.pointwise("Mul", {x, x}));
    if (*exponent == 3) {
      PIPER_ASSIGN(out, c.pointwise("Mul", {out, x}));
    }
    return Vals{out};
  }
  if (exponent && scalar && *exponent == 0.5) return single(c.pointwise("Sqrt", {x}));
  PIPER_ASSIGN(const Val power, cast_to(c, c.in(1), x.dtype));
  return single(c.pointwise("Pow", {x, power}));
}

// ---- Bounds -------------------------------------------------------------------------------------

// What lies on a bound has a gradient as in PyTorch's clamp, and none as in its hardtanh (ReLU6):
// the call says which it was.
Result<Val> bounded(RuleContext& c, Val x, const Val& low, const Val& high) {
  const auto call = parse_call(find_metadata(c.node.metadata, "pkg.torch.onnx.fx_node"));
  const bool open = call && (call->function == "aten.hardtanh" || call->function == "aten.relu6");
  if (low.present()) {
    PIPER_ASSIGN(const Val below, c.pointwise(open ? "LessOrEqual" : "Less", {x, low}));
    PIPER_ASSIGN(x, c.pointwise("Where", {below, low, x}));
  }
  if (high.present()) {
    PIPER_ASSIGN(const Val above, c.pointwise(open ? "GreaterOrEqual" : "Greater", {x, high}));
    PIPER_ASSIGN(x, c.pointwise("Where", {above, high, x}));
  }
  return x;
}

Result<Vals> clip(RuleContext& c) {
  PIPER_TRY(c.need(1, 3));
  const Val& x = c.in(0);
  if (c.opset >= 11) return single(bounded(c, x, c.in(1), c.in(2)));
  const Val low = c.has_attr("min") ? c.number(c.real("min", 0), x) : Val();
  const Val high = c.has_attr("max") ? c.number(c.real("max", 0), x) : Val();
  return single(bounded(c, x, low, high));
}

// ---- Activations, written out -------------------------------------------------------------------

Result<Val> negative_part(RuleContext& c, const Val& x,
                          const Val& below) {  // x where x > 0, else below
  PIPER_ASSIGN(const Val positive, c.pointwise("Greater", {x, c.number(0, x)}));
  return c.pointwise("Where", {positive, x, below});
}

Result<Vals> leaky_relu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  PIPER_ASSIGN(const Val below,
               c.pointwise("Mul", {c.in(0), c.number(c.real("alpha", 0.01), c.in(0))}));
  return single(negative_part(c, c.in(0), below));
}

Result<Vals> prelu(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  PIPER_ASSIGN(const Val below, c.pointwise("Mul", {c.in(0), c.in(1)}));
  return single(negative_part(c, c.in(0), below));
}

Result<Vals> elu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  // Of the smaller of x and 0, so that the branch not taken stays finite.
  PIPER_ASSIGN(Val below, c.pointwise("Min", {x, c.number(0, x)}));
  PIPER_ASSIGN(below, c.pointwise("Exp", {below}));
  PIPER_ASSIGN(below, c.pointwise("Sub", {below, c.number(1, x)}));
  PIPER_ASSIGN(below, c.pointwise("Mul", {below, c.number(c.real("alpha", 1), x)}));
  return single(negative_part(c, x, below));
}

Result<Val> hard_sigmoid_of(RuleContext& c, const Val& x, double alpha, double beta) {
  PIPER_ASSIGN(Val y, c.pointwise("Mul", {x, c.number(alpha, x)}));
  PIPER_ASSIGN(y, c.pointwise("Add", {y, c.number(beta, x)}));
  return bounded(c, y, c.number(0, x), c.number(1, x));
}
Result<Vals> hard_sigmoid(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return single(hard_sigmoid_of(c, c.in(0), c.real("alpha", 0.2), c.real("beta", 0.5)));
}
Result<Vals> hard_swish(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  PIPER_ASSIGN(const Val gate, hard_sigmoid_of(c, c.in(0), 1.0 / 6, 0.5));
  return single(c.pointwise("Mul", {c.in(0), gate}));
}

Result<Vals> swish(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const double alpha = c.real("alpha", 1);
  Val x = c.in(0);
  if (alpha != 1) {
    PIPER_ASSIGN(x, c.pointwise("Mul", {x, c.number(alpha, x)}));
  }
  PIPER_ASSIGN(const Val gate, c.pointwise("Sigmoid", {x}));
  return single(c.pointwise("Mul", {c.in(0), gate}));
}

Result<Vals> softplus(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return single(softplus_of(c, c.in(0)));
}

Result<Vals> gelu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const std::string kind = c.text("approximate", "none");
  if (kind != "none" && kind != "tanh")
    return c.error("approximate='{}' is not known", quote_control(kind));
  return single(c.pointwise("Gelu", {c.in(0)}, {{"approximate", kind}}));
}

constexpr ImportRule kRules[] = {
    {"Abs", 6, kNewest, same_unary},
    {"Add", 7, kNewest, same_binary},
    {"Add", 1, 6, old_binary},
    {"And", 7, kNewest, same_binary},
    {"Cast", 6, kNewest, cast, "of and to f64, f32, bf16, f16, i64, i32, bool"},
    {"CastLike", 15, kNewest, cast_like},
    {"Ceil", 1, kNewest, same_unary},
    {"Clip", 1, kNewest, clip},
    {"Cos", 7, kNewest, same_unary},
    {"Div", 7, kNewest, same_binary},
    {"Div", 1, 6, old_binary},
    {"Elu", 1, kNewest, elu},
    {"Equal", 7, kNewest, same_binary},
    {"Erf", 9, kNewest, same_unary},
    {"Exp", 1, kNewest, same_unary},
    {"Floor", 1, kNewest, same_unary},
    {"Gelu", 20, kNewest, gelu},
    {"Greater", 7, kNewest, same_binary},
    {"GreaterOrEqual", 12, kNewest, same_binary},
    {"HardSigmoid", 1, kNewest, hard_sigmoid},
    {"HardSwish", 14, kNewest, hard_swish},
    {"IsNaN", 9, kNewest, same_unary},
    {"LeakyRelu", 1, kNewest, leaky_relu},
    {"Less", 7, kNewest, same_binary},
    {"LessOrEqual", 12, kNewest, same_binary},
    {"Log", 1, kNewest, same_unary},
    {"Max", 8, kNewest, variadic},
    {"Mean", 8, kNewest, mean},
    {"Min", 8, kNewest, variadic},
    {"Mod", 10, kNewest, mod},
    {"Mul", 7, kNewest, same_binary},
    {"Mul", 1, 6, old_binary},
    {"Neg", 1, kNewest, same_unary},
    {"Not", 1, kNewest, same_unary},
    {"Or", 7, kNewest, same_binary},
    {"PRelu", 9, kNewest, prelu},
    {"Pow", 7, kNewest, pow},
    {"Reciprocal", 1, kNewest, same_unary},
    {"Relu", 1, kNewest, same_unary},
    {"Round", 11, kNewest, same_unary},
    {"Sigmoid", 1, kNewest, same_unary},
    {"Sign", 9, kNewest, same_unary},
    {"Sin", 7, kNewest, same_unary},
    {"Softplus", 1, kNewest, softplus},
    {"Sqrt", 1, kNewest, same_unary},
    {"Sub", 7, kNewest, same_binary},
    {"Sub", 1, 6, old_binary},
    {"Sum", 8, kNewest, variadic},
    {"Swish", 24, kNewest, swish},
    {"Tanh", 1, kNewest, same_unary},
    {"Where", 9, kNewest, where},
    {"Xor", 7, kNewest, same_binary},
};

}  // namespace

Result<Val> softplus_of(RuleContext& c, const Val& x) {
  PIPER_ASSIGN(Val tail, c.pointwise("Abs", {x}));
  PIPER_ASSIGN(tail, c.pointwise("Neg", {tail}));
  PIPER_ASSIGN(tail, c.pointwise("Exp", {tail}));
  PIPER_ASSIGN(tail, c.pointwise("Add", {tail, c.number(1, x)}));
  PIPER_ASSIGN(tail, c.pointwise("Log", {tail}));
  PIPER_ASSIGN(const Val top, c.pointwise("Relu", {x}));
  return c.pointwise("Add", {top, tail});
}

std::span<const ImportRule> math_rules() { return kRules; }

}  // namespace piper::onnx_import
