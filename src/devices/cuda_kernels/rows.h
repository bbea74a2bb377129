// Which ops go over rows, and how.
#pragma once

#include "expression.h"

namespace piper::cuda_kernels {

// Describes an op that looks at whole rows, or adds them up: a function of device/rows_norm.cuh,
// which is called with the operands in this order, and then with what `numbers` has.
struct RowOp {
  std::string_view op = "";
  // Says what a row is: the dims from the attribute `axis` on; the last dim, which `axis` is, or
  // which `axes` has only; or the last dim where `axes` has all others.
  enum Along : uint8_t { kFromAxis, kLastAxis, kLastAxes, kOtherAxes } along = kFromAxis;
  std::string_view function = "";
  // By operand: x: a row for each row; c: one element for each; w: one row for all; s, of results:
  // a sum over rows.
  std::string_view inputs = "", outputs = "";
  std::string_view numbers = "";  // n: the elements of a row; e: epsilon
  bool sums() const { return outputs[0] == 's'; }
};
const RowOp* find_row_op(const Use& use);  // null when there is none

// Holds the matrix that an op goes over: that of its results, or of what it sums up.
struct Extents {
  int64_t rows = 0, width = 0;
};
// Nothing where it does not go by rows.
std::optional<Extents> extents_of(const Use& use);

}  // namespace piper::cuda_kernels
