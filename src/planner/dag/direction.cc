// Where parameters live in parts: which of an optimizer's ops before the update work on own runs of
// elements, and which on whole tensors.
#include <algorithm>
#include <map>
#include <set>

#include "piper/ir/ops.h"
#include "update.h"

namespace piper {
namespace {

class Direction {
 public:
  Direction(Dag& dag, const CutUpdate& cut, std::vector<std::vector<NodeId>>& readers)
      : dag_(dag),
        graph_(dag.graph),
        cut_(cut),
        readers_(readers),
        shape_(graph_.value(cut.param).type.shape) {}

  std::vector<ValueId> run() {
    find_nodes();
    find_flat();
    for (NodeId id : nodes_)
      if (!is_flat_node(id))
        for (ValueId& input : graph_.node(id).inputs)
          if (input.valid() && flat_.contains(input)) wanted_.insert(input);
    for (NodeId id : std::vector(nodes_))
      if (!is_flat_node(id)) read_whole(id);
    cut_flat();
    std::vector<ValueId>& inputs = graph_.node(cut_.optimizer).inputs;
    if (!flat_.contains(inputs[1])) inputs[1] = own_run(inputs[1]);
    return states_;
  }

 private:
  // Follows the gradient through the update, but not into the norm of all gradients; and the
  // parameter, of which the update has its own run, as what microbatches gather may be rounded.
  void find_nodes() {
    std::set<NodeId> found;
    std::vector<ValueId> open{cut_.gradient};
    if (!cut_.is_kept) open.push_back(cut_.param);
    for (const size_t u : cut_.updates) open.push_back(graph_.updates[u].state);
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      for (const NodeId id : readers_of(value)) {
        const Node& node = graph_.node(id);
        if (node.pass != Pass::kU || id == cut_.optimizer || is_of_norm(node)) continue;
        if (!found.insert(id).second) continue;
        open.insert(open.end(), node.outputs.begin(), node.outputs.end());
      }
    }
    nodes_.assign(found.begin(), found.end());
  }

  // Returns whether the norm alone reads what the node makes: it is added up of runs.
  bool is_of_norm(const Node& node) {
    if (node.op == "SumSquares") return true;
    return node.op == "AllGather" &&
           std::ranges::all_of(readers_of(node.outputs[0]), [&](NodeId reader) {
             return graph_.node(reader).op == "SumSquares";
           });
  }
  std::span<const NodeId> readers_of(ValueId value) const {
    return value.index() < readers_.size() ? readers_[value.index()] : std::span<const NodeId>();
  }

  // Finds the states that can be kept in runs: those of the parameter's shape whose next value is
  // made of runs. Factors of a moment may have that shape, too, where the parameter has a dim of
  // one element, but are made of whole tensors.
  void find_flat() {
    std::vector<StateUpdate> updates;
    for (const size_t u : cut_.updates)
      if (const StateUpdate& update = graph_.updates[u];
          graph_.value(update.state).type.shape == shape_)
        updates.push_back(update);
    size_t before = 0;
    do {
      before = updates.size();
      states_.clear();
      for (const StateUpdate& update : updates) states_.push_back(update.state);
      find_flat_values();
      std::erase_if(updates,
                    [&](const StateUpdate& update) { return !flat_.contains(update.next); });
    } while (updates.size() != before);
  }

  // Finds the values of which a rank can have a run: an op makes one that takes runs element by
  // element.
  void find_flat_values() {
    flat_ = {cut_.gradient};
    if (!cut_.is_kept) flat_.insert(cut_.param);
    flat_.insert(states_.begin(), states_.end());
    for (NodeId id : nodes_) {
      const Node& node = graph_.node(id);
      const OpDef* def = find_op(node.op);
      const bool each = def->pointwise && node.outputs.size() == 1 &&
                        graph_.value(node.outputs[0]).type.shape == shape_;
      const auto fits = [&](ValueId input) {
        return !input.valid() || flat_.contains(input) || graph_.value(input).type.shape.empty();
      };
      if (each && std::all_of(node.inputs.begin(), node.inputs.end(), fits))
        flat_.insert(node.outputs[0]);
    }
  }
  bool is_flat_node(NodeId id) const { return flat_.contains(graph_.node(id).outputs[0]); }

  void read_whole(NodeId id) {
    std::vector<ValueId> inputs = graph_.node(id).inputs;
    for (ValueId& input : inputs)
      if (input.valid() && flat_.contains(input)) input = whole(input);
    graph_.node(id).inputs = inputs;
  }

  // Returns the whole of a run: what is gathered, or is made of such.
  ValueId whole(ValueId run) {
    if (const auto known = whole_.find(run); known != whole_.end()) return known->second;
    const Value value = graph_.value(run);
    const bool is_made = value.kind == ValueKind::kNode && run != cut_.gradient;
    if (is_made) {
      Node node = graph_.node(value.producer);
      const auto is_there = [&](ValueId input) {
        return !input.valid() || !flat_.contains(input) || wanted_.contains(input);
      };
      if (std::all_of(node.inputs.begin(), node.inputs.end(), is_there)) {
        for (ValueId& input : node.inputs)
          if (input.valid() && flat_.contains(input)) input = whole(input);
        node.outputs.clear();
        node.name += ".whole";
        const NodeId copy = graph_.add_node(std::move(node), std::vector{value.type});
        readers_.resize(graph_.values.size());
        for (const ValueId input : graph_.node(copy).inputs)
          if (input.valid()) readers_[input.index()].push_back(copy);
        const ValueId made = graph_.node(copy).outputs[0];
        graph_.value(made).over = value.over;
        return whole_[run] = made;
      }
    }
    ValueId part = run_of(run);
    for (size_t l = cut_.levels.size(); l-- > 0;) {
      TensorType type = value.type;
      if (l > 0) type.shape = cut_.levels[l - 1].run;
      const std::string name = value.name + (l > 0 ? ".larger" : ".whole");
      const ValueId to = graph_.add_value({.name = name, .type = type, .over = value.over});
      exchange(part, to, l, Gather::kUpdate);
      part = to;
    }
    return whole_[run] = part;
  }
  ValueId run_of(ValueId value) const {
    if (value == cut_.param) return cut_.part;
    return value == cut_.gradient ? cut_.gradient_part : value;
  }

  void cut_flat() {
    for (const ValueId state : states_) graph_.value(state).type.shape = cut_.own();
    for (NodeId id : nodes_) {
      if (!is_flat_node(id)) continue;
      Node& node = graph_.node(id);
      for (ValueId& input : node.inputs) input = run_of(input);
      graph_.value(node.outputs[0]).type.shape = cut_.own();
    }
  }
  void exchange(ValueId run, ValueId whole, size_t level, Gather how) {
    const auto& [shape, over, stream] = cut_.levels[level];
    dag_.exchanges.push_back({run, whole, graph_.value(whole).type, over, how, stream});
  }
  ValueId own_run(ValueId whole) {
    for (size_t l = 0; l < cut_.levels.size(); ++l) {
      const Value value = graph_.value(whole);
      const ValueId to = graph_.add_value({.name = value.name + ".part",
                                           .type = {value.type.dtype, cut_.levels[l].run},
                                           .over = value.over});
      exchange(to, whole, l, Gather::kStep);
      whole = to;
    }
    return whole;
  }

  Dag& dag_;
  Graph& graph_;
  const CutUpdate& cut_;
  std::vector<std::vector<NodeId>>& readers_;  // by value; some have read it before
  const Shape shape_;                          // of the whole parameter
  std::vector<NodeId> nodes_;  // that depend on the gradient or on states, in graph order
  std::set<ValueId> flat_;     // of which runs can be made
  std::set<ValueId> wanted_;   // of these, those that whole tensors are made of
  std::vector<ValueId> states_;
  std::map<ValueId, ValueId> whole_;  // by run
};

}  // namespace

std::vector<ValueId> cut_direction(Dag& dag, const CutUpdate& cut,
                                   std::vector<std::vector<NodeId>>& readers) {
  return Direction(dag, cut, readers).run();
}

}  // namespace piper
