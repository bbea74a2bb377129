// Follows who waits for whom, to the rank that everybody waits for in the end.
#include "seats.h"

#include <algorithm>

namespace piper {
std::vector<int64_t> chain_of_waits(int64_t from, int64_t peer, double stale_s,
                                    const std::function<const Seat*(int64_t rank)>& seat) {
  std::vector<int64_t> chain{peer};
  const auto stale = static_cast<int64_t>(stale_s * 1e9);
  for (;;) {
    const Seat* const last = seat(chain.back());
    if (last == nullptr) return chain;
    const int64_t next = last->waits_for.load();
    if (next < 0 || now_ns() - last->looked_ns.load() > stale) return chain;
    const bool ring = next == from || std::find(chain.begin(), chain.end(), next) != chain.end();
    chain.push_back(next);
    if (ring) return chain;
  }
}

std::vector<int64_t> stuck_ranks(std::span<const int64_t> ranks, double stale_s,
                                 const std::function<const Seat*(int64_t rank)>& seat) {
  std::vector<int64_t> stuck;
  for (const int64_t rank : ranks)
    if (const Seat* const its = seat(rank);
        its && now_ns() - its->looked_ns.load() > static_cast<int64_t>(stale_s * 1e9))
      stuck.push_back(rank);
  return stuck;
}

}  // namespace piper
