// What ranks show each other of themselves, so that the error of a wait that ends can name the rank
// which everybody waits for in the end.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace piper {

struct alignas(64) Seat {
  std::atomic<const char*> activity{nullptr};  // in the rank's own memory
  std::atomic<int64_t> waits_for{-1};          // a rank; -1: nobody
  std::atomic<int64_t> looked_ns{0};           // when it last looked around while it waited
};

// Counts how long a rank has waited. Time in which it did not run does not count: a job that was
// suspended as a whole goes on as if nothing had been.
class Patience {
 public:
  Patience(Seat& seat, double limit_s);
  // Shown to others from here on, until done().
  void wait_for(int64_t peer) { seat_.waits_for.store(peer, std::memory_order_relaxed); }
  void done() { seat_.waits_for.store(-1, std::memory_order_relaxed); }
  // To be called every interval(); false when the limit has passed. What the rank waits for is left
  // for others to see.
  bool look();
  double interval() const { return interval_; }
  double waited() const { return waited_; }

 private:
  Seat& seat_;
  const double limit_, interval_;
  double waited_ = 0;
  int64_t last_ns_;
};

// The ranks that `peer` waits for, one after the other, `peer` first: until one that waits for
// nobody, that has not looked around for `stale_s` – it cannot run – or of which nothing is known
// (null). A ring ends with the rank where it closes, which is there twice, or is `from`.
std::vector<int64_t> chain_of_waits(int64_t from, int64_t peer, double stale_s,
                                    const std::function<const Seat*(int64_t rank)>& seat);

}  // namespace piper
