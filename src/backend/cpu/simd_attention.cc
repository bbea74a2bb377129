// Vectorised rows of attention, compiled once per instruction set.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_attention.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_math-inl.h"
// clang-format on
#include <algorithm>
#include <limits>

#include "rows.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Products become scores where that is more than a factor; what factor is left.
template <class T>
T scores(const ScoreRow<T>& row, T* s, T* slope) {
  const hn::ScalableTag<T> d;
  if (row.cap == 0 && !row.add && !row.keep) return row.scale;
  const auto scale = hn::Set(d, row.scale), one = hn::Set(d, T{1});
  const auto cap = hn::Set(d, row.cap),
             inner = hn::Set(d, row.cap > 0 ? row.scale / row.cap : T{0});
  each_vector(d, row.seen, [&](int64_t i, int64_t count) HWY_ATTR {
    auto x = load_first(d, s + i, count, T{0});
    if (row.cap > 0) {
      const auto t = tanh_of(d, hn::Mul(x, inner));
      if (slope) store_first(d, hn::Mul(scale, hn::NegMulAdd(t, t, one)), slope + i, count);
      x = hn::Mul(cap, t);
    } else {
      x = hn::Mul(x, scale);
    }
    if (row.add) {
      x = hn::Add(x,
                  row.mask_step ? load_first(d, row.add + i, count, T{0}) : hn::Set(d, *row.add));
    }
    store_first(d, x, s + i, count);
  });
  if (row.keep) {
    for (int64_t i = 0; i < row.seen; ++i) {
      if (!row.keep[i * row.mask_step]) s[i] = row.masked;
    }
  }
  return T{1};
}

template <class T>
bool none_seen(const T* s, int64_t n) {
  return std::all_of(s, s + n, [](T x) { return x == -std::numeric_limits<T>::infinity(); });
}

template <class T>
T weights(const ScoreRow<T>& row, T* s, T* inverse) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const T lowest = -std::numeric_limits<T>::infinity();
  const T factor = scores(row, s, static_cast<T*>(nullptr));
  auto best = hn::Set(d, lowest), least = hn::Set(d, -lowest);
  each_vector(d, row.seen, [&](int64_t i, int64_t count) HWY_ATTR {
    best = hn::Max(best, load_first(d, s + i, count, lowest));
    if (factor < 0) least = hn::Min(least, load_first(d, s + i, count, -lowest));
  });
  const T top = factor < 0 ? factor * hn::GetLane(hn::MinOfLanes(d, least))
                           : factor * hn::GetLane(hn::MaxOfLanes(d, best));
  if (row.seen == 0 || (top == lowest && none_seen(s, row.seen))) {
    std::memset(s, 0, static_cast<size_t>(row.width) * sizeof(T));
    *inverse = 0;
    return std::numeric_limits<T>::max();
  }
  const auto shift = hn::Set(d, top), f = hn::Set(d, factor);
  auto sum = hn::Zero(d), sum2 = hn::Zero(d);
  const auto exponential = [&](hn::Vec<decltype(d)> x)
                               HWY_ATTR { return exp_of_negative(d, hn::MulSub(x, f, shift)); };
  int64_t i = 0;
  for (; i + 2 * lanes <= row.seen; i += 2 * lanes) {
    const auto a = exponential(hn::LoadU(d, s + i)), b = exponential(hn::LoadU(d, s + i + lanes));
    sum = hn::Add(sum, a);
    sum2 = hn::Add(sum2, b);
    hn::StoreU(a, d, s + i);
    hn::StoreU(b, d, s + i + lanes);
  }
  for (; i < row.seen; i += lanes) {
    const int64_t count = HWY_MIN(lanes, row.seen - i);
    const auto e = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)),
                                      exponential(load_first(d, s + i, count, T{0})));
    sum = hn::Add(sum, e);
    store_first(d, e, s + i, count);
  }
  if (row.width > row.seen)
    std::memset(s + row.seen, 0, static_cast<size_t>(row.width - row.seen) * sizeof(T));
  const T total = sum_lanes(d, hn::Add(sum, sum2));
  *inverse = T{1} / total;
  return top + std::log(total);
}

template <class T>
void gradient(const ScoreRow<T>& row, T lse, T dot, T* s, T* ds, T* slope, T* raw) {
  const hn::ScalableTag<T> d;
  const T factor = scores(row, s, slope);
  const auto f = hn::Set(d, factor), shift = hn::Set(d, lse), middle = hn::Set(d, dot);
  const auto scale = hn::Set(d, row.scale);
  each_vector(d, row.seen, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto p = exp_of_negative(d, hn::MulSub(load_first(d, s + i, count, T{0}), f, shift));
    const auto g = hn::Mul(p, hn::Sub(load_first(d, ds + i, count, T{0}), middle));
    store_first(d, p, s + i, count);
    if (raw) store_first(d, g, raw + i, count);
    const auto by = row.cap > 0 ? load_first(d, slope + i, count, T{0}) : scale;
    store_first(d, hn::Mul(g, by), ds + i, count);
  });
  if (row.keep && row.masked != -std::numeric_limits<T>::infinity()) {
    for (int64_t i = 0; i < row.seen; ++i) {  // their score is a constant, their weight is not 0
      if (!row.keep[i * row.mask_step]) ds[i] = 0;
    }
  }
  if (row.width > row.seen) {
    const auto bytes = static_cast<size_t>(row.width - row.seen) * sizeof(T);
    std::memset(s + row.seen, 0, bytes);
    std::memset(ds + row.seen, 0, bytes);
  }
}

template <class T>
void multiply(T* x, T factor, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto f = hn::Set(d, factor);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    store_first(d, hn::Mul(load_first(d, x + i, count, T{0}), f), x + i, count);
  });
}

template <class T>
T dot(const T* a, const T* b, int64_t n) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    sum = hn::MulAdd(load_first(d, a + i, count, T{0}), load_first(d, b + i, count, T{0}), sum);
  });
  return sum_lanes(d, sum);
}

template <class T>
AttentionFns<T> fns() {
  return {weights<T>, gradient<T>, multiply<T>, dot<T>};
}
AttentionFns<float> AttentionF32() { return fns<float>(); }
AttentionFns<double> AttentionF64() { return fns<double>(); }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(AttentionF32);
HWY_EXPORT(AttentionF64);

template <>
AttentionFns<float> attention_fns() {
  return HWY_DYNAMIC_DISPATCH(AttentionF32)();
}
template <>
AttentionFns<double> attention_fns() {
  return HWY_DYNAMIC_DISPATCH(AttentionF64)();
}

}  // namespace piper::cpu
#endif
