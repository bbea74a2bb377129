// What a rank has of a dim that ranks cut.
#pragma once

#include "piper/plan/role.h"

namespace piper {

// Returns what a cut over so many ranks leaves of a dim.
inline int64_t cut_extent(int64_t extent, const TensorCut& cut, int64_t ranks) {
  return cut.block > 0 ? cut.outer * cut.block : extent / ranks;
}

}  // namespace piper
