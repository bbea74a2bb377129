// States beside parameters: 16-bit copies and versions, and how updates make them.
#include "kept.h"

#include <algorithm>
#include <map>
#include <set>

#include "piper/ir/ops.h"

namespace piper {
namespace {

// Returns a state that starts as another one does, perhaps in another type.
ValueId add_state_like(Graph& graph, ValueId like, std::string name, DType dtype) {
  const Value& of = graph.value(like);
  return graph.add_value({.name = std::move(name),
                          .type = {dtype, of.type.shape},
                          .kind = ValueKind::kState,
                          .fill = of.fill,
                          .layout = of.layout,
                          .over = of.over});
}

// Lets microbatches read `instead`, by value, where it is valid.
void read_instead(Graph& graph, const std::vector<ValueId>& instead) {
  for (Node& node : graph.nodes)
    for (ValueId& input : node.inputs)
      if (node.pass != Pass::kU && input.valid() && instead[input.index()].valid())
        input = instead[input.index()];
}

bool rounds_to_half(const Graph& graph, const Node& node) {
  if (node.pass == Pass::kU || node.op != "Cast") return false;
  const DType to = graph.value(node.outputs[0]).type.dtype;
  return graph.value(node.inputs[0]).type.dtype == DType::kF32 &&
         (to == DType::kBF16 || to == DType::kF16);
}

// The next value of a copy is that of its parameter, `next`, rounded.
void round_update(Graph& graph, const Copy& made, ValueId next) {
  PIPER_CHECK(next.valid(), "nothing updates '{}'", graph.value(made.master).name);
  const TensorType type = graph.value(made.copy).type;
  const NodeId cast = graph.add_node({.op = "Cast",
                                      .name = graph.value(made.copy).name + ".next",
                                      .scope = graph.node(graph.value(next).producer).scope,
                                      .attrs = {{"to", std::string(info(type.dtype).name)}},
                                      .inputs = {next},
                                      .pass = Pass::kU},
                                     std::span(&type, 1));
  const ValueId rounded = graph.node(cast).outputs[0];
  graph.value(rounded).layout = graph.value(next).layout;
  graph.value(rounded).over = graph.value(next).over;
  graph.updates.push_back({made.copy, rounded});
}

// Describes casts to 16 bits of a parameter, perhaps moved before.
struct Rounding {
  NodeId cast;
  std::vector<NodeId> moves;  // what makes what it casts, last first
};

class Copier {
 public:
  explicit Copier(Dag& dag)
      : dag_(dag),
        graph_(dag.graph),
        readers_(readers(dag.graph)),
        param_of_(dag.graph.values.size(), -1) {
    for (size_t p = 0; p < graph_.params.size(); ++p)
      if (graph_.params[p].gradient.valid())
        param_of_[graph_.params[p].value.index()] = static_cast<int32_t>(p);
    for (const auto& [copy, original] : dag.variants.copies) varies_.insert({copy, original});
  }

  // Makes a copy for each rounding that is found, and has it read instead.
  void read_copies() {
    std::vector<ValueId> instead(graph_.values.size() + found_.size());
    for (const auto& [of, roundings] : found_) {
      const Param& param = graph_.params[static_cast<size_t>(of.first)];
      const ValueId copy = add_state_like(graph_, param.value, name_of(of), of.second);
      dag_.copies.push_back({param.value, copy});
      for (const Rounding& each : roundings)
        instead[graph_.node(each.cast).outputs[0].index()] = moved(each, copy, of.second);
    }
    read_instead(graph_, instead);
    for (const auto& [of, roundings] : found_)
      for (const Rounding& each : roundings) {  // nobody reads it
        Node& cast = graph_.node(each.cast);
        cast.inputs[0] = instead[cast.outputs[0].index()];
      }
  }

  void run(const std::optional<std::set<std::string>>& only) {
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (rounds_to_half(graph_, graph_.nodes[i])) find(NodeId(i));
    if (only)
      std::erase_if(found_, [&](const auto& one) { return !only->contains(name_of(one.first)); });
    read_copies();
    std::vector<ValueId> next(graph_.values.size());  // by state
    for (const StateUpdate& update : graph_.updates) next[update.state.index()] = update.next;
    for (const Copy& copy : dag_.copies) round_update(graph_, copy, next[copy.master.index()]);
  }

 private:
  std::string name_of(const std::pair<int32_t, DType>& of) const {
    return fmt::format("{}.{}", graph_.params[static_cast<size_t>(of.first)].name,
                       info(of.second).name);
  }
  DType dtype_of(NodeId node) const {
    return graph_.value(graph_.node(node).outputs[0]).type.dtype;
  }
  void find(NodeId cast) {
    Rounding rounding{cast, {}};
    ValueId from = graph_.node(cast).inputs[0];
    while (is_moved(from, rounding)) {
      rounding.moves.push_back(graph_.value(from).producer);
      from = graph_.node(rounding.moves.back()).inputs[0];
    }
    if (const int32_t param = param_of_[from.index()]; param >= 0)
      found_[{param, dtype_of(cast)}].push_back(std::move(rounding));
  }
  // Returns whether the value is made by an op that leaves elements as they are, for casts to that
  // type only, or for the move that was found last.
  bool is_moved(ValueId value, const Rounding& rounding) const {
    const NodeId producer = graph_.value(value).producer;
    if (!producer.valid() || varies_.contains(value)) return false;
    const Node& node = graph_.node(producer);
    const OpDef* def = find_op(node.op);
    if (node.pass == Pass::kU || !def || def->elements == OpDef::Elements::kMade ||
        node.inputs.size() != 1)
      return false;
    const auto& all = readers_[value.index()];
    return std::all_of(all.begin(), all.end(), [&](NodeId reader) {
      if (!rounding.moves.empty()) return reader == rounding.moves.back();
      return rounds_to_half(graph_, graph_.node(reader)) &&
             dtype_of(reader) == dtype_of(rounding.cast);
    });
  }
  // Returns the copy, moved as the parameter was.
  ValueId moved(const Rounding& rounding, ValueId copy, DType dtype) {
    for (auto move = rounding.moves.rbegin(); move != rounding.moves.rend(); ++move) {
      Node& node = graph_.node(*move);
      node.inputs[0] = copy;
      copy = node.outputs[0];
      graph_.value(copy).type.dtype = dtype;
    }
    return copy;
  }

  Dag& dag_;
  Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;
  std::vector<int32_t> param_of_;  // by value: of trained parameters
  std::set<ValueId> varies_;       // what some microbatches make again, and some do not
  std::map<std::pair<int32_t, DType>, std::vector<Rounding>> found_;  // by parameter and type
};

}  // namespace

void keep_copies(Dag& dag, const std::optional<std::set<std::string>>& only) {
  Copier(dag).run(only);
}

ValueId rounded_in_blocks(Builder& build, ValueId value, const PartsInBlocks& how) {
  const TensorType type = build.type(value);
  Attrs attrs{{"to", std::string(kScaledNames[static_cast<size_t>(how.scaled)])},
              {"block", how.block},
              {"run", how.run}};
  Shape shape, piece;
  for (size_t d = 0; d < type.shape.size(); ++d) {
    if (how.outer[d] > 1) shape.push_back(how.outer[d]), piece.push_back(how.outer[d]);
    shape.push_back(type.shape[d] / how.outer[d]);
    piece.push_back(how.piece[d] / how.outer[d]);
  }
  if (piece != shape) attrs.set("piece", piece);
  const ValueId blocks = build.op1("ToBlocks", {build.reshape(value, shape)}, attrs);
  attrs.set("shape", shape);
  attrs.set("type", std::string(info(type.dtype).name));
  return build.reshape(build.op1("FromBlocks", {blocks}, attrs), type.shape);
}

void read_in_blocks(Dag& dag, const std::map<std::string, PartsInBlocks>& params) {
  Graph& graph = dag.graph;
  std::map<ValueId, const PartsInBlocks*> how;
  for (const Param& param : graph.params)
    if (const auto known = params.find(param.name); known != params.end())
      how.emplace(param.value, &known->second);
  for (const Copy& copy : dag.copies)
    if (const auto of = how.find(copy.master); of != how.end()) how.emplace(copy.copy, of->second);
  const size_t count = graph.nodes.size();
  std::vector<NodeId> order;
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < graph.nodes[i].inputs.size(); ++k) {
      const ValueId input = graph.nodes[i].inputs[k];
      if (graph.nodes[i].pass == Pass::kU || !input.valid() || !how.contains(input)) continue;
      const Node& reader = graph.nodes[i];
      Builder build(graph);
      build.scope = reader.scope, build.tags = reader.tags, build.pass = reader.pass;
      build.name_prefix = fmt::format("{}.{}.", reader.name, graph.value(input).name);
      const size_t first = graph.nodes.size();
      const ValueId made = rounded_in_blocks(build, input, *how.at(input));
      for (size_t n = first; n < graph.nodes.size(); ++n) order.emplace_back(n);
      std::ranges::replace(graph.nodes[i].inputs, input, made);
    }
    order.emplace_back(i);
  }
  graph.put_in_order(order);
}

void keep_previous_weights(Dag& dag, const std::map<std::string, int64_t>& versions) {
  Graph& graph = dag.graph;
  std::vector<bool> is_read(graph.values.size());
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs)
      if (node.pass != Pass::kU && input.valid()) is_read[input.index()] = true;
  std::vector<ValueId> previous(graph.values.size());
  std::vector<int64_t> of_param(graph.values.size(), 1);
  for (const Param& param : graph.params)
    if (const auto known = versions.find(param.name); known != versions.end())
      of_param[param.value.index()] = known->second;
  const auto keep = [&](ValueId newest, const std::string& name, int64_t wanted) {
    if (!is_read[newest.index()] || wanted == 1) return;
    const DType dtype = graph.value(newest).type.dtype;
    std::vector<Version> chain;
    for (ValueId newer = newest; std::ssize(chain) < wanted - 1; newer = chain.back().previous) {
      const std::string age = chain.empty() ? "" : std::to_string(chain.size() + 1);
      chain.push_back({newer, add_state_like(graph, newest, name + ".previous" + age, dtype)});
    }
    previous[newest.index()] = chain.back().previous;
    // The oldest takes its value first.
    dag.versions.insert(dag.versions.end(), chain.rbegin(), chain.rend());
  };
  for (const Param& param : graph.params)
    if (param.gradient.valid()) keep(param.value, param.name, of_param[param.value.index()]);
  for (const Copy& copy : dag.copies)
    keep(copy.copy, std::string(graph.value(copy.copy).name), of_param[copy.master.index()]);
  read_instead(graph, previous);
}

namespace {

ValueId add_number(Graph& graph, const char* name, double first) {
  return graph.add_value(
      {.name = name, .type = {DType::kI64, {}}, .kind = ValueKind::kState, .fill = first});
}
// `from`'s place among the updates and where they read it goes to `to`.
void update_instead(Graph& graph, ValueId from, ValueId to) {
  for (StateUpdate& update : graph.updates)
    if (update.state == from) {
      update.state = to;
      graph.value(update.next).name = graph.value(to).name + ".next";
    }
  for (Node& node : graph.nodes)
    if (node.pass == Pass::kU) std::replace(node.inputs.begin(), node.inputs.end(), from, to);
}

}  // namespace

void keep_next_step(Dag& dag) {
  Graph& graph = dag.graph;
  bool drawn = false, counted = false;
  for (const Node& node : graph.nodes)
    if (std::ranges::count(node.inputs, graph.step) > 0)
      (node.pass == Pass::kU ? counted : drawn) |= node.op != "NextStep";
  if (!drawn) return;
  const ValueId next = add_number(graph, "next_step", 1);
  if (!counted) {
    update_instead(graph, graph.step, next);
  } else {
    update_instead(graph, graph.step, add_number(graph, "updates", 0));
    Builder build(graph);
    build.pass = Pass::kU;
    graph.updates.push_back({next, build.op1("NextStep", {next})});
    graph.value(graph.updates.back().next).name = "next_step.next";
  }
  dag.versions.push_back({next, graph.step});
}

}  // namespace piper
