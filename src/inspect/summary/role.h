// One role program -> what it comes to. Private to the summary room.
#pragma once

#include "piper/inspect/summary.h"

namespace piper {

// Files may state sizes whose sum has no number.
inline void add_bytes(int64_t bytes, int64_t& sum) {
  if (__builtin_add_overflow(sum, bytes, &sum)) sum = INT64_MAX;
}

// Error: an op whose FLOPs are unknown.
Result<RoleSummary> summarise_role(const RoleProgram& role);

// Holds the optimizer of each parameter, and what all updates of a step share.
struct Training {
  struct Update {
    std::string parameter;
    Settings settings;
    int64_t state_bytes = 0;
  };
  std::vector<Update> updates;
  Settings shared;
};
Training find_training(const RoleProgram& role);

}  // namespace piper
