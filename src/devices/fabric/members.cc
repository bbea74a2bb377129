// Who may be a rank's peer, and who a group's members; messages of one part; stretches.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "piper/devices/fabric.h"

namespace piper {

Status Fabric::send(int32_t route, const std::byte* data, int64_t bytes) {
  const MessagePart whole{const_cast<std::byte*>(data), bytes};
  return send(route, std::span(&whole, 1));
}

Status Fabric::recv(int32_t route, std::byte* to, int64_t bytes) {
  const MessagePart whole{to, bytes};
  return recv(route, std::span(&whole, 1));
}

int64_t stretches_of(const Shape& whole, const Instruction& from) {
  int64_t stretches = from.dim < 0 ? 1 : from.outer;
  for (int32_t d = 0; d < std::min(from.dim, static_cast<int32_t>(whole.size())); ++d)
    stretches *= whole[static_cast<size_t>(d)];
  return std::max<int64_t>(stretches, 1);  // of nothing
}

Status check_peer(int64_t rank, int64_t world, int64_t peer) {
  if (peer >= 0 && peer < world && peer != rank) return ok_status();
  return fail("rank {} of {} has no peer of rank {}", rank, world, peer).with_code(ExitCode::kPlan);
}

Status check_group(int64_t rank, int64_t world, std::span<const int64_t> ranks) {
  std::vector<int64_t> all(ranks.begin(), ranks.end());
  std::ranges::sort(all);
  const bool once = std::ranges::adjacent_find(all) == all.end();
  const bool inside = !all.empty() && all.front() >= 0 && all.back() < world;
  if (once && inside && std::ranges::binary_search(all, rank)) return ok_status();
  return fail("rank {} of {} cannot join the group [{}]", rank, world, fmt::join(ranks, ","))
      .with_code(ExitCode::kPlan);
}

}  // namespace piper
