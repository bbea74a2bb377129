// What a terminal is told of work that takes more than some seconds.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace piper {

// Says on stderr, where that is a terminal, after 5 s, 10 s, 20 s … what is being done.
class StillAtWork {
 public:
  explicit StillAtWork(std::string what);
  ~StillAtWork();
  // Says what is done from now on, which other threads may read.
  void now(std::string what);

 private:
  void watch();

  std::mutex mutex_;  // for `what_` and `ended_`
  std::condition_variable changed_;
  std::string what_;
  bool ended_ = false;
  std::thread watcher_;  // none: stderr is no terminal
};

}  // namespace piper
