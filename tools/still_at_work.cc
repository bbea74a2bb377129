// Tells a terminal what takes long: piperc and piper-sim.
#include "still_at_work.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace piper {

StillAtWork::StillAtWork(std::string what) : what_(std::move(what)) {
  if (isatty(2)) watcher_ = std::thread([this] { watch(); });
}

StillAtWork::~StillAtWork() {
  if (!watcher_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void StillAtWork::now(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void StillAtWork::watch() {
  constexpr std::chrono::seconds kFirst(5);
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (auto next = kFirst; !changed_.wait_until(lock, begin + next, [&] { return ended_; });
       next *= 2)
    fmt::print(stderr, "note: at work for {} s: {}\n", next.count(), what_);
}

}  // namespace piper
