// Looks during a run whether data files are what they were when they were opened. Private to the
// executor room.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "piper/runtime/data.h"

namespace piper {

// Looks each second at some files of the sources in turn, from a thread of its own: where files lie
// on other hosts, a look may take as long as a step.
class DataWatch {
 public:
  // `on_change` is called at most once, from the thread. The sources outlive the watch. Processes
  // with other `rank`s begin with other files, so that together they come round sooner.
  DataWatch(std::vector<const BatchSource*> sources, int64_t rank,
            std::function<void(const Error&)> on_change);
  ~DataWatch();
  DataWatch(const DataWatch&) = delete;

 private:
  void run();
  Status look();

  std::vector<const BatchSource*> sources_;  // with a file at least
  size_t source_ = 0;                        // whose files come next
  int64_t file_ = 0;                         // of them
  int64_t files_ = 0;                        // of all sources
  std::function<void(const Error&)> on_change_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace piper
