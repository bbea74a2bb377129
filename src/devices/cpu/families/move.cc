// Ops that only move elements by strides: Transpose, Expand, Slice, Reshape.
#include <algorithm>
#include <cstring>

#include "families.h"
#include "loop.h"

namespace piper::cpu {
namespace {

// Copies one run of `n` elements that are `step` apart.
template <class T>
void copy_run(const T* from, int64_t step, T* to, int64_t n) {
  if (step == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else if (step == 0) {
    std::fill_n(to, n, *from);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * step];
  }
}

// Writes to[j][i] = from[j + i × step] in tiles: both sides stay in the nearest cache.
template <class T>
void transpose_block(const T* from, int64_t step, T* to, int64_t to_step, int64_t rows, int64_t n) {
  constexpr int64_t kTile = 16;
  for (int64_t j0 = 0; j0 < rows; j0 += kTile) {
    const int64_t j1 = std::min(j0 + kTile, rows);
    for (int64_t i0 = 0; i0 < n; i0 += kTile) {
      const int64_t i1 = std::min(i0 + kTile, n);
      for (int64_t j = j0; j < j1; ++j) {
        for (int64_t i = i0; i < i1; ++i) to[j * to_step + i] = from[j + i * step];
      }
    }
  }
}

// The output is contiguous; element 0 of it is element `first` of the input, and each dim walks the
// input by a stride.
template <class T>
KernelPtr strided_kernel(const Shape& shape, std::vector<int64_t> steps, int64_t first) {
  const Loop loop = make_loop(shape, {row_major(shape), std::move(steps)});
  const int64_t step = loop.inner_steps[1];
  if (!loop.outer.empty() && loop.outer_steps[1].back() == 1 && step > 1) {
    Loop planes = loop;  // the two innermost extents are one block
    const int64_t rows = planes.outer.back();
    const int64_t to_step = planes.outer_steps[0].back();
    planes.rows = rows == 0 ? 0 : planes.rows / rows;
    planes.outer.pop_back();
    for (auto& outer : planes.outer_steps) outer.pop_back();
    return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
      planes.each_row([&](const int64_t* at) {
        transpose_block(input<T>(p, 0) + first + at[1], step, output<T>(p, 1) + at[0], to_step,
                        rows, planes.inner);
      });
    });
  }
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    loop.each_row([&](const int64_t* at) {
      copy_run(input<T>(p, 0) + first + at[1], step, output<T>(p, 1) + at[0], loop.inner);
    });
  });
}

Result<KernelPtr> strided(const Use& use, std::vector<int64_t> steps, int64_t first) {
  return for_sizes(use.type(), [&]<class T>(T) {
    return strided_kernel<T>(use.out(), std::move(steps), first);
  });
}

Result<KernelPtr> make_transpose(const Use& use) {
  const std::vector<int64_t> perm = use.attrs.integers("perm");
  const std::vector<int64_t> own = row_major(use.in(0));
  std::vector<int64_t> steps;
  for (const int64_t d : perm) steps.push_back(own[static_cast<size_t>(d)]);
  return strided(use, std::move(steps), 0);
}

Result<KernelPtr> make_expand(const Use& use) {
  return strided(use, spread_strides(use.in(0), use.out()), 0);
}

Result<KernelPtr> make_slice(const Use& use) {
  const std::vector<int64_t> starts = use.attrs.integers("starts"),
                             by = use.attrs.integers("steps");
  const Shape &from = use.in(0), &to = use.out();
  const std::vector<int64_t> own = row_major(from);
  std::vector<int64_t> steps(from.size());
  int64_t first = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    if (to[d] == 0) continue;  // nothing is read
    first += starts[d] * own[d];
    steps[d] = to[d] == 1 ? 0 : by[d] * own[d];
  }
  return strided(use, std::move(steps), first);
}

Result<KernelPtr> make_reshape(const Use& use) {
  const auto bytes = static_cast<size_t>(use.outputs[0].bytes());
  return make_kernel(InPlace::kYes, [bytes](Pointers p, std::byte*) {
    if (p[0] != p[1]) std::memcpy(p[1], p[0], bytes);
  });
}

}  // namespace

std::vector<KernelRow> move_kernels() {
  return {{"Expand", make_expand, kTakesHalves},
          {"Reshape", make_reshape, kTakesHalves},
          {"Slice", make_slice, kTakesHalves},
          {"Transpose", make_transpose, kTakesHalves}};
}

}  // namespace piper::cpu
