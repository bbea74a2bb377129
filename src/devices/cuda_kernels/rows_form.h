// The form of a pass over rows: where its operands lie in its matrix. Private to the cuda_kernels
// room.
#pragma once

#include "rows.h"

namespace piper::cuda_kernels {

// Says where an operand is read for a row.
struct RowForm {
  bool is_row = false;     // an element for each column; else one
  std::string row_offset;  // of its first element, as a sum: " + at.row * 768LL"
};

struct RowOperand {
  int32_t value = -1;
  DeviceOperand place;
  TensorType type;
  char kind = ' ';  // of RowOp::inputs and outputs; of an expression, a blank
  RowForm form = {};
};
struct PassOp {
  Use use;
  std::vector<RowOperand> inputs, outputs;
  Extents extents;
  const RowOp* row_op = nullptr;  // null: an expression
};

// Returns the form of an operand of an op that goes over these rows, in a pass over rows of
// `width`. One of an expression is a whole matrix, one element for each row, one element for all,
// or one row for all.
RowForm form_of(const RowOperand& operand, const Extents& extents, int64_t width);
// Folds the forms of an expression, whose operands are broadcast in whatever way: the last dim of
// its loop is the row.
void fold(PassOp& op);

}  // namespace piper::cuda_kernels
