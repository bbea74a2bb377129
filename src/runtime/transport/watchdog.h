// Ends the process when what is under its guard does not end.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace piper {

class Watchdog {
 public:
  // After so many seconds (those in which the process did not run do not count) `text` goes to
  // stderr and the process ends with `code`, whatever its threads do.
  Watchdog(double seconds, std::string text, int code);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(double seconds, const std::string& text, int code);
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace piper
