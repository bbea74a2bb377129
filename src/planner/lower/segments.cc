// Cuts the nodes of a chunk at its collectives.
#include "segments.h"

#include <algorithm>
#include <queue>
#include <span>
#include <unordered_set>

#include "at.h"
#include "piper/ir/ops.h"
#include "piper/planner/make_dag.h"

namespace piper {
namespace {

using Nodes = std::vector<NodeId>;

// Orders the nodes of a chunk as its collectives ask for, and cuts them into segments.
class Cutter {
 public:
  Cutter(const Graph& graph, const Nodes& nodes, const std::vector<ChunkCollective>& collectives)
      : graph_(graph), collectives_(collectives), nodes_(nodes), collective_of_(nodes.size(), -1) {
    for (size_t i = 0; i < nodes.size() && !collectives.empty(); ++i) place_[nodes[i].value] = i;
    for (size_t m = 0; m < collectives.size(); ++m)
      for (NodeId id : collectives[m].nodes)
        collective_of_[place_.at(id.value)] = static_cast<int>(m);
  }

  std::vector<Nodes> run() {
    if (!collectives_.empty()) delay_past_collectives(in_messages());
    std::vector<Nodes> segments = cut();
    for (size_t s = 0; s < segments.size(); ++s) hoist_independent(segments, s);
    return segments;
  }

 private:
  // Calls `use` with the places of the nodes that make what node `i` reads.
  template <class Use>
  void for_each_maker(size_t i, const Use& use) const {
    for (ValueId input : graph_.node(nodes_[i]).inputs) {
      if (!input.valid()) continue;
      const auto maker = place_.find(graph_.value(input).producer.value);
      if (maker != place_.end()) use(maker->second);
    }
  }
  const ChunkCollective* collective(size_t i) const {
    return collective_of_[i] < 0 ? nullptr : &collectives_[at(collective_of_[i])];
  }
  bool goes_on(size_t i, size_t next) const {
    return collective_of_[i] >= 0 && collective_of_[i] == collective_of_[next];
  }
  const ChunkCollective* collective(NodeId id) const {
    return collectives_.empty() ? nullptr : collective(place_.at(id.value));
  }
  bool has_own_stream(size_t i) const { return collective(i) && collective(i)->stream != 0; }

  // Places, the nodes of a message one after the other: else in the order given, as far as all
  // that a message reads is made before it.
  std::vector<size_t> in_messages() const {
    const size_t n = nodes_.size();
    std::vector<size_t> leader(n), missing(n), order;
    std::vector<std::vector<size_t>> members(n), readers(n);
    std::vector<int64_t> first(collectives_.size(), -1);
    for (size_t i = 0; i < n; ++i) {
      leader[i] = i;
      if (const int m = collective_of_[i]; m >= 0) {
        if (first[at(m)] < 0) first[at(m)] = static_cast<int64_t>(i);
        leader[i] = at(first[at(m)]);
      }
      members[leader[i]].push_back(i);
      for_each_maker(i, [&](size_t maker) {
        readers[leader[maker]].push_back(leader[i]);
        ++missing[leader[i]];
      });
    }
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t i = 0; i < n; ++i)
      if (leader[i] == i && missing[i] == 0) ready.push(i);
    while (!ready.empty()) {
      const size_t i = ready.top();
      ready.pop();
      order.insert(order.end(), members[i].begin(), members[i].end());
      for (size_t reader : readers[i])
        if (--missing[reader] == 0) ready.push(reader);
    }
    PIPER_CHECK(order.size() == n, "collectives that need each other are one message");
    return order;
  }

  bool ends_message(const std::vector<size_t>& order, size_t p) const {
    return p + 1 == order.size() || !goes_on(order[p], order[p + 1]);
  }
  // Returns how many messages have a stream; numbers these from 1 and says of each node which one
  // needs it first, or one past the last.
  size_t find_needs(const std::vector<size_t>& order, std::vector<size_t>& needed_by) const {
    size_t count = 0;
    for (size_t p = 0; p < order.size(); ++p)
      count += has_own_stream(order[p]) && ends_message(order, p) ? 1 : 0;
    needed_by.assign(nodes_.size(), count + 1);
    size_t number = count + 1;
    for (size_t p = order.size(); p > 0;) {
      const size_t end = p--;  // of a message, whose nodes are needed together
      while (p > 0 && goes_on(order[p - 1], order[p])) --p;
      const std::span<const size_t> message(order.begin() + static_cast<std::ptrdiff_t>(p),
                                            end - p);
      size_t first = count + 1;
      for (size_t i : message) first = std::min(first, needed_by[i]);
      if (has_own_stream(message[0])) first = --number;
      for (size_t i : message) {
        needed_by[i] = first;
        for_each_maker(i, [&](size_t m) { needed_by[m] = std::min(needed_by[m], first); });
      }
    }
    return count;
  }

  // Holds back what the next collective with a stream does not need, to run beside it: products for
  // the gradients of weights, after the sum of an input's gradient. What a later one needs waits
  // until that is the next.
  void delay_past_collectives(const std::vector<size_t>& order) {
    std::vector<size_t> needed_by, now, held;
    std::vector<bool> is_held(nodes_.size());
    const size_t count = find_needs(order, needed_by);
    const auto may_run = [&](size_t i, size_t next) {
      bool may = next > count || needed_by[i] <= next || needed_by[i] > count;
      for_each_maker(i, [&](size_t maker) { may = may && !is_held[maker]; });
      return may;
    };
    size_t next = 1;
    for (size_t p = 0; p < order.size(); ++p) {
      const size_t i = order[p];
      is_held[i] = next <= count && needed_by[i] > next;
      (is_held[i] ? held : now).push_back(i);
      if (!has_own_stream(i) || !ends_message(order, p)) continue;
      ++next;
      std::vector<size_t> stay;
      for (size_t from = 0, to = 0; from < held.size(); from = to) {
        while (!ends_message(held, to)) ++to;
        ++to;
        const std::span<const size_t> message(held.data() + from, to - from);
        const bool run = std::ranges::all_of(message, [&](size_t k) { return may_run(k, next); });
        for (size_t each : message) is_held[each] = !run;
        (run ? now : stay).insert((run ? now : stay).end(), message.begin(), message.end());
      }
      held = std::move(stay);
    }
    order_.clear();
    for (size_t i : readers_last(now)) order_.push_back(nodes_[i]);
  }

  // Puts what does not need a collective with a stream before what does, up to the next collective,
  // to run beside it: an expert that all tokens share, beside what comes back from the others.
  std::vector<size_t> readers_last(std::vector<size_t> order) const {
    std::vector<size_t> needs(nodes_.size());  // the last collective, by its place + 1
    for (size_t p = 0; p < order.size(); ++p) {
      if (!has_own_stream(order[p])) continue;
      const size_t number = p + 1;
      needs[order[p]] = number;
      for (; p + 1 < order.size() && goes_on(order[p], order[p + 1]); ++p)
        needs[order[p + 1]] = number;
      const auto begin = order.begin() + static_cast<std::ptrdiff_t>(p) + 1;
      const auto end = std::find_if(
          begin, order.end(), [&](size_t i) { return is_collective(graph_.node(nodes_[i])); });
      for (auto i = begin; i != end; ++i)
        for_each_maker(*i, [&](size_t maker) {
          if (needs[maker] == number) needs[*i] = number;
        });
      std::stable_partition(begin, end, [&](size_t i) { return needs[i] != number; });
    }
    return order;
  }

  std::vector<Nodes> cut() const {
    std::vector<Nodes> segments;
    std::string_view current;
    std::unordered_set<int32_t> under_way;  // values that collectives make beside what follows
    NodeId before;
    for (NodeId id : collectives_.empty() ? nodes_ : order_) {
      const Node& node = graph_.node(id);
      const bool alone = is_collective(node);
      bool begins = segments.empty() || alone || is_collective(graph_.node(before));
      for (ValueId input : node.inputs)
        if (input.valid() && under_way.erase(input.value) > 0) begins = true;
      const std::string_view layer = layer_of(node.scope);
      if (!layer.empty() && !current.empty() && layer != current) begins = true;
      if (!layer.empty()) current = layer;
      if (before.valid() && collective(id) && collective(id) == collective(before)) begins = false;
      if (begins) segments.emplace_back();
      segments.back().push_back(id);
      if (collective(id))
        for (ValueId output : node.outputs) under_way.insert(output.value);
      before = id;
    }
    return segments;
  }

  void hoist_independent(std::vector<Nodes>& segments, size_t s) const {
    const ChunkCollective* own = collective(segments[s][0]);
    if (!own || own->distance == 0) return;
    std::unordered_set<int32_t> makers;
    for (NodeId id : segments[s])
      for_each_maker(place_.at(id.value),
                     [&](size_t maker) { makers.insert(nodes_[maker].value); });
    size_t to = s;
    for (int32_t passed = 0; to > 0; --to) {
      const Nodes& other = segments[to - 1];
      const ChunkCollective* ahead = collective(other[0]);
      const bool makes = std::any_of(other.begin(), other.end(),
                                     [&](NodeId id) { return makers.contains(id.value); });
      if (makes || (ahead && ahead->distance > 0)) break;
      if (!is_collective(graph_.node(other[0])) && passed++ == own->distance) break;
    }
    const auto begin = segments.begin();
    std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(s),
                begin + static_cast<std::ptrdiff_t>(s + 1));
  }

  const Graph& graph_;
  const std::vector<ChunkCollective>& collectives_;
  const Nodes& nodes_;
  std::vector<int> collective_of_;             // by place; -1: none
  std::unordered_map<int32_t, size_t> place_;  // by node: in nodes_
  Nodes order_;
};

// Lets the chunk make what only one all-reduce reads in the memory of the result.
void add_reduced_in_place(const Graph& graph, const Chunk& chunk,
                          std::unordered_map<int32_t, ValueId>& same) {
  std::unordered_map<int32_t, int32_t> reads;
  for (NodeId id : chunk.nodes)
    for (ValueId input : graph.node(id).inputs) ++reads[input.value];
  for (NodeId id : chunk.nodes) {
    const Node& node = graph.node(id);
    if (node.op != "AllReduce" && node.op != "AllReduceMax") continue;
    const ValueId from = node.inputs[0];
    const auto is_in = [&](const std::vector<ValueId>& list) {
      return std::binary_search(list.begin(), list.end(), from);
    };
    if (reads[from.value] == 1 && !is_in(chunk.reads) && !is_in(chunk.writes))
      same[from.value] = node.outputs[0];
  }
}

// Lets the gradient of logits overwrite them, if only this chunk and the one that made them know
// them.
void add_gradients_of_logits(const Dag& dag, const Chunk& chunk,
                             std::unordered_map<int32_t, ValueId>& same) {
  for (NodeId id : chunk.nodes) {
    const Node& node = dag.graph.node(id);
    if (node.op != "CrossEntropyGrad") continue;
    const ValueId logits = node.inputs[0], made = node.outputs[0];
    const NodeId maker = dag.graph.value(logits).producer;
    const auto knows = [&](const Chunk& other) {
      return std::binary_search(other.reads.begin(), other.reads.end(), logits);
    };
    const auto reads = std::count_if(chunk.nodes.begin(), chunk.nodes.end(), [&](NodeId reader) {
      const auto& inputs = dag.graph.node(reader).inputs;
      return std::find(inputs.begin(), inputs.end(), logits) != inputs.end();
    });
    if (maker.valid() && reads == 1 && knows(chunk) &&
        std::count_if(dag.chunks.begin(), dag.chunks.end(), knows) == 1 &&
        !std::binary_search(chunk.writes.begin(), chunk.writes.end(), made))
      same.emplace(made.value, logits);
  }
}

// Its own block of a parameter is updated where it is.
void add_updated_blocks(const Graph& graph, const Chunk& chunk,
                        std::unordered_map<int32_t, ValueId>& same) {
  std::unordered_map<int32_t, int32_t> blocks;  // and how often they are read
  for (NodeId id : chunk.nodes) {
    const Node& node = graph.node(id);
    for (ValueId input : node.inputs)
      if (const auto block = blocks.find(input.value); block != blocks.end()) ++block->second;
    if (node.op == "OwnBlock") blocks.emplace(node.outputs[0].value, 0);
  }
  for (NodeId id : chunk.nodes) {
    const Node& node = graph.node(id);
    const OpDef* def = find_op(node.op);
    if (node.pass != Pass::kU || !def) continue;
    for (const auto& [to, from] : def->in_place) {
      if (at(to) >= node.outputs.size() || at(from) >= node.inputs.size())
        continue;  // an operand that may be absent
      const ValueId made = node.outputs[at(to)], read = node.inputs[at(from)];
      const auto block = blocks.find(read.value);
      if (block != blocks.end() && block->second == 1 &&
          !std::binary_search(chunk.writes.begin(), chunk.writes.end(), made))
        same.emplace(made.value, read);
    }
  }
}

}  // namespace

ItemId root_of(const Dag& dag, ItemId item) {
  while (dag.items[item.index()].alias.valid()) item = dag.items[item.index()].alias;
  return item;
}

bool is_over_cells(const Dag& dag, const std::vector<int32_t>& axes) {
  return std::any_of(axes.begin(), axes.end(),
                     [&](int32_t axis) { return dag.mesh[at(axis)].tells_cells_apart(); });
}

bool is_collective(const Node& node) {
  const OpDef* def = find_op(node.op);
  return def && def->collective;
}

std::vector<std::vector<NodeId>> cut_into_segments(
    const Graph& graph, const std::vector<NodeId>& nodes,
    const std::vector<ChunkCollective>& collectives) {
  return Cutter(graph, nodes, collectives).run();
}

std::unordered_map<int32_t, ValueId> find_same_memory(const Dag& dag, const Task& task) {
  const Chunk& chunk = dag.chunks[task.chunk.index()];
  std::unordered_map<int32_t, ValueId> read, same;  // by root item; by value written
  for (size_t r = 0; r < task.reads.size(); ++r)
    read[root_of(dag, task.reads[r]).value] = chunk.reads[r];
  for (size_t w = 0; w < task.writes.size(); ++w) {
    if (!dag.items[task.writes[w].index()].alias.valid()) continue;
    const auto found = read.find(root_of(dag, task.writes[w]).value);
    if (found != read.end()) same[chunk.writes[w].value] = found->second;
  }
  add_reduced_in_place(dag.graph, chunk, same);
  add_updated_blocks(dag.graph, chunk, same);
  add_gradients_of_logits(dag, chunk, same);
  return same;
}

}  // namespace piper
