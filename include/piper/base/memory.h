// Lifetimes to offsets: one flat arena, no two blocks alive at once overlap.
#pragma once

#include "piper/base/base.h"

namespace piper {

struct Block {
  int64_t bytes = 0;
  int64_t first = 0, last = 0;  // alive in this closed interval of positions
  int64_t offset = -1;          // given, or found
};
inline constexpr int64_t kNoCircle = INT64_MAX;
// The alignment, in bytes, of buffers, of values inside programs, and of the sizes of arenas.
// Devices and their libraries align what they allocate like this, and expect it.
inline constexpr int64_t kAlignment = 256;
int64_t align_up(int64_t bytes);

// Finds offsets (multiples of kAlignment) for blocks without one, after all that have one: as time
// passes, each in the smallest gap that fits, or the same with time going back, whichever ends
// lower. Returns the arena's size: the largest end. Never below the peak of live bytes.
// On a `circle` of so many positions time passes again and again: a block whose last position is
// past its end lives on from its begin. Requires 0 <= last - circle < first < circle of it.
// Where both end past `most`, it gives up: the size is greater than that, and offsets mean nothing.
int64_t place_blocks(std::vector<Block>& blocks, int64_t circle = kNoCircle,
                     int64_t most = INT64_MAX);

}  // namespace piper
