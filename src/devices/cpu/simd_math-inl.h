// Elementary functions on vectors. Included once per instruction set, see "hwy/foreach_target.h".
//
// f32: polynomials, about 1 unit in the last place, right at infinities, NaN and subnormal results.
// f64 is the type of oracles and finite differences: the C library's functions, element by element.
#include <cmath>
#include <cstring>

#if defined(PIPER_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PIPER_CPU_SIMD_MATH_INL_H_
#undef PIPER_CPU_SIMD_MATH_INL_H_
#else
#define PIPER_CPU_SIMD_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Element by element --------------------------------------------------------------

template <class D, class F>
HWY_INLINE hn::Vec<D> map(D d, hn::Vec<D> x, F f) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(lanes[i]);
  return hn::Load(d, lanes);
}
template <class D, class F>
HWY_INLINE hn::Vec<D> map2(D d, hn::Vec<D> x, hn::Vec<D> y, F f) {
  HWY_ALIGN hn::TFromD<D> a[hn::MaxLanes(d)];
  HWY_ALIGN hn::TFromD<D> b[hn::MaxLanes(d)];
  hn::Store(x, d, a);
  hn::Store(y, d, b);
  for (size_t i = 0; i < hn::Lanes(d); ++i) a[i] = f(a[i], b[i]);
  return hn::Load(d, a);
}

template <class D>
inline constexpr bool kIsF32 = std::is_same_v<hn::TFromD<D>, float>;

template <class D>
HWY_INLINE hn::Vec<D> constant(D d, double x) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(x));
}

// ---- Parts of vectors ----------------------------------------------------------------

// Returns the first `count` elements at p, at least one and at most a whole vector; the lanes
// after them are `rest`.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_first(D d, const T* p, int64_t count, T rest) {
  if (count == static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, p);
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, rest), d, lanes);
  std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(T));
  return hn::Load(d, lanes);
}
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_first(D d, hn::Vec<D> v, T* p, int64_t count) {
  if (count == static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(v, d, p);
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  std::memcpy(p, lanes, static_cast<size_t>(count) * sizeof(T));
}

// Calls f(i, count) for each vector of n elements: `count` lanes from element i on.
template <class D, class F>
HWY_INLINE void each_vector(D d, int64_t n, F f) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}

template <class D>
HWY_INLINE hn::TFromD<D> sum_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

// ---- f32 -----------------------------------------------------------------------------

// Evaluates a polynomial; coefficients from the highest power down.
template <class D, class V = hn::Vec<D>, class... Lower>
HWY_INLINE V polynomial(D d, V x, float highest, Lower... lower) {
  V sum = hn::Set(d, highest);
  ((sum = hn::MulAdd(sum, x, hn::Set(d, lower))), ...);
  return sum;
}

// Returns e^r for |r| <= ln(2)/2, given n with r = x - n ln(2).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_fraction(D d, V x, V n) {
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  const V p = polynomial(d, r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                         4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  return hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
}

// Returns the whole of exp: subnormal results, infinity, NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_f32(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Beyond these the result is 0 or infinity anyway.
  const V c = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const V n = hn::Round(hn::Mul(c, hn::Set(d, 1.44269504088896341f)));
  const V y = exp_fraction(d, c, n);
  // In two factors, so that 2^n may be subnormal or beyond the largest power.
  const auto k = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(k);
  auto power = [&](auto e) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(e, hn::Set(di, 127))));
  };
  const V scaled = hn::Mul(hn::Mul(y, power(half)), power(hn::Sub(k, half)));
  return hn::IfThenElse(hn::Eq(x, x), scaled, x);
}

// Returns exp for x in [-87, 88] or NaN; smaller x give 0, greater ones anything.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_normal_f32(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 × 2^23 + 127 leaves round(x / ln 2) + 127, the biased exponent, in the lowest bits.
  const V magic = hn::Set(d, 12583039.0f);
  const V t = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, t)));
  const V y = hn::Mul(exp_fraction(d, x, hn::Sub(t, magic)), power);
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Zero(d), y);
}

// 2^f for |f| <= 1/2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_fraction(D d, V f) {
  return polynomial(d, f, 1.3264727e-3f, 9.671513e-3f, 5.5507336e-2f, 2.4022242e-1f, 6.93147e-1f,
                    1.0f);
}

// Returns 2^y for |y| <= 125, and as at these bounds beyond them; a NaN gives anything. Within
// 2^-23 of it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_bounded_f32(D d, V y) {
  const hn::RebindToSigned<D> di;
  const V c = hn::Min(hn::Max(y, hn::Set(d, -125.0f)), hn::Set(d, 125.0f));
  // Adding 1.5 × 2^23 leaves round(c) in the lowest bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V t = hn::Add(c, magic);
  const V p = exp2_fraction(d, hn::Sub(c, hn::Sub(t, magic)));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, t))));
}

// Says how fast e^x rises: exponents of two are x · by, and none of an x below `lowest` counts.
template <class T>
struct ExpRate {
  T by, lowest;
};

// Returns 2^(x·by) where that is <= 2 or x is NaN; 0 for x below rate.lowest. Within 2^-23 of it.
// The product is not rounded.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_negative_f32(D d, V x, const ExpRate<float>& rate) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, rate.lowest), by = hn::Set(d, rate.by);
#if HWY_TARGET <= HWY_AVX2
  const V c = hn::Max(lowest, x);  // of a number and a NaN, the second
#else
  const V c = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
#endif
  // Adding 1.5 × 2^23 + 127 leaves round(c·by) + 127, the biased exponent, in the lowest bits.
  const V magic = hn::Set(d, 12583039.0f);
  const V t = hn::MulAdd(c, by, magic);
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, t)));
  return hn::Mul(exp2_fraction(d, hn::MulSub(c, by, hn::Sub(t, magic))), power);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_f32(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V tiny = hn::Set(d, 1.17549435e-38f);
  const auto subnormal = hn::Lt(x, tiny);
  const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, 8388608.0f)), x);
  const auto bits = hn::BitCast(di, scaled);
  // The fraction m in [sqrt(1/2), sqrt(2)), and x = m × 2^e.
  const auto shifted = hn::Sub(bits, hn::Set(di, 0x3f3504f3));
  const auto exponent = hn::ShiftRight<23>(shifted);
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const V e = hn::Sub(hn::ConvertTo(d, exponent), hn::IfThenElseZero(subnormal, hn::Set(d, 23.0f)));
  const V f = hn::Sub(m, hn::Set(d, 1.0f));
  const V z = hn::Mul(f, f);
  V y = polynomial(d, f, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                   1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                   3.3333331174e-1f);
  y = hn::Mul(hn::Mul(y, f), z);
  y = hn::MulAdd(e, hn::Set(d, -2.12194440e-4f), y);
  y = hn::NegMulAdd(hn::Set(d, 0.5f), z, y);
  y = hn::MulAdd(e, hn::Set(d, 0.693359375f), hn::Add(f, y));
  const V zero = hn::Zero(d);
  const V infinity = hn::Inf(d);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
  return hn::IfThenElse(hn::Ge(x, zero), y, hn::NaN(d));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V size = hn::Abs(x);
  const V z = hn::Mul(x, x);
  const V p = polynomial(d, z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                         1.33314422036e-1f, -3.33332819422e-1f);
  const V small = hn::MulAdd(hn::Mul(p, z), x, x);
  const V capped = hn::Min(size, hn::Set(d, 16.0f));  // tanh is 1 there
  const V e = exp_normal_f32(d, hn::Add(capped, capped));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Ge(size, hn::Set(d, 0.625f)), hn::CopySign(large, x), small);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf_f32(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  // erf(4) is 1 in f32; a NaN passes through the near branch's polynomial in x.
  const V t = hn::Min(hn::Abs(x), hn::Set(d, 4.0f));
  const V s = hn::Mul(x, x);
  const V near = polynomial(d, s, -5.96761703e-4f, 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f,
                            -3.76125336e-1f, 1.28379166e-1f);
  const V far = polynomial(d, t, -1.72853470e-5f, 3.83197126e-4f, -3.88396438e-3f, 2.42546219e-2f,
                           -1.06777877e-1f, -6.34846687e-1f, -1.28717512e-1f);
  const V tail = hn::Sub(one, exp_normal_f32(d, hn::MulAdd(far, t, hn::Neg(t))));
  return hn::IfThenElse(hn::Gt(hn::Abs(x), hn::Set(d, 0.927734375f)), hn::CopySign(tail, x),
                        hn::MulAdd(near, x, x));
}

// ---- Either type ---------------------------------------------------------------------

template <class D>
HWY_INLINE hn::Vec<D> exp_of(D d, hn::Vec<D> x) {
  if constexpr (kIsF32<D>)
    return exp_f32(d, x);
  else
    return map(d, x, [](double v) { return std::exp(v); });
}
template <class D>
HWY_INLINE hn::Vec<D> log_of(D d, hn::Vec<D> x) {
  if constexpr (kIsF32<D>)
    return log_f32(d, x);
  else
    return map(d, x, [](double v) { return std::log(v); });
}
template <class D>
HWY_INLINE hn::Vec<D> tanh_of(D d, hn::Vec<D> x) {
  if constexpr (kIsF32<D>)
    return tanh_f32(d, x);
  else
    return map(d, x, [](double v) { return std::tanh(v); });
}
template <class D>
HWY_INLINE hn::Vec<D> erf_of(D d, hn::Vec<D> x) {
  if constexpr (kIsF32<D>)
    return erf_f32(d, x);
  else
    return map(d, x, [](double v) { return std::erf(v); });
}
template <class D>
HWY_INLINE hn::Vec<D> sigmoid_of(D d, hn::Vec<D> x) {
  const auto one = constant(d, 1.0);
  const auto e = exp_of(d, hn::Neg(hn::Abs(x)));  // never overflows
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}
// log(1 + e^x) = max(x, 0) + log(1 + e) with e = e^(-|x|). Where 1 + e is rounded to u, log(1 + e)
// is log(u)·e/(u - 1), and e where u is 1 (Goldberg, What Every Computer Scientist Should Know
// About Floating-Point Arithmetic, 1991).
template <class D>
HWY_INLINE hn::Vec<D> softplus_of(D d, hn::Vec<D> x) {
  const auto one = constant(d, 1.0);
  const auto e = exp_of(d, hn::Neg(hn::Abs(x)));
  const auto u = hn::Add(one, e), rest = hn::Sub(u, one);
  const auto bent = hn::Div(hn::Mul(log_of(d, u), e), rest);
  const auto positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
  return hn::Add(positive, hn::IfThenElse(hn::Eq(rest, hn::Zero(d)), e, bent));
}
// Returns e^x, given y = x × kExpScale: finite, for logistic functions. The scale is a factor that
// the caller merges with others; its rounding costs a relative error of |x| half units in the last
// place.
template <class D>
inline constexpr double kExpScale = kIsF32<D> ? 1.44269504088896340736 : 1.0;
template <class D>
HWY_INLINE hn::Vec<D> exp_scaled(D d, hn::Vec<D> y) {
  if constexpr (kIsF32<D>) {
    return exp2_bounded_f32(d, y);
  } else {
    return exp_of(d, hn::Min(y, constant(d, 700.0)));
  }
}
// Returns the rate of e^(x · factor), factor > 0, for the next.
template <class T>
constexpr ExpRate<T> exp_rate(double factor = 1) {
  const double by = factor * kExpScale<hn::ScalableTag<T>>;
  return {static_cast<T>(by), static_cast<T>(-127 / by)};
}
// Returns e^(x · factor) for x <= 0, where results below 1e-37 may be 0.
template <class D>
HWY_INLINE hn::Vec<D> exp_negative(D d, hn::Vec<D> x, const ExpRate<hn::TFromD<D>>& rate) {
  if constexpr (kIsF32<D>) {
    return exp2_negative_f32(d, x, rate);
  } else {
    return exp_of(d, hn::Mul(x, hn::Set(d, rate.by)));
  }
}
// Returns e^x, finite: 0 for large negative x.
template <class D>
HWY_INLINE hn::Vec<D> exp_finite(D d, hn::Vec<D> x) {
  if constexpr (kIsF32<D>) {
    return exp_normal_f32(d, hn::Min(x, constant(d, 87.0)));
  } else {
    return exp_of(d, hn::Min(x, constant(d, 700.0)));
  }
}
// A NaN on either side wins.
template <class D>
HWY_INLINE hn::Vec<D> max_of(D, hn::Vec<D> a, hn::Vec<D> b) {
  return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
}
template <class D>
HWY_INLINE hn::Vec<D> min_of(D, hn::Vec<D> a, hn::Vec<D> b) {
  return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
}

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
