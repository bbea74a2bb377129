#include "targets.h"

#include <algorithm>

#include "piper/backends.h"
#include "piper/compile.h"
#include "piper/parallel.h"

namespace piper {
namespace {

// Of transports for ranks that reduce with others (transport.h: kTransportSlotBytes).
int64_t slots_of(const RoleProgram& role) {
  const auto joins = [&](const Group& group) {
    return std::any_of(group.axes.begin(), group.axes.end(), [&](int32_t axis) {
      return role.mesh[static_cast<size_t>(axis)].second > 1;
    });
  };
  const bool any = std::any_of(role.groups.begin(), role.groups.end(), joins);
  return any ? int64_t{2} << 20 : 0;
}

}  // namespace

Status state_needs(std::vector<RoleProgram>& roles, std::string_view name) {
  PIPER_ASSIGN(const BackendKind* target, find_target(name));
  std::vector<Status> stated(roles.size(), ok_status());
  in_parallel(roles.size(), [&](size_t r) {
    Result<Needs> needs = target->needs(roles[r]);
    if (!needs) {
      stated[r] = std::move(needs).error();
      return;
    }
    roles[r].target = name;
    roles[r].workspace_bytes = needs->workspace_bytes;
    roles[r].packed_bytes = needs->packed_bytes;
    roles[r].transport_bytes = slots_of(roles[r]);
    roles[r].scratch_bytes = needs->scratch_bytes;
    roles[r].staging_bytes = staging_of(roles[r]);
  });
  for (Status& status : stated) PIPER_TRY(std::move(status));
  return ok_status();
}

TargetRole for_its_target(const RoleProgram& role) {
  const Result<const BackendKind*> target = find_target(role.target);
  PIPER_CHECK(target.ok(), "a role is made for a target of the table");
  TargetRole result{(*target)->prepare(role), {}};
  for (const Program& program : result.role.programs)
    result.programs.push_back((*target)->join(program));
  return result;
}

}  // namespace piper
