// Which of a rank's two threads runs an instruction: one computes, the other communicates beside
// it.
#pragma once

#include <set>

#include "piper/plan/role.h"

namespace piper {

// Returns whether it moves something between ranks.
bool communicates(const Instruction& one);

class TwoThreads {
 public:
  enum Thread : uint8_t { kComputes, kHelps };
  explicit TwoThreads(const RoleProgram& role);
  // The second one runs what communicates, and all of streams that do not compute.
  Thread of(const Instruction& one) const;
  // Returns whether the second one has something to communicate that is on a stream of its own.
  bool overlaps() const { return overlaps_; }

 private:
  std::set<int32_t> computing_;  // streams
  bool overlaps_ = false;
};

}  // namespace piper
