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

// Describes an input. Integers that index a table or name a class have bounds, also where ops move
// them before.
DataInput describe_input(const Graph& graph, ValueId id,
                         const std::vector<std::vector<NodeId>>& readers) {
  const Value& value = graph.value(id);
  DataInput input{.name = value.name, .type = value.type, .batch_dim = value.batch_dim};
  if (value.batch_dim >= 0) input.type.shape[static_cast<size_t>(value.batch_dim)] *= graph.shards;
  Legal legal;
  std::vector<ValueId> open{id};
  std::set<int32_t> seen;
  while (!open.empty()) {
    const ValueId at = open.back();
    open.pop_back();
    if (!seen.insert(at.value).second) continue;
    for (NodeId reader : readers[at.index()]) {
      const Node& node = graph.node(reader);
      const OpDef* def = find_op(node.op);
      const bool moves = def && (def->elements != OpDef::Elements::kMade || def->collective);
      if (moves) open.push_back(node.outputs[0]);
      if (const auto indices = indices_of(graph, node, at)) legal.add(*indices);
    }
  }
  input.low = legal.low(), input.high = legal.high(), input.ignore = legal.ignore();
  return input;
}

// Finds which elements of a sample each op reads as indices.
class RangeFinder {
 public:
  RangeFinder(const Graph& graph, const std::vector<std::vector<NodeId>>& readers)
      : graph_(graph), readers_(readers) {}

  // Returns DataInput::ranges.
  std::vector<int64_t> run(ValueId input) {
    find_reads(input);
    const bool alike = std::ranges::all_of(reads_, [&](const Read& read) {
      Legal one, first;
      one.add(read.indices), first.add(reads_[0].indices);
      return one == first;
    });
    if (alike || num_elements(graph_.value(input).type.shape) > kMost) return {};
    mark_input(graph_.value(input));
    std::vector<Legal> legal(static_cast<size_t>(sample_));
    for (size_t m = 1; m < moves_.size(); ++m)
      if (!follow(m)) return {};
    for (const Read& read : reads_) {
      const std::set<int32_t> elements(moves_[read.move].from.begin(),
                                       moves_[read.move].from.end());
      for (int32_t element : elements) legal[static_cast<size_t>(element)].add(read.indices);
    }
    return runs_of(legal);
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 23;  // elements of an input: more take too long
  // Holds a value that has elements of the input alone.
  struct Move {
    ValueId value;
    size_t of = 0;              // the value that it is made of
    NodeId by = {};             // by what
    std::vector<int32_t> from;  // by element: which of a sample it is
  };
  struct Read {
    size_t move;
    OpDef::Indices indices;
  };

  void find_reads(ValueId input) {
    moves_.push_back({input});
    for (size_t m = 0; m < moves_.size(); ++m) {
      const ValueId value = moves_[m].value;
      for (NodeId reader : readers_[value.index()]) {
        const Node& node = graph_.node(reader);
        const OpDef* def = find_op(node.op);
        if (def && def->elements != OpDef::Elements::kMade)
          moves_.push_back({node.outputs[0], m, reader});
        if (const auto indices = indices_of(graph_, node, value)) reads_.push_back({m, *indices});
      }
    }
  }
  void mark_input(const Value& input) {
    const Shape& shape = input.type.shape;
    const auto dim = input.batch_dim < 0 ? shape.begin() : shape.begin() + input.batch_dim;
    const int64_t rows = input.batch_dim < 0 ? 1 : *dim;
    const auto after = num_elements(Shape(dim + (input.batch_dim < 0 ? 0 : 1), shape.end()));
    const int64_t all = num_elements(shape);
    sample_ = all / std::max<int64_t>(rows, 1);
    for (int64_t i = 0; i < all; ++i)
      moves_[0].from.push_back(static_cast<int32_t>(i / (rows * after) * after + i % after));
  }
  // Finds which elements a value has of the one that it is made of. Returns false for an op that
  // moves them in another way.
  bool follow(size_t m) {
    const Node& node = graph_.node(moves_[m].by);
    const std::vector<int32_t>& from = moves_[moves_[m].of].from;
    const Shape shape = graph_.value(moves_[moves_[m].of].value).type.shape;
    std::vector<int64_t> strides(shape.size(), 1), steps;
    for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
    int64_t first = 0;
    const std::vector<int64_t> starts = node.attrs.integers("starts");
    const std::vector<int64_t> by = node.attrs.integers("steps");
    if (find_op(node.op)->elements == OpDef::Elements::kPermuted)
      for (int64_t dim : node.attrs.integers("perm")) steps.push_back(strides[at(dim)]);
    for (size_t d = 0; d < starts.size(); ++d) {  // of a slice
      first += starts[d] * strides[d];
      steps.push_back((by.empty() ? 1 : by[d]) * strides[d]);
    }
    const Shape& made = graph_.value(moves_[m].value).type.shape;
    if (!steps.empty())
      gather(made, 0, first, steps, from, moves_[m].from);
    else if (num_elements(made) == num_elements(shape))  // another shape
      moves_[m].from = from;
    return std::ssize(moves_[m].from) == num_elements(made);
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
  const std::vector<std::vector<NodeId>>& readers_;
  std::vector<Move> moves_;  // the input first
  std::vector<Read> reads_;
  int64_t sample_ = 0;  // elements of one
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
    if (std::vector<int64_t> ranges = RangeFinder(graph, all).run(input); !ranges.empty())
      found[graph.value(input).name] = std::move(ranges);
  return found;
}

}  // namespace piper
