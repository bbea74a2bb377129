// What backends take to run a plan.
#include <algorithm>

#include "piper/backend.h"

namespace piper {

std::vector<int64_t> workspaces_of(const RoleProgram& role, std::span<const int64_t> by_program) {
  std::vector<int64_t> most(role.streams.size());
  for (const auto* section : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *section) {
      if (one.kind != InstructionKind::kCompute) continue;
      int64_t& bytes = most[static_cast<size_t>(one.stream)];
      bytes = std::max(bytes, by_program[static_cast<size_t>(one.program)]);
    }
  return most;
}

}  // namespace piper
