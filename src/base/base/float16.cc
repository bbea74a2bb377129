// Converts elements between f32 and the 16-bit types, rounding to nearest, ties to even.
#include "piper/base/float16.h"

#include <bit>
#include <cstring>

namespace piper {

float float_of_half(DType dtype, uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
  if (dtype == DType::kBF16) return std::bit_cast<float>(uint32_t{bits} << 16);
  if (magnitude >= 0x7c00)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  const float value = magnitude < 0x400 ? static_cast<float>(magnitude) * 0x1p-24f
                                        : std::bit_cast<float>((magnitude << 13) + (112u << 23));
  return sign ? -value : value;
}

double float_at(DType dtype, const std::byte* at) {
  if (dtype == DType::kF64) {
    double value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  return float_of_half(dtype, half);
}

namespace {

uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>(value != value ? nan : rounded);
}

uint16_t f16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  // Below 2^-14 the steps are 2^-24: those of a float beside 1/2.
  const float beside = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t small = std::bit_cast<uint32_t>(beside) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  const uint32_t finite = magnitude < 0x38800000 ? small : normal;
  const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  return static_cast<uint16_t>(sign | (magnitude >= 0x477ff000 ? large : finite));
}

}  // namespace

void widen_halves(DType dtype, const std::byte* from, float* to, int64_t count) {
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  if (dtype == DType::kBF16)
    for (int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(uint32_t{halves[i]} << 16);
  else
    for (int64_t i = 0; i < count; ++i) to[i] = float_of_half(dtype, halves[i]);
}

void round_to_halves(DType dtype, const float* from, std::byte* to, int64_t count) {
  auto* halves = reinterpret_cast<uint16_t*>(to);
  if (dtype == DType::kBF16)
    for (int64_t i = 0; i < count; ++i) halves[i] = bf16_of(from[i]);
  else
    for (int64_t i = 0; i < count; ++i) halves[i] = f16_of(from[i]);
}

}  // namespace piper
