// Expand{shape}: repeats along dims of extent 1 and new leading ones; the result has exactly this
// shape.
#include "rules.h"

namespace piper {
namespace {

TypesResult expand_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_ASSIGN(Shape shape, check_shape(use.attrs, "shape"));
  if (broadcast(use.inputs[0].shape, shape) != shape) {
    return fail("{} does not expand to {}", operands(use), to_string(shape));
  }
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

Grads expand_gradient(Builder& build, const GradientArgs& args) {
  return {build.sum_to(args.output_grads[0], Shape(build.shape(args.inputs[0])))};
}

LoopRule expand_rule(const OpTypes& use) { return pointwise_loops(use, {{0}}); }

}  // namespace

std::vector<OpDef> expand_ops() {
  OpDef def{
      .name = "Expand", .types = expand_types, .gradient = expand_gradient, .loops = expand_rule};
  def.cost = moves;
  def.localise = localise_shape;
  def.first_byte = same_bytes;
  def.samples = {{.inputs = {f64({3})}, .attrs = {{"shape", Shape{4, 3}}}},
                 {.inputs = {f64({3})}, .attrs = {{"shape", Shape{1, 3}}}},
                 {.inputs = {f64({2, 1, 3})}, .attrs = {{"shape", Shape{2, 4, 3}}}},
                 {.inputs = {f64({})}, .attrs = {{"shape", Shape{2, 2}}}}};
  def.attributes = {{"shape", kIntegers}};
  return {def};
}

}  // namespace piper
