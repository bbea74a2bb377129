// Parts of a region of ops that one device runs in turn: a mesh axis in time.
#pragma once

#include <set>

#include "piper/planner/sharding.h"

namespace piper {

// The number that stands for the axis in time in layouts and collectives, while it is there.
inline constexpr int32_t kAxisInTime = -1;
// The tag that holds the region of ops which run in parts.
inline constexpr const char* kRegionOfParts = "part region";

// Plays the ranks of the axis in time one after the other: an op on what differs by rank becomes
// one for each part, and collectives become slices, concatenations and sums in the order of parts.
// `doors`: results of ops that change nothing, which go.
Parts unroll(Graph graph, const PartCut& cut, const std::set<ValueId>& doors);

}  // namespace piper
