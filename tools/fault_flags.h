// The flags of piper-run that say what a job does of faults that it finds in itself.
#pragma once

#include <CLI/CLI.hpp>

#include "piper/runtime/job.h"

namespace piper {

struct FaultFlags {
  std::string on_nan = "stop";

  void add(CLI::App& app, RunOptions& run);
  // Takes over what was given.
  void take(RunOptions& run) const;
};

}  // namespace piper
