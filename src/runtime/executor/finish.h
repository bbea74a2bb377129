// The end of a job of several processes.
#pragma once

#include <algorithm>
#include <functional>

#include "piper/runtime/job.h"

namespace piper {

// Returns how long a rank waits for another after the last step, in seconds.
inline double end_timeout(const JobOptions& options) {
  return std::max(options.start_timeout_s, options.timeout_s.value_or(0));
}

// Finishes together after the last step, on all ranks: does `work`, such as saving what was
// trained, and returns when all have done theirs. That may take as long as it takes; but a process
// that is heard of no more is waited for `timeout_s` seconds only, and named. `work` is done in any
// case.
Status finish_together(Control& control, double timeout_s, const std::function<void()>& work);

}  // namespace piper
