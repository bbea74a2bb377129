// One rank's way through a job, the same for threads and for processes.
#pragma once

#include "between_steps.h"
#include "checkpointing.h"
#include "comparison.h"
#include "replicas.h"

namespace piper {

struct RankRun {
  Executor& executor;
  Control& control;
  Transport& transport;
  Fabric& fabric;  // that of the transport, or of the backend
  BetweenSteps& between;
  const JobOptions& options;
  int64_t role = 0;  // of the rank: others with the same do the same work
  int64_t tokens_per_step = 0;
  Comparison* comparison = nullptr;  // where this rank compares
  bool apart = false;                // every rank compares its own parameters
  Replicas* replicas = nullptr;      // where replicas are compared
  Checkpointing* checkpoints = nullptr;
  JobResult& result;  // rank 0's is the job's
};
Status run_rank(RankRun& run);

// Gives rank 0 what collect_parameters returns, along the tree of ranks: collective. What `take`
// asks for of it, all ranks serve, however long it runs; what they fail to give is zero, and the
// error.
Status gather_parameters(const Executor& executor, Control& control, double timeout_s,
                         const std::function<void(std::span<const NamedTensor>)>& take);

}  // namespace piper
