// One line about how far a run is: rewritten in place on a terminal, now and then elsewhere.
#pragma once

#include <cstdio>

#include "piper/runtime/job.h"

namespace piper {

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
  bool open_ = false;      // a line without its end is on the terminal
  double last_ms_ = -1e9;  // when a line was written
};

std::string print_evaluation(const EvaluationMetrics& metrics);
std::string print_slow(
    const SlowRank& one);  // "rank 3 takes 1.4 x the others in F: 31.2 ms a step"
std::string print_progress(const StepMetrics& metrics, int64_t steps);

}  // namespace piper
