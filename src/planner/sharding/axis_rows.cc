// Rows that an index sends to the ranks of what it looks up: tokens to their experts. They keep
// their places among all rows, so that no order is to be known: a rank has its own, and works on
// all. From one product of an expert to the next nothing travels.
#include <algorithm>
#include <cmath>

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
  const bool divides = loop_size(rule, letter) % ranks == 0;
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
  route.rows = rows;
  if (state.cut.capacity) {
    const int64_t own = rows / state.cut.ranks;
    const double even = static_cast<double>(own) / static_cast<double>(state.cut.ranks);
    route.room = std::min(own, static_cast<int64_t>(std::ceil(*state.cut.capacity * even - 1e-9)));
  }
  return std::pair(state.source_index(node.inputs[picks]), route);
}

namespace {

// Describes how an op works on rows that are sent.
struct RowUse {
  Layout routed;
  std::string letters;  // of the rows
  int64_t rows = 0;
  std::optional<LoopCut> table;  // the blocks of what it looks up, if it does

  // Returns how an operand lies: its rows are sent, it is in blocks of what is looked up, or whole.
  // None: the op does not go row by row.
  std::optional<Layout> layout_of(const Operand& operand) const {
    const auto blocks = table ? piper::layout_of(operand, *table) : std::nullopt;
    if (row_letters(operand, rows) == letters) return blocks ? std::nullopt : std::optional(routed);
    if (has_any(operand, letters)) return std::nullopt;
    return blocks ? blocks : Layout{};
  }
};

std::optional<RowUse> row_use(const State& state, const Node& node, const Loops& loops) {
  const std::optional<Layout> routed = route_of(state, node, loops);
  if (!routed || loops.def->draws >= 0) return std::nullopt;
  RowUse use{*routed,
             {},
             num_elements(state.type_of(routed->by).shape),
             lookup_cut(loops, state.cut.ranks)};
  const auto picks = static_cast<size_t>(loops.rule.picks);
  if (use.table && state.source_index(node.inputs[picks]) != routed->by) use.table.reset();
  // A stack that goes on further into zeros has others on each rank.
  if (use.table && loop_size(loops.rule, use.table->letter) / state.cut.ranks !=
                       state.routes.at(routed->by.value).owned)
    return std::nullopt;
  for (size_t i = 0; i < node.inputs.size() && use.letters.empty(); ++i)
    if (const ValueId id = node.inputs[i];
        id.valid() && (use.table ? i == picks : state.layout(id).kind == kRouted))
      use.letters = row_letters(loops.input(i), use.rows);
  const bool passes = use.letters.find_first_of(loops.rule.whole) == std::string::npos;
  return use.letters.empty() || !passes ? std::nullopt : std::optional(use);
}

}  // namespace

std::optional<Choice> routed_choice(const State& state, const Node& node, const Loops& loops) {
  const std::optional<RowUse> use = row_use(state, node, loops);
  if (!use) return std::nullopt;
  Choice choice{use->table};
  const bool packed = state.is_packed(use->routed);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    Layout& need = choice.needs.emplace_back();
    if (!id.valid()) continue;
    if (packed && use->table && i == static_cast<size_t>(loops.rule.picks)) {
      need = use->routed;
    } else if (!use->table || i != static_cast<size_t>(loops.rule.picks)) {
      const std::optional<Layout> layout = use->layout_of(loops.input(i));
      if (!layout) return std::nullopt;
      const bool is_row = layout->kind == kRouted, is_whole = state.layout(id).kind == kWhole;
      // What goes on row by row takes no rows along that stay where they are.
      if (is_row && !is_whole && !use->table && state.layout(id) != use->routed)
        return std::nullopt;
      // Floats that all ranks hold are packed as well; integers stay whole.
      if (is_row && packed && !info(state.type_of(id).dtype).is_float) return std::nullopt;
      if (!is_row || !is_whole || packed) need = *layout;
    }
    choice.bytes += state.cost(id, need);
  }
  for (ValueId output : node.outputs) {
    const size_t o = choice.makes.size();
    const std::optional<Layout> layout = use->layout_of(loops.output(o));
    if (!layout || layout->kind == kWhole) return std::nullopt;
    choice.makes.push_back(*layout);
    if (const auto& hint = state.hint(output); hint && *hint != *layout)
      choice.bytes += state.cost_of(state.type_of(output), *layout, *hint);
  }
  return choice;
}

}  // namespace piper::axis
