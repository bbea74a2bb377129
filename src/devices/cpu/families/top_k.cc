// TopK: the places of a row are put in order, as far as they are wanted.
#include <algorithm>

#include "families.h"

namespace piper::cpu {
namespace {

// Returns whether a is before b: the greater first, NaN before all; equal ones by place.
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
    for (int64_t row = 0; row < outer * inner && k > 0; ++row) {
      const T* x = input<T>(p, 0) + row / inner * size * inner + row % inner;
      auto before = [&](int64_t a, int64_t b) {
        const T u = x[a * inner], v = x[b * inner];
        if (largest ? greater(u, v) : greater(v, u)) return true;
        return !(largest ? greater(v, u) : greater(u, v)) && a < b;
      };
      const int64_t to = row / inner * k * inner + row % inner;
      // The heap holds the first k so far, of which the last one is on top.
      int64_t* const places =
          inner == 1 ? output<int64_t>(p, 2) + to : reinterpret_cast<int64_t*>(scratch);
      for (int64_t i = 0; i < k; ++i) places[i] = i;
      std::make_heap(places, places + k, before);
      for (int64_t i = k; i < size; ++i) {
        if (!before(i, places[0])) continue;
        std::pop_heap(places, places + k, before);
        places[k - 1] = i;
        std::push_heap(places, places + k, before);
      }
      std::sort_heap(places, places + k, before);
      for (int64_t i = 0; i < k; ++i) {
        output<T>(p, 1)[to + i * inner] = x[places[i] * inner];
        output<int64_t>(p, 2)[to + i * inner] = places[i];
      }
    }
  };
  const int64_t room = inner == 1 ? 0 : k * static_cast<int64_t>(sizeof(int64_t));
  return make_kernel(InPlace::kNo, std::move(run), room);
}

Result<KernelPtr> make_top_k(const Use& use) {
  const Shape& shape = use.in(0);
  const int64_t axis = use.attrs.integer("axis");
  const int64_t k = use.attrs.integer("k", 0);
  const int64_t largest = use.attrs.integer("largest", 1);
  const int64_t outer = extent(shape, 0, axis), inner = extent(shape, axis + 1, shape.size());
  return for_numbers(use, use.type(), [&]<class T>(T) {
    return top_k_kernel<T>(outer, shape[axis], inner, k, largest != 0);
  });
}

}  // namespace

std::vector<KernelRow> top_k_kernels() { return {{"TopK", make_top_k}}; }

}  // namespace piper::cpu
