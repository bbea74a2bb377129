// Ops that lay out elements: Concat, Pad, Fill, Trilu.
#include <algorithm>
#include <cstring>

#include "dtypes.h"
#include "families.h"
#include "loop.h"

namespace piper::cpu {
namespace {

template <class T>
KernelPtr pad_kernel(const Use& use, std::vector<int64_t> before, T value) {
  const Shape from = use.in(0), to = use.out();
  const size_t rank = to.size();
  // Rows along the last dim: [low, high) of each comes from the input, the rest is `value`.
  const int64_t n = to.empty() ? 1 : to.back();
  const int64_t low = rank == 0 ? 0 : std::clamp<int64_t>(before.back(), 0, n);
  const int64_t high = rank == 0 ? 1 : std::clamp<int64_t>(before.back() + from.back(), low, n);
  const int64_t skip = rank == 0 ? 0 : low - before.back();
  const std::vector<int64_t> steps = strides_of(from);
  const int64_t rows = rank == 0 ? 1 : extent(to, 0, rank - 1);
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    const T* in = input<T>(p, 0);
    T* out = output<T>(p, 1);
    std::array<int64_t, kMaxRank> index{};
    for (int64_t row = 0; row < rows; ++row, out += n) {
      int64_t at = skip;
      bool inside = true;
      for (size_t d = 0; d + 1 < rank; ++d) {
        const int64_t i = index[d] - before[d];
        inside = inside && i >= 0 && i < from[d];
        at += i * steps[d];
      }
      std::fill_n(out, inside ? low : n, value);
      if (inside && high > low) {
        std::memcpy(out + low, in + at, static_cast<size_t>(high - low) * sizeof(T));
      }
      if (inside) std::fill_n(out + high, n - high, value);
      for (size_t d = rank == 0 ? 0 : rank - 1; d-- > 0;) {
        if (++index[d] < to[d]) break;
        index[d] = 0;
      }
    }
  });
}

}  // namespace

Result<KernelPtr> make_concat(const Use& use) {
  const size_t count = use.inputs.size();
  PIPER_WANT(count > 0, "has no inputs");
  PIPER_TRY(use.operands(count, count));
  PIPER_TRY(use.same_types());
  const Shape& to = use.out();
  PIPER_ASSIGN(const int64_t axis, use.axis("axis", to.size()));
  const int64_t outer = extent(to, 0, axis);
  const int64_t bytes = extent(to, axis + 1, to.size()) * info(use.type()).bytes;
  std::vector<int64_t> runs;  // bytes of each input per outer index
  int64_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    Shape expected = to;
    if (use.in(i).size() == to.size()) expected[axis] = use.in(i)[axis];
    PIPER_WANT(use.in(i) == expected, "of {} to {} along {}", to_string(use.in(i)), to_string(to),
               axis);
    runs.push_back(use.in(i)[axis] * bytes);
    sum += use.in(i)[axis];
  }
  PIPER_WANT(sum == to[axis], "of {} along {}, not {}", sum, axis, to[axis]);
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    std::byte* out = p[count];
    for (int64_t o = 0; o < outer; ++o) {
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(out, p[i] + o * runs[i], static_cast<size_t>(runs[i]));
        out += runs[i];
      }
    }
  });
}

Result<KernelPtr> make_pad(const Use& use) {
  PIPER_TRY(use.operands(1, 1));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const std::vector<int64_t> before, use.integers("before"));
  PIPER_ASSIGN(const std::vector<int64_t> after, use.integers("after"));
  PIPER_ASSIGN(const double value, use.real_or("value", 0));
  const Shape &from = use.in(0), &to = use.out();
  bool fits =
      before.size() == from.size() && after.size() == from.size() && to.size() == from.size();
  for (size_t d = 0; fits && d < from.size(); ++d) {
    const int64_t limit = int64_t{1} << 40;
    fits = std::abs(before[d]) < limit && std::abs(after[d]) < limit &&
           to[d] == from[d] + before[d] + after[d];
  }
  PIPER_WANT(fits, "before={} after={} of {} to {}", to_string(before), to_string(after),
             to_string(from), to_string(to));
  return for_dtype(use.type(), [&](auto zero) -> Result<KernelPtr> {
    return pad_kernel(use, before, convert<decltype(zero)>(value));
  });
}

Result<KernelPtr> make_fill(const Use& use) {
  PIPER_TRY(use.operands(0, 0));
  PIPER_ASSIGN(const double value, use.real_or("value", 0));
  const int64_t count = num_elements(use.out());
  return make_kernel(InPlace::kNo, [=, dtype = use.outputs[0].dtype](Pointers p, std::byte*) {
    fill_elements(p[0], dtype, count, value);
  });
}

Result<KernelPtr> make_trilu(const Use& use) {
  PIPER_TRY(use.operands(1, 1));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const int64_t upper, use.integer_or("upper", 1));
  PIPER_ASSIGN(const int64_t k, use.integer_or("k", 0));
  const Shape& shape = use.out();
  PIPER_WANT(shape == use.in(0) && shape.size() >= 2, "of {} to {}", to_string(use.in(0)),
             to_string(shape));
  const int64_t n = shape.back(), rows = shape[shape.size() - 2];
  const int64_t planes = extent(shape, 0, shape.size() - 2);
  return for_sizes(use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kYes, [=](Pointers p, std::byte*) {
      const T* in = input<T>(p, 0);
      T* out = output<T>(p, 1);
      for (int64_t row = 0; row < planes * rows; ++row, in += n, out += n) {
        // Upper keeps columns >= row + k, lower columns <= row + k.
        const int64_t i = row % rows;
        const int64_t cut =
            std::clamp<int64_t>(std::clamp<int64_t>(k, -rows, n) + i + (upper ? 0 : 1), 0, n);
        const int64_t low = upper ? cut : 0, high = upper ? n : cut;
        if (in != out)
          std::memcpy(out + low, in + low, static_cast<size_t>(high - low) * sizeof(T));
        std::fill_n(out, low, T{});
        std::fill_n(out + high, n - high, T{});
      }
    });
  });
}

}  // namespace piper::cpu
