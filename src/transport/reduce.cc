#include "reduce.h"

#include <cstring>

#include "piper/halves.h"

namespace piper {
namespace {

template <class T>
void add(T* acc, const T* x, int64_t count) {
  constexpr int64_t kWide = 16;  // a known trip count vectorises at every optimisation level
  int64_t i = 0;
  for (; i + kWide <= count; i += kWide) {
    for (int64_t j = 0; j < kWide; ++j) acc[i + j] += x[i + j];
  }
  for (; i < count; ++i) acc[i] += x[i];
}

// In blocks that stay in the first cache, so that each operand is read once and each result written
// once.
template <class T>
void sum_blocks(std::span<std::byte* const> to, std::span<const std::byte* const> from,
                int64_t count) {
  constexpr int64_t kBlock = 1024;
  alignas(64) T acc[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    int64_t n = std::min(kBlock, count - start);
    size_t bytes = static_cast<size_t>(n) * sizeof(T);
    size_t offset = static_cast<size_t>(start) * sizeof(T);
    std::memcpy(acc, from[0] + offset, bytes);
    for (const std::byte* x : from.subspan(1)) {
      add(acc, reinterpret_cast<const T*>(x + offset), n);
    }
    for (std::byte* target : to) std::memcpy(target + offset, acc, bytes);
  }
}

// 16-bit floats: summed in f32, rounded once.
void sum_halves(DType dtype, std::span<std::byte* const> to, std::span<const std::byte* const> from,
                int64_t count) {
  constexpr int64_t kBlock = 1024;
  alignas(64) float acc[kBlock], next[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t n = std::min(kBlock, count - start), offset = 2 * start;
    widen_halves(dtype, from[0] + offset, acc, n);
    for (const std::byte* x : from.subspan(1)) {
      widen_halves(dtype, x + offset, next, n);
      add(acc, next, n);
    }
    for (std::byte* target : to) round_to_halves(dtype, acc, target + offset, n);
  }
}

}  // namespace

bool is_summable(DType dtype) { return dtype != DType::kBool; }

void ordered_sum(DType dtype, std::span<std::byte* const> to,
                 std::span<const std::byte* const> from, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return sum_blocks<float>(to, from, count);
    case DType::kF64:
      return sum_blocks<double>(to, from, count);
    case DType::kI64:  // unsigned, for integers wrap around
      return sum_blocks<uint64_t>(to, from, count);
    case DType::kI32:
      return sum_blocks<uint32_t>(to, from, count);
    case DType::kBF16:
    case DType::kF16:
      return sum_halves(dtype, to, from, count);
    default:
      PIPER_CHECK(false, "no sum of {}", info(dtype).name);
  }
}

}  // namespace piper
