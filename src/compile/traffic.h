// What --explain=traffic prints.
#pragma once

#include "piper/compile.h"
#include "piper/summary.h"

namespace piper {

std::vector<std::string> memory_traffic_lines(const PlanSet& set, const Summary& summary);

}  // namespace piper
