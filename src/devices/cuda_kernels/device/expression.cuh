// Pointwise ops on what is computed in: double, float, int64_t, int32_t, bool. Each rounds as often
// as its formula says; the caller rounds the result to its type.

// These loop over what a thread has, whose elements then are registers; and over much, of which
// some is on its way at once.
#ifdef PIPER_HOST
#define EACH(i, count) for (int i = 0; i < (count); ++i)
#define EACH_OF_MANY(i, count) EACH(i, count)
#else
#define EACH(i, count) _Pragma("unroll 64") for (int i = 0; i < (count); ++i)
#define EACH_OF_MANY(i, count) _Pragma("unroll 4") for (int i = 0; i < (count); ++i)
#endif

// Stores a run at once. Of 16-bit elements the words are made here: a compiler that is given the
// elements stores them in several pieces. `to` is counted in runs, for the same reason.
template <class T, int kLanes>
DEVICE void store_run(Pack<T, kLanes>* to, const Pack<T, kLanes>& run) {
  if constexpr (sizeof(T) == 2 && kLanes % 2 == 0) {
    Pack<uint32_t, kLanes / 2> words;
    EACH(w, kLanes / 2) {
      words.x[w] = static_cast<uint32_t>(run.x[2 * w].bits) |
                   static_cast<uint32_t>(run.x[2 * w + 1].bits) << 16;
    }
    *reinterpret_cast<Pack<uint32_t, kLanes / 2>*>(to) = words;
  } else {
    *to = run;
  }
}

namespace word {

// ---- Arithmetic: integers wrap around, and what is divided by zero is 0 --------------------------
template <class T>
struct Wrapping {
  typedef T type;
};
template <>
struct Wrapping<int32_t> {
  typedef uint32_t type;
};
template <>
struct Wrapping<int64_t> {
  typedef uint64_t type;
};
template <class T>
using wrapping = typename Wrapping<T>::type;

template <class T>
DEVICE T add(T a, T b) {
  return static_cast<T>(static_cast<wrapping<T>>(a) + static_cast<wrapping<T>>(b));
}
template <class T>
DEVICE T sub(T a, T b) {
  return static_cast<T>(static_cast<wrapping<T>>(a) - static_cast<wrapping<T>>(b));
}
template <class T>
DEVICE T mul(T a, T b) {
  return static_cast<T>(static_cast<wrapping<T>>(a) * static_cast<wrapping<T>>(b));
}
DEVICE float neg(float a) { return -a; }
DEVICE double neg(double a) { return -a; }
template <class T>
DEVICE T neg(T a) {
  return sub(T(0), a);
}

// The least integer by -1 is itself.
template <class T>
DEVICE T div(T a, T b) {
  return b == 0 ? T(0) : b == -1 ? neg(a) : static_cast<T>(a / b);
}
DEVICE float div(float a, float b) { return a / b; }
DEVICE double div(double a, double b) { return a / b; }

// It has the sign of the dividend.
template <class T>
DEVICE T rem(T a, T b) {
  return b == 0 || b == -1 ? T(0) : static_cast<T>(a % b);
}
DEVICE float rem(float a, float b) { return fmodf(a, b); }
DEVICE double rem(double a, double b) { return fmod(a, b); }
// It has the sign of the divisor.
template <class T>
DEVICE T mod(T a, T b) {
  const T r = rem(a, b);
  return r != 0 && (r < 0) != (b < 0) ? add(r, b) : r;
}

template <class T>
DEVICE T pow(T a, T b) {
  if (b < 0) return a == 1 ? T(1) : a == -1 ? T(b % 2 == 0 ? 1 : -1) : T(0);
  T result = 1;
  for (; b > 0; b >>= 1) {
    if (b & 1) result = mul(result, a);
    a = mul(a, a);
  }
  return result;
}
// Squares and cubes are products.
DEVICE float pow(float a, float b) {
  return b == 2.0f ? a * a : b == 3.0f ? a * a * a : powf(a, b);
}
DEVICE double pow(double a, double b) {
  return b == 2.0 ? a * a : b == 3.0 ? a * a * a : ::pow(a, b);
}

// Returns the greater one, and NaN where one of them is NaN.
template <class T>
DEVICE T max(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
DEVICE T min(T a, T b) {
  return a < b || a != a ? a : b;
}

template <class T>
DEVICE T abs(T a) {
  return a < 0 ? neg(a) : a;
}
DEVICE float abs(float a) { return fabsf(a); }
DEVICE double abs(double a) { return fabs(a); }
template <class T>
DEVICE T sign(T a) {
  return static_cast<T>((a > 0) - (a < 0));
}
template <class T>
DEVICE T relu(T a) {
  return a < 0 ? T(0) : a;
}
template <class T>
DEVICE T detach(T a) {
  return a;
}

// ---- Comparisons, logic, choices ----------------------------------------------------------------
template <class T>
DEVICE bool equal(T a, T b) {
  return a == b;
}
template <class T>
DEVICE bool less(T a, T b) {
  return a < b;
}
template <class T>
DEVICE bool less_or_equal(T a, T b) {
  return a <= b;
}
template <class T>
DEVICE bool greater(T a, T b) {
  return a > b;
}
template <class T>
DEVICE bool greater_or_equal(T a, T b) {
  return a >= b;
}
template <class T>
DEVICE bool is_nan(T a) {
  return a != a;
}
template <class T>
DEVICE T bitwise_and(T a, T b) {
  return a & b;
}
template <class T>
DEVICE T bitwise_or(T a, T b) {
  return a | b;
}
template <class T>
DEVICE T bitwise_xor(T a, T b) {
  return a ^ b;
}
DEVICE bool both(bool a, bool b) { return a && b; }
DEVICE bool either(bool a, bool b) { return a || b; }
DEVICE bool one_of(bool a, bool b) { return a != b; }
DEVICE bool negated(bool a) { return !a; }
template <class T>
DEVICE T where(bool c, T a, T b) {
  return c ? a : b;
}

// Converts to another type. Floats become integers towards zero, the largest or least of these
// where they are beyond, NaN 0; what is not zero is true.
template <class To>
struct To_ {
  template <class From>
  DEVICE static To of(From x) {
    return static_cast<To>(static_cast<computed<To>>(x));
  }
};
template <>
struct To_<bool> {
  template <class From>
  DEVICE static bool of(From x) {
    return x != From(0);
  }
};
template <class To, class From>
DEVICE To whole_of(From x, To least, To greatest) {
  if (x != x) return 0;
  if (x >= static_cast<From>(greatest)) return greatest;
  return x <= static_cast<From>(least) ? least : static_cast<To>(x);
}
constexpr int64_t kGreatestI64 = 0x7fffffffffffffffLL;
constexpr int32_t kGreatestI32 = 0x7fffffff;
template <>
struct To_<int64_t> {
  template <class From>
  DEVICE static int64_t of(From x) {
    return static_cast<int64_t>(x);
  }
  DEVICE static int64_t of(float x) { return whole_of(x, -kGreatestI64 - 1, kGreatestI64); }
  DEVICE static int64_t of(double x) { return whole_of(x, -kGreatestI64 - 1, kGreatestI64); }
};
template <>
struct To_<int32_t> {
  template <class From>
  DEVICE static int32_t of(From x) {
    return static_cast<int32_t>(x);
  }
  DEVICE static int32_t of(float x) { return whole_of(x, -kGreatestI32 - 1, kGreatestI32); }
  DEVICE static int32_t of(double x) { return whole_of(x, -kGreatestI32 - 1, kGreatestI32); }
};
template <class To, class From>
DEVICE To cast(From x) {
  return To_<To>::of(x);
}

// ---- Functions of floats ------------------------------------------------------------------------
#define WORD_OF_FLOATS(name, function)                  \
  DEVICE float name(float x) { return function##f(x); } \
  DEVICE double name(double x) { return ::function(x); }
WORD_OF_FLOATS(exp, exp)
WORD_OF_FLOATS(log, log)
WORD_OF_FLOATS(sqrt, sqrt)
WORD_OF_FLOATS(tanh, tanh)
WORD_OF_FLOATS(erf, erf)
WORD_OF_FLOATS(erfc, erfc)
WORD_OF_FLOATS(log1p, log1p)
WORD_OF_FLOATS(sin, sin)
WORD_OF_FLOATS(cos, cos)
WORD_OF_FLOATS(tan, tan)
WORD_OF_FLOATS(asin, asin)
WORD_OF_FLOATS(acos, acos)
WORD_OF_FLOATS(atan, atan)
WORD_OF_FLOATS(sinh, sinh)
WORD_OF_FLOATS(cosh, cosh)
WORD_OF_FLOATS(asinh, asinh)
WORD_OF_FLOATS(acosh, acosh)
WORD_OF_FLOATS(atanh, atanh)
WORD_OF_FLOATS(floor, floor)
WORD_OF_FLOATS(ceil, ceil)
WORD_OF_FLOATS(round, rint)  // ties to even
#undef WORD_OF_FLOATS

// Returns e^x for x <= 0, with an error of a few units in the last place near 0 that grows with -x.
// It is for sums, where such terms count little.
#ifdef PIPER_HOST
DEVICE float near_exp(float x) { return expf(x); }
#else
DEVICE float near_exp(float x) {
  constexpr float kLog2OfE = 1.44269504088896341f;
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2OfE));
  return y;
}
#endif
DEVICE double near_exp(double x) { return ::exp(x); }

DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

template <class T>
DEVICE T reciprocal(T x) {
  return T(1) / x;
}
// Is exact within a unit in the last place, and 0 for large numbers: for functions whose
// exponential is no better. A division would be several times as many instructions.
#ifdef PIPER_HOST
DEVICE float near_reciprocal(float x) { return 1.0f / x; }
#else
DEVICE float near_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
DEVICE double near_reciprocal(double x) { return 1.0 / x; }

template <class T>
DEVICE T sigmoid(T x) {
  return near_reciprocal(T(1) + exp(-x));
}
template <class T>
DEVICE T softplus(T x) {  // log(1 + e^x), whose exponential never overflows
  const T rest = log1p(exp(-abs(x)));
  return x < 0 ? rest : x + rest;
}

// x · sigmoid(x); 1 - sigmoid is e times it, with e = e^(-x) no greater than what stays finite.
DEVICE float exp_of_minus(float x) { return exp(x < -87.0f ? 87.0f : -x); }
DEVICE double exp_of_minus(double x) { return exp(x < -700.0 ? 700.0 : -x); }
template <class T>
DEVICE T silu(T x) {
  return x * near_reciprocal(T(1) + exp_of_minus(x));
}
template <class T>
DEVICE T silu_grad(T x, T dy) {
  const T e = exp_of_minus(x), s = near_reciprocal(T(1) + e);
  return dy * s * multiply_add(x, e * s, T(1));
}
template <class T>
DEVICE T swiglu(T x, T y) {
  return silu(x) * y;
}

// x times the share of the normal distribution below x; the slope adds x times its density.
template <class T>
DEVICE T normal_tail(T x) {
  return T(0.5) * erfc(abs(x) * T(0.70710678118654752440));
}
template <class T>
DEVICE T gelu(T x) {
  const T size = abs(x);
  return (x < 0 ? T(0) : x) - (size > T(1e30) ? T(1e30) : size) * normal_tail(x);
}
template <class T>
DEVICE T gelu_slope(T x) {
  const T tail = normal_tail(x);
  return (x < 0 ? tail : T(1) - tail) + x * exp(T(-0.5) * x * x) * T(0.39894228040143267794);
}
// ½(1 + tanh u) is the logistic function of 2u, 1 / (1 + e) with e = e^(-2u), and 1 minus that is e
// times it. Beyond ±10 the curve is its asymptote.
constexpr double kTwiceRoot = 1.59576912160573071, kCube = 0.044715;  // 2 · sqrt(2/pi)
template <class T>
DEVICE T near(T x) {
  return x < T(-10) ? T(-10) : x > T(10) ? T(10) : x;
}
template <class T>
DEVICE T exp_of_minus_2u(T x) {
  return exp(x * multiply_add(T(-kTwiceRoot * kCube), x * x, T(-kTwiceRoot)));
}
template <class T>
DEVICE T gelu_tanh(T x) {
  return (x < T(-1e30) ? T(-1e30) : x) * near_reciprocal(T(1) + exp_of_minus_2u(near(x)));
}
template <class T>
DEVICE T gelu_tanh_slope(T x) {
  const T z = near(x), e = exp_of_minus_2u(z), s = near_reciprocal(T(1) + e);
  const T rise = z * multiply_add(T(3 * kTwiceRoot * kCube), z * z, T(kTwiceRoot));
  return s * multiply_add(rise, e * s, T(1));
}
template <class T>
DEVICE T gelu_grad(T x, T dy) {
  return dy * gelu_slope(x);
}
template <class T>
DEVICE T gelu_tanh_grad(T x, T dy) {
  return dy * gelu_tanh_slope(x);
}

}  // namespace word
