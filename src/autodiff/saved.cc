// What the forward pass keeps for the backward pass, without what only bears another name or is
// a parameter in another type.
#include <algorithm>
#include <map>
#include <set>

#include "piper/autodiff.h"

namespace piper {
namespace {

class Renamer {
 public:
  explicit Renamer(Graph graph) : graph_(std::move(graph)), count_(graph_.nodes.size()) {}

  Graph run() {
    choose_roots();
    std::vector<NodeId> order;
    for (size_t i = 0; i < count_; ++i) {
      const size_t copied = graph_.nodes.size();
      for (size_t k = 0; is_backward(graph_.nodes[i]) && k < graph_.nodes[i].inputs.size(); ++k) {
        const ValueId input = graph_.nodes[i].inputs[k];
        const ValueId root = root_of(graph_.nodes[i], input);
        if (root == input || !chosen_.contains(root)) continue;
        const ValueId again = named_again(input, graph_.nodes[i].pass);
        graph_.nodes[i].inputs[k] = again;
      }
      for (size_t c = copied; c < graph_.nodes.size(); ++c) order.emplace_back(c);
      order.emplace_back(i);
    }
    put_in(order);
    return std::move(graph_);
  }

 private:
  // Ops whose result is some of their input's bytes; or a parameter's elements in another type.
  bool renames(const Node& node) const {
    return node.op == "Reshape" || node.op == "Slice" ||
           (node.op == "Cast" && graph_.value(node.inputs[0]).kind == ValueKind::kState);
  }
  static bool is_backward(const Node& node) {
    return node.pass == Pass::kBI || node.pass == Pass::kBW;
  }
  const Node* forward_producer(ValueId value) const {
    if (!value.valid() || !graph_.value(value).producer.valid()) return nullptr;
    const Node& node = graph_.node(graph_.value(value).producer);
    return node.pass == Pass::kF ? &node : nullptr;
  }
  bool same_region(const Node& a, const Node& b) const {
    for (size_t t = 0; t < graph_.tag_names.size(); ++t)
      if (graph_.tag(a, static_cast<int>(t)) != graph_.tag(b, static_cast<int>(t))) return false;
    return true;
  }

  // What the value is a part of, as far as the forward nodes on the way stand in the reader's
  // region.
  ValueId root_of(const Node& reader, ValueId value) const {
    const Node* node = forward_producer(value);
    if (!node || !renames(*node) || !same_region(*node, reader)) return value;
    if (node->op == "Cast") return node->inputs[0];
    return forward_producer(node->inputs[0]) ? root_of(reader, node->inputs[0]) : value;
  }

  // Those whose bytes are there anyway, or are not more than those of the parts.
  void choose_roots() {
    std::map<ValueId, std::set<ValueId>> parts;
    for (const Node& node : graph_.nodes)
      for (ValueId input : node.inputs)
        if (is_backward(node) && input.valid()) parts[root_of(node, input)].insert(input);
    for (const auto& [root, values] : parts) {
      int64_t bytes = 0;
      for (ValueId value : values) bytes += graph_.value(value).type.bytes();
      if (graph_.value(root).type.bytes() <= bytes || graph_.value(root).kind == ValueKind::kState)
        chosen_.insert(root);
    }
  }

  ValueId named_again(ValueId value, Pass pass) {
    const NodeId original = graph_.value(value).producer;
    if (chosen_.contains(value) || !original.valid() || !renames(graph_.node(original)))
      return value;
    const auto [it, is_new] = copies_.try_emplace({value, pass});
    if (!is_new) return it->second;
    Node copy = graph_.node(original);
    copy.inputs[0] = named_again(copy.inputs[0], pass);
    copy.outputs.clear();
    copy.pass = pass;
    const TensorType type = graph_.value(value).type;
    const Layout layout = graph_.value(value).layout;
    const ValueId again =
        graph_.node(graph_.add_node(std::move(copy), std::span(&type, 1))).outputs[0];
    graph_.value(again).layout = layout;
    return copies_[{value, pass}] = again;
  }

  void put_in(const std::vector<NodeId>& order) {
    std::vector<Node> nodes;
    for (NodeId id : order) {
      for (ValueId output : graph_.node(id).outputs)
        graph_.value(output).producer = NodeId(nodes.size());
      nodes.push_back(std::move(graph_.node(id)));
    }
    graph_.nodes = std::move(nodes);
  }

  Graph graph_;
  const size_t count_;  // of nodes, without copies
  std::set<ValueId> chosen_;
  std::map<std::pair<ValueId, Pass>, ValueId> copies_;
};

}  // namespace

Graph rename_in_backward(Graph step) { return Renamer(std::move(step)).run(); }

}  // namespace piper
