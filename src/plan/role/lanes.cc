// Which of a rank's two threads runs an instruction.
#include "piper/plan/lanes.h"

#include "piper/plan/access.h"

namespace piper {

bool communicates(const Instruction& one) {
  return one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv ||
         is_collective(one.kind);
}

TwoThreads::TwoThreads(const RoleProgram& role) {
  for (const auto* section : role.sections())
    for (const Instruction& one : *section)
      if (one.kind == InstructionKind::kCompute) computing_.insert(one.stream);
  for (const auto* section : role.sections())
    for (const Instruction& one : *section)
      overlaps_ = overlaps_ || (communicates(one) && !computing_.contains(one.stream));
}

TwoThreads::Thread TwoThreads::of(const Instruction& one) const {
  return communicates(one) || !computing_.contains(one.stream) ? kHelps : kComputes;
}

}  // namespace piper
