#include "piper/halves.h"

#include <bit>

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

}  // namespace piper
