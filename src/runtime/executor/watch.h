// What rank 0 does after each step. Private to the executor room.
#pragma once

#include "outputs.h"
#include "progress.h"
#include "run_folder.h"

namespace piper {

// Reports each step.
class Watch {
 public:
  // Has the options call it, where this process speaks for the job.
  Watch(RunOptions& options, const PlanSet& set, Voice& voice, bool speaks);
  // Writes what is written at the end.
  void close() { voice_.note(folder_.close()); }

 private:
  Status see(const StepMetrics& one);
  void name_slow(const std::vector<SlowRank>& slow);
  Status go_back(int64_t step, int64_t done);

  Voice& voice_;
  std::optional<Progress> progress_;
  MetricsFile metrics_;
  RunFolder folder_;
  std::vector<SlowRank> slow_;  // what was said last
};

}  // namespace piper
