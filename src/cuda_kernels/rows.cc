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
    {"ReduceSum", RowOp::kSum, "sum_rows", "x", "s"},
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

// Whether all dims but the last are summed.
bool sums_rows(const Use& use) {
  std::vector<int64_t> leading(use.in(0).empty() ? 0 : use.in(0).size() - 1);
  std::iota(leading.begin(), leading.end(), 0);
  return !leading.empty() && use.attrs.integers("axes") == leading;
}

}  // namespace

const RowOp* find_row_op(std::string_view op) {
  const auto* row = std::find_if(kRowOps.begin(), kRowOps.end(),
                                 [&](const RowOp& each) { return each.op == op; });
  return row == kRowOps.end() ? nullptr : row;
}

std::optional<Extents> extents_of(const Use& use) {
  if (is_expression(use.op)) return of_last_dim(use.out());
  const RowOp* op = find_row_op(use.op);
  if (!op) return std::nullopt;
  const Shape& shape = use.in(0);
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  if (op->along == RowOp::kSum)
    return sums_rows(use) ? std::optional(of_last_dim(shape)) : std::nullopt;
  if (op->along == RowOp::kLastAxis && axis + 1 != shape.size()) return std::nullopt;
  return from_axis(shape, axis);
}

bool goes_by_rows(const FusedProgram& program, const ProgramOp& op) {
  return extents_of(use_of(program, op)).has_value();
}

std::vector<std::string> row_ops() {
  std::vector<std::string> names = expression_ops();
  for (const RowOp& op : kRowOps) names.emplace_back(op.op);
  return names;
}

}  // namespace piper::cuda_kernels
