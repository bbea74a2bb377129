// What ranks tell each other between steps, outside of the plan: results to rank 0, and whether to
// go on.
#pragma once

#include <deque>

#include "piper/runtime/job.h"

namespace piper {

// Says, as bits, what a rank tells the others after a step.
enum Word : uint16_t {
  kStop = 1,         // it was told to stop, or has reason to
  kSave = 2,         // it was told to write a checkpoint
  kStillWrites = 4,  // its part of the checkpoint under way is not written
  kInterrupted = 8,  // it stops before the end that was asked for
  kNotWritten = 16,  // rank 0: the checkpoint under way failed
  kSkipped = 32,     // the norm of the gradients is not finite, and the rank made no update
  kNotFinite = 64,   // a loss or norm is not finite, and the rank made the update
  kUpdated = 128,    // of plans that can skip an update: the rank made it
  kLost = 256,       // it stops since data or a checkpoint are lost
};
using Words = uint16_t;

// What any rank says reaches all. `what`: what a rank waits in, for messages.
Status merge_words(Control& control, Words& words, const char* what);

class BetweenSteps {
 public:
  // Opens what ranks do between steps. Collective. The executors are loaded when it returns, on all
  // ranks.
  // `manifest`: of the plans, which says how many FLOPs a step of the model has. `peak`: what the
  // rank's device can do, in FLOPs a second; 0: nobody knows.
  static Result<BetweenSteps> open(Control& control, const Executor& executor,
                                   const Manifest& manifest, double peak);
  // After a step. On rank 0: fills loss, grad_norm and learning_rate of `metrics` from the lowest
  // rank that reports each.
  Status collect(const Executor& executor, StepMetrics& metrics);
  // What any rank says (Word bits) reaches all.
  Status agree(Words& words);
  // Where steps overlap only rank 0 decides: what it says after a step counts on all as many steps
  // later as their tree is high, so that nobody waits for rank 0, nor does it wait for them. Called
  // after each step. `last`: nothing is under way any more when it returns; the next call is then
  // the first again.
  Status spread_late(Words& words, bool last);
  int64_t peak_bytes() const { return facts_.peak_bytes; }
  int64_t taken_bytes() const { return facts_.taken_bytes; }
  // Returns the model FLOPs of a step by what all devices could do in this time; nothing where
  // nobody knows that.
  std::optional<double> mfu(double seconds) const;
  // Returns whether some rank forms sums in another order than one device.
  bool sums_otherwise() const { return facts_.sums_otherwise != 0; }
  // Return whether the plans skip steps whose gradients are not finite, and scale the loss.
  bool can_skip() const { return facts_.source[kSkippedValue] < control_->world(); }
  // Returns the fewest rows of which a rank has room for those of each other rank; 0: for all.
  int64_t room() const { return facts_.room; }
  bool scales_loss() const { return facts_.source[kScaleValue] < control_->world(); }

 private:
  static constexpr int kValues = 5, kSkippedValue = 3, kScaleValue = 4;
  struct Facts {                   // of all ranks
    int64_t source[kValues] = {};  // the lowest that reports a value; the world's size: none
    int64_t peak_bytes = 0;        // the largest of any
    int64_t taken_bytes = 0;       // of the device, after load: the most of any
    int64_t sums_otherwise = 0;
    int64_t room = 0;       // the least of any
    double peak_flops = 0;  // of all together
  };
  Control* control_ = nullptr;
  Facts facts_;
  double step_flops_ = 0;          // of the model; 0: not known
  std::vector<int64_t> speakers_;  // ranks that report something, but for rank 0
  int64_t late_steps_ = 0;         // after which spread_late was called
  std::deque<Words> said_;         // by rank 0, what does not count yet
};

}  // namespace piper
