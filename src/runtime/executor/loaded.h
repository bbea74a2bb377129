// The plans of a job with what they read, and who runs them. Private to the executor room.
#pragma once

#include "resume.h"
#include "switching.h"

namespace piper {

// Says how ranks meet: as threads of this process, or as processes.
enum class Way { kThreads, kMpi, kTcp };

struct Later;

// Holds the plans that run, and says where.
struct Loaded {
  PlanSet set;
  std::optional<PlanSet> reference;
  std::unique_ptr<BatchSource> data, reference_data;
  std::vector<std::unique_ptr<BatchSource>> evaluation;
  std::optional<Start> start;      // what the states begin with, if not with the plans' values
  std::optional<FolderLock> lock;  // of the folder of checkpoints, on rank 0
  std::vector<std::string> replaced;  // of the environment: NAME=VALUE, as it was
  int64_t rank = 0, world = 1;
  Way way = Way::kThreads;
  std::string rendezvous;                // of kTcp
  std::unique_ptr<Switching> switching;  // to these plans, from those before them
  std::shared_ptr<Later> later;          // what the job switches to, if it does
  // The plans before these, in their order, of a job that resumes under these and may go back.
  std::vector<std::shared_ptr<Later>> earlier;
  bool is_process() const { return way != Way::kThreads; }
};

// Holds the plans under which a job goes on, with their own inputs: in their order.
struct Later {
  RunOptions options;
  Loaded loaded;
};

// Says which steps run under which plans: those from `first_step` on, up to the next phase.
struct JobPhase {
  RunOptions* options = nullptr;
  Loaded* loaded = nullptr;
  int64_t first_step = 0;
};
// Returns all phases of a job in their order, with those before the plans that it begins with.
std::vector<JobPhase> phases_of(RunOptions& options, Loaded& loaded);
// Returns the phase that trains on after so many steps.
size_t phase_after(std::span<const JobPhase> phases, int64_t steps);

// Checks all that a rank can find wrong without the others, and fills `loaded`: its plans, those
// that the job switches to, the data, and how this rank meets the others.
Status prepare(RunOptions& options, Loaded& loaded);

}  // namespace piper
