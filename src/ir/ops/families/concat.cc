// Concat{axis}: operands one after the other.
#include <numeric>

#include "rules.h"

namespace piper {
namespace {

TypesResult concat_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, size_t(-1)));
  TensorType result = use.inputs[0];
  PIPER_ASSIGN(const size_t axis, check_axis(use.attrs, "axis", result.shape.size()));
  for (size_t i = 1; i < use.inputs.size(); ++i) {
    if (!use.present[i]) return fail("input {} is required, but absent", i);
    TensorType other = use.inputs[i];
    const int64_t extent = other.shape.size() == result.shape.size() ? other.shape[axis] : -1;
    if (extent >= 0) other.shape[axis] = result.shape[axis];
    if (extent < 0 || other != result) {
      return fail("{} cannot be joined along dim {}", operands(use), axis);
    }
    result.shape[axis] += extent;
  }
  return std::vector<TensorType>{std::move(result)};
}

Grads concat_gradient(Builder& build, const GradientArgs& args) {
  const size_t axis = static_cast<size_t>(args.attrs.integer("axis"));
  Grads grads(args.inputs.size());
  int64_t at = 0;
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    const Shape shape = build.shape(args.inputs[i]);
    std::vector<int64_t> starts(shape.size(), 0), steps(shape.size(), 1);
    Shape ends = shape;
    starts[axis] = at;
    ends[axis] = at += shape[axis];
    if (!args.wanted[i]) continue;
    grads[i] = build.op1("Slice", {args.output_grads[0]},
                         {{"starts", starts}, {"ends", ends}, {"steps", steps}});
  }
  return grads;
}

LoopRule concat_rule(const OpTypes& use) {
  LoopBuilder build;
  const Shape& shape = use.outputs[0].shape;
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  int64_t unit = 0;
  for (const TensorType& part : use.inputs) unit = std::gcd(unit, part.shape[axis]);
  Dims dims;
  for (size_t d = 0; d < shape.size(); ++d)
    dims.push_back(d == axis ? block_letters(build, shape[d], unit) : Dim{build.letter(shape[d])});
  std::vector<int> all;
  for (size_t i = 0; i < use.inputs.size(); ++i) all.push_back(static_cast<int>(i));
  build.rule.inputs.assign(use.inputs.size(), dims);
  build.rule.outputs = {dims};
  build.rule.linear = {all};
  return build.rule;
}

}  // namespace

std::vector<OpDef> concat_ops() {
  OpDef def{
      .name = "Concat", .types = concat_types, .gradient = concat_gradient, .loops = concat_rule};
  def.cost = moves;
  def.samples = {
      {.inputs = {f64({4, 2}), f64({4, 3}), f64({4, 1})}, .attrs = {{"axis", int64_t{1}}}},
      {.inputs = {f64({1, 2, 4}), f64({3, 2, 4})}, .attrs = {{"axis", int64_t{0}}}},
      {.inputs = {f64({4, 2}), f64({8, 2})}, .attrs = {{"axis", int64_t{0}}}},
      {.inputs = {f64({2, 2})}, .attrs = {{"axis", int64_t{1}}}}};
  def.attributes = {{"axis"}};
  return {def};
}

}  // namespace piper
