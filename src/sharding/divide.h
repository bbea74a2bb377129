// Whether a batch can be cut into equal blocks at all.
#pragma once

#include "piper/sharding.h"

namespace piper {

// The error stands at the directive and names the nearest legal numbers.
Status check_divisible(const Graph& graph, const BatchCut& cut);

}  // namespace piper
