// A chunk's nodes as segments: consecutive nodes of one layer, and each collective only.
#pragma once

#include <unordered_map>

#include "piper/planner/dag.h"

namespace piper {

// Collectives of a chunk that are one message, or are not run where they are among the nodes:
// what reads the result of one that has a stream, not 0, waits for it no earlier than it must.
struct ChunkCollective {
  std::vector<NodeId> nodes;
  int32_t stream = 0;
  int32_t distance = 0;  // so many programs ahead of where they stand
  auto operator<=>(const ChunkCollective&) const = default;
};

bool is_collective(const Node& node);
// Returns the item whose memory it is in.
ItemId root_of(const Dag& dag, ItemId item);
// Returns whether a group over these axes has ranks of several cells: of all, then.
bool is_over_cells(const Dag& dag, const std::vector<int32_t>& axes);
// Nodes without scope stay with their neighbours.
std::vector<std::vector<NodeId>> cut_into_segments(const Graph& graph,
                                                   const std::vector<NodeId>& nodes,
                                                   const std::vector<ChunkCollective>& collectives);

// Returns the values that are written into the memory of another value: updated state, sums in
// place.
std::unordered_map<int32_t, ValueId> find_same_memory(const Dag& dag, const Task& task);

}  // namespace piper
