// Vectorised softmax and layer norm with their gradients, compiled once per instruction set.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_norms.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_math-inl.h"
// clang-format on
#include "rows.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_INLINE T minus_infinity() {
  return -hn::GetLane(hn::Inf(hn::ScalableTag<T>()));
}

// The greatest of a row that has no NaN; a row with one gets a sum that is NaN, whatever this is.
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
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const auto top = hn::Set(d, greatest(x, n));
    auto sum = hn::Zero(d);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto e =
          exp_of_negative(d, hn::Sub(load_first(d, x + i, count, minus_infinity<T>()), top));
      store_first(d, e, y + i, count);
      sum = hn::Add(sum, e);
    });
    const auto inverse = hn::Set(d, T{1} / sum_lanes(d, sum));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      store_first(d, hn::Mul(load_first(d, y + i, count, T{0}), inverse), y + i, count);
    });
  }
}

// log(sum(exp(x - top))) for the greatest element.
template <class T>
HWY_INLINE T log_sum_above(const T* x, int64_t n, T top) {
  const hn::ScalableTag<T> d;
  const auto shift = hn::Set(d, top);
  auto sum = hn::Zero(d);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    sum = hn::Add(
        sum, exp_of_negative(d, hn::Sub(load_first(d, x + i, count, minus_infinity<T>()), shift)));
  });
  return std::log(sum_lanes(d, sum));
}

template <class T>
T log_sum_exp(const T* x, int64_t n) {
  const T top = greatest(x, n);
  return top + log_sum_above(x, n, top);
}

template <class T>
void log_softmax(const T* x, T* y, int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    // The greatest first: beside large numbers the logarithm of the sum would be lost.
    const T greatest_one = greatest(x, n);
    const auto top = hn::Set(d, greatest_one);
    const auto rest = hn::Set(d, log_sum_above(x, n, greatest_one));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto below = hn::Sub(load_first(d, x + i, count, T{0}), top);
      store_first(d, hn::Sub(below, rest), y + i, count);
    });
  }
}

template <class T>
void scaled_softmax(const T* x, T lse, T scale, T* dx, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto shift = hn::Set(d, lse), factor = hn::Set(d, scale);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto e = exp_of_negative(d, hn::Sub(load_first(d, x + i, count, T{0}), shift));
    store_first(d, hn::Mul(e, factor), dx + i, count);
  });
}

template <class T>
void softmax_grad(const T* y, const T* dy, T* dx, int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
    auto sum = hn::Zero(d);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      sum = hn::MulAdd(load_first(d, y + i, count, T{0}), load_first(d, dy + i, count, T{0}), sum);
    });
    const auto dot = hn::Set(d, sum_lanes(d, sum));
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
    auto sum = hn::Zero(d);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      sum = hn::Add(sum, load_first(d, dy + i, count, T{0}));
    });
    const auto total = hn::Set(d, sum_lanes(d, sum));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto probability = exp_of(d, load_first(d, y + i, count, T{0}));
      const auto g = load_first(d, dy + i, count, T{0});
      store_first(d, hn::NegMulAdd(probability, total, g), dx + i, count);
    });
  }
}

// ---- Layer norm ----------------------------------------------------------------------

template <class T>
HWY_INLINE T mean_of(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    sum = hn::Add(sum, load_first(d, x + i, count, T{0}));
  });
  return sum_lanes(d, sum) / static_cast<T>(n);
}

template <class T>
HWY_INLINE T variance_of(const T* x, T mean, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto middle = hn::Set(d, mean);
  auto sum = hn::Zero(d);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto distance = hn::Sub(load_first(d, x + i, count, mean), middle);
    sum = hn::MulAdd(distance, distance, sum);
  });
  return sum_lanes(d, sum) / static_cast<T>(n);
}

template <class T>
void layer_norm(const T* x, const T* scale, const T* bias, T* y, T* mean, T* rstd, double epsilon,
                int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const T m = mean_of(x, n);
    const T s = T{1} / std::sqrt(variance_of(x, m, n) + static_cast<T>(epsilon));
    if (mean) mean[r] = m;
    if (rstd) rstd[r] = s;
    const auto vm = hn::Set(d, m), vs = hn::Set(d, s);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto normal = hn::Mul(hn::Sub(load_first(d, x + i, count, T{0}), vm), vs);
      const auto factor = load_first(d, scale + i, count, T{0});
      const auto out = bias ? hn::MulAdd(normal, factor, load_first(d, bias + i, count, T{0}))
                            : hn::Mul(normal, factor);
      store_first(d, out, y + i, count);
    });
  }
}

template <class T>
void layer_norm_grad_x(const T* dy, const T* x, const T* scale, const T* mean, const T* rstd, T* dx,
                       int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, dy += n, dx += n) {
    const auto vm = hn::Set(d, mean[r]), vs = hn::Set(d, rstd[r]);
    auto sum = hn::Zero(d), dot = hn::Zero(d);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto g =
          hn::Mul(load_first(d, dy + i, count, T{0}), load_first(d, scale + i, count, T{0}));
      const auto normal = hn::Mul(hn::Sub(load_first(d, x + i, count, T{0}), vm), vs);
      sum = hn::Add(sum, g);
      dot = hn::MulAdd(g, normal, dot);
    });
    const auto mean_g = hn::Set(d, sum_lanes(d, sum) / static_cast<T>(n));
    const auto mean_dot = hn::Set(d, sum_lanes(d, dot) / static_cast<T>(n));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto g =
          hn::Mul(load_first(d, dy + i, count, T{0}), load_first(d, scale + i, count, T{0}));
      const auto normal = hn::Mul(hn::Sub(load_first(d, x + i, count, T{0}), vm), vs);
      const auto rest = hn::NegMulAdd(normal, mean_dot, hn::Sub(g, mean_g));
      store_first(d, hn::Mul(vs, rest), dx + i, count);
    });
  }
}

// Sums over rows go by blocks: a chain over all rows would lose a bit or two.
template <class T>
void layer_norm_grad_params(const T* dy, const T* x, const T* mean, const T* rstd, T* dscale,
                            T* dbias, int64_t rows, int64_t n) {
  constexpr int64_t kBlock = 32;
  const hn::ScalableTag<T> d;
  if (dscale) std::memset(dscale, 0, static_cast<size_t>(n) * sizeof(T));
  if (dbias) std::memset(dbias, 0, static_cast<size_t>(n) * sizeof(T));
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock, x += kBlock * n, dy += kBlock * n) {
    const int64_t height = HWY_MIN(kBlock, rows - r0);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      auto scale = hn::Zero(d), bias = hn::Zero(d);
      for (int64_t r = 0; r < height; ++r) {
        const auto g = load_first(d, dy + r * n + i, count, T{0});
        const auto distance =
            hn::Sub(load_first(d, x + r * n + i, count, T{0}), hn::Set(d, mean[r0 + r]));
        scale = hn::MulAdd(g, hn::Mul(distance, hn::Set(d, rstd[r0 + r])), scale);
        bias = hn::Add(bias, g);
      }
      const auto add = [&](T* to, auto sum) HWY_ATTR {
        store_first(d, hn::Add(load_first(d, to + i, count, T{0}), sum), to + i, count);
      };
      if (dscale) add(dscale, scale);
      if (dbias) add(dbias, bias);
    });
  }
}

template <class T>
NormFns<T> fns() {
  return {softmax<T>,          log_softmax<T>,       softmax_grad<T>,
          log_softmax_grad<T>, log_sum_exp<T>,       scaled_softmax<T>,
          layer_norm<T>,       layer_norm_grad_x<T>, layer_norm_grad_params<T>};
}
NormFns<float> NormsF32() { return fns<float>(); }
NormFns<double> NormsF64() { return fns<double>(); }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(NormsF32);
HWY_EXPORT(NormsF64);

template <>
NormFns<float> norm_fns() {
  return HWY_DYNAMIC_DISPATCH(NormsF32)();
}
template <>
NormFns<double> norm_fns() {
  return HWY_DYNAMIC_DISPATCH(NormsF64)();
}

}  // namespace piper::cpu
#endif
