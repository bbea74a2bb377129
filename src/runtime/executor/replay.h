// Runs a step's forward and backward twice before its update, and compares bits: finds a device
// that computes wrong without saying so. Private to the executor room.
#pragma once

#include "executor_state.h"

namespace piper {

// Runs the part of a rank's body twice that comes before its update.
class Replay {
 public:
  // Error (kUsage): the plans' steps overlap, they run on an asynchronous backend, or a rank would
  // wait within this part for what another one does after it.
  static Result<std::unique_ptr<Replay>> open(Executor::State& state, int64_t every);
  bool is_due(int64_t step) const { return (step + 1) % every_ == 0; }
  // Runs the part for the first time. What it reads is staged; what it writes and keeps is
  // restored.
  Status run_first(int64_t step);
  // Takes the digest of what an instruction of the body has made, or compares it.
  void note(size_t instruction);
  bool is_end(size_t instruction) const { return instruction == end_; }
  // Lets all ranks agree, at the end of the part in the second run, that all had the same bits.
  // Collective. Error (kNumeric): this rank had others, and is the first of the job that had.
  Status compare(int64_t step);
  // Returns whether the body under way is the second run.
  bool compares() const { return compares_; }

 private:
  explicit Replay(Executor::State& state) : state_(state) {}
  void note_written(size_t i);

  Executor::State& state_;
  int64_t every_ = 0;
  size_t end_ = 0;  // the first instruction of the body that is part of the update
  bool compares_ = false;
  struct Run {
    const std::byte* data;
    size_t bytes;
  };
  std::vector<std::vector<Run>> written_;  // by instruction of the part
  std::vector<uint64_t> digests_;          // the same, of the first run
  std::optional<size_t> other_;            // the first instruction that had other bits
  // States that forwards write, such as running statistics, with what they held before.
  std::vector<std::pair<int32_t, std::vector<std::byte>>> kept_;
};

}  // namespace piper
