// Counts how long a rank has waited, without the time in which its process was suspended.
#include <algorithm>
#include <chrono>

#include "piper/devices/control.h"

namespace piper {
namespace {

constexpr double kLongestInterval = 0.1;

}  // namespace

int64_t now_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

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

}  // namespace piper
