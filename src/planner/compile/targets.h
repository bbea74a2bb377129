// What plans state of the devices that they are made for.
#pragma once

#include "piper/plan/bundle.h"
#include "piper/planner/directives.h"

namespace piper {

// Writes into each role what the target takes beside the arenas. Error (kUsage): no such target.
Status state_needs(std::vector<RoleProgram>& roles, std::string_view target);

// Explains what happens to sums that the strategy calls fast. Requires such a target.
void explain_fast_sums(const Strategy& strategy, std::string_view target, Explanations& out);

}  // namespace piper
