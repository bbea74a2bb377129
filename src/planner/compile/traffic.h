// Declares what --explain=traffic prints about a step.
#pragma once

#include "piper/inspect/summary.h"
#include "piper/planner/compile.h"

namespace piper {

std::vector<std::string> memory_traffic_lines(const PlanSet& set, const Summary& summary);

}  // namespace piper
