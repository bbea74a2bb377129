// What choices and the rewriter of an axis ask about ops, values and conversions.
#include "axis_state.h"

#include <algorithm>
#include <utility>

#include "parts.h"

namespace piper::axis {
namespace {

// The numbers of several stretches are those of one that axes before have left, or these are cut.
bool may_begin(const Loops& loops, size_t first, const LoopCut& cut) {
  const bool told = first < loops.types.present.size() && loops.types.present[first] &&
                    !loops.types.inputs[first].shape.empty();
  if (told) return !cut.mirrored && loops.types.inputs[first].shape[0] == cut.outer;
  return cut.outer == 1 || loops.rule.stretches;
}

// Returns whether the op makes wider floats of the same numbers.
bool widens(const State& state, const Node& node) {
  return node.op == "Cast" && !is_partial(state.layout(node.inputs[0])) &&
         info(state.type_of(node.inputs[0]).dtype).is_float &&
         state.type_of(node.inputs[0]).bytes() < state.type_of(node.outputs[0]).bytes();
}

// Returns whether what only moves elements leaves the rows as they are.
bool passes_rows(const Loops& loops, int64_t rows) {
  const std::string letters = row_letters(loops.output(0), rows);
  return !letters.empty() && letters == row_letters(loops.input(0), rows) &&
         letters.find_first_of(loops.rule.whole) == std::string::npos;
}

}  // namespace

bool is_exchange(const Layout& from, const Layout& to) {
  if (from.kind == kCut && to.kind == kCut) return from.dim != to.dim;
  return (from.kind == kRouted && to.kind == kCut) || (from.kind == kCut && to.kind == kRouted);
}

bool is_legal(const Loops& loops, const LoopCut& cut) {
  const LoopRule& rule = loops.rule;
  if (needs_whole(rule, cut.letter)) return false;
  for (const auto& [letter, input] : rule.firsts)
    if (letter == cut.letter && !may_begin(loops, static_cast<size_t>(input), cut)) return false;
  const auto is_cut = [&](const Operand& operand) {
    const size_t times = occurrences(operand, cut.letter);
    return times == 0 || (times == 1 && layout_of(operand, cut));
  };
  for (size_t i = 0; i < rule.inputs.size(); ++i)
    if (!is_cut(loops.input(i))) return false;
  for (size_t o = 0; o < rule.outputs.size(); ++o) {
    if (!is_cut(loops.output(o))) return false;
    if (occurrences(loops.output(o), cut.letter) == 0 && rule.reduces == LoopRule::kNone)
      return false;
  }
  return true;
}

std::optional<LoopCut> legal_cut(const Loops& loops, const Operand& operand, const Layout& layout,
                                 int64_t ranks) {
  const std::optional<LoopCut> cut = cut_of(operand, layout, ranks);
  return cut && is_legal(loops, *cut) ? cut : std::nullopt;
}

bool only_moves(const Loops& loops, const Node& node) {
  return node.inputs.size() == 1 && node.outputs.size() == 1 && !loops.def->collective &&
         loops.rule.linear == std::vector<std::vector<int>>{{0}} &&
         loops.types.inputs[0].bytes() == loops.types.outputs[0].bytes() &&
         loops.def->cost(loops.types).flops == 0;
}

bool joins_parts(const Graph& graph, const Node& node) {
  const int tag = graph.tag_index(kRegionOfParts);
  if (tag < 0 || node.op != "Concat" || graph.tag(node, tag) != kNoTag) return false;
  return std::ranges::all_of(node.inputs, [&](ValueId id) {
    const NodeId maker = graph.value(id).producer;
    return maker.valid() && graph.tag(graph.node(maker), tag) != kNoTag;
  });
}

std::string row_letters(const Operand& operand, int64_t rows) {
  std::string letters;
  int64_t count = 1;
  for (size_t d = 0; d < operand.dims.size() && count < rows; ++d) {
    letters.append(operand.dims[d].begin(), operand.dims[d].end());
    count *= operand.shape[d];
  }
  return count == rows ? letters : std::string();
}

Region region_of(const Node& node) {
  return {is_backward(node) ? Pass::kBI : node.pass, node.tags};
}

ValueId input_of(const Graph& graph, ValueId id) {
  while (graph.value(id).producer.valid()) {
    const Node& node = graph.node(graph.value(id).producer);
    if (node.op != "OwnBlock" && node.op != "Slice") return id;
    id = node.inputs[0];
  }
  return id;
}

State::State(Graph whole, const AxisCut& axis)
    : cut(axis), graph(std::move(whole)), readers(piper::readers(graph)) {
  values.resize(graph.values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i].current = ValueId(i);
}

const Loops& State::loops(const Node& node) const {
  return *loops_.find(graph, node, NodeId(&node - graph.nodes.data()));
}

bool State::adds_up(ValueId id) const {
  const auto& by = readers[id.index()];
  const auto ends = [&](NodeId reader) {
    const Node& node = graph.node(reader);
    return is_step_sum(node) || (node.op == "Slice" && adds_up(node.outputs[0]));
  };
  return !by.empty() && std::all_of(by.begin(), by.end(), ends);
}

bool State::may_adopt(ValueId id) const {
  return graph.value(id).kind == ValueKind::kState && !at(id).is_seed &&
         layout(id).kind == kWhole && !at(id).is_read_whole;
}

bool State::is_loaded_whole(ValueId id) const {
  return at(id).is_seed && graph.value(id).kind == ValueKind::kInput;
}

// Packed rows are counted by the first of the dims that count rows.
Shape State::local(Shape shape, const Layout& layout) const {
  if (!is_packed(layout)) return local_shape(std::move(shape), layout, cut.ranks);
  const Route& route = routes.at(layout.by.value);
  int64_t count = 1;
  for (size_t d = 0; count < route.rows; ++d)
    count *= std::exchange(shape[d], d == 0 ? route.room * cut.ranks : 1);
  return shape;
}

ValueId State::source_index(ValueId id) const {
  while (graph.value(id).kind == ValueKind::kNode) {
    const Node& node = graph.node(graph.value(id).producer);
    if (node.op != "Reshape") break;
    id = node.inputs[0];
  }
  return id;
}

Layout State::blocks_of_rows(ValueId id, const Layout& routed) const {
  const Shape& shape = type_of(id).shape;
  int64_t before = 1;
  for (size_t d = 0; d < shape.size() && routed.outer % before == 0; before *= shape[d++])
    if (const int64_t outer = routed.outer / before;
        shape[d] % (outer * cut.ranks) == 0 && (!routed.mirrored || outer % 2 == 0))
      return {kCut, static_cast<int>(d), outer, {}, routed.mirrored};
  PIPER_CHECK(false, "'{}' has no blocks of rows over {}", graph.value(id).name, cut.name);
}

double State::cost_of(const TensorType& type, const Layout& from, const Layout& to) const {
  const double all = static_cast<double>(type.bytes()), n = static_cast<double>(cut.ranks);
  const double most = all * (n - 1) / n;
  if (from == to || from.kind == kWhole) return 0;
  if (is_partial(from)) return to.kind == kWhole ? 2 * most : most;
  if (from.kind == kRouted && to.kind == kWhole) return most / n + most;  // in blocks, then whole
  return is_exchange(from, to) ? most / n : most;  // of one dim: gathered, then cut
}

double State::cost(ValueId id, const Layout& to) const {
  return may_adopt(id) || is_there(id, to, visited) ? 0 : cost_of(type_of(id), layout(id), to);
}

NodeId State::converted_at(ValueId id, NodeId reader) const {
  const Value& value = graph.value(id);
  const bool is_sum = is_partial(layout(id)) || is_step_sum(graph.node(reader));
  return is_sum && value.kind == ValueKind::kNode ? value.producer : reader;
}

State::Key State::key_of(ValueId id, const Layout& to, NodeId reader) const {
  Region region = region_of(graph.node(converted_at(id, reader)));
  const Value& value = graph.value(id);
  // Blocks of another dim are no more than those that they are made of: they are kept for the
  // backward pass. So are rows that have been sent, and the numbers by which they were.
  const bool is_index = to.kind == kWhole && routes.contains(source_index(id).value);
  if (value.kind == ValueKind::kNode && (is_exchange(layout(id), to) || is_index))
    region.first = region_of(graph.node(value.producer)).first;
  const int of = to.kind == kRouted ? to.by.value : to.dim;
  return {id.value, static_cast<int>(to.kind), of, to.outer, to.mirrored, std::move(region)};
}

bool State::is_there(ValueId id, const Layout& to, NodeId reader) const {
  if (layout(id) == to || converted.contains(key_of(id, to, reader))) return true;
  const std::optional<Layout> source = layout_of_source(id, to);
  return source && is_there(graph.node(graph.value(id).producer).inputs[0], *source, reader);
}

std::optional<Layout> State::layout_of_source(ValueId id, const Layout& to) const {
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kNode || at(id).fixed) return std::nullopt;
  const Node& node = graph.node(value.producer);
  const Loops& loops = this->loops(node);
  if (!only_moves(loops, node) && !widens(*this, node)) return std::nullopt;
  if (to.kind == kRouted)
    return passes_rows(loops, num_elements(type_of(to.by).shape)) ? std::optional(to)
                                                                  : std::nullopt;
  if (to.kind != kCut) return to;
  const std::optional<LoopCut> cut_loop = legal_cut(loops, loops.output(0), to, cut.ranks);
  return cut_loop ? layout_of(loops.input(0), *cut_loop) : std::nullopt;
}

}  // namespace piper::axis
