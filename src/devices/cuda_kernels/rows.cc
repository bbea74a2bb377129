// Passes over rows: ops that go over the same rows, as one kernel.
#include "rows.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace piper::cuda_kernels {
namespace {

constexpr std::array kRowOps = std::to_array<RowOp>({
    {"LayerNorm", RowOp::kFromAxis, "layer_norm", "xww", "xcc", "ne"},
    {"LayerNormGradParams", RowOp::kFromAxis, "layer_norm_grad_params", "xxcc", "ss"},
    {"LayerNormGradX", RowOp::kFromAxis, "layer_norm_grad_x", "xxwcc", "x", "n"},
    {"LogSoftmax", RowOp::kLastAxis, "log_softmax", "x", "x"},
    {"LogSoftmaxGrad", RowOp::kLastAxis, "log_softmax_grad", "xx", "x"},
    {"ReduceMax", RowOp::kLastAxes, "greatest_of_row", "x", "c"},
    {"ReduceMin", RowOp::kLastAxes, "least_of_row", "x", "c"},
    {"ReduceSum", RowOp::kLastAxes, "sum_of_row", "x", "c"},
    {"ReduceSum", RowOp::kOtherAxes, "sum_rows", "x", "s"},
    {"RmsNorm", RowOp::kFromAxis, "rms_norm", "xw", "xc", "ne"},
    {"RmsNormGradScale", RowOp::kFromAxis, "rms_norm_grad_scale", "xxc", "s"},
    {"RmsNormGradX", RowOp::kFromAxis, "rms_norm_grad_x", "xxwc", "x", "n"},
    {"Softmax", RowOp::kLastAxis, "softmax", "x", "x"},
    {"SoftmaxGrad", RowOp::kLastAxis, "softmax_grad", "xx", "x"},
});

Extents from_axis(const Shape& shape, size_t axis) {
  return {extent(shape, 0, axis), extent(shape, axis, shape.size())};
}
Extents of_last_dim(const Shape& shape) {
  return from_axis(shape, shape.size() < 2 ? 0 : shape.size() - 1);
}

// Returns whether `axes` has the last dim only, of which threads can keep all, or all others.
bool has_last(const Use& use) {
  constexpr int64_t kMostKept = 16384;
  const Shape& shape = use.in(0);
  return shape.size() > 1 && shape.back() > 0 && shape.back() <= kMostKept &&
         info(use.type()).is_float &&
         use.attrs.integers("axes") == Shape{static_cast<int64_t>(shape.size()) - 1};
}
bool has_others(const Use& use) {
  Shape others(use.in(0).empty() ? 0 : use.in(0).size() - 1);
  std::iota(others.begin(), others.end(), 0);
  return !others.empty() && use.attrs.integers("axes") == others;
}

std::optional<Extents> extents_for(const RowOp& op, const Use& use) {
  const Shape& shape = use.in(0);
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  if (op.along == RowOp::kFromAxis) return from_axis(shape, axis);
  const bool is_last = op.along == RowOp::kLastAxis   ? axis + 1 == shape.size()
                       : op.along == RowOp::kLastAxes ? has_last(use)
                                                      : has_others(use);
  return is_last ? std::optional(of_last_dim(shape)) : std::nullopt;
}

}  // namespace

const RowOp* find_row_op(const Use& use) {
  const auto* row = std::find_if(kRowOps.begin(), kRowOps.end(), [&](const RowOp& each) {
    return each.op == use.op && extents_for(each, use);
  });
  return row == kRowOps.end() ? nullptr : row;
}

std::optional<Extents> extents_of(const Use& use) {
  if (is_expression(use.op)) return of_last_dim(use.out());
  const RowOp* op = find_row_op(use);
  return op ? extents_for(*op, use) : std::nullopt;
}

bool goes_by_rows(const FusedProgram& program, const ProgramOp& op) {
  return extents_of(kernel_use(program, op)).has_value();
}

// What sums in rows of one element would do so in another order among ops of wider rows.
bool joins_rows(const FusedProgram& program, const ProgramOp& op) {
  const Use use = kernel_use(program, op);
  const std::optional<Extents> extents = extents_of(use);
  const RowOp* const row_op = find_row_op(use);
  return extents && (!row_op || extents->width != 1);
}

std::vector<std::string> row_ops() {
  std::vector<std::string> names = expression_ops();
  for (const RowOp& op : kRowOps) names.emplace_back(op.op);
  return names;
}

}  // namespace piper::cuda_kernels
