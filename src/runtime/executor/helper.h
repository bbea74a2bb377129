// The second thread of a rank: it talks to other ranks, and works through streams that do not
// compute, while the rank's own thread computes.
//
// Each of the two has its instructions in the order of issue and counts those that are done; one
// waits for the other where `waits` or a stream say so. So whatever the plan allows to overlap
// does, nothing waits for what would come after it in one thread, and one thread at a time uses the
// fabric: the helper within sections, the rank's own between them.
#pragma once

#include "executor_state.h"
#include "worker.h"

namespace piper {

class Helper {
 public:
  static Result<std::unique_ptr<Helper>> start(Executor::State& state);
  // Runs all of a section that has two threads, except the end of its messages.
  Status run(const BoundSection& section, int64_t step);

 private:
  static constexpr size_t kOwn = 0, kHelps = 1;
  static constexpr int32_t kFailed = INT32_MAX;
  explicit Helper(Executor::State& state) : state_(state) {}
  Status run_line(size_t line);
  bool wait_for_other(size_t line, int32_t after);  // false: that one has failed
  void publish(size_t line, int32_t done);

  Executor::State& state_;
  const BoundSection* section_ = nullptr;
  int64_t step_ = 0;
  TraceEvent* trace_ = nullptr;
  Status status_ = ok_status();  // the helper's
  struct alignas(64) Done {
    std::atomic<int32_t> count{0};
  } done_[2];
  std::unique_ptr<Worker> worker_;  // last: it ends first
};

}  // namespace piper
