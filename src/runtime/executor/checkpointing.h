// When a rank's states are copied and written, step by step. Private to the executor room.
#pragma once

#include <thread>

#include "between_steps.h"

namespace piper {

// Writes one rank's file of a checkpoint: the copy is made at once, the file by a thread.
class RankWriter {
 public:
  RankWriter(const CheckpointOptions& options, const PlanSet& set, int64_t rank,
             Executor& executor);
  ~RankWriter();
  int64_t staged_bytes() const { return std::ssize(staging_); }
  int64_t stored_bytes() const { return stored_; }
  // Copies the states and begins to write them below `folder`. Not while one is being written.
  Status begin(const std::string& folder, int64_t step);
  bool is_writing() const { return writing_.load(std::memory_order_acquire); }
  // Returns what was written, when it is: a file without a name where this rank writes no state.
  Result<CheckpointFile> finish();

 private:
  struct Own {
    int32_t buffer = 0;
    std::string name;
    Held held;
    int64_t at = 0;  // in the staging memory
  };
  void write(const std::string& folder, int64_t step);
  Result<CheckpointFile> write_pieces(const std::string& folder);

  Storage& storage_;
  const int64_t rank_;
  Executor& executor_;
  std::vector<Own> own_;
  std::vector<NamedTensor> untouched_;  // what no step changes: rank 0 writes it
  std::vector<std::byte> staging_;
  int64_t stored_ = 0;
  std::thread thread_;
  std::atomic<bool> writing_{false};
  Result<CheckpointFile> written_ = CheckpointFile{};
};

// Takes a rank through its checkpoints. All ranks call each function after the same step.
class Checkpointing {
 public:
  // `longest_s` is the longest that a checkpoint has taken so far; 0: there was none. Error: the
  // folder cannot be written to, is another job's, or has no room.
  static Result<std::unique_ptr<Checkpointing>> open(const CheckpointOptions& options,
                                                     const PlanSet& set, Executor& executor,
                                                     Control& control, int64_t first_step,
                                                     double longest_s);
  ~Checkpointing();
  // Returns the Word bits that the rank tells the others after a step.
  Words word() const;
  // Goes on with what is under way, given what all ranks said after this step (Word bits).
  Status advance(Words words);
  // Returns whether a checkpoint is to be written after so many steps.
  bool is_due(int64_t done, Words words) const;
  // Returns whether rank 0's clock asks for one.
  bool asks() const;
  // Copies all states; first waits until the checkpoint before this one is written.
  // `skipped`: steps, so far.
  Status begin(int64_t done, int64_t skipped, std::optional<double> loss,
               std::optional<double> evaluation_loss);
  // The job goes on from a checkpoint of this folder, which has so many steps, and has left out so
  // many steps of data since it was started. After drain().
  void go_back(int64_t done, int64_t left_out);
  // Waits until all is written.
  Status drain();
  // Returns whether the checkpoint after so many steps could not be written.
  bool has_lost(int64_t step) const { return lost_step_ == step; }
  // Returns whether the job is to end because a checkpoint could not be written.
  bool has_failed() const { return has_failed_; }
  // Returns how many seconds a checkpoint may take that begins now: as long as the longest so far.
  double likely_s() const;
  double longest_s() const { return longest_s_; }  // 0: there was none

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kIdle, kWriting, kCommitting };
  Checkpointing(const CheckpointOptions& options, const PlanSet& set, Executor& executor,
                Control& control, int64_t first_step);
  Status take_folder(int64_t bytes);
  Status check_shared();
  Status gather_files();
  Status commit();
  Status end_commit();
  Status lose_commit(Error error);
  Status remove_surplus();
  // Returns the loss by which checkpoints are best.
  std::optional<double> ranked(const Checkpoint& about) const {
    return options_.by_evaluation ? about.evaluation_loss : about.loss;
  }
  void note(const std::string& line) const;
  std::string built_folder(int64_t step) const;

  const CheckpointOptions& options_;
  Executor& executor_;
  Control& control_;
  RankWriter writer_;
  Phase phase_ = Phase::kIdle;
  int64_t step_;      // of the one under way, or the last; else where the job began
  Checkpoint about_;  // rank 0's, of the one under way
  Clock::time_point began_, last_ = Clock::now();
  double held_s_ = 0, longest_s_ = 0;
  std::thread committer_;  // rank 0's
  std::atomic<bool> committing_{false};
  Status committed_ = ok_status();
  std::map<int64_t, std::optional<double>> losses_;  // rank 0's: of the checkpoints in the folder
  Status removed_ = ok_status();
  int64_t left_out_ = 0;    // steps of data
  int64_t bytes_ = 0;       // of a checkpoint, of all ranks
  int64_t id_ = 0;          // of the job, in the names of folders that are not whole
  int64_t lost_step_ = -1;  // of the last checkpoint that could not be written
  bool has_failed_ = false;
};

}  // namespace piper
