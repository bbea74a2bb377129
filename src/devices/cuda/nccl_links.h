// Links of ranks that are processes with a device each.
#pragma once

#include "device.h"
#include "piper/devices/collectives.h"

namespace piper::cuda {

// Communicators are opened through the source's control. Error: there is no NCCL, or one that is
// too old.
Result<std::unique_ptr<Links>> make_nccl_links(Device& device, const FabricSource& source,
                                               const std::function<void(const std::string&)>& note);

// Says how many blocks of threads the kernels of each communicator may have, so that those which
// one rank may have under way at once are fewer than the device's multiprocessors: what the plan
// says and, of those of which it says nothing, shares of the rest, of at most 8 blocks for a pair
// and 32 for a group. The same on all ranks.
struct BlocksOf {
  std::vector<int> most;  // by communicator
  bool are_too_many = false;
};
BlocksOf blocks_of(std::span<const Communicator> all, int multiprocessors);

}  // namespace piper::cuda
