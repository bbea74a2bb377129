// A job that goes on under other plans in the middle: what its ranks hold moves in memory. Private
// to the executor room.
#pragma once

#include "piper/plan/transfer.h"
#include "resume.h"

namespace piper {

// Moves the states of all ranks of this process, and serves them to those that load the new plans.
class Switching : public StateSource {
 public:
  // Plans and proves the transfer. The sets outlive it. `timeout_s`: how long a rank waits for
  // another, which copies what it holds. Error (kUsage): their numbers of ranks differ.
  static Result<std::unique_ptr<Switching>> plan(const PlanSet& from, const PlanSet& to,
                                                 double timeout_s);
  // Gives other ranks what they need of this one, and takes what it needs. Collective; the ranks
  // have settled.
  Status move(Executor& executor, Transport& transport);
  Result<bool> fill(const Tensor& tensor, std::span<const std::string> names, const Held& held,
                    std::byte* to) const override;  // of a job with one rank
  const StateSource& of_rank(int64_t rank) const override;
  // Frees what was moved: the ranks have loaded.
  void forget() { ranks_.clear(); }
  const StateTransfer& transfer() const { return transfer_; }
  // Says what has moved, when that is done.
  std::string print(int64_t step) const;

 private:
  // Holds the states that a rank has after the transfer.
  struct Moved {
    std::unique_ptr<CheckpointReader> reader;
    std::unique_ptr<CheckpointStates> states;
  };
  Switching(const PlanSet& from, const PlanSet& to, double timeout_s, StateTransfer transfer);
  using Buffers = std::map<int64_t, std::shared_ptr<std::vector<std::byte>>>;  // by rank
  Status pack(Executor& executor, int64_t rank, Buffers& out) const;
  CheckpointReader unpack(int64_t rank, const Buffers& in) const;

  const PlanSet& from_;
  const PlanSet& to_;
  const double timeout_s_;
  const StateTransfer transfer_;
  std::vector<Moved> ranks_;  // each written by its own thread
  double seconds_ = 0;        // of rank 0, or of this process's rank
};

}  // namespace piper
