// Vectorised norms and rotations, and softmax (simd_softmax-inl.h), with their gradients, compiled
// once per instruction set.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_norms.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_math-inl.h"
#include "simd_softmax-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "rows.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Layer norm ----------------------------------------------------------------------

template <class T>
HWY_INLINE T mean_of(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  const double sum = total(
      d, n, [&](int64_t i, int64_t count) HWY_ATTR { return load_first(d, x + i, count, T{0}); });
  return static_cast<T>(sum / static_cast<double>(n));
}

// Returns the mean square of the distances from `middle`.
template <class T>
HWY_INLINE double spread_of(const T* x, T middle, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, middle);
  const double sum = total(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto distance = hn::Sub(load_first(d, x + i, count, middle), m);
    return hn::Mul(distance, distance);
  });
  return sum / static_cast<double>(n);
}

// Rows of n elements whose sums are made together, before what is made of them: the sums of one row
// do not wait for those of another, and the rows stay in the nearest cache.
constexpr int64_t kRowsAtOnce = 8;
inline int64_t rows_at_once(int64_t n) {
  return std::clamp<int64_t>(1024 / HWY_MAX(n, int64_t{1}), 1, kRowsAtOnce);
}

// Fetches a row that is about to be read, or written: the rows at once are too few for the
// processor to guess the next ones.
template <bool kWrites, class T>
HWY_INLINE void fetch(const T* row, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(row + i, kWrites);
}

template <class T>
void layer_norm(const T* x, const T* scale, const T* bias, T* y, T* mean, T* rstd, double epsilon,
                int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  T m[kRowsAtOnce], s[kRowsAtOnce];
  for (int64_t begin = 0, step = rows_at_once(n); begin < rows; begin += step) {
    const int64_t count = HWY_MIN(step, rows - begin);
    for (int64_t r = 0; r < count; ++r) m[r] = mean_of(x + r * n, n);
    for (int64_t r = 0; r < count; ++r) {
      fetch<true>(y + r * n, n);
      s[r] = static_cast<T>(1 / std::sqrt(spread_of(x + r * n, m[r], n) + epsilon));
    }
    if (mean) std::copy_n(m, count, mean + begin);
    if (rstd) std::copy_n(s, count, rstd + begin);
    for (int64_t r = 0; r < count; ++r, x += n, y += n) {
      fetch<false>(x + step * n, n);
      const auto vm = hn::Set(d, m[r]), vs = hn::Set(d, s[r]);
      each_vector(d, n, [&](int64_t i, int64_t lanes) HWY_ATTR {
        const auto normal = hn::Mul(hn::Sub(load_first(d, x + i, lanes, T{0}), vm), vs);
        const auto factor = load_first(d, scale + i, lanes, T{0});
        const auto out = bias ? hn::MulAdd(normal, factor, load_first(d, bias + i, lanes, T{0}))
                              : hn::Mul(normal, factor);
        store_first(d, out, y + i, lanes);
      });
    }
  }
}

template <class T, class D>
HWY_INLINE hn::Vec<D> finished(D d, hn::Vec<D> v, const RowsThen<T>& then, int64_t i,
                               int64_t count) {
  if (!then.with) return v;
  const auto with = load_first(d, then.with + i, count, T{0});
  return then.multiply ? hn::Mul(v, with) : hn::Add(v, with);
}

template <class T>
void layer_norm_grad_x(const T* dy, const T* x, const T* scale, const T* mean, const T* rstd, T* dx,
                       int64_t rows, int64_t n, const RowsThen<T>& then) {
  const hn::ScalableTag<T> d;
  T mean_g[kRowsAtOnce], mean_dot[kRowsAtOnce];
  for (int64_t begin = 0, step = rows_at_once(n); begin < rows; begin += step) {
    const int64_t count = HWY_MIN(step, rows - begin);
    const auto part = [&](const T* g, int64_t i, int64_t lanes) HWY_ATTR {
      return hn::Mul(load_first(d, g + i, lanes, T{0}), load_first(d, scale + i, lanes, T{0}));
    };
    for (int64_t r = 0; r < count; ++r) {
      const T* g = dy + r * n;
      const double sum =
          total(d, n, [&](int64_t i, int64_t lanes) HWY_ATTR { return part(g, i, lanes); });
      mean_g[r] = static_cast<T>(sum / static_cast<double>(n));
    }
    for (int64_t r = 0; r < count; ++r) {
      const T *g = dy + r * n, *from = x + r * n;
      const auto vm = hn::Set(d, mean[begin + r]), vs = hn::Set(d, rstd[begin + r]);
      const double dot = total(d, n, [&](int64_t i, int64_t lanes) HWY_ATTR {
        const auto normal = hn::Mul(hn::Sub(load_first(d, from + i, lanes, T{0}), vm), vs);
        return hn::Mul(part(g, i, lanes), normal);
      });
      mean_dot[r] = static_cast<T>(dot / static_cast<double>(n));
    }
    for (int64_t r = 0; r < count; ++r, x += n, dy += n, dx += n) {
      const auto vm = hn::Set(d, mean[begin + r]), vs = hn::Set(d, rstd[begin + r]);
      const auto vg = hn::Set(d, mean_g[r]), vd = hn::Set(d, mean_dot[r]);
      each_vector(d, n, [&](int64_t i, int64_t lanes) HWY_ATTR {
        const auto normal = hn::Mul(hn::Sub(load_first(d, x + i, lanes, T{0}), vm), vs);
        const auto rest = hn::NegMulAdd(normal, vd, hn::Sub(part(dy, i, lanes), vg));
        const auto out = finished(d, hn::Mul(vs, rest), then, (begin + r) * n + i, lanes);
        store_first(d, out, dx + i, lanes);
      });
    }
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
        auto distance = load_first(d, x + r * n + i, count, T{0});
        if (mean) distance = hn::Sub(distance, hn::Set(d, mean[r0 + r]));
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

// ---- RMS norm ------------------------------------------------------------------------

template <class T>
void rms_norm(const T* x, const T* scale, T* y, T* rstd, double epsilon, int64_t rows, int64_t n) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const T s = static_cast<T>(1 / std::sqrt(spread_of(x, T{0}, n) + epsilon));
    if (rstd) rstd[r] = s;
    const auto vs = hn::Set(d, s);
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto normal = hn::Mul(load_first(d, x + i, count, T{0}), vs);
      store_first(d, hn::Mul(normal, load_first(d, scale + i, count, T{0})), y + i, count);
    });
  }
}

template <class T>
void rms_norm_grad_x(const T* dy, const T* x, const T* scale, const T* rstd, T* dx, int64_t rows,
                     int64_t n, const RowsThen<T>& then) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, dy += n, dx += n) {
    const auto vs = hn::Set(d, rstd[r]);
    const auto part = [&](int64_t i, int64_t count) HWY_ATTR {
      return hn::Mul(load_first(d, dy + i, count, T{0}), load_first(d, scale + i, count, T{0}));
    };
    const double dot = total(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      return hn::Mul(part(i, count), hn::Mul(load_first(d, x + i, count, T{0}), vs));
    });
    const auto mean = hn::Set(d, static_cast<T>(dot / static_cast<double>(n)));
    each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto normal = hn::Mul(load_first(d, x + i, count, T{0}), vs);
      const auto rest = hn::NegMulAdd(normal, mean, part(i, count));
      store_first(d, finished(d, hn::Mul(vs, rest), then, r * n + i, count), dx + i, count);
    });
  }
}

// ---- Group norm ----------------------------------------------------------------------

template <class T>
void group_norm(const GroupShape& s, const T* x, const T* scale, const T* bias, T* y, T* mean,
                T* rstd, double epsilon) {
  const hn::ScalableTag<T> d;
  const int64_t n = s.channels * s.size;
  for (int64_t r = 0; r < s.samples * s.groups; ++r) {
    const T m = mean_of(x, n),
            inverse = static_cast<T>(1 / std::sqrt(spread_of(x, m, n) + epsilon));
    if (mean) mean[r] = m;
    if (rstd) rstd[r] = inverse;
    const auto vm = hn::Set(d, m), vs = hn::Set(d, inverse);
    for (int64_t c = 0; c < s.channels; ++c, x += s.size, y += s.size) {
      const int64_t channel = r % s.groups * s.channels + c;
      const auto factor = hn::Set(d, scale[channel]), shift = hn::Set(d, bias[channel]);
      each_vector(d, s.size, [&](int64_t i, int64_t count) HWY_ATTR {
        const auto normal = hn::Mul(hn::Sub(load_first(d, x + i, count, T{0}), vm), vs);
        store_first(d, hn::MulAdd(normal, factor, shift), y + i, count);
      });
    }
  }
}

template <class T>
void group_norm_grad_x(const GroupShape& s, const T* dy, const T* x, const T* scale, const T* mean,
                       const T* rstd, T* dx) {
  const hn::ScalableTag<T> d;
  const auto n = static_cast<double>(s.channels * s.size);
  for (int64_t r = 0; r < s.samples * s.groups; ++r) {
    const auto vm = hn::Set(d, mean[r]), vs = hn::Set(d, rstd[r]);
    const T* factor = scale + r % s.groups * s.channels;
    const auto normal = [&](int64_t i, int64_t count) HWY_ATTR {
      return hn::Mul(hn::Sub(load_first(d, x + i, count, T{0}), vm), vs);
    };
    double sum = 0, dot = 0;
    for (int64_t c = 0; c < s.channels; ++c) {
      const T *g = dy + c * s.size, f = factor[c];
      sum += f * total(d, s.size, [&](int64_t i, int64_t count) HWY_ATTR {
               return load_first(d, g + i, count, T{0});
             });
      dot += f * total(d, s.size, [&](int64_t i, int64_t count) HWY_ATTR {
               return hn::Mul(load_first(d, g + i, count, T{0}), normal(c * s.size + i, count));
             });
    }
    const auto mean_g = hn::Set(d, static_cast<T>(sum / n));
    const auto mean_dot = hn::Set(d, static_cast<T>(dot / n));
    for (int64_t c = 0; c < s.channels; ++c) {
      const auto f = hn::Set(d, factor[c]);
      each_vector(d, s.size, [&](int64_t i, int64_t count) HWY_ATTR {
        const int64_t at = c * s.size + i;
        const auto g = hn::MulSub(load_first(d, dy + at, count, T{0}), f, mean_g);
        store_first(d, hn::Mul(vs, hn::NegMulAdd(normal(at, count), mean_dot, g)), dx + at, count);
      });
    }
    x += s.channels * s.size, dy += s.channels * s.size, dx += s.channels * s.size;
  }
}

template <class T>
void group_norm_grad_params(const GroupShape& s, const T* dy, const T* x, const T* mean,
                            const T* rstd, T* dscale, T* dbias) {
  const hn::ScalableTag<T> d;
  for (int64_t channel = 0; channel < s.groups * s.channels; ++channel) {
    double scale = 0, bias = 0;
    for (int64_t b = 0; b < s.samples; ++b) {
      const int64_t r = b * s.groups + channel / s.channels;
      const int64_t at = (b * s.groups * s.channels + channel) * s.size;
      const auto vm = hn::Set(d, mean[r]), vs = hn::Set(d, rstd[r]);
      scale += total(d, s.size, [&](int64_t i, int64_t count) HWY_ATTR {
        const auto distance = hn::Sub(load_first(d, x + at + i, count, T{0}), vm);
        return hn::Mul(load_first(d, dy + at + i, count, T{0}), hn::Mul(distance, vs));
      });
      bias += total(d, s.size, [&](int64_t i, int64_t count) HWY_ATTR {
        return load_first(d, dy + at + i, count, T{0});
      });
    }
    if (dscale) dscale[channel] = static_cast<T>(scale);
    if (dbias) dbias[channel] = static_cast<T>(bias);
  }
}

// ---- Rotary positions ----------------------------------------------------------------

template <class T>
void rotate(const T* x, const T* cos, const T* sin, T* y, int64_t half, bool interleaved,
            bool inverse) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const T a = x[2 * i], b = x[2 * i + 1], s = inverse ? -sin[i] : sin[i];
      y[2 * i] = a * cos[i] - b * s;
      y[2 * i + 1] = b * cos[i] + a * s;
    }
    return;
  }
  for (int64_t i = 0; i < half; i += lanes) {
    const int64_t count = HWY_MIN(lanes, half - i);
    const auto a = load_first(d, x + i, count, T{0}), b = load_first(d, x + half + i, count, T{0});
    const auto c = load_first(d, cos + i, count, T{0});
    auto s = load_first(d, sin + i, count, T{0});
    if (inverse) s = hn::Neg(s);
    store_first(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), y + i, count);
    store_first(d, hn::MulAdd(a, s, hn::Mul(b, c)), y + half + i, count);
  }
}

template <class T>
NormFns<T> fns() {
  return {softmax<T>,
          log_softmax<T>,
          softmax_grad<T>,
          log_softmax_grad<T>,
          sum_above<T>,
          exp_above<T>,
          layer_norm<T>,
          layer_norm_grad_x<T>,
          layer_norm_grad_params<T>,
          rms_norm<T>,
          rms_norm_grad_x<T>,
          group_norm<T>,
          group_norm_grad_x<T>,
          group_norm_grad_params<T>,
          rotate<T>};
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
