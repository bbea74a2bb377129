// Vectorised sums, compiled once per instruction set.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_sums.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_math-inl.h"
// clang-format on
#include "rows.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Combines n > 0 elements in four interleaved chains of vectors, then (0 with 1) with (2 with 3),
// then the lanes.
template <class T, class Combine>
HWY_INLINE hn::Vec<hn::ScalableTag<T>> chains(const T* x, int64_t n, T identity, Combine combine) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Set(d, identity), b = a, c = a, e = a;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a = combine(a, hn::LoadU(d, x + i));
    b = combine(b, hn::LoadU(d, x + i + lanes));
    c = combine(c, hn::LoadU(d, x + i + 2 * lanes));
    e = combine(e, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i < n; i += lanes) {
    a = combine(a, load_first(d, x + i, HWY_MIN(lanes, n - i), identity));
  }
  return combine(combine(a, b), combine(c, e));
}

template <class T>
T sum(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  return sum_lanes(d, chains(x, n, T{0}, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }));
}

template <class T, class Combine>
HWY_INLINE T extreme(const T* x, int64_t n, T identity, Combine combine) {
  const hn::ScalableTag<T> d;
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(chains(x, n, identity, combine), d, lanes);
  T best = lanes[0];
  for (size_t i = 1; i < hn::Lanes(d); ++i) {
    best = hn::GetLane(combine(hn::Set(d, best), hn::Set(d, lanes[i])));
  }
  return best;
}
template <class T>
T max(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  return extreme(x, n, -hn::GetLane(hn::Inf(d)),
                 [d](auto a, auto b) HWY_ATTR { return max_of(d, a, b); });
}
template <class T>
T min(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  return extreme(x, n, hn::GetLane(hn::Inf(d)),
                 [d](auto a, auto b) HWY_ATTR { return min_of(d, a, b); });
}

HWY_INLINE hn::Vec<hn::ScalableTag<double>> load_double(const double* x, int64_t count) {
  return load_first(hn::ScalableTag<double>(), x, count, 0.0);
}
HWY_INLINE hn::Vec<hn::ScalableTag<double>> load_double(const float* x, int64_t count) {
  const hn::ScalableTag<double> d;
  return hn::PromoteTo(d, load_first(hn::Rebind<float, decltype(d)>(), x, count, 0.0f));
}

template <class T>
double sum_squares(const T* x, int64_t n) {
  const hn::ScalableTag<double> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = a;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto v = load_double(x + i, lanes), w = load_double(x + i + lanes, lanes);
    a = hn::MulAdd(v, v, a);
    b = hn::MulAdd(w, w, b);
  }
  // The rest is a block filled up with zeros: a run padded with zeros has the same sum.
  if (i < n) {
    const auto v = load_double(x + i, HWY_MIN(lanes, n - i));
    a = hn::MulAdd(v, v, a);
  }
  if (i += lanes; i < n) {
    const auto w = load_double(x + i, HWY_MIN(lanes, n - i));
    b = hn::MulAdd(w, w, b);
  }
  return sum_lanes(d, hn::Add(a, b));
}

// Adds to out[c] the sum of column c of some rows, in two chains, for one vector of columns.
template <class T>
HWY_INLINE void add_columns(const T* x, int64_t rows, int64_t n, int64_t count, T* out) {
  const hn::ScalableTag<T> d;
  auto a = load_first(d, x, count, T{0}), b = hn::Zero(d);
  int64_t r = 1;
  for (; r + 1 < rows; r += 2) {
    a = hn::Add(a, load_first(d, x + r * n, count, T{0}));
    b = hn::Add(b, load_first(d, x + (r + 1) * n, count, T{0}));
  }
  if (r < rows) a = hn::Add(a, load_first(d, x + r * n, count, T{0}));
  store_first(d, hn::Add(load_first(d, out, count, T{0}), hn::Add(a, b)), out, count);
}

// This does the same for four vectors side by side: more of each row is read at a time.
#define PIPER_FOUR(X) X(0) X(1) X(2) X(3)
template <class T>
HWY_INLINE void add_four_columns(const T* x, int64_t rows, int64_t n, T* out) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
#define PIPER_BEGIN(i) auto a##i = hn::LoadU(d, x + i * lanes), b##i = hn::Zero(d);
#define PIPER_ADD_A(i) a##i = hn::Add(a##i, hn::LoadU(d, x + r * n + i * lanes));
#define PIPER_ADD_B(i) b##i = hn::Add(b##i, hn::LoadU(d, x + (r + 1) * n + i * lanes));
#define PIPER_END(i) \
  hn::StoreU(hn::Add(hn::LoadU(d, out + i * lanes), hn::Add(a##i, b##i)), d, out + i * lanes);
  PIPER_FOUR(PIPER_BEGIN)
  int64_t r = 1;
  for (; r + 1 < rows; r += 2) {
    PIPER_FOUR(PIPER_ADD_A)
    PIPER_FOUR(PIPER_ADD_B)
  }
  if (r < rows) {
    PIPER_FOUR(PIPER_ADD_A)
  }
  PIPER_FOUR(PIPER_END)
}

// Blocks of rows are summed by themselves first: a chain over all rows would lose a bit or two.
template <class T>
void add_rows(const T* x, int64_t rows, int64_t n, T* out) {
  constexpr int64_t kBlock = 32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  for (; rows > 0; rows -= kBlock, x += kBlock * n) {
    const int64_t height = HWY_MIN(kBlock, rows);
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) add_four_columns(x + i, height, n, out + i);
    for (; i < n; i += lanes) add_columns(x + i, height, n, HWY_MIN(lanes, n - i), out + i);
  }
}

template <class T>
SumFns<T> fns() {
  return {sum<T>, max<T>, min<T>, sum_squares<T>, add_rows<T>};
}
SumFns<float> SumsF32() { return fns<float>(); }
SumFns<double> SumsF64() { return fns<double>(); }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(SumsF32);
HWY_EXPORT(SumsF64);

template <>
SumFns<float> sum_fns() {
  return HWY_DYNAMIC_DISPATCH(SumsF32)();
}
template <>
SumFns<double> sum_fns() {
  return HWY_DYNAMIC_DISPATCH(SumsF64)();
}

}  // namespace piper::cpu
#endif
