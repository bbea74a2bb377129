// Finds what runs once a step, after all microbatches.
#include "closing.h"

#include <set>

#include "piper/ir/ops.h"

namespace piper {
namespace {

// Returns by node whether some of the values is made of what it makes.
std::vector<bool> makers_of(const Graph& graph, std::vector<ValueId> open) {
  std::vector<bool> makers(graph.nodes.size());
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    if (!value.valid() || graph.value(value).kind != ValueKind::kNode) continue;
    const NodeId producer = graph.value(value).producer;
    if (makers[producer.index()]) continue;
    makers[producer.index()] = true;
    const std::vector<ValueId>& inputs = graph.node(producer).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return makers;
}

}  // namespace

std::vector<bool> find_closing(const Graph& graph) {
  std::vector<ValueId> of_states, of_step{graph.loss, graph.weight};
  for (const StateUpdate& update : graph.updates) of_states.push_back(update.next);
  for (const Param& param : graph.params) of_step.push_back(param.gradient);
  for (const Node& node : graph.nodes)
    if (is_backward(node)) of_step.insert(of_step.end(), node.inputs.begin(), node.inputs.end());
  std::vector<bool> closing = makers_of(graph, std::move(of_states));
  const std::vector<bool> needed = makers_of(graph, std::move(of_step));
  for (size_t i = 0; i < closing.size(); ++i)
    closing[i] = closing[i] && !needed[i] && graph.nodes[i].pass == Pass::kF;
  return closing;
}

namespace {

// Returns the first sum over the step that the value is made of by late nodes, but for those that
// are `seen`.
ValueId first_sum(const Graph& graph, const std::vector<bool>& late, ValueId value,
                  std::set<NodeId>& seen) {
  if (!value.valid() || graph.value(value).kind != ValueKind::kNode) return {};
  const NodeId producer = graph.value(value).producer;
  if (is_step_sum(graph.node(producer))) return value;
  if (!late[producer.index()] || !seen.insert(producer).second) return {};
  for (ValueId input : graph.node(producer).inputs)
    if (const ValueId sum = first_sum(graph, late, input, seen); sum.valid()) return sum;
  return {};
}

}  // namespace

void close_step(Graph& graph, const std::vector<bool>& late) {
  for (Node& node : graph.nodes) {
    if (!is_step_sum(node)) continue;
    const Value& summed = graph.value(node.inputs[0]);
    if (summed.kind != ValueKind::kNode || !late[summed.producer.index()]) continue;
    node.op = "Reshape";
    node.attrs = {{"shape", summed.type.shape}};
    std::set<NodeId> seen;
    const ValueId first = first_sum(graph, late, node.inputs[0], seen);
    if (first.valid()) std::swap(graph.value(first).name, graph.value(node.outputs[0]).name);
  }
}

}  // namespace piper
