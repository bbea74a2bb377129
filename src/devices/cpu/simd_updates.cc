// Vectorised optimizer steps, compiled once per instruction set. PyTorch's order of operations.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_updates.cc"
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
void sgd(const T* p, const T* g, const T* buffer, T* p_out, T* buffer_out, int64_t n,
         const SgdStep& s) {
  const hn::ScalableTag<T> d;
  const auto lr = constant(d, s.lr), scale = constant(d, s.gradient_scale);
  const auto decay = constant(d, s.weight_decay), momentum = constant(d, s.momentum);
  const auto fresh = constant(d, 1 - s.dampening);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, p + i, count, T{0});
    auto step = hn::Mul(load_first(d, g + i, count, T{0}), scale);
    if (s.weight_decay != 0) step = hn::MulAdd(decay, old, step);
    if (buffer) {
      const auto last = load_first(d, buffer + i, count, T{0});
      const auto next = s.first ? step : hn::MulAdd(momentum, last, hn::Mul(fresh, step));
      store_first(d, next, buffer_out + i, count);
      step = s.nesterov ? hn::MulAdd(momentum, next, step) : next;
    }
    store_first(d, hn::NegMulAdd(lr, step, old), p_out + i, count);
  });
}

template <class T>
void adam(const T* p, const T* g, const T* m, const T* v, T* p_out, T* m_out, T* v_out, int64_t n,
          const AdamStep& s) {
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, s.gradient_scale), shrink = constant(d, 1 - s.keep);
  const auto decay = constant(d, s.weight_decay), eps = constant(d, s.eps);
  const auto beta2 = constant(d, s.beta2), after = constant(d, s.shrink_after);
  const auto fresh1 = constant(d, 1 - s.beta1), fresh2 = constant(d, 1 - s.beta2);
  const auto step_size = constant(d, s.step_size), root = constant(d, 1 / s.root_correction);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, p + i, count, T{0});
    auto grad = hn::Mul(load_first(d, g + i, count, T{0}), scale);
    if (s.weight_decay != 0) grad = hn::MulAdd(decay, old, grad);
    const auto m_old = load_first(d, m + i, count, T{0});
    const auto m_new = hn::MulAdd(fresh1, hn::Sub(grad, m_old), m_old);
    const auto v_old = load_first(d, v + i, count, T{0});
    const auto v_new = hn::MulAdd(beta2, v_old, hn::Mul(hn::Mul(grad, grad), fresh2));
    store_first(d, m_new, m_out + i, count);
    store_first(d, v_new, v_out + i, count);
    const auto below = hn::MulAdd(hn::Sqrt(v_new), root, eps);
    // p is rounded once, and no rounded factor near 1 drifts over the steps.
    const auto less = hn::MulAdd(step_size, hn::Div(m_new, below), hn::Mul(shrink, old));
    auto next = hn::Sub(old, less);
    if (s.shrink_after != 0) next = hn::NegMulAdd(after, next, next);
    store_first(d, next, p_out + i, count);
  });
}

template <class T>
void adagrad(const T* p, const T* g, const T* h, T* p_out, T* h_out, int64_t n,
             const AdagradStep& s) {
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, s.gradient_scale), eps = constant(d, s.eps);
  const auto decay = constant(d, s.weight_decay), step_size = constant(d, s.step_size);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, p + i, count, T{0});
    auto grad = hn::Mul(load_first(d, g + i, count, T{0}), scale);
    if (s.weight_decay != 0) grad = hn::MulAdd(decay, old, grad);
    const auto next = hn::MulAdd(grad, grad, load_first(d, h + i, count, T{0}));
    store_first(d, next, h_out + i, count);
    const auto part = hn::Div(grad, hn::Add(hn::Sqrt(next), eps));
    store_first(d, hn::NegMulAdd(step_size, part, old), p_out + i, count);
  });
}

UpdateFns<float> UpdatesF32() { return {sgd<float>, adam<float>, adagrad<float>}; }
UpdateFns<double> UpdatesF64() { return {sgd<double>, adam<double>, adagrad<double>}; }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(UpdatesF32);
HWY_EXPORT(UpdatesF64);

template <>
UpdateFns<float> update_fns() {
  return HWY_DYNAMIC_DISPATCH(UpdatesF32)();
}
template <>
UpdateFns<double> update_fns() {
  return HWY_DYNAMIC_DISPATCH(UpdatesF64)();
}

}  // namespace piper::cpu
#endif
