// Who may be a rank's peer, and who a group's members.
#include <fmt/format.h>

#include <algorithm>

#include "piper/devices/fabric.h"

namespace piper {

Status check_peer(int64_t rank, int64_t world, int64_t peer) {
  if (peer >= 0 && peer < world && peer != rank) return ok_status();
  return fail("rank {} of {} has no peer of rank {}", rank, world, peer).with_code(ExitCode::kPlan);
}

Status check_group(int64_t rank, int64_t world, std::span<const int64_t> ranks) {
  bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  bool inside = !ranks.empty() && ranks.front() >= 0 && ranks.back() < world;
  if (ascending && inside && std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
    return ok_status();
  }
  return fail("rank {} of {} cannot join the group [{}]", rank, world, fmt::join(ranks, ","))
      .with_code(ExitCode::kPlan);
}

}  // namespace piper
