// The line about how far a run is: what it has, and how long the job still takes.
#include "progress.h"

#include <gtest/gtest.h>

namespace piper {
namespace {

TEST(Progress, TheLineHasWhatIsKnown) {
  StepMetrics metrics;
  metrics.step = 9;
  metrics.loss = 2.5;
  metrics.step_ms = 100;
  metrics.tokens_per_s = 4096;
  EXPECT_EQ(print_progress(metrics, 100, 0.9, std::nullopt),
            "step 10/100  loss 2.5000  100.0 ms  4096 tokens/s");
  metrics.grad_norm = 1.25;
  metrics.learning_rate = 2e-3;
  metrics.skipped = 1;
  metrics.steps_skipped = 3;
  metrics.mfu = 0.417;
  EXPECT_EQ(print_progress(metrics, 100, 1.0, 4000),
            "step 10/100  loss 2.5000  grad norm 1.250  lr 0.002  skipped  (3 of this job)  "
            "100.0 ms  4096 tokens/s  MFU 41.7 %  data 1.0 ms  1 h 6 min left");
  EXPECT_EQ(print_progress(metrics, 100, 0, 59), print_progress(metrics, 100, 0, std::nullopt));
}

// Steps take a second each, and after each tenth an evaluation takes five.
TEST(TimeLeft, CountsWhatIsDoneBetweenSteps) {
  TimeLeft left(1000);
  double time = 60;  // the first step has to wait for everything
  EXPECT_FALSE(left.after(0, time));
  for (int64_t step = 1; step < 1000; ++step) {
    time += step % 10 == 0 ? 6 : 1;
    const auto found = left.after(step, time);
    ASSERT_TRUE(found);
    const double want = 1.5 * static_cast<double>(1000 - step - 1);
    if (step < 400) continue;
    EXPECT_NEAR(*found, want, 0.1 * want) << step;
  }
}

// A batch that has grown takes longer: soon its steps alone count. A job that goes back begins
// anew.
TEST(TimeLeft, ForgetsHowLongStepsTookLongAgo) {
  TimeLeft left(1000);
  double time = 0;
  std::optional<double> found;
  for (int64_t step = 0; step < 100; ++step) found = left.after(step, time += 1);
  for (int64_t step = 100; step < 400; ++step) found = left.after(step, time += 3);
  EXPECT_NEAR(*found, 3 * 600, 1);
  EXPECT_FALSE(left.after(50, time += 3));
  found = left.after(51, time += 3);
  EXPECT_NEAR(*found, 3 * 948, 1);
}

}  // namespace
}  // namespace piper
