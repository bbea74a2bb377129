// Adds ops to the graph of a rank, on operands in the layouts that were chosen.
#include "axis_rewriter.h"

#include <algorithm>
#include <set>

namespace piper::axis {

// ---- What is known before an op -----------------------------------------------------------------

Status Rewriter::seed(const ShardSeed& seed) {
  PIPER_ASSIGN(const Layout layout, layout_of_seed(state_, seed));
  ValueState& value = state_.at(seed.value);
  value.is_seed = true;
  if (state_.graph.value(seed.value).kind != ValueKind::kNode)
    value.layout = layout;
  else if (!value.fixed)
    value.fixed = layout;
  if (layout.kind == kCut) hint(seed.value, layout);
  return ok_status();
}

void Rewriter::hint(ValueId at, const Layout& layout) {
  for (const auto& [id, need] : hints_from(state_, at, layout)) state_.at(id).hint = need;
}

void Rewriter::prepare(const Node& node, const Loops& loops) {
  const bool moves_state = only_moves(loops, node) && state_.may_adopt(node.inputs[0]);
  if (moves_state || (loops.is_product() && is_touched(state_, node)))
    for (ValueId output : node.outputs)
      if (!state_.hint(output)) state_.at(output).hint = preferred_layout(state_, output);
  if (const auto route = find_route(state_, node, loops))
    state_.routes.try_emplace(route->first.value, route->second);
}

// ---- An op --------------------------------------------------------------------------------------

// Tells an op of how many rows it picks, if these are packed.
void Rewriter::set_rows(const Node& node, const Choice& choice, Node& made) {
  const auto& known = state_.loops(node).def->attributes;
  const auto takes_rows = [](const OpAttribute& one) { return one.name == "rows"; };
  if (const int picks = state_.loops(node).rule.picks;
      picks >= 0 && std::ranges::any_of(known, takes_rows))
    if (const Layout& need = choice.needs[static_cast<size_t>(picks)]; state_.is_packed(need))
      made.attrs.set("rows", state_.routes.at(need.by.value).rows / state_.cut.ranks);
}

void Rewriter::rewrite(NodeId id, const Choice& choice) {
  const Node& node = state_.graph.node(id);
  sum_numbers(id, choice);
  Node made = node;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].valid()) made.inputs[i] = read(node.inputs[i], choice.needs[i], id);
  for (size_t i = 0; is_step_sum(node) && i < node.inputs.size(); ++i)  // no collective adds to it
    if (ValueId& input = made.inputs[i]; input != state_.at(node.inputs[i]).current) {
      const Node& near = state_.graph.node(state_.graph.value(node.inputs[i]).producer);
      const Shape shape = state_.type_of(input).shape;
      input = add(beside(near, "Reshape", {input}, {{"shape", shape}}), choice.needs[i]);
    }
  if (choice.cut) place_first(made, state_.loops(node).rule, *choice.cut);
  set_rows(node, choice, made);
  if (choice.cut && find_op(node.op)->draws >= 0) place_draw(made, choice.makes[0]);
  append(std::move(made), id);
  record_layouts(id, choice);
}

void Rewriter::record_layouts(NodeId id, const Choice& choice) {
  const Node& node = state_.graph.node(id);
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const ValueId output = node.outputs[o];
    ValueState& value = state_.at(output);
    value.layout = value.made = choice.makes[o];
    if (value.layout.kind == kTerms && !value.hint) value.hint = preferred_layout(state_, output);
    if (value.fixed && *value.fixed != value.layout) convert_for_all(output, *value.fixed, id);
  }
}

void Rewriter::convert_for_all(ValueId output, const Layout& to, NodeId id) {
  state_.at(output).current = convert(output, to, id);
  state_.at(output).layout = to;
}

void Rewriter::add_converted(ValueId id, const Layout& layout, NodeId reader, ValueId made) {
  state_.converted[state_.key_of(id, layout, reader)] = made;
}

Attrs Rewriter::own_numbers(const LoopCut& cut, int64_t extent, ValueId before) const {
  const AxisCut& axis = state_.cut;
  Attrs attrs{{"over", int64_t{axis.axis}}, {"size", extent / (axis.ranks * cut.outer)}};
  if (cut.outer == 1 || (before.valid() && !state_.type_of(before).shape.empty())) return attrs;
  attrs.set("ranks", axis.ranks);
  attrs.set("outer", cut.outer);
  if (cut.mirrored) attrs.set("mirrored", int64_t{1});
  return attrs;
}

void Rewriter::place_first(Node& node, const LoopRule& rule, const LoopCut& cut) {
  for (const auto& [letter, input] : rule.firsts) {
    if (letter != cut.letter) continue;
    const auto at = static_cast<size_t>(input);
    const int64_t size = loop_size(rule, letter);
    if (node.inputs.size() <= at) node.inputs.resize(at + 1);
    const ValueId before = node.inputs[at];
    ValueId first = add(beside(node, "OwnFirst", {}, own_numbers(cut, size, before)), {});
    if (before.valid()) first = add(beside(node, "Add", {before, first}, {}), {});
    node.inputs[at] = first;
    if (!node.attrs.find("whole")) node.attrs.set("whole", size);
  }
}

// Tells an op which part of the random numbers it draws (ops/random.cc).
void Rewriter::place_draw(Node& node, const Layout& layout) {
  if (layout.kind != kCut) return;
  const AxisCut& axis = state_.cut;
  const Shape& shape = state_.type_of(node.outputs[0]).shape;
  const int64_t rows = stretches_of(shape, layout.dim, layout.outer);
  std::vector<int64_t> cuts = node.attrs.integers("cuts");
  cuts.insert(cuts.end(), {layout.mirrored ? -rows : rows, axis.ranks});
  node.attrs.set("cuts", std::move(cuts));
  Node near = node;
  near.pass = region_of(node).first;
  const ValueId own = own_number(near, {{"over", int64_t{axis.axis}}, {"size", int64_t{1}}});
  node.inputs.resize(
      std::max(node.inputs.size(), static_cast<size_t>(find_op(node.op)->draws) + 3));
  node.inputs.push_back(own);
}

// Numbers of which the op needs the sums travel together, as one vector.
void Rewriter::sum_numbers(NodeId id, const Choice& choice) {
  const Node& node = state_.graph.node(id);
  std::vector<ValueId> numbers;
  std::set<ValueId> seen;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId input = node.inputs[i];
    if (!input.valid() || state_.layout(input).kind != kTerms || choice.needs[i].kind != kWhole)
      continue;
    const TensorType& type = state_.type_of(input);
    if (num_elements(type.shape) == 1 && !state_.converted.contains(state_.key_of(input, {}, id)) &&
        (numbers.empty() || type.dtype == state_.type_of(numbers[0]).dtype) &&
        seen.insert(input).second)
      numbers.push_back(input);
  }
  if (numbers.size() < 2) return;
  std::vector<ValueId> parts;
  for (ValueId number : numbers)
    parts.push_back(
        add(beside(node, "Reshape", {state_.at(number).current}, {{"shape", Shape{1}}}), {kTerms}));
  const ValueId joined = add(beside(node, "Concat", parts, {{"axis", int64_t{0}}}), {kTerms});
  const ValueId sums =
      add(beside(node, "AllReduce", {joined}, {{"over", int64_t{state_.cut.axis}}}), {});
  add_conversion(joined, id, state_.cost_of(state_.type_of(joined), {kTerms}, {}));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const Attrs one{{"starts", std::vector{at}},
                    {"ends", std::vector{at + 1}},
                    {"steps", std::vector<int64_t>{1}}};
    const ValueId sum = add(beside(node, "Slice", {sums}, one), {});
    const Shape shape = state_.type_of(numbers[i]).shape;
    add_converted(numbers[i], {}, id, add(beside(node, "Reshape", {sum}, {{"shape", shape}}), {}));
  }
}

// ---- Ops that stand for one ---------------------------------------------------------------------

Node Rewriter::beside(const Node& near, std::string_view op, std::vector<ValueId> inputs,
                      Attrs attrs) const {
  return node_beside(near, state_.cut.name, op, std::move(inputs), std::move(attrs));
}

std::vector<ValueId> Rewriter::add(Node node, std::span<const ValueId> like,
                                   std::span<const Layout> layouts, NodeId source) {
  OpTypes use = use_of(state_.graph, node);
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].valid()) use.inputs[i] = type_here(node.inputs[i]);
  const Result<std::vector<TensorType>> types = find_op(node.op)->types(use);
  PIPER_CHECK(types.ok(), "{} '{}': {}", node.op, node.name, types.error().message);
  node.outputs.clear();
  for (size_t o = 0; o < types->size(); ++o)
    node.outputs.push_back(state_.graph.add_value(
        value_like(like[o], fmt::format("{}{}", node.name, state_.graph.values.size()), (*types)[o],
                   layouts[o])));
  std::vector<ValueId> made = node.outputs;
  append(std::move(node), source);
  return made;
}

ValueId Rewriter::add(Node node, const Layout& layout, ValueId like) {
  if (!like.valid() && !node.inputs.empty()) like = node.inputs[0];
  return add(std::move(node), {&like, 1}, {&layout, 1})[0];
}

void Rewriter::append(Node node, NodeId source) {
  nodes_.push_back(std::move(node));
  sources_.push_back(source);
}

ValueId Rewriter::own_number(const Node& near, Attrs attrs) {
  ValueId& number = own_numbers_[{region_of(near), print_attrs(attrs)}];
  if (!number.valid()) number = add(beside(near, "OwnFirst", {}, std::move(attrs)), {});
  return number;
}

TensorType Rewriter::type_here(ValueId id) const {
  TensorType type = state_.type_of(id);
  if (id.index() >= state_.values.size() || state_.is_loaded_whole(id)) return type;
  const bool is_made = state_.graph.value(id).kind == ValueKind::kNode;
  type.shape = state_.local(type.shape, is_made ? state_.at(id).made : state_.layout(id));
  return type;
}

Value Rewriter::value_like(ValueId of, std::string name, TensorType type,
                           const Layout& layout) const {
  Value value{.name = std::move(name), .type = std::move(type)};
  if (of.valid()) value.layout = state_.graph.value(of).layout;
  if (of.valid()) value.over = state_.graph.value(of).over;
  std::erase_if(value.over, [&](const AxisLayout& over) { return over.axis == state_.cut.axis; });
  set_layout(value, layout);
  return value;
}

void Rewriter::set_layout(Value& value, const Layout& layout) const {
  if (layout.kind != kWhole)
    value.over.push_back({state_.cut.axis, layout.kind == kRouted ? Layout{kRouted} : layout});
}

// ---- The end ------------------------------------------------------------------------------------

ShardedGraph Rewriter::finish() {
  // This lists the readers by their places among the nodes that are made.
  std::vector<NodeId> places(state_.graph.nodes.size());
  for (size_t n = 0; n < sources_.size(); ++n)
    if (sources_[n].valid()) places[sources_[n].index()] = NodeId(n);
  for (Conversion& conversion : conversions_) conversion.reader = places[conversion.reader.index()];
  end_step();
  localise_all();
  return {std::move(state_.graph), std::move(conversions_)};
}

void Rewriter::end_step() {
  const size_t before = conversions_.size();
  Graph& graph = state_.graph;
  const auto finish = [&](ValueId& id, const Layout& to) {
    if (!id.valid()) return;
    const NodeId producer = graph.value(id).producer;
    if (state_.layout(id) != to && producer.valid())
      id = convert(id, to, producer);
    else
      id = state_.at(id).current;
  };
  for (StateUpdate& update : graph.updates) finish(update.next, state_.layout(update.state));
  for (Param& param : graph.params) finish(param.gradient, state_.layout(param.value));
  finish(graph.loss, {});
  finish(graph.grad_norm, {});
  finish(graph.weight, {});
  for (size_t c = before; c < conversions_.size(); ++c) conversions_[c].reader = {};
}

namespace {

void set_producers(Graph& graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (size_t o = 0; o < graph.nodes[n].outputs.size(); ++o) {
      Value& made = graph.value(graph.nodes[n].outputs[o]);
      made.producer = NodeId(n), made.output_index = static_cast<int>(o);
    }
}

}  // namespace

void Rewriter::localise_all() {
  Graph& graph = state_.graph;
  for (size_t i = 0; i < state_.values.size(); ++i)
    if (graph.values[i].kind == ValueKind::kState) state_.values[i].made = state_.values[i].layout;
  for (size_t n = 0; n < nodes_.size(); ++n)
    if (sources_[n].valid())
      localise(graph, graph.node(sources_[n]), nodes_[n], [&](ValueId id) {
        return state_.local(state_.type_of(id).shape, state_.at(id).made);
      });
  for (size_t i = 0; i < state_.values.size(); ++i) {
    Value& value = graph.values[i];
    value.type.shape = state_.local(std::move(value.type.shape), state_.values[i].made);
    set_layout(value, state_.values[i].made);
  }
  graph.nodes = std::move(nodes_);
  set_producers(graph);
  check_types(graph, state_.cut.name);
}

}  // namespace piper::axis
