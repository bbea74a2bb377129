// How the threads of a pass over rows are laid out.
#pragma once

#include "rows.h"

namespace piper::cuda_kernels {

inline constexpr int64_t kMostLanes = 8;

// Holds what the layout follows from, and nothing else. Where something is summed the layout
// follows from rows and width only: the order of a sum, and so its bits, are the same whatever
// other ops the pass has, and wherever its operands are.
struct PassShape {
  int64_t rows = 0, width = 0;
  bool keeps_row = false;  // one block has a row whole
  bool sums_rows = false;  // it makes sums over rows
  // Where nothing is summed:
  int64_t lanes = 1;  // elements side by side that each operand can be moved in
  int64_t kept = 1;   // elements of each place in a row that are kept at once, about
};
// Describes the layout as Rows (device/rows.cuh) has it.
struct RowLayout {
  int64_t threads = 32, at_once = 1, lanes = 1, chunks = 1, turns = 1;
  int64_t tiles = 1, row_blocks = 1;
  int64_t blocks() const { return tiles * row_blocks; }
};
RowLayout layout_of(const PassShape& shape);

}  // namespace piper::cuda_kernels
