// --check-replicas: what several ranks hold has the same bits on all of them.
#pragma once

#include "holders.h"
#include "piper/runtime/executor.h"

namespace piper {

class Replicas {
 public:
  // Collective: every rank says what it keeps.
  static Result<std::unique_ptr<Replicas>> open(Control& control, const Executor& executor);
  // Checks replicas; collective, between steps: digests of all that is kept reach rank 0, which
  // compares them.
  Status check(int64_t step);

 private:
  Status compare(int64_t step, Held64 held, const std::map<uint64_t, Holders>& by_value) const;

  Control* control_ = nullptr;
  std::vector<ParameterView> own_;
  std::map<uint64_t, std::string> names_;  // of the tensors here and below
};

}  // namespace piper
