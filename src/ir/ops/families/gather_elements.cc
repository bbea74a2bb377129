// GatherElements{axis}(data, indices): of each position of indices, the element of data there but
// for its place along the axis. GatherElementsGrad{axis, size}(dy, indices) sums them back.
// ScatterElements{axis, reduction: none|add|mul|max|min}(data, indices, updates): data with the
// elements of updates put or combined at those places, in the order of indices.
#include "rules.h"

namespace piper {
namespace {

// Indices may be shorter than data along other dims: the rest is not touched.
Result<size_t> check_places(const OpTypes& use, const Shape& data, const Shape& indices) {
  PIPER_TRY(check_index(use, 1));
  PIPER_ASSIGN(const size_t axis, check_axis(use.attrs, "axis", data.size()));
  bool fits = indices.size() == data.size();
  for (size_t d = 0; fits && d < data.size(); ++d) fits = d == axis || indices[d] <= data[d];
  if (!fits) return fail("indices {} do not fit data {}", to_string(indices), to_string(data));
  return axis;
}

TypesResult gather_elements_gather_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_places(use, use.inputs[0].shape, use.inputs[1].shape));
  return std::vector<TensorType>{{use.inputs[0].dtype, use.inputs[1].shape}};
}

TypesResult gather_elements_grad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_type(use, 1, "indices", {use.inputs[1].dtype, use.inputs[0].shape}));
  PIPER_ASSIGN(const std::vector<int64_t> sizes,
               check_list(use.attrs, "sizes", use.inputs[0].shape.size()));
  PIPER_TRY(check_shape(use.attrs, "sizes"));
  PIPER_TRY(check_places(use, sizes, use.inputs[1].shape));
  return std::vector<TensorType>{{use.inputs[0].dtype, sizes}};
}

TypesResult gather_elements_scatter_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  PIPER_TRY(check_reduction(use.attrs));
  PIPER_TRY(check_places(use, use.inputs[0].shape, use.inputs[1].shape));
  PIPER_TRY(check_type(use, 2, "updates", {use.inputs[0].dtype, use.inputs[1].shape}));
  return std::vector<TensorType>{use.inputs[0]};
}

ValueId zeros(Builder& build, ValueId like) {
  const TensorType type = build.type(like);
  return build.op1("Fill", {},
                   {{"shape", type.shape}, {"value", 0.0}, {"dtype", info(type.dtype).name}});
}

Grads gather_elements_gather_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("GatherElementsGrad", {args.output_grads[0], args.inputs[1]},
                    {{"axis", args.attrs.integer("axis")}, {"sizes", build.shape(args.inputs[0])}}),
          ValueId()};
}

Grads gather_elements_grad_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("GatherElements", {args.output_grads[0], args.inputs[1]},
                    {{"axis", args.attrs.integer("axis")}}),
          ValueId()};
}

Grads gather_elements_scatter_gradient(Builder& build, const GradientArgs& args) {
  const std::string reduction = args.attrs.text("reduction");
  if (reduction != "none" && reduction != "add") return {};
  const Attrs axis{{"axis", args.attrs.integer("axis")}};
  Grads grads(3);
  const ValueId dy = args.output_grads[0];
  if (args.wanted[0]) {
    grads[0] = reduction == "add"
                   ? dy
                   : build.op1("ScatterElements",
                               {dy, args.inputs[1], zeros(build, args.inputs[2])}, args.attrs);
  }
  if (args.wanted[2]) grads[2] = build.op1("GatherElements", {dy, args.inputs[1]}, axis);
  return grads;
}

// Keeps the loop letters of data and of indices: they share a letter where both have the dim in
// full.
struct GatherElementsLetters {
  LoopBuilder build;
  Dims data, indices;
};
GatherElementsLetters gather_elements_letters_of(const OpTypes& use, const Shape& data,
                                                 const Shape& indices, bool sums) {
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  GatherElementsLetters l;
  for (size_t d = 0; d < data.size(); ++d) {
    const bool common = d != axis && data[d] == indices[d];
    l.data.push_back({common ? l.build.letter(data[d]) : l.build.whole(data[d])});
    l.indices.push_back(common               ? l.data.back()
                        : d == axis && !sums ? Dim{l.build.letter(indices[d])}
                                             : Dim{l.build.whole(indices[d])});
  }
  return l;
}

LoopRule gather_elements_gather_rule(const OpTypes& use) {
  GatherElementsLetters l =
      gather_elements_letters_of(use, use.inputs[0].shape, use.inputs[1].shape, false);
  l.build.rule.inputs = {l.data, l.indices};
  l.build.rule.outputs = {l.indices};
  l.build.rule.linear = {{0}};
  return l.build.rule;
}

LoopRule gather_elements_grad_rule(const OpTypes& use) {
  GatherElementsLetters l =
      gather_elements_letters_of(use, use.outputs[0].shape, use.inputs[1].shape, false);
  l.build.rule.inputs = {l.indices, l.indices};
  l.build.rule.outputs = {l.data};
  l.build.rule.linear = {{0}};
  return l.build.rule;
}

LoopRule gather_elements_scatter_rule(const OpTypes& use) {
  GatherElementsLetters l =
      gather_elements_letters_of(use, use.inputs[0].shape, use.inputs[1].shape, true);
  l.build.rule.inputs = {l.data, l.indices, l.indices};
  l.build.rule.outputs = {l.data};
  const std::string reduction = use.attrs.text("reduction");
  if (reduction == "none" || reduction == "add") l.build.rule.linear = {{0, 2}};
  return l.build.rule;
}

Attrs localise_grad(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  Attrs attrs = use.attrs;
  attrs.set("sizes", local_outputs[0]);
  return attrs;
}

}  // namespace

std::vector<OpDef> gather_elements_ops() {
  OpDef gather{.name = "GatherElements",
               .types = gather_elements_gather_types,
               .gradient = gather_elements_gather_gradient,
               .loops = gather_elements_gather_rule,
               .cost = moves};
  auto axis = [](int64_t n) { return Attrs{{"axis", n}}; };
  gather.samples = {{.inputs = {f64({4, 3}), i64({4, 5})}, .attrs = axis(1)},
                    {.inputs = {f64({3, 4, 2}), i64({2, 4, 2})}, .attrs = axis(0)},
                    {.inputs = {f64({4, 3, 5}), i64({2, 6, 4})}, .attrs = axis(1)}};
  OpDef grad{.name = "GatherElementsGrad",
             .types = gather_elements_grad_types,
             .gradient = gather_elements_grad_gradient,
             .loops = gather_elements_grad_rule,
             .cost = element_cost<1>,
             .localise = localise_grad};
  auto sized = [](int64_t n, Shape sizes) { return Attrs{{"axis", n}, {"sizes", sizes}}; };
  grad.samples = {{.inputs = {f64({4, 5}), i64({4, 5})}, .attrs = sized(1, {4, 3})},
                  {.inputs = {f64({2, 6, 4}), i64({2, 6, 4})}, .attrs = sized(1, {4, 3, 5})}};
  OpDef scatter{.name = "ScatterElements",
                .types = gather_elements_scatter_types,
                .gradient = gather_elements_scatter_gradient,
                .loops = gather_elements_scatter_rule,
                .cost = element_cost<1>};
  auto by = [](int64_t n, std::string_view reduction) {
    return Attrs{{"axis", n}, {"reduction", std::string(reduction)}};
  };
  // Samples have one index along the axis: where places repeat, what `none` keeps is not
  // differentiable.
  scatter.samples = {
      {.inputs = {f64({4, 3}), i64({4, 1}), f64({4, 1})}, .attrs = by(1, "none")},
      {.inputs = {f64({4, 3}), i64({4, 5}), f64({4, 5})}, .attrs = by(1, "add")},
      {.inputs = {f64({4, 3, 5}), i64({2, 6, 4}), f64({2, 6, 4})}, .attrs = by(1, "add")}};
  gather.absent = grad.absent = scatter.absent = 0;  // no index is one behind the end
  gather.attributes = {{"axis"}};
  grad.attributes = {{"axis"}, {"sizes", kIntegers}};
  scatter.attributes = {{"axis"}, {"reduction", kText}};
  return {gather, grad, scatter};
}

}  // namespace piper
