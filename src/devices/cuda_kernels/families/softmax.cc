// Softmax, LogSoftmax and their gradients along a dim that others follow; along the last dim they
// go by rows.
#include "families.h"

namespace piper::cuda_kernels {
namespace {

constexpr int32_t kLineThreads = 128;

void take_lines(const Use& use, std::string_view function, std::string_view operands,
                Emitter& emit) {
  const Shape& shape = use.out();
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  const int64_t inner = extent(shape, axis + 1, shape.size());
  const int64_t lines = extent(shape, 0, axis) * inner;
  if (num_elements(shape) == 0) return;
  const std::string_view type = type_name(use.type());
  emit.kernel({.family = "expression softmax",
               .body = fmt::format("  lines::{}<{}, {}LL, {}LL, {}LL>({});", function,
                                   use.op.starts_with("Log"), lines, shape[axis], inner,
                                   fmt::format(fmt::runtime(operands), fmt::arg("T", type))),
               .blocks = ceil_div(lines, kLineThreads),
               .threads = kLineThreads});
}

Status make_softmax(const Use& use, Emitter& emit) {
  take_lines(use, "softmax_lines", "p.at<const {T}>(0), p.at<{T}>(1)", emit);
  return ok_status();
}

Status make_softmax_grad(const Use& use, Emitter& emit) {
  take_lines(use, "softmax_grad_lines", "p.at<const {T}>(0), p.at<const {T}>(1), p.at<{T}>(2)",
             emit);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> softmax_kernels() {
  return {{"LogSoftmax", make_softmax},
          {"LogSoftmaxGrad", make_softmax_grad},
          {"Softmax", make_softmax},
          {"SoftmaxGrad", make_softmax_grad}};
}

}  // namespace piper::cuda_kernels
