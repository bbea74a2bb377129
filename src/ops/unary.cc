// One operand, one result of its shape: y[i] = f(x[i]).
#include <cmath>

#include "rules.h"

namespace piper {
namespace {

TypesResult float_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  return std::vector<TensorType>{use.inputs[0]};
}

TypesResult number_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  if (use.inputs[0].dtype == DType::kBool) {
    return fail("input 0 must be a number, but is {}", to_string(use.inputs[0]));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

LoopRule linear_loops(const OpTypes& use) { return pointwise_loops(use, {{0}}); }
LoopRule other_loops(const OpTypes& use) { return pointwise_loops(use, {}); }

struct Use {  // of a unary op, in its gradient
  Builder& build;
  ValueId x, y, dy;
  ValueId number(double value) const { return build.scalar(value, build.type(x).dtype); }
};
// dx from x, y = f(x) and dy.
template <ValueId (*kRule)(const Use&)>
Grads gradient(Builder& build, const GradientArgs& args) {
  return {kRule({build, args.inputs[0], args.outputs[0], args.output_grads[0]})};
}

ValueId neg(const Use& u) { return u.build.neg(u.dy); }
ValueId abs(const Use& u) { return u.build.mul(u.dy, u.build.op1("Sign", {u.x})); }
ValueId exp(const Use& u) { return u.build.mul(u.dy, u.y); }
ValueId log(const Use& u) { return u.build.div(u.dy, u.x); }
ValueId sqrt(const Use& u) { return u.build.div(u.build.mul(u.dy, u.number(0.5)), u.y); }
ValueId reciprocal(const Use& u) { return u.build.neg(u.build.mul(u.dy, u.build.mul(u.y, u.y))); }
ValueId tanh(const Use& u) {
  return u.build.mul(u.dy, u.build.sub(u.number(1), u.build.mul(u.y, u.y)));
}
ValueId sigmoid(const Use& u) {
  return u.build.mul(u.dy, u.build.mul(u.y, u.build.sub(u.number(1), u.y)));
}
ValueId softplus(const Use& u) { return u.build.mul(u.dy, u.build.op1("Sigmoid", {u.x})); }
ValueId erf(const Use& u) {  // 2/√π · exp(−x²)
  const ValueId bell = u.build.op1("Exp", {u.build.neg(u.build.mul(u.x, u.x))});
  return u.build.mul(u.dy, u.build.mul(bell, u.number(2 / std::sqrt(std::acos(-1.0)))));
}
ValueId relu(const Use& u) {
  return u.build.op1("Where", {u.build.op1("Greater", {u.y, u.number(0)}), u.dy, u.number(0)});
}
ValueId sin(const Use& u) { return u.build.mul(u.dy, u.build.op1("Cos", {u.x})); }
ValueId cos(const Use& u) { return u.build.neg(u.build.mul(u.dy, u.build.op1("Sin", {u.x}))); }
ValueId tan(const Use& u) {
  return u.build.mul(u.dy, u.build.add(u.number(1), u.build.mul(u.y, u.y)));
}
ValueId sinh(const Use& u) { return u.build.mul(u.dy, u.build.op1("Cosh", {u.x})); }
ValueId cosh(const Use& u) { return u.build.mul(u.dy, u.build.op1("Sinh", {u.x})); }
ValueId square(const Use& u) { return u.build.mul(u.x, u.x); }
ValueId over_root(const Use& u, ValueId of) { return u.build.div(u.dy, u.build.op1("Sqrt", {of})); }
ValueId asin(const Use& u) { return over_root(u, u.build.sub(u.number(1), square(u))); }
ValueId acos(const Use& u) { return u.build.neg(asin(u)); }
ValueId atan(const Use& u) { return u.build.div(u.dy, u.build.add(u.number(1), square(u))); }
ValueId asinh(const Use& u) { return over_root(u, u.build.add(square(u), u.number(1))); }
ValueId acosh(const Use& u) { return over_root(u, u.build.sub(square(u), u.number(1))); }
ValueId atanh(const Use& u) { return u.build.div(u.dy, u.build.sub(u.number(1), square(u))); }
ValueId zero(const Use&) { return {}; }

OpDef unary(std::string_view name, Grads (*gradient)(Builder&, const GradientArgs&),
            Cost (*cost)(const OpTypes&), double low, double high) {
  OpDef def{.name = name, .types = float_types, .gradient = gradient, .loops = other_loops};
  def.cost = cost;
  def.in_place = {{0, 0}};
  def.pointwise = true;
  def.samples = {{.inputs = {f64({4, 3})}, .low = low, .high = high},
                 {.inputs = {f64({})}, .low = low, .high = high}};
  return def;
}

OpDef in_f32(OpDef def) {
  def.autocast = OpDef::Autocast::kF32;
  return def;
}

}  // namespace

std::vector<OpDef> unary_ops() {
  // A transcendental function counts as ten operations: about what a vector library needs.
  std::vector<OpDef> ops = {
      unary("Neg", gradient<neg>, element_cost<1>, -2, 2),
      unary("Abs", gradient<abs>, element_cost<1>, -2, 2),
      unary("Sign", gradient<zero>, element_cost<1>, -2, 2),
      in_f32(unary("Exp", gradient<exp>, element_cost<10>, -2, 2)),
      in_f32(unary("Log", gradient<log>, element_cost<10>, 0.5, 3)),
      unary("Sqrt", gradient<sqrt>, element_cost<4>, 0.5, 3),
      in_f32(unary("Reciprocal", gradient<reciprocal>, element_cost<4>, 0.5, 3)),
      unary("Tanh", gradient<tanh>, element_cost<10>, -2, 2),
      unary("Sigmoid", gradient<sigmoid>, element_cost<10>, -2, 2),
      // log(1 + exp(x)).
      in_f32(unary("Softplus", gradient<softplus>, element_cost<20>, -2, 2)),
      unary("Erf", gradient<erf>, element_cost<10>, -2, 2),
      unary("Relu", gradient<relu>, element_cost<1>, -2, 2),
      unary("Sin", gradient<sin>, element_cost<10>, -2, 2),
      unary("Cos", gradient<cos>, element_cost<10>, -2, 2),
      in_f32(unary("Tan", gradient<tan>, element_cost<10>, -1, 1)),
      in_f32(unary("Asin", gradient<asin>, element_cost<10>, -0.9, 0.9)),
      in_f32(unary("Acos", gradient<acos>, element_cost<10>, -0.9, 0.9)),
      unary("Atan", gradient<atan>, element_cost<10>, -2, 2),
      in_f32(unary("Sinh", gradient<sinh>, element_cost<10>, -2, 2)),
      in_f32(unary("Cosh", gradient<cosh>, element_cost<10>, -2, 2)),
      unary("Asinh", gradient<asinh>, element_cost<10>, -2, 2),
      in_f32(unary("Acosh", gradient<acosh>, element_cost<10>, 1.5, 3)),
      in_f32(unary("Atanh", gradient<atanh>, element_cost<10>, -0.9, 0.9)),
      unary("Floor", gradient<zero>, element_cost<1>, -2, 2),
      unary("Ceil", gradient<zero>, element_cost<1>, -2, 2),
      unary("Round", gradient<zero>, element_cost<1>, -2, 2),
      // x itself, through which no gradient flows back.
      unary("Detach", gradient<zero>, element_cost<1>, -2, 2),
  };
  ops.front().loops = ops.back().loops = linear_loops;  // Neg, Detach
  for (int i : {0, 1, 2}) ops[i].types = number_types;
  return ops;
}

}  // namespace piper
