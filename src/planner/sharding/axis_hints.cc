// Layouts of the strategy's tensors, and hints: what is needed later, carried back to where it is
// made.
#include <climits>
#include <set>

#include "axis_choice.h"

namespace piper::axis {
namespace {

// Notes into how many outer parts the loops of an operand decompose a dim that is cut.
void note_outers(const Loops& loops, size_t input, const Layout& layout,
                 std::set<int64_t>& outers) {
  const auto d = static_cast<size_t>(layout.dim);
  const LoopRule::Dim& dim = loops.rule.inputs[input][d];
  int64_t inner = 1;
  for (auto letter = dim.rbegin(); letter != dim.rend(); ++letter) {
    for (const auto& [name, size] : loops.rule.sizes) inner *= name == *letter ? size : 1;
    const int64_t extent = loops.types.inputs[input].shape[d];
    if (inner > 0 && extent % inner == 0) outers.insert(extent / inner);
  }
}

// Returns how many of the later ops do not get past the cut, up to where it is summed over; adds to
// `outers` those into which dims are decomposed on the way. Ways that part, as those of a region's
// parts, meet again: each value is looked at once.
int count_refusals(const State& state, ValueId from, const Layout& layout,
                   std::set<int64_t>* outers) {
  constexpr size_t kMost = 64;
  std::vector<std::pair<ValueId, Layout>> open{{from, layout}};
  std::set<ValueId> known{from};
  int refused = 0;
  for (size_t at = 0; at < open.size() && at < kMost; ++at) {
    const auto [value, here] = open[at];
    for (NodeId reader : state.readers[value.index()]) {
      const Node& node = state.graph.node(reader);
      if (node.pass != Pass::kF) continue;
      const Loops& loops = state.loops(node);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != value) continue;
        if (outers) note_outers(loops, i, here, *outers);
        const auto cut = legal_cut(loops, loops.input(i), here, state.cut.ranks);
        refused += !cut;
        for (size_t o = 0; cut && o < node.outputs.size(); ++o)
          if (const auto made = layout_of(loops.output(o), *cut);
              made && known.insert(node.outputs[o]).second)
            open.emplace_back(node.outputs[o], *made);
      }
    }
  }
  return refused;
}

// Returns whether blocks are inside those of axes before, or have several of them.
bool is_beside(const State& state, const ShardSeed& seed, int64_t outer) {
  const auto& over = state.graph.value(seed.value).over;
  return std::all_of(over.begin(), over.end(), [&](const AxisLayout& before) {
    const int64_t known = before.layout.outer;
    return before.layout.kind != kCut || before.layout.dim != seed.dim || outer % known == 0 ||
           known % (outer * state.cut.ranks * (before.layout.mirrored ? 2 : 1)) == 0;
  });
}

// Returns the fewest parts that let most of the readers, and those of what these make, work on
// their part. 0: none is beside blocks of others.
int64_t outer_of(const State& state, const ShardSeed& seed) {
  const int64_t extent = state.type_of(seed.value).shape[static_cast<size_t>(seed.dim)];
  std::set<int64_t> outers{1};
  count_refusals(state, seed.value, {kCut, seed.dim, 1}, &outers);
  for (const AxisLayout& before : state.graph.value(seed.value).over)
    if (before.layout.dim == seed.dim) outers.insert(before.layout.outer);
  int64_t best = 0;
  int least = INT_MAX;
  for (int64_t outer : outers) {
    if (least == 0) break;
    if (extent % (outer * state.cut.ranks) != 0 || !is_beside(state, seed, outer)) continue;
    const int refused = count_refusals(state, seed.value, {kCut, seed.dim, outer}, nullptr);
    if (refused < least) best = outer;
    least = std::min(least, refused);
  }
  return best;
}

// Returns whether some loop of the op is not one of this result's.
bool sums_into(const Operand& output) {
  return std::any_of(output.rule.sizes.begin(), output.rule.sizes.end(),
                     [&](const auto& letter) { return occurrences(output, letter.first) == 0; });
}

// Predicts a layout, also of what is still to come where that only moves elements.
Layout predicted_layout(const State& state, ValueId id) {
  if (!id.valid()) return {};
  const Value& value = state.graph.value(id);
  if (value.kind != ValueKind::kNode || value.producer < state.visited) return state.layout(id);
  const Node& node = state.graph.node(value.producer);
  const Loops& loops = state.loops(node);
  if (!only_moves(loops, node)) return {};
  const Layout source = predicted_layout(state, node.inputs[0]);
  if (source.kind != kCut) return {};
  const auto cut = legal_cut(loops, loops.input(0), source, state.cut.ranks);
  return cut ? layout_of(loops.output(0), *cut).value_or(Layout{}) : Layout{};
}

// Follows a value to its readers, and what these make to its own, for the layout that they prefer.
// Ways that part, as at a residual, meet again: each value is looked at once.
class Preferences {
 public:
  explicit Preferences(const State& state) : state_(state) {}

  // `further`: so many ops that do not only move elements may be on the way.
  std::optional<Layout> of(ValueId value, int further) {
    const std::pair key(value.value, further);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    return known_[key] = find(value, further);
  }

 private:
  std::optional<Layout> find(ValueId value, int further) {
    const int64_t ranks = state_.cut.ranks;
    // A number, as the norm of all gradients, has no parts, and may have thousands of readers.
    if (num_elements(state_.type_of(value).shape) < ranks) return std::nullopt;
    for (NodeId reader : state_.readers[value.index()]) {
      const Node& node = state_.graph.node(reader);
      const Loops& loops = state_.loops(node);
      std::optional<LoopCut> cut;
      const bool moves = only_moves(loops, node) || joins_parts(state_.graph, node),
                 is_same = further > 0 && node.outputs.size() == 1 && !loops.is_product() &&
                           state_.type_of(node.outputs[0]).shape == state_.type_of(value).shape;
      const auto after = moves || is_same ? of(node.outputs[0], further - !moves) : std::nullopt;
      if (after) cut = cut_of(loops.output(0), *after, ranks);
      for (size_t i = 0; i < node.inputs.size() && !cut; ++i)
        if (const Layout layout = predicted_layout(state_, node.inputs[i]); layout.kind == kCut)
          cut = cut_of(loops.input(i), layout, ranks);
      if (!cut || !is_legal(loops, *cut)) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i] == value)
          if (const auto layout = layout_of(loops.input(i), *cut)) return layout;
    }
    return std::nullopt;
  }

  const State& state_;
  std::map<std::pair<int32_t, int>, std::optional<Layout>> known_;
};

void add_needs(const State& state, const Node& node, const LoopCut& cut,
               std::vector<std::pair<ValueId, Layout>>& open) {
  const Loops& loops = state.loops(node);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId input = node.inputs[i];
    if (!input.valid() || state.graph.value(input).kind != ValueKind::kNode) continue;
    if (const auto need = layout_of(loops.input(i), cut)) open.emplace_back(input, *need);
  }
}

}  // namespace

Result<Layout> layout_of_seed(const State& state, const ShardSeed& seed) {
  if (seed.dim < 0) return Layout{};
  const Value& value = state.graph.value(seed.value);
  const int64_t ranks = state.cut.ranks;
  PIPER_CHECK(seed.dim < static_cast<int>(value.type.shape.size()));
  const int64_t extent = value.type.shape[static_cast<size_t>(seed.dim)];
  const int64_t parts = ranks * (seed.zigzag ? 2 : 1);
  const int64_t whole = seed.outer > 0 ? seed.outer : outer_of(state, seed);
  const int64_t outer = extent % parts == 0 ? whole * parts / ranks : 0;
  if (outer == 0 || extent % (outer * ranks) != 0) {
    const ValueId input = input_of(state.graph, seed.value);
    if (input != seed.value && state.graph.value(input).kind == ValueKind::kInput)
      return fail(seed.at,
                  "shard: {} are left of dim {} of '{}', which cannot be cut into {} equal parts "
                  "over '{}'",
                  extent, seed.dim, quote_control(state.graph.value(input).name),
                  std::max(whole * parts / ranks, int64_t{1}) * ranks, state.cut.name)
          .with_note(
              "help: chunks and other axes have cut it before; all axes of `shard` together divide "
              "each chunk");
    return fail(seed.at, "dim {} of '{}' ({}) cannot be cut into {} equal parts over '{}'",
                seed.dim, quote_control(value.name), to_string(value.type), parts, state.cut.name);
  }
  return Layout{kCut, seed.dim, outer, {}, seed.zigzag};
}

std::vector<std::pair<ValueId, Layout>> hints_from(const State& state, ValueId at,
                                                   const Layout& layout) {
  std::vector<std::pair<ValueId, Layout>> open{{at, layout}}, hints;
  std::set<int32_t> known;
  while (!open.empty()) {
    const auto [value, here] = open.back();
    open.pop_back();
    if (state.hint(value) || !known.insert(value.value).second) continue;
    hints.emplace_back(value, here);
    const Value& made = state.graph.value(value);
    if (made.kind != ValueKind::kNode) continue;
    const Node& node = state.graph.node(made.producer);
    const Loops& loops = state.loops(node);
    const Operand output = loops.output(static_cast<size_t>(made.output_index));
    const auto cut = legal_cut(loops, output, here, state.cut.ranks);
    if (!cut || sums_into(output)) continue;
    add_needs(state, node, *cut, open);
  }
  return hints;
}

std::optional<Layout> preferred_layout(const State& state, ValueId value) {
  return Preferences(state).of(value, 3);
}

}  // namespace piper::axis
