// Emits the kernels of CumSum, running sums along a dim.
#include <fmt/format.h>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

Status make_cumsum(const Use& use, Emitter& emit) {
  if (num_elements(use.out()) == 0) return ok_status();
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  const int64_t size = use.out()[axis], inner = extent(use.out(), axis + 1, use.out().size());
  const int64_t lines = num_elements(use.out()) / size;
  // Long lines, of which there are too few for a thread each, or which are side by side too little.
  const bool block_each = size >= 128 && (inner < 8 || lines < 8192);
  const std::string_view index = index_name({num_elements(use.out()) + 4 * kThreads});
  const std::string of =
      fmt::format("(p.at<const {0}>(0), p.at<{0}>(1), Scanned<{1}>{{{2}, {3}, {4}, {5}, {6}}});",
                  type_name(use.type()), index, lines, size, inner,
                  use.attrs.integer("exclusive", 0) != 0, use.attrs.integer("reverse", 0) != 0);
  if (block_each)
    emit.kernel({.family = "scan",
                 .body = fmt::format("  sum_line<{}, 4>{}", kThreads, of),
                 .blocks = lines,
                 .threads = kThreads});
  else
    launch(emit, "scan", "  sum_lines" + of, lines);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> scan_kernels() { return {{"CumSum", make_cumsum}}; }

}  // namespace piper::cuda_kernels
