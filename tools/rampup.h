// Plans for the stages of a batch that grows. Private to piperc.
#pragma once

#include "piper/planner/compile.h"

namespace piper {

// Writes a plan set for each stage of the strategy's 'rampup', `compiled` behind them, and an
// index: piper-run goes through them as it switches plans.
Status write_stages_of(const CompileOptions& options, const Compiled& compiled,
                       const std::string& directory, bool force);

}  // namespace piper
