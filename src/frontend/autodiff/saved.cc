// What the forward pass keeps for the backward pass, without what only bears another name or is
// a parameter in another type.
#include <algorithm>
#include <map>
#include <ranges>
#include <set>

#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"

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
    graph_.put_in_order(order);
    return std::move(graph_);
  }

 private:
  // Returns whether the op's result is some of its input's bytes, or a parameter's elements in
  // another type.
  bool renames(const Node& node) const {
    return find_op(node.op)->elements == OpDef::Elements::kPart ||
           (node.op == "Cast" && graph_.value(node.inputs[0]).kind == ValueKind::kState);
  }
  const Node* forward_producer(ValueId value) const {
    if (!value.valid() || !graph_.value(value).producer.valid()) return nullptr;
    const Node& node = graph_.node(graph_.value(value).producer);
    return node.pass == Pass::kF ? &node : nullptr;
  }

  // Returns what the value is a part of, as far as the forward nodes on the way are in the
  // reader's region.
  ValueId root_of(const Node& reader, ValueId value) const {
    const Node* node = forward_producer(value);
    while (node && renames(*node) && graph_.tags_of(*node) == graph_.tags_of(reader)) {
      const ValueId whole = node->inputs[0];
      if (node->op == "Cast") return whole;
      node = forward_producer(whole);
      if (node) value = whole;
    }
    return value;
  }

  // Chooses as roots the values whose bytes are kept in any case, or are not more than those of the
  // parts.
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

  bool is_kept(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return chosen_.contains(value) || !producer.valid() || !renames(graph_.node(producer));
  }
  // Returns a copy of the value for the backward pass: of all views between it and what is kept.
  ValueId named_again(ValueId value, Pass pass) {
    std::vector<ValueId> views;  // that have no copy yet, the value's own first
    for (; !is_kept(value) && !copies_.contains({value, pass});
         value = graph_.node(graph_.value(value).producer).inputs[0])
      views.push_back(value);
    ValueId copied = is_kept(value) ? value : copies_.at({value, pass});
    for (const ValueId view : std::views::reverse(views)) {
      Node copy = graph_.node(graph_.value(view).producer);
      copy.inputs[0] = copied;
      copy.pass = pass;
      const NodeId again = graph_.add_copy(std::move(copy));
      copied = copies_[{view, pass}] = graph_.node(again).outputs[0];
    }
    return copied;
  }

  Graph graph_;
  const size_t count_;  // of nodes, without copies
  std::set<ValueId> chosen_;
  std::map<std::pair<ValueId, Pass>, ValueId> copies_;
};

}  // namespace

Graph keep_slopes(Graph step) {
  const std::vector<std::vector<NodeId>> readers_of = readers(step);
  const size_t count = step.nodes.size();
  for (size_t i = 0; i < count; ++i) {
    const Node& gelu = step.nodes[i];
    const DType dtype = step.value(gelu.outputs[0]).type.dtype;
    if (gelu.op != "Gelu" || gelu.pass != Pass::kF || info(dtype).bytes < 4) continue;
    const ValueId x = gelu.inputs[0];
    std::vector<NodeId> gradients;
    bool alone = true;  // they are all that reads x in the backward pass
    for (NodeId id : readers_of[x.index()]) {
      const Node& reader = step.node(id);
      if (reader.pass == Pass::kF) continue;
      alone = alone && reader.op == "GeluGrad" && reader.inputs[1] != x &&
              reader.attrs == gelu.attrs && reader.tags == gelu.tags;
      gradients.push_back(id);
    }
    if (!alone || gradients.empty()) continue;
    Value slope{.name = step.value(x).name + "/slope", .type = step.value(x).type};
    slope.layout = step.value(x).layout;
    slope.producer = NodeId(i);
    slope.output_index = 1;
    const ValueId kept = step.add_value(std::move(slope));
    step.nodes[i].op = "GeluAndSlope";
    step.nodes[i].outputs.push_back(kept);
    for (NodeId id : gradients) {
      Node& gradient = step.node(id);
      gradient.op = "Mul";
      gradient.attrs = {};
      gradient.inputs = {gradient.inputs[1], kept};
    }
  }
  return step;
}

Graph rename_in_backward(Graph step) { return Renamer(std::move(step)).run(); }

}  // namespace piper
