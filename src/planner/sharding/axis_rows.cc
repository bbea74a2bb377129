// Rows that an index sends to the ranks of what it looks up: tokens to their experts. They keep
// their places among all rows, so that no order is to be known: a rank has its own, and works on
// all. From one product of an expert to the next nothing travels.
#include <algorithm>

#include "axis_choice.h"

namespace piper::axis {
namespace {

bool has_any(const Operand& operand, const std::string& letters) {
  return std::any_of(letters.begin(), letters.end(),
                     [&](char letter) { return occurrences(operand, letter) > 0; });
}

// Returns the cut of what an op looks up, or adds to, by an index.
std::optional<LoopCut> lookup_cut(const Loops& loops, int64_t ranks) {
  const LoopRule& rule = loops.rule;
  if (rule.picks < 0 || rule.firsts.size() != 1) return std::nullopt;
  const auto [letter, first] = rule.firsts[0];
  const auto at = static_cast<size_t>(first);
  const LoopCut cut{letter, 1};
  // Of what another axis has cut already its ranks own other numbers.
  const bool given = at < loops.types.present.size() && loops.types.present[at];
  const bool divides = size_of(rule, letter) % ranks == 0;
  return given || !divides || !is_legal(loops, cut) ? std::nullopt : std::optional(cut);
}

// Returns the layout of the rows that the op looks up, or else of those that it reads.
std::optional<Layout> route_of(const State& state, const Node& node, const Loops& loops) {
  if (lookup_cut(loops, state.cut.ranks)) {
    const ValueId by = state.source_index(node.inputs[static_cast<size_t>(loops.rule.picks)]);
    if (const auto known = state.routes.find(by.value); known != state.routes.end())
      return Layout{kRouted, -1, known->second.outer, by, known->second.mirrored};
  }
  for (ValueId id : node.inputs)
    if (id.valid() && state.layout(id).kind == kRouted) return state.layout(id);
  return std::nullopt;
}

}  // namespace

std::optional<std::pair<ValueId, Route>> find_route(const State& state, const Node& node,
                                                    const Loops& loops) {
  const std::optional<LoopCut> cut = lookup_cut(loops, state.cut.ranks);
  if (!cut) return std::nullopt;
  const auto picks = static_cast<size_t>(loops.rule.picks);
  const int64_t rows = num_elements(loops.types.inputs[picks].shape);
  const std::string letters = row_letters(loops.input(picks), rows);
  Route route{0, 0, false};
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].valid() || i == picks) continue;
    const Layout& layout = state.layout(node.inputs[i]);
    if (layout.kind != kCut) continue;
    const Operand operand = loops.input(i);
    if (layout_of(operand, *cut) == layout)
      route.owned = operand.shape[static_cast<size_t>(layout.dim)] / state.cut.ranks;
    const bool by_row = !letters.empty() && row_letters(operand, rows) == letters;
    if (by_row && stretches_of(operand.shape, layout.dim, 1) < rows)
      route.outer = stretches_of(operand.shape, layout.dim, layout.outer),
      route.mirrored = layout.mirrored;
  }
  if (route.owned == 0 || route.outer == 0) return std::nullopt;
  return std::pair(state.source_index(node.inputs[picks]), route);
}

std::optional<Choice> routed_choice(const State& state, const Node& node, const Loops& loops) {
  const std::optional<Layout> routed = route_of(state, node, loops);
  if (!routed || loops.def->draws >= 0) return std::nullopt;
  const LoopRule& rule = loops.rule;
  const auto picks = static_cast<size_t>(rule.picks);
  const int64_t rows = num_elements(state.type_of(routed->by).shape);
  Choice choice{lookup_cut(loops, state.cut.ranks)};
  const bool looks_up = choice.cut && state.source_index(node.inputs[picks]) == routed->by;
  // A stack that goes on further into zeros has others on each rank.
  if (looks_up && size_of(rule, choice.cut->letter) / state.cut.ranks !=
                      state.routes.at(routed->by.value).owned)
    return std::nullopt;
  if (!looks_up) choice.cut.reset();
  std::string letters;
  for (size_t i = 0; i < node.inputs.size() && letters.empty(); ++i)
    if (node.inputs[i].valid() &&
        (looks_up ? i == picks : state.layout(node.inputs[i]).kind == kRouted))
      letters = row_letters(loops.input(i), rows);
  if (letters.empty() || letters.find_first_of(rule.whole) != std::string::npos)
    return std::nullopt;
  // Its rows, blocks of what is looked up, or the whole; nothing: not row by row.
  const auto layout_here = [&](const Operand& operand) -> std::optional<Layout> {
    const auto table = looks_up ? layout_of(operand, *choice.cut) : std::optional<Layout>();
    if (row_letters(operand, rows) == letters) return table ? std::nullopt : std::optional(*routed);
    if (has_any(operand, letters)) return std::nullopt;
    return table ? table : Layout{};
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    Layout need;
    const ValueId input = node.inputs[i];
    if (input.valid() && !(looks_up && i == picks)) {
      const std::optional<Layout> layout = layout_here(loops.input(i));
      if (!layout) return std::nullopt;
      const bool is_row = layout->kind == kRouted, is_whole = state.layout(input).kind == kWhole;
      // What goes on row by row takes no rows along that stay where they are.
      if (is_row && !is_whole && !looks_up && state.layout(input) != *routed) return std::nullopt;
      need = is_row && is_whole ? Layout{} : *layout;
    }
    if (input.valid()) choice.bytes += state.cost(input, need);
    choice.needs.push_back(need);
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const std::optional<Layout> layout = layout_here(loops.output(o));
    if (!layout || layout->kind == kWhole) return std::nullopt;
    choice.makes.push_back(*layout);
    if (const auto& wanted = state.hint(node.outputs[o]); wanted && *wanted != *layout)
      choice.bytes += state.cost_of(state.type_of(node.outputs[o]), *layout, *wanted);
  }
  return choice;
}

}  // namespace piper::axis
