// What `shard` of replicate does to the update: states become runs of the flat elements, one for
// each rank of the first level's axis and of those over which the gradient is terms.
#pragma once

#include "piper/dag.h"

namespace piper {

struct ShardedParam {
  ValueId whole, part;              // the parameter; the own run of it
  ValueId gradient, gradient_part;  // invalid when it has no gradient
  std::vector<int32_t> over;        // mesh axes, ascending
};

// Whether states are cut, and over how many ranks.
int64_t num_shards(const Dag& dag);
// A parameter is cut into `replicas` runs of ceil(elements / replicas), the last ones shorter, and
// a rank of the first level holds as many of them side by side as there are replicas for each
// shard. So the sums of squares of all runs, in order, are the same whatever is cut over which
// replicas. (Where further axes cut it, there are so many times as many runs.)
int64_t runs_of_part(const Dag& dag);

// Cuts the states of all parameters that are to be cut, and lets their optimizers work on parts.
// Fills dag.parts. In canonical parameter order.
std::vector<ShardedParam> shard_states(Dag& dag);

}  // namespace piper
