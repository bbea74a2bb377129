// One role program -> what it comes to. Private to the summary room.
#pragma once

#include "piper/summary.h"

namespace piper {

RoleSummary summarise_role(const RoleProgram& role);

// The optimizer of each parameter, and what all updates of a step share.
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
