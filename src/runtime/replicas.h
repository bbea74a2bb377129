// --check-replicas: what several ranks hold has the same bits on all of them.
#pragma once

#include <map>

#include "piper/runtime.h"

namespace piper {

class Replicas {
 public:
  // Collective: every rank says what it keeps.
  static Result<std::unique_ptr<Replicas>> open(Transport& transport, const Executor& executor);
  // Collective, between steps: digests of all that is kept reach rank 0, which compares them.
  Status check(int64_t step);

 private:
  struct Holder {
    int64_t rank = 0;
    size_t position = 0;  // in the rank's list
  };
  Status listen(int64_t rank);
  Status compare(int64_t step, const std::string& key, std::span<const Holder> holders) const;

  Transport* transport_ = nullptr;
  std::vector<ParameterView> own_;
  int32_t to_zero_ = -1;
  // On rank 0: routes from the others, what each sent last, and who holds what, by name and
  // elements.
  std::vector<int32_t> from_;
  std::vector<std::vector<uint64_t>> digests_;
  std::map<std::string, std::vector<Holder>> holders_;
};

}  // namespace piper
