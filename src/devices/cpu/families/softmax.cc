// Softmax, LogSoftmax and their gradients.
#include "families.h"
#include "rows.h"

namespace piper::cpu {
namespace {

struct Axis {
  int64_t outer = 1, size = 1, inner = 1;
};
Axis axis_of(const Use& use) {
  const Shape& shape = use.out();
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  return {extent(shape, 0, axis), shape[axis], extent(shape, axis + 1, shape.size())};
}

// Returns a function of whole rows. Along another axis than the last, elements are gathered into
// rows of scratch first.
template <class T, size_t kInputs, class Rows>
KernelPtr row_kernel(const Axis& axis, Rows rows) {
  if (axis.inner == 1) {
    const auto run = [=](Pointers p, std::byte*, int64_t begin, int64_t end) {
      const T* in[kInputs];
      for (size_t k = 0; k < kInputs; ++k) in[k] = input<T>(p, k) + begin * axis.size;
      T* out = output<T>(p, kInputs) + begin * axis.size;
      if (axis.size > 0) rows(in, out, end - begin, axis.size);
    };
    return make_units_kernel(InPlace::kYes, axis.outer, static_cast<double>(axis.size), run);
  }
  const auto scratch_bytes = static_cast<int64_t>((kInputs + 1) * sizeof(T)) * axis.size;
  auto run = [=](Pointers p, std::byte* scratch) {
    T* line = reinterpret_cast<T*>(scratch);
    const T* in[kInputs];
    for (size_t k = 0; k < kInputs; ++k) in[k] = line + k * axis.size;
    T* result = line + kInputs * axis.size;
    for (int64_t r = 0; r < axis.outer * axis.inner && axis.size > 0; ++r) {
      const int64_t base = r / axis.inner * axis.size * axis.inner + r % axis.inner;
      for (size_t k = 0; k < kInputs; ++k) {
        for (int64_t i = 0; i < axis.size; ++i) {
          line[k * axis.size + i] = input<T>(p, k)[base + i * axis.inner];
        }
      }
      rows(in, result, 1, axis.size);
      for (int64_t i = 0; i < axis.size; ++i) {
        output<T>(p, kInputs)[base + i * axis.inner] = result[i];
      }
    }
  };
  return make_kernel(InPlace::kYes, std::move(run), scratch_bytes);
}

Result<KernelPtr> make_softmax(const Use& use) {
  const Axis axis = axis_of(use);
  return for_floats(use, use.type(), [&]<class T>(T) {
    const NormFns<T> fns = norm_fns<T>();
    const auto rows = use.op == "Softmax" ? fns.softmax : fns.log_softmax;
    return row_kernel<T, 1>(axis, [rows](const T* const* in, T* out, int64_t count, int64_t n) {
      rows(in[0], out, count, n);
    });
  });
}

Result<KernelPtr> make_softmax_grad(const Use& use) {
  const Axis axis = axis_of(use);
  return for_floats(use, use.type(), [&]<class T>(T) {
    const NormFns<T> fns = norm_fns<T>();
    const auto rows = use.op == "SoftmaxGrad" ? fns.softmax_grad : fns.log_softmax_grad;
    return row_kernel<T, 2>(axis, [rows](const T* const* in, T* out, int64_t count, int64_t n) {
      rows(in[0], in[1], out, count, n);
    });
  });
}

}  // namespace

std::vector<KernelRow> softmax_kernels() {
  return {{"LogSoftmax", make_softmax},
          {"LogSoftmaxGrad", make_softmax_grad},
          {"Softmax", make_softmax},
          {"SoftmaxGrad", make_softmax_grad}};
}

}  // namespace piper::cpu
