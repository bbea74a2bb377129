// Copies to host memory and back: what is kept from forward to backward, and the optimizer's
// states.
#pragma once

#include "piper/plan/bundle.h"
#include "piper/planner/lower.h"
#include "piper/planner/make_dag.h"

namespace piper {

// Names a copy to the host, and the last instruction before which it need not be complete: until
// then the memory that it reads is held.
struct LeavingCopy {
  int32_t copy = 0, until = 0;  // positions; until: the body's length if nothing waits for it
};
struct OffloadPlan {
  std::vector<LeavingCopy> leaving;
  std::vector<OffloadCount> counts;  // by Dag::offloads
};
void add_counts(const OffloadPlan& plan, std::vector<OffloadCount>& counts);

// Inserts copies into the body and returns where its instructions have moved. `buffers`: by
// offload, those of its items.
std::vector<int32_t> insert_copies(RoleProgram& role, const Dag& dag,
                                   const std::vector<std::vector<int32_t>>& buffers,
                                   const std::vector<Overlap>& overlaps, OffloadPlan& plan);

}  // namespace piper
