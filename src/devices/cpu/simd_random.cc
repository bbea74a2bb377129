// Philox 4x32-10 on vectors of counters, compiled once per instruction set. Integers only: the
// same words everywhere.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_random.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_math-inl.h"
// clang-format on
#include "philox.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::ScalableTag<uint32_t>;
using V32 = hn::Vec<D32>;

struct Product {
  V32 low, high;
};
HWY_INLINE Product multiply(V32 a, V32 b) {
  const D32 d;
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(a)} * hn::GetLane(b);
  return {hn::Set(d, static_cast<uint32_t>(product)),
          hn::Set(d, static_cast<uint32_t>(product >> 32))};
#else
  const hn::Repartition<uint64_t, D32> d64;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  return {hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even)),
          hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)))};
#endif
}

void philox_blocks(uint64_t first, uint64_t step, uint64_t key, uint32_t* words, int64_t count) {
  const D32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto m0 = hn::Set(d, kPhiloxMultipliers[0]), m1 = hn::Set(d, kPhiloxMultipliers[1]);
  HWY_ALIGN uint32_t low[hn::MaxLanes(d)], high[hn::MaxLanes(d)];
  HWY_ALIGN uint32_t rest[4 * hn::MaxLanes(d)];
  for (int64_t i = 0; i < count; i += lanes) {
    for (int64_t l = 0; l < lanes; ++l) {
      const uint64_t at = first + static_cast<uint64_t>(i + l);
      low[l] = static_cast<uint32_t>(at);
      high[l] = static_cast<uint32_t>(at >> 32);
    }
    auto c0 = hn::Load(d, low), c1 = hn::Load(d, high);
    auto c2 = hn::Set(d, static_cast<uint32_t>(step));
    auto c3 = hn::Set(d, static_cast<uint32_t>(step >> 32));
    auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const Product p0 = multiply(c0, m0), p1 = multiply(c2, m1);
      c0 = hn::Xor(hn::Xor(p1.high, c1), hn::Set(d, k0));
      c1 = p1.low;
      c2 = hn::Xor(hn::Xor(p0.high, c3), hn::Set(d, k1));
      c3 = p0.low;
      k0 += kPhiloxWeyl[0];
      k1 += kPhiloxWeyl[1];
    }
    if (i + lanes <= count) {
      hn::StoreInterleaved4(c0, c1, c2, c3, d, words + 4 * i);
    } else {
      hn::StoreInterleaved4(c0, c1, c2, c3, d, rest);
      std::memcpy(words + 4 * i, rest, static_cast<size_t>(4 * (count - i)) * sizeof(uint32_t));
    }
  }
}

void mask(const float* x, const uint32_t* words, uint32_t threshold, float scale, float* y,
          int64_t n) {
  const hn::ScalableTag<float> d;
  const D32 d32;
  const hn::RebindToSigned<D32> di;
  const auto least = hn::Set(di, static_cast<int32_t>(threshold) - 1);
  const auto factor = hn::Set(d, scale);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto word = hn::ShiftRight<8>(load_first(d32, words + i, count, uint32_t{0}));
    const auto keep = hn::RebindMask(d, hn::Gt(hn::BitCast(di, word), least));
    const auto scaled = hn::Mul(load_first(d, x + i, count, 0.0F), factor);
    store_first(d, hn::IfThenElseZero(keep, scaled), y + i, count);
  });
}

PhiloxFn Blocks() { return philox_blocks; }
MaskFn Mask() { return mask; }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(Blocks);
HWY_EXPORT(Mask);

PhiloxFn philox_fn() { return HWY_DYNAMIC_DISPATCH(Blocks)(); }
MaskFn mask_fn() { return HWY_DYNAMIC_DISPATCH(Mask)(); }

}  // namespace piper::cpu
#endif
