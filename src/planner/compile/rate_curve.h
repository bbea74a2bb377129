// Learning rates as curves of text, for --explain=train.
#pragma once

#include "piper/ir/rate.h"
#include "piper/plan/role.h"

namespace piper {

// Returns a plot over the steps up to a little after the last border, and the rates at the borders.
std::vector<std::string> rate_curve(const Rate& rate, double lr);
// Returns the curves of all rates of these plans that change, each with a line that says which.
std::vector<std::string> rate_curves(std::span<const RoleProgram> roles);

}  // namespace piper
