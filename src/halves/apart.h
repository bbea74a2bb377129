// Composites that no backend needs a kernel for.
#pragma once

#include "piper/bundle.h"

namespace piper {

// A Linear is a MatMul, an Add and, where it has an activation, a Gelu; of 16-bit floats with f32
// between them, so that its results alone are rounded. Same arguments; no places, no views.
Program taken_apart(Program program);

}  // namespace piper
