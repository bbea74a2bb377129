// A thread that works for another one, turn by turn.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "piper/base/base.h"

namespace piper {

// Waits until ready(value). What a thread waits for is mostly near: it looks for a moment, then
// sleeps until it is notified.
template <class T, class Ready>
T await(const std::atomic<T>& value, Ready ready) {
  constexpr int kLooks = 64;
  T now = value.load(std::memory_order_acquire);
  for (int look = 0; look < kLooks && !ready(now); ++look) {
    std::this_thread::yield();
    now = value.load(std::memory_order_acquire);
  }
  while (!ready(now)) {
    value.wait(now, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

class Worker {
 public:
  // Starts a thread. `work`: what one turn does; it throws nothing. `core`: where it is pinned; -1:
  // it runs where its maker may. Signals go to other threads.
  static Result<std::unique_ptr<Worker>> start(std::function<void()> work, int core);
  ~Worker();
  void begin();   // a turn; none is under way
  void finish();  // returns when the last turn has ended

 private:
  explicit Worker(std::function<void()> work) : work_(std::move(work)) {}
  void serve();

  const std::function<void()> work_;
  std::atomic<uint32_t> begun_{0}, ended_{0};  // turns
  bool leaves_ = false;                        // its last turn does nothing
  std::thread thread_;
};

}  // namespace piper
