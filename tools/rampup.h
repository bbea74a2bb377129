// Plans for the stages of a batch that grows. Private to the programs that compile.
#pragma once

#include "piper/plan/worlds.h"
#include "piper/planner/compile.h"

namespace piper {

inline SetWithOracles with_oracles(const Compiled& compiled) {
  return {&compiled.set, compiled.single ? &*compiled.single : nullptr,
          compiled.uncut ? &*compiled.uncut : nullptr};
}

// Compiles the stages of the strategy's 'rampup' before `last`, which is of what follows them.
// Errors say in which stage they are.
Result<std::vector<Compiled>> compile_stages(const CompileOptions& options, const Compiled& last);
// Returns after how many steps each stage begins, and what follows them.
std::vector<int64_t> first_steps_of(const Compiled& last);

}  // namespace piper
