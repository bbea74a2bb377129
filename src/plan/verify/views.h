// The plans as which a plan with an evaluation or outer updates is proven. Private to the verify
// room.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

// Returns whether some rank can evaluate.
bool evaluates(const PlanSet& set);
// Returns how many outer updates there are. Requires that all ranks have as many.
size_t outer_updates(const PlanSet& set);
// Return the plan of the steps alone, that of the evaluation and of one outer update: what only
// others use is left out. They keep what they use where it is. Require check_shared.
PlanSet steps_of(const PlanSet& set);
PlanSet evaluation_of(const PlanSet& set);
PlanSet outer_of(const PlanSet& set, size_t update);
// Returns the plan of the steps that have the outer update beside them.
PlanSet steps_beside(const PlanSet& set, size_t update);
// Checks what they are made of: see check_role.
Status check_shared(const PlanSet& set);

}  // namespace piper
