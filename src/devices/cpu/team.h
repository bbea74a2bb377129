// The threads of one rank: they share out the units of a kernel and meet at its end. No lock and no
// allocation in a run; between runs they spin for a moment, then sleep.
#pragma once

#include <atomic>
#include <thread>

#include "kernel.h"

namespace piper::cpu {

class Team {
 public:
  // `threads` - 1 new threads, the caller of run() is the first. Thread i is pinned to cores[i]
  // where there is one. Fewer run where the system grants no more.
  Team(int threads, std::span<const int> cores);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Runs all units of the kernel. Threads take runs of them, at least `grain`, until none is left,
  // each on a scratch of its own (`scratch_step` bytes apart). The caller waits for those that took
  // some, not for one that the system has not woken yet.
  void run(const Kernel& kernel, Pointers p, std::byte* scratch, int64_t scratch_step);

 private:
  struct Task {
    const Kernel* kernel = nullptr;
    Pointers pointers = nullptr;
    std::byte* scratch = nullptr;
    int64_t scratch_step = 0;
    int64_t size = 0;  // units that a thread takes at a time
  };
  void work(int index);
  void take_units(int index);

  std::vector<std::thread> workers_;
  Task task_;                            // written while no task is open and nobody is inside
  std::atomic<int64_t> next_{0};         // unit of the task that nobody has taken
  std::atomic<bool> open_{false};        // threads may come in
  std::atomic<int32_t> inside_{0};       // workers that may be reading the task
  std::atomic<uint32_t> generation_{0};  // of tasks: wakes workers
  std::atomic<bool> done_{false};
  int spins_ = 0;  // before a thread that waits sleeps
};

// Pins the calling thread to a core; false where the system refuses.
bool pin_thread(int core);

}  // namespace piper::cpu
