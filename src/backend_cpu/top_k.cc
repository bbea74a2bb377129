// TopK: the places of a row are put in order, as far as they are wanted.
#include <algorithm>

#include "families.h"

namespace piper::cpu {
namespace {

// a before b: the greater first, NaN before all; equal ones by place.
template <class T>
bool greater(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a || b != b) return a != a && b == b;
  }
  return a > b;
}

template <class T>
KernelPtr top_k_kernel(int64_t outer, int64_t size, int64_t inner, int64_t k, bool largest) {
  auto run = [=](Pointers p, std::byte* scratch) {
    auto* places = reinterpret_cast<int64_t*>(scratch);
    for (int64_t row = 0; row < outer * inner && k > 0; ++row) {
      const T* x = input<T>(p, 0) + row / inner * size * inner + row % inner;
      auto before = [&](int64_t a, int64_t b) {
        const T u = x[a * inner], v = x[b * inner];
        if (largest ? greater(u, v) : greater(v, u)) return true;
        return !(largest ? greater(v, u) : greater(u, v)) && a < b;
      };
      for (int64_t i = 0; i < size; ++i) places[i] = i;
      std::partial_sort(places, places + k, places + size, before);
      const int64_t to = row / inner * k * inner + row % inner;
      for (int64_t i = 0; i < k; ++i) {
        if (p[1]) output<T>(p, 1)[to + i * inner] = x[places[i] * inner];
        if (p[2]) output<int64_t>(p, 2)[to + i * inner] = places[i];
      }
    }
  };
  return make_kernel(InPlace::kNo, std::move(run), size * static_cast<int64_t>(sizeof(int64_t)));
}

}  // namespace

Result<KernelPtr> make_top_k(const Use& use) {
  PIPER_TRY(use.operands(1, 1, 2));
  const Shape& shape = use.in(0);
  PIPER_ASSIGN(const int64_t axis, use.axis("axis", shape.size()));
  PIPER_ASSIGN(const int64_t k, use.integer_or("k", 0));
  PIPER_ASSIGN(const int64_t largest, use.integer_or("largest", 1));
  Shape expected = shape;
  expected[axis] = k;
  const TensorType values{use.type(), expected}, places{DType::kI64, expected};
  PIPER_WANT(k >= 0 && k <= shape[axis] && (!use.wanted[0] || use.outputs[0] == values) &&
                 (!use.wanted[1] || use.outputs[1] == places),
             "of {} elements of {} to {} and {}", k, to_string(use.inputs[0]),
             to_string(use.outputs[0]), to_string(use.outputs[1]));
  const int64_t outer = extent(shape, 0, axis), inner = extent(shape, axis + 1, shape.size());
  return for_numbers(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    return top_k_kernel<decltype(zero)>(outer, shape[axis], inner, k, largest != 0);
  });
}

}  // namespace piper::cpu
