// Unfold, Fold: windows over the spatial dims of [n, c, s...], laid out as [n, o..., c, k...].
#include <fmt/format.h>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

Status make_unfold(const Use& use, Emitter& emit) {
  const std::vector<int64_t> own = row_major(use.in(0)), strides = use.attrs.integers("strides"),
                             dilations = use.attrs.integers("dilations");
  const size_t dims = own.size() - 2;
  std::vector<int64_t> steps(use.out().size());
  steps[0] = own[0];
  steps[dims + 1] = own[1];
  for (size_t d = 0; d < dims; ++d) {
    steps[d + 1] = own[d + 2] * strides[d];
    steps[d + 2 + dims] = own[d + 2] * dilations[d];
  }
  take(use.outputs[0], steps, 0, emit);
  return ok_status();
}

Status make_fold(const Use& use, Emitter& emit) {
  const int64_t elements = num_elements(use.out());
  if (elements == 0) return ok_status();
  const Shape &image = use.out(), &windows = use.in(0);
  const auto dims = static_cast<int64_t>(image.size()) - 2;
  const Shape size(image.begin() + 2, image.end()),
      count(windows.begin() + 1, windows.begin() + 1 + dims),
      kernel(windows.end() - dims, windows.end());
  const std::string_view index = index_name({elements, num_elements(windows)});
  launch(emit, "window",
         fmt::format("  constexpr Windows<{0}, {1}> windows{{{2}, {3}, {4}, {5}, {6}, {7}, {8}, "
                     "{9}}};\n"
                     "  fold(p.at<const {10}>(0), p.at<{10}>(1), {1}({11}LL), windows);",
                     dims, index, image[1], list(size), list(count), list(kernel),
                     list(use.attrs.integers("strides")), list(use.attrs.integers("dilations")),
                     num_elements(count), num_elements(kernel), type_name(use.type()), elements),
         elements);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> window_kernels() { return {{"Fold", make_fold}, {"Unfold", make_unfold}}; }

}  // namespace piper::cuda_kernels
