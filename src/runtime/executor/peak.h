// FLOPs that a device can do at most. Private to the executor room.
#pragma once

#include "cores.h"

namespace piper {

// Returns the FLOPs a second of a large product of f32 on a rank's cores, measured while other
// ranks measure theirs: what JobOptions::peak_flops says, if it says anything. 0: a backend of
// which nothing is known.
Result<double> peak_of(const JobOptions& options, const Cores& cores);

}  // namespace piper
