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

// Cuts the states of all parameters that are to be cut, and lets their optimizers work on parts.
// Fills dag.parts. In canonical parameter order.
std::vector<ShardedParam> shard_states(Dag& dag);

}  // namespace piper
