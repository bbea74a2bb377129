#include "seats.h"

#include <algorithm>
#include <chrono>

namespace piper {
namespace {

constexpr double kLongestInterval = 0.1;

int64_t now_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

Patience::Patience(Seat& seat, double limit_s)
    : seat_(seat),
      limit_(limit_s),
      interval_(std::min(kLongestInterval, limit_s / 10)),
      last_ns_(now_ns()) {
  seat_.looked_ns.store(last_ns_, std::memory_order_relaxed);
}

bool Patience::look() {
  const int64_t now = now_ns();
  const double gap = static_cast<double>(now - last_ns_) * 1e-9;
  waited_ += std::min(gap, 3 * interval_);  // a longer one was not waited: the rank stood still
  last_ns_ = now;
  seat_.looked_ns.store(now, std::memory_order_relaxed);
  return waited_ < limit_;
}

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

}  // namespace piper
