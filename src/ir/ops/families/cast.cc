// Cast{to}: the same elements in another type.
#include "rules.h"

namespace piper {
namespace {

TypesResult cast_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  const std::string name = use.attrs.text("to");
  const std::optional<DType> to = parse_dtype(name);
  if (!to) return fail("'{}' is not an element type", quote_control(name));
  return std::vector<TensorType>{{*to, use.inputs[0].shape}};
}

Grads cast_gradient(Builder& build, const GradientArgs& args) {
  const DType from = build.type(args.inputs[0]).dtype;
  return {build.op1("Cast", {args.output_grads[0]}, {{"to", info(from).name}})};
}

LoopRule cast_rule(const OpTypes& use) {
  const bool linear = is_float(use.inputs[0].dtype) && is_float(use.outputs[0].dtype);
  if (linear) return pointwise_loops(use, {{0}});
  return pointwise_loops(use, {});
}

}  // namespace

std::vector<OpDef> cast_ops() {
  OpDef def{.name = "Cast", .types = cast_types, .gradient = cast_gradient, .loops = cast_rule};
  def.cost = element_cost<1>;
  def.in_place = {{0, 0}};
  def.pointwise = true;
  def.first_byte = same_bytes;
  def.samples = {{.inputs = {f64({4, 3})}, .attrs = {{"to", "f64"}}},
                 {.inputs = {i64({4, 3})}, .attrs = {{"to", "f64"}}},
                 {.inputs = {boolean({4})}, .attrs = {{"to", "f32"}}},
                 {.inputs = {f64({4})}, .attrs = {{"to", "bool"}}}};
  def.attributes = {{"to", kText}};
  return {def};
}

}  // namespace piper
