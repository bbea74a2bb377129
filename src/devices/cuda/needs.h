// What the backend takes beside a plan's arenas, as it is stated and as it is taken.
#pragma once

#include <vector>

#include "piper/devices/cuda_kernels.h"

namespace piper::cuda {

// Returns what a program takes of its stream's workspace: products that share one share their
// scratch, so that who has products has some.
int64_t workspace_of(const DeviceProgram& program);

// Says what collectives need, by stream: for blocks that are under way, and for the values of the
// programs that sum and choose; of these programs' literals; and what communicators exchange when
// they connect.
struct FabricNeeds {
  std::vector<int64_t> blocks, workspaces;
  int64_t literals = 0, connect_scratch = 0;
};
Result<FabricNeeds> fabric_needs(const RoleProgram& role);

}  // namespace piper::cuda
