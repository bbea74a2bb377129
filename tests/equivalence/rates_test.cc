// Schedules of the learning rate under strategies: each step has the rate of its formula, and the
// model trains as on one device.
#include "equivalence/jobs.h"

namespace piper::rates_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 9;
constexpr double kLr = 0.02;

// gpt-deep in f64 on stages, replicas with all state cut, and tensor parallel ranks, as far as the
// sizes say.
std::string text_of(const std::string& schedule, int pp, int dp, int tp) {
  return fmt::format(
      "piper: 1\ninclude: <numerics/f64>\nmesh: {{pp: {}, dp: {}, tp: {}}}\n"
      "train:\n  global_batch: 8\n  optimizer: {{sgd: {{lr: {}, momentum: 0.9}}}}\n  schedule: {}\n"
      "  groups: [{{of: [norms, biases], weight_decay: 0.1, schedule: [{{constant: 3}}, {{linear: "
      "{{steps: 3}}}}]}}]\n"
      "annotate:\n  - balance: {{tag: stage, into: {}}}\ndirectives:\n"
      "  - split: {{dim: batch, into: 2, as: mb}}\n  - place: {{on: {{pp: stage}}}}\n"
      "  - replicate: {{over: dp, shard: [optimizer, gradients, parameters]}}\n{}",
      pp, dp, tp, kLr, schedule, pp,
      tp == 1 ? ""
              : "  - shard: {match: \"**/qkv/*\", dim: 0, over: tp}\n"
                "  - shard: {match: \"**/proj/weight\", dim: 1, over: tp}\n"
                "  - shard: {match: \"**/fc/*\", dim: 0, over: tp}\n"
                "  - shard: {match: \"**/fc_out/weight\", dim: 1, over: tp}\n");
}

JobResult trained_with(const std::string& schedule, int pp, int dp, int tp) {
  const Folder folder;
  CompileOptions options;
  options.model = model_path("gpt-deep", "model.onnx");
  options.strategy = folder.write("s.yaml", text_of(schedule, pp, dp, tp));
  auto compiled = compile(options);
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  if (!compiled) return {};
  auto data = open_batches(compiled->set, "gpt-deep");
  EXPECT_TRUE(data) << print_error(data.error());
  JobOptions job;
  job.steps = kSteps;
  job.threads = 1;
  auto result = run_job(compiled->set, data->get(), nullptr, nullptr, job);
  EXPECT_TRUE(result) << print_error(result.error());
  return result ? std::move(*result) : JobResult{};
}

TEST(Rates, AreThoseOfTheFormulaUnderEveryStrategy) {
  NEED_MODEL("gpt-deep");
  const std::string schedule = "[{warmup: 2}, {constant: 2}, {cosine: {steps: 3, to: 0.1}}]";
  const auto expected = [](double t) {
    if (t < 2) return kLr * ((t + 1) / 2);
    if (t < 4) return kLr;
    return kLr * (t < 7 ? 0.1 + 0.9 * (1 + std::cos(3.141592653589793 * ((t - 4) / 3))) / 2 : 0.1);
  };
  const Trained one = trained_by(trained_with(schedule, 1, 1, 1));
  for (const auto& [pp, dp, tp] : {std::array{1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {1, 2, 2}}) {
    const std::string what = fmt::format("pp={} dp={} tp={}", pp, dp, tp);
    JobResult job = trained_with(schedule, pp, dp, tp);
    ASSERT_EQ(job.steps.size(), static_cast<size_t>(kSteps)) << what;
    for (const StepMetrics& step : job.steps)
      EXPECT_EQ(*step.learning_rate, expected(static_cast<double>(step.step)))
          << what << " step " << step.step;
    EXPECT_LT(largest_difference(trained_by(std::move(job)), one), 1e-12) << what;
  }
  // A phase that is one step longer is seen.
  const std::string longer = "[{warmup: 2}, {constant: 3}, {cosine: {steps: 3, to: 0.1}}]";
  EXPECT_GT(largest_difference(trained_by(trained_with(longer, 1, 1, 1)), one), 1e-6);
}

}  // namespace
}  // namespace piper::rates_test
