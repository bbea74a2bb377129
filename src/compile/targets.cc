#include "targets.h"

#include <algorithm>
#include <array>

#include "piper/backend.h"
#include "piper/compile.h"
#include "piper/fuse.h"
#include "piper/halves.h"
#include "piper/ops.h"
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

Result<Needs> cpu_needs(const RoleProgram& role) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  return needs_of(*backend, role);
}

// 16-bit ops stay what they are, but those that go element by element, which become one kernel with
// their neighbours. Matrix products have 32 MiB for themselves, as the vendor of cuBLASLt advises.
FusedProgram joined_for_cuda(const Program& program) {
  const auto stays = [](std::string_view op) {
    const OpDef* def = find_op(op);
    return !def || !def->pointwise;
  };
  FuseCounts counts;
  return join_rows(fuse(widened(program, stays), counts));
}
Result<Needs> cuda_needs(const RoleProgram& role) {
  std::vector<int64_t> bytes;  // by program
  for (const Program& program : role.programs)
    bytes.push_back(place_locals(joined_for_cuda(program)).bytes);
  return Needs{workspaces_of(role, bytes), 0, int64_t{32} << 20};
}

struct Device {
  std::string_view name;
  Result<Needs> (*needs)(const RoleProgram& role);
  RoleProgram (*prepare)(RoleProgram role);
  FusedProgram (*join)(const Program& program);
};
constexpr std::array kDevices = {
    Device{"cpu", cpu_needs,
           [](RoleProgram role) { return make_cpu_backend()->prepare(std::move(role)); },
           joined_for_cpu},
    Device{"cuda", cuda_needs, [](RoleProgram role) { return role; }, joined_for_cuda}};

const Device* find_device(std::string_view name) {
  const auto found = std::find_if(kDevices.begin(), kDevices.end(),
                                  [&](const Device& each) { return each.name == name; });
  return found == kDevices.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const Device& device : kDevices) names.emplace_back(device.name);
  return names;
}

Status state_needs(std::vector<RoleProgram>& roles, std::string_view name) {
  const Device* target = find_device(name);
  if (!target) {
    const std::vector<std::string> all = targets();
    return fail("there is no target '{}'{}", quote_control(name), did_you_mean(name, all))
        .with_code(ExitCode::kUsage);
  }
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
  const Device* target = find_device(role.target);
  PIPER_CHECK(target, "a role is made for a target of the table");
  TargetRole result{target->prepare(role), {}};
  for (const Program& program : result.role.programs)
    result.programs.push_back(target->join(program));
  return result;
}

}  // namespace piper
