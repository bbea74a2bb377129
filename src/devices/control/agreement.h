// Whether ranks hold plans of one compilation, and run them alike.
#pragma once

#include "piper/devices/control.h"

namespace piper {

// Says why ranks cannot work together; the smallest rule is the gravest.
struct Conflict {
  int rule = 0;
  Error error;
};
// These check what process number `number` of `world` holds, by itself and beside another one's.
std::optional<Conflict> check_own(const PlanIdentity& own, int64_t number, int64_t world);
std::optional<Conflict> check_pair(const PlanIdentity& first, const PlanIdentity& one);

}  // namespace piper
