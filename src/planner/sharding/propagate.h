// How every value of a graph is laid out when its batch is cut, found by walking the nodes in order
// until nothing changes.
//
// Layouts flow forwards from the inputs. A value that does not depend on the samples but spells
// them out (an expanded mask, a constant with one equal block a sample) meets a cut one: then it is
// cut as well, from its producer on, and the walk starts again with that known.
#pragma once

#include <map>

#include "piper/ir/ops.h"
#include "piper/planner/sharding.h"

namespace piper {

// Says what a node reads in place of the value itself.
struct Reading {
  bool summed = false;          // the StepSum of a Partial value
  bool shared = false;          // a term of a value that all shards have: one has it, others zeros
  std::optional<Layout> block;  // a block of a constant
  bool differs = false;         // of which not all are the same
};

struct Propagated {
  std::vector<Layout> layouts;  // by value
  // By node and input, where a node does not read the value itself.
  std::map<std::pair<int32_t, int32_t>, Reading> readings;
  std::vector<bool> late;  // by node: it runs after the microbatches, once
};

// The error names the first op, in node order, that the cut does not get past. One shard cannot
// fail: everything that cannot be cut counts as a sum of one term.
Result<Propagated> propagate(const Graph& graph, const BatchCut& cut);

}  // namespace piper
