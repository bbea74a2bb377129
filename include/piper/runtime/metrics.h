// What a job measures: of each step, of an evaluation, of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper {

// Names a rank that takes significantly longer than others with the same work, by what it measured
// of itself. Waiting for others is no part of it.
struct SlowRank {
  int64_t rank = 0;
  const char* in = "";    // "F", "B", "U", "data"
  double factor = 1;      // of the median of the others
  double ms = 0;          // in a step
  bool is_alone = false;  // no other rank has the same work: of its own best time before
  bool operator==(const SlowRank&) const = default;
};

struct StepMetrics {
  int64_t step = 0;  // from 0; people see it from 1
  std::optional<double> loss, grad_norm, learning_rate;
  std::optional<double> skipped, loss_scale;  // 1: the gradients were not finite, nothing changed
  std::optional<int64_t> steps_skipped;       // by this job so far; none where plans skip none
  double tokens_per_s = 0, step_ms = 0;
  int64_t peak_bytes = 0;  // the largest that a rank's plan states
  // Model FLOPs of the step by what the devices could do in its time; none if nobody knows that.
  std::optional<double> mfu;
  // After each 20 steps, of these: what ranks spent on average in a step, by kind ("F",
  // "communication", …), in milliseconds; and who is slow.
  std::vector<std::pair<const char*, double>> spent_ms;
  std::vector<SlowRank> slow;
};

// Metrics of at least so many last steps are kept.
inline constexpr size_t kKeptSteps = 1000;

// Counts the steps of a job.
struct JobTotals {
  int64_t begun = 0, done = 0;       // steps before the first one that counts, and at the end
  std::optional<double> first_loss;  // of the first step that counts
  int64_t ended = 0;                 // steps, with those that the job went back from
  double ms = 0;                     // of these
};
// Says how long the steps and checkpoints of a job take, in seconds; 0: nobody knows yet.
struct JobPace {
  double step_s = 0;        // the longest of the last 20, with what is done between them
  double checkpoint_s = 0;  // the longest so far
};

// Says how a job has gone back from steps that are not finite.
struct Rollbacks {
  int64_t count = 0;
  int64_t failed = -1;   // the step from which it went back the last time
  int64_t went_to = -1;  // so many steps were done where it went on
};

// The loss over a set of data that is not trained on: of all its batches, each counted by its
// weight.
struct EvaluationMetrics {
  int64_t step = 0;  // so many steps were done
  std::string set;
  double loss = 0;
  int64_t batches = 0;
  double ms = 0;
};
// Measures the memory of the device of rank 0, where its backend has memory of its own.
struct MemoryMetrics {
  int64_t stated_bytes = 0;  // by the rank's plan
  int64_t taken_bytes = 0;   // by its backend, in whole pages
  // Free as the driver reports it, whoever has the rest; none after step 2 before that is done.
  int64_t free_after_load = 0;
  std::optional<int64_t> free_after_step_2;
};

}  // namespace piper
