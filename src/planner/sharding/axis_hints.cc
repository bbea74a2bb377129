// What is known before an op is met: how tensors of the strategy are laid out, and where results
// must be.
#include <climits>

#include "axis_walk.h"

namespace piper {

Status AxisWalk::seed_layout_of(const ShardSeed& seed) {
  const Value& value = graph_.value(seed.value);
  Layout layout;
  if (seed.dim >= 0) {
    PIPER_CHECK(seed.dim < static_cast<int>(value.type.shape.size()));
    const int64_t extent = value.type.shape[static_cast<size_t>(seed.dim)];
    const int64_t parts = ranks_ * (seed.zigzag ? 2 : 1);
    const int64_t whole = seed.outer > 0 ? seed.outer : outer_of(seed);
    const int64_t outer = extent % parts == 0 ? whole * parts / ranks_ : 0;
    if (outer == 0 || (seed.zigzag && extent % (outer * ranks_) != 0))
      return fail(seed.at, "dim {} of '{}' ({}) cannot be cut into {} equal parts over '{}'",
                  seed.dim, quote_control(value.name), to_string(value.type), parts, cut_.name);
    layout = {kCut, seed.dim, outer, {}, seed.zigzag};
  }
  is_seed_[seed.value.index()] = true;
  if (value.kind == ValueKind::kNode)
    fixed_layout_.emplace(seed.value.value, layout);
  else
    layout_[seed.value.index()] = layout;
  if (layout.kind == kCut) hint(seed.value, layout);
  return ok_status();
}

int64_t AxisWalk::outer_of(const ShardSeed& seed) const {
  const int64_t extent = type_of(seed.value).shape[static_cast<size_t>(seed.dim)];
  std::set<int64_t> outers{1};
  follow(seed.value, {kCut, seed.dim, 1}, &outers);
  for (const AxisLayout& before : graph_.value(seed.value).over)
    if (before.layout.dim == seed.dim) outers.insert(before.layout.outer);
  int64_t best = 0;
  int least = INT_MAX;
  for (int64_t outer : outers) {
    if (least == 0) break;
    if (extent % (outer * ranks_) != 0 || !is_beside(seed, outer)) continue;
    const int refused = follow(seed.value, {kCut, seed.dim, outer}, nullptr);
    if (refused < least) best = outer;
    least = std::min(least, refused);
  }
  return best;
}

bool AxisWalk::is_beside(const ShardSeed& seed, int64_t outer) const {
  const auto& over = graph_.value(seed.value).over;
  return std::all_of(over.begin(), over.end(), [&](const AxisLayout& before) {
    const int64_t known = before.layout.outer;
    return before.layout.kind != kCut || before.layout.dim != seed.dim || outer % known == 0 ||
           known % (outer * ranks_ * (before.layout.mirrored ? 2 : 1)) == 0;
  });
}

int AxisWalk::follow(ValueId from, const Layout& layout, std::set<int64_t>* outers) const {
  constexpr size_t kMost = 64;
  std::vector<std::pair<ValueId, Layout>> open{{from, layout}};
  int refused = 0;
  for (size_t at = 0; at < open.size() && at < kMost; ++at) {
    const auto [value, lies] = open[at];
    for (NodeId reader : readers_[value.index()]) {
      const Node& node = graph_.node(reader);
      if (node.pass != Pass::kF) continue;
      const Loops loops = loops_of(graph_, node);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != value) continue;
        if (outers) note_outers(loops, i, lies, *outers);
        const std::optional<LoopCut> cut = cut_of(loops.input(i), lies, ranks_);
        if (!cut || !is_legal(loops, *cut)) {
          ++refused;
          continue;
        }
        for (size_t o = 0; o < node.outputs.size(); ++o)
          if (const auto made = layout_of(loops.output(o), *cut))
            open.emplace_back(node.outputs[o], *made);
      }
    }
  }
  return refused;
}

void AxisWalk::note_outers(const Loops& loops, size_t input, const Layout& lies,
                           std::set<int64_t>& outers) {
  const auto d = static_cast<size_t>(lies.dim);
  const LoopRule::Dim& dim = loops.rule.inputs[input][d];
  int64_t inner = 1;
  for (auto letter = dim.rbegin(); letter != dim.rend(); ++letter) {
    for (const auto& [name, size] : loops.rule.sizes) inner *= name == *letter ? size : 1;
    const int64_t extent = loops.types.inputs[input].shape[d];
    if (inner > 0 && extent % inner == 0) outers.insert(extent / inner);
  }
}

void AxisWalk::hint(ValueId at, const Layout& layout) {
  std::vector<std::pair<ValueId, Layout>> open{{at, layout}};
  while (!open.empty()) {
    const auto [value, lies] = open.back();
    open.pop_back();
    if (hints_[value.index()]) continue;
    hints_[value.index()] = lies;
    const Value& made = graph_.value(value);
    if (made.kind != ValueKind::kNode) continue;
    const Node& node = graph_.node(made.producer);
    const Loops loops = loops_of(graph_, node);
    const auto cut = cut_of(loops.output(static_cast<size_t>(made.output_index)), lies, ranks_);
    const auto output = static_cast<size_t>(made.output_index);
    if (!cut || !is_legal(loops, *cut) || sums(loops.output(output))) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid() || graph_.value(node.inputs[i]).kind != ValueKind::kNode)
        continue;
      if (const auto input = layout_of(loops.input(i), *cut))
        open.emplace_back(node.inputs[i], *input);
    }
  }
}

bool AxisWalk::sums(const Operand& output) {
  return std::any_of(output.rule.sizes.begin(), output.rule.sizes.end(),
                     [&](const auto& letter) { return occurrences(output, letter.first) == 0; });
}

std::optional<Layout> AxisWalk::preferred_layout(ValueId value, int further) const {
  for (NodeId reader : readers_[value.index()]) {
    const Node& node = graph_.node(reader);
    const Loops loops = loops_of(graph_, node);
    std::optional<LoopCut> cut;
    const bool moves = only_moves(loops, node),
               is_same = further > 0 && node.outputs.size() == 1 && !loops.is_product() &&
                         type_of(node.outputs[0]).shape == type_of(value).shape;
    const std::optional<Layout> behind = moves || is_same
                                             ? preferred_layout(node.outputs[0], further - !moves)
                                             : std::optional<Layout>();
    if (behind) cut = cut_of(loops.output(0), *behind, ranks_);
    for (size_t i = 0; i < node.inputs.size() && !cut; ++i)
      if (const Layout lies = predicted_layout(node.inputs[i]); lies.kind == kCut)
        cut = cut_of(loops.input(i), lies, ranks_);
    if (!cut || !is_legal(loops, *cut)) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] == value)
        if (const auto layout = layout_of(loops.input(i), *cut)) return layout;
  }
  return std::nullopt;
}

Layout AxisWalk::predicted_layout(ValueId id) const {
  if (!id.valid()) return {};
  const Value& value = graph_.value(id);
  if (value.kind != ValueKind::kNode || value.producer.value < visited_) return layout_[id.index()];
  const Node& node = graph_.node(value.producer);
  const Loops loops = loops_of(graph_, node);
  if (!only_moves(loops, node)) return {};
  const Layout source = predicted_layout(node.inputs[0]);
  if (source.kind != kCut) return {};
  const std::optional<LoopCut> cut = cut_of(loops.input(0), source, ranks_);
  if (!cut || !is_legal(loops, *cut)) return {};
  return layout_of(loops.output(0), *cut).value_or(Layout{});
}

bool AxisWalk::only_moves(const Loops& loops, const Node& node) {
  return node.inputs.size() == 1 && node.outputs.size() == 1 && !loops.def->collective &&
         loops.rule.linear == std::vector<std::vector<int>>{{0}} &&
         loops.types.inputs[0].bytes() == loops.types.outputs[0].bytes() &&
         loops.def->cost(loops.types).flops == 0;
}

}  // namespace piper
