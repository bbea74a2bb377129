// The tasks of one cell, in order, as the instructions of its role. Buffers have no places yet.
#pragma once

#include "gathers.h"
#include "offload.h"
#include "piper/planner/schedule.h"
#include "places.h"

namespace piper {

struct LoweredCell {
  RoleProgram role;
  std::vector<Overlap> overlaps;  // by instruction
  std::vector<int32_t> starts;    // by task in order: its first instruction, and the end
  std::vector<GatheredBuffer> gathered;
  std::vector<Slot> pool;                       // of gathered parameters
  std::vector<std::vector<int32_t>> offloaded;  // buffers, by Dag::offloads
  OffloadPlan offloads;
  std::vector<CreditCount> credits;
};

// Where steps overlap it is one step, whose instructions have not moved. Notes in `places`
// where buffers and tasks of the cell are: cells may be lowered at once.
LoweredCell lower_cell(const Dag& dag, const Schedule& schedule, const ProgramPool& pool,
                       Places& places, int32_t cell);

}  // namespace piper
