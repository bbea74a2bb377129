// What backends take to run a plan.
#include <algorithm>

#include "piper/devices/backend.h"

namespace piper {

std::vector<int64_t> workspaces_of(const RoleProgram& role, std::span<const int64_t> by_program) {
  std::vector<int64_t> most(role.streams.size());
  for (const auto* section : role.sections())
    for (const Instruction& one : *section) {
      if (one.kind != InstructionKind::kCompute) continue;
      int64_t& bytes = most[static_cast<size_t>(one.stream)];
      bytes = std::max(bytes, by_program[static_cast<size_t>(one.program)]);
    }
  return most;
}

namespace {

int64_t members_of(const RoleProgram& role, const Group& group) {
  int64_t members = 1;
  for (const int32_t axis : group.axes) members *= role.mesh[static_cast<size_t>(axis)].second;
  return members;
}

}  // namespace

bool has_groups(const RoleProgram& role) {
  return std::any_of(role.groups.begin(), role.groups.end(),
                     [&](const Group& group) { return members_of(role, group) > 1; });
}

bool has_fast_sums(const RoleProgram& role) {
  for (const auto* section : role.sections())
    for (const Instruction& one : *section)
      if (one.fast) return true;
  return false;
}

}  // namespace piper
