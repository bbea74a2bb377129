// From which checkpoint a job goes on, and with what of it. Private to the executor room.
#pragma once

#include <set>

#include "job_log.h"
#include "piper/runtime/job.h"

namespace piper {

inline void tell_user(const std::string& line) { say(quote_control(line) + "\n"); }
inline Error usage(std::string text) { return Error{ExitCode::kUsage, {}, std::move(text), {}}; }

// Serves a checkpoint's tensors to ranks that load.
class CheckpointStates : public StateSource {
 public:
  // `averages`: parameters begin with their averages, where the checkpoint has some.
  CheckpointStates(const CheckpointReader& reader, bool weights_only, bool averages = false)
      : reader_(reader), weights_only_(weights_only), averages_(averages) {}
  // The state begins with the plans' initial value.
  void leave_out(std::string name) { left_out_.insert(std::move(name)); }
  Result<bool> fill(const Tensor& tensor, std::span<const std::string> names, const Held& held,
                    std::byte* to) const override;

 private:
  const CheckpointReader& reader_;
  const bool weights_only_, averages_;
  std::set<std::string> left_out_;
};

// Holds a checkpoint that is verified, and what the ranks begin with.
struct Start {
  std::unique_ptr<const CheckpointReader> reader;
  std::unique_ptr<CheckpointStates> states;
  int64_t step = 0, samples = 0, skipped = 0;
  std::vector<std::string> newer;  // checkpoints of its folder that were not taken
  bool is_running = false;         // not a checkpoint: the job itself, under the plans before these
};

// Returns the samples of a global batch.
int64_t batch_of(const PlanSet& set);

// Keeps other jobs from writing checkpoints into a folder, as long as it lives.
class FolderLock {
 public:
  // Creates the folder where there is none. Error (kStorage): another job has it.
  static Result<FolderLock> take(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  FolderLock(const FolderLock&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

// Finds the checkpoint that the options name, if they name one. Collective over `control`, if ranks
// are processes: each verifies some of the files. A damaged checkpoint is named, and the one before
// it is taken. Fills about.step and about.samples of where the job begins.
Result<std::optional<Start>> find_start(const RunOptions& options, Control* control);

// Says which checkpoints of a folder are not taken, or only where there is no other.
struct StartChoice {
  int64_t least = 0;   // no checkpoint of a lower step
  int64_t tried = -1;  // the others rather than that of this step: a job got no further from it
};
// Finds the newest undamaged checkpoint of the folder that the options name; nothing where there is
// none. Collective in the same way.
Result<std::optional<Start>> find_newest(const RunOptions& options, Control* control,
                                         const StartChoice& choice);
// Renames those checkpoints that are newer than the one that was taken, where new ones will be
// written beside them: they would be taken for the newest of another run. On rank 0.
Status set_newer_aside(const RunOptions& options, const Start& start);

// Compares what the checkpoint was trained with and what is asked for now. Error (kUsage): they
// differ, and nobody has accepted it; all differences are named. `speaks`: what is loaded, fresh
// and ignored is listed on stderr. A branch of which no optimizer's state goes on counts its
// updates from 0.
Status check_start(const RunOptions& options, const PlanSet& set, Start& start,
                   const BatchSource* data, bool speaks);

// Tells the user of sources of data that do not go on where the checkpoint left them: their weights
// in a mixture are others for samples that were consumed. `data` begins at the checkpoint's step.
void tell_moved_sources(const Checkpoint& about, const BatchSource& data);

// Completes what the options say of checkpoints: what all of them say alike, and from where samples
// are counted. Error (kNumeric): it was started too often without a new checkpoint. Error (kUsage):
// the plans' steps overlap and run on a GPU, which is not supported;
// or the folder has a newer checkpoint than the job begins with, which rank 0 (`speaks`) finds.
Status prepare_checkpoints(RunOptions& options, const PlanSet& set, const BatchSource* data,
                           const std::optional<Start>& start, bool speaks);

// Says what is the same in all checkpoints of a job under these plans.
void describe_job(const RunOptions& options, const PlanSet& set, const BatchSource* data,
                  Checkpoint& about);

// A job has ended without an error: its starts count no more.
void forget_starts(const CheckpointOptions& options);

}  // namespace piper
