#include "dtypes.h"

#include <algorithm>
#include <cmath>

namespace piper::cpu {
namespace {

template <class T>
struct Wide {  // what sums of T are formed in
  using type = T;
};
template <>
struct Wide<Bf16> {
  using type = float;
};
template <>
struct Wide<F16> {
  using type = float;
};
template <>
struct Wide<Bool> {
  using type = int32_t;
};

template <class A>
A plus(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

// Blocks that stay in the nearest cache while all terms are added.
constexpr int64_t kSumBlock = 2048;

template <class T>
void sum_typed(T* to, std::span<const std::byte* const> from, int64_t count) {
  using A = typename Wide<T>::type;
  A block[kSumBlock];
  for (int64_t at = 0; at < count; at += kSumBlock) {
    const int64_t n = std::min(kSumBlock, count - at);
    const T* first = reinterpret_cast<const T*>(from[0]) + at;
    for (int64_t i = 0; i < n; ++i) block[i] = convert<A>(first[i]);
    for (size_t k = 1; k < from.size(); ++k) {
      const T* next = reinterpret_cast<const T*>(from[k]) + at;
      for (int64_t i = 0; i < n; ++i) block[i] = plus(block[i], convert<A>(next[i]));
    }
    for (int64_t i = 0; i < n; ++i) to[at + i] = convert<T>(block[i]);
  }
}

}  // namespace

float to_float(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t fraction = value.bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float small = std::ldexp(static_cast<float>(fraction), -24);
  return sign ? -small : small;
}

F16 to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // 65520 and more
  if (magnitude < 0x38800000) {  // below 2^-14: the steps are 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 16777216.0f;
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)))};
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

void fill_elements(std::byte* to, DType dtype, int64_t count, double value) {
  for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(reinterpret_cast<T*>(to), count, convert<T>(value));
  });
}

void sum_elements(std::byte* to, std::span<const std::byte* const> from, DType dtype,
                  int64_t count) {
  if (from.empty()) return fill_elements(to, dtype, count, 0);
  for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    sum_typed(reinterpret_cast<T*>(to), from, count);
  });
}

}  // namespace piper::cpu
