// Rows that an index sends to the ranks of what it looks up: tokens to their experts. They keep
// their places among all rows, so that no order is to be known: a rank has its own, and works on
// all. From one product of an expert to the next nothing travels.
#include "axis_walk.h"

namespace piper {
namespace {

// Returns the letters of the leading dims that count so many rows; empty: dims and rows do not line
// up.
std::string row_letters(const Operand& operand, int64_t rows) {
  std::string letters;
  int64_t count = 1;
  for (size_t d = 0; d < operand.dims.size() && count < rows; ++d) {
    letters.append(operand.dims[d].begin(), operand.dims[d].end());
    count *= operand.shape[d];
  }
  return count == rows ? letters : std::string();
}

bool has_any(const Operand& operand, const std::string& letters) {
  return std::any_of(letters.begin(), letters.end(),
                     [&](char letter) { return occurrences(operand, letter) > 0; });
}

}  // namespace

ValueId AxisWalk::source_index(ValueId id) const {
  while (graph_.value(id).kind == ValueKind::kNode) {
    const Node& node = graph_.node(graph_.value(id).producer);
    if (node.op != "Reshape") break;
    id = node.inputs[0];
  }
  return id;
}

Layout AxisWalk::blocks_of_rows(ValueId id, const Layout& routed) const {
  const Shape& shape = type_of(id).shape;
  int64_t before = 1;
  for (size_t d = 0; d < shape.size() && routed.outer % before == 0; before *= shape[d++])
    if (const int64_t outer = routed.outer / before;
        shape[d] % (outer * ranks_) == 0 && (!routed.mirrored || outer % 2 == 0))
      return {kCut, static_cast<int>(d), outer, {}, routed.mirrored};
  PIPER_CHECK(false, "'{}' has no blocks of rows over {}", graph_.value(id).name, cut_.name);
}

std::optional<LoopCut> AxisWalk::looked_up(const Loops& loops) const {
  const LoopRule& rule = loops.rule;
  if (rule.picks < 0 || rule.firsts.size() != 1) return std::nullopt;
  const auto [letter, first] = rule.firsts[0];
  const auto at = static_cast<size_t>(first);
  const LoopCut cut{letter, 1};
  // Of what another axis has cut already its ranks own other numbers.
  const bool given = at < loops.types.present.size() && loops.types.present[at];
  const bool divides = size_of(rule, letter) % ranks_ == 0;
  return given || !divides || !is_legal(loops, cut) ? std::nullopt : std::optional(cut);
}

void AxisWalk::note_route(const Node& node, const Loops& loops) {
  const std::optional<LoopCut> cut = looked_up(loops);
  if (!cut) return;
  const auto picks = static_cast<size_t>(loops.rule.picks);
  const int64_t rows = num_elements(loops.types.inputs[picks].shape);
  const std::string letters = row_letters(loops.input(picks), rows);
  std::optional<int64_t> owned, outer;
  bool mirrored = false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].valid() || i == picks) continue;
    const Layout& lies = layout_[node.inputs[i].index()];
    const auto table = layout_of(loops.input(i), *cut);
    if (lies.kind != kCut) continue;
    if (table && lies == *table)
      owned = loops.input(i).shape[static_cast<size_t>(lies.dim)] / ranks_;
    const bool by_row = !letters.empty() && row_letters(loops.input(i), rows) == letters;
    if (by_row && stretches_of(loops.input(i).shape, lies.dim, 1) < rows)
      outer = stretches_of(loops.input(i).shape, lies.dim, lies.outer), mirrored = lies.mirrored;
  }
  if (owned && outer)
    routes_.try_emplace(source_index(node.inputs[picks]).value, Route{*outer, *owned, mirrored});
}

std::optional<Layout> AxisWalk::route_of(const Node& node, const Loops& loops) const {
  const auto layout = [&](const auto& route) {
    return Layout{kRouted, -1, route->second.outer, ValueId(route->first), route->second.mirrored};
  };
  if (looked_up(loops)) {
    const auto picks = static_cast<size_t>(loops.rule.picks);
    if (const auto known = routes_.find(source_index(node.inputs[picks]).value);
        known != routes_.end())
      return layout(known);
  }
  for (ValueId id : node.inputs)
    if (id.valid() && layout_[id.index()].kind == kRouted) return layout_[id.index()];
  return std::nullopt;
}

bool AxisWalk::passes_rows(const Loops& loops, int64_t rows) {
  const std::string letters = row_letters(loops.output(0), rows);
  return !letters.empty() && letters == row_letters(loops.input(0), rows) &&
         letters.find_first_of(loops.rule.whole) == std::string::npos;
}

std::optional<AxisWalk::Choice> AxisWalk::routed_choice(const Node& node,
                                                        const Loops& loops) const {
  const std::optional<Layout> routed = route_of(node, loops);
  if (!routed || loops.def->draws >= 0) return std::nullopt;
  const LoopRule& rule = loops.rule;
  const auto picks = static_cast<size_t>(rule.picks);
  const int64_t rows = num_elements(type_of(routed->by).shape);
  Choice choice{looked_up(loops)};
  const bool looks_up = choice.cut && source_index(node.inputs[picks]) == routed->by;
  // A stack that goes on further into zeros has others on each rank.
  if (looks_up && size_of(rule, choice.cut->letter) / ranks_ != routes_.at(routed->by.value).owned)
    return std::nullopt;
  if (!looks_up) choice.cut.reset();
  std::string letters;
  for (size_t i = 0; i < node.inputs.size() && letters.empty(); ++i)
    if (node.inputs[i].valid() &&
        (looks_up ? i == picks : layout_[node.inputs[i].index()].kind == kRouted))
      letters = row_letters(loops.input(i), rows);
  if (letters.empty() || letters.find_first_of(rule.whole) != std::string::npos)
    return std::nullopt;
  // Its rows, blocks of what is looked up, or the whole; nothing: not row by row.
  const auto laid = [&](const Operand& operand) -> std::optional<Layout> {
    const auto table = looks_up ? layout_of(operand, *choice.cut) : std::optional<Layout>();
    if (row_letters(operand, rows) == letters) return table ? std::nullopt : std::optional(*routed);
    if (has_any(operand, letters)) return std::nullopt;
    return table ? table : Layout{};
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    Layout need;
    const ValueId input = node.inputs[i];
    if (input.valid() && !(looks_up && i == picks)) {
      const std::optional<Layout> layout = laid(loops.input(i));
      if (!layout) return std::nullopt;
      const bool is_row = layout->kind == kRouted, is_whole = layout_[input.index()].kind == kWhole;
      // What goes on row by row takes no rows along that stay where they are.
      if (is_row && !is_whole && !looks_up && layout_[input.index()] != *routed)
        return std::nullopt;
      need = is_row && is_whole ? Layout{} : *layout;
    }
    if (input.valid()) choice.bytes += cost(input, need);
    choice.needs.push_back(need);
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const std::optional<Layout> layout = laid(loops.output(o));
    if (!layout || layout->kind == kWhole) return std::nullopt;
    choice.makes.push_back(*layout);
    if (const auto& wanted = hints_[node.outputs[o].index()]; wanted && *wanted != *layout)
      choice.bytes += cost_of(type_of(node.outputs[o]), *layout, *wanted);
  }
  return choice;
}

ValueId AxisWalk::convert_rows(ValueId id, const Layout& to, NodeId reader) {
  const Layout from = layout_[id.index()];
  if (from.kind == kWhole) return current_value_[id.index()];
  const Node near = graph_.node(converted_at(id, reader));
  const Layout& routed = to.kind == kRouted ? to : from;
  const Layout blocks = blocks_of_rows(id, routed);
  if (to == blocks)
    return emit("Combine", current_value_[id.index()], id, blocks, to, near, reader);
  const ValueId part = from == blocks ? current_value_[id.index()] : convert(id, blocks, reader);
  if (to.kind == kRouted) return emit("Dispatch", part, id, blocks, to, near, reader);
  if (is_exchange(blocks, to)) return emit("AllToAll", part, id, blocks, to, near, reader);
  const ValueId whole = emit("AllGather", part, id, blocks, Layout{}, near, reader);
  return to.kind == kWhole ? whole : emit("OwnBlock", whole, id, to, to, near, reader);
}

}  // namespace piper
