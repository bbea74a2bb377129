// Imports the pointwise ops of ONNX.
#include <algorithm>

#include "rule.h"

namespace piper::onnx_import {
namespace {

Result<Vals> same_unary(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return single(c.pointwise(c.node.op, {c.in(0)}));
}

Result<Vals> same_binary(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  PIPER_ASSIGN(const Val second, second_operand(c));
  return single(c.pointwise(c.node.op, {c.in(0), second}));
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

// Chains Max, Min, Sum or Mean of any number of operands.
Result<Val> chain(RuleContext& c, std::string_view op) {
  PIPER_TRY(c.need(1));
  Val out = c.in(0);
  for (size_t i = 1; i < c.num_inputs(); ++i) {
    PIPER_ASSIGN(out, c.pointwise(op, {out, c.in(i)}));
  }
  return out;
}
Result<Vals> variadic(RuleContext& c) {
  const bool is_max = c.node.op == "Max", is_min = c.node.op == "Min";
  if ((is_max || is_min) && c.num_inputs() == 2 && c.called().starts_with("aten.clamp")) {
    PIPER_TRY(c.need(2));
    return single(
        bounded(c, c.in(0), is_max ? c.in(1) : Val(), is_min ? c.in(1) : Val(), Bound::kPasses));
  }
  return single(chain(c, c.node.op == "Sum" ? "Add" : c.node.op));
}
Result<Vals> mean(RuleContext& c) {
  PIPER_ASSIGN(const Val sum, chain(c, "Add"));
  return single(
      c.pointwise("Mul", {sum, c.number(1.0 / static_cast<double>(c.num_inputs()), sum)}));
}

// ---- Casts --------------------------------------------------------------------------------------

// Only the lowest bits are kept of what is wider.
Result<Val> cast_to(RuleContext& c, const Val& x, DType dtype, Narrow narrow) {
  PIPER_ASSIGN(Val y, c.cast(x, dtype));
  const bool fits = x.dtype == DType::kBool || x.narrow == narrow;
  if (narrow.bits > 0 && !fits) {
    const double count = 1 << narrow.bits, least = narrow.is_signed ? -count / 2 : 0;
    PIPER_ASSIGN(y, c.pointwise("Sub", {y, c.number(least, y)}));
    PIPER_ASSIGN(y, c.pointwise("Mod", {y, c.number(count, y)}));
    PIPER_ASSIGN(y, c.pointwise("Add", {y, c.number(least, y)}));
  }
  y.narrow = narrow;
  return y;
}

Result<Vals> cast(RuleContext& c) {  // before opset 6 the attribute is a name
  PIPER_TRY(c.need(1, 1));
  const int64_t code = c.opset < 6 ? code_of_type(c.text("to", "")) : c.integer("to", 0);
  const std::optional<DType> dtype = dtype_of_code(code);
  if (!dtype)
    return c.error("casts to {}, which is not supported",
                   c.opset < 6 ? quote_control(c.text("to", "")) : type_name(code));
  return single(cast_to(c, c.in(0), *dtype, narrow_of_code(code)));
}

// ---- Bits ---------------------------------------------------------------------------------------

Result<Vals> bitwise_not(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Narrow narrow = c.in(0).narrow;
  const bool is_positive = narrow.bits > 0 && !narrow.is_signed;
  const Val ones = c.number(is_positive ? (1 << narrow.bits) - 1 : -1, c.in(0));
  PIPER_ASSIGN(Val y, c.pointwise("Sub", {ones, c.in(0)}));
  y.narrow = narrow;
  return single(y);
}

// Shifts by a product or a quotient, which are the same of integers without a sign.
Result<Vals> bit_shift(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(0);
  const Narrow narrow = x.narrow;
  if (narrow.bits == 0 || narrow.is_signed) return c.error("shifts integers that have a sign");
  const std::string direction = c.text("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    return c.error("direction='{}' is not known", quote_control(direction));
  PIPER_ASSIGN(const Val places, c.pointwise("Min", {c.in(1), c.number(narrow.bits, x)}));
  PIPER_ASSIGN(const Val factor, c.pointwise("Pow", {c.number(2, x), places}));
  PIPER_ASSIGN(Val y, c.pointwise(direction == "LEFT" ? "Mul" : "Div", {x, factor}));
  PIPER_ASSIGN(y, c.pointwise("Mod", {y, c.number(1 << narrow.bits, y)}));
  y.narrow = narrow;
  return single(y);
}

Result<Vals> cast_like(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  return single(cast_to(c, c.in(0), c.in(1).dtype, c.in(1).narrow));
}

// ---- Powers -------------------------------------------------------------------------------------

std::optional<double> constant_number(const Val& v) {
  if (!v.is_constant() || num_elements(v.stored) != 1) return {};
  return read_number(v.data, v.dtype, 0);
}

// Returns whether the value is |x|, x², or sums, products and multiples of such: a root of one is a
// norm, a distance or a standard deviation, which PyTorch gives the slope 0 at 0.
class Magnitudes {
 public:
  explicit Magnitudes(RuleContext& c) : c_(c) {}
  bool has(ValueId id, int depth = 0) {
    constexpr int kDeepest = 16;
    const Node* maker = depth < kDeepest ? c_.emit.maker(id) : nullptr;
    if (!maker) return false;
    const auto [known, is_new] = known_.try_emplace(id, false);
    if (is_new) known->second = is_made(*maker, depth);
    return known->second;
  }

 private:
  bool is_made(const Node& maker, int depth) {
    const auto input = [&](size_t i) { return has(maker.inputs[i], depth + 1); };
    const auto number = [&](size_t i) {
      const Value& value = c_.emit.graph().value(maker.inputs[i]);
      return value.kind == ValueKind::kConstant && num_elements(value.type.shape) == 1;
    };
    const std::string& op = maker.op;
    if (op == "Abs") return true;
    if (op == "Mul" && maker.inputs[0] == maker.inputs[1]) return true;
    if (op == "Mul") return (input(0) || number(0)) && (input(1) || number(1));
    if (op == "Div" || op == "Pow") return number(1) && input(0);
    if (op == "Add") return input(0) && input(1);
    return (op == "ReduceSum" || op == "Reshape" || op == "Transpose" || op == "Cast") && input(0);
  }
  RuleContext& c_;
  std::map<ValueId, bool> known_;
};

Result<Vals> sqrt(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return Magnitudes(c).has(c.in(0).id) ? single(c.root(c.in(0))) : same_unary(c);
}

// Returns x to the power of values of perhaps another type. Both are taken in a type that holds
// them, and the result is of the base's.
Result<Val> power_of_types(RuleContext& c, const Val& x, const Val& exponent) {
  const auto bytes = [](const Val& one) { return info(one.dtype).bytes; };
  DType in = x.dtype;
  if (!info(x.dtype).is_float && info(exponent.dtype).is_float)
    in = bytes(x) > 4 || bytes(exponent) > 4 ? DType::kF64 : DType::kF32;
  else if (info(exponent.dtype).is_float && bytes(exponent) > bytes(x))
    in = exponent.dtype;
  PIPER_ASSIGN(const Val base, c.cast(x, in));
  PIPER_ASSIGN(const Val power, c.cast(exponent, in));
  PIPER_ASSIGN(const Val y, c.pointwise("Pow", {base, power}));
  return c.cast(y, x.dtype);
}

Result<Vals> pow(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const Val second, second_operand(c));
  const std::optional<double> exponent = constant_number(second);
  const bool scalar = num_elements(second.shape) == 1 && second.rank() <= x.rank();
  if (exponent && scalar && *exponent == 1) return Vals{x};
  if (exponent && scalar && (*exponent == 2 || *exponent == 3)) {
    PIPER_ASSIGN(Val out, c.pointwise("Mul", {x, x}));
    if (*exponent == 3) {
      PIPER_ASSIGN(out, c.pointwise("Mul", {out, x}));
    }
    return Vals{out};
  }
  if (exponent && scalar && *exponent > 0 && *exponent < 1 && Magnitudes(c).has(x.id))
    return single(c.power(x, *exponent));
  if (exponent && scalar && *exponent == 0.5 && info(x.dtype).is_float)
    return single(c.pointwise("Sqrt", {x}));
  return single(power_of_types(c, x, second));
}

// PyTorch's clamp passes it on, and its bounded activations do not: the call says which it was, or
// ReLU6's bounds.
Bound bound_of(const RuleContext& c, const Val& low, const Val& high) {
  constexpr std::string_view kStops[] = {"aten.hardsigmoid", "aten.hardswish", "aten.hardtanh",
                                         "aten.relu6"};
  const std::string call = c.called();
  const bool is_relu6 = constant_number(low) == 0.0 && constant_number(high) == 6.0;
  if (call.empty()) return is_relu6 ? Bound::kStops : Bound::kPasses;
  return std::find(std::begin(kStops), std::end(kStops), call) == std::end(kStops) ? Bound::kPasses
                                                                                   : Bound::kStops;
}

Result<Vals> clip(RuleContext& c) {
  PIPER_TRY(c.need(1, 3));
  const Val& x = c.in(0);
  Val low = c.in(1), high = c.in(2);
  if (c.opset < 11) {
    low = c.has_attr("min") ? c.number(c.real("min", 0), x) : Val();
    high = c.has_attr("max") ? c.number(c.real("max", 0), x) : Val();
  }
  return single(bounded(c, x, low, high, bound_of(c, low, high)));
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
  Val slope = c.in(1);
  if (c.opset < 7 && slope.rank() == 1) {  // of each channel
    Shape channels(c.in(0).rank(), 1);
    channels[std::min<size_t>(1, c.in(0).rank() - 1)] = slope.shape[0];
    PIPER_ASSIGN(slope, c.reshape(slope, channels));
  }
  if (broadcast_shapes(slope.shape, c.in(0).shape) != c.in(0).shape)
    return c.error("slopes {} of {}", to_string(slope.shape), to_string(c.in(0).shape));
  PIPER_ASSIGN(const Val below, c.pointwise("Mul", {c.in(0), slope}));
  return single(negative_part(c, c.in(0), below));
}

Result<Vals> relu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  return single(info(x.dtype).is_float ? c.pointwise("Relu", {x})
                                       : c.pointwise("Max", {x, c.number(0, x)}));
}

Result<Vals> hard_sigmoid(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  PIPER_ASSIGN(Val y, c.pointwise("Mul", {x, c.number(c.real("alpha", 0.2), x)}));
  PIPER_ASSIGN(y, c.pointwise("Add", {y, c.number(c.real("beta", 0.5), x)}));
  return single(bounded(c, y, c.number(0, x), c.number(1, x), Bound::kStops));
}
// Computes x·(x + 3)/6 for -3 < x < 3, below it 0 and above it x.
Result<Vals> hard_swish(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  PIPER_ASSIGN(Val y, c.pointwise("Add", {x, c.number(3, x)}));
  PIPER_ASSIGN(y, c.pointwise("Mul", {x, y}));
  PIPER_ASSIGN(y, c.pointwise("Div", {y, c.number(6, x)}));
  PIPER_ASSIGN(const Val above, c.pointwise("GreaterOrEqual", {x, c.number(3, x)}));
  PIPER_ASSIGN(y, c.pointwise("Where", {above, x, y}));
  PIPER_ASSIGN(const Val below, c.pointwise("LessOrEqual", {x, c.number(-3, x)}));
  return single(c.pointwise("Where", {below, c.number(0, x), y}));
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

// Reads logarithms whose operand the exporters write out, so that it overflows or vanishes before
// they are taken: log(sigmoid(x)) = -softplus(-x), log(1 + exp(a)) = softplus(a) and log(exp(a) +
// exp(b)) = max(a, b) + softplus(-|a - b|).
Result<Vals> log(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const auto of = [&](const Node* maker) {
    const ValueId id = maker->inputs[0];
    const TensorType& type = c.emit.graph().value(id).type;
    return Val{Val::Kind::kGraph, type.dtype, type.shape, type.shape, id, {}, {}};
  };
  const Node* maker = c.in(0).is_broadcast() ? nullptr : c.emit.maker(c.in(0).id);
  if (maker && maker->op == "Sigmoid") {
    PIPER_ASSIGN(Val x, c.pointwise("Neg", {of(maker)}));
    PIPER_ASSIGN(x, c.pointwise("Softplus", {x}));
    return single(c.pointwise("Neg", {x}));
  }
  if (!maker || maker->op != "Add") return same_unary(c);
  const Node *a = c.emit.maker(maker->inputs[0]), *b = c.emit.maker(maker->inputs[1]);
  if (!a || a->op != "Exp") std::swap(a, b);
  if (!a || a->op != "Exp") return same_unary(c);
  if (b && b->op == "Exp") {
    const Val first = of(a), second = of(b);
    PIPER_ASSIGN(const Val same, c.pointwise("Equal", {first, second}));  // infinities, too
    PIPER_ASSIGN(Val y, c.pointwise("Sub", {second, first}));
    PIPER_ASSIGN(y, c.pointwise("Where", {same, c.number(0, y), y}));
    PIPER_ASSIGN(y, c.pointwise("Abs", {y}));
    PIPER_ASSIGN(y, c.pointwise("Neg", {y}));
    PIPER_ASSIGN(y, c.pointwise("Softplus", {y}));
    PIPER_ASSIGN(const Val greater, c.pointwise("Max", {first, second}));
    return single(c.pointwise("Add", {greater, y}));
  }
  const ValueId other = maker->inputs[c.emit.maker(maker->inputs[0]) == a ? 1 : 0];
  const Value& value = c.emit.graph().value(other);
  const bool one = value.kind == ValueKind::kConstant && num_elements(value.type.shape) == 1 &&
                   read_number(value.data, value.type.dtype, 0) == 1;
  if (!one) return same_unary(c);
  PIPER_ASSIGN(const Val y, c.pointwise("Softplus", {of(a)}));
  return single(c.expand(y, c.in(0).shape));
}

// sin(x)/x, which the call replaces at 0, must have no slope there.
Result<Vals> div(RuleContext& c) {
  if (c.called() != "aten.sinc") return same_binary(c);
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(1);
  PIPER_ASSIGN(const Val none, c.pointwise("Equal", {x, c.number(0, x)}));
  PIPER_ASSIGN(const Val safe, c.pointwise("Where", {none, c.number(1, x), x}));
  return single(c.pointwise("Div", {c.in(0), safe}));
}

Result<Vals> gelu(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const std::string kind = c.text("approximate", "none");
  if (kind != "none" && kind != "tanh")
    return c.error("approximate='{}' is not known", quote_control(kind));
  return single(c.pointwise("Gelu", {c.in(0)}, {{"approximate", kind}}));
}

constexpr ImportRule kMathRules[] = {
    {"Abs", 1, kNewest, same_unary},
    {"Add", 1, kNewest, same_binary},
    {"And", 1, kNewest, same_binary},
    {"BitShift", 11, kNewest, bit_shift, "of uint8 and uint16"},
    {"BitwiseAnd", 18, kNewest, same_binary},
    {"BitwiseNot", 18, kNewest, bitwise_not},
    {"BitwiseOr", 18, kNewest, same_binary},
    {"BitwiseXor", 18, kNewest, same_binary},
    {"Cast", 1, kNewest, cast,
     "of and to f64, f32, bf16, f16, i64, i32, bool; integers of 2 to 16 bits are held in i32"},
    {"CastLike", 15, kNewest, cast_like},
    {"Ceil", 1, kNewest, same_unary},
    {"Clip", 1, kNewest, clip},
    {"Cos", 7, kNewest, same_unary},
    {"Div", 1, kNewest, div},
    {"Equal", 1, kNewest, same_binary},
    {"Erf", 9, kNewest, same_unary},
    {"Exp", 1, kNewest, same_unary},
    {"Floor", 1, kNewest, same_unary},
    {"Gelu", 1, kNewest, gelu},
    {"Greater", 1, kNewest, same_binary},
    {"GreaterOrEqual", 12, kNewest, same_binary},
    {"HardSigmoid", 1, kNewest, hard_sigmoid},
    {"HardSwish", 14, kNewest, hard_swish},
    {"IsNaN", 9, kNewest, same_unary},
    {"LeakyRelu", 1, kNewest, leaky_relu},
    {"Less", 1, kNewest, same_binary},
    {"LessOrEqual", 12, kNewest, same_binary},
    {"Log", 1, kNewest, log},
    {"Max", 1, kNewest, variadic},
    {"Mean", 1, kNewest, mean},
    {"Min", 1, kNewest, variadic},
    {"Mod", 10, kNewest, mod},
    {"Mul", 1, kNewest, same_binary},
    {"Neg", 1, kNewest, same_unary},
    {"Not", 1, kNewest, same_unary},
    {"Or", 1, kNewest, same_binary},
    {"PRelu", 1, kNewest, prelu},
    {"Pow", 1, kNewest, pow},
    {"Reciprocal", 1, kNewest, same_unary},
    {"Relu", 1, kNewest, relu},
    {"Round", 11, kNewest, same_unary},
    {"Sigmoid", 1, kNewest, same_unary},
    {"Sign", 9, kNewest, same_unary},
    {"Sin", 7, kNewest, same_unary},
    {"Softplus", 1, kNewest, same_unary},
    {"Sqrt", 1, kNewest, sqrt},
    {"Sub", 1, kNewest, same_binary},
    {"Sum", 1, kNewest, variadic},
    {"Swish", 24, kNewest, swish},
    {"Tanh", 1, kNewest, same_unary},
    {"Where", 9, kNewest, where},
    {"Xor", 1, kNewest, same_binary},
};

}  // namespace

Result<Val> bounded(RuleContext& c, Val x, const Val& low, const Val& high, Bound at) {
  const bool stops = at == Bound::kStops;
  if (low.present()) {
    PIPER_ASSIGN(const Val below, c.pointwise(stops ? "LessOrEqual" : "Less", {x, low}));
    PIPER_ASSIGN(x, c.pointwise("Where", {below, low, x}));
  }
  if (high.present()) {
    PIPER_ASSIGN(const Val above, c.pointwise(stops ? "GreaterOrEqual" : "Greater", {x, high}));
    PIPER_ASSIGN(x, c.pointwise("Where", {above, high, x}));
  }
  return x;
}

std::span<const ImportRule> math_rules() { return kMathRules; }

}  // namespace piper::onnx_import
