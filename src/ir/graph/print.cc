// Prints graphs in their text form.
#include "piper/base/text_form.h"
#include "text.h"

namespace piper {

namespace {

std::string print_name(const Graph& graph, ValueId id) {
  return id.valid() ? "%" + print_word(graph.value(id).name) : "_";
}

std::string print_declared(const Value& value) {
  return fmt::format("%{}:{}", print_word(value.name), to_string(value.type));
}

std::string print_data(const Value& value) {
  if (!value.data_digest.empty()) return " = digest:" + value.data_digest;
  if (value.data.size == 0 && value.kind == ValueKind::kState && value.type.bytes() > 0) {
    return fmt::format(" = fill {}", value.fill);
  }
  if (value.type.bytes() > kMaxPrintedBytes)
    return " = digest:" + digest(as_text(value.data.made().span()));
  return " = " + print_elements(value);
}

void print_source(std::string& out, const Value& value) {
  bool is_input = value.kind == ValueKind::kInput;
  out += is_input ? "input " : value.kind == ValueKind::kState ? "state " : "constant ";
  out += print_declared(value);
  if (is_input && value.batch_dim >= 0) out += fmt::format(" batch_dim={}", value.batch_dim);
  if (!is_input) out += print_data(value);
  if (value.layout != Layout{} || !value.over.empty()) out += " layout=" + print_layouts(value);
  out += '\n';
}

std::string print_tags(const Graph& graph, const Node& node) {
  std::vector<std::string> items;
  for (size_t i = 0; i < node.tags.size(); ++i) {
    if (node.tags[i] == kNoTag) continue;
    items.push_back(fmt::format("{}={}", print_word(graph.tag_names[i]), node.tags[i]));
  }
  return items.empty() ? "" : " tags={" + join(items, ",") + "}";
}

std::string print_layouts(const Graph& graph, const Node& node) {
  std::vector<std::string> items;
  bool any = false;
  for (ValueId id : node.outputs) {
    items.push_back(print_layouts(graph.value(id)));
    any = any || items.back() != "R";
  }
  return any ? " layout=" + join(items, ",") : "";
}

void print_node(std::string& out, const Graph& graph, const Node& node) {
  std::vector<std::string> outputs, inputs;
  for (ValueId id : node.outputs) outputs.push_back(print_declared(graph.value(id)));
  for (ValueId id : node.inputs) inputs.push_back(print_name(graph, id));
  out += fmt::format("{}{}{}({})", join(outputs, " "), outputs.empty() ? "= " : " = ",
                     print_word(node.op), join(inputs, ", "));
  if (std::string attrs = print_attrs(node.attrs); !attrs.empty()) out += " " + attrs;
  out += fmt::format(" pass={}", kPassNames[static_cast<size_t>(node.pass)]);
  bool named_alike = !node.outputs.empty() && graph.value(node.outputs[0]).name == node.name;
  if (!named_alike) out += " name=" + print_word(node.name);
  if (!node.scope.empty()) out += " scope=" + print_word(node.scope);
  out += print_tags(graph, node) + print_layouts(graph, node) + "\n";
}

void print_param(std::string& out, const Graph& graph, const Param& param) {
  out += fmt::format("param {} {}", print_word(param.name), print_name(graph, param.value));
  for (const std::string& alias : param.aliases) out += " alias=" + print_word(alias);
  if (!param.scope.empty()) out += " scope=" + print_word(param.scope);
  if (!param.evidence.empty()) out += " evidence=" + print_word(param.evidence);
  if (param.frozen) out += " frozen=1";
  if (param.gradient.valid()) out += " gradient=" + print_name(graph, param.gradient);
  out += '\n';
}

void print_results(std::string& out, const Graph& graph) {
  for (const StateUpdate& update : graph.updates) {
    out += fmt::format("update {} {}", print_name(graph, update.state),
                       print_name(graph, update.next));
    if (update.beside.valid()) out += " " + print_name(graph, update.beside);
    out += '\n';
  }
  for (ValueId id : graph.outputs) out += fmt::format("output {}\n", print_name(graph, id));
  auto line = [&](const char* word, ValueId id) {
    if (id.valid()) out += fmt::format("{} {}\n", word, print_name(graph, id));
  };
  line("loss", graph.loss);
  line("grad_norm", graph.grad_norm);
  line("weight", graph.weight);
  line("step", graph.step);
  line("sample", graph.sample);
}

}  // namespace

std::string print_graph(const Graph& graph) {
  std::string out = fmt::format("graph batch={} shards={}", graph.batch, graph.shards);
  for (const std::string& name : graph.tag_names) out += " tag=" + print_word(name);
  out += '\n';
  for (ValueId id : graph.inputs) print_source(out, graph.value(id));
  for (const Value& value : graph.values) {
    if (value.kind == ValueKind::kConstant || value.kind == ValueKind::kState) {
      print_source(out, value);
    }
  }
  for (const Node& node : graph.nodes) print_node(out, graph, node);
  for (const Param& param : graph.params) print_param(out, graph, param);
  print_results(out, graph);
  return out;
}

}  // namespace piper
