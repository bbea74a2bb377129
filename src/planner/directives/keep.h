// Which values of a region the backward pass finds kept, and which it makes again.
#pragma once

#include "piper/ir/graph.h"

namespace piper {

struct Kept {
  std::vector<bool> values;  // by value id: kept, of those that the region's forward ops make
  int64_t bytes = 0;         // of these and of what the region takes from outside
};

// Returns the values of fewest bytes with which the backward pass of a region gets along when it
// may repeat some of its forward ops (both by node id): a minimum cut of the dataflow between what
// is given and what the backward pass reads, each value costing its bytes.
Kept keep_least(const Graph& graph, const std::vector<bool>& in_region,
                const std::vector<bool>& may_repeat);

// Returns the FLOPs that repeating the op takes, per byte of its results.
double intensity_of(const Graph& graph, const Node& node);

// Puts each node from `count` on just before the first other one that reads it: what is made again
// is there for a short time, and what else the backward pass could begin with waits for its turn.
void put_copies_in_order(Graph& graph, size_t count);

}  // namespace piper
