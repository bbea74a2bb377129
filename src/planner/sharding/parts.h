// Parts of a region of ops that one device runs in turn: a mesh axis in time.
#pragma once

#include <set>

#include "piper/planner/sharding.h"

namespace piper {

// The number that stands for the axis in time in layouts and collectives, while it is there.
inline constexpr int32_t kAxisInTime = -1;
// Returns whether a value differs from part to part.
bool differs_in_time(const Graph& graph, ValueId id);
// Returns whether a node is attention whose queries are in chunks and see no later keys.
bool reads_in_order(const Graph& graph, const Node& node);

// Plays the ranks of the axis in time one after the other: an op on what differs by rank becomes
// one for each part, and collectives become slices, concatenations and sums in the order of parts.
// `doors`: results of ops that change nothing, which go.
// Chunks of tokens in order each get what they may see of keys, and hand gradients of these back.
Parts unroll(Graph graph, const PartCut& cut, const std::set<ValueId>& doors);

}  // namespace piper
