// Tells what a job can go back to when a step is not finite. Private to the executor room.
#pragma once

#include "loaded.h"

namespace piper {

// Returns JobOptions::find_back of a job that keeps checkpoints. `has_switched`: what it began with
// under these plans came from the plans before them, and is gone. `loaded` outlives the result.
std::function<Result<GoneBack>(Control& control, int64_t tried)> ways_back(
    const RunOptions& options, const Loaded& loaded, bool has_switched);

}  // namespace piper
