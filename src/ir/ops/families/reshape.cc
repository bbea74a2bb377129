// Reshape{shape}: the same elements in row-major order.
#include "rules.h"

namespace piper {
namespace {

TypesResult reshape_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_ASSIGN(Shape shape, check_shape(use.attrs, "shape"));
  if (num_elements(shape) != num_elements(use.inputs[0].shape)) {
    return fail("{} with {} elements cannot have the shape {} of {}", operands(use),
                num_elements(use.inputs[0].shape), to_string(shape), num_elements(shape));
  }
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

Grads reshape_gradient(Builder& build, const GradientArgs& args) {
  return {build.reshape(args.output_grads[0], Shape(build.shape(args.inputs[0])))};
}

LoopRule reshape_rule(const OpTypes& use) {
  LoopBuilder build;
  auto [from, to] = common_letters(build, use.inputs[0].shape, use.outputs[0].shape);
  build.rule.inputs = {std::move(from)};
  build.rule.outputs = {std::move(to)};
  build.rule.linear = {{0}};
  return build.rule;
}

}  // namespace

std::vector<OpDef> reshape_ops() {
  OpDef def{.name = "Reshape",
            .types = reshape_types,
            .gradient = reshape_gradient,
            .loops = reshape_rule};
  def.cost = moves;
  def.localise = localise_shape;
  def.in_place = {{0, 0}};
  def.elements = OpDef::Elements::kPart;
  def.first_byte = same_bytes;
  const std::pair<Shape, Shape> uses[] = {
      {{4, 2, 3}, {8, 3}}, {{8, 3}, {4, 2, 3}},        {{2, 12}, {2, 3, 2, 2}},
      {{6, 4}, {4, 6}},    {{3, 4}, {4, 3}},           {{4, 1, 6}, {4, 6}},
      {{4}, {1, 2, 1, 2}}, {{2, 3, 4, 5}, {2, 4, 15}}, {{4, 6, 10}, {12, 20}},
      {{1}, {}},           {{2, 6, 35}, {4, 15, 7}},
  };
  for (const auto& [from, to] : uses) {
    def.samples.push_back({.inputs = {f64(from)}, .attrs = {{"shape", to}}});
  }
  def.attributes = {{"shape", kIntegers}, {"blocks", kIntegers}};
  return {def};
}

}  // namespace piper
