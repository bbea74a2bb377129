// Faults on demand, to see how a job ends and goes on: the variable PIPER_FAULT. Private to the
// executor room.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <string_view>

#include "piper/base/base.h"

namespace piper {

// Does what PIPER_FAULT says of this phase, if it says anything:
//
//   PIPER_FAULT=KIND@RANK:STEP:PHASE[,…]     kill@2:5:write
//
// KIND: kill, abort, segv, exit, stop, hang, slow, lag, error, throw, disk, memory, term, int, hup,
// usr1, nan, flip. PHASE: load, step, forward, backward, update, after, evaluate, copy, write,
// commit, publish, back, end. STEP counts from 1; of load, evaluate and those from copy on
// it is the number of steps that are done, which is 0 when a new job loads. A rank or step of * is
// any. Returns the error of `error`, of `disk`, and of a variable that says none of this; the other
// kinds do what they say.
Status inject_fault(std::string_view phase, int64_t rank, int64_t step);

// Finds the fault of forward, backward or update, which are within a step: behind the instruction
// that these name on this rank. Once for each step.
struct FaultInside {
  std::string phase, kind;
  std::atomic<bool>* happened = nullptr;
};
Result<std::optional<FaultInside>> find_fault_inside(int64_t rank, int64_t step);
// Does it; `values` are those that the instruction has made, of which nan and flip spoil some.
// Error (kUsage): they would spoil some, and there is none.
struct SpoiledValues {
  TensorType type;
  std::byte* data = nullptr;
};
Status do_fault_inside(const FaultInside& fault, std::span<const SpoiledValues> values);

// Returns the faults that were asked for and did not happen in this process, which runs one rank
// or, without one, all of them.
std::vector<std::string> faults_left(std::optional<int64_t> rank);

}  // namespace piper
