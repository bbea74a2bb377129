// What a kernel is: made once when a program is loaded, run many times without allocation, lock or
// failure.
//
// Each file of families/ defines makers, with a row for each op; kernels.cc puts the rows together.
// A maker refuses element types that it has no loop for; all else has been checked where the use
// was read.
#pragma once

#include <algorithm>
#include <concepts>

#include "piper/devices/cpu.h"
#include "piper/devices/kernel_use.h"

namespace piper::cpu {

// Operands of one use: its inputs, then its outputs; null where an optional one is absent.
using Pointers = std::byte* const*;

// The work is cut into `units` that only the shapes determine and that write different elements:
// threads share them out, and the bits are the same for any number of threads.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(Pointers p, std::byte* scratch, int64_t begin, int64_t end) const = 0;
  int64_t units = 1;
  int64_t grain = 1;          // fewer units than this are not worth another thread
  int64_t scratch_bytes = 0;  // what `scratch` must hold; contents do not outlive one run
  uint32_t in_place = 0;      // bit i: an output may be stored over input i, when elements match
};

template <class F>
class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(F f) : f_(std::move(f)) {}
  void run(Pointers p, std::byte* scratch, [[maybe_unused]] int64_t begin,
           [[maybe_unused]] int64_t end) const override {
    if constexpr (std::invocable<const F&, Pointers, std::byte*>) {
      f_(p, scratch);
    } else {
      f_(p, scratch, begin, end);
    }
  }

 private:
  F f_;
};

using KernelPtr = std::unique_ptr<Kernel>;
enum InPlace : uint32_t { kNo = 0, kThird = 4, kYes = ~uint32_t{0} };

template <class F>
KernelPtr make_kernel(InPlace in_place, F f, int64_t scratch_bytes = 0) {
  auto kernel = std::make_unique<FunctionKernel<F>>(std::move(f));
  kernel->in_place = in_place;
  kernel->scratch_bytes = scratch_bytes;
  return kernel;
}
// f(pointers, scratch, begin, end) does the units [begin, end) of `units`, each of about `work`
// nanoseconds.
template <class F>
KernelPtr make_units_kernel(InPlace in_place, int64_t units, double work, F f,
                            int64_t scratch_bytes = 0) {
  constexpr double kWorthAThread = 20'000;  // handing over takes a thousand or two
  KernelPtr kernel = make_kernel(in_place, std::move(f), scratch_bytes);
  kernel->units = units;
  kernel->grain = static_cast<int64_t>(kWorthAThread / std::max(work, 1.0)) + 1;
  return kernel;
}

struct Use : KernelUse {
  const ProductTable* products = nullptr;  // null: products are cut as if there were no table
  std::string_view product_kernels() const {
    return products ? std::string_view(products->kernels) : std::string_view();
  }
};

using Maker = Result<KernelPtr> (*)(const Use& use);
Maker find_kernel(std::string_view op);  // null when there is none
bool takes_halves(std::string_view op);  // its kernel takes and makes 16-bit floats as they are

#define PIPER_WANT(condition, ...)                       \
  do {                                                   \
    if (!(condition)) return ::piper::fail(__VA_ARGS__); \
  } while (false)

template <class T>
const T* input(Pointers p, size_t i) {
  return reinterpret_cast<const T*>(p[i]);
}
template <class T>
T* output(Pointers p, size_t i) {
  return reinterpret_cast<T*>(p[i]);
}

// Calls f with a value of the C++ type of `dtype`.
template <class F>
Result<KernelPtr> for_floats(const Use& use, DType dtype, F f) {
  if (dtype == DType::kF32) return f(float{});
  if (dtype == DType::kF64) return f(double{});
  return fail("not supported on {}", info(dtype).name)
      .with_note(fmt::format("{} takes f32 and f64", use.op));
}
template <class F>
Result<KernelPtr> for_numbers(const Use& use, DType dtype, F f) {
  if (dtype == DType::kI64) return f(int64_t{});
  if (dtype == DType::kI32) return f(int32_t{});
  return for_floats(use, dtype, f);
}
// Calls f with an unsigned integer of the element's size, for kernels that only move elements.
template <class F>
Result<KernelPtr> for_sizes(DType dtype, F f) {
  switch (info(dtype).bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

}  // namespace piper::cpu
