// Pointwise ops in one pass over memory: a chain of steps that each block of elements goes through
// while it is in the nearest cache. The steps are the block functions of the single ops, so the
// bits are the same.
#pragma once

#include "blocks.h"
#include "kernel.h"

namespace piper::cpu {

// Says where an operand of a step comes from: an input, or an earlier step.
struct Source {
  int16_t input = -1, step = -1;
};
struct Step {
  BlockFn run = nullptr;
  std::array<Source, kMaxBlockOperands> operands;
  int count = 0;
  DType type = DType::kF32;  // of the result
  int16_t output = -1;       // that the result is, if it is one
};
using Chain = std::vector<Step>;

// Runs the chain over the elements of outputs of one shape, with inputs broadcast to it. An output
// may be stored over any input. Precondition: at least one step, each output made by one.
Result<KernelPtr> chain_kernel(const Use& use, Chain steps);

}  // namespace piper::cpu
