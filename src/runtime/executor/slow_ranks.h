// Finds ranks that take longer than others with the same work, from what each has measured of
// itself. Private to the executor room.
#pragma once

#include <array>
#include <map>

#include "piper/runtime/job.h"
#include "recorder.h"

namespace piper {

// Counts what a rank spends in each step, by kind, in milliseconds.
struct SpentSums {
  int64_t rank = 0, role = 0, steps = 0;
  std::array<double, kSpentKinds> sum = {}, squares = {};
  double mean(size_t kind) const { return sum[kind] / static_cast<double>(steps); }
  // Returns the standard error of the mean.
  double error(size_t kind) const;
};

// Finds slow ranks by what all have counted over some steps: the time of their computations and of
// reading their data. The time in which they wait for others does not count.
class SlowJudge {
 public:
  // Returns the ranks that take significantly longer than the others of their role, or than they
  // took before where a role has one rank; of each kind the slowest.
  std::vector<SlowRank> judge(std::span<const SpentSums> all);

 private:
  std::map<std::pair<int64_t, size_t>, double> best_;  // by rank and kind, of a role of one rank
};

// Takes a rank through its part of it.
class SlowRanks {
 public:
  static constexpr int64_t kInterval = 20;  // steps whose times are known
  SlowRanks(Control& control, const Recorder& recorder, int64_t role)
      : control_(control), recorder_(recorder) {
    own_.rank = control.rank();
    own_.role = role;
  }
  // Counts a step that has ended, and whose times are known: of all ranks or of none. After each
  // interval all ranks meet, and rank 0 fills `metrics`.
  Status end_step(StepMetrics& metrics);

 private:
  Status gather(std::vector<SpentSums>& all);
  double spent_ms(size_t kind) const;

  Control& control_;
  const Recorder& recorder_;
  SpentSums own_;
  std::array<double, kSpentKinds> before_ = {};
  SlowJudge judge_;
};

}  // namespace piper
