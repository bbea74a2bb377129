// Vectorised optimizer steps, compiled once per instruction set, and their table; optimizer.cc
// calls them. PyTorch's order of operations.
#include <cmath>

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
void sgd(const UpdateRun<T>& run, const UpdateNumbers& now, const double* numbers) {
  const double weight_decay = numbers[2];
  const bool nesterov = numbers[3] != 0;
  const bool first = static_cast<double>(now.step) + numbers[4] == 0;  // the gradient as it is
  const hn::ScalableTag<T> d;
  const auto lr = constant(d, now.lr), scale = constant(d, now.clip);
  const auto decay = constant(d, weight_decay), momentum = constant(d, numbers[0]);
  const auto fresh = constant(d, 1 - numbers[1]);
  each_vector(d, run.n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, run.param + i, count, T{0});
    auto step = hn::Mul(load_first(d, run.gradient + i, count, T{0}), scale);
    if (weight_decay != 0) step = hn::MulAdd(decay, old, step);
    if (run.states[0]) {
      const auto last = load_first(d, run.states[0] + i, count, T{0});
      const auto next = first ? step : hn::MulAdd(momentum, last, hn::Mul(fresh, step));
      store_first(d, next, run.states_out[0] + i, count);
      step = nesterov ? hn::MulAdd(momentum, next, step) : next;
    }
    store_first(d, hn::NegMulAdd(lr, step, old), run.param_out + i, count);
  });
}

// Holds the scalars of a step of Adam.
struct AdamStep {
  double step_size;        // lr / (1 - beta1^t)
  double root_correction;  // sqrt(1 - beta2^t)
  double beta1, beta2, eps;
  double keep;              // what decoupled weight decay leaves of p: 1 - lr * decay
  double weight_decay;      // added to the gradient; 0 when decoupled
  double shrink_after = 0;  // the part of the new p that is taken off it
};

template <class T>
void adam(const UpdateRun<T>& run, double gradient_scale, const AdamStep& s) {
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, gradient_scale), shrink = constant(d, 1 - s.keep);
  const auto decay = constant(d, s.weight_decay), eps = constant(d, s.eps);
  const auto beta2 = constant(d, s.beta2), after = constant(d, s.shrink_after);
  const auto fresh1 = constant(d, 1 - s.beta1), fresh2 = constant(d, 1 - s.beta2);
  const auto step_size = constant(d, s.step_size), root = constant(d, 1 / s.root_correction);
  each_vector(d, run.n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, run.param + i, count, T{0});
    auto grad = hn::Mul(load_first(d, run.gradient + i, count, T{0}), scale);
    if (s.weight_decay != 0) grad = hn::MulAdd(decay, old, grad);
    const auto m_old = load_first(d, run.states[0] + i, count, T{0});
    const auto m_new = hn::MulAdd(fresh1, hn::Sub(grad, m_old), m_old);
    const auto v_old = load_first(d, run.states[1] + i, count, T{0});
    const auto v_new = hn::MulAdd(beta2, v_old, hn::Mul(hn::Mul(grad, grad), fresh2));
    store_first(d, m_new, run.states_out[0] + i, count);
    store_first(d, v_new, run.states_out[1] + i, count);
    const auto below = hn::MulAdd(hn::Sqrt(v_new), root, eps);
    // p is rounded once, and no rounded factor near 1 drifts over the steps.
    const auto less = hn::MulAdd(step_size, hn::Div(m_new, below), hn::Mul(shrink, old));
    auto next = hn::Sub(old, less);
    if (s.shrink_after != 0) next = hn::NegMulAdd(after, next, next);
    store_first(d, next, run.param_out + i, count);
  });
}

template <class T>
void adamw(const UpdateRun<T>& run, const UpdateNumbers& now, const double* numbers) {
  const double decay = numbers[3];
  const bool decoupled = numbers[4] != 0;
  const auto t = static_cast<double>(now.step) + 1;
  AdamStep s{.beta1 = numbers[0], .beta2 = numbers[1], .eps = numbers[2]};
  s.keep = decoupled ? 1 - now.lr * decay : 1;
  s.weight_decay = decoupled ? 0 : decay;
  s.step_size = now.lr / (1 - std::pow(s.beta1, t));
  s.root_correction = std::sqrt(1 - std::pow(s.beta2, t));
  adam(run, now.clip, s);
}

template <class T>
void onnx_adam(const UpdateRun<T>& run, const UpdateNumbers& now, const double* numbers) {
  const auto t = static_cast<double>(now.step) + numbers[5];
  AdamStep s{.step_size = now.lr,
             .root_correction = 1,
             .beta1 = numbers[0],
             .beta2 = numbers[1],
             .eps = numbers[2],
             .keep = 1,
             .weight_decay = numbers[3],
             .shrink_after = numbers[4]};
  if (t > 0) s.step_size *= std::sqrt(1 - std::pow(s.beta2, t)) / (1 - std::pow(s.beta1, t));
  adam(run, now.clip, s);
}

template <class T>
void adagrad(const UpdateRun<T>& run, const UpdateNumbers& now, const double* numbers) {
  const double weight_decay = numbers[2];
  const auto t = static_cast<double>(now.step) + numbers[3];
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, now.clip), eps = constant(d, numbers[1]);
  const auto decay = constant(d, weight_decay);
  const auto step_size = constant(d, now.lr / (1 + t * numbers[0]));
  each_vector(d, run.n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, run.param + i, count, T{0});
    auto grad = hn::Mul(load_first(d, run.gradient + i, count, T{0}), scale);
    if (weight_decay != 0) grad = hn::MulAdd(decay, old, grad);
    const auto next = hn::MulAdd(grad, grad, load_first(d, run.states[0] + i, count, T{0}));
    store_first(d, next, run.states_out[0] + i, count);
    const auto part = hn::Div(grad, hn::Add(hn::Sqrt(next), eps));
    store_first(d, hn::NegMulAdd(step_size, part, old), run.param_out + i, count);
  });
}

template <class T>
void lion(const UpdateRun<T>& run, const UpdateNumbers& now, const double* numbers) {
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, now.clip), lr = constant(d, now.lr);
  const auto fresh1 = constant(d, 1 - numbers[0]), fresh2 = constant(d, 1 - numbers[1]);
  const auto shrink = constant(d, now.lr * numbers[2]), zero = hn::Zero(d);
  each_vector(d, run.n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, run.param + i, count, T{0});
    const auto grad = hn::Mul(load_first(d, run.gradient + i, count, T{0}), scale);
    const auto last = load_first(d, run.states[0] + i, count, T{0});
    const auto ahead = hn::Sub(grad, last);
    const auto mixed = hn::MulAdd(fresh1, ahead, last);
    store_first(d, hn::MulAdd(fresh2, ahead, last), run.states_out[0] + i, count);
    // The sign of zero is zero; a NaN stays one.
    const auto sign = hn::IfThenElse(hn::Ne(mixed, zero), hn::CopySign(lr, mixed), zero);
    const auto step = hn::IfThenElse(hn::IsNaN(mixed), mixed, sign);
    const auto less = hn::MulAdd(shrink, old, step);
    store_first(d, hn::Sub(old, less), run.param_out + i, count);
  });
}

// Steps along a direction that is made: the gradient's place holds it, and `clip` is in it.
template <class T>
void descend(const UpdateRun<T>& run, const UpdateNumbers& now, const double* numbers) {
  const hn::ScalableTag<T> d;
  const bool has_rate = numbers[2] != 0;  // the direction
  const auto step = constant(d, has_rate ? 1 : now.lr * numbers[1]),
             shrink = constant(d, now.lr * numbers[0]);
  each_vector(d, run.n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, run.param + i, count, T{0});
    const auto direction = load_first(d, run.gradient + i, count, T{0});
    const auto less = hn::MulAdd(step, direction, hn::Mul(shrink, old));
    store_first(d, hn::Sub(old, less), run.param_out + i, count);
  });
}

template <class T>
void average(const T* x, T* average, int64_t n, double decay) {
  const hn::ScalableTag<T> d;
  const auto fresh = constant(d, 1 - decay);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto old = load_first(d, average + i, count, T{0});
    const auto ahead = hn::Sub(load_first(d, x + i, count, T{0}), old);
    store_first(d, hn::MulAdd(fresh, ahead, old), average + i, count);
  });
}
AverageFn<float> AverageF32() { return average<float>; }
AverageFn<double> AverageF64() { return average<double>; }

// Lists the functions in the order of update_rules().
template <class T>
constexpr UpdateFn<T> kUpdates[] = {sgd<T>,  adamw<T>,   onnx_adam<T>, adagrad<T>,
                                    lion<T>, descend<T>, descend<T>};

UpdateFn<float> UpdateF32(size_t rule) { return kUpdates<float>[rule]; }
UpdateFn<double> UpdateF64(size_t rule) { return kUpdates<double>[rule]; }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(UpdateF32);
HWY_EXPORT(UpdateF64);
HWY_EXPORT(AverageF32);
HWY_EXPORT(AverageF64);

template <>
AverageFn<float> average_fn() {
  return HWY_DYNAMIC_DISPATCH(AverageF32)();
}
template <>
AverageFn<double> average_fn() {
  return HWY_DYNAMIC_DISPATCH(AverageF64)();
}

std::span<const UpdateRule> update_rules() {
  static const std::vector<UpdateRule> kRules = {
      {"Sgd", 1, {{"momentum"}, {"dampening"}, {"weight_decay"}, {"nesterov"}, {"count"}}},
      {"AdamW",
       2,
       {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay"}, {"decoupled", 1}}},
      {"OnnxAdam",
       2,
       {{"beta1", 0.9},
        {"beta2", 0.999},
        {"eps", 1e-6},
        {"weight_decay"},
        {"weight_decay_after"},
        {"count"}}},
      {"Adagrad", 1, {{"lr_decay"}, {"eps", 1e-6}, {"weight_decay"}, {"count"}}},
      {"Lion", 1, {{"beta1"}, {"beta2"}, {"weight_decay"}}},
      {"Muon", 0, {{"weight_decay"}, {"scale", 1}, {"has_rate"}}},
      {"Adafactor", 0, {{"weight_decay"}, {"scale", 1}, {"has_rate", 1}}},
  };
  return kRules;
}

template <>
UpdateFn<float> update_fn(size_t rule) {
  return HWY_DYNAMIC_DISPATCH(UpdateF32)(rule);
}
template <>
UpdateFn<double> update_fn(size_t rule) {
  return HWY_DYNAMIC_DISPATCH(UpdateF64)(rule);
}

}  // namespace piper::cpu
#endif
