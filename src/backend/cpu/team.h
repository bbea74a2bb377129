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
  // where there is one.
  Team(int threads, std::span<const int> cores);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Runs all units of the kernel, each thread an equal run of them on a scratch of its own
  // (`scratch_step` bytes apart). Threads for which `grain` units each are too few stay idle.
  void run(const Kernel& kernel, Pointers p, std::byte* scratch, int64_t scratch_step);

 private:
  struct Task {
    const Kernel* kernel = nullptr;
    Pointers pointers = nullptr;
    std::byte* scratch = nullptr;
    int64_t scratch_step = 0;
    int parts = 0;
  };
  void work(int index);
  static void run_part(const Task& task, int part);

  std::vector<std::thread> workers_;
  Task task_;                            // written between two generations
  std::atomic<uint32_t> generation_{0};  // of tasks
  std::atomic<int32_t> busy_{0};         // workers that have not finished the task
  std::atomic<bool> done_{false};
  int spins_ = 0;  // before a thread that waits sleeps
};

// Pins the calling thread to a core; false where the system refuses.
bool pin_thread(int core);

}  // namespace piper::cpu
