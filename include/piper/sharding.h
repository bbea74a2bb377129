// How values lie over mesh axes, from one rule per op (LoopRule): letters that pass through carry a
// shard, letters that are summed turn it into a partial sum, and a value that must be whole is
// brought together by a communication.
//
// The batch is the first axis group: a batch of B samples is cut into `replicas × microbatches`
// equal blocks; block replica × microbatches + mb holds samples [block × B/n, (block + 1) × B/n).
// Microbatches are a sequential axis, replicas a mesh axis; for layouts both are one axis group of
// n shards.
#pragma once

#include "piper/graph.h"

namespace piper {

struct BatchCut {
  int64_t replicas = 1;
  int64_t microbatches = 1;
  SourceSpan at;  // the split or replicate directive, for errors
};

// Requires a differentiated graph at global shapes. Ensures: every value has its layout and its
// local shape, every op is legal on local shapes (localise), and a Partial value meets only ops
// linear in it and StepSums; where a non-linear op needs one, a StepSum stands between: legal if it
// depends on inputs, constants and step-level values alone (the label count), else refused, naming
// op and scope. Every gradient contribution is Partial. n = 1 returns the graph as it is, but with
// the same StepSums (so that plans differ in cut alone).
Result<Graph> shard_batch(Graph graph, const BatchCut& cut);

}  // namespace piper
