// Steps that overlap: the instructions of one step become a prologue that begins the first step, a
// body of two steps, and an epilogue that finishes the last.
#pragma once

#include "gathers.h"
#include "send_lifetimes.h"

namespace piper {

// What is known of a cell's step: of each task in the order of one step its first instruction, and
// the end; the tasks as a body runs them; whether they then belong to the next step.
struct StepOrder {
  std::vector<int32_t> starts, body;
  std::vector<bool> ahead;
  std::vector<Overlap> overlaps;  // positions in `body`
  std::vector<GatheredBuffer> gathered;
  int32_t gather_group = -1;  // of the parts
};

// Takes the roles' bodies, of one step, apart; places buffers and adds waits. `transfers`: in the
// one step. Parameters that live in parts are gathered anew in each section. What is a step ahead
// has channels from `channels` on: it does not mix with the rest. Error (kRefused): a value that
// two steps need at once.
Status split_steps(std::vector<RoleProgram>& roles, const std::vector<StepOrder>& orders,
                   const std::vector<Transfer>& transfers, int32_t channels, const Dag& dag);

}  // namespace piper
