// A steady step: the tasks of two steps in the order of the body, with the communication and the
// copies that they ask for.
#pragma once

#include "gathers.h"
#include "offload.h"

namespace piper {

// Holds what is known of a cell's step: of each task in the order of one step its first
// instruction, and the end; the tasks as a body runs them; how many steps ahead they then
// are.
struct StepOrder {
  std::vector<int32_t> starts, body, ahead;
  std::vector<bool> stays;        // by task: a reduction that the order places
  std::vector<Overlap> overlaps;  // positions in `body`
  std::vector<GatheredBuffer> gathered;
  std::vector<std::vector<int32_t>> offloaded;  // buffers of the items, by Dag::offloads
};

struct Steady {
  // By instruction of the body: its number in the one step. Gathers and copies have numbers after
  // all others.
  std::vector<int32_t> numbers;
  std::vector<Overlap> pairs;  // by instruction
  std::vector<Slot> pool;
  OffloadPlan offloads;  // positions in the body
  std::vector<CreditCount> credits;
};

// Brings the role's body, of one step, into the order of a steady step. Instructions of
// later steps have `ahead`, but are as they are in their own. Without waits.
Steady make_steady(RoleProgram& role, const StepOrder& order, const Dag& dag);

}  // namespace piper
