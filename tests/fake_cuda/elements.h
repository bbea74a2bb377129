// Elements of tensors as numbers.
#pragma once

#include <cmath>
#include <cstring>

#include "piper/base/base.h"

namespace piper::emulator {

// A float of 16 bits: so many bits of exponent and mantissa.
struct Half {
  int exponent, mantissa;
  int bias() const { return (1 << (exponent - 1)) - 1; }
};
inline Half half_of(DType type) { return type == DType::kBF16 ? Half{8, 7} : Half{5, 10}; }

inline double number_of_half(Half form, uint16_t bits) {
  const int e = (bits >> form.mantissa) & ((1 << form.exponent) - 1);
  const int m = bits & ((1 << form.mantissa) - 1);
  const double sign = bits >> 15 ? -1 : 1;
  if (e == (1 << form.exponent) - 1) return m != 0 ? NAN : sign * INFINITY;
  const int whole = e > 0 ? m + (1 << form.mantissa) : m;
  return sign * std::ldexp(whole, std::max(e, 1) - form.bias() - form.mantissa);
}

// To nearest, ties to even.
inline uint16_t half_of_number(Half form, double x) {
  const int sign = std::signbit(x) ? 1 << 15 : 0, most = (1 << form.exponent) - 1;
  if (std::isnan(x)) return static_cast<uint16_t>((most << form.mantissa) | 1);
  x = std::abs(x);
  const int least = 1 - form.bias();
  const int e = x > 0 && std::isfinite(x) ? std::max(std::ilogb(x), least) : least;
  const double steps = std::nearbyint(std::ldexp(x, form.mantissa - e));
  int64_t bits = int64_t{most} << form.mantissa;  // infinite
  if (std::isfinite(steps))                       // a step too many goes over into the exponent
    bits = std::min(bits, (int64_t{e - least} << form.mantissa) + static_cast<int64_t>(steps));
  return static_cast<uint16_t>(sign | bits);
}

inline double load_number(DType type, const char* at) {
  const auto load = [at](auto element) {
    std::memcpy(&element, at, sizeof element);
    return element;
  };
  if (type == DType::kF64) return load(double{});
  if (type == DType::kF32) return static_cast<double>(load(float{}));
  if (type == DType::kI32) return load(int32_t{});
  return number_of_half(half_of(type), load(uint16_t{}));
}

// Rounded to f32 first, as sums of 16-bit floats are.
inline void store_number(DType type, double x, char* at) {
  const auto store = [at](auto element) { std::memcpy(at, &element, sizeof element); };
  if (type == DType::kF64) return store(x);
  if (type == DType::kI32) return store(static_cast<int32_t>(x));
  const auto narrow = static_cast<float>(x);
  if (type == DType::kF32) return store(narrow);
  store(half_of_number(half_of(type), static_cast<double>(narrow)));
}

}  // namespace piper::emulator
