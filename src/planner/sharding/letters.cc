// Loops of ops by letter, and where a layout cuts them.
#include "letters.h"

#include <algorithm>
#include <cstdint>
#include <variant>

namespace piper {

namespace {

// Hashes what a rule is given but for the attributes that are no integers: few uses differ in those
// alone.
class UseHash {
 public:
  UseHash(const OpDef* def, const Graph& graph, const Node& node) {
    add(reinterpret_cast<uintptr_t>(def));
    for (const auto* values : {&node.inputs, &node.outputs}) {
      add(values->size());
      for (const ValueId id : *values)
        if (id.valid()) add(graph.value(id).type.shape);
    }
    for (const auto& [name, value] : node.attrs.items())
      if (const auto* number = std::get_if<int64_t>(&value))
        add(static_cast<uint64_t>(*number));
      else if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value))
        add(*numbers);
  }
  size_t value() const { return value_; }

 private:
  void add(uint64_t number) {
    value_ = (value_ ^ number) * 0x9e3779b97f4a7c15;
    value_ ^= value_ >> 32;
  }
  template <class Numbers>
  void add(const Numbers& numbers) {
    add(numbers.size());
    for (const int64_t one : numbers) add(static_cast<uint64_t>(one));
  }

  uint64_t value_ = 0;
};

bool is_use(const Loops& loops, const OpDef* def, const Graph& graph, const Node& node) {
  const OpTypes& types = loops.types;
  if (loops.def != def || types.inputs.size() != node.inputs.size() ||
      types.outputs.size() != node.outputs.size() || types.attrs != node.attrs)
    return false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    if (types.present[i] != id.valid()) return false;
    if (id.valid() && types.inputs[i] != graph.value(id).type) return false;
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (types.outputs[o] != graph.value(node.outputs[o]).type) return false;
  return true;
}

}  // namespace

const Loops* LoopTable::find(const Graph& graph, const Node& node, NodeId id) {
  if (by_node_.size() <= id.index()) by_node_.resize(graph.nodes.size());
  const Loops*& found = by_node_[id.index()];
  if (found != nullptr) return found;
  const OpDef* def = find_op(node.op);
  if (def == nullptr || def->loops == nullptr) return nullptr;
  const size_t hash = UseHash(def, graph, node).value();
  const auto [first, last] = known_.equal_range(hash);
  for (auto known = first; known != last; ++known)
    if (is_use(*known->second, def, graph, node)) return found = known->second.get();
  auto made = std::make_unique<Loops>(Loops{def, use_of(graph, node), {}});
  made->rule = def->loops(made->types);
  return found = known_.emplace(hash, std::move(made))->second.get();
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
    Layout layout{LayoutKind::kSharded, static_cast<int>(d), cut.outer, {}, cut.mirrored};
    if (dim.size() == 1) return layout;
    std::vector<int64_t> extents = extents_of(operand, d);
    if (extents.empty()) continue;
    for (auto letter = dim.begin(); letter != found; ++letter) {
      layout.outer *= extents[static_cast<size_t>(letter - dim.begin())];
    }
    return layout;
  }
  return std::nullopt;
}

bool stands_once(const Loops& loops, char letter) {
  for (size_t i = 0; i < loops.rule.inputs.size(); ++i)
    if (occurrences(loops.input(i), letter) > 1) return false;
  for (size_t o = 0; o < loops.rule.outputs.size(); ++o)
    if (occurrences(loops.output(o), letter) > 1) return false;
  return true;
}

}  // namespace piper
