// What the closing pass of a step can do.
#pragma once

#include <vector>

#include "piper/ir/graph.h"

namespace piper {

// Returns by node whether it is of the forward and only what states become needs it, so that it may
// run once, after the microbatches.
std::vector<bool> find_closing(const Graph& graph);

// Makes nodes of pass U whose values are whole: no sum over the step is left of them, and what they
// need of the microbatches are sums. Under the name by which the verifier knows what may update a
// state is the first sum that its next value needs.
void close_step(Graph& graph, const std::vector<bool>& late);

}  // namespace piper
