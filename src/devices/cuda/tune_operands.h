// The operands of a product that is measured: where they lie, what numbers they hold, and how far
// two results may differ. Private to the cuda room.
#pragma once

#include <array>

#include "wanted.h"

namespace piper::cuda {

inline int64_t bytes_of(const DeviceProduct& p, Operand operand) {
  return extent_of(p, operand) * info(type_of(p, operand)).bytes;
}

// Places operands beside each other, and what a product makes three times: by the first algorithm,
// by another, and by that again. Negative: absent.
struct OperandPlaces {
  std::array<int64_t, kOperands> at{};
  std::array<std::array<int64_t, 2>, 3> made{};  // D and pre
  int64_t bytes = 0;

  explicit OperandPlaces(const Wanted& wanted) {
    const auto place = [&](Operand operand) -> int64_t {
      if (!wanted.is_present[operand]) return -1;
      const int64_t begin =
          (bytes + kOperandAlignment - 1) / kOperandAlignment * kOperandAlignment +
          wanted.offset[operand];
      bytes = begin + bytes_of(wanted.product, operand);
      return begin;
    };
    for (const Operand each : {kA, kB, kC, kBias}) at[each] = place(each);
    for (auto& each : made) each = {place(kD), place(kPre)};
  }
};

// Returns numbers of [-1, 1), of which a product's operands are made by repeating them.
std::vector<std::byte> draw_block(DType type, uint32_t seed);

// Returns what may be between two orders of summing, over the largest result: the last bit of 16,
// and of f32 less than operands that are rounded to TF32 leave.
double bound_of(DType result);

}  // namespace piper::cuda
