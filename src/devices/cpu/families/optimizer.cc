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

Result<KernelPtr> make_sum_squares(const Use& use) {
  const int64_t count = num_elements(use.in(0));
  const int64_t parts = std::max<int64_t>(use.attrs.integer("parts"), 1),
                run = (count + parts - 1) / parts;
  return for_floats(use, use.type(), [&]<class T>(T) {
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

double number_of(const Attrs& attrs, const UpdateRule::Number& number) {
  const AttrValue* value = attrs.find(number.attr);
  if (!value) return number.otherwise;
  const auto* integer = std::get_if<int64_t>(value);
  return integer ? static_cast<double>(*integer) : std::get<double>(*value);
}

// Makes the kernel of an update. Its operands are p, g, states, rate, clip and step, then p' and
// states'.
Result<KernelPtr> update(const Use& use, size_t at) {
  const UpdateRule& rule = update_rules()[at];
  std::vector<double> numbers;
  for (const UpdateRule::Number& number : rule.numbers)
    numbers.push_back(number_of(use.attrs, number));
  const int64_t count = num_elements(use.in(0));
  const auto states = static_cast<size_t>(rule.states);
  const bool averages = use.attrs.find("ema") != nullptr;
  const double decay = use.attrs.real("ema");
  return for_floats(use, use.type(), [&]<class T>(T) {
    const auto run = [=, fn = update_fn<T>(at), average = average_fn<T>()](
                         Pointers p, std::byte*, int64_t begin, int64_t end) {
      const int64_t first = begin * kUpdateUnit;
      const size_t scalars = 2 + states + (averages ? 1 : 0);
      size_t out = scalars + 3;
      UpdateRun<T> part{.param = input<T>(p, 0) + first,
                        .gradient = input<T>(p, 1) + first,
                        .param_out = output<T>(p, out++) + first,
                        .n = std::min(count, end * kUpdateUnit) - first};
      for (size_t s = 0; s < states && p[2 + s]; ++s) {
        part.states[s] = input<T>(p, 2 + s) + first;
        part.states_out[s] = output<T>(p, out++) + first;
      }
      const int64_t step = *input<int64_t>(p, scalars + 2);
      T* const mean = averages ? output<T>(p, out) + first : nullptr;
      if (averages) {  // before the parameter changes, perhaps in place
        const T* from = step == 0 ? part.param : input<T>(p, 2 + states) + first;
        if (from != mean) std::memmove(mean, from, static_cast<size_t>(part.n) * sizeof(T));
      }
      fn(part, {*input<double>(p, scalars), clip_factor(p, scalars + 1), step}, numbers.data());
      if (averages) average(part.param_out, mean, part.n, decay);
    };
    return make_units_kernel(InPlace::kYes, units_of(count), kUpdateUnit / 2.0, run);
  });
}

// Makes an update with the input `skip` after all others: where it is true nothing changes.
Result<KernelPtr> skippable(const Use& use, size_t at) {
  const size_t inputs =
      5 + static_cast<size_t>(update_rules()[at].states) + (use.attrs.find("ema") ? 1 : 0);
  if (use.inputs.size() != inputs + 1) return update(use, at);
  Use plain = use;
  plain.inputs.pop_back();
  plain.present.pop_back();
  PIPER_ASSIGN(KernelPtr inner, update(plain, at));
  const int64_t units = inner->units, grain = inner->grain;
  std::vector<int64_t> bytes;
  for (const TensorType& type : use.outputs) bytes.push_back(type.bytes());
  const auto run = [=, inner = std::shared_ptr<const Kernel>(std::move(inner))](
                       Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
    constexpr size_t kMost = 16;
    std::byte* operands[kMost];
    std::copy_n(p, inputs, operands);
    std::copy_n(p + inputs + 1, bytes.size(), operands + inputs);
    if (!p[inputs] || *input<uint8_t>(p, inputs) == 0)
      return inner->run(operands, scratch, begin, end);
    // (p, g, state…) -> (p', state'…); the first thread does it all.
    size_t read = 0;
    for (size_t o = 0; begin == 0 && o < bytes.size(); ++o) {
      const std::byte* from = operands[read];
      std::byte* to = operands[inputs + o];
      read = std::max<size_t>(read + 1, 2);
      if (!operands[read]) ++read;  // SGD without momentum has its average only
      if (to && from != to) std::memcpy(to, from, static_cast<size_t>(bytes[o]));
    }
  };
  KernelPtr kernel = make_units_kernel(InPlace::kYes, units, 1, run);
  kernel->grain = grain;
  return kernel;
}

Result<KernelPtr> make_update(const Use& use) {
  const std::span<const UpdateRule> rules = update_rules();
  for (size_t at = 0; at < rules.size(); ++at)
    if (rules[at].op == use.op) return skippable(use, at);
  return fail("'{}' updates no parameter", use.op);
}

}  // namespace

std::vector<KernelRow> optimizer_kernels() {
  std::vector<KernelRow> rows = {
      {"ClipFactor", make_clip_factor},        {"GlobalNorm", make_global_norm},
      {"LearningRate", make_learning_rate},    {"LossScale", make_next_loss_scale},
      {"NextLossScale", make_next_loss_scale}, {"NextStep", make_next_step},
      {"NotFinite", make_not_finite},          {"SumSquares", make_sum_squares}};
  for (const UpdateRule& rule : update_rules()) rows.push_back({rule.op, make_update});
  return rows;
}

}  // namespace piper::cpu
