// The two plans as which a plan with an evaluation is proven. Private to the verify room.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

// Returns whether some rank can evaluate.
bool evaluates(const PlanSet& set);
// Returns whether some rank has an outer update.
bool updates_outer(const PlanSet& set);
// Return the plan of the steps alone, and that of the evaluation alone: what only the other one
// uses is left out. Both keep what they use where it is. Require check_shared.
PlanSet steps_of(const PlanSet& set);
PlanSet evaluation_of(const PlanSet& set);
PlanSet outer_of(const PlanSet& set);
// Checks what both are made of: see check_role.
Status check_shared(const PlanSet& set);

}  // namespace piper
