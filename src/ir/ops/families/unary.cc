// One operand, one result of its shape: y[i] = f(x[i]).
#include <cmath>

#include "rules.h"

namespace piper {
namespace {

TypesResult number_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  if (use.inputs[0].dtype == DType::kBool) {
    return fail("input 0 must be a number, but is {}", to_string(use.inputs[0]));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

LoopRule linear_loops(const OpTypes& use) { return pointwise_loops(use, {{0}}); }
LoopRule unary_other_loops(const OpTypes& use) { return pointwise_loops(use, {}); }

struct UnaryUse {  // of a unary op, in its gradient
  Builder& build;
  ValueId x, y, dy;
  ValueId number(double value) const { return build.scalar(value, build.type(x).dtype); }
};
// Computes dx from x, y = f(x) and dy.
template <ValueId (*kRule)(const UnaryUse&)>
Grads unary_gradient(Builder& build, const GradientArgs& args) {
  return {kRule({build, args.inputs[0], args.outputs[0], args.output_grads[0]})};
}

ValueId neg(const UnaryUse& u) { return u.build.neg(u.dy); }
ValueId abs(const UnaryUse& u) { return u.build.mul(u.dy, u.build.op1("Sign", {u.x})); }
ValueId exp(const UnaryUse& u) { return u.build.mul(u.dy, u.y); }
ValueId log(const UnaryUse& u) { return u.build.div(u.dy, u.x); }
ValueId sqrt(const UnaryUse& u) { return u.build.div(u.build.mul(u.dy, u.number(0.5)), u.y); }
ValueId reciprocal(const UnaryUse& u) {
  return u.build.neg(u.build.mul(u.dy, u.build.mul(u.y, u.y)));
}
ValueId tanh(const UnaryUse& u) {
  return u.build.mul(u.dy, u.build.sub(u.number(1), u.build.mul(u.y, u.y)));
}
ValueId sigmoid(const UnaryUse& u) {
  return u.build.mul(u.dy, u.build.mul(u.y, u.build.sub(u.number(1), u.y)));
}
ValueId softplus(const UnaryUse& u) { return u.build.mul(u.dy, u.build.op1("Sigmoid", {u.x})); }
ValueId erf(const UnaryUse& u) {  // 2/√π · exp(−x²)
  const ValueId bell = u.build.op1("Exp", {u.build.neg(u.build.mul(u.x, u.x))});
  return u.build.mul(u.dy, u.build.mul(bell, u.number(2 / std::sqrt(std::acos(-1.0)))));
}
ValueId relu(const UnaryUse& u) {
  return u.build.op1("Where", {u.build.op1("Greater", {u.y, u.number(0)}), u.dy, u.number(0)});
}
ValueId sin(const UnaryUse& u) { return u.build.mul(u.dy, u.build.op1("Cos", {u.x})); }
ValueId cos(const UnaryUse& u) { return u.build.neg(u.build.mul(u.dy, u.build.op1("Sin", {u.x}))); }
ValueId tan(const UnaryUse& u) {
  return u.build.mul(u.dy, u.build.add(u.number(1), u.build.mul(u.y, u.y)));
}
ValueId sinh(const UnaryUse& u) { return u.build.mul(u.dy, u.build.op1("Cosh", {u.x})); }
ValueId cosh(const UnaryUse& u) { return u.build.mul(u.dy, u.build.op1("Sinh", {u.x})); }
ValueId square(const UnaryUse& u) { return u.build.mul(u.x, u.x); }
ValueId over_root(const UnaryUse& u, ValueId of) {
  return u.build.div(u.dy, u.build.op1("Sqrt", {of}));
}
ValueId asin(const UnaryUse& u) { return over_root(u, u.build.sub(u.number(1), square(u))); }
ValueId acos(const UnaryUse& u) { return u.build.neg(asin(u)); }
ValueId atan(const UnaryUse& u) { return u.build.div(u.dy, u.build.add(u.number(1), square(u))); }
ValueId asinh(const UnaryUse& u) { return over_root(u, u.build.add(square(u), u.number(1))); }
ValueId acosh(const UnaryUse& u) { return over_root(u, u.build.sub(square(u), u.number(1))); }
ValueId atanh(const UnaryUse& u) { return u.build.div(u.dy, u.build.sub(u.number(1), square(u))); }
ValueId zero(const UnaryUse&) { return {}; }

OpDef unary(std::string_view name, Grads (*unary_gradient)(Builder&, const GradientArgs&),
            Cost (*cost)(const OpTypes&), double low, double high) {
  OpDef def{
      .name = name, .types = float_types, .gradient = unary_gradient, .loops = unary_other_loops};
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
      unary("Neg", unary_gradient<neg>, element_cost<1>, -2, 2),
      unary("Abs", unary_gradient<abs>, element_cost<1>, -2, 2),
      unary("Sign", unary_gradient<zero>, element_cost<1>, -2, 2),
      in_f32(unary("Exp", unary_gradient<exp>, element_cost<10>, -2, 2)),
      in_f32(unary("Log", unary_gradient<log>, element_cost<10>, 0.5, 3)),
      unary("Sqrt", unary_gradient<sqrt>, element_cost<4>, 0.5, 3),
      in_f32(unary("Reciprocal", unary_gradient<reciprocal>, element_cost<4>, 0.5, 3)),
      unary("Tanh", unary_gradient<tanh>, element_cost<10>, -2, 2),
      unary("Sigmoid", unary_gradient<sigmoid>, element_cost<10>, -2, 2),
      // log(1 + exp(x)).
      in_f32(unary("Softplus", unary_gradient<softplus>, element_cost<20>, -2, 2)),
      unary("Erf", unary_gradient<erf>, element_cost<10>, -2, 2),
      unary("Relu", unary_gradient<relu>, element_cost<1>, -2, 2),
      unary("Sin", unary_gradient<sin>, element_cost<10>, -2, 2),
      unary("Cos", unary_gradient<cos>, element_cost<10>, -2, 2),
      in_f32(unary("Tan", unary_gradient<tan>, element_cost<10>, -1, 1)),
      in_f32(unary("Asin", unary_gradient<asin>, element_cost<10>, -0.9, 0.9)),
      in_f32(unary("Acos", unary_gradient<acos>, element_cost<10>, -0.9, 0.9)),
      unary("Atan", unary_gradient<atan>, element_cost<10>, -2, 2),
      in_f32(unary("Sinh", unary_gradient<sinh>, element_cost<10>, -2, 2)),
      in_f32(unary("Cosh", unary_gradient<cosh>, element_cost<10>, -2, 2)),
      unary("Asinh", unary_gradient<asinh>, element_cost<10>, -2, 2),
      in_f32(unary("Acosh", unary_gradient<acosh>, element_cost<10>, 1.5, 3)),
      in_f32(unary("Atanh", unary_gradient<atanh>, element_cost<10>, -0.9, 0.9)),
      unary("Floor", unary_gradient<zero>, element_cost<1>, -2, 2),
      unary("Ceil", unary_gradient<zero>, element_cost<1>, -2, 2),
      unary("Round", unary_gradient<zero>, element_cost<1>, -2, 2),
      // Detach returns x itself, and no gradient flows back.
      unary("Detach", unary_gradient<zero>, element_cost<1>, -2, 2),
  };
  ops.front().loops = ops.back().loops = linear_loops;  // Neg, Detach
  for (int i : {0, 1, 2}) ops[i].types = number_types;
  for (OpDef& op : ops)
    for (const char* name :
         {"Exp", "Log", "Reciprocal", "Sigmoid", "Softplus", "Cos", "Acos", "Cosh", "Acosh"})
      if (op.name == name) op.nonzero = {0};
  return ops;
}

}  // namespace piper
