// What ranks tell each other between steps, outside of the plan: results to rank 0, and whether to
// go on.
#pragma once

#include "piper/runtime.h"

namespace piper {

class Control {
 public:
  // Collective. The executors are loaded when it returns, on all ranks.
  static Result<Control> open(Transport& transport, const Executor& executor);
  // After a step. On rank 0: fills loss, grad_norm and learning_rate of `metrics` from the lowest
  // rank that reports each.
  Status collect(const Executor& executor, StepMetrics& metrics);
  // Rank 0's `stop` reaches all.
  Status spread(bool& stop);
  // The same where steps overlap: what rank 0 says after a step reaches all after the next one, so
  // that nobody waits for rank 0, nor does it wait for them. Not called before the first step ends;
  // after the last step nothing is said any more.
  Status spread_late(bool& stop, bool first, bool last);
  // Every rank's numbers, the same count on all, reach rank 0; `by_rank` stays empty on the others.
  Status gather(std::span<const uint64_t> own, std::vector<std::vector<uint64_t>>& by_rank);
  int64_t peak_bytes() const { return peak_bytes_; }
  bool dims_are_cut() const { return dims_are_cut_; }  // on any rank

 private:
  static constexpr int kValues = 5;
  Transport* transport_ = nullptr;
  int64_t peak_bytes_ = 0;  // the largest of any rank
  bool dims_are_cut_ = false;
  int64_t source_[kValues] = {};                   // rank that reports a value; -1: none
  std::vector<std::pair<int64_t, int32_t>> from_;  // rank 0: ranks that report, and their routes
  int32_t to_zero_ = -1;                           // a rank that reports: route to rank 0
  char said_ = 0;                                  // by rank 0 after the step before
  std::vector<int32_t> gather_;  // rank 0: routes from all others; others: the one to rank 0
  std::vector<int32_t> go_;      // rank 0: routes to all others; others: the one from rank 0
};

}  // namespace piper
