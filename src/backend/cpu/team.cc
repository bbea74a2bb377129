#include "team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace piper::cpu {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until the value is another one.
template <class T>
void wait_while(const std::atomic<T>& value, T old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

bool pin_thread(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core < 0 || core >= CPU_SETSIZE) return false;
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

Team::Team(int threads, std::span<const int> cores) {
  // Spinning is for threads that have a core each: about 50 us, more than the pause between two
  // ops.
  const bool own_cores = static_cast<size_t>(std::max(threads, 0)) <= cores.size();
  spins_ = own_cores ? 1500 : 50;
  for (int i = 1; i < threads; ++i) {
    const int core = own_cores ? cores[static_cast<size_t>(i)] : -1;
    workers_.emplace_back([this, i, core] {
      pin_thread(core);
      work(i);
    });
  }
}

Team::~Team() {
  done_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(const Kernel& kernel, Pointers p, std::byte* scratch, int64_t scratch_step) {
  const int64_t useful = std::max<int64_t>(1, kernel.units / kernel.grain);
  const Task task{&kernel, p, scratch, scratch_step,
                  static_cast<int>(std::min<int64_t>(size(), useful))};
  if (task.parts <= 1) return run_part(task, 0);
  task_ = task;
  busy_.store(static_cast<int32_t>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  run_part(task, 0);
  for (int32_t busy = busy_.load(std::memory_order_acquire); busy > 0;
       busy = busy_.load(std::memory_order_acquire))
    wait_while(busy_, busy, spins_);
}

void Team::run_part(const Task& task, int part) {
  const int64_t units = task.kernel->units, parts = std::max(task.parts, 1);
  const int64_t begin = units * part / parts, end = units * (part + 1) / parts;
  if (begin < end || units == 0)
    task.kernel->run(task.pointers, task.scratch + part * task.scratch_step, begin, end);
}

void Team::work(int index) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(generation_, seen, spins_);
    if (done_.load(std::memory_order_relaxed)) return;
    if (index < task_.parts) run_part(task_, index);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace piper::cpu
