// Which communicator each message and collective names. Private to the lower room.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

// Lists communicators for all roles: one for each group on each stream, and for each ordered pair
// of cells on each pair of streams. Where a receiver takes messages in another order than they are
// sent in, a pair has as many as keep the order. `cells`: coordinates. Until now messages name
// themselves: each that a step sends has a number of its own.
void assign_communicators(std::vector<RoleProgram>& roles,
                          const std::vector<std::vector<int32_t>>& cells);

}  // namespace piper
