// Ops that only move elements by strides: Transpose, Expand, Slice, Reshape.
#include <algorithm>
#include <cstring>

#include "families.h"
#include "loop.h"

namespace piper::cpu {
namespace {

// One run of `n` elements that lie `step` apart.
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

// to[j][i] = from[j + i × step] in tiles: both sides stay in the nearest cache.
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
  const Loop loop = make_loop(shape, {strides_of(shape), std::move(steps)});
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
  return for_sizes(use.type(), [&](auto zero) -> Result<KernelPtr> {
    return strided_kernel<decltype(zero)>(use.out(), std::move(steps), first);
  });
}

}  // namespace

Result<KernelPtr> make_transpose(const Use& use) {
  PIPER_TRY(use.operands(1, 1));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const std::vector<int64_t> perm, use.integers("perm"));
  const Shape &from = use.in(0), &to = use.out();
  const auto rank = static_cast<int64_t>(from.size());
  const std::vector<int64_t> own = strides_of(from);
  std::vector<int64_t> steps;
  std::vector<bool> seen(from.size(), false);
  PIPER_WANT(perm.size() == from.size() && to.size() == from.size(), "perm={} of {} to {}",
             to_string(perm), to_string(from), to_string(to));
  for (size_t d = 0; d < perm.size(); ++d) {
    PIPER_WANT(perm[d] >= 0 && perm[d] < rank && !seen[perm[d]] && to[d] == from[perm[d]],
               "perm={} of {} to {}", to_string(perm), to_string(from), to_string(to));
    seen[perm[d]] = true;
    steps.push_back(own[perm[d]]);
  }
  return strided(use, std::move(steps), 0);
}

Result<KernelPtr> make_expand(const Use& use) {
  PIPER_TRY(use.operands(1, 1));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(std::vector<int64_t> steps, broadcast_strides(use.in(0), use.out()));
  return strided(use, std::move(steps), 0);
}

Result<KernelPtr> make_slice(const Use& use) {
  PIPER_TRY(use.operands(1, 1));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const std::vector<int64_t> starts, use.integers("starts"));
  PIPER_ASSIGN(std::vector<int64_t> by, use.integers("steps"));
  const Shape &from = use.in(0), &to = use.out();
  if (by.empty()) by.assign(from.size(), 1);
  PIPER_WANT(starts.size() == from.size() && by.size() == from.size() && to.size() == from.size(),
             "lists of {} and {} for {}", starts.size(), by.size(), to_string(from));
  const std::vector<int64_t> own = strides_of(from);
  std::vector<int64_t> steps(from.size());
  int64_t first = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    const int64_t size = from[d];
    PIPER_WANT(by[d] != 0, "a step of 0");
    if (to[d] == 0) continue;  // nothing is read
    const int64_t most = std::max<int64_t>(by[d] < 0 ? size - 1 : size, 0);
    const int64_t start =
        std::clamp<int64_t>(starts[d] < 0 ? starts[d] + size : starts[d], 0, most);
    int64_t last = 0;
    const bool far = __builtin_mul_overflow(to[d] - 1, by[d], &last) ||
                     __builtin_add_overflow(last, start, &last);
    PIPER_WANT(start < size && !far && last >= 0 && last < size, "starts={} steps={} of {} to {}",
               to_string(starts), to_string(by), to_string(from), to_string(to));
    first += start * own[d];
    steps[d] = to[d] == 1 ? 0 : by[d] * own[d];
  }
  return strided(use, std::move(steps), first);
}

Result<KernelPtr> make_reshape(const Use& use) {
  PIPER_TRY(use.operands(1, 1));
  PIPER_TRY(use.same_types());
  PIPER_WANT(num_elements(use.in(0)) == num_elements(use.out()), "{} to {}", to_string(use.in(0)),
             to_string(use.out()));
  const auto bytes = static_cast<size_t>(use.outputs[0].bytes());
  return make_kernel(InPlace::kYes, [bytes](Pointers p, std::byte*) {
    if (p[0] != p[1]) std::memcpy(p[1], p[0], bytes);
  });
}

}  // namespace piper::cpu
