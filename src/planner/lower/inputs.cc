// Which values each data input may have: what indexes a table must be inside it.
#include <algorithm>
#include <set>

#include "at.h"
#include "piper/ir/ops.h"
#include "piper/planner/lower.h"
#include "place.h"

namespace piper {
namespace {

// Says which integers are legal where several ops read them as indices.
class Legal {
 public:
  // Below 0, indices may count from the end of -1 - extent; of 0, where it is not known.
  void add(const OpDef::Indices& indices) {
    const bool from_end = indices.extent < 0;
    const int64_t extent = from_end ? -1 - indices.extent : indices.extent;
    if (from_end && extent == 0) return;
    low_ = std::max(low_, from_end ? -extent : 0);
    high_ = high_ < 0 ? extent - 1 : std::min(high_, extent - 1);
    if (indices.ignored)
      ignored_.insert(*indices.ignored);
    else
      is_ignored_ = false;
  }
  int64_t low() const { return high_ < 0 ? 0 : low_; }
  int64_t high() const { return high_; }  // below low(): any are
  int64_t ignore() const {
    return is_ignored_ && ignored_.size() == 1 ? *ignored_.begin() : INT64_MIN;
  }
  bool operator==(const Legal& other) const {
    return low() == other.low() && high() == other.high() && ignore() == other.ignore();
  }

 private:
  int64_t low_ = INT64_MIN, high_ = -1;
  std::set<int64_t>
      ignored_;  // by the ops that read it as indices, of which all may ignore a value
  bool is_ignored_ = true;
};

// Returns the indices that a node reads of a value.
std::optional<OpDef::Indices> indices_of(const Graph& graph, const Node& node, ValueId value) {
  const OpDef* def = find_op(node.op);
  if (!def || !def->indices || node.inputs[1] != value) return std::nullopt;
  return def->indices(use_of(graph, node));
}

// Finds the ops that read elements of an input as indices, also where other ops move these before.
class IndexReads {
 public:
  // Describes a value that has elements of the input alone.
  struct Moved {
    ValueId value;
    size_t of = 0;  // the value that it is made of
    NodeId by = {};
  };
  struct Read {
    size_t moved;
    OpDef::Indices indices;
  };

  IndexReads(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, ValueId input)
      : moved{{input}} {
    for (size_t m = 0; m < moved.size(); ++m)
      for (const NodeId reader : readers[moved[m].value.index()]) follow(graph, m, reader);
  }
  // Returns which integers are legal for all reads.
  Legal legal() const {
    Legal all;
    for (const Read& read : reads) all.add(read.indices);
    return all;
  }
  // Returns whether each read has the same legal integers.
  bool are_alike() const {
    const auto legal_for = [](const Read& read) {
      Legal one;
      one.add(read.indices);
      return one;
    };
    return std::ranges::all_of(
        reads, [&](const Read& read) { return legal_for(read) == legal_for(reads[0]); });
  }

  std::vector<Moved> moved;  // the input first
  std::vector<Read> reads;

 private:
  void follow(const Graph& graph, size_t m, NodeId reader) {
    const Node& node = graph.node(reader);
    const OpDef* def = find_op(node.op);
    if (def && (def->elements != OpDef::Elements::kMade || def->collective) &&
        seen_.insert(node.outputs[0]).second)
      moved.push_back({node.outputs[0], m, reader});
    if (const auto indices = indices_of(graph, node, moved[m].value))
      reads.push_back({m, *indices});
  }

  std::set<ValueId> seen_;
};

// Describes an input. Integers that index a table or name a class have bounds.
DataInput describe_input(const Graph& graph, ValueId id,
                         const std::vector<std::vector<NodeId>>& readers) {
  const Value& value = graph.value(id);
  DataInput input{.name = value.name, .type = value.type, .batch_dim = value.batch_dim};
  if (value.batch_dim >= 0) input.type.shape[static_cast<size_t>(value.batch_dim)] *= graph.shards;
  const Legal legal = IndexReads(graph, readers, id).legal();
  input.low = legal.low(), input.high = legal.high(), input.ignore = legal.ignore();
  return input;
}

// Finds which elements of a sample each op reads as indices.
class RangeFinder {
 public:
  RangeFinder(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, ValueId input)
      : graph_(graph), found_(graph, readers, input), elements_(found_.moved.size()) {}

  // Returns DataInput::ranges.
  std::vector<int64_t> run() {
    const Value& input = graph_.value(found_.moved[0].value);
    if (found_.are_alike() || num_elements(input.type.shape) > kMost) return {};
    mark_input(input);
    for (size_t m = 1; m < found_.moved.size(); ++m)
      if (!follow(m)) return {};
    std::vector<Legal> legal(static_cast<size_t>(sample_));
    for (const IndexReads::Read& read : found_.reads) {
      const std::set<int32_t> elements(elements_[read.moved].begin(), elements_[read.moved].end());
      for (int32_t element : elements) legal[static_cast<size_t>(element)].add(read.indices);
    }
    return runs_of(legal);
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 23;  // elements of an input: more take too long

  void mark_input(const Value& input) {
    const Shape& shape = input.type.shape;
    const auto dim = input.batch_dim < 0 ? shape.begin() : shape.begin() + input.batch_dim;
    const int64_t rows = input.batch_dim < 0 ? 1 : *dim;
    const auto after = num_elements(Shape(dim + (input.batch_dim < 0 ? 0 : 1), shape.end()));
    const int64_t all = num_elements(shape);
    sample_ = all / std::max<int64_t>(rows, 1);
    for (int64_t i = 0; i < all; ++i)
      elements_[0].push_back(static_cast<int32_t>(i / (rows * after) * after + i % after));
  }
  // Says where elements lie among those that they are made of; without steps, in the same order.
  struct Strided {
    int64_t first = 0;
    std::vector<int64_t> steps = {};
  };
  static Strided moved_by(const Node& node, const Shape& from) {
    std::vector<int64_t> strides(from.size(), 1);
    for (size_t d = from.size(); d-- > 1;) strides[d - 1] = strides[d] * from[d];
    Strided moved;
    if (find_op(node.op)->elements == OpDef::Elements::kPermuted)
      for (int64_t dim : node.attrs.integers("perm")) moved.steps.push_back(strides[at(dim)]);
    const std::vector<int64_t> starts = node.attrs.integers("starts");
    const std::vector<int64_t> by = node.attrs.integers("steps");
    for (size_t d = 0; d < starts.size(); ++d) {  // of a slice
      moved.first += starts[d] * strides[d];
      moved.steps.push_back((by.empty() ? 1 : by[d]) * strides[d]);
    }
    return moved;
  }
  // Finds which elements a value has of the one that it is made of. Returns false for an op that
  // moves them in another way.
  bool follow(size_t m) {
    const IndexReads::Moved& moved = found_.moved[m];
    const std::vector<int32_t>& from = elements_[moved.of];
    const Shape& shape = graph_.value(found_.moved[moved.of].value).type.shape;
    const Shape& made = graph_.value(moved.value).type.shape;
    const auto [first, steps] = moved_by(graph_.node(moved.by), shape);
    if (!steps.empty())
      gather(made, 0, first, steps, from, elements_[m]);
    else if (num_elements(made) == num_elements(shape))  // another shape
      elements_[m] = from;
    return std::ssize(elements_[m]) == num_elements(made);
  }
  static void gather(const Shape& shape, size_t dim, int64_t first,
                     const std::vector<int64_t>& steps, const std::vector<int32_t>& from,
                     std::vector<int32_t>& to) {
    if (dim == shape.size()) return to.push_back(from[at(first)]);
    for (int64_t i = 0; i < shape[dim]; ++i)
      gather(shape, dim + 1, first + i * steps[dim], steps, from, to);
  }
  static std::vector<int64_t> runs_of(const std::vector<Legal>& legal) {
    std::vector<int64_t> runs;
    for (size_t e = 0; e < legal.size(); ++e) {
      if (e > 0 && legal[e] == legal[e - 1])
        ++runs[runs.size() - 4];
      else
        runs.insert(runs.end(), {1, legal[e].low(), legal[e].high(), legal[e].ignore()});
    }
    return runs;
  }

  const Graph& graph_;
  const IndexReads found_;
  std::vector<std::vector<int32_t>> elements_;  // by moved value: which of a sample each is
  int64_t sample_ = 0;                          // elements of one
};

}  // namespace

void describe_needs(RoleProgram& role, const Dag& dag,
                    const std::vector<std::vector<NodeId>>& readers) {
  std::set<std::string_view> used;
  for (const Instruction& instruction : role.body)
    if (instruction.kind == InstructionKind::kInput) used.insert(instruction.input);
  for (ValueId input : dag.graph.inputs)
    if (input != dag.graph.sample && used.count(dag.graph.value(input).name))
      role.inputs.push_back(describe_input(dag.graph, input, readers));
}

InputRanges find_ranges(const Graph& graph) {
  const std::vector<std::vector<NodeId>> all = readers(graph);
  InputRanges found;
  for (ValueId input : graph.inputs)
    if (std::vector<int64_t> ranges = RangeFinder(graph, all, input).run(); !ranges.empty())
      found[graph.value(input).name] = std::move(ranges);
  return found;
}

}  // namespace piper
