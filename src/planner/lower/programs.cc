// Makes the programs of compute tasks, shared by content.
#include "programs.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "at.h"
#include "piper/ir/ops.h"
#include "piper/planner/make_dag.h"

namespace piper {

namespace {

// Returns the constants of one element, which no axis cuts; except the keys of random ops, which
// would be the only difference between equal layers.
std::vector<bool> find_literals(const Graph& graph) {
  std::vector<bool> literal;
  for (const Value& value : graph.values)
    literal.push_back(value.kind == ValueKind::kConstant && num_elements(value.type.shape) <= 1 &&
                      value.data.data != nullptr);
  for (const Node& node : graph.nodes) {
    const OpDef* def = find_op(node.op);
    if (def && def->draws >= 0) literal[node.inputs[at(def->draws)].index()] = false;
    for (ValueId input : node.inputs)
      if (def && def->collective && input.valid()) literal[input.index()] = false;
  }
  return literal;
}

// Holds what the segments of a task have in common, most of it by value.
struct ChunkUnderWay {
  const Dag& dag;
  const Task& task;
  const std::vector<bool>& literal;
  const std::vector<bool>& first;
  ChunkPrograms& result;
  std::unordered_map<int32_t, ValueId> same_memory;
  // Some node reads it, or it leaves the chunk: its contribution cannot be made in the accumulator.
  std::unordered_set<int32_t> read = {};
  std::unordered_map<int32_t, std::vector<int32_t>> sums = {};  // accumulates it contributes to
  std::vector<bool> made_here, read_elsewhere;                  // in this segment; in another one
  std::unordered_map<int32_t, int32_t> inner_index = {};
};

// Builds one program; arguments are numbered in order of first appearance, so that equal layers get
// equal programs.
class SegmentBuilder {
 public:
  explicit SegmentBuilder(ChunkUnderWay& of)
      : of_(of), graph_(of.dag.graph), chunk_(of.dag.chunks[of.task.chunk.index()]) {}

  std::pair<Program, Segment> build(const std::vector<NodeId>& nodes) {
    for (NodeId id : nodes) add_node(graph_.node(id));
    finish();
    return {std::move(program_), std::move(segment_)};
  }

  Segment build_collective(const ChunkCollective& collective) {
    Segment segment;
    segment.collective = collective;
    for (NodeId id : collective.nodes)
      for (const auto* values : {&graph_.node(id).inputs, &graph_.node(id).outputs})
        for (ValueId value : *values) segment.args.push_back(*argument(canonical(value)));
    return segment;
  }

 private:
  struct Slot {
    TensorType type;
    std::optional<SegmentArg> arg;
    std::string literal;
    bool is_literal = false, read = false, written = false;
  };

  ValueId canonical(ValueId id) const {
    for (auto it = of_.same_memory.find(id.value); it != of_.same_memory.end();
         it = of_.same_memory.find(id.value))
      id = it->second;
    return id;
  }
  static int32_t position(const std::vector<ValueId>& list, ValueId id) {
    const auto it = std::lower_bound(list.begin(), list.end(), id);
    return it != list.end() && *it == id ? static_cast<int32_t>(it - list.begin()) : -1;
  }
  int32_t new_slot(TensorType type) {
    slots_.emplace_back();
    slots_.back().type = std::move(type);
    return static_cast<int32_t>(slots_.size() - 1);
  }

  // Returns how a value reaches this segment, or leaves it; nothing for values that stay inside.
  std::optional<SegmentArg> argument(ValueId id) {
    using Kind = SegmentArg::Kind;
    if (const int32_t r = position(chunk_.reads, id); r >= 0) return SegmentArg{Kind::kRead, r};
    if (const int32_t w = position(chunk_.writes, id); w >= 0) return SegmentArg{Kind::kWrite, w};
    if (!of_.made_here[id.index()] || of_.read_elsewhere[id.index()]) {
      auto [it, is_new] =
          of_.inner_index.try_emplace(id.value, static_cast<int32_t>(of_.result.inner.size()));
      if (is_new) of_.result.inner.push_back(id);
      return SegmentArg{Kind::kInner, it->second};
    }
    return std::nullopt;
  }

  int32_t slot_of(ValueId raw) {
    const ValueId id = canonical(raw);
    const auto known = slot_of_value_.find(id.value);
    if (known != slot_of_value_.end()) return known->second;
    const Value& value = graph_.value(id);
    const int32_t slot = new_slot(value.type);
    slot_of_value_[id.value] = slot;
    Slot& s = slots_[at(slot)];
    if (of_.literal[id.index()]) {
      s.is_literal = true;
      s.literal = std::string(as_text(value.data.span()));
    } else {
      s.arg = argument(id);
    }
    return slot;
  }

  std::vector<int32_t> sums_of(ValueId id) const {
    const auto found = of_.sums.find(id.value);
    return found == of_.sums.end() ? std::vector<int32_t>() : found->second;
  }

  int32_t sum_slot(int32_t a) {
    segment_.sums.push_back(a);
    const int32_t slot = new_slot(graph_.value(of_.task.accumulates[at(a)].contribution).type);
    slots_[at(slot)].arg = SegmentArg{SegmentArg::Kind::kSum, a};
    return slot;
  }

  void emit(std::string op, Attrs attrs, std::vector<int32_t> inputs,
            std::vector<int32_t> outputs) {
    for (int32_t i : inputs)
      if (i >= 0 && !slots_[at(i)].written) slots_[at(i)].read = true;
    for (int32_t o : outputs) slots_[at(o)].written = true;
    program_.ops.push_back(
        {std::move(op), std::move(attrs), std::move(inputs), std::move(outputs)});
  }

  void count(const Node& node) {
    Work& work = program_.work;
    ++work.ops;
    const OpDef* def = find_op(node.op);
    const ValueId made = *std::find_if(node.outputs.begin(), node.outputs.end(),
                                       [](ValueId output) { return output.valid(); });
    work.recomputed += of_.dag.variants.is_copy(made);
    if (def && def->cost && def->cost(use_of(graph_, node)).is_matmul)
      ++products_[static_cast<size_t>(graph_.value(node.inputs[0]).type.dtype)];
  }

  // Returns whether the rank has one element of some dim, as its block: moving it past others would
  // be only a view here, but not for code that follows the blocks.
  static bool has_single_block(const Value& value) {
    return std::any_of(value.over.begin(), value.over.end(), [&](const AxisLayout& lies) {
      return lies.layout.kind == LayoutKind::kSharded && value.type.shape[at(lies.layout.dim)] == 1;
    });
  }

  // Returns pairs of mesh axis and dim, for each axis that leaves a rank one element of each
  // stretch of the dim. After a Reshape the shapes that ranks have do not tell which dim is cut.
  //   Of f32[2,8], cut at dim 1, two ranks have [2,4]; of the same as [4,4], cut at dim 0, too.
  static std::vector<int64_t> single_blocks(const Value& value) {
    std::vector<int64_t> dims;
    for (const AxisLayout& lies : value.over)
      if (lies.layout.kind == LayoutKind::kSharded && lies.layout.outer > 1 &&
          value.type.shape[at(lies.layout.dim)] <= lies.layout.outer)
        dims.insert(dims.end(), {lies.axis, lies.layout.dim});
    return dims;
  }

  // Returns the attributes of the op. The extent of the whole dim is one of them only where the op
  // works on a part: an op made for a part may have an operand that was put together again.
  Attrs attrs_of(const Node& node) const {
    const OpDef* def = find_op(node.op);
    const auto whole = std::ranges::find(def->attributes, "whole", &OpAttribute::name);
    const bool is_read = whole != def->attributes.end() &&
                         (!whole->is_read || whole->is_read(*def, use_of(graph_, node)));
    Attrs attrs;
    for (const auto& [name, value] : node.attrs.items())
      if (name != "whole" || is_read) attrs.set(name, value);
    return attrs;
  }

  void add_node(const Node& node) {
    count(node);
    std::vector<int32_t> inputs, outputs;
    for (ValueId input : node.inputs) inputs.push_back(input.valid() ? slot_of(input) : -1);
    struct Later {
      int32_t sum, into, from;  // slots
    };
    std::vector<Later> later;
    Attrs attrs = attrs_of(node);
    for (ValueId output : node.outputs) {
      const std::vector<int32_t> sums = sums_of(output);
      const bool stays = sums.empty() || of_.read.contains(output.value);
      size_t s = 0;
      int32_t slot = -1;
      if (!stays && of_.first[at(sums[0])]) {
        slot = sum_slot(sums[s++]);
      } else if (!stays && sums.size() == 1 && node.op == "MatMul" && inputs.size() == 2) {
        // The product is added where it is made: one pass over the accumulator less. Of several
        // sums none takes what another one holds already.
        slot = sum_slot(sums[s++]);
        attrs.set("accumulate", int64_t{1});
        inputs.push_back(slot);
      } else {
        slot = slot_of(output);
      }
      slot_of_value_[canonical(output).value] = slot;
      outputs.push_back(slot);
      // They are added here, so that args have one order whether something has been added before or
      // not.
      for (; s < sums.size(); ++s) later.push_back({sums[s], sum_slot(sums[s]), slot});
    }
    if (node.op == "Transpose" && has_single_block(graph_.value(node.outputs[0])))
      attrs.set("blocks", int64_t{1});
    if (node.op == "Reshape")
      if (auto dims = single_blocks(graph_.value(node.outputs[0])); !dims.empty())
        attrs.set("blocks", std::move(dims));
    emit(node.op, std::move(attrs), std::move(inputs), outputs);
    for (const auto& [sum, into, slot] : later) {
      if (of_.first[at(sum)]) {
        Attrs shape;
        shape.set("shape", slots_[at(slot)].type.shape);
        emit("Reshape", shape, {slot}, {into});
      } else {
        emit("Add", {}, {into, slot}, {into});
      }
    }
  }

  // Finishes a program: numbers arguments first, then literals and locals, each in order of
  // appearance.
  void finish() {
    std::vector<int32_t> number(slots_.size(), -1);
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (!slots_[s].arg) continue;
      number[s] = static_cast<int32_t>(program_.values.size());
      program_.values.push_back(slots_[s].type);
      program_.arg_read.push_back(slots_[s].read);
      program_.arg_written.push_back(slots_[s].written);
      segment_.args.push_back(*slots_[s].arg);
    }
    for (int32_t sum : segment_.sums)
      for (size_t a = 0; a < segment_.args.size(); ++a)
        if (segment_.args[a].kind == SegmentArg::Kind::kSum && segment_.args[a].index == sum)
          segment_.sum_args.push_back(static_cast<int32_t>(a));
    program_.num_args = static_cast<int32_t>(program_.values.size());
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].arg) continue;
      number[s] = static_cast<int32_t>(program_.values.size());
      program_.values.push_back(slots_[s].type);
      if (slots_[s].is_literal) program_.literals.emplace_back(number[s], slots_[s].literal);
    }
    for (ProgramOp& op : program_.ops) {
      for (int32_t& i : op.inputs)
        if (i >= 0) i = number[at(i)];
      for (int32_t& o : op.outputs) o = number[at(o)];
    }
    program_.label = chunk_.name;
    for (size_t d = 0; d < products_.size(); ++d)
      if (products_[d] > 0)
        program_.work.products.emplace_back(static_cast<DType>(d), products_[d]);
  }

  ChunkUnderWay& of_;
  const Graph& graph_;
  const Chunk& chunk_;
  std::vector<Slot> slots_;
  std::unordered_map<int32_t, int32_t> slot_of_value_;
  Program program_;
  Segment segment_;
  std::array<int64_t, kNumDTypes> products_{};  // by type
};

}  // namespace

ProgramPool::ProgramPool(const Dag& dag)
    : dag_(dag),
      literal_(find_literals(dag.graph)),
      by_chunk_(dag.chunks.size()),
      made_(dag.cells.size()) {}

const ChunkPrograms& ProgramPool::of_task(const Task& task, const std::vector<bool>& first,
                                          const std::vector<ChunkCollective>& collectives) {
  const auto [known, is_new] = by_chunk_[task.chunk.index()].try_emplace({first, collectives});
  if (is_new) build(task, known->first, known->second);
  return known->second;
}

void ProgramPool::share() {
  for (std::vector<Made>& of_cell : made_) {
    for (Made& made : of_cell) {
      Segment& segment = *made.segment;
      segment.program = add(std::move(made));
    }
    of_cell.clear();
  }
}

void ProgramPool::build(const Task& task, const Key& key, ChunkPrograms& result) {
  const auto& [first, collectives] = key;
  const Graph& graph = dag_.graph;
  const Chunk& chunk = dag_.chunks[task.chunk.index()];
  const auto segments = cut_into_segments(graph, chunk.nodes, collectives);

  std::vector<int32_t> segment_of(graph.nodes.size(), -1);
  for (size_t s = 0; s < segments.size(); ++s)
    for (NodeId id : segments[s]) segment_of[id.index()] = static_cast<int32_t>(s);
  const std::vector<bool> none(graph.values.size());
  ChunkUnderWay of{.dag = dag_,
                   .task = task,
                   .literal = literal_,
                   .first = first,
                   .result = result,
                   .same_memory = find_same_memory(dag_, task),
                   .made_here = none,
                   .read_elsewhere = none};
  for (size_t a = 0; a < task.accumulates.size(); ++a)
    of.sums[task.accumulates[a].contribution.value].push_back(static_cast<int32_t>(a));
  for (NodeId id : chunk.nodes)
    for (ValueId input : graph.node(id).inputs) {
      if (!input.valid()) continue;
      of.read.insert(input.value);
      const NodeId producer = graph.value(input).producer;
      if (producer.valid() && segment_of[producer.index()] != segment_of[id.index()])
        of.read_elsewhere[input.index()] = true;
    }
  for (ValueId value : chunk.writes) of.read.insert(value.value);

  result.first = first;
  result.segments.reserve(segments.size());  // their places do not change
  for (const auto& nodes : segments) {
    SegmentBuilder builder(of);
    if (is_collective(graph.node(nodes[0]))) {
      const auto known = std::find_if(
          collectives.begin(), collectives.end(),
          [&](const ChunkCollective& each) { return each.nodes.front() == nodes.front(); });
      result.segments.push_back(
          builder.build_collective(known == collectives.end() ? ChunkCollective{nodes} : *known));
      continue;
    }
    for (NodeId id : nodes)
      for (ValueId output : graph.node(id).outputs) of.made_here[output.index()] = true;
    auto [program, segment] = builder.build(nodes);
    for (NodeId id : nodes)
      for (ValueId output : graph.node(id).outputs) of.made_here[output.index()] = false;
    const std::string_view layer = layer_of(graph.node(nodes.front()).scope);
    if (!layer.empty()) program.label += fmt::format(" {}", layer);
    result.segments.push_back(std::move(segment));
    std::string digest = program_digest(program);
    made_[at(task.cell)].push_back(
        {std::move(program), std::move(digest), &result.segments.back()});
  }
}

int32_t ProgramPool::add(Made made) {
  const auto [it, is_new] =
      by_digest_.try_emplace(std::move(made.digest), static_cast<int32_t>(programs_.size()));
  if (!is_new) return it->second;
  programs_.push_back(std::move(made.program));
  return it->second;
}

}  // namespace piper
