// Directions of steps that optimizers make of whole matrices; each in a file of its own.
#pragma once

#include "piper/ir/optimizers.h"

namespace piper {

ValueId adafactor_direction(Builder& build, const DirectionUse& use);
ValueId muon_direction(Builder& build, const DirectionUse& use);
Attrs muon_scale(const Attrs& settings, const Shape& shape, bool is_stack);

// Returns the gradient in the type of the parameter's states, multiplied by the clip factor. It is
// a value of its own in any case, since ranks do not exchange a sum over the step a second time.
ValueId clipped_gradient(Builder& build, const DirectionUse& use);
// Returns a state after it has moved towards `target` by a part of the way, and notes that it takes
// this value unless the step is skipped.
ValueId moved_state(Builder& build, const DirectionUse& use, ValueId state, ValueId target,
                    ValueId part);
// Returns the shape of a parameter as matrices: [rows, columns], or [number, rows, columns].
Shape as_matrices(const Shape& shape, bool is_stack);

}  // namespace piper
