// FLOPs: what a device can do at most, and what a plan's model takes. Private to the executor room.
#pragma once

#include "cores.h"

namespace piper {

// Returns the FLOPs a second of a large product of f32 on a rank's cores, measured while other
// ranks measure theirs: what JobOptions::peak_flops says, if it says anything. 0: a backend of
// which nothing is known.
Result<double> peak_of(const JobOptions& options, const Cores& cores);

// Returns the FLOPs of the model that a rank computes in a step: of forwards, and twice as many for
// backwards (Chowdhery et al., PaLM, 2022, appendix B). What runs again for a backward is no part
// of it.
Result<double> model_flops(const RoleProgram& role);

}  // namespace piper
