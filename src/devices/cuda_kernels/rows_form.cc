// Finds where the operands of a pass over rows lie in its matrix.
#include "rows_form.h"

namespace piper::cuda_kernels {
namespace {

RowForm form_in_rows(bool is_row, int64_t width, int64_t pitch) {
  const bool is_column = !is_row || width == 1;
  return {is_row, is_column ? std::string(" + at.row") : fmt::format(" + at.row * {}LL", pitch)};
}

// Returns what an operand, broadcast to a shape, has by dim of that: elements from one to the next.
std::vector<int64_t> strides_in(const RowOperand& operand, const Shape& to) {
  const Shape& from = operand.type.shape;
  std::vector<int64_t> strides(to.size());
  int64_t step = 1;
  for (size_t d = from.size(); d-- > 0;) {
    if (from[d] != 1) strides[d + to.size() - from.size()] = step;
    step *= d + 1 == from.size() ? pitch_of(operand.place, from) : from[d];
  }
  return strides;
}

}  // namespace

RowForm form_of(const RowOperand& operand, const Extents& extents, int64_t width) {
  const bool is_row = extents.width == width;
  const int64_t pitch = operand.place.pitch > 0 ? operand.place.pitch : width;
  if (operand.kind == 'x') return form_in_rows(is_row, width, pitch);
  if (operand.kind == 'c') return form_in_rows(false, width, pitch);
  if (operand.kind != ' ') return {is_row, ""};
  const Shape& shape = operand.type.shape;
  const int64_t count = num_elements(shape);
  if (count == extents.rows * extents.width) return form_in_rows(is_row, width, pitch);
  if (count == extents.rows && !shape.empty() && shape.back() == 1)
    return form_in_rows(false, width, pitch);
  return count == 1 ? RowForm{} : RowForm{is_row, ""};
}

void fold(PassOp& op) {
  std::vector<RowOperand*> operands;
  std::vector<std::vector<int64_t>> all;
  for (auto* list : {&op.inputs, &op.outputs})
    for (RowOperand& operand : *list) {
      operands.push_back(&operand);
      all.push_back(strides_in(operand, op.use.out()));
    }
  const auto [extents, strides] = folded(op.use.out(), all, 0);
  const size_t last = extents.size() - 1;
  op.extents = {extent(extents, 0, last), extents[last]};
  for (size_t k = 0; k < operands.size(); ++k) {
    RowForm& form = operands[k]->form = {strides[k][last] != 0, ""};
    int64_t inner = 1;
    for (size_t d = last; d-- > 0; inner *= extents[d]) {
      if (strides[k][d] == 0) continue;
      form.row_offset += " + at.row";
      if (inner > 1) form.row_offset += fmt::format(" / {}LL", inner);
      if (d > 0) form.row_offset += fmt::format(" % {}LL", extents[d]);
      form.row_offset += fmt::format(" * {}LL", strides[k][d]);
    }
  }
}

}  // namespace piper::cuda_kernels
