// Elements and slices taken from, put at or added to places that indices name: GatherElements,
// ScatterElements, GatherNDGrad, ScatterND. A place that is outside is read as NaN (0 of
// integers) and never written.
#include <algorithm>
#include <cstring>

#include "families.h"
#include "loop.h"
#include "places.h"

namespace piper::cpu {
namespace {

enum class Combine { kPut, kAdd, kMul, kMax, kMin };

Combine combine_of(const Use& use) {
  const std::string name = use.attrs.text("reduction", "none");
  if (name == "add") return Combine::kAdd;
  if (name == "mul") return Combine::kMul;
  if (name == "max") return Combine::kMax;
  return name == "min" ? Combine::kMin : Combine::kPut;
}

// Combines two elements; integers wrap around.
template <class T>
T combined(Combine how, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (how == Combine::kAdd) return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    if (how == Combine::kMul) return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    if (how == Combine::kAdd) return a + b;
    if (how == Combine::kMul) return a * b;
  }
  if (how == Combine::kMax) return b > a || b != b ? b : a;
  if (how == Combine::kMin) return b < a || b != b ? b : a;
  return b;
}

// ---- Along one axis ---------------------------------------------------------------------------

// Says how the positions of `indices` (walked in order) map to data, except along the axis.
struct Along {
  Loop loop;  // operand 0: indices; 1: data with a step of 0 along the axis
  int64_t size = 0, step = 0;
};

Along along(const Use& use, const Shape& data, const Shape& indices) {
  const int64_t axis = use.attrs.integer("axis");
  std::vector<int64_t> steps = row_major(data);
  Along out;
  out.size = data[axis];
  out.step = steps[axis];
  steps[axis] = 0;
  out.loop = make_loop(indices, {row_major(indices), std::move(steps)});
  return out;
}

// Calls f(position in indices, place in data or -1) for each.
template <class I, class F>
void each_place(const Along& a, const I* index, F f) {
  const int64_t index_step = a.loop.inner_steps[0], data_step = a.loop.inner_steps[1];
  a.loop.each_row([&](const int64_t* at) {
    for (int64_t i = 0; i < a.loop.inner; ++i) {
      const int64_t from = at[0] + i * index_step;
      const int64_t place = position(index[from], a.size);
      f(from, place < 0 ? -1 : at[1] + i * data_step + place * a.step);
    }
  });
}

// ---- Of slices --------------------------------------------------------------------------------

struct Slices {
  std::vector<int64_t> dims, steps;  // those that indices name, in slices
  int64_t batches = 1, per_batch = 1, inner = 1, plane = 1;
};

// Views `data` as [batch dims, named dims, rest], at indices whose last dim counts the named ones.
Slices slices_of(const Shape& data, const Shape& indices, int64_t batch_dims) {
  const auto b = static_cast<size_t>(batch_dims);
  const auto depth = static_cast<size_t>(indices.back());
  Slices s;
  s.dims.assign(data.begin() + b, data.begin() + b + depth);
  s.steps = row_major(s.dims);
  s.batches = extent(data, 0, b);
  s.per_batch = extent(indices, b, indices.size() - 1);
  s.inner = extent(data, b + depth, data.size());
  s.plane = num_elements(s.dims) * s.inner;
  return s;
}

// Calls f(number of the slice, first element of it in data or -1) for each.
template <class I, class F>
void each_slice(const Slices& s, const I* index, F f) {
  const size_t depth = s.dims.size();
  for (int64_t i = 0; i < s.batches * s.per_batch; ++i, index += depth) {
    int64_t at = 0;
    bool inside = true;
    for (size_t d = 0; d < depth; ++d) {
      const int64_t x = position(index[d], s.dims[d]);
      inside = inside && x >= 0;
      at += x * s.steps[d];
    }
    f(i, inside ? i / s.per_batch * s.plane + at * s.inner : -1);
  }
}

template <class T>
void copy_input(Pointers p, size_t to, int64_t count) {
  if (p[0] != p[to]) std::memcpy(p[to], p[0], static_cast<size_t>(count) * sizeof(T));
}

// Only elements of plain types are combined; any may be put.
template <class F>
Result<KernelPtr> for_combined(const Use& use, Combine how, F f) {
  return how == Combine::kPut ? for_sizes(use.type(), f) : for_numbers(use, use.type(), f);
}

Result<KernelPtr> make_gather_elements(const Use& use) {
  const Along a = along(use, use.in(0), use.in(1));
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_dtype(use.type(), [&]<class T>(T) {
      return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
        each_place(a, input<decltype(index)>(p, 1), [&](int64_t i, int64_t place) {
          output<T>(p, 2)[i] = place < 0 ? nothing<T>() : input<T>(p, 0)[place];
        });
      });
    });
  });
}

Result<KernelPtr> make_gather_elements_grad(const Use& use) {
  const Along a = along(use, use.out(), use.in(1));
  const int64_t count = num_elements(use.out());
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_floats(use, use.type(), [&]<class T>(T) {
      return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
        std::fill_n(output<T>(p, 2), count, T{0});
        each_place(a, input<decltype(index)>(p, 1), [&](int64_t i, int64_t place) {
          if (place >= 0) output<T>(p, 2)[place] += input<T>(p, 0)[i];
        });
      });
    });
  });
}

Result<KernelPtr> make_scatter_elements(const Use& use) {
  const Along a = along(use, use.in(0), use.in(1));
  const Combine how = combine_of(use);
  const int64_t count = num_elements(use.out());
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_combined(use, how, [&]<class T>(T) {
      return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
        copy_input<T>(p, 3, count);
        T* out = output<T>(p, 3);
        each_place(a, input<decltype(index)>(p, 1), [&](int64_t i, int64_t place) {
          if (place >= 0) out[place] = combined(how, out[place], input<T>(p, 2)[i]);
        });
      });
    });
  });
}

Result<KernelPtr> make_gather_nd_grad(const Use& use) {
  const int64_t batch_dims = use.attrs.integer("batch_dims", 0);
  const Slices s = slices_of(use.out(), use.in(1), batch_dims);
  const int64_t count = num_elements(use.out());
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_floats(use, use.type(), [&]<class T>(T) {
      return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
        T* out = output<T>(p, 2);
        std::fill_n(out, count, T{0});
        each_slice(s, input<decltype(index)>(p, 1), [&](int64_t i, int64_t first) {
          const T* dy = input<T>(p, 0) + i * s.inner;
          for (int64_t j = 0; first >= 0 && j < s.inner; ++j) out[first + j] += dy[j];
        });
      });
    });
  });
}

Result<KernelPtr> make_scatter_nd(const Use& use) {
  const Slices s = slices_of(use.in(0), use.in(1), 0);
  const Combine how = combine_of(use);
  const int64_t count = num_elements(use.out());
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_combined(use, how, [&]<class T>(T) {
      return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
        copy_input<T>(p, 3, count);
        T* out = output<T>(p, 3);
        each_slice(s, input<decltype(index)>(p, 1), [&](int64_t i, int64_t first) {
          const T* from = input<T>(p, 2) + i * s.inner;
          for (int64_t j = 0; first >= 0 && j < s.inner; ++j) {
            out[first + j] = combined(how, out[first + j], from[j]);
          }
        });
      });
    });
  });
}

}  // namespace

std::vector<KernelRow> scatter_kernels() {
  return {{"GatherElements", make_gather_elements, kTakesHalves},
          {"GatherElementsGrad", make_gather_elements_grad},
          {"GatherNDGrad", make_gather_nd_grad},
          {"ScatterElements", make_scatter_elements},
          {"ScatterND", make_scatter_nd}};
}

}  // namespace piper::cpu
