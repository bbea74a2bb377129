// The threads of a rank, which share the units of each kernel.
#include "team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

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
  try {
    for (int i = 1; i < threads; ++i) {
      const int core = own_cores ? cores[static_cast<size_t>(i)] : -1;
      workers_.emplace_back([this, i, core] {
        pin_thread(core);
        work(i);
      });
    }
  } catch (const std::system_error&) {
    // The system grants no more threads: those that run do all.
  }
}

Team::~Team() {
  done_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::run(const Kernel& kernel, Pointers p, std::byte* scratch, int64_t scratch_step) {
  const int64_t units = kernel.units;
  if (workers_.empty() || units < 2 * kernel.grain) return kernel.run(p, scratch, 0, units);
  const int64_t share = (units + 2 * size() - 1) / (2 * size());
  task_ = {&kernel, p, scratch, scratch_step, std::max(share, kernel.grain)};
  next_.store(0, std::memory_order_relaxed);
  open_.store(true);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_units(0);
  // A worker comes in before it looks whether it may: either we see it, or it sees the end.
  open_.store(false);
  for (int32_t inside = inside_.load(); inside > 0; inside = inside_.load())
    wait_while(inside_, inside, spins_);
}

void Team::take_units(int index) {
  const Task& task = task_;
  const int64_t units = task.kernel->units;
  std::byte* scratch = task.scratch + index * task.scratch_step;
  for (;;) {
    const int64_t begin = next_.fetch_add(task.size, std::memory_order_relaxed);
    if (begin >= units) return;
    task.kernel->run(task.pointers, scratch, begin, std::min(begin + task.size, units));
  }
}

void Team::work(int index) {
  for (uint32_t seen = 0;;) {
    wait_while(generation_, seen, spins_);
    seen = generation_.load(std::memory_order_acquire);
    if (done_.load(std::memory_order_relaxed)) return;
    inside_.fetch_add(1);
    if (open_.load()) take_units(index);
    if (inside_.fetch_sub(1) == 1) inside_.notify_one();
  }
}

}  // namespace piper::cpu
