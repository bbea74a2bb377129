// Follows the integers of an input through ops that move them, and through constants added to them.
#include "index_reads.h"

#include <cstring>
#include <numeric>

#include "at.h"

namespace piper {
namespace {

bool is_integer(const Value& value) {
  return value.type.dtype == DType::kI64 || value.type.dtype == DType::kI32;
}
bool is_known(const Graph& graph, ValueId value) {
  return graph.value(value).kind == ValueKind::kConstant && is_integer(graph.value(value));
}

std::vector<int64_t> integers_of(const Value& constant) {
  const Bytes bytes = constant.data.made();
  std::vector<int64_t> numbers(at(num_elements(constant.type.shape)));
  if (constant.type.dtype == DType::kI64) {
    std::memcpy(numbers.data(), bytes.data, bytes.size);
    return numbers;
  }
  std::vector<int32_t> narrow(numbers.size());
  std::memcpy(narrow.data(), bytes.data, bytes.size);
  return {narrow.begin(), narrow.end()};
}

// Returns the operand of a sum that is a constant; not valid for other ops.
ValueId added(const Graph& graph, const Node& node, ValueId moved) {
  if (node.op != "Add" && node.op != "Sub") return {};
  const ValueId first = node.inputs[0], second = node.inputs[1];
  if (moved == first && is_known(graph, second)) return second;
  return node.op == "Add" && moved == second && is_known(graph, first) ? first : ValueId();
}

// Returns whether an op makes other integers of the operand: moved, wider, shifted or joined.
bool moves(const Graph& graph, const Node& node, ValueId moved) {
  const OpDef* def = find_op(node.op);
  if (!def || node.outputs.size() != 1) return false;
  if (def->elements != OpDef::Elements::kMade || def->collective) return true;
  const Value& made = graph.value(node.outputs[0]);
  if (!is_integer(made) || !is_integer(graph.value(moved))) return false;
  if (node.op == "Cast" || node.op == "Concat") return true;
  if (node.op == "Gather" || node.op == "GatherND")
    return node.inputs.size() == 2 && node.inputs[0] == moved && is_known(graph, node.inputs[1]);
  return added(graph, node, moved).valid();
}

// Returns the indices that a node reads of a value.
std::optional<OpDef::Indices> indices_of(const Graph& graph, const Node& node, ValueId value) {
  const OpDef* def = find_op(node.op);
  if (!def || !def->indices || node.inputs[1] != value) return std::nullopt;
  return def->indices(use_of(graph, node));
}

std::vector<int64_t> strides_of_shape(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Numbers the elements of a shape by where they lie: `first` and so many steps along each dim.
std::vector<int64_t> strided(const Shape& shape, int64_t first, std::span<const int64_t> steps) {
  std::vector<int64_t> sources{first};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> finer;
    finer.reserve(sources.size() * at(shape[d]));
    for (const int64_t source : sources)
      for (int64_t i = 0; i < shape[d]; ++i) finer.push_back(source + i * steps[d]);
    sources = std::move(finer);
  }
  return sources;
}

// An operand of a pointwise op is repeated along dims that it has not, or has once.
std::vector<int64_t> repeated(const Shape& from, const Shape& made) {
  std::vector<int64_t> steps(made.size(), 0);
  const std::vector<int64_t> strides = strides_of_shape(from);
  for (size_t d = 0; d < from.size(); ++d)
    if (from[d] != 1) steps[made.size() - from.size() + d] = strides[d];
  return strided(made, 0, steps);
}

std::optional<std::vector<int64_t>> of_part(const Node& node, const Shape& from,
                                            const Shape& made) {
  const std::vector<int64_t> strides = strides_of_shape(from);
  const std::vector<int64_t> starts = node.attrs.integers("starts");  // of a slice
  const std::vector<int64_t> by = node.attrs.integers("steps");
  std::vector<int64_t> steps;
  int64_t first = 0;
  if (find_op(node.op)->elements == OpDef::Elements::kPermuted)
    for (int64_t dim : node.attrs.integers("perm")) steps.push_back(strides[at(dim)]);
  for (size_t d = 0; d < starts.size(); ++d) {
    first += starts[d] * strides[d];
    steps.push_back((by.empty() ? 1 : by[d]) * strides[d]);
  }
  if (!steps.empty()) return strided(made, first, steps);
  if (num_elements(made) != num_elements(from)) return std::nullopt;
  std::vector<int64_t> all(at(num_elements(made)));  // another shape
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int64_t> of_joined(const Graph& graph, const Node& node, ValueId moved,
                               const Shape& made) {
  const auto axis = at(node.attrs.integer("axis"));
  const std::vector<int64_t> strides = strides_of_shape(made);
  std::vector<int64_t> sources(at(num_elements(made)), kNoSource);
  int64_t before = 0;
  for (const ValueId operand : node.inputs) {
    const Shape& from = graph.value(operand).type.shape;
    if (operand == moved) {
      const std::vector<int64_t> places = strided(from, before * strides[axis], strides);
      for (size_t i = 0; i < places.size(); ++i) sources[at(places[i])] = static_cast<int64_t>(i);
    }
    before += from[axis];
  }
  return sources;
}

// Returns what constant indices take along one dim, or tuples of them along the first dims: slices
// of `inner` elements, of each of `outer` runs.
std::optional<std::vector<int64_t>> of_taken(const Graph& graph, const Node& node,
                                             const Shape& from, const Shape& made) {
  const Value& indices = graph.value(node.inputs[1]);
  const bool has_tuples = node.op == "GatherND";
  if (has_tuples && node.attrs.integer("batch_dims", 0) != 0) return std::nullopt;
  const auto axis = has_tuples ? size_t{0} : at(node.attrs.integer("axis"));
  const size_t dims = has_tuples ? at(indices.type.shape.back()) : 1;
  const std::vector<int64_t> strides = strides_of_shape(from), numbers = integers_of(indices);
  const int64_t outer = num_elements(Shape(from.begin(), from.begin() + at(axis)));
  const int64_t inner = num_elements(Shape(from.begin() + at(axis + dims), from.end()));
  const int64_t run = num_elements(Shape(from.begin() + at(axis), from.end()));
  std::vector<int64_t> sources;
  sources.reserve(at(num_elements(made)));
  for (int64_t o = 0; o < outer; ++o)
    for (size_t n = 0; n < numbers.size(); n += dims) {
      int64_t first = o * run;
      for (size_t d = 0; d < dims; ++d) {
        const int64_t size = from[axis + d];
        const int64_t index = numbers[n + d] < 0 ? numbers[n + d] + size : numbers[n + d];
        if (index < 0 || index >= size) return std::nullopt;
        first += index * strides[axis + d];
      }
      for (int64_t i = 0; i < inner; ++i) sources.push_back(first + i);
    }
  return sources;
}

}  // namespace

IndexReads::IndexReads(const Graph& graph, const std::vector<std::vector<NodeId>>& readers,
                       ValueId input)
    : moved{{input}} {
  for (size_t m = 0; m < moved.size(); ++m)
    for (const NodeId reader : readers[moved[m].value.index()]) follow(graph, m, reader);
}

void IndexReads::follow(const Graph& graph, size_t m, NodeId reader) {
  const Node& node = graph.node(reader);
  const Moved from = moved[m];
  if (const auto indices = indices_of(graph, node, from.value)) reads.push_back({m, *indices});
  if (!moves(graph, node, from.value) || !seen_.insert(node.outputs[0]).second) return;
  const bool is_shifted = from.is_shifted || added(graph, node, from.value).valid();
  moved.push_back({node.outputs[0], m, reader, is_shifted});
}

Legal IndexReads::legal() const {
  Legal all;
  for (const Read& read : reads)
    if (!moved[read.moved].is_shifted) all.add(read.indices);
  return all;
}

bool IndexReads::are_alike() const {
  const auto legal_for = [](const Read& read) {
    Legal one;
    one.add(read.indices);
    return one;
  };
  return std::ranges::all_of(reads, [&](const Read& read) {
    return !moved[read.moved].is_shifted && legal_for(read) == legal_for(reads[0]);
  });
}

std::optional<std::vector<int64_t>> sources_of(const Graph& graph, const Node& node,
                                               ValueId moved) {
  const Shape& from = graph.value(moved).type.shape;
  const Shape& made = graph.value(node.outputs[0]).type.shape;
  if (node.op == "Concat") return of_joined(graph, node, moved, made);
  if (node.op == "Gather" || node.op == "GatherND") return of_taken(graph, node, from, made);
  if (added(graph, node, moved).valid()) return repeated(from, made);
  return of_part(node, from, made);
}

std::optional<std::vector<int64_t>> shifts_of(const Graph& graph, const Node& node, ValueId moved) {
  constexpr int64_t kMost = int64_t{1} << 40;  // larger ones are no places in a table
  const ValueId constant = added(graph, node, moved);
  if (!constant.valid()) return std::vector<int64_t>();
  const Value& value = graph.value(constant);
  const std::vector<int64_t> numbers = integers_of(value);
  std::vector<int64_t> shifts = repeated(value.type.shape, graph.value(node.outputs[0]).type.shape);
  for (int64_t& shift : shifts) {
    shift = numbers[at(shift)];
    if (shift < -kMost || shift > kMost) return std::nullopt;
    if (node.op == "Sub") shift = -shift;
  }
  return shifts;
}

}  // namespace piper
