// Gather, its gradient, GatherND. An index that is outside (inputs are checked before they come
// here) makes NaN, or 0 for integers, and contributes to no gradient: memory is never touched out
// of bounds.
#include <algorithm>
#include <cstring>

#include "families.h"
#include "loop.h"
#include "places.h"

namespace piper::cpu {
namespace {

template <class T, class I>
KernelPtr gather_kernel(int64_t outer, const Part& part, int64_t inner, int64_t count) {
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    const I* index = input<I>(p, 1);
    T* out = output<T>(p, part.outputs);
    const int64_t first = part.first(p);
    for (int64_t o = 0; o < outer; ++o) {
      const T* data = input<T>(p, 0) + o * part.size * inner;
      for (int64_t i = 0; i < count; ++i, out += inner) {
        const int64_t at = position_in(index[i], first, part.size, part.whole);
        if (at < 0) {
          std::fill_n(out, inner, at == -1 ? nothing<T>() : T{0});
        } else if (inner == 1) {
          *out = data[at];
        } else {
          std::memcpy(out, data + at * inner, static_cast<size_t>(inner) * sizeof(T));
        }
      }
    }
  });
}

template <class T, class I>
KernelPtr gather_grad_kernel(int64_t outer, const Part& part, int64_t inner, int64_t count) {
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    const T* dy = input<T>(p, 0);
    const I* index = input<I>(p, 1);
    const int64_t first = part.first(p);
    T* const whole = output<T>(p, part.outputs);
    std::fill_n(whole, outer * part.size * inner, T{0});
    for (int64_t o = 0; o < outer; ++o) {
      T* data = whole + o * part.size * inner;
      for (int64_t i = 0; i < count; ++i, dy += inner) {
        const int64_t at = position_in(index[i], first, part.size, part.whole);
        if (at < 0) continue;
        T* row = data + at * inner;
        for (int64_t j = 0; j < inner; ++j) row[j] += dy[j];
      }
    }
  });
}

Result<KernelPtr> make_gather(const Use& use) {
  const Shape &data = use.in(0), &indices = use.in(1);
  const int64_t axis = use.attrs.integer("axis");
  const int64_t outer = extent(data, 0, axis), inner = extent(data, axis + 1, data.size());
  const Part part = part_of(use, 2, data[axis]);
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_dtype(use.type(), [&]<class T>(T) {
      return gather_kernel<T, decltype(index)>(outer, part, inner, num_elements(indices));
    });
  });
}

Result<KernelPtr> make_gather_grad(const Use& use) {
  const Shape &indices = use.in(1), &data = use.out();
  const int64_t axis = use.attrs.integer("axis");
  const int64_t outer = extent(data, 0, axis), inner = extent(data, axis + 1, data.size());
  const Part part = part_of(use, 2, data[axis]);
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_floats(use, use.type(), [&]<class T>(T) {
      return gather_grad_kernel<T, decltype(index)>(outer, part, inner, num_elements(indices));
    });
  });
}

Result<KernelPtr> make_gather_nd(const Use& use) {
  const int64_t batch_dims = use.attrs.integer("batch_dims", 0);
  const Shape &data = use.in(0), &indices = use.in(1);
  const auto b = static_cast<size_t>(batch_dims);
  const auto depth = static_cast<size_t>(indices.back());
  const Shape dims(data.begin() + b, data.begin() + b + depth);
  const std::vector<int64_t> steps = row_major(dims);
  const int64_t batches = extent(data, 0, b), per_batch = extent(indices, b, indices.size() - 1);
  const int64_t inner = extent(data, b + depth, data.size()), plane = num_elements(dims) * inner;
  return for_indices(use.inputs[1].dtype, [&](auto index_zero) {
    return for_dtype(use.type(), [&]<class T>(T) {
      using I = decltype(index_zero);
      return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
        const I* index = input<I>(p, 1);
        T* out = output<T>(p, 2);
        for (int64_t i = 0; i < batches * per_batch; ++i, index += depth, out += inner) {
          int64_t at = 0;
          bool inside = true;
          for (size_t d = 0; d < depth; ++d) {
            const int64_t x = position(index[d], dims[d]);
            inside = inside && x >= 0;
            at += x * steps[d];
          }
          if (inside) {
            const T* from = input<T>(p, 0) + i / per_batch * plane + at * inner;
            std::memcpy(out, from, static_cast<size_t>(inner) * sizeof(T));
          } else {
            std::fill_n(out, inner, nothing<T>());
          }
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelRow> gather_kernels() {
  return {{"Gather", make_gather, kTakesHalves},
          {"GatherGrad", make_gather_grad},
          {"GatherND", make_gather_nd, kTakesHalves}};
}

}  // namespace piper::cpu
