// The folder of a run, for people and for what watches jobs. Private to the executor room.
#pragma once

#include "piper/runtime/job.h"
#include "tensorboard.h"

namespace piper {

// Keeps `--out DIR`: strategy.yaml, TensorBoard's events and metrics.prom. (metrics.jsonl and
// checkpoints/ are what --metrics and --checkpoint write, which it stands for.)
class RunFolder {
 public:
  // Fills what DIR stands for in the options. To be called before they are read.
  static void complete(RunOptions& options);
  // Checks that the folder holds no strategy.yaml of somebody else, which would be replaced.
  static Status check(const RunOptions& options, const PlanSet& set);
  // Creates the folder; the plans' strategy is copied there. Nothing to do without --out. A job
  // that only evaluates adds events, and leaves all else as the job that trains wrote it.
  Status open(const RunOptions& options, const PlanSet& set);
  Status add(const StepMetrics& metrics);
  Status add(const EvaluationMetrics& metrics);
  // The job goes on after this step: a further file of events says so.
  Status go_back(int64_t step);
  // Writes the last values for Prometheus.
  Status close();

 private:
  // Opens a further file of events, which replaces what others say of steps after `first_step`.
  Status begin_events(std::optional<int64_t> first_step);
  Status write_values();

  std::string folder_;
  TensorBoardFile events_;
  StepMetrics last_;
  std::map<std::string, double> spent_seconds_;         // a step's, as last known: by what ranks do
  std::map<std::string, EvaluationMetrics> evaluated_;  // by set: the last
  int64_t steps_ = 0;
  bool trains_ = true;
  std::chrono::steady_clock::time_point written_{};
};

}  // namespace piper
