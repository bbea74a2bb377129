// The flags of piper-run that say when checkpoints are written and with which one a run begins.
#pragma once

#include <CLI/CLI.hpp>

#include "piper/runtime/job.h"

namespace piper {

struct CheckpointFlags {
  CheckpointOptions options;
  std::string keep, checkpoint_errors = "stop", time_limit;
  std::string resume, resume_or_start, branch, init;

  void add(CLI::App& app, RunOptions& run);
  // Takes over what was given.
  Status take(RunOptions& run);
};

}  // namespace piper
