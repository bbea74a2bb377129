// Gather{axis, padding, from_end}(data, indices, first?): slices of data along one dim;
// GatherGrad{axis, size}(dy, indices, first?) sums them back. With `first`, data has the slices
// from that number on of `whole`: what is not among them is zero, or left out of the sum. The slice
// at `padding`, where there is one, gets no gradient, as the row padding_idx of PyTorch's
// embedding. Negative indices count from the end; a run lets an input have them only with
// `from_end`.
#include "rules.h"

namespace piper {
namespace {

// Returns `list` with `count` entries at `from` replaced by `by`.
template <class List>
List replaced(const List& list, size_t from, size_t count, const List& by) {
  List result(list.begin(), list.begin() + static_cast<int64_t>(from));
  result.insert(result.end(), by.begin(), by.end());
  result.insert(result.end(), list.begin() + static_cast<int64_t>(from + count), list.end());
  return result;
}

TypesResult gather_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 3));
  PIPER_TRY(check_index(use, 1));
  const TensorType& data = use.inputs[0];
  PIPER_ASSIGN(const size_t axis, check_axis(use.attrs, "axis", data.shape.size()));
  PIPER_TRY(check_part(use, 2));
  return std::vector<TensorType>{{data.dtype, replaced(data.shape, axis, 1, use.inputs[1].shape)}};
}

TypesResult gather_grad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 3));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_index(use, 1));
  const Shape &dy = use.inputs[0].shape, &indices = use.inputs[1].shape;
  const int64_t size = use.attrs.integer("size", -1);
  PIPER_TRY(check_part(use, 2));
  if (dy.size() < indices.size() || size < 0) {
    return fail("{} with size {} is not the gradient of a Gather", operands(use), size);
  }
  PIPER_ASSIGN(const size_t axis, check_axis(use.attrs, "axis", dy.size() - indices.size() + 1));
  const Shape read(dy.begin() + static_cast<int64_t>(axis),
                   dy.begin() + static_cast<int64_t>(axis + indices.size()));
  if (read != indices) return fail("the dims of {} differ from dim {} on", operands(use), axis);
  return std::vector<TensorType>{
      {use.inputs[0].dtype, replaced(dy, axis, indices.size(), Shape{size})}};
}

// Returns dy where the index is not `padding`, and 0 elsewhere.
ValueId without_padding(Builder& build, ValueId dy, ValueId indices, size_t axis, int64_t padding) {
  Shape aligned = build.shape(indices);
  aligned.resize(build.shape(dy).size() - axis, 1);
  const DType index = build.type(indices).dtype;
  const ValueId here =
      build.op1("Equal", {indices, build.scalar(static_cast<double>(padding), index)});
  const ValueId zero = build.scalar(0, build.type(dy).dtype);
  return build.op1("Where", {build.reshape(here, std::move(aligned)), zero, dy});
}

Grads gather_gradient(Builder& build, const GradientArgs& args) {
  const int64_t axis = args.attrs.integer("axis");
  const int64_t size = build.shape(args.inputs[0])[static_cast<size_t>(axis)];
  ValueId dy = args.output_grads[0];
  if (args.attrs.find("padding")) {
    dy = without_padding(build, dy, args.inputs[1], static_cast<size_t>(axis),
                         args.attrs.integer("padding"));
  }
  return {build.op1("GatherGrad", {dy, args.inputs[1]}, {{"axis", axis}, {"size", size}}),
          ValueId()};
}

// Keeps the loop letters of (data, indices, gathered).
struct GatherLetters {
  LoopBuilder build;
  Dims data, indices, gathered;
};
GatherLetters gather_letters_of(const Shape& data, const Shape& indices, size_t axis) {
  GatherLetters g;
  g.data = g.build.letters(data);
  g.build.rule.firsts = {{g.data[axis][0], 2}};
  g.build.rule.picks = 1;
  g.indices = g.build.letters(indices);
  g.gathered = replaced(g.data, axis, 1, g.indices);
  return g;
}

LoopRule gather_rule(const OpTypes& use) {
  const size_t axis = static_cast<size_t>(use.attrs.integer("axis"));
  GatherLetters g = gather_letters_of(use.inputs[0].shape, use.inputs[1].shape, axis);
  g.build.rule.inputs = {g.data, g.indices};
  if (use.inputs.size() > 2) g.build.rule.inputs.push_back({});
  g.build.rule.outputs = {g.gathered};
  g.build.rule.linear = {{0}};
  return g.build.rule;
}

LoopRule gather_grad_rule(const OpTypes& use) {
  const size_t axis = static_cast<size_t>(use.attrs.integer("axis"));
  GatherLetters g = gather_letters_of(use.outputs[0].shape, use.inputs[1].shape, axis);
  g.build.rule.inputs = {g.gathered, g.indices};
  if (use.inputs.size() > 2) g.build.rule.inputs.push_back({});
  g.build.rule.outputs = {g.data};
  g.build.rule.linear = {{0}};
  return g.build.rule;
}

Attrs gather_grad_localise(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  Attrs attrs = use.attrs;
  attrs.set("size", local_outputs[0][static_cast<size_t>(attrs.integer("axis"))]);
  return attrs;
}

OpDef::Indices indices(const OpTypes& use) {
  const Shape& table = use.inputs[0].shape;
  const int64_t extent = table[static_cast<size_t>(use.attrs.integer("axis"))];
  const int64_t all = use.attrs.integer("whole", extent);  // a part of a table knows of the rest
  return {use.attrs.integer("from_end") != 0 ? -1 - all : all};
}

}  // namespace

std::vector<OpDef> gather_ops() {
  OpDef gather{
      .name = "Gather", .types = gather_types, .gradient = gather_gradient, .loops = gather_rule};
  gather.cost = moves;
  gather.indices = indices;
  auto axis = [](int64_t n) { return Attrs{{"axis", n}}; };
  gather.samples = {{.inputs = {f64({3, 4}), i64({2, 5})}, .attrs = axis(0)},
                    {.inputs = {f64({2, 3, 4}), i64({2})}, .attrs = axis(1)},
                    {.inputs = {f64({2, 3}), i64({})}, .attrs = axis(1)}};
  OpDef grad{.name = "GatherGrad", .types = gather_grad_types, .loops = gather_grad_rule};
  grad.cost = element_cost<1>;
  grad.localise = gather_grad_localise;
  auto sized = [](int64_t n) { return Attrs{{"axis", n}, {"size", int64_t{3}}}; };
  grad.samples = {{.inputs = {f64({2, 5, 4}), i64({2, 5})}, .attrs = sized(0)},
                  {.inputs = {f64({2, 6, 4}), i64({6})}, .attrs = sized(1)},
                  {.inputs = {f64({2}), i64({})}, .attrs = sized(1)}};
  gather.attributes = {{"axis"}, {"padding"}, {"from_end"}, whole_of_parts()};
  grad.attributes = {{"axis"}, {"size"}, whole_of_parts()};
  return {gather, grad};
}

}  // namespace piper
