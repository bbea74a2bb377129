// Gathering, and tensors made of positions.
#include <algorithm>
#include <charconv>

#include "piper/frontend/onnx.h"
#include "piper/ir/index_range.h"
#include "rule.h"

namespace piper::onnx_import {
namespace {

// Returns indices as i64, counted from the front; those that depend on the data are taken as they
// are.
Result<Val> indices(RuleContext& c, const Val& x, int64_t size) {
  if (info(x.dtype).is_float || x.dtype == DType::kBool)
    return c.error("its indices are not integers");
  if (!x.is_constant()) {
    if (x.dtype == DType::kI64) return x;
    return c.pointwise("Cast", {x}, {{"to", std::string("i64")}});
  }
  std::vector<int64_t> values = read_integers(x.data, x.dtype);
  for (int64_t& v : values) {
    if (v < -size || v >= size) return c.error("index {} is outside a dim of {}", v, size);
    if (v < 0) v += size;
  }
  Val out = constant_val(DType::kI64, x.stored, bytes_of(values));
  out.shape = x.shape;
  return out;
}

Result<Val> gather_along(RuleContext& c, const Val& data, const Val& index, size_t axis,
                         Attrs attrs = {}) {
  const std::vector<size_t> held{axis};
  Result<Val> from = c.emit.exact_dims(data, held);
  if (!from) return c.located(from.error().message);
  attrs.set("axis", static_cast<int64_t>(axis));
  Result<Vals> made = c.emit.op("Gather", {*from, index}, attrs);
  if (!made) return c.located(made.error().message);
  Val out = (*made)[0];
  out.shape = data.shape;
  out.shape.erase(out.shape.begin() + static_cast<int64_t>(axis));
  out.shape.insert(out.shape.begin() + static_cast<int64_t>(axis), index.shape.begin(),
                   index.shape.end());
  return out;
}

bool is_parameter(RuleContext& c, const Val& x) {
  return x.kind == Val::Kind::kGraph && c.emit.graph().value(x.id).kind == ValueKind::kState;
}

// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse): the row at padding_idx gets
// no gradient, and rows do not count from the end. ONNX has no word for either; the call that the
// exporter notes has. Where PyTorch's exporter notes none, a lookup of rows of a parameter counts
// as one.
Result<Attrs> attrs_of_gather(RuleContext& c, const Val& data, const Val& index, size_t axis) {
  const auto call = parse_call(find_metadata(c.node.metadata, "pkg.torch.onnx.fx_node"));
  const bool is_embedding = call ? call->function == "aten.embedding"
                                 : c.by_pytorch && axis == 0 && is_parameter(c, data);
  Attrs attrs;
  if (!is_embedding && !index.is_constant()) attrs.set("from_end", int64_t{1});
  if (!is_embedding || !call) return attrs;
  const std::vector<std::string>& words = call->words;
  if (words.size() > 3 && words[3] == "True")
    return c.error("an embedding with scale_grad_by_freq is not supported");
  int64_t padding = -1;
  if (words.size() > 2)
    std::from_chars(words[2].data(), words[2].data() + words[2].size(), padding);
  if (padding >= 0) attrs.set("padding", padding);
  return attrs;
}

bool counts(const Val& index, int64_t size) {  // 0, 1, … size - 1
  if (!index.is_constant() || index.is_broadcast() || num_elements(index.shape) != size)
    return false;
  const std::vector<int64_t> values = read_integers(index.data, index.dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Finds i · rows + v[i, …] of a v for each sample i, and returns v. None where the value is not
// made so.
std::optional<ValueId> places_in_own_rows(const Graph& graph, ValueId index, int64_t samples,
                                          int64_t rows) {
  const NodeId producer = graph.value(index).producer;
  if (!producer.valid() || graph.node(producer).op != "Add") return {};
  const Shape& shape = graph.value(index).type.shape;
  for (const size_t k : {0, 1}) {
    const Value& own = graph.value(graph.node(producer).inputs[k]);
    const ValueId places = graph.node(producer).inputs[1 - k];
    if (own.kind != ValueKind::kConstant || own.type.dtype != DType::kI64 ||
        own.type.shape.size() != shape.size() || shape.empty() || own.type.shape[0] != samples ||
        num_elements(own.type.shape) != samples || graph.value(places).type.shape != shape)
      continue;
    const std::vector<int64_t> values = read_integers(own.data, DType::kI64);
    bool counts = true;
    for (size_t i = 0; i < values.size(); ++i)
      counts = counts && values[i] == static_cast<int64_t>(i) * rows;
    if (counts) return places;
  }
  return {};
}

Result<Val> gather_in_rows(RuleContext& c, const Val& whole, const Val& places, Shape one) {
  one.push_back(1);
  PIPER_ASSIGN(const Val each, c.reshape(places, one));
  return c.op("GatherND", {whole, each}, {{"batch_dims", int64_t{1}}, {"from_front", int64_t{1}}});
}

// Gathers x[arange, v], which the older exporter writes as rows of x.flatten(0, 1). A v that is
// outside of its sample's rows names one of another sample there, so it must be known to be inside.
Result<std::optional<Val>> gather_own_row(RuleContext& c, const Val& data, const Val& index) {
  const std::optional<Val> none;
  if (data.kind != Val::Kind::kGraph || index.kind != Val::Kind::kGraph || data.is_broadcast() ||
      index.is_broadcast())
    return none;
  const Graph& graph = c.emit.graph();
  const NodeId flat = graph.value(data.id).producer;
  if (!flat.valid() || graph.node(flat).op != "Reshape") return none;
  const Val whole = graph_val(graph, graph.node(flat).inputs[0]);
  if (whole.rank() != data.rank() + 1 ||
      !std::equal(whole.shape.begin() + 2, whole.shape.end(), data.shape.begin() + 1))
    return none;
  const auto places = places_in_own_rows(graph, index.id, whole.shape[0], whole.shape[1]);
  if (!places || !IndexRange(graph).is_within(*places, whole.shape[1], {}, true)) return none;
  PIPER_ASSIGN(Val out, gather_in_rows(c, whole, graph_val(graph, *places), index.shape));
  return std::optional<Val>(std::move(out));
}

Result<Vals> gather_one(RuleContext& c, const Val& data, const Val& index, size_t axis,
                        const Shape& out) {
  std::vector<int64_t> starts(data.rank(), 0);
  Shape one = data.shape;
  starts[axis] = read_integers(index.data, DType::kI64)[0];
  one[axis] = 1;
  PIPER_ASSIGN(const Val row, c.slice(data, starts, std::vector<int64_t>(data.rank(), 1), one));
  return single(c.reshape(row, out));
}

Result<Vals> gather(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& data = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", 0), data.rank()));
  PIPER_ASSIGN(const Val index, indices(c, c.in(1), data.shape[axis]));
  Shape out = data.shape;
  out.erase(out.begin() + static_cast<int64_t>(axis));
  out.insert(out.begin() + static_cast<int64_t>(axis), index.shape.begin(), index.shape.end());
  // All rows in their order, as the older exporter names samples by their numbers. The lookup in a
  // parameter stays: its scope is the module's.
  if (!is_parameter(c, data) && counts(index, data.shape[axis]))
    return single(c.reshape(data, out));
  // One index for all is a slice, which needs no index.
  if (index.is_constant() && num_elements(index.shape) == 1)
    return gather_one(c, data, index, axis, out);
  if (axis == 0) {
    PIPER_ASSIGN(auto own_row, gather_own_row(c, data, index));
    if (own_row) return Vals{*std::move(own_row)};
  }
  PIPER_ASSIGN(Attrs attrs, attrs_of_gather(c, data, index, axis));
  return single(gather_along(c, data, index, axis, std::move(attrs)));
}

// Returns the last dim of the indices of a GatherND, one entry of it: shape without the last dim.
Result<Val> component(RuleContext& c, const Val& index, int64_t k) {
  std::vector<int64_t> starts(index.rank(), 0);
  starts.back() = k;
  Shape one = index.shape;
  one.back() = 1;
  PIPER_ASSIGN(const Val cut, c.slice(index, starts, std::vector<int64_t>(index.rank(), 1), one));
  one.pop_back();
  return c.reshape(cut, one);
}

bool counts_first_dim(const Val& v) {  // v[i, …] == i
  if (!v.is_constant() || v.rank() == 0) return false;
  for (size_t d = 1; d < v.rank(); ++d) {
    if (v.stored[d] != 1) return false;
  }
  const std::vector<int64_t> values = read_integers(v.data, v.dtype);
  if (static_cast<int64_t>(values.size()) != v.shape[0]) return v.shape[0] == 1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Gathers data[b, index] for every sample b with the same index: a Gather that leaves the batch
// whole, where GatherND would name each sample by its number.
Result<std::optional<Val>> gather_per_sample(RuleContext& c, const Val& data, const Val& index) {
  const std::optional<Val> none;
  if (!index.is_constant() || index.shape.back() != 2 || index.rank() < 2 || data.rank() < 2)
    return none;
  PIPER_ASSIGN(const Val first, component(c, index, 0));
  PIPER_ASSIGN(const Val second, component(c, index, 1));
  if (index.shape[0] != data.shape[0] || !counts_first_dim(first) || second.stored[0] != 1)
    return none;
  PIPER_ASSIGN(const Val from_front, indices(c, second, data.shape[1]));
  Val per_sample = from_front;
  per_sample.shape[0] = 1;
  PIPER_ASSIGN(per_sample,
               c.reshape(per_sample, Shape(per_sample.shape.begin() + 1, per_sample.shape.end())));
  PIPER_ASSIGN(Val out, gather_along(c, data, per_sample, 1));
  return std::optional<Val>(std::move(out));
}

// Entry [i, j, …, k] of the constant is i where k is 0, j where k is 1, … from component `first`
// on.
bool names_its_own_place(const Value& value, size_t first) {
  const Shape& shape = value.type.shape;
  const auto depth = static_cast<size_t>(shape.back());
  if (value.kind != ValueKind::kConstant || value.type.dtype != DType::kI64 ||
      first + depth >= shape.size() || num_elements(shape) > kMostListed)
    return false;
  const std::vector<int64_t> entries = read_integers(value.data, value.type.dtype);
  for (size_t e = 0; e < entries.size(); ++e) {
    size_t place = e / depth;
    int64_t coordinate = 0;
    for (size_t d = shape.size() - 1; d-- > first + e % depth;) {
      coordinate = static_cast<int64_t>(place) % shape[d];
      place /= static_cast<size_t>(shape[d]);
    }
    if (entries[e] != coordinate) return false;
  }
  return true;
}

// Gathers data[arange, index]: the first components of the indices are the row's own place, so they
// are batch dims. None where they are not.
Result<std::optional<Val>> gather_own_rows(RuleContext& c, const Val& data, const Val& index) {
  const std::optional<Val> none;
  if (index.kind != Val::Kind::kGraph || index.is_broadcast()) return none;
  const Graph& graph = c.emit.graph();
  const NodeId producer = graph.value(index.id).producer;
  if (!producer.valid() || graph.node(producer).op != "Concat" ||
      graph.node(producer).attrs.integer("axis") + 1 != static_cast<int64_t>(index.rank()))
    return none;
  size_t own = 0, taken = 0;
  const std::vector<ValueId> parts = graph.node(producer).inputs;
  for (; taken + 1 < parts.size() && names_its_own_place(graph.value(parts[taken]), own); ++taken)
    own += static_cast<size_t>(graph.value(parts[taken]).type.shape.back());
  if (own == 0 || own >= data.rank() ||
      !std::equal(index.shape.begin(), index.shape.begin() + static_cast<int64_t>(own),
                  data.shape.begin()))
    return none;
  Vals rest;
  for (size_t i = taken; i < parts.size(); ++i) rest.push_back(graph_val(graph, parts[i]));
  Val places = rest[0];
  const auto last = static_cast<int64_t>(index.rank()) - 1;
  if (rest.size() > 1) {
    PIPER_ASSIGN(places, c.op("Concat", rest, {{"axis", last}}));
  }
  if (places.shape.back() != 1 || own != index.rank() - 1 || own + 1 != data.rank()) {
    PIPER_ASSIGN(Val out,
                 c.op("GatherND", {data, places}, {{"batch_dims", static_cast<int64_t>(own)}}));
    return std::optional<Val>(std::move(out));
  }
  PIPER_ASSIGN(Val out, c.op("GatherElements", {data, places}, {{"axis", last}}));
  PIPER_ASSIGN(out, c.reshape(out, Shape(index.shape.begin(), index.shape.end() - 1)));
  return std::optional<Val>(std::move(out));
}

Result<Vals> gather_nd(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& data = c.in(0);
  const Val& index = c.in(1);
  const int64_t batch_dims = c.integer("batch_dims", 0);
  if (index.rank() == 0 || data.rank() == 0) return c.error("needs values of at least one dim");
  const int64_t depth = index.shape.back();
  if (batch_dims < 0 || depth < 1 || batch_dims + depth > static_cast<int64_t>(data.rank()) ||
      batch_dims >= static_cast<int64_t>(index.rank()))
    return c.error("indices {} do not fit data {}", to_string(index.shape), to_string(data.shape));
  if (batch_dims == 0) {
    PIPER_ASSIGN(auto per_sample, gather_per_sample(c, data, index));
    if (per_sample) return Vals{*std::move(per_sample)};
    PIPER_ASSIGN(auto own_rows, gather_own_rows(c, data, index));
    if (own_rows) return Vals{*std::move(own_rows)};
  }
  if (index.dtype != DType::kI64)
    return c.error("indices of {} are not supported", info(index.dtype).name);
  return single(c.op("GatherND", {data, index}, {{"batch_dims", batch_dims}}));
}

Result<int64_t> read_depth(RuleContext& c) {
  if (!c.in(1).is_constant() || num_elements(c.in(1).shape) != 1)
    return c.error("its depth must be known when the model is compiled, but depends on the data");
  const double number = read_number(c.in(1).data, c.in(1).dtype, 0);
  if (!(number >= 0 && number <= kMostListed)) return c.error("an impossible depth");
  return static_cast<int64_t>(number);
}

// Labels are counted from the end where they are negative. Those of no class hit none.
Result<Val> labels_from_front(RuleContext& c, const Val& x, int64_t classes) {
  PIPER_ASSIGN(const Val labels, c.cast(x, DType::kI64));
  PIPER_ASSIGN(const Val below, c.pointwise("Less", {labels, integer_val(0)}));
  PIPER_ASSIGN(const Val moved, c.pointwise("Add", {labels, integer_val(classes)}));
  return c.pointwise("Where", {below, moved, labels});
}

Result<Vals> one_hot(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  PIPER_ASSIGN(const int64_t depth, read_depth(c));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank() + 1));
  PIPER_ASSIGN(const Val classes, c.emit.count_to(depth));
  Shape one = x.shape, row(x.rank() + 1, 1);
  one.insert(one.begin() + static_cast<int64_t>(axis), 1);
  row[axis] = depth;
  PIPER_ASSIGN(const Val labels, labels_from_front(c, x, depth));
  PIPER_ASSIGN(const Val wide, c.reshape(labels, one));
  PIPER_ASSIGN(const Val names, c.reshape(classes, row));
  PIPER_ASSIGN(const Val hit, c.pointwise("Equal", {wide, names}));
  const Val& values = c.in(2);
  if (values.rank() != 1 || values.shape[0] != 2) return c.error("needs two values: off and on");
  PIPER_ASSIGN(const Val off, c.slice(values, {0}, {1}, {1}));
  PIPER_ASSIGN(const Val on, c.slice(values, {1}, {1}, {1}));
  return single(c.pointwise("Where", {hit, on, off}));
}

Result<Vals> trilu(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  const Val& x = c.in(0);
  if (x.rank() < 2) return c.error("needs a value of at least two dims");
  int64_t k = 0;
  if (c.has(1)) {
    PIPER_ASSIGN(const auto offset, c.constant_integers(1, "diagonal"));
    if (offset.size() != 1) return c.error("names {} diagonals", offset.size());
    k = offset[0];
  }
  const std::vector<size_t> held{x.rank() - 2, x.rank() - 1};
  Result<Val> from = c.emit.exact_dims(x, held);
  if (!from) return c.located(from.error().message);
  Result<Vals> made = c.emit.op("Trilu", {*from}, {{"upper", c.integer("upper", 1)}, {"k", k}});
  if (!made) return c.located(made.error().message);
  (*made)[0].shape = x.shape;
  return made;
}

Result<Vals> cumsum(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const auto named, c.constant_integers(1, "axis"));
  if (named.size() != 1) return c.error("names {} axes", named.size());
  PIPER_ASSIGN(const size_t axis, c.axis(named[0], x.rank()));
  const std::vector<size_t> held{axis};
  Result<Val> from = c.emit.exact_dims(x, held);
  if (!from) return c.located(from.error().message);
  Result<Vals> made = c.emit.op("CumSum", {*from},
                                {{"axis", static_cast<int64_t>(axis)},
                                 {"exclusive", c.integer("exclusive", 0)},
                                 {"reverse", c.integer("reverse", 0)}});
  if (!made) return c.located(made.error().message);
  (*made)[0].shape = x.shape;
  return made;
}

constexpr ImportRule kIndexRules[] = {
    {"CumSum", 11, kNewest, cumsum, "along a known axis"},
    {"Gather", 1, kNewest, gather, "data may count from the end, except tokens of an embedding"},
    {"GatherND", 11, kNewest, gather_nd},
    {"OneHot", 9, kNewest, one_hot, "of known depth"},
    {"Trilu", 14, kNewest, trilu, "with a known diagonal"},
};

}  // namespace

std::span<const ImportRule> index_rules() { return kIndexRules; }

}  // namespace piper::onnx_import
