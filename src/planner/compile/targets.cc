// Asks the target's kind of device what memory a role needs beside its arena.
#include "targets.h"

#include "piper/base/parallel.h"
#include "piper/devices/registry.h"
#include "piper/planner/compile.h"

namespace piper {
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
    if (target->table) roles[r].table = target->table();
    roles[r].workspace_bytes = needs->workspace_bytes;
    roles[r].packed_bytes = needs->packed_bytes;
    roles[r].transport_bytes = needs->transport_bytes;
    roles[r].scratch_bytes = needs->scratch_bytes;
    roles[r].staging_bytes = staging_of(roles[r]);
  });
  for (Status& status : stated) PIPER_TRY(std::move(status));
  return ok_status();
}

void explain_fast_sums(const Strategy& strategy, std::string_view target, Explanations& out) {
  const Result<const BackendKind*> kind = find_target(target);
  PIPER_CHECK(kind.ok(), "plans are made for a target of the table");
  if ((*kind)->sums_fast) return;
  for (const Replicate& one : strategy.replicates)
    if (one.sum == Replicate::Order::kFast)
      out.push_back({one.at,
                     "replicate",
                     {fmt::format("note: {} has no library for sums: over {} they are formed in "
                                  "rank order, with the bits of 'sum: ordered'",
                                  target, join(one.over, ", "))}});
}

}  // namespace piper
