// The plans of a job with what they read, and who runs them. Private to the executor room.
#pragma once

#include "resume.h"
#include "switching.h"

namespace piper {

// How ranks meet: as threads of this process, or as processes.
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
  int64_t rank = 0, world = 1;
  Way way = Way::kThreads;
  std::string rendezvous;        // of kTcp
  std::shared_ptr<Later> later;  // what the job switches to, if it does
  bool is_process() const { return way != Way::kThreads; }
};

// Holds the plans under which a job goes on, with their own inputs: in their order.
struct Later {
  RunOptions options;
  Loaded loaded;
  std::unique_ptr<Switching> switching;
};

// Checks all that a rank can find wrong without the others, and fills `loaded`: its plans, those
// that the job switches to, the data, and how this rank meets the others.
Status prepare(RunOptions& options, Loaded& loaded);

}  // namespace piper
