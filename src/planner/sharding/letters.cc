// Loops of ops by letter, and where a layout cuts them.
#include "letters.h"

#include <algorithm>

namespace piper {

int64_t size_of(const LoopRule& rule, char letter) {
  for (const auto& [known, size] : rule.sizes)
    if (known == letter) return size;
  PIPER_CHECK(false, "a loop rule does not know its letter '{}'", letter);
}

// Returns the extent of each letter of dim `d`. A whole letter may stand for another extent than
// its size (a reshape that does not line up), so its extent is what the others leave; empty when
// that is not decided.
std::vector<int64_t> extents_of(const Operand& operand, size_t d) {
  const LoopRule::Dim& dim = operand.dims[d];
  std::vector<int64_t> extents;
  int64_t product = 1;
  std::optional<size_t> open;
  for (size_t i = 0; i < dim.size(); ++i) {
    bool is_whole = operand.rule.whole.find(dim[i]) != std::string::npos;
    if (is_whole && open) return {};
    if (is_whole) open = i;
    extents.push_back(is_whole ? 1 : size_of(operand.rule, dim[i]));
    product *= extents.back();
  }
  if (open && product > 0) extents[*open] = operand.shape[d] / product;
  return extents;
}

Loops loops_of(const Graph& graph, const Node& node) {
  const OpDef* def = find_op(node.op);
  Loops loops{def, use_of(graph, node), {}};
  loops.rule = def->loops(loops.types);
  return loops;
}

std::optional<LoopCut> cut_of(const Operand& operand, const Layout& layout, int64_t shards) {
  size_t d = static_cast<size_t>(layout.dim);
  const LoopRule::Dim& dim = operand.dims[d];
  std::vector<int64_t> extents = extents_of(operand, d);
  int64_t before = 1;
  std::optional<LoopCut> single;  // a loop of one turn, if no greater one starts here
  for (size_t i = 0; i < extents.size(); before *= extents[i++]) {
    if (layout.outer % before != 0) break;
    int64_t outer = layout.outer / before;
    if (extents[i] == 1 && outer == 1 && shards == 1 && !single) single = LoopCut{dim[i], 1};
    if (outer >= extents[i]) continue;
    if (extents[i] % (outer * shards) != 0 || (layout.mirrored && outer % 2 != 0)) break;
    return LoopCut{dim[i], outer, layout.mirrored};
  }
  return single;
}

std::optional<Layout> layout_of(const Operand& operand, const LoopCut& cut) {
  for (size_t d = 0; d < operand.dims.size(); ++d) {
    const LoopRule::Dim& dim = operand.dims[d];
    auto found = std::find(dim.begin(), dim.end(), cut.letter);
    if (found == dim.end()) continue;
    std::vector<int64_t> extents = extents_of(operand, d);
    if (extents.empty()) continue;
    Layout layout{LayoutKind::kSharded, static_cast<int>(d), cut.outer, {}, cut.mirrored};
    for (auto letter = dim.begin(); letter != found; ++letter) {
      layout.outer *= extents[static_cast<size_t>(letter - dim.begin())];
    }
    return layout;
  }
  return std::nullopt;
}

bool is_whole(const LoopRule& rule, char letter) {
  return rule.whole.find(letter) != std::string::npos ||
         std::any_of(rule.firsts.begin(), rule.firsts.end(),
                     [&](const auto& first) { return first.first == letter; });
}

int occurrences(const Operand& operand, char letter) {
  int count = 0;
  for (const LoopRule::Dim& dim : operand.dims) {
    count += static_cast<int>(std::count(dim.begin(), dim.end(), letter));
  }
  return count;
}

bool stands_once(const Loops& loops, char letter) {
  for (size_t i = 0; i < loops.rule.inputs.size(); ++i)
    if (occurrences(loops.input(i), letter) > 1) return false;
  for (size_t o = 0; o < loops.rule.outputs.size(); ++o)
    if (occurrences(loops.output(o), letter) > 1) return false;
  return true;
}

}  // namespace piper
