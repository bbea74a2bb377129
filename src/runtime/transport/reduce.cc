// Reductions in rank order, which give all fabrics the same bits.
#include "reduce.h"

#include <cstring>
#include <type_traits>

#include "piper/base/float16.h"

namespace piper {
namespace {

template <Reduction kReduction, class T>
T joined(T a, T b) {
  if constexpr (kReduction == Reduction::kSum) return a + b;
  return b > a || b != b ? b : a;  // keeps what is no number
}

template <Reduction kReduction, class T>
void join(T* acc, const T* x, int64_t count) {
  constexpr int64_t kWide = 16;  // a known trip count vectorises at every optimisation level
  int64_t i = 0;
  for (; i + kWide <= count; i += kWide) {
    for (int64_t j = 0; j < kWide; ++j) acc[i + j] = joined<kReduction>(acc[i + j], x[i + j]);
  }
  for (; i < count; ++i) acc[i] = joined<kReduction>(acc[i], x[i]);
}

// Reduces in blocks that stay in the first cache, so that each operand is read once and each result
// written once.
template <Reduction kReduction, class T>
void reduce_blocks(std::span<std::byte* const> to, std::span<const std::byte* const> from,
                   int64_t count) {
  constexpr int64_t kBlock = 1024;
  alignas(64) T acc[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    int64_t n = std::min(kBlock, count - start);
    size_t bytes = static_cast<size_t>(n) * sizeof(T);
    size_t offset = static_cast<size_t>(start) * sizeof(T);
    std::memcpy(acc, from[0] + offset, bytes);
    for (const std::byte* x : from.subspan(1)) {
      join<kReduction>(acc, reinterpret_cast<const T*>(x + offset), n);
    }
    for (std::byte* target : to) std::memcpy(target + offset, acc, bytes);
  }
}

// Reduces 16-bit floats in f32 and rounds once.
template <Reduction kReduction>
void reduce_halves(DType dtype, std::span<std::byte* const> to,
                   std::span<const std::byte* const> from, int64_t count) {
  constexpr int64_t kBlock = 1024;
  alignas(64) float acc[kBlock], next[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t n = std::min(kBlock, count - start), offset = 2 * start;
    widen_halves(dtype, from[0] + offset, acc, n);
    for (const std::byte* x : from.subspan(1)) {
      widen_halves(dtype, x + offset, next, n);
      join<kReduction>(acc, next, n);
    }
    for (std::byte* target : to) round_to_halves(dtype, acc, target + offset, n);
  }
}

template <Reduction kReduction>
void reduce_as(DType dtype, std::span<std::byte* const> to, std::span<const std::byte* const> from,
               int64_t count) {
  constexpr bool kSums = kReduction == Reduction::kSum;
  switch (dtype) {
    case DType::kF32:
      return reduce_blocks<kReduction, float>(to, from, count);
    case DType::kF64:
      return reduce_blocks<kReduction, double>(to, from, count);
    case DType::kI64:  // sums unsigned, for integers wrap around
      return reduce_blocks<kReduction, std::conditional_t<kSums, uint64_t, int64_t>>(to, from,
                                                                                     count);
    case DType::kI32:
      return reduce_blocks<kReduction, std::conditional_t<kSums, uint32_t, int32_t>>(to, from,
                                                                                     count);
    case DType::kBF16:
    case DType::kF16:
      return reduce_halves<kReduction>(dtype, to, from, count);
    default:
      PIPER_CHECK(false, "no reduction of {}", info(dtype).name);
  }
}

}  // namespace

bool is_summable(DType dtype) { return dtype != DType::kBool; }

void reduce_in_order(Reduction reduction, DType dtype, std::span<std::byte* const> to,
                     std::span<const std::byte* const> from, int64_t count) {
  return reduction == Reduction::kSum ? reduce_as<Reduction::kSum>(dtype, to, from, count)
                                      : reduce_as<Reduction::kMax>(dtype, to, from, count);
}

void take_part(const Shard& shard, int64_t k) {
  shard.for_each_run(k, [&](const Shard::Run& run) {
    std::memcpy(shard.part + run.part, shard.whole + run.whole, static_cast<size_t>(run.bytes));
  });
  clear_rest(shard, k);
}

}  // namespace piper
