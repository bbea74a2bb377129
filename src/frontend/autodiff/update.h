// The update: what a step does once with the whole gradients.
#pragma once

#include "backward.h"
#include "piper/frontend/autodiff.h"

namespace piper {

// Appends the sums over the step, norm, clipping, learning rates and optimizer; sets loss,
// grad_norm, step, updates and Param::gradient. Requires a group for every parameter with
// contributions. `stacks`: by parameter, whether its first dim counts matrices.
Graph append_update(BackwardPass backward, const TrainSpec& train,
                    const std::vector<const ParamGroup*>& groups, const std::vector<bool>& stacks);

}  // namespace piper
