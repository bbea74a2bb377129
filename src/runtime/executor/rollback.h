// Tells what a job can go back to when a step is not finite. Private to the executor room.
#pragma once

#include "loaded.h"

namespace piper {

class WaysBack {
 public:
  // The job begins with the phase `begins`, whose start is known. The phases outlive this.
  WaysBack(std::span<const JobPhase> phases, size_t begins);
  // Finds what JobOptions::find_back returns to a job whose phase `at` runs.
  Result<GoneBack> find(Control& control, size_t at, int64_t tried) const;

 private:
  const std::string& folder() const { return asked_.job.checkpoint->folder; }
  Status check(const RunOptions& asked, Start& start) const;
  Result<std::optional<Start>> find_own(Control& control, int64_t tried) const;

  const std::span<const JobPhase> phases_;
  RunOptions asked_;
  std::optional<std::string> began_;  // the checkpoint or file that the job began with
  int64_t least_ = 0;                 // the first step whose checkpoint is of this job
};

}  // namespace piper
