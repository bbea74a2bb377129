// Indices as places: what the kernels that gather and scatter share.
#pragma once

#include "dtypes.h"
#include "kernel.h"

namespace piper::cpu {

// Returns the position in [0, size), or -1. Negative indices count from the end.
inline int64_t position(int64_t index, int64_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size ? index : -1;
}

// Returns a position in a part of `size` from `first` on of `whole`; -2: in the whole, but not in
// this part.
inline int64_t position_in(int64_t index, int64_t first, int64_t size, int64_t whole) {
  const int64_t at = position(index, whole);
  if (at < 0) return -1;
  return at >= first && at < first + size ? at - first : -2;
}

// Says which part of a dim a use has: all of it, or what begins where its input `at` says.
struct Part {
  int64_t size = 0, whole = 0;
  size_t at = 0, outputs = 0;  // positions among the pointers
  bool given = false;
  int64_t first(Pointers p) const { return given ? *input<int64_t>(p, at) : 0; }
};

inline Part part_of(const Use& use, size_t at, int64_t size) {
  const bool given = use.has(at);
  return {size, given ? use.attrs.integer("whole") : size, at, use.inputs.size(), given};
}

// Returns what stands for an element that is not there.
template <class T>
T nothing() {
  return convert<T>(std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t> ||
                            std::is_same_v<T, Bool>
                        ? 0.0
                        : std::numeric_limits<double>::quiet_NaN());
}

template <class F>
Result<KernelPtr> for_indices(DType dtype, F f) {
  if (dtype == DType::kI64) return f(int64_t{});
  if (dtype == DType::kI32) return f(int32_t{});
  return fail("indices of {}", info(dtype).name);
}

}  // namespace piper::cpu
