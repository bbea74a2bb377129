// Unfold and Fold: windows over the spatial dims of [n, c, s…], laid out as [n, o…, c, k…].
#include <algorithm>

#include "families.h"
#include "loop.h"

namespace piper::cpu {
namespace {

// Walks the windows in their order; an element of a window and its place in the image follow from
// strides. `image` and `windows` are the shapes.
struct Walk {
  Loop loop;  // operand 0: windows; 1: the image
  int64_t windows = 0, image = 0;
};

Walk walk_of(const Use& use, const Shape& image, const Shape& windows) {
  const std::vector<int64_t> strides = use.attrs.integers("strides");
  const std::vector<int64_t> dilations = use.attrs.integers("dilations");
  const size_t dims = image.size() - 2;
  const std::vector<int64_t> own = row_major(image);
  std::vector<int64_t> steps(windows.size());
  steps[0] = own[0];
  steps[dims + 1] = own[1];
  for (size_t d = 0; d < dims; ++d) {
    steps[d + 1] = own[d + 2] * strides[d];
    steps[d + 2 + dims] = own[d + 2] * dilations[d];
  }
  return {make_loop(windows, {row_major(windows), std::move(steps)}), num_elements(windows),
          num_elements(image)};
}

Result<KernelPtr> make_unfold(const Use& use) {
  const Walk walk = walk_of(use, use.in(0), use.out());
  return for_sizes(use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
      const int64_t to_step = walk.loop.inner_steps[0], from_step = walk.loop.inner_steps[1];
      walk.loop.each_row([&](const int64_t* at) {
        T* to = output<T>(p, 1) + at[0];
        const T* from = input<T>(p, 0) + at[1];
        for (int64_t i = 0; i < walk.loop.inner; ++i) to[i * to_step] = from[i * from_step];
      });
    });
  });
}

Result<KernelPtr> make_fold(const Use& use) {
  const Walk walk = walk_of(use, use.out(), use.in(0));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
      std::fill_n(output<T>(p, 1), walk.image, T{0});
      const int64_t from_step = walk.loop.inner_steps[0], to_step = walk.loop.inner_steps[1];
      walk.loop.each_row([&](const int64_t* at) {
        const T* from = input<T>(p, 0) + at[0];
        T* to = output<T>(p, 1) + at[1];
        for (int64_t i = 0; i < walk.loop.inner; ++i) to[i * to_step] += from[i * from_step];
      });
    });
  });
}

}  // namespace

std::vector<KernelRow> window_kernels() {
  return {{"Fold", make_fold}, {"Unfold", make_unfold, kTakesHalves}};
}

}  // namespace piper::cpu
