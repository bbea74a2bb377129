// FLOPs that a device can do at most. Private to the executor room.
#pragma once

#include "cores.h"

namespace piper {

// Returns the FLOPs a second that a rank's device can do: what JobOptions::peak_flops says, if it
// says anything; else what the backend knows of products of the type that most of the role's have;
// else those of a large product of f32 on the rank's cores, measured while other ranks measure
// theirs. 0: nothing is known.
Result<double> peak_of(const JobOptions& options, const Cores& cores, const RoleProgram& role);

}  // namespace piper
