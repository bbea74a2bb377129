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
  const std::vector<int64_t> steps = row_major(from);
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

Result<KernelPtr> make_concat(const Use& use) {
  const size_t count = use.inputs.size();
  const Shape& to = use.out();
  const int64_t axis = use.attrs.integer("axis");
  const int64_t outer = extent(to, 0, axis);
  const int64_t bytes = extent(to, axis + 1, to.size()) * info(use.type()).bytes;
  std::vector<int64_t> runs;  // bytes of each input per outer index
  for (size_t i = 0; i < count; ++i) runs.push_back(use.in(i)[axis] * bytes);
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
  const std::vector<int64_t> before = use.attrs.integers("before");
  const double value = use.attrs.real("value", 0);
  return for_dtype(use.type(),
                   [&]<class T>(T) { return pad_kernel(use, before, convert<T>(value)); });
}

Result<KernelPtr> make_fill(const Use& use) {
  const double value = use.attrs.real("value", 0);
  const int64_t count = num_elements(use.out());
  return make_kernel(InPlace::kNo, [=, dtype = use.outputs[0].dtype](Pointers p, std::byte*) {
    fill_elements(p[0], dtype, count, value);
  });
}

Result<KernelPtr> make_trilu(const Use& use) {
  const int64_t upper = use.attrs.integer("upper", 1);
  const int64_t k = use.attrs.integer("k", 0);
  const Shape& shape = use.out();
  const int64_t n = shape.back(), rows = shape[shape.size() - 2];
  const int64_t planes = extent(shape, 0, shape.size() - 2);
  return for_sizes(use.type(), [&]<class T>(T) {
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

}  // namespace

std::vector<KernelRow> fill_kernels() {
  return {{"Concat", make_concat, kTakesHalves},
          {"Fill", make_fill, kTakesHalves},
          {"Pad", make_pad, kTakesHalves},
          {"Trilu", make_trilu, kTakesHalves}};
}

}  // namespace piper::cpu
