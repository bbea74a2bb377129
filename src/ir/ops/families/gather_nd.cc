// GatherND{batch_dims}(data, indices): indices[…, q] name q leading dims of data after the batch
// dims, and count from the end where they are negative. With `from_front` they are never negative:
// a run checks those that are an input. GatherNDGrad{batch_dims, sizes}(dy, indices) sums them
// back; sizes are those of the q dims. ScatterND{reduction: none|add|mul|max|min}(data, indices,
// updates): data with slices put or combined at those places, in the order of indices.
#include "rules.h"

namespace piper {
namespace {

// Checks indices of data with `named` dims after `batch` ones.
Status check_indices(const OpTypes& use, const Shape& data, int64_t batch) {
  PIPER_TRY(check_index(use, 1));
  const Shape& indices = use.inputs[1].shape;
  if (indices.empty() || batch < 0 || batch >= static_cast<int64_t>(indices.size()) ||
      batch >= static_cast<int64_t>(data.size()) || indices.back() < 0 ||
      indices.back() > static_cast<int64_t>(data.size()) - batch) {
    return fail("{} with batch_dims {}: the indices name more dims than there are", operands(use),
                batch);
  }
  for (size_t d = 0; d < static_cast<size_t>(batch); ++d) {
    if (data[d] != indices[d]) return fail("{}: batch dim {} differs", operands(use), d);
  }
  return ok_status();
}

// Returns what indices take of data.
Shape gathered(const Shape& data, const Shape& indices, int64_t batch) {
  Shape shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), data.begin() + batch + indices.back(), data.end());
  return shape;
}

TypesResult gather_nd_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  const int64_t batch = use.attrs.integer("batch_dims");
  const Shape& data = use.inputs[0].shape;
  PIPER_TRY(check_indices(use, data, batch));
  return std::vector<TensorType>{{use.inputs[0].dtype, gathered(data, use.inputs[1].shape, batch)}};
}

// Bounds what a run checks: indices of one dim that count from the front.
OpDef::Indices places_of_use(const OpTypes& use) {
  if (use.attrs.integer("from_front") == 0 || use.inputs[1].shape.back() != 1) return {-1};
  return {use.inputs[0].shape[static_cast<size_t>(use.attrs.integer("batch_dims"))]};
}

TypesResult gather_nd_grad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_float(use, 0));
  const Shape &dy = use.inputs[0].shape, &indices = use.inputs[1].shape;
  const int64_t batch = use.attrs.integer("batch_dims");
  if (indices.empty() || batch < 0 || batch >= static_cast<int64_t>(indices.size()) ||
      dy.size() + 1 < indices.size() || indices.back() < 0 || indices.back() > 16) {
    return fail("{} with batch_dims {} is not the gradient of a GatherND", operands(use), batch);
  }
  PIPER_TRY(check_list(use.attrs, "sizes", static_cast<size_t>(indices.back())));
  PIPER_ASSIGN(const Shape sizes, check_shape(use.attrs, "sizes"));
  Shape data(indices.begin(), indices.begin() + batch);
  data.insert(data.end(), sizes.begin(), sizes.end());
  data.insert(data.end(), dy.begin() + static_cast<int64_t>(indices.size()) - 1, dy.end());
  if (data.empty()) return fail("{} is not the gradient of a GatherND", operands(use));
  PIPER_TRY(check_indices(use, data, batch));
  PIPER_TRY(check_type(use, 0, "dy", {use.inputs[0].dtype, gathered(data, indices, batch)}));
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(data)}};
}

TypesResult gather_nd_scatter_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  PIPER_TRY(check_reduction(use.attrs));
  const TensorType& data = use.inputs[0];
  PIPER_TRY(check_indices(use, data.shape, 0));
  PIPER_TRY(
      check_type(use, 2, "updates", {data.dtype, gathered(data.shape, use.inputs[1].shape, 0)}));
  return std::vector<TensorType>{data};
}

Grads gather_nd_gradient(Builder& build, const GradientArgs& args) {
  const Shape &data = build.shape(args.inputs[0]), &indices = build.shape(args.inputs[1]);
  const int64_t batch = args.attrs.integer("batch_dims");
  const Shape sizes(data.begin() + batch, data.begin() + batch + indices.back());
  return {build.op1("GatherNDGrad", {args.output_grads[0], args.inputs[1]},
                    {{"batch_dims", batch}, {"sizes", sizes}}),
          ValueId()};
}

Grads gather_nd_grad_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("GatherND", {args.output_grads[0], args.inputs[1]},
                    {{"batch_dims", args.attrs.integer("batch_dims")}}),
          ValueId()};
}

Grads gather_nd_scatter_gradient(Builder& build, const GradientArgs& args) {
  const std::string reduction = args.attrs.text("reduction");
  if (reduction != "none" && reduction != "add") return {};
  const ValueId dy = args.output_grads[0];
  Grads grads(3);
  if (args.wanted[0]) {
    grads[0] = dy;
    if (reduction == "none") {
      const TensorType type = build.type(args.inputs[2]);
      const ValueId zeros = build.op1(
          "Fill", {}, {{"shape", type.shape}, {"value", 0.0}, {"dtype", info(type.dtype).name}});
      grads[0] = build.op1("ScatterND", {dy, args.inputs[1], zeros}, args.attrs);
    }
  }
  if (args.wanted[2]) {
    grads[2] = build.op1("GatherND", {dy, args.inputs[1]}, {{"batch_dims", int64_t{0}}});
  }
  return grads;
}

// Keeps the loop letters of (data, indices, gathered).
struct GatherNdLetters {
  LoopBuilder build;
  Dims data, indices, gathered;
};
GatherNdLetters gather_nd_letters_of(const Shape& data, const Shape& indices, size_t batch,
                                     bool whole_places) {
  GatherNdLetters l;
  const auto named = static_cast<size_t>(indices.back());
  const Shape places(indices.begin(), indices.end() - 1);
  l.indices = whole_places ? l.build.whole_letters(places) : l.build.letters(places);
  l.data.assign(l.indices.begin(), l.indices.begin() + static_cast<int64_t>(batch));
  l.gathered = l.indices;
  l.indices.push_back({l.build.whole(indices.back())});
  for (size_t d = batch; d < data.size(); ++d) {
    const bool whole = d < batch + named;
    l.data.push_back({whole ? l.build.whole(data[d]) : l.build.letter(data[d])});
    if (!whole) l.gathered.push_back(l.data.back());
  }
  return l;
}
size_t batch_dims(const OpTypes& use) {
  return static_cast<size_t>(use.attrs.integer("batch_dims"));
}

LoopRule gather_nd_rule(const OpTypes& use) {
  GatherNdLetters l =
      gather_nd_letters_of(use.inputs[0].shape, use.inputs[1].shape, batch_dims(use), false);
  l.build.rule.inputs = {l.data, l.indices};
  l.build.rule.outputs = {l.gathered};
  l.build.rule.linear = {{0}};
  return l.build.rule;
}

LoopRule gather_nd_grad_rule(const OpTypes& use) {
  GatherNdLetters l =
      gather_nd_letters_of(use.outputs[0].shape, use.inputs[1].shape, batch_dims(use), false);
  l.build.rule.inputs = {l.gathered, l.indices};
  l.build.rule.outputs = {l.data};
  l.build.rule.linear = {{0}};
  return l.build.rule;
}

Attrs localise_nd_grad(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  std::vector<int64_t> sizes = use.attrs.integers("sizes");
  const auto first = local_outputs[0].begin() + static_cast<int64_t>(batch_dims(use));
  std::copy_n(first, sizes.size(), sizes.begin());
  Attrs attrs = use.attrs;
  attrs.set("sizes", std::move(sizes));
  return attrs;
}

LoopRule gather_nd_scatter_rule(const OpTypes& use) {
  GatherNdLetters l = gather_nd_letters_of(use.inputs[0].shape, use.inputs[1].shape, 0, true);
  l.build.rule.inputs = {l.data, l.indices, l.gathered};
  l.build.rule.outputs = {l.data};
  const std::string reduction = use.attrs.text("reduction");
  if (reduction == "none" || reduction == "add") l.build.rule.linear = {{0, 2}};
  return l.build.rule;
}

}  // namespace

std::vector<OpDef> gather_nd_ops() {
  OpDef def{.name = "GatherND",
            .types = gather_nd_types,
            .gradient = gather_nd_gradient,
            .loops = gather_nd_rule,
            .cost = moves};
  auto batch = [](int64_t n) { return Attrs{{"batch_dims", n}}; };
  def.samples = {{.inputs = {f64({3, 3, 4}), i64({5, 2})}, .attrs = batch(0)},
                 {.inputs = {f64({2, 3, 4}), i64({2, 6, 1})}, .attrs = batch(1)},
                 {.inputs = {f64({2, 3}), i64({2, 1})}, .attrs = batch(1)}};
  OpDef grad{.name = "GatherNDGrad",
             .types = gather_nd_grad_types,
             .gradient = gather_nd_grad_gradient,
             .loops = gather_nd_grad_rule,
             .cost = element_cost<1>,
             .localise = localise_nd_grad};
  auto sized = [](int64_t n, Shape sizes) { return Attrs{{"batch_dims", n}, {"sizes", sizes}}; };
  grad.samples = {{.inputs = {f64({5, 4}), i64({5, 2})}, .attrs = sized(0, {3, 3})},
                  {.inputs = {f64({2, 6, 4}), i64({2, 6, 1})}, .attrs = sized(1, {3})},
                  {.inputs = {f64({2}), i64({2, 1})}, .attrs = sized(1, {3})}};
  OpDef scatter{.name = "ScatterND",
                .types = gather_nd_scatter_types,
                .gradient = gather_nd_scatter_gradient,
                .loops = gather_nd_scatter_rule,
                .cost = element_cost<1>};
  auto by = [](std::string_view reduction) { return Attrs{{"reduction", std::string(reduction)}}; };
  // Samples have one place: where places repeat, what `none` keeps is not differentiable.
  scatter.samples = {{.inputs = {f64({3, 4}), i64({1, 1}), f64({1, 4})}, .attrs = by("none")},
                     {.inputs = {f64({3, 3, 4}), i64({5, 2}), f64({5, 4})}, .attrs = by("add")}};
  def.absent = grad.absent = scatter.absent = 0;  // no index is one behind the end
  def.indices = places_of_use;
  def.attributes = {{"batch_dims"}, {"from_front"}};
  grad.attributes = {{"batch_dims"}, {"sizes", kIntegers}};
  scatter.attributes = {{"reduction", kText}};
  return {def, grad, scatter};
}

}  // namespace piper
