// Integers of fewer bits than the ops of Piper have. Private to the import room.
#pragma once

#include "piper/frontend/rules.h"

namespace piper::onnx_import {

// Integers of 2 to 16 bits are held in i32, quantised ones in floats: ops that move or choose them
// keep that, casts say themselves what they make, and arithmetic would have to wrap around.
Status pass_narrow(const RuleContext& c, Vals& results);

}  // namespace piper::onnx_import
