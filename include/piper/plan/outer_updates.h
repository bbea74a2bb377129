// When outer updates run, and what runs beside a body.
#pragma once

#include <string_view>

#include "piper/plan/role.h"

namespace piper {

// The stream of outer updates that run in a step, beside its body, and not after it. No directive
// can name it.
inline constexpr std::string_view kBesideStream = "beside the step";

// Returns whether an outer update runs in, or at the end of, step t, counted from 1.
bool runs_at(const OuterUpdate& update, int64_t t);
// Returns whether there is a step at which both run.
bool share_a_step(const OuterUpdate& a, const OuterUpdate& b);
// Returns whether all that the role does of it is on that stream.
bool runs_beside(const RoleProgram& role, const OuterUpdate& update);
// Returns the body with an outer update beside it, as one list: what the update does before it
// receives anything, the body, the rest. Both have memory, streams and communicators of their own.
std::vector<Instruction> instructions_beside(const RoleProgram& role, const OuterUpdate& update);

}  // namespace piper
