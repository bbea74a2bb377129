// The end of the step: norm, clipping, learning rates, one optimizer op per parameter, the step
// counter.
#pragma once

#include "piper/autodiff.h"

namespace piper {

// Requires gradients (Param::gradient). Ensures updates, grad_norm and step.
Status add_update(Graph& graph, const TrainSpec& train);

}  // namespace piper
