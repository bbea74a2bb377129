#include "closing.h"

#include "piper/ops.h"

namespace piper {

std::vector<bool> find_closing(const Graph& graph) {
  std::vector<bool> needed(graph.nodes.size());
  std::vector<ValueId> open{graph.loss};
  for (const Param& param : graph.params) open.push_back(param.gradient);
  for (const Node& node : graph.nodes)
    if (is_backward(node)) open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    if (!value.valid() || graph.value(value).kind != ValueKind::kNode) continue;
    const NodeId producer = graph.value(value).producer;
    if (needed[producer.index()]) continue;
    needed[producer.index()] = true;
    const std::vector<ValueId>& inputs = graph.node(producer).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  std::vector<bool> closing(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    closing[i] = !needed[i] && graph.nodes[i].pass == Pass::kF;
  return closing;
}

namespace {

// The first sum over the step that the value is made of by late nodes.
ValueId first_sum(const Graph& graph, const std::vector<bool>& late, ValueId value) {
  if (!value.valid() || graph.value(value).kind != ValueKind::kNode) return {};
  const NodeId producer = graph.value(value).producer;
  if (is_step_sum(graph.node(producer))) return value;
  if (!late[producer.index()]) return {};
  for (ValueId input : graph.node(producer).inputs)
    if (const ValueId sum = first_sum(graph, late, input); sum.valid()) return sum;
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
    const ValueId first = first_sum(graph, late, node.inputs[0]);
    if (first.valid()) std::swap(graph.value(first).name, graph.value(node.outputs[0]).name);
  }
}

}  // namespace piper
