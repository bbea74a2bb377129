// One line about how far a run is: rewritten in place on a terminal, now and then elsewhere.
#pragma once

#include <cstdio>
#include <optional>

#include "piper/runtime/job.h"

namespace piper {

// Predicts how long a job goes on, by the half of its steps that ended last, or more of them: what
// is done between steps counts, and what steps took long ago does not.
class TimeLeft {
 public:
  explicit TimeLeft(int64_t steps) : steps_(steps) {}
  // Returns the seconds that are left after a step, which ended at this time, also in seconds;
  // nothing if it is the first, or if the job has gone back.
  std::optional<double> after(int64_t step, double time);

 private:
  struct Ended {
    int64_t step = 0;
    double time = 0;
  };
  int64_t steps_;
  std::optional<Ended> from_;
  Ended middle_;
};

class Progress {
 public:
  // every: 0 chooses, so that about twenty lines are written where there is no terminal.
  Progress(int64_t steps, int64_t every);
  ~Progress();  // leaves the terminal on a new line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const StepMetrics& metrics);

 private:
  int64_t steps_, every_;
  bool terminal_;
  TimeLeft left_;
  double data_ms_ = 0;     // what ranks waited for data in a step, when it was counted last
  bool open_ = false;      // a line without its end is on the terminal
  double last_ms_ = -1e9;  // when a line was written
};

std::string print_evaluation(const EvaluationMetrics& metrics);
std::string print_slow(
    const SlowRank& one);  // "rank 3 takes 1.4 x the others in F: 31.2 ms a step"
// Returns a line on the step. `data_ms`: what ranks wait for data; `left`: seconds until the end.
std::string print_progress(const StepMetrics& metrics, int64_t steps, double data_ms,
                           std::optional<double> left);

}  // namespace piper
