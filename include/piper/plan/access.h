// What instructions do to their args: the one place that says it for verifier, placement and
// backends.
#pragma once

#include "piper/plan/instruction.h"

namespace piper {

struct ArgAccess {
  bool reads = false, writes = false;
};

// Returns what an instruction does to the arg at this position. Of kCompute its program says it.
inline ArgAccess access_of(InstructionKind kind, size_t arg) {
  switch (kind) {
    case InstructionKind::kSend:
      return {true, false};
    case InstructionKind::kInput:
    case InstructionKind::kRecv:
    case InstructionKind::kPosition:
      return {false, true};
    case InstructionKind::kAllReduce:
      return {true, true};
    case InstructionKind::kCopy:  // two, or pairs and an index
    case InstructionKind::kReduceScatter:
    case InstructionKind::kAllGather:
    case InstructionKind::kAllToAll:
    case InstructionKind::kRotate:
    case InstructionKind::kOwnPart:
    case InstructionKind::kDispatch:
    case InstructionKind::kCombine:
      return {arg % 2 == 0, arg % 2 == 1};
    case InstructionKind::kCompute:
      break;
  }
  PIPER_CHECK(false, "a program says what kind {} does to its args", static_cast<int>(kind));
}

}  // namespace piper
