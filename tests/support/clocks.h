// Who was before whom: vector clocks, and what each piece of memory was last used by.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "piper/base/memory.h"

namespace piper::sim {

// By line of work (a stream or a host): how much of it is known to be done.
using Clock = std::vector<uint64_t>;

inline void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}
inline uint64_t& own_time(Clock& clock, int32_t line) {
  const auto at = static_cast<size_t>(line);
  if (clock.size() <= at) clock.resize(at + 1);
  return clock[at];
}

// Describes a use of memory: by which line, when by its own count, and what it is called.
struct Use {
  int32_t line = -1;
  uint64_t time = 0;
  const char* label = nullptr;
  bool is_before(const Clock& clock) const {
    const auto at = static_cast<size_t>(line);
    return line < 0 || (at < clock.size() && clock[at] >= time);
  }
};

struct Range {
  const std::byte* at = nullptr;
  int64_t bytes = 0;
  bool writes = false;
};

// Shadows all memory that was allocated, in grains: buffers do not share one.
class Shadow {
 public:
  void add(const std::byte* block, int64_t bytes);
  // Notes the use; the earlier one that it is not ordered after, if there is one. Memory that was
  // not added is nobody's.
  std::optional<Use> use(const Range& range, const Use& by, const Clock& clock);

 private:
  static constexpr int64_t kGrain = kAlignment;
  struct Cell {
    Use written;
    std::vector<Use> read;  // since then; one a line
  };
  static std::optional<Use> use(Cell& cell, bool writes, const Use& by, const Clock& clock);

  struct Block {
    int64_t bytes = 0;
    std::vector<Cell> cells;
  };
  std::map<const std::byte*, Block> blocks_;
};

}  // namespace piper::sim
