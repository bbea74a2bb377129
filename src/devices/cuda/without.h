// The environment variable PIPER_CUDA_WITHOUT switches parts of NVIDIA's libraries off, so that one
// broken part does not hide the rest.
#pragma once

#include "piper/base/base.h"

namespace piper::cuda {

struct Without {
  bool vmm = false;      // virtual memory management: blocks are cuMemAlloc's
  bool cudnn = false;    // attention is computed by kernels of our own
  bool green = false;    // green contexts: SM limits of streams have no effect
  bool windows = false;  // windows of NCCL: memory is registered with each communicator
  bool graphs = false;   // CUDA graphs: each step is queued op by op
};

// Returns what the variable names; nothing is switched off where it is unset or empty. Fails for an
// unknown word and lists those that there are.
Result<Without> switched_off();
// Returns the words of what is switched off, in a fixed order, with commas between them.
std::string to_string(const Without& without);

}  // namespace piper::cuda
