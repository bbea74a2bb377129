// What recompute keeps: a minimum cut between what is cheap to keep and cheap to make again.
#include "keep.h"

#include <algorithm>
#include <limits>

#include "piper/ir/ops.h"

namespace piper {
namespace {

constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

// Maximum flow by blocking flows over levels (Dinic 1970).
class Network {
 public:
  int32_t add_node() {
    edges_of_.emplace_back();
    return static_cast<int32_t>(edges_of_.size()) - 1;
  }
  void add_edge(int32_t from, int32_t to, int64_t capacity) {
    edges_of_[at(from)].push_back(static_cast<int32_t>(edges_.size()));
    edges_.push_back({to, capacity});
    edges_of_[at(to)].push_back(static_cast<int32_t>(edges_.size()));
    edges_.push_back({from, 0});
  }
  // Returns by node whether there is a way from it to the sink along edges with capacity left.
  std::vector<bool> leading_to(int32_t sink) const {
    std::vector<bool> sinks(edges_of_.size());
    std::vector<int32_t> open{sink};
    sinks[at(sink)] = true;
    while (!open.empty()) {
      const int32_t node = open.back();
      open.pop_back();
      for (int32_t e : edges_of_[at(node)]) {
        const int32_t from = edges_[at(e)].to;
        if (sinks[at(from)] || edges_[at(e ^ 1)].left == 0) continue;
        sinks[at(from)] = true;
        open.push_back(from);
      }
    }
    return sinks;
  }

  // Returns by node whether it is on the source's side of a minimum cut, the one nearest to the
  // sink.
  std::vector<bool> cut(int32_t source, int32_t sink) {
    while (find_levels(source, sink)) {
      next_.assign(edges_of_.size(), 0);
      while (push(source, sink)) {
      }
    }
    std::vector<bool> sinks = leading_to(sink);
    sinks.flip();
    return sinks;
  }

 private:
  struct Edge {
    int32_t to = 0;
    int64_t left = 0;  // capacity
  };
  static size_t at(int32_t index) { return static_cast<size_t>(index); }

  bool find_levels(int32_t source, int32_t sink) {
    level_.assign(edges_of_.size(), -1);
    level_[at(source)] = 0;
    std::vector<int32_t> queue{source};
    for (size_t i = 0; i < queue.size(); ++i)
      for (int32_t e : edges_of_[at(queue[i])]) {
        const Edge& edge = edges_[at(e)];
        if (edge.left == 0 || level_[at(edge.to)] >= 0) continue;
        level_[at(edge.to)] = level_[at(queue[i])] + 1;
        queue.push_back(edge.to);
      }
    return level_[at(sink)] >= 0;
  }
  // Returns one path along the levels, by its edges; without recursion, for chains of ops are long.
  // Empty: there is none.
  std::vector<int32_t> next_path(int32_t source, int32_t sink) {
    std::vector<int32_t> path;  // of edges
    int32_t node = source;
    while (node != sink) {
      size_t& next = next_[at(node)];
      const auto& edges = edges_of_[at(node)];
      while (next < edges.size() && !leads_on(node, edges_[at(edges[next])])) ++next;
      if (next < edges.size()) {
        path.push_back(edges[next]);
        node = edges_[at(edges[next])].to;
      } else if (path.empty()) {
        return {};
      } else {
        node = edges_[at(path.back() ^ 1)].to;
        path.pop_back();
        ++next_[at(node)];
      }
    }
    return path;
  }

  // Sends as much along one path as it takes. Returns false if there is no path left.
  bool push(int32_t source, int32_t sink) {
    const std::vector<int32_t> path = next_path(source, sink);
    if (path.empty()) return false;
    int64_t least = kInfinite;
    for (int32_t e : path) least = std::min(least, edges_[at(e)].left);
    for (int32_t e : path) edges_[at(e)].left -= least, edges_[at(e ^ 1)].left += least;
    return true;
  }
  bool leads_on(int32_t node, const Edge& edge) const {
    return edge.left > 0 && level_[at(edge.to)] == level_[at(node)] + 1;
  }

  std::vector<Edge> edges_;  // each followed by its reverse
  std::vector<std::vector<int32_t>> edges_of_;
  std::vector<int32_t> level_;
  std::vector<size_t> next_;
};

// A value is two nodes with an edge of its bytes between them: cut, the value is kept.
class Keeper {
 public:
  Keeper(const Graph& graph, const std::vector<bool>& in_region,
         const std::vector<bool>& may_repeat)
      : graph_(graph),
        in_region_(in_region),
        may_repeat_(may_repeat),
        node_(graph.values.size(), -1) {
    source_ = network_.add_node();
    sink_ = network_.add_node();
  }

  // Returns the values at which the cut parts what is given from what is computed again.
  Kept kept_at(const std::vector<bool>& given) const {
    Kept kept;
    kept.values.resize(graph_.values.size());
    for (size_t v = 0; v < node_.size(); ++v) {
      if (node_[v] < 0) continue;
      const auto first = static_cast<size_t>(node_[v]);
      kept.values[v] = given[first] && !given[first + 1];
      if (kept.values[v]) kept.bytes += graph_.values[v].type.bytes();
    }
    return kept;
  }

  Kept run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (graph_.nodes[i].pass == Pass::kF && in_region_[i]) add(graph_.nodes[i], may_repeat_[i]);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!is_backward(graph_.nodes[i]) || !in_region_[i]) continue;
      for (ValueId input : graph_.nodes[i].inputs)
        if (input.valid() && node_[input.index()] >= 0)
          network_.add_edge(node_[input.index()] + 1, sink_, kInfinite);
    }
    const std::vector<bool> given = network_.cut(source_, sink_);
    return kept_at(given);
  }

 private:
  int32_t node_of(ValueId value) {
    int32_t& node = node_[value.index()];
    if (node >= 0) return node;
    node = network_.add_node();
    network_.add_node();
    network_.add_edge(node, node + 1, std::max<int64_t>(graph_.value(value).type.bytes(), 1));
    return node;
  }
  void add(const Node& node, bool again) {
    for (ValueId output : node.outputs) {
      const int32_t made = node_of(output);
      if (!again) network_.add_edge(source_, made, kInfinite);
    }
    for (ValueId input : node.inputs) {
      if (!input.valid()) continue;
      const Value& value = graph_.value(input);
      if (value.kind == ValueKind::kConstant || value.kind == ValueKind::kState) continue;
      const bool is_new = node_[input.index()] < 0;
      const int32_t from = node_of(input);  // nodes stand in order: new ones come from outside
      if (is_new) network_.add_edge(source_, from, kInfinite);
      for (ValueId output : node.outputs)
        if (again) network_.add_edge(from + 1, node_[output.index()], kInfinite);
    }
  }

  const Graph& graph_;
  const std::vector<bool>&in_region_, &may_repeat_;
  Network network_;
  int32_t source_ = 0, sink_ = 0;
  std::vector<int32_t> node_;  // by value: the first of its two
};

// Appends a node after those copies that it reads and that are not placed yet.
void append_with_inputs(const Graph& graph, size_t n, size_t count, std::vector<bool>& placed,
                        std::vector<NodeId>& order) {
  placed[n] = true;
  // Nodes, with the next input of each to look at.
  std::vector<std::pair<size_t, size_t>> open{{n, 0}};
  while (!open.empty()) {
    auto& [at, next] = open.back();
    if (next == graph.nodes[at].inputs.size()) {
      order.emplace_back(at);
      open.pop_back();
      continue;
    }
    const ValueId input = graph.nodes[at].inputs[next++];
    const NodeId from = input.valid() ? graph.value(input).producer : NodeId();
    if (!from.valid() || from.index() < count || placed[from.index()]) continue;
    placed[from.index()] = true;
    open.emplace_back(from.index(), 0);
  }
}

}  // namespace

double intensity_of(const Graph& graph, const Node& node) {
  const OpDef* op = find_op(node.op);
  if (!op->cost) return 0;
  double bytes = 1;
  for (ValueId output : node.outputs)
    bytes += static_cast<double>(graph.value(output).type.bytes());
  const Cost cost = op->cost(use_of(graph, node));
  // What is not done at matrix speed is cheap: it is over as soon as its operands are read.
  return cost.is_matmul ? 1 + cost.flops / bytes : 0;
}

Kept keep_least(const Graph& graph, const std::vector<bool>& in_region,
                const std::vector<bool>& may_repeat) {
  return Keeper(graph, in_region, may_repeat).run();
}

void put_copies_in_order(Graph& graph, size_t count) {
  std::vector<NodeId> order;
  std::vector<bool> placed(graph.nodes.size());
  for (size_t n = 0; n < placed.size(); ++n) {
    if (placed[n]) continue;
    append_with_inputs(graph, n, count, placed, order);
  }
  graph.put_in_order(order);
}

}  // namespace piper
