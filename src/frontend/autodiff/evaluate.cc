// Makes of a forward graph what is computed when the model is evaluated: nothing is drawn at
// random, and running statistics stand for those of the batch.
#include <algorithm>
#include <set>

#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

class Evaluation {
 public:
  explicit Evaluation(Graph& graph) : graph_(graph), build_(graph), readers_(readers(graph)) {}

  Status run() {
    for (const StateUpdate& update : graph_.updates) use_statistics(update.state, update.next);
    build_.pass = Pass::kU;
    for (StateUpdate& update : graph_.updates)  // by which others know that it has one
      update.next =
          build_.mul(update.state, build_.scalar(1, graph_.value(update.state).type.dtype));
    build_.pass = Pass::kF;
    const size_t nodes = graph_.nodes.size();
    for (size_t n = 0; n < nodes; ++n) {
      if (graph_.nodes[n].op == "Dropout")
        read_instead(graph_.nodes[n].outputs[0], graph_.nodes[n].inputs[0]);
      if (graph_.nodes[n].op == "Random") PIPER_TRY(draw_nothing(NodeId(n)));
    }
    const std::set<ValueId> weights = find_weights();
    if (weights.size() == 1) graph_.weight = *weights.begin();
    return ok_status();
  }

 private:
  const Node* producer(ValueId id) const {
    const NodeId node = graph_.value(id).producer;
    return node.valid() ? &graph_.node(node) : nullptr;
  }
  bool is_constant(ValueId id) const { return graph_.value(id).kind == ValueKind::kConstant; }

  void read_instead(ValueId from, ValueId to) {
    for (Node& node : graph_.nodes) std::replace(node.inputs.begin(), node.inputs.end(), from, to);
    std::replace(graph_.outputs.begin(), graph_.outputs.end(), from, to);
    if (graph_.loss == from) graph_.loss = to;
  }

  // Uses the sums over the step that the next value of a state is made of.
  void use_statistics(ValueId state, ValueId next) {
    std::set<ValueId> seen{next};
    std::vector<ValueId> open{next}, sums;
    while (!open.empty()) {
      const Node* node = producer(open.back());
      open.pop_back();
      if (node == nullptr || node->pass != Pass::kU) continue;
      if (is_step_sum(*node)) {
        sums.push_back(node->inputs[0]);
        continue;
      }
      for (const ValueId input : node->inputs)
        if (input.valid() && seen.insert(input).second) open.push_back(input);
    }
    for (const ValueId sum : sums) use_statistic(state, sum);
  }

  // `now` is what the state follows: a statistic of the batch in the state's shape, perhaps times a
  // number, and perhaps with the state's own share. Where the model uses that statistic, too, it
  // uses the state when it is evaluated.
  void use_statistic(ValueId state, ValueId now) {
    ValueId at = now;
    while (at.valid() && readers_[at.index()].size() < 2) at = made_of(state, at);
    if (!at.valid() || at == state) return;
    const Value& statistic = graph_.value(at);
    const TensorType type = statistic.type;
    if (statistic.kind != ValueKind::kNode ||
        num_elements(type.shape) != num_elements(graph_.value(state).type.shape))
      return;
    build_like(graph_.node(statistic.producer), "/running_");
    ValueId running = state;
    if (graph_.value(state).type.dtype != type.dtype) running = build_.cast(running, type.dtype);
    read_instead(at, build_.reshape(running, type.shape));
  }
  // Returns what a value is a multiple, another shape or another type of; invalid: nothing.
  ValueId made_of(ValueId state, ValueId id) const {
    const Node* node = producer(id);
    if (node == nullptr) return {};
    if (node->op == "Reshape" || node->op == "Cast") return node->inputs[0];
    if (node->op != "Mul" && node->op != "Add") return {};
    for (const size_t other : {0, 1}) {
      const ValueId operand = node->inputs[other];
      if (node->op == "Mul" ? is_constant(operand) : is_share(state, operand))
        return node->inputs[1 - other];
    }
    return {};
  }
  bool is_share(ValueId state, ValueId id) const {
    const Node* node = producer(id);
    return id == state ||
           (node != nullptr && node->op == "Mul" &&
            std::find(node->inputs.begin(), node->inputs.end(), state) != node->inputs.end());
  }

  // Noise has no effect at its mean. That of a choice by a probability is the probability itself,
  // and that of a number that noise rounds is the number; other choices have none.
  Status draw_nothing(NodeId id) {
    seen_.clear();
    PIPER_TRY(choose_nothing(graph_.node(id).outputs[0], graph_.node(id).attrs, true));
    const Node node = graph_.node(id);
    const double mean =
        node.attrs.real("shift") + (is_normal(node.attrs) ? 0 : node.attrs.real("scale") / 2);
    const TensorType type = graph_.value(node.outputs[0]).type;
    build_like(node, "/mean_");
    read_instead(node.outputs[0], build_.expand(build_.scalar(mean, type.dtype), type.shape));
    return ok_status();
  }
  static bool is_normal(const Attrs& drawn) { return drawn.text("distribution") == "normal"; }

  // Visits what reads the numbers that are drawn, in any type and shape, and what is made of them
  // and constants alone, which are `drawn` no more.
  Status choose_nothing(ValueId value, const Attrs& of, bool is_drawn) {
    if (!seen_.insert(value).second) return ok_status();
    for (const NodeId by : readers_[value.index()]) {
      const Node& reader = graph_.node(by);
      const bool is_unit = !is_normal(of) && of.real("shift") == 0 && of.real("scale") == 1;
      if (is_drawn && is_unit && (compare_nothing(value, by) || round_nothing(value, by))) continue;
      PIPER_TRY(check_reader(reader));
      const bool is_same = reader.op == "Cast" || reader.op == "Reshape" || reader.op == "Expand";
      const bool is_scaled = reader.op == "Add" || reader.op == "Sub" || reader.op == "Mul" ||
                             reader.op == "Div" || reader.op == "Neg";
      const auto is_noise = [&](ValueId in) { return in == value || is_constant(in); };
      if (is_same ||
          (is_scaled && std::all_of(reader.inputs.begin(), reader.inputs.end(), is_noise)))
        PIPER_TRY(choose_nothing(reader.outputs[0], of, is_drawn && is_same));
    }
    return ok_status();
  }
  Status check_reader(const Node& reader) const {
    const OpDef* def = find_op(reader.op);
    const bool rounds =
        reader.op == "Floor" || reader.op == "Ceil" || reader.op == "Round" ||
        reader.op == "Sign" || reader.op == "TopK" ||
        (reader.op == "Cast" && !info(graph_.value(reader.outputs[0]).type.dtype).is_float);
    if (def != nullptr && def->gradient != nullptr && reader.op != "Log" && !rounds)
      return ok_status();
    return fail("not supported: an evaluation of a model in which {} '{}'{} reads random numbers",
                reader.op, quote_control(reader.name),
                reader.scope.empty() ? "" : fmt::format(" of {}", reader.scope))
        .with_note("help: compile without --eval, or export a model that draws only in dropout");
  }
  // Returns whether the node compares the numbers with probabilities, and what reads that does so
  // as numbers, which are then these.
  bool compare_nothing(ValueId drawn, NodeId by) {
    const Node node = graph_.node(by);
    const bool is_less = node.op == "Less" || node.op == "LessOrEqual";
    if (!is_less && node.op != "Greater" && node.op != "GreaterOrEqual") return false;
    const bool is_first = node.inputs[0] == drawn;
    if (is_first && node.inputs[1] == drawn) return false;
    const std::vector<NodeId>& casts = readers_[node.outputs[0].index()];
    const auto is_number = [&](NodeId cast) {
      const Node& reader = graph_.node(cast);
      return reader.op == "Cast" && info(graph_.value(reader.outputs[0]).type.dtype).is_float;
    };
    if (!std::all_of(casts.begin(), casts.end(), is_number)) return false;
    build_like(node, "/mean_");
    for (const NodeId cast : casts) {
      const ValueId chosen = graph_.node(cast).outputs[0];
      const TensorType type = graph_.value(chosen).type;
      ValueId mean = node.inputs[is_first ? 1 : 0];
      if (graph_.value(mean).type.dtype != type.dtype) mean = build_.cast(mean, type.dtype);
      if (is_less != is_first) mean = build_.sub(build_.scalar(1, type.dtype), mean);
      read_instead(chosen, build_.expand(mean, type.shape));
    }
    return true;
  }
  // Returns whether the node adds the numbers to others and all that reads the sum rounds it down:
  // then the others are the mean.
  bool round_nothing(ValueId drawn, NodeId by) {
    const Node node = graph_.node(by);
    if (node.op != "Add" || node.inputs[0] == node.inputs[1]) return false;
    const std::vector<NodeId>& floors = readers_[node.outputs[0].index()];
    if (!std::all_of(floors.begin(), floors.end(),
                     [&](NodeId floor) { return graph_.node(floor).op == "Floor"; }))
      return false;
    build_like(node, "/mean_");
    const TensorType type = graph_.value(node.outputs[0]).type;
    const ValueId mean = build_.expand(node.inputs[node.inputs[0] == drawn ? 1 : 0], type.shape);
    for (const NodeId floor : floors) read_instead(graph_.node(floor).outputs[0], mean);
    return true;
  }
  void build_like(const Node& node, const char* name) {
    build_.scope = node.scope, build_.tags = node.tags;
    build_.name_prefix = node.name + name;
  }

  // Finds the numbers of labels, or of their weights, by which sums over the batch are divided.
  std::set<ValueId> find_weights() const {
    std::set<ValueId> weights, seen;
    std::vector<ValueId> open{graph_.loss};
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      const Node* node = producer(id);
      if (node == nullptr || !seen.insert(id).second) continue;
      const std::vector<ValueId>& inputs = node->inputs;
      if (node->op == "Cast" || node->op == "Reshape" || node->op == "Neg") {
        open.push_back(inputs[0]);
      } else if (node->op == "Add" || node->op == "Sub" || node->op == "Mul") {
        open.insert(open.end(), inputs.begin(), inputs.end());
      } else if (node->op == "Div" && num_elements(graph_.value(inputs[1]).type.shape) == 1) {
        if (is_of_data(inputs[1]))
          weights.insert(inputs[1]);
        else
          open.push_back(inputs[0]);
      }
    }
    return weights;
  }
  // Returns whether a value is made of inputs, and of nothing that is kept.
  bool is_of_data(ValueId id) const {
    std::vector<ValueId> open{id};
    std::set<ValueId> seen{id};
    bool has_input = false;
    for (size_t i = 0; i < open.size(); ++i) {
      const Value& value = graph_.value(open[i]);
      if (value.kind == ValueKind::kState) return false;
      has_input = has_input || value.kind == ValueKind::kInput;
      if (!value.producer.valid()) continue;
      for (const ValueId input : graph_.node(value.producer).inputs)
        if (input.valid() && seen.insert(input).second) open.push_back(input);
    }
    return has_input;
  }

  Graph& graph_;
  Builder build_;
  const std::vector<std::vector<NodeId>> readers_;  // as it is trained
  std::set<ValueId> seen_;                          // by the walk under way
};

}  // namespace

Result<Graph> evaluated(Graph forward) {
  if (!forward.loss.valid()) return forward;  // differentiate says it
  PIPER_TRY(Evaluation(forward).run());
  PIPER_ASSIGN(forward, in_topological_order(std::move(forward)));
  return without_dead_nodes(std::move(forward), true);
}

}  // namespace piper
