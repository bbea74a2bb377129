// Checks that a graph is well formed.
#include <unordered_set>

#include "piper/ir/graph.h"

namespace piper {
namespace {

bool exists(const Graph& graph, ValueId id) {
  return id.valid() && id.index() < graph.values.size();
}

Status check_data(const Value& value) {
  bool may_lack = value.kind == ValueKind::kState || !value.data_digest.empty();
  bool lacks = value.data.size == 0 && value.type.bytes() > 0;
  if (lacks && may_lack) return ok_status();
  if (static_cast<int64_t>(value.data.size) != value.type.bytes()) {
    return fail("value '{}' of type {} has {} bytes of data", value.name, to_string(value.type),
                value.data.size);
  }
  return ok_status();
}

Status check_made_by_node(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (!value.producer.valid() || value.producer.index() >= graph.nodes.size()) {
    return fail("value '{}' has no producer", value.name);
  }
  const Node& node = graph.node(value.producer);
  size_t index = static_cast<size_t>(value.output_index);
  if (index >= node.outputs.size() || node.outputs[index] != id) {
    return fail("value '{}' is not output {} of its producer '{}'", value.name, value.output_index,
                node.name);
  }
  return ok_status();
}

Status check_value(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  for (int64_t extent : value.type.shape) {
    if (extent < 0) return fail("value '{}' has type {}", value.name, to_string(value.type));
  }
  int rank = static_cast<int>(value.type.shape.size());
  if (value.layout.kind == LayoutKind::kSharded && value.over.empty() &&
      (value.layout.dim < 0 || value.layout.dim >= rank || value.layout.outer < 1 ||
       (value.layout.mirrored && value.layout.outer % 2 != 0) ||
       value.type.shape[static_cast<size_t>(value.layout.dim)] % value.layout.outer != 0)) {
    return fail("value '{}' of type {} cannot lie as {}", value.name, to_string(value.type),
                to_string(value.layout));
  }
  if (value.kind == ValueKind::kNode) return check_made_by_node(graph, id);
  if (value.producer.valid()) {
    return fail("value '{}' has a producer but is not made by a node", value.name);
  }
  if (value.kind == ValueKind::kInput) {
    if (value.batch_dim >= rank) {
      return fail("input '{}' of type {} has no dim {}", value.name, to_string(value.type),
                  value.batch_dim);
    }
    return ok_status();
  }
  return check_data(value);
}

Status check_values(const Graph& graph) {
  std::unordered_set<std::string_view> names;
  names.reserve(graph.values.size());
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.name.empty()) return fail("value {} has no name", i);
    if (!names.insert(value.name).second) {
      return fail("two values have the name '{}'", value.name);
    }
    PIPER_TRY(check_value(graph, ValueId(i)));
  }
  return ok_status();
}

Status check_node(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  for (ValueId input : node.inputs) {
    if (!input.valid()) continue;
    if (!exists(graph, input)) {
      return fail("node '{}' ({}) reads a value that does not exist", node.name, node.op);
    }
    NodeId producer = graph.value(input).producer;
    if (producer.valid() && producer.index() >= id.index()) {
      return fail("node '{}' ({}) reads '{}' before it is made", node.name, node.op,
                  graph.value(input).name);
    }
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    ValueId output = node.outputs[i];
    if (!exists(graph, output) || graph.value(output).producer != id ||
        graph.value(output).output_index != static_cast<int>(i)) {
      return fail("output {} of node '{}' ({}) is not its own", i, node.name, node.op);
    }
  }
  if (node.tags.size() > graph.tag_names.size()) {
    return fail("node '{}' ({}) has {} tags, the graph {}", node.name, node.op, node.tags.size(),
                graph.tag_names.size());
  }
  return ok_status();
}

Status check_inputs(const Graph& graph) {
  std::vector<int> listed(graph.values.size());
  for (ValueId id : graph.inputs) {
    if (!exists(graph, id)) return fail("an input of the graph does not exist");
    ++listed[id.index()];
  }
  for (size_t i = 0; i < graph.values.size(); ++i) {
    int expected = graph.values[i].kind == ValueKind::kInput ? 1 : 0;
    if (listed[i] != expected) {
      return fail("value '{}' is {} times among the inputs, not {}", graph.values[i].name,
                  listed[i], expected);
    }
  }
  return ok_status();
}

Status check_gradient(const Graph& graph, const Param& param) {
  if (!param.gradient.valid()) return ok_status();
  if (!exists(graph, param.gradient))
    return fail("the gradient of parameter '{}' does not exist", param.name);
  const Shape &shape = graph.value(param.value).type.shape,
              &other = graph.value(param.gradient).type.shape;
  if (other == shape) return ok_status();
  return fail("the gradient of parameter '{}' has shape {}, the parameter {}", param.name,
              to_string(other), to_string(shape));
}

Status check_params(const Graph& graph) {
  std::unordered_set<int32_t> taken;
  for (const Param& param : graph.params) {
    if (!exists(graph, param.value) || graph.value(param.value).kind != ValueKind::kState) {
      return fail("parameter '{}' is not a state value", param.name);
    }
    if (!taken.insert(param.value.value).second) {
      return fail("parameter '{}' has the value of another one", param.name);
    }
    PIPER_TRY(check_gradient(graph, param));
  }
  return ok_status();
}

Status check_update(const Graph& graph, const StateUpdate& update) {
  if (!exists(graph, update.state) || !exists(graph, update.next))
    return fail("an update names a value that does not exist");
  const Value &state = graph.value(update.state), &next = graph.value(update.next);
  if (state.kind != ValueKind::kState)
    return fail("an update of '{}', which is not state", state.name);
  if (state.type == next.type) return ok_status();
  return fail("state '{}' of type {} cannot become '{}' of type {}", state.name,
              to_string(state.type), next.name, to_string(next.type));
}

Status check_updates(const Graph& graph) {
  std::unordered_set<int32_t> taken;
  for (const StateUpdate& update : graph.updates) {
    PIPER_TRY(check_update(graph, update));
    if (!taken.insert(update.state.value).second)
      return fail("two updates of '{}'", graph.value(update.state).name);
  }
  return ok_status();
}

}  // namespace

Status check_graph(const Graph& graph) {
  PIPER_TRY(check_values(graph));
  for (size_t i = 0; i < graph.nodes.size(); ++i) PIPER_TRY(check_node(graph, NodeId(i)));
  PIPER_TRY(check_inputs(graph));
  PIPER_TRY(check_params(graph));
  PIPER_TRY(check_updates(graph));
  for (ValueId id : graph.outputs) {
    if (!exists(graph, id)) return fail("an output of the graph does not exist");
  }
  for (ValueId id : {graph.loss, graph.grad_norm, graph.weight, graph.step, graph.sample}) {
    if (id.valid() && !exists(graph, id)) return fail("a result of the graph does not exist");
  }
  return ok_status();
}

}  // namespace piper
