// Adds and finds values, nodes and tags of a graph.
#include "piper/ir/graph.h"

#include <algorithm>

namespace piper {

std::string to_string(const Layout& layout) {
  switch (layout.kind) {
    case LayoutKind::kReplicated:
      return "R";
    case LayoutKind::kPartial:
      return "P";
    case LayoutKind::kGreatest:
      return "M";
    case LayoutKind::kRouted:
      return "D";
    case LayoutKind::kSharded:
      break;
  }
  if (layout.outer == 1) return fmt::format("S{}", layout.dim);
  return fmt::format("S{}/{}{}", layout.dim, layout.outer, layout.mirrored ? "z" : "");
}

std::string print_layouts(const Value& value) {
  std::string text = to_string(value.layout);
  for (const AxisLayout& lies : value.over)
    text += fmt::format("+{}@{}", to_string(lies.layout), lies.axis);
  return text;
}

void Graph::index_names() {
  if (indexed_ > values.size()) {  // values were removed
    names_.clear();
    indexed_ = 0;
  }
  for (; indexed_ < values.size(); ++indexed_) {
    names_.try_emplace(values[indexed_].name, TakenName{static_cast<int32_t>(indexed_), 1});
  }
}

ValueId Graph::add_value(Value value) {
  index_names();
  if (value.name.empty()) value.name.push_back('v');
  ValueId id(values.size());
  auto [entry, fresh] = names_.try_emplace(value.name, TakenName{id.value, 1});
  if (!fresh) {
    std::string base = value.name;
    // The entry stays where it is while others are added: references into the map are stable.
    TakenName& taken = entry->second;
    do {
      value.name = fmt::format("{}_{}", base, taken.next_suffix++);
    } while (!names_.try_emplace(value.name, TakenName{id.value, 1}).second);
  }
  values.push_back(std::move(value));
  indexed_ = values.size();
  return id;
}

NodeId Graph::add_node(Node node, std::span<const TensorType> output_types) {
  NodeId id(nodes.size());
  for (ValueId input : node.inputs) {
    PIPER_CHECK(!input.valid() || input.index() < values.size(), "{}: input {} does not exist",
                node.name, input.value);
  }
  if (node.name.empty()) node.name = node.op;
  node.outputs.clear();
  for (size_t i = 0; i < output_types.size(); ++i) {
    Value value;
    value.name = i == 0 ? node.name : fmt::format("{}:{}", node.name, i);
    value.type = output_types[i];
    value.producer = id;
    value.output_index = static_cast<int>(i);
    node.outputs.push_back(add_value(std::move(value)));
  }
  nodes.push_back(std::move(node));
  return id;
}

NodeId Graph::add_copy(Node node) {
  const std::vector<ValueId> originals = std::move(node.outputs);
  std::vector<TensorType> types;
  for (ValueId original : originals) types.push_back(value(original).type);
  const NodeId id = add_node(std::move(node), types);
  for (size_t k = 0; k < originals.size(); ++k) {
    Value& copy = value(this->node(id).outputs[k]);
    copy.layout = value(originals[k]).layout;
    copy.over = value(originals[k]).over;
  }
  return id;
}

void Graph::put_in_order(const std::vector<NodeId>& order) {
  std::vector<Node> ordered;
  ordered.reserve(order.size());
  for (NodeId id : order) {
    for (ValueId output : node(id).outputs) value(output).producer = NodeId(ordered.size());
    ordered.push_back(std::move(node(id)));
  }
  nodes = std::move(ordered);
}

ValueId Graph::add_constant(std::string name, TensorType type, Bytes data) {
  PIPER_CHECK(static_cast<int64_t>(data.size) == type.bytes(), "constant {}: {} bytes for {}", name,
              data.size, to_string(type));
  Value value;
  value.name = std::move(name);
  value.type = std::move(type);
  value.kind = ValueKind::kConstant;
  value.data = std::move(data);
  return add_value(std::move(value));
}

ValueId Graph::find_value(std::string_view name) const {
  if (auto found = names_.find(std::string(name)); found != names_.end()) {
    size_t index = static_cast<size_t>(found->second.value);
    if (index < values.size() && values[index].name == name) return ValueId(index);
  }
  for (size_t i = 0; i < values.size(); ++i) {  // renamed, or added without add_value
    if (values[i].name == name) return ValueId(i);
  }
  return {};
}

int Graph::tag_index(std::string_view name) const {
  for (size_t i = 0; i < tag_names.size(); ++i) {
    if (tag_names[i] == name) return static_cast<int>(i);
  }
  return -1;
}

int Graph::add_tag(std::string_view name) {
  if (int index = tag_index(name); index >= 0) return index;
  tag_names.emplace_back(name);
  return static_cast<int>(tag_names.size()) - 1;
}

int32_t Graph::tag(const Node& node, int index) const {
  if (index < 0 || static_cast<size_t>(index) >= node.tags.size()) return kNoTag;
  return node.tags[static_cast<size_t>(index)];
}

void Graph::set_tag(Node& node, int index, int32_t value) {
  PIPER_CHECK(index >= 0 && static_cast<size_t>(index) < tag_names.size());
  if (node.tags.size() <= static_cast<size_t>(index)) {
    node.tags.resize(static_cast<size_t>(index) + 1, kNoTag);
  }
  node.tags[static_cast<size_t>(index)] = value;
}

std::vector<int32_t> Graph::tags_of(const Node& node) const {
  std::vector<int32_t> tags;
  for (size_t t = 0; t < tag_names.size(); ++t) tags.push_back(tag(node, static_cast<int>(t)));
  return tags;
}

std::vector<std::vector<NodeId>> readers(const Graph& graph) {
  std::vector<std::vector<NodeId>> result(graph.values.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId input : graph.nodes[i].inputs) {
      if (input.valid()) result[input.index()].push_back(NodeId(i));
    }
  }
  return result;
}

std::vector<std::string> paths_of(const Param& param) {
  std::vector<std::string> paths{param.scope};
  const auto add = [&](std::string name) {
    std::replace(name.begin(), name.end(), '.', '/');
    if (std::find(paths.begin(), paths.end(), name) == paths.end())
      paths.push_back(std::move(name));
  };
  add(param.name);
  for (const std::string& alias : param.aliases) add(alias);
  return paths;
}

// A list that takes one of its names out takes the parameter out.
bool has_name(const Param& param, const Glob& glob) {
  std::vector<std::string> names = paths_of(param);
  names.push_back(param.name);
  names.insert(names.end(), param.aliases.begin(), param.aliases.end());
  const auto any = [&](const Glob& one) {
    return [&](const std::string& name) { return one.match(name).has_value(); };
  };
  if (std::none_of(names.begin(), names.end(), any(glob))) return false;
  if (glob.pattern().find('!') == std::string::npos) return true;
  const Result<Glob> left = Glob::parse("**, " + glob.pattern(), {});
  return !left || std::all_of(names.begin(), names.end(), any(*left));
}

}  // namespace piper
