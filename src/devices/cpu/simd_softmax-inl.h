// Vectorised softmax of rows, its logarithm, and the gradients of both. Included once per
// instruction set, see "hwy/foreach_target.h".
#if defined(PIPER_CPU_SIMD_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PIPER_CPU_SIMD_SOFTMAX_INL_H_
#undef PIPER_CPU_SIMD_SOFTMAX_INL_H_
#else
#define PIPER_CPU_SIMD_SOFTMAX_INL_H_
#endif

#include <cmath>

#include "hwy/highway.h"
#include "simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_INLINE T minus_infinity() {
  return -hn::GetLane(hn::Inf(hn::ScalableTag<T>()));
}

// Sums terms: term(i, count) gives those of elements i to i + count of n, 0 in the lanes after
// them. Two interleaved chains of vectors over at most 1024 elements, whose sums are added in
// double.
template <class D, class Term>
HWY_INLINE double total(D d, int64_t n, Term term) {
  constexpr int64_t kBlock = 1024;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = HWY_MIN(n, begin + kBlock);
    auto a = hn::Zero(d), b = a;
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      a = hn::Add(a, term(i, lanes));
      b = hn::Add(b, term(i + lanes, lanes));
    }
    for (; i < end; i += lanes) a = hn::Add(a, term(i, HWY_MIN(lanes, end - i)));
    sum += static_cast<double>(sum_lanes(d, hn::Add(a, b)));
  }
  return sum;
}

// Returns the largest of a row that has no NaN; a row with one gets a sum that is NaN, whatever
// this is.
template <class T>
HWY_INLINE T greatest(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  auto best = hn::Set(d, minus_infinity<T>());
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    best = hn::Max(best, load_first(d, x + i, count, minus_infinity<T>()));
  });
  return hn::GetLane(hn::MaxOfLanes(d, best));
}

template <class T>
void softmax(const T* x, T* y, int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  constexpr auto kRate = exp_rate<T>();
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const auto top = hn::Set(d, greatest(x, n));
    const double sum = total(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto below = hn::Sub(load_first(d, x + i, count, minus_infinity<T>()), top);
      const auto e = exp_negative(d, below, kRate);
      store_first(d, e, y + i, count);
      return e;
    });
    const auto inverse = hn::Set(d, static_cast<T>(1 / sum));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      store_first(d, hn::Mul(load_first(d, y + i, count, T{0}), inverse), y + i, count);
    });
  }
}

template <class T>
double sum_above(const T* x, int64_t n, T& top) {
  const hn::ScalableTag<T> d;
  top = greatest(x, n);
  constexpr auto kRate = exp_rate<T>();
  const auto shift = hn::Set(d, top);
  return total(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto below = hn::Sub(load_first(d, x + i, count, minus_infinity<T>()), shift);
    return exp_negative(d, below, kRate);
  });
}

template <class T>
void log_softmax(const T* x, T* y, int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    // The largest first: beside large numbers the logarithm of the sum would be lost.
    T first;
    const auto rest = hn::Set(d, static_cast<T>(std::log(sum_above(x, n, first))));
    const auto top = hn::Set(d, first);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto below = hn::Sub(load_first(d, x + i, count, T{0}), top);
      store_first(d, hn::Sub(below, rest), y + i, count);
    });
  }
}

template <class T>
void exp_above(const T* x, T scale, T* dx, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto shift = hn::Set(d, greatest(x, n)), factor = hn::Set(d, scale);
  constexpr auto kRate = exp_rate<T>();
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto below = hn::Sub(load_first(d, x + i, count, T{0}), shift);
    store_first(d, hn::Mul(exp_negative(d, below, kRate), factor), dx + i, count);
  });
}

template <class T>
void softmax_grad(const T* y, const T* dy, T* dx, int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
    const auto dot = hn::Set(d, static_cast<T>(total(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
                               return hn::Mul(load_first(d, y + i, count, T{0}),
                                              load_first(d, dy + i, count, T{0}));
                             })));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto g = hn::Sub(load_first(d, dy + i, count, T{0}), dot);
      store_first(d, hn::Mul(load_first(d, y + i, count, T{0}), g), dx + i, count);
    });
  }
}

template <class T>
void log_softmax_grad(const T* y, const T* dy, T* dx, int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
    const auto sum = hn::Set(d, static_cast<T>(total(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
                               return load_first(d, dy + i, count, T{0});
                             })));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto probability = exp_of(d, load_first(d, y + i, count, T{0}));
      const auto g = load_first(d, dy + i, count, T{0});
      store_first(d, hn::NegMulAdd(probability, sum, g), dx + i, count);
    });
  }
}

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
