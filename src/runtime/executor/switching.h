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
  // another, which copies what it holds. `averages`: it serves the averages that it moves in place
  // of their parameters. Error (kUsage): their numbers of ranks differ.
  static Result<std::unique_ptr<Switching>> plan(const PlanSet& from, const PlanSet& to,
                                                 double timeout_s, bool averages = false);
  // Gives other ranks what they need of this one, and takes what it needs. Collective; the ranks
  // have settled.
  Status move(Executor& executor, Transport& transport);
  Result<bool> fill(const Tensor& tensor, std::span<const std::string> names, const Held& held,
                    std::byte* to) const override;  // of a job with one rank
  const StateSource& of_rank(int64_t rank) const override;
  // Frees what was moved: the ranks have loaded, or this one has.
  void forget() { ranks_ = std::vector<Moved>(ranks_.size()); }
  void forget(int64_t rank);
  const StateTransfer& transfer() const { return transfer_; }
  // Says what has moved, when that is done.
  std::string print(int64_t step) const;

 private:
  // Owns memory that is not filled before it is written.
  struct HostBytes {
    std::shared_ptr<std::byte[]> data;
    int64_t size = 0;
    static HostBytes of(int64_t size);
  };
  // Holds a copy on the host of what a rank holds of a state, and says where its elements are
  // there.
  struct HeldState {
    int64_t size = 0;             // of an element
    std::vector<Held::Run> runs;  // ascending in the whole
    HostBytes bytes;
    // Visits the parts of a run of the whole that it has: visit(first, count, data).
    template <class Visit>
    void for_each_part(const StateTransfer::Run& run, Visit visit) const;
  };
  // Holds the states that a rank has after the transfer, and its routes.
  struct Moved {
    std::unique_ptr<CheckpointReader> reader;
    std::unique_ptr<CheckpointStates> states;
    std::map<int64_t, int32_t> routes_to, routes_from;  // by rank
  };
  Switching(const PlanSet& from, const PlanSet& to, double timeout_s, bool averages,
            StateTransfer transfer);
  using HeldStates = std::map<int32_t, HeldState>;  // by number in the transfer
  using Messages = std::map<int64_t, HostBytes>;    // by rank
  Result<HeldStates> copy_held(Executor& executor, int64_t rank) const;
  Messages pack(const HeldStates& held, int64_t rank) const;
  Result<Messages> exchange(const Messages& out, Fabric& fabric, int64_t rank);
  CheckpointReader unpack(int64_t rank, const HeldStates& held, const Messages& in) const;

  const PlanSet& from_;
  const PlanSet& to_;
  const double timeout_s_;
  const bool averages_;
  const StateTransfer transfer_;
  std::vector<Moved> ranks_;  // each written by its own thread
  double seconds_ = 0;        // of rank 0, or of this process's rank
};

}  // namespace piper
