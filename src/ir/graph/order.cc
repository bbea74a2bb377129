// Removes dead nodes, and sorts a graph topologically.
#include <functional>
#include <queue>

#include "piper/ir/graph.h"

namespace piper {
namespace {

// Marks all that `roots` need, walking nodes backwards.
struct Needed {
  std::vector<bool> values, nodes;

  Needed(const Graph& graph, const std::vector<ValueId>& roots)
      : values(graph.values.size()), nodes(graph.nodes.size()) {
    std::vector<ValueId> open = roots;
    while (!open.empty()) {
      ValueId id = open.back();
      open.pop_back();
      if (!id.valid() || values[id.index()]) continue;
      values[id.index()] = true;
      NodeId producer = graph.value(id).producer;
      if (!producer.valid() || nodes[producer.index()]) continue;
      nodes[producer.index()] = true;
      const Node& node = graph.node(producer);
      open.insert(open.end(), node.inputs.begin(), node.inputs.end());
      // A node keeps all its outputs: their number is part of what the op is.
      open.insert(open.end(), node.outputs.begin(), node.outputs.end());
    }
  }
};

std::vector<ValueId> roots_of(const Graph& graph, bool keep_outputs) {
  std::vector<ValueId> roots = graph.inputs;
  roots.push_back(graph.loss);
  roots.push_back(graph.grad_norm);
  roots.push_back(graph.weight);
  roots.push_back(graph.step);
  roots.push_back(graph.sample);
  if (keep_outputs) roots.insert(roots.end(), graph.outputs.begin(), graph.outputs.end());
  for (const Param& param : graph.params) {
    roots.push_back(param.value);
    roots.push_back(param.gradient);
  }
  for (const StateUpdate& update : graph.updates) {
    roots.push_back(update.state);
    roots.push_back(update.next);
  }
  return roots;
}

template <class Item, class IdType>
std::vector<IdType> compact(std::vector<Item>& items, const std::vector<bool>& keep) {
  std::vector<IdType> new_id(items.size());
  size_t kept = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!keep[i]) continue;
    new_id[i] = IdType(kept);
    if (kept != i) items[kept] = std::move(items[i]);
    ++kept;
  }
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(kept), items.end());
  return new_id;
}

void renumber_values(Graph& graph, const std::vector<ValueId>& new_id) {
  auto map = [&](ValueId& id) {
    if (id.valid()) id = new_id[id.index()];
  };
  for (Node& node : graph.nodes) {
    for (ValueId& id : node.inputs) map(id);
    for (ValueId& id : node.outputs) map(id);
  }
  for (Param& param : graph.params) {
    map(param.value);
    map(param.gradient);
  }
  for (StateUpdate& update : graph.updates) {
    map(update.state);
    map(update.next);
    map(update.beside);
  }
  for (ValueId& id : graph.inputs) map(id);
  for (ValueId& id : graph.outputs) map(id);
  std::erase_if(graph.outputs, [](ValueId id) { return !id.valid(); });
  map(graph.loss);
  map(graph.grad_norm);
  map(graph.weight);
  map(graph.step);
  map(graph.sample);
}

// Returns each node's number of inputs made by nodes; a producer that makes two counts twice, as in
// readers().
std::vector<int> count_waits(const Graph& graph) {
  std::vector<int> waits(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId input : graph.nodes[i].inputs) {
      if (input.valid() && graph.value(input).producer.valid()) ++waits[i];
    }
  }
  return waits;
}

bool is_in_order(const Graph& graph) {
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    for (ValueId input : graph.nodes[i].inputs)
      if (input.valid() && graph.value(input).producer.valid() &&
          graph.value(input).producer.index() >= i)
        return false;
  return true;
}

// Returns a node of a cycle, given that every node left waits for another one left.
const Node& node_on_cycle(const Graph& graph, const std::vector<int>& waits) {
  size_t at = 0;
  while (waits[at] <= 0) ++at;
  std::vector<bool> seen(graph.nodes.size());
  while (!seen[at]) {
    seen[at] = true;
    for (ValueId input : graph.nodes[at].inputs) {
      if (!input.valid()) continue;
      NodeId producer = graph.value(input).producer;
      if (producer.valid() && waits[producer.index()] > 0) {
        at = producer.index();
        break;
      }
    }
  }
  return graph.nodes[at];
}

}  // namespace

Graph without_dead_nodes(Graph graph, bool keep_outputs) {
  Needed needed(graph, roots_of(graph, keep_outputs));
  std::vector<ValueId> new_values = compact<Value, ValueId>(graph.values, needed.values);
  std::vector<NodeId> new_nodes = compact<Node, NodeId>(graph.nodes, needed.nodes);
  for (Value& value : graph.values) {
    if (value.producer.valid()) value.producer = new_nodes[value.producer.index()];
  }
  renumber_values(graph, new_values);
  graph.names_.clear();
  graph.indexed_ = 0;
  return graph;
}

Result<Graph> in_topological_order(Graph graph) {
  if (is_in_order(graph)) return graph;
  std::vector<int> waits = count_waits(graph);
  std::vector<std::vector<NodeId>> read_by = readers(graph);
  // The ready node that is first goes first: an order that is already right stays as it is.
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (waits[i] == 0) ready.push(i);
  }
  std::vector<NodeId> order;
  while (!ready.empty()) {
    size_t at = ready.top();
    ready.pop();
    order.emplace_back(at);
    for (ValueId output : graph.nodes[at].outputs) {
      for (NodeId reader : read_by[output.index()]) {
        if (--waits[reader.index()] == 0) ready.push(reader.index());
      }
    }
  }
  if (order.size() != graph.nodes.size()) {
    const Node& node = node_on_cycle(graph, waits);
    return fail("the graph has a cycle through node '{}' ({})", quote_control(node.name), node.op);
  }
  graph.put_in_order(order);
  return graph;
}

}  // namespace piper
