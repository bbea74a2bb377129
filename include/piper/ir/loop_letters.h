// Questions about the letters of loop rules (ops.h), for all who cut operands or follow cuts.
#pragma once

#include "piper/ir/ops.h"

namespace piper {

// Returns whether the op needs the whole loop of a letter.
bool needs_whole(const LoopRule& rule, char letter);
// Returns whether an input tells a shard of the letter where it begins.
bool tells_first(const LoopRule& rule, char letter);
// Returns whether the letter cannot be cut where nothing tells a shard where it begins.
bool is_whole(const LoopRule& rule, char letter);
int64_t loop_size(const LoopRule& rule, char letter);  // 1: the rule does not have the letter
// Returns the extent of each letter of a dim. One that must be whole may stand for another extent
// than its size (a reshape that does not line up), so its extent is what the others leave; empty if
// there are two such letters.
std::vector<int64_t> extents_of(const LoopRule& rule, const LoopRule::Dim& dim, int64_t extent);
// Returns how often the letter is in an operand: more than once on a diagonal.
size_t occurrences(const std::vector<LoopRule::Dim>& dims, char letter);

}  // namespace piper
