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
  if (info(kind).args == ArgForm::kPieces) return {true, true};
  if (takes_pairs(kind) || kind == InstructionKind::kCopy) return {arg % 2 == 0, arg % 2 == 1};
  switch (kind) {
    case InstructionKind::kSend:
      return {true, false};
    case InstructionKind::kInput:
    case InstructionKind::kRecv:
    case InstructionKind::kPosition:
      return {false, true};
    default:
      break;
  }
  PIPER_CHECK(false, "a program says what kind {} does to its args", static_cast<int>(kind));
}

}  // namespace piper
