// What candidates come to: each is compiled, proven and simulated, or was in an earlier search.
// Private to the search room.
#pragma once

#include <mutex>

#include "piper/planner/search.h"

namespace piper {

// Holds what is predicted of a candidate.
struct Outcome {
  double step = 0, idle = 0, exposed = 0, peak_bytes = 0;  // as in Tried
  double memory = 0;                                       // of a device; 0: not known
  double products = 0;  // seconds that all FLOPs of a step take at the peak of all devices
};

// Notes what is predicted, and what memory there is: of a device, or what the user lets it take.
void take(const Outcome& outcome, const SearchOptions& options, Tried& tried);

class Evaluator {
 public:
  // Error: a file that cannot be read, a folder that cannot be made.
  static Result<Evaluator> make(const SearchOptions& options);
  // Compiles and simulates a strategy, with `more` values of params beside those of the options.
  // Threads may do so at once, with different numbers. Error: it is refused. A refusal that was
  // kept has no more than its message.
  Result<Outcome> run(const std::string& text, size_t number, bool may_be_kept_refusal,
                      const std::vector<Definition>& more = {}) const;

 private:
  explicit Evaluator(const SearchOptions& options) : options_(options) {}
  Result<Outcome> compute(const CompileOptions& options) const;
  void keep(const std::string& file, const Result<Outcome>& outcome) const;

  const SearchOptions& options_;
  std::shared_ptr<const DeviceCosts> devices_;  // of the cluster
  std::shared_ptr<KnownModels> models_ = make_known_models();
  std::shared_ptr<std::once_flag> warned_ = std::make_shared<std::once_flag>();
  std::string inputs_;  // digests of all that outcomes depend on beside the strategy; "": not kept
};

}  // namespace piper
