// Faults on demand, to see how a job ends and goes on: the variable PIPER_FAULT. Private to the
// executor room.
#pragma once

#include <string_view>

#include "piper/base/base.h"

namespace piper {

// Does what PIPER_FAULT says of this phase, if it says anything:
//
//   PIPER_FAULT=KIND@RANK:STEP:PHASE[,…]     kill@2:5:write
//
// KIND: kill, abort, exit, stop, hang, slow, error, disk, memory, term, int, usr1. PHASE: load,
// step, after, copy, write, commit, publish, end. STEP counts from 1; of load, copy, write, commit,
// publish and end it is the number of steps that are done. A rank or step of * is any. Returns the
// error of `error`, of `disk`, and of a variable that says none of this; the other kinds do what
// they say.
Status inject_fault(std::string_view phase, int64_t rank, int64_t step);

}  // namespace piper
