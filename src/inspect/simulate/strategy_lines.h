// Which directive of a strategy makes an instruction. Private to the room.
#pragma once

#include "piper/plan/bundle.h"

namespace piper::timeline {

// Returns the directive by which the rank runs this instruction then, or waits for it, as plans
// print the strategy: its first line, or the begin of those that it has. That is 'order' for
// computations, 'place' for messages, 'replicate' or 'shard' for collectives over its axes,
// 'offload' for copies. "": none of the text's directives does.
std::string strategy_line_of(const std::string& strategy_text, const RoleProgram& role,
                             const Instruction& one);

}  // namespace piper::timeline
