// Where a shard of an operand's dim is among the loops of an op, and back.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "piper/ir/loop_letters.h"

namespace piper {

// Describes a loop that is cut: the letter is [outer, shards × local, inner], and a shard holds its
// block of each outer part; where `mirrored`, of an even number of these, as Layout says.
struct LoopCut {
  char letter = 0;
  int64_t outer = 1;
  bool mirrored = false;
  bool operator==(const LoopCut&) const = default;
};

// Views one operand of an op: the letters of its dims, and their extents at global shapes.
struct Operand {
  const LoopRule& rule;
  const std::vector<LoopRule::Dim>& dims;
  const Shape& shape;
};

// Views an op of a graph, and the loops of this use of it.
struct Loops {
  const OpDef* def = nullptr;
  OpTypes types;
  LoopRule rule;

  Operand input(size_t i) const { return {rule, rule.inputs[i], types.inputs[i].shape}; }
  Operand output(size_t i) const { return {rule, rule.outputs[i], types.outputs[i].shape}; }
  bool is_product() const { return def->cost(types).is_matmul; }
};

// Finds the loops of a graph's nodes. Layers repeat, so uses of an op that are alike share one.
class LoopTable {
 public:
  // `id` is that of `node`; of an op without a rule there is none.
  const Loops* find(const Graph& graph, const Node& node, NodeId id);

 private:
  std::vector<const Loops*> by_node_;
  std::unordered_multimap<size_t, std::unique_ptr<Loops>> known_;  // by a hash of the use
};

// Returns the loop that `layout` (kSharded) cuts into `shards`; none when the cut is not
// inside one loop.
//   dim 0 of f32[32,…] is "bt" with b = 8, t = 4:
//   S0 cuts b, S0/8 cuts t, S0/2 cuts b with outer 2
std::optional<LoopCut> cut_of(const Operand& operand, const Layout& layout, int64_t shards);

// Returns how the operand is laid out when `cut` is made; none when it does not have the letter.
std::optional<Layout> layout_of(const Operand& operand, const LoopCut& cut);

// Returns the extent of each letter of dim `d`; empty where that is not decided.
inline std::vector<int64_t> extents_of(const Operand& operand, size_t d) {
  return extents_of(operand.rule, operand.dims[d], operand.shape[d]);
}

inline size_t occurrences(const Operand& operand, char letter) {
  return occurrences(operand.dims, letter);
}
// Returns whether it is more than once in none of the op's.
bool stands_once(const Loops& loops, char letter);

}  // namespace piper
