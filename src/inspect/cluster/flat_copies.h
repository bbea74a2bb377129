// What frameworks copy between tensors and the buffers of their collectives. Private to the room.
#pragma once

#include "piper/inspect/cluster.h"

namespace piper::cluster {

// Returns, by instruction of a section, how long the device copies for ClusterDevice::copies: in
// front of the first computation that reads a gathered parameter, behind the last one that uses a
// gradient to be scattered, and with collectives whose parts have several runs. Each byte of the
// whole is read and written once.
std::vector<double> copy_times(const ClusterDevice& device, const RoleProgram& role,
                               const std::vector<Instruction>& section);

}  // namespace piper::cluster
