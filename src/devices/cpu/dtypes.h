// Element types of tensors as C++ types, and the conversions between them.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "piper/base/base.h"

namespace piper::cpu {

// Stores one element of a type that is not computed with directly.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct Bool {  // zero or not; a byte that is neither 0 nor 1 is still legal to read
  uint8_t byte;
};

float to_float(F16 value);
F16 to_f16(float value);
inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline Bf16 to_bf16(float value) {  // to nearest, ties to even
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// Converts as Cast does: floats to integers towards zero, saturating, NaN to 0; to bool: not zero.
template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<From, Bool>) {
    return convert<To>(static_cast<int32_t>(x.byte != 0));
  } else if constexpr (std::is_same_v<From, Bf16> || std::is_same_v<From, F16>) {
    if constexpr (std::is_same_v<To, From>)
      return x;
    else
      return convert<To>(to_float(x));
  } else if constexpr (std::is_same_v<To, Bool>) {
    return {static_cast<uint8_t>(x != From{})};
  } else if constexpr (std::is_same_v<To, Bf16>) {
    return to_bf16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, F16>) {
    return to_f16(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (x != x) return 0;
    if (x >= static_cast<From>(std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
    if (x <= static_cast<From>(std::numeric_limits<To>::min()))
      return std::numeric_limits<To>::min();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// Calls f with a value of the element's C++ type.
template <class F>
auto for_dtype(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kF64:
      return f(double{});
    case DType::kBF16:
      return f(Bf16{});
    case DType::kF16:
      return f(F16{});
    case DType::kI64:
      return f(int64_t{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kBool:
      break;
  }
  return f(Bool{});
}

void fill_elements(std::byte* to, DType dtype, int64_t count, double value);

}  // namespace piper::cpu
