// What backends take to run a plan.
#include <algorithm>

#include "piper/backend.h"
#include "piper/memory.h"

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

int64_t reduction_slot_bytes(const RoleProgram& role) {
  int64_t most = 0;
  for (const auto* section : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *section) {
      const bool scatters = one.kind == InstructionKind::kReduceScatter;
      if ((!scatters && one.kind != InstructionKind::kAllReduce) || one.fast) continue;
      const int64_t members = members_of(role, role.groups[static_cast<size_t>(one.group)]);
      if (members == 1) continue;
      int64_t slice = 0;
      for (size_t a = scatters ? 1 : 0; a < one.args.size(); a += scatters ? 2 : 1)
        slice += role.tensor(one.args[a]).type.bytes();
      slice = align_up(scatters ? slice : (slice + members - 1) / members);
      const int64_t largest = kMostReductionBytes / members / kAlignment * kAlignment;
      most = std::max(most, members * std::min(slice, std::max(largest, kAlignment)));
    }
  return most;
}

}  // namespace piper
