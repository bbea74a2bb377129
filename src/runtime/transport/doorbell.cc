// Wakes a thread that waits for others: a look, then a sleep on a futex.
#include "doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace piper {

// Waits some tens of cycles between two looks.
void Doorbell::relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Doorbell::give_way() { sched_yield(); }

void Doorbell::ring_sleeper() {
  bell_.fetch_add(1);
  syscall(SYS_futex, &bell_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

bool Doorbell::sleep_until(uint32_t ticket, Deadline deadline) {
  std::chrono::duration<double> left = deadline - std::chrono::steady_clock::now();
  if (left.count() <= 0) return false;
  timespec time{};
  time.tv_sec = static_cast<time_t>(left.count());
  time.tv_nsec = static_cast<long>((left.count() - static_cast<double>(time.tv_sec)) * 1e9);
  syscall(SYS_futex, &bell_, FUTEX_WAIT_PRIVATE, ticket, &time, nullptr, 0);
  return true;
}

}  // namespace piper
