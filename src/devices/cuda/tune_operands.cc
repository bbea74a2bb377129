// The numbers of operands of a product that is measured.
#include "tune_operands.h"

#include <cmath>
#include <cstring>
#include <random>

#include "piper/base/float16.h"

namespace piper::cuda {

std::vector<std::byte> draw_block(DType type, uint32_t seed) {
  constexpr size_t kCount = 1000003;  // no line of a matrix is a divisor
  std::mt19937 random(seed);
  std::vector<float> numbers(kCount);
  for (float& x : numbers) x = std::ldexp(static_cast<float>(random() >> 8), -23) - 1;
  std::vector<std::byte> block(kCount * static_cast<size_t>(info(type).bytes));
  if (type == DType::kF64)
    for (size_t i = 0; i < kCount; ++i) {
      const double x = numbers[i];
      std::memcpy(block.data() + i * sizeof x, &x, sizeof x);
    }
  else if (type == DType::kF32)
    std::memcpy(block.data(), numbers.data(), block.size());
  else
    round_to_halves(type, numbers.data(), block.data(), static_cast<int64_t>(kCount));
  return block;
}

double bound_of(DType result) {
  switch (result) {
    case DType::kBF16:
      return 0x1p-7;
    case DType::kF16:
      return 0x1p-10;
    case DType::kF32:
      return 0x1p-14;
    case DType::kF64:
      return 0x1p-40;
    default:
      PIPER_CHECK(false, "no product of {}", info(result).name);
  }
}

}  // namespace piper::cuda
