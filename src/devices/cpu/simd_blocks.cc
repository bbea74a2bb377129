// Vectorised pointwise ops on f32 and f64, compiled once per instruction set; the best one is
// chosen at run time.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_blocks.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_math-inl.h"
// clang-format on

#include "blocks.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Op, class T, bool kStepA, bool kStepB>
HWY_INLINE void binary_loop(const T* a, const T* b, T* out, int64_t n) {
  const hn::ScalableTag<T> d;
  // One element for all is read before anything is written, in case `out` is where it is.
  const auto a0 = hn::Set(d, *a), b0 = hn::Set(d, *b);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto va = kStepA ? load_first(d, a + i, count, T{1}) : a0;
    const auto vb = kStepB ? load_first(d, b + i, count, T{1}) : b0;
    store_first(d, Op::of(d, va, vb), out + i, count);
  });
}

template <class Op, class T>
void binary(const std::byte* const* in, const bool* step, std::byte* to, int64_t n) {
  if (n == 0) return;
  const T* a = reinterpret_cast<const T*>(in[0]);
  const T* b = reinterpret_cast<const T*>(in[1]);
  T* out = reinterpret_cast<T*>(to);
  if (step[0] && step[1]) return binary_loop<Op, T, true, true>(a, b, out, n);
  if (step[0]) return binary_loop<Op, T, true, false>(a, b, out, n);
  if (step[1]) return binary_loop<Op, T, false, true>(a, b, out, n);
  binary_loop<Op, T, false, false>(a, b, out, n);
}

template <class Op, class T>
void unary(const std::byte* const* in, const bool* step, std::byte* to, int64_t n) {
  if (n == 0) return;
  const hn::ScalableTag<T> d;
  const T* a = reinterpret_cast<const T*>(in[0]);
  T* out = reinterpret_cast<T*>(to);
  if (step[0]) {
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      store_first(d, Op::of(d, load_first(d, a + i, count, T{1})), out + i, count);
    });
  } else {
    const auto one = Op::of(d, hn::Set(d, *a));
    each_vector(d, n,
                [&](int64_t i, int64_t count) HWY_ATTR { store_first(d, one, out + i, count); });
  }
}

// Returns which of up to a vector of conditions hold.
template <class D>
HWY_INLINE hn::Mask<D> holds(D d, const uint8_t* condition, int64_t count) {
  const hn::Rebind<uint8_t, D> bytes;
  const hn::Rebind<uint32_t, D> words;
  const auto wide = hn::PromoteTo(words, load_first(bytes, condition, count, uint8_t{0}));
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::Ne(wide, hn::Zero(d));
  } else {
    return hn::Ne(hn::PromoteTo(d, wide), hn::Zero(d));
  }
}

// Chooses elements of any type, moved as integers of their size.
template <class T>
void where(const std::byte* const* in, const bool* step, std::byte* to, int64_t n) {
  if (n == 0) return;
  const hn::ScalableTag<T> d;
  const auto* c = reinterpret_cast<const uint8_t*>(in[0]);
  const T* a = reinterpret_cast<const T*>(in[1]);
  const T* b = reinterpret_cast<const T*>(in[2]);
  T* out = reinterpret_cast<T*>(to);
  const auto a0 = hn::Set(d, *a), b0 = hn::Set(d, *b);
  const auto all = hn::Ne(hn::Set(d, T{*c}), hn::Zero(d));
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto mask = step[0] ? holds(d, c + i, count) : all;
    const auto x = step[1] ? load_first(d, a + i, count, T{0}) : a0;
    const auto y = step[2] ? load_first(d, b + i, count, T{0}) : b0;
    store_first(d, hn::IfThenElse(mask, x, y), out + i, count);
  });
}

// ---- 16-bit floats, as the integers that hold them -------------------------------------

struct Bf16Lanes {
  template <class D, class D16, class V16>
  static HWY_INLINE hn::Vec<D> widen(D d, D16, V16 x) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::Rebind<uint32_t, D>(), x)));
  }
  template <class D, class D16>
  static HWY_INLINE hn::Vec<D16> narrow(D, D16 d16, hn::Vec<D> x) {  // to nearest, ties to even
    const hn::Rebind<uint32_t, D> words;
    const auto bits = hn::BitCast(words, x), high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(words, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffu)));
    const auto quiet = hn::Or(high, hn::Set(words, 0x40u));
    const auto nan = hn::RebindMask(words, hn::IsNaN(x));
    const auto result = hn::IfThenElse(nan, quiet, hn::ShiftRight<16>(rounded));
    return hn::DemoteTo(d16, hn::BitCast(hn::Rebind<int32_t, D>(), result));
  }
};
struct F16Lanes {
  template <class D, class D16, class V16>
  static HWY_INLINE hn::Vec<D> widen(D d, D16, V16 x) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), x));
  }
  template <class D, class D16>
  static HWY_INLINE hn::Vec<D16> narrow(D, D16 d16, hn::Vec<D> x) {
    return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), x));
  }
};

template <class Kind>
void widen(const std::byte* const* in, const bool* step, std::byte* to, int64_t n) {
  if (n == 0) return;
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const auto* a = reinterpret_cast<const uint16_t*>(in[0]);
  auto* out = reinterpret_cast<float*>(to);
  const auto one = Kind::widen(d, d16, hn::Set(d16, *a));
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto x = step[0] ? Kind::widen(d, d16, load_first(d16, a + i, count, uint16_t{0})) : one;
    store_first(d, x, out + i, count);
  });
}
template <class Kind>
void narrow(const std::byte* const* in, const bool* step, std::byte* to, int64_t n) {
  if (n == 0) return;
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const auto* a = reinterpret_cast<const float*>(in[0]);
  auto* out = reinterpret_cast<uint16_t*>(to);
  const auto one = Kind::narrow(d, d16, hn::Set(d, *a));
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto x = step[0] ? Kind::narrow(d, d16, load_first(d, a + i, count, 0.0f)) : one;
    store_first(d16, x, out + i, count);
  });
}

BlockFn FindCast(DType from, DType to) {
  if (from == DType::kBF16 && to == DType::kF32) return widen<Bf16Lanes>;
  if (from == DType::kF32 && to == DType::kBF16) return narrow<Bf16Lanes>;
#if HWY_TARGET <= HWY_AVX2  // below that f16 is emulated, and no faster than the plain loop
  if (from == DType::kF16 && to == DType::kF32) return widen<F16Lanes>;
  if (from == DType::kF32 && to == DType::kF16) return narrow<F16Lanes>;
#endif
  return nullptr;
}

// ---- The ops -------------------------------------------------------------------------

#define PIPER_UNARY(NAME, EXPRESSION)                   \
  struct NAME {                                         \
    template <class D, class V = hn::Vec<D>>            \
    static HWY_INLINE V of([[maybe_unused]] D d, V x) { \
      return EXPRESSION;                                \
    }                                                   \
  };
#define PIPER_BINARY(NAME, EXPRESSION)                       \
  struct NAME {                                              \
    template <class D, class V = hn::Vec<D>>                 \
    static HWY_INLINE V of([[maybe_unused]] D d, V x, V y) { \
      return EXPRESSION;                                     \
    }                                                        \
  };

PIPER_UNARY(Detach, x)
PIPER_UNARY(Neg, hn::Neg(x))
PIPER_UNARY(Abs, hn::Abs(x))
PIPER_UNARY(Exp, exp_of(d, x))
PIPER_UNARY(Log, log_of(d, x))
PIPER_UNARY(Sqrt, hn::Sqrt(x))
PIPER_UNARY(Reciprocal, hn::Div(constant(d, 1.0), x))
PIPER_UNARY(Tanh, tanh_of(d, x))
PIPER_UNARY(Sigmoid, sigmoid_of(d, x))
PIPER_UNARY(Softplus, softplus_of(d, x))
PIPER_UNARY(Erf, erf_of(d, x))
PIPER_UNARY(Relu, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x))
PIPER_UNARY(Sin, map(d, x, [](auto v) { return std::sin(v); }))
PIPER_UNARY(Cos, map(d, x, [](auto v) { return std::cos(v); }))
PIPER_UNARY(Tan, map(d, x, [](auto v) { return std::tan(v); }))
PIPER_UNARY(Asin, map(d, x, [](auto v) { return std::asin(v); }))
PIPER_UNARY(Acos, map(d, x, [](auto v) { return std::acos(v); }))
PIPER_UNARY(Atan, map(d, x, [](auto v) { return std::atan(v); }))
PIPER_UNARY(Sinh, map(d, x, [](auto v) { return std::sinh(v); }))
PIPER_UNARY(Cosh, map(d, x, [](auto v) { return std::cosh(v); }))
PIPER_UNARY(Asinh, map(d, x, [](auto v) { return std::asinh(v); }))
PIPER_UNARY(Acosh, map(d, x, [](auto v) { return std::acosh(v); }))
PIPER_UNARY(Atanh, map(d, x, [](auto v) { return std::atanh(v); }))
PIPER_UNARY(Floor, hn::Floor(x))
PIPER_UNARY(Ceil, hn::Ceil(x))
PIPER_UNARY(Round, hn::Round(x))  // ties to even
PIPER_UNARY(Sign, hn::Sub(hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), constant(d, 1.0)),
                          hn::IfThenElseZero(hn::Lt(x, hn::Zero(d)), constant(d, 1.0))))
PIPER_BINARY(Add, hn::Add(x, y))
PIPER_BINARY(Sub, hn::Sub(x, y))
PIPER_BINARY(Mul, hn::Mul(x, y))
PIPER_BINARY(Div, hn::Div(x, y))
PIPER_BINARY(Max, max_of(d, x, y))
PIPER_BINARY(Min, min_of(d, x, y))
PIPER_BINARY(Fmod, map2(d, x, y, [](auto a, auto b) { return std::fmod(a, b); }))
PIPER_BINARY(Mod, map2(d, x, y, [](auto a, auto b) {
               const auto r = std::fmod(a, b);
               return r != 0 && (r < 0) != (b < 0) ? r + b : r;
             }))

// Computes squares and cubes by multiplication, as usual: they are what models raise to.
struct Pow {
  template <class T>
  static T scalar(T a, T b) {
    if (b == 2) return a * a;
    if (b == 3) return a * a * a;
    return std::pow(a, b);
  }
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x, V y) {
    if (hn::AllTrue(d, hn::Eq(y, constant(d, 2.0)))) return hn::Mul(x, x);
    if (hn::AllTrue(d, hn::Eq(y, constant(d, 3.0)))) return hn::Mul(hn::Mul(x, x), x);
    return map2(d, x, y, [](auto a, auto b) { return scalar(a, b); });
  }
};

inline constexpr double kSqrtHalf = 0.70710678118654752440;
inline constexpr double kGeluSlope = 0.79788456080286535588;  // sqrt(2/pi)
inline constexpr double kGeluCube = 0.044715;
inline constexpr double kDensity = 0.39894228040143267794;  // 1/sqrt(2 pi)

// Computes the normal distribution: its density times sqrt(2 pi), e^(-x²/2), and what it has beyond
// |x|, which is the density times a smooth function. Within 1e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V normal_tail(D d, V x, V& e) {
  constexpr double kEnd = 6;  // 1e-9 is beyond it
  if constexpr (kIsF32<D>) {
    e = exp_scaled(d, hn::Mul(hn::Mul(x, x), constant(d, -0.5 * kExpScale<D>)));
    const V t = hn::Min(hn::Abs(x), constant(d, kEnd));
    const V p =
        polynomial(d, t, 2.2980199e-8f, -7.5917978e-7f, 1.123960e-5f, -9.9548037e-5f, 5.9709919e-4f,
                   -2.6224820e-3f, 8.9825485e-3f, -2.5377674e-2f, 6.1817169e-2f, -1.3274777e-1f,
                   2.4995762e-1f, -3.9893913e-1f, 4.9999997e-1f);
    return hn::Mul(p, e);
  } else {
    e = exp_of(d, hn::Mul(hn::Mul(x, x), constant(d, -0.5)));
    return map(d, hn::Abs(x), [](double t) { return 0.5 * std::erfc(t * kSqrtHalf); });
  }
}

// Computes x times the share of the normal distribution below x: x (0 if x is negative) less |x|
// times the share beyond |x|.
struct ExactGelu {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x, V& slope) {
    V e;
    const V tail = normal_tail(d, x, e);
    const auto negative = hn::Lt(x, hn::Zero(d));
    const V below = hn::IfThenElse(negative, tail, hn::Sub(constant(d, 1.0), tail));
    slope = hn::MulAdd(hn::Mul(x, e), constant(d, kDensity), below);
    const V positive = hn::IfThenElse(negative, hn::Zero(d), x);
    return hn::NegMulAdd(hn::Min(hn::Abs(x), constant(d, 1e30)), tail, positive);
  }
};
// ½(1 + tanh u) is the logistic function of 2u, 1 / (1 + e) with e = e^(-2u), and 1 minus that is e
// times it: nothing cancels.
struct TanhGelu {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x, V& slope) {
    constexpr double kSlope = -2 * kGeluSlope * kExpScale<D>;
    // Far from 0 the result is x or nothing, and the slope 1 or 0; squares would be infinite.
    const V far = constant(d, 64.0);
    const V near = hn::IfThenElse(hn::Gt(hn::Abs(x), far), hn::CopySign(far, x), x);
    const V one = constant(d, 1.0), square = hn::Mul(near, near);
    const V inner = hn::MulAdd(constant(d, kSlope * kGeluCube), square, constant(d, kSlope));
    const V e = exp_scaled(d, hn::Mul(near, inner));
    const V s = hn::Div(one, hn::Add(one, e));
    const V rise =
        hn::MulAdd(constant(d, 6 * kGeluSlope * kGeluCube), square, constant(d, 2 * kGeluSlope));
    slope = hn::Mul(s, hn::MulAdd(hn::Mul(near, rise), hn::Mul(e, s), one));
    return hn::Mul(hn::Max(x, near), s);
  }
};
template <class Of>
struct Gelu {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x) {
    V slope;
    return Of::of(d, x, slope);
  }
};
template <class Of>
struct GeluGrad {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x, V dy) {
    V slope;
    Of::of(d, x, slope);
    return hn::Mul(dy, slope);
  }
};
template <class Of, class T>
void gelu_and_slope(const std::byte* from, std::byte* to, std::byte* slopes, int64_t n) {
  const hn::ScalableTag<T> d;
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    hn::Vec<decltype(d)> slope;
    const auto x = load_first(d, reinterpret_cast<const T*>(from) + i, count, T{1});
    const auto y = Of::of(d, x, slope);
    store_first(d, y, reinterpret_cast<T*>(to) + i, count);
    store_first(d, slope, reinterpret_cast<T*>(slopes) + i, count);
  });
}
SlopeFn FindSlope(std::string_view option, DType type) {
  if (type == DType::kF64)
    return option == "tanh" ? gelu_and_slope<TanhGelu, double> : gelu_and_slope<ExactGelu, double>;
  return option == "tanh" ? gelu_and_slope<TanhGelu, float> : gelu_and_slope<ExactGelu, float>;
}

struct Silu {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x) {
    return hn::Div(x, hn::Add(constant(d, 1.0), exp_finite(d, hn::Neg(x))));
  }
};
struct SiluGrad {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x, V dy) {
    const V one = constant(d, 1.0), e = exp_finite(d, hn::Neg(x));
    const V s = hn::Div(one, hn::Add(one, e));  // 1 - s is e·s
    return hn::Mul(hn::Mul(dy, s), hn::MulAdd(x, hn::Mul(e, s), one));
  }
};
struct SwiGlu {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V of(D d, V x, V y) {
    return hn::Mul(Silu::of(d, x), y);
  }
};

// ---- The table -----------------------------------------------------------------------

#define PIPER_ROW1(NAME) \
  { #NAME, "", 1, unary < NAME, float>, unary < NAME, double> }
#define PIPER_ROW2(NAME) \
  { #NAME, "", 2, binary < NAME, float>, binary < NAME, double> }

std::span<const SimdBlock> List() {
  static constexpr SimdBlock kBlocks[] = {
      PIPER_ROW1(Detach),
      PIPER_ROW1(Neg),
      PIPER_ROW1(Abs),
      PIPER_ROW1(Exp),
      PIPER_ROW1(Log),
      PIPER_ROW1(Sqrt),
      PIPER_ROW1(Tanh),
      PIPER_ROW1(Reciprocal),
      PIPER_ROW1(Sigmoid),
      PIPER_ROW1(Softplus),
      PIPER_ROW1(Silu),
      PIPER_ROW2(SiluGrad),
      PIPER_ROW2(SwiGlu),
      PIPER_ROW1(Erf),
      PIPER_ROW1(Relu),
      PIPER_ROW1(Sin),
      PIPER_ROW1(Cos),
      PIPER_ROW1(Tan),
      PIPER_ROW1(Asin),
      PIPER_ROW1(Acos),
      PIPER_ROW1(Atan),
      PIPER_ROW1(Sinh),
      PIPER_ROW1(Cosh),
      PIPER_ROW1(Asinh),
      PIPER_ROW1(Acosh),
      PIPER_ROW1(Atanh),
      PIPER_ROW1(Floor),
      PIPER_ROW1(Ceil),
      PIPER_ROW1(Round),
      PIPER_ROW1(Sign),
      PIPER_ROW2(Add),
      PIPER_ROW2(Sub),
      PIPER_ROW2(Mul),
      PIPER_ROW2(Div),
      PIPER_ROW2(Max),
      PIPER_ROW2(Min),
      PIPER_ROW2(Mod),
      PIPER_ROW2(Pow),
      {"Where", "", 3, where<uint32_t>, where<uint64_t>},
      {"Mod", "fmod", 2, binary<Fmod, float>, binary<Fmod, double>},
      {"Gelu", "none", 1, unary<Gelu<ExactGelu>, float>, unary<Gelu<ExactGelu>, double>},
      {"Gelu", "tanh", 1, unary<Gelu<TanhGelu>, float>, unary<Gelu<TanhGelu>, double>},
      {"GeluGrad", "none", 2, binary<GeluGrad<ExactGelu>, float>,
       binary<GeluGrad<ExactGelu>, double>},
      {"GeluGrad", "tanh", 2, binary<GeluGrad<TanhGelu>, float>,
       binary<GeluGrad<TanhGelu>, double>},
  };
  return kBlocks;
}

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(List);
HWY_EXPORT(FindCast);
HWY_EXPORT(FindSlope);

std::span<const SimdBlock> simd_blocks() { return HWY_DYNAMIC_DISPATCH(List)(); }

SlopeFn find_gelu_and_slope(std::string_view option, DType type) {
  return HWY_DYNAMIC_DISPATCH(FindSlope)(option, type);
}

BlockFn find_simd_cast(DType from, DType to) { return HWY_DYNAMIC_DISPATCH(FindCast)(from, to); }

}  // namespace piper::cpu
#endif
