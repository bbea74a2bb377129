// The update of a step: gradient norm and clipping, learning rate, SGD and Adam(W) as PyTorch
// defines them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "families.h"
#include "piper/ir/rate.h"
#include "rows.h"

namespace piper::cpu {
namespace {

// Elements that a thread updates at a time.
constexpr int64_t kUpdateUnit = 4096;
int64_t units_of(int64_t count) { return (count + kUpdateUnit - 1) / kUpdateUnit; }

double clip_factor(Pointers p, size_t i) { return p[i] ? *input<double>(p, i) : 1.0; }

}  // namespace

Result<KernelPtr> make_sum_squares(const Use& use) {
  const int64_t count = num_elements(use.in(0));
  const int64_t parts = std::max<int64_t>(use.attrs.integer("parts"), 1),
                run = (count + parts - 1) / parts;
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kNo, [=, sum = sum_fns<T>().sum_squares](Pointers p, std::byte*) {
      double total = 0;
      for (int64_t first = 0; first < count; first += run)
        total += sum(input<T>(p, 0) + first, std::min(run, count - first));
      *output<double>(p, 1) = total;
    });
  });
}

Result<KernelPtr> make_global_norm(const Use& use) {
  const size_t count = use.inputs.size();
  std::vector<int64_t> elements;  // of each input: a scalar or a vector of sums
  for (size_t i = 0; i < count; ++i) elements.push_back(num_elements(use.in(i)));
  return make_kernel(InPlace::kYes, [count, elements](Pointers p, std::byte*) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < elements[i]; ++k) sum += input<double>(p, i)[k];
    *output<double>(p, count) = std::sqrt(sum);
  });
}

Result<KernelPtr> make_clip_factor(const Use& use) {
  const double max_norm = use.attrs.real("max_norm", 0);
  return make_kernel(InPlace::kYes, [max_norm](Pointers p, std::byte*) {
    const double factor = max_norm / (*input<double>(p, 0) + 1e-6);
    *output<double>(p, 1) = factor > 1 ? 1.0 : factor;  // a NaN stays one
  });
}

Result<KernelPtr> make_learning_rate(const Use& use) {
  PIPER_ASSIGN(const Rate rate, Rate::parse(use.attrs.text("rate")));
  return make_kernel(InPlace::kYes, [=, base = use.attrs.real("base")](Pointers p, std::byte*) {
    *output<double>(p, 1) = rate.at(base, *input<int64_t>(p, 0));
  });
}

Result<KernelPtr> make_next_step(const Use& use) {
  const size_t out = use.inputs.size();
  return make_kernel(InPlace::kYes, [out](Pointers p, std::byte*) {
    const bool skip = out == 2 && p[1] && *input<uint8_t>(p, 1) != 0;
    *output<int64_t>(p, out) = *input<int64_t>(p, 0) + (skip ? 0 : 1);
  });
}

Result<KernelPtr> make_not_finite(const Use&) {
  return make_kernel(InPlace::kNo, [](Pointers p, std::byte*) {
    *output<uint8_t>(p, 1) = std::isfinite(*input<double>(p, 0)) ? 0 : 1;
  });
}

Result<KernelPtr> make_next_loss_scale(const Use& use) {
  if (use.op == "LossScale") {
    return make_kernel(InPlace::kNo,
                       [](Pointers p, std::byte*) { *output<double>(p, 1) = *input<float>(p, 0); });
  }
  const double growth = use.attrs.real("growth", 2);
  const double backoff = use.attrs.real("backoff", 0.5);
  const int64_t interval = use.attrs.integer("interval");
  return make_kernel(InPlace::kYes, [=](Pointers p, std::byte*) {
    const double scale = *input<float>(p, 0);
    const bool skip = *input<uint8_t>(p, 2) != 0;
    int64_t good = skip ? 0 : *input<int64_t>(p, 1) + 1;
    auto next = static_cast<float>(skip ? scale * backoff : scale);
    if (good == interval) {
      const auto grown = static_cast<float>(scale * growth);
      if (std::isfinite(grown)) next = grown;
      good = 0;
    }
    *output<float>(p, 3) = next;
    *output<int64_t>(p, 4) = good;
  });
}

namespace {

Result<KernelPtr> sgd(const Use& use) {
  const bool buffered = use.present[2];
  SgdStep s{};
  s.momentum = use.attrs.real("momentum", 0);
  s.dampening = use.attrs.real("dampening", 0);
  s.weight_decay = use.attrs.real("weight_decay", 0);
  const int64_t nesterov = use.attrs.integer("nesterov", 0);
  s.nesterov = nesterov != 0;
  const int64_t before = use.attrs.integer("count", 0);
  const int64_t count = num_elements(use.in(0));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto update = [=, run = update_fns<T>().sgd](Pointers p, std::byte*, int64_t begin,
                                                       int64_t end) {
      const int64_t first = begin * kUpdateUnit, size = std::min(count, end * kUpdateUnit) - first;
      SgdStep now = s;
      now.lr = *input<double>(p, 3);
      now.gradient_scale = clip_factor(p, 4);
      now.first = *input<int64_t>(p, 5) + before == 0;
      run(input<T>(p, 0) + first, input<T>(p, 1) + first,
          buffered ? input<T>(p, 2) + first : nullptr, output<T>(p, 6) + first,
          buffered ? output<T>(p, 7) + first : nullptr, size, now);
    };
    return make_units_kernel(InPlace::kYes, units_of(count), kUpdateUnit / 3.0, update);
  });
}

Result<KernelPtr> onnx_adam(const Use& use) {
  AdamStep s{};
  s.keep = s.root_correction = 1;
  s.beta1 = use.attrs.real("beta1", 0.9);
  s.beta2 = use.attrs.real("beta2", 0.999);
  s.eps = use.attrs.real("eps", 1e-6);
  s.weight_decay = use.attrs.real("weight_decay", 0);
  s.shrink_after = use.attrs.real("weight_decay_after", 0);
  const int64_t before = use.attrs.integer("count", 0);
  const int64_t count = num_elements(use.in(0));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kYes, [=, run = update_fns<T>().adam](Pointers p, std::byte*) {
      AdamStep now = s;
      const auto t = static_cast<double>(*input<int64_t>(p, 6) + before);
      now.gradient_scale = clip_factor(p, 5);
      now.step_size = *input<double>(p, 4);
      if (t > 0) now.step_size *= std::sqrt(1 - std::pow(s.beta2, t)) / (1 - std::pow(s.beta1, t));
      run(input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), input<T>(p, 3), output<T>(p, 7),
          output<T>(p, 8), output<T>(p, 9), count, now);
    });
  });
}

Result<KernelPtr> adagrad(const Use& use) {
  AdagradStep s{};
  double lr_decay = 0;
  lr_decay = use.attrs.real("lr_decay", 0);
  s.eps = use.attrs.real("eps", 1e-6);
  s.weight_decay = use.attrs.real("weight_decay", 0);
  const int64_t before = use.attrs.integer("count", 0);
  const int64_t count = num_elements(use.in(0));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kYes, [=, run = update_fns<T>().adagrad](Pointers p, std::byte*) {
      AdagradStep now = s;
      const auto t = static_cast<double>(*input<int64_t>(p, 5) + before);
      now.gradient_scale = clip_factor(p, 4);
      now.step_size = *input<double>(p, 3) / (1 + t * lr_decay);
      run(input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), output<T>(p, 6), output<T>(p, 7), count,
          now);
    });
  });
}

Result<KernelPtr> adamw(const Use& use) {
  AdamStep s{};
  double decay = 0;
  s.beta1 = use.attrs.real("beta1", 0.9);
  s.beta2 = use.attrs.real("beta2", 0.999);
  s.eps = use.attrs.real("eps", 1e-8);
  decay = use.attrs.real("weight_decay", 0);
  const int64_t decoupled = use.attrs.integer("decoupled", 1);
  s.weight_decay = decoupled ? 0 : decay;
  const int64_t count = num_elements(use.in(0));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto update = [=, run = update_fns<T>().adam](Pointers p, std::byte*, int64_t begin,
                                                        int64_t end) {
      const int64_t first = begin * kUpdateUnit, size = std::min(count, end * kUpdateUnit) - first;
      AdamStep now = s;
      const double lr = *input<double>(p, 4);
      const auto t = static_cast<double>(*input<int64_t>(p, 6)) + 1;
      now.gradient_scale = clip_factor(p, 5);
      now.keep = decoupled ? 1 - lr * decay : 1;
      now.step_size = lr / (1 - std::pow(s.beta1, t));
      now.root_correction = std::sqrt(1 - std::pow(s.beta2, t));
      run(input<T>(p, 0) + first, input<T>(p, 1) + first, input<T>(p, 2) + first,
          input<T>(p, 3) + first, output<T>(p, 7) + first, output<T>(p, 8) + first,
          output<T>(p, 9) + first, size, now);
    };
    return make_units_kernel(InPlace::kYes, units_of(count), kUpdateUnit / 2.0, update);
  });
}

// Makes an update with the input `skip` after all others: where it is true nothing changes.
Result<KernelPtr> skippable(const Use& use, size_t inputs, Maker make) {
  if (use.inputs.size() != inputs + 1) return make(use);
  Use plain = use;
  plain.inputs.pop_back();
  plain.present.pop_back();
  PIPER_ASSIGN(KernelPtr inner, make(plain));
  const int64_t units = inner->units, grain = inner->grain;
  std::vector<int64_t> bytes;
  for (const TensorType& type : use.outputs) bytes.push_back(type.bytes());
  const auto update = [=, inner = std::shared_ptr<const Kernel>(std::move(inner))](
                          Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
    constexpr size_t kMost = 16;
    std::byte* operands[kMost];
    std::copy_n(p, inputs, operands);
    std::copy_n(p + inputs + 1, bytes.size(), operands + inputs);
    if (!p[inputs] || *input<uint8_t>(p, inputs) == 0)
      return inner->run(operands, scratch, begin, end);
    // (p, g, state…) -> (p', state'…); the first thread does it all.
    for (size_t o = 0; begin == 0 && o < bytes.size(); ++o) {
      const std::byte* from = operands[o == 0 ? 0 : o + 1];
      std::byte* to = operands[inputs + o];
      if (to && from != to) std::memcpy(to, from, static_cast<size_t>(bytes[o]));
    }
  };
  KernelPtr kernel = make_units_kernel(InPlace::kYes, units, 1, update);
  kernel->grain = grain;
  return kernel;
}

}  // namespace

Result<KernelPtr> make_sgd(const Use& use) { return skippable(use, 6, sgd); }
Result<KernelPtr> make_adagrad(const Use& use) { return skippable(use, 6, adagrad); }
Result<KernelPtr> make_adamw(const Use& use) { return skippable(use, 7, adamw); }
Result<KernelPtr> make_onnx_adam(const Use& use) { return skippable(use, 7, onnx_adam); }

}  // namespace piper::cpu
