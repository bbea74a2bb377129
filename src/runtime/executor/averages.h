// Evaluation by the averages of parameters in the middle of a job: they take the parameters' places
// for as long as it lasts. Private to the executor room.
#pragma once

#include "switching.h"

namespace piper {

// Returns how many parameters the ranks of a set hold averages of.
int64_t count_averages(const PlanSet& set);

// Puts averages in the places of the parameters of all ranks of this process, and these back. Where
// states are cut, ranks hold other parts of averages than of parameters, so they exchange them.
class Averages {
 public:
  // Plans and proves the exchange. `timeout_s`: how long a rank waits for another.
  static Result<std::unique_ptr<Averages>> plan(const PlanSet& set, double timeout_s);
  // Both are for ranks that have settled. The first one is collective.
  Status begin(Executor& executor, Transport& transport);
  Status end(Executor& executor, int64_t rank);

 private:
  explicit Averages(const PlanSet& set);
  const PlanSet& set_;
  PlanSet wanted_;  // what ranks hold while they evaluate: averages under their own names
  std::unique_ptr<Switching> moving_;
  std::vector<std::map<int32_t, std::vector<std::byte>>> own_;  // by rank and buffer
};

}  // namespace piper
