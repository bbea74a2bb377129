// Ends the process with a message if it has not moved on in time.
#include "watchdog.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <system_error>

#include "seats.h"

namespace piper {

Watchdog::Watchdog(double seconds, std::string text, int code) {
  try {
    thread_ =
        std::thread([this, seconds, text = std::move(text), code] { watch(seconds, text, code); });
  } catch (const std::system_error&) {
    // Where there is no thread to be had, nothing is guarded.
  }
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(double seconds, const std::string& text, int code) {
  Seat unseen;
  Patience patience(unseen, seconds);
  const std::chrono::duration<double> interval(patience.interval());
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval, [this] { return over_; })) {
    if (patience.look()) continue;
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
    _exit(code);
  }
}

}  // namespace piper
