// How a thread waits for others: it looks, spins a little, then sleeps in the kernel until somebody
// rings or the deadline passes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

namespace piper {

// Wakes one waiting thread, for any number of ringers. A thread that changes something the waiter
// looks at (sequentially consistent atomics only) calls ring afterwards; then either the waiter
// sees the change or the ringer sees the sleeper.
class Doorbell {
 public:
  static void relax();  // for some tens of cycles
  void ring() {
    if (asleep_.load() != 0) ring_sleeper();
  }
  // Waits until ready() or the deadline; false when the deadline passed first.
  template <class Ready>
  bool wait(int spins, std::chrono::duration<double> timeout, Ready ready) {
    if (ready()) return true;
    const auto start = std::chrono::steady_clock::now();
    auto last = start;
    for (int i = 0; i < spins; ++i) {
      i % 64 != 63 ? relax() : give_way();
      if (ready()) return true;
      if (i % 64 != 63) continue;
      const auto now = std::chrono::steady_clock::now();
      // Others had the core meanwhile: it is not ours alone.
      if (now - std::exchange(last, now) > kLongestTurn || now - start > kLongestLook) break;
    }
    const Deadline deadline = start + timeout;
    asleep_.store(1);
    bool done = false;
    for (;;) {
      uint32_t ticket = bell_.load();
      done = ready();
      if (done || !sleep_until(ticket, deadline)) break;
    }
    asleep_.store(0);
    return done;
  }

 private:
  using Deadline =
      std::chrono::time_point<std::chrono::steady_clock, std::chrono::duration<double>>;
  static constexpr std::chrono::milliseconds kLongestLook{5};
  static constexpr std::chrono::microseconds kLongestTurn{100};  // of 64 looks, alone on a core
  static void give_way();
  void ring_sleeper();
  bool sleep_until(uint32_t ticket, Deadline deadline);  // false: the deadline has passed

  std::atomic<uint32_t> bell_{0};
  std::atomic<uint32_t> asleep_{0};
};

}  // namespace piper
