// What tests of several versions of the weights share: jobs beside the single-device plan.
#pragma once

#include "equivalence/jobs.h"

namespace piper::jobs {

// Trains so many steps and compares the loss and all parameters with `reference` after each.
inline Status run_against(const PlanSet& set, const PlanSet& reference, const std::string& model,
                          int64_t steps) {
  PIPER_ASSIGN(const auto data, open_batches(set, model));
  PIPER_ASSIGN(const auto reference_data, open_batches(reference, model));
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.verify.against = VerifyAgainst::kSingle;
  const auto job = run_job(set, data.get(), &reference, reference_data.get(), options);
  if (!job) return job.error();
  EXPECT_EQ(static_cast<int64_t>(job->steps.size()), steps);
  return ok_status();
}

// Skips where there are no exported models.
class OfModels : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(model_path(GetParam(), "model.onnx")))
      GTEST_SKIP() << "no models in " << models_folder();
  }
};

}  // namespace piper::jobs
