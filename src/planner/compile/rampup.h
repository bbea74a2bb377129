// A batch that grows in the first steps of a job. Private to the compile room.
#pragma once

#include "piper/planner/compile.h"

namespace piper {

// Lets formulas of learning rates count the tokens of a batch that grows: `graph` is of the stage
// whose plans are made, or of what follows the last one.
Status count_tokens(const Graph& graph, const CompileOptions& options, Strategy& strategy);
// Says which steps take how many samples, a line for each stage.
std::vector<std::string> rampup_lines(const Compiled& compiled);

}  // namespace piper
