// Zeros after dims that a cut over a mesh axis does not divide.
#pragma once

#include "piper/planner/sharding.h"

namespace piper {

// Where a seed says so and does not divide: its dim, and the same loop of all that meets it, has
// zeros up to the next multiple of `pad_to` (Value::unpadded keeps the extent without). What
// readers take apart in it keeps together: of three projections by heads, each has more heads.
// All states that go on become seeds. Error: an op in which zeros would count, naming it, the
// tensor and the line.
Result<Graph> pad(Graph graph, AxisCut& cut);

}  // namespace piper
