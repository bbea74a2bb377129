// Models that tests make themselves, trained on data that follow from a rule.
#pragma once

#include <cmath>

#include "equivalence/jobs.h"

namespace piper {

// Numbers that follow from the step, the input and the sample; integers are below kClasses.
class Numbers : public BatchSource {
 public:
  static constexpr int64_t kClasses = 24;

  explicit Numbers(std::vector<InputNeed> needs) : needs_(std::move(needs)) {}
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    const InputNeed& need = needs_[static_cast<size_t>(input)];
    const int64_t width = num_elements(need.type.shape) / need.type.shape[0];
    const auto fill = [&](auto* out) {
      for (int64_t s = first * width; s < (first + count) * width; ++s)
        *out++ = static_cast<std::remove_reference_t<decltype(*out)>>(at(need, step * 4096 + s));
    };
    switch (need.type.dtype) {
      case DType::kF64:
        fill(reinterpret_cast<double*>(to));
        break;
      case DType::kF32:
        fill(reinterpret_cast<float*>(to));
        break;
      default:
        fill(reinterpret_cast<int64_t*>(to));
    }
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  static double at(const InputNeed& need, int64_t i) {
    const auto part = static_cast<double>(need.name[0]);
    if (info(need.type.dtype).is_float) return std::sin(static_cast<double>(i) * 5 + part * 11);
    return static_cast<double>((i * i * 7 + i + need.name[0]) % kClasses);
  }
  std::vector<InputNeed> needs_;
};

// Three steps. Nothing where the loss ends in no number, as that of few models does.
inline jobs::Trained train_on_numbers(const PlanSet& set, const std::string& what) {
  auto needs = data_needs(set);
  const Numbers data(*std::move(needs));
  JobOptions options;
  options.steps = 3;
  options.threads = 1;
  auto job = run_job(set, &data, nullptr, nullptr, options);
  if (job) return jobs::trained_by(*std::move(job));
  if (job.error().code != ExitCode::kNumeric) ADD_FAILURE() << what << print_error(job.error());
  return {};
}

}  // namespace piper
