#include "fragments.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "elements.h"

namespace piper::emulator {
namespace {

float number_of(bool is_bf16, uint32_t bits) {
  if (is_bf16) return std::bit_cast<float>(bits << 16);
  static const std::vector<float> numbers = [] {
    std::vector<float> all(1 << 16);
    for (uint32_t each = 0; each < all.size(); ++each)
      all[each] =
          static_cast<float>(number_of_half(half_of(DType::kF16), static_cast<uint16_t>(each)));
    return all;
  }();
  return numbers[bits];
}

}  // namespace

bool multiply_fragments(const std::array<Fragments, 32>& lanes) {
  const bool is_bf16 = lanes[0].is_bf16;
  if (std::any_of(lanes.begin(), lanes.end(),
                  [&](const Fragments& lane) { return lane.is_bf16 != is_bf16; }))
    return false;
  std::array<std::array<float, 16>, 16> a;
  std::array<std::array<float, 16>, 8> b;  // by columns
  for (size_t lane = 0; lane < 32; ++lane) {
    const size_t g = lane / 4, t = lane % 4;
    const auto number = [&](uint32_t word, size_t half) {
      return number_of(is_bf16, word >> (16 * half) & 0xffff);
    };
    for (size_t r = 0; r < 4; ++r)
      for (size_t half = 0; half < 2; ++half)
        a[g + r % 2 * 8][2 * t + r / 2 * 8 + half] = number(lanes[lane].a[r], half);
    for (size_t r = 0; r < 2; ++r)
      for (size_t half = 0; half < 2; ++half)
        b[g][2 * t + r * 8 + half] = number(lanes[lane].b[r], half);
  }
  for (size_t lane = 0; lane < 32; ++lane)
    for (size_t i = 0; i < 4; ++i) {
      const auto& row = a[lane / 4 + i / 2 * 8];
      const auto& column = b[lane % 4 * 2 + i % 2];
      float& sum = lanes[lane].d[i];
      for (size_t k = 0; k < 16; ++k) sum += row[k] * column[k];
    }
  return true;
}

}  // namespace piper::emulator
