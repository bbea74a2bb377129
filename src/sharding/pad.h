// Zeros behind dims that a cut over a mesh axis does not divide.
#pragma once

#include "piper/sharding.h"

namespace piper {

// Where a seed says `pad` and does not divide: its dim, and the same loop of all that meets it, has
// zeros up to the next multiple of the ranks (Value::unpadded keeps the shape without). Error: an
// op in which they would count, naming it, the tensor and the line.
Result<Graph> pad(Graph graph, const AxisCut& cut);

}  // namespace piper
