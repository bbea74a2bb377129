// Steps that overlap: the instructions of one step become a prologue that begins later steps, a
// body that finishes one step and goes on with those, and an epilogue that begins none.
#pragma once

#include "send_lifetimes.h"
#include "steady.h"

namespace piper {

// Takes the roles' bodies, of one step, apart; places buffers and adds waits. `transfers`: in the
// one step. Parameters that live in parts are gathered again in each section. A value that so many
// steps need at once has as many buffers. Adds to what `counts` counts. Error:
// what several steps need at once is on the host, or a state that the update changes.
Status split_steps(std::vector<RoleProgram>& roles, const std::vector<StepOrder>& orders,
                   const std::vector<Transfer>& transfers, const Dag& dag, Lowered& counts);

}  // namespace piper
