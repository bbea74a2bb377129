// Arithmetic on two operands with numpy broadcasting.
#include <cstring>

#include "rules.h"

namespace piper {
namespace {

TypesResult binary_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  const TensorType &a = use.inputs[0], &b = use.inputs[1];
  if (a.dtype != b.dtype || a.dtype == DType::kBool) {
    return fail("the operands must be numbers of one type, but are {}", operands(use));
  }
  std::optional<Shape> shape = broadcast(a.shape, b.shape);
  if (!shape) return fail("the shapes of {} do not broadcast", operands(use));
  return std::vector<TensorType>{{a.dtype, *std::move(shape)}};
}

LoopRule binary_sum_loops(const OpTypes& use) { return pointwise_loops(use, {{0, 1}}); }
LoopRule product_loops(const OpTypes& use) { return pointwise_loops(use, {{0}, {1}}); }
LoopRule quotient_loops(const OpTypes& use) { return pointwise_loops(use, {{0}}); }
LoopRule binary_other_loops(const OpTypes& use) { return pointwise_loops(use, {}); }

struct BinaryUse {  // of a binary op, in its gradient
  Builder& build;
  ValueId a, b, y, dy;
  bool want_a, want_b;
  ValueId number(double value) const { return build.scalar(value, build.type(a).dtype); }
  ValueId op(std::string_view name, std::vector<ValueId> inputs) const {
    return build.op1(name, std::move(inputs));
  }
};
// The adjoints before they are summed to the operands' shapes; a rule makes only what is wanted.
using Pair = std::pair<ValueId, ValueId>;
template <Pair (*kRule)(const BinaryUse&)>
Grads binary_gradient(Builder& build, const GradientArgs& args) {
  const auto [da, db] = kRule({build, args.inputs[0], args.inputs[1], args.outputs[0],
                               args.output_grads[0], args.wanted[0], args.wanted[1]});
  Grads grads(2);
  if (args.wanted[0] && da.valid()) grads[0] = build.sum_to(da, Shape(build.shape(args.inputs[0])));
  if (args.wanted[1] && db.valid()) grads[1] = build.sum_to(db, Shape(build.shape(args.inputs[1])));
  return grads;
}

Pair add(const BinaryUse& u) { return {u.dy, u.dy}; }
Pair sub(const BinaryUse& u) { return {u.dy, u.want_b ? u.build.neg(u.dy) : ValueId()}; }
Pair mul(const BinaryUse& u) {
  Pair grads;
  if (u.want_a) grads.first = u.build.mul(u.dy, u.b);
  if (u.want_b) grads.second = u.a == u.b ? grads.first : u.build.mul(u.dy, u.a);
  return grads;
}
Pair div(const BinaryUse& u) {
  Pair grads;
  if (u.want_a) grads.first = u.build.div(u.dy, u.b);
  if (u.want_b) grads.second = u.build.neg(u.build.div(u.build.mul(u.dy, u.y), u.b));
  return grads;
}

// Returns the value of a constant that holds one f32 or f64, else none.
std::optional<double> constant_number(const Value& value) {
  if (value.kind != ValueKind::kConstant || num_elements(value.type.shape) != 1) return {};
  if (value.type.dtype == DType::kF32 && value.data.size == sizeof(float)) {
    float number;
    std::memcpy(&number, value.data.data, sizeof number);
    return number;
  }
  if (value.type.dtype == DType::kF64 && value.data.size == sizeof(double)) {
    double number;
    std::memcpy(&number, value.data.data, sizeof number);
    return number;
  }
  return {};
}

// Returns b·a^(b−1)·dy, and 0 where b = 0, for any a.
ValueId pow_base(const BinaryUse& u) {
  const std::optional<double> exponent = constant_number(u.build.graph().value(u.b));
  if (exponent == 0.0) return {};
  if (exponent == 2.0) return u.build.mul(u.dy, u.build.mul(u.a, u.number(2)));
  const ValueId less = exponent ? u.number(*exponent - 1) : u.build.sub(u.b, u.number(1));
  const ValueId slope = u.build.mul(u.b, u.op("Pow", {u.a, less}));
  const ValueId grad = u.build.mul(u.dy, slope);
  return exponent ? grad : u.op("Where", {u.op("Equal", {u.b, u.number(0)}), u.number(0), grad});
}
// Returns y·log(a)·dy, and 0 for a = 0 where b >= 0.
ValueId pow_exponent(const BinaryUse& u) {
  const ValueId flat =
      u.op("And", {u.op("Equal", {u.a, u.number(0)}), u.op("GreaterOrEqual", {u.b, u.number(0)})});
  const ValueId grad = u.build.mul(u.dy, u.build.mul(u.y, u.op("Log", {u.a})));
  return u.op("Where", {flat, u.number(0), grad});
}
Pair pow(const BinaryUse& u) {
  return {u.want_a ? pow_base(u) : ValueId(), u.want_b ? pow_exponent(u) : ValueId()};
}

// Returns dy where `wins`(mine, other), and half of it where the two are equal.
ValueId choice(const BinaryUse& u, std::string_view wins, ValueId mine, ValueId other) {
  const ValueId won = u.op("Where", {u.op(wins, {mine, other}), u.dy, u.number(0)});
  const ValueId half = u.build.mul(u.dy, u.number(0.5));
  return u.op("Where", {u.op("Equal", {mine, other}), half, won});
}
Pair choose(const BinaryUse& u, std::string_view wins) {
  return {u.want_a ? choice(u, wins, u.a, u.b) : ValueId(),
          u.want_b ? choice(u, wins, u.b, u.a) : ValueId()};
}
Pair max(const BinaryUse& u) { return choose(u, "Greater"); }
Pair min(const BinaryUse& u) { return choose(u, "Less"); }

Pair mod(const BinaryUse& u) {  // y = a − q·b with a whole number q = (a − y)/b
  Pair grads{u.dy, {}};
  if (u.want_b) {
    const ValueId quotient = u.build.div(u.build.sub(u.a, u.y), u.b);
    grads.second = u.build.neg(u.build.mul(u.dy, quotient));
  }
  return grads;
}

OpDef binary(std::string_view name, Grads (*binary_gradient)(Builder&, const GradientArgs&),
             LoopRule (*loops)(const OpTypes&), Cost (*cost)(const OpTypes&), double low = -2) {
  OpDef def{.name = name, .types = binary_types, .gradient = binary_gradient, .loops = loops};
  def.cost = cost;
  def.in_place = {{0, 0}, {0, 1}};
  def.pointwise = true;
  def.samples = {{.inputs = {f64({4, 3}), f64({4, 3})}, .low = low},
                 {.inputs = {f64({2, 4, 3}), f64({3})}, .low = low},
                 {.inputs = {f64({}), f64({4, 1, 3})}, .low = low},
                 {.inputs = {f64({4, 1}), f64({2, 1, 3})}, .low = low}};
  return def;
}

}  // namespace

std::vector<OpDef> binary_ops() {
  std::vector<OpDef> ops = {
      binary("Add", binary_gradient<add>, binary_sum_loops, element_cost<1>),
      binary("Sub", binary_gradient<sub>, binary_sum_loops, element_cost<1>),
      binary("Mul", binary_gradient<mul>, product_loops, element_cost<1>),
      binary("Div", binary_gradient<div>, quotient_loops, element_cost<4>, 0.5),
      binary("Pow", binary_gradient<pow>, binary_other_loops, element_cost<20>, 0.5),
      binary("Max", binary_gradient<max>, binary_other_loops, element_cost<1>),
      binary("Min", binary_gradient<min>, binary_other_loops, element_cost<1>),
      binary("Mod", binary_gradient<mod>, binary_other_loops, element_cost<4>, 0.5),
  };
  ops[0].commutes = ops[2].commutes = true;      // Add, Mul
  ops[4].autocast = OpDef::Autocast::kF32;       // Pow
  for (int i : {3, 4, 7}) ops[i].nonzero = {0};  // Div, Pow, Mod
  ops[7].attributes = {{"fmod"}};
  return ops;
}

}  // namespace piper
