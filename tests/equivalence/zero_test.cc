// ZeRO: whatever of the training state is cut over the replicas, and however often it travels, the
// model trains as on one device with the same cut of the batch.
#include "equivalence/jobs.h"

namespace piper {
namespace {

using namespace jobs;

struct Case {
  const char* name;
  const char* order;  // a file of strategies/
};

void expect_same_training(const std::string& model, const char* optimizer, const Shape2& shape,
                          int64_t steps, VerifyAgainst against) {
  const std::string what =
      fmt::format("{} {} pp={} dp={} mb={}", model, shape.order, shape.pp, shape.dp, shape.mb);
  auto compiled = compile_model(model, strategy_text(model, optimizer), shape, true);
  ASSERT_TRUE(compiled) << what << "\n" << print_error(compiled.error());
  const PlanSet& reference =
      against == VerifyAgainst::kSingle ? *compiled->single : *compiled->uncut;
  auto data = open_batches(compiled->set, model);
  auto reference_data = open_batches(reference, model);
  ASSERT_TRUE(data && reference_data) << what;
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.verify.against = against;
  const auto job = run_job(compiled->set, data->get(), &reference, reference_data->get(), options);
  EXPECT_TRUE(job) << what << "\n" << print_error(job.error());
}

class Zero : public ::testing::TestWithParam<Case> {};

TEST_P(Zero, EqualsOneDeviceBitForBit) {
  if (!std::filesystem::exists(model_path("mlp", "model.onnx")))
    GTEST_SKIP() << "no models in " << models_folder();
  const std::string clipped_sgd = std::string(kSgd) + ", clip_norm: 0.5";
  for (const int64_t dp : {2, 4})
    for (const int64_t pp : {1, 2})
      for (const int64_t mb : {1, 4}) {
        if (dp * mb > 8) continue;  // samples
        const Shape2 shape{pp, dp, mb, GetParam().order};
        if (kSanitized && (dp != 2 || mb != 4)) continue;
        expect_same_training("mlp", kAdamW, shape, 5, VerifyAgainst::kSingle);
        expect_same_training("mlp", clipped_sgd.c_str(), shape, 5, VerifyAgainst::kSingle);
      }
}

// With tied embeddings, which two stages hold.
TEST_P(Zero, TiedWeightsToo) {
  if (!std::filesystem::exists(model_path("gpt", "model.onnx")))
    GTEST_SKIP() << "no models in " << models_folder();
  const int64_t steps = kSanitized ? 1 : 5;
  expect_same_training("gpt", kAdamW, {2, 2, 2, GetParam().order}, steps, VerifyAgainst::kSingle);
  if (kSanitized) return;
  expect_same_training("gpt", kAdamW, {1, 4, 2, GetParam().order}, steps, VerifyAgainst::kSingle);
  expect_same_training("gpt", kAdamW, {2, 2, 2, GetParam().order}, steps, VerifyAgainst::kUncut);
}

INSTANTIATE_TEST_SUITE_P(Library, Zero, ::testing::Values(Case{"one", "zero1"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace piper
