// What rank 0 does after each step. Private to the executor room.
#pragma once

#include "outputs.h"
#include "progress.h"
#include "run_folder.h"

namespace piper {

// Reports each step, and looks whether the run shall go on.
class Watch {
 public:
  // Has the options call it, where this process speaks for the job. `data` may be null.
  Watch(RunOptions& options, const PlanSet& set, const BatchSource* data, Voice& voice,
        bool speaks);
  // Writes what is written at the end.
  void close() { voice_.note(folder_.close()); }

 private:
  using Clock = std::chrono::steady_clock;
  Status see(const StepMetrics& one);
  void name_slow(const std::vector<SlowRank>& slow);
  Status go_back(int64_t step, int64_t done);

  Voice& voice_;
  const BatchSource* const data_;
  std::atomic<bool> own_stop_{false};
  std::atomic<bool>* stop_ = nullptr;  // set by a signal, or when data are not what they were
  std::optional<Progress> progress_;
  MetricsFile metrics_;
  RunFolder folder_;
  std::vector<SlowRank> slow_;  // what was said last
  Clock::time_point looked_ = Clock::now();
};

}  // namespace piper
