// Steps whose loss or gradients are not finite: what becomes of the job. Private to the executor
// room.
#pragma once

#include "between_steps.h"

namespace piper {

// Decides what becomes of a step whose numbers are not finite, on all ranks alike.
class NonFinite {
 public:
  // `can_keep`: steps do not overlap, so that there is a state without the step. `is_late`: the
  // next step is queued before this one is judged.
  NonFinite(const JobOptions& options, const BetweenSteps& between, bool can_keep, bool is_late)
      : options_(options),
        between_(between),
        can_keep_(can_keep),
        is_late_(is_late),
        skipped_(options.skipped),
        rollbacks_(options.rollbacks.count) {}
  enum class Verdict {
    kGoOn,
    kKeep,      // the job ends with the state before the step, and with the step that is queued
    kRollBack,  // it goes on from the newest checkpoint
    kFail,      // it ends, and keeps nothing
  };
  // Returns the Word bits that a rank tells the others of a step: rank 0 by what it has collected,
  // others by their own reports. What all have alike, such as a norm under tensor parallelism, may
  // be spoilt in one rank's copy only.
  Words words(const StepMetrics& metrics) const;
  Words words(const Executor& executor) const;
  // Judges the step by what all ranks have told of it.
  Verdict judge(Words words);
  // Says what is wrong with the step that was judged last, and what becomes of it.
  Error error(const StepMetrics& metrics, Verdict verdict) const;
  // Returns the error of a step that no rank waits for the others with: steps overlap. By what the
  // rank itself reports.
  Status check_alone(const Executor& executor, int64_t step);
  std::optional<int64_t> skipped() const;
  int64_t rollbacks() const { return rollbacks_; }

 private:
  bool may_skip() const { return between_.scales_loss() || options_.on_nan == OnNan::kSkip; }

  const JobOptions& options_;
  const BetweenSteps& between_;
  const bool can_keep_, is_late_;
  int64_t skipped_, in_a_row_ = 0, rollbacks_;
  bool disagrees_ = false;  // in the step that was judged last, some ranks made the update
};

// Checks that the plans can do what is asked for. Error (kUsage): they cannot.
Status check_on_nan(const RunOptions& options, const PlanSet& set);

// Has the rank go on from where JobOptions::find_back says, and from the data after `step`, unless
// it is of other plans. Collective; everything of the job so far has ended.
Result<GoneBack> roll_back(const JobOptions& options, Control& control, Executor& executor,
                           int64_t step, int64_t tried, int64_t& left_out);

}  // namespace piper
