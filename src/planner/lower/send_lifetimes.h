// How long a sent buffer must stay untouched: sends do not wait for their receiver, so the sender
// may reuse the memory only from an instruction on that is known to run after the receive. Nothing
// is added to the plan for it, and no wait can deadlock.
#pragma once

#include "piper/plan/bundle.h"
#include "piper/planner/dag.h"

namespace piper {

struct Transfer {
  int32_t from_cell, send_position, to_cell, recv_position;
};
// Returns by cell and instruction, for sends, the last position at which the receive may still be
// under way (the body's length if the sender never learns of it inside the step); -1 for others.
std::vector<std::vector<int64_t>> send_lifetimes(const Dag& dag,
                                                 const std::vector<RoleProgram>& roles,
                                                 const std::vector<Transfer>& transfers);

}  // namespace piper
