// Emits the kernels of TopK, the largest elements of a dim.
#include <fmt/format.h>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

Status make_top_k(const Use& use, Emitter& emit) {
  if (num_elements(use.out()) == 0) return ok_status();
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  const int64_t size = use.in(0)[axis], inner = extent(use.in(0), axis + 1, use.in(0).size());
  const int32_t threads = size <= 512 ? 32 : kThreads;
  emit.kernel(
      {.family = "top_k",
       .body = fmt::format("  top_k<{}, {}>(p.at<const {}>(0), p.at<{}>(1), p.at<int64_t>(2), "
                           "Chosen{{{}, {}, {}}});",
                           use.attrs.integer("largest", 1) == 0, threads, type_name(use.type()),
                           type_name(use.type()), size, inner, use.attrs.integer("k")),
       .blocks = num_elements(use.in(0)) / size,
       .threads = threads});
  return ok_status();
}

}  // namespace

std::vector<MakerRow> top_k_kernels() { return {{"TopK", make_top_k}}; }

}  // namespace piper::cuda_kernels
