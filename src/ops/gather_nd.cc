// GatherND{batch_dims}(data, indices): indices[…, q] name q leading dims of data behind the batch
// dims.
#include "rules.h"

namespace piper {
namespace {

TypesResult types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_index(use, 1));
  const Shape &data = use.inputs[0].shape, &indices = use.inputs[1].shape;
  const int64_t batch = use.attrs.integer("batch_dims");
  if (indices.empty() || batch < 0 || batch >= static_cast<int64_t>(indices.size()) ||
      batch >= static_cast<int64_t>(data.size()) || indices.back() < 0 ||
      indices.back() > static_cast<int64_t>(data.size()) - batch) {
    return fail("{} with batch_dims {}: the indices name more dims than there are", operands(use),
                batch);
  }
  for (size_t d = 0; d < static_cast<size_t>(batch); ++d) {
    if (data[d] != indices[d]) return fail("{}: batch dim {} differs", operands(use), d);
  }
  Shape shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), data.begin() + batch + indices.back(), data.end());
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

LoopRule rule(const OpTypes& use) {
  LoopBuilder build;
  const Shape &data = use.inputs[0].shape, &indices = use.inputs[1].shape;
  const size_t batch = static_cast<size_t>(use.attrs.integer("batch_dims"));
  const size_t named = static_cast<size_t>(indices.back());
  Dims index_dims = build.letters(Shape(indices.begin(), indices.end() - 1));
  Dims data_dims(index_dims.begin(), index_dims.begin() + static_cast<int64_t>(batch));
  Dims result = index_dims;
  index_dims.push_back({build.whole(indices.back())});
  for (size_t d = batch; d < data.size(); ++d) {
    const bool whole = d < batch + named;
    data_dims.push_back({whole ? build.whole(data[d]) : build.letter(data[d])});
    if (!whole) result.push_back(data_dims.back());
  }
  build.rule.inputs = {data_dims, index_dims};
  build.rule.outputs = {result};
  build.rule.linear = {{0}};
  return build.rule;
}

}  // namespace

std::vector<OpDef> gather_nd_ops() {
  OpDef def{.name = "GatherND", .types = types, .loops = rule};
  def.cost = moves;
  auto batch = [](int64_t n) { return Attrs{{"batch_dims", n}}; };
  def.samples = {{.inputs = {f64({3, 3, 4}), i64({5, 2})}, .attrs = batch(0)},
                 {.inputs = {f64({2, 3, 4}), i64({2, 6, 1})}, .attrs = batch(1)},
                 {.inputs = {f64({2, 3}), i64({2, 1})}, .attrs = batch(1)}};
  return {def};
}

}  // namespace piper
