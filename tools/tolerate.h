// What --tolerate of piperc does: plan sets for fewer ranks, beside those for all.
#pragma once

#include "piper/planner/compile.h"

namespace piper {

// Writes `compiled` and the plans of the same strategy with up to `lost` replicas fewer into a
// folder. Says on stderr which could be made, and why the others could not. Error: the strategy has
// no replicas, or no set for fewer ranks can be made.
Status write_tolerant(const CompileOptions& options, const Compiled& compiled, int64_t lost,
                      const std::string& directory, bool force);

}  // namespace piper
