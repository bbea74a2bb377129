// --verify-against: the oracle's plan runs beside the job, on the same data, and everything is
// compared after each step.
#pragma once

#include "cores.h"
#include "holders.h"
#include "piper/runtime/job.h"

namespace piper {

class Comparison {
 public:
  // Opens a comparison: bit for bit with the plan of the same cut of the batch, unless some rank
  // forms sums in another order; else within bounds. It runs on the device of the rank that has
  // these cores.
  static Result<std::unique_ptr<Comparison>> open(const PlanSet& reference, const BatchSource* data,
                                                  const JobOptions& options, const Cores& of_rank,
                                                  bool sums_otherwise);
  // Compares the parameters of this rank. Each must be the oracle's, whole.
  Status watch(int64_t rank, const Executor& executor);
  // Checks, after the last watch and when all ranks of the job are watched, that each of the
  // oracle's parameters is held by one.
  Status check_complete() const;
  // Runs the oracle's step, then compares; the ranks stand still meanwhile. `loss` where this
  // process knows it.
  Status check(int64_t step, std::optional<double> loss);

  // These serve processes that each compare their own parameters: who holds them, the parameter
  // being a number; and the check on rank 0 that what several hold is the same and each is held,
  // given all ranks'.
  HoldersOf holders() const;
  Status check_holders(int64_t step, const HoldersOf& all) const;

  void report(JobResult& result) const;

 private:
  struct Holder {
    int64_t rank = 0;
    const std::byte* data = nullptr;
    Held held;
  };
  struct Entry {
    ParameterView reference;
    std::vector<Holder> holders;
  };
  static const Holder& first_with(const Entry& entry, const Holder& holder);
  Error not_trained(const Entry& entry) const;
  Status check_loss(int64_t step, double loss);
  Status check_equal(int64_t step, const Entry& entry) const;
  Status check_alike(int64_t step, const Entry& entry, const Holder& holder) const;
  Status check_close(int64_t step, const Entry& entry);

  VerifyOptions options_;
  bool bitwise_ = false;
  std::unique_ptr<InprocWorld> world_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Executor> executor_;
  std::vector<Entry> entries_;  // by name
  double worst_loss_error_ = 0, worst_param_error_ = 0;
  std::optional<double> least_eps_;  // of optimizers that divide a gradient by its size
};

// Returns that which the options name.
Result<std::unique_ptr<Backend>> make_backend(const JobOptions& options, const Cores& cores);

}  // namespace piper
