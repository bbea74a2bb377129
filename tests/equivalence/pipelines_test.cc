// Every schedule of the library on small models: five steps equal, bit for bit, to the
// single-device plan with the same cut of the batch.
#include "equivalence/jobs.h"

namespace piper {
namespace {

using namespace jobs;

struct Pipeline {
  const char* order;
  int64_t pp, dp, mb;
  // A file that runs weight gradients out of microbatch order adds them in another order.
  VerifyAgainst against = VerifyAgainst::kSingle;
  const char* more = "";  // further params
};

std::vector<Pipeline> pipelines() {
  if (kSanitized) return {{"zbv", 2, 2, 2}, {"dualpipev", 2, 1, 4}, {"interleaved-1f1b", 2, 1, 2}};
  std::vector<Pipeline> out;
  for (const char* order : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zbv"}) {
    out.push_back({order, 2, 1, 8});
    out.push_back({order, 2, 2, 4});
    out.push_back({order, 4, 1, 8});
    out.push_back({order, 4, 2, 2});
  }
  out.push_back({"zb-h1", 2, 1, 8, VerifyAgainst::kSingle, "chunks: 2"});
  for (const int64_t pp : {2, 4}) {
    out.push_back({"looped-bfs", pp, 1, 8, VerifyAgainst::kUncut});
    out.push_back({"looped-bfs", pp, 1, 8, VerifyAgainst::kSingle, "ascending: 1"});
  }
  out.push_back({"dualpipev", 2, 1, 4});
  out.push_back({"dualpipev", 2, 2, 4});
  out.push_back({"dualpipev", 2, 1, 8});
  out.push_back({"dualpipev", 4, 1, 8});
  return out;
}

void expect_equal(const std::string& model, const Pipeline& pipeline) {
  const std::string what = fmt::format("{} {} pp={} dp={} mb={} {}", model, pipeline.order,
                                       pipeline.pp, pipeline.dp, pipeline.mb, pipeline.more);
  std::string text = strategy_text(model, kAdamW);
  if (*pipeline.more)
    text.replace(text.find("params: {"), 9, fmt::format("params: {{{}, ", pipeline.more));
  const auto compiled =
      compile_model(model, text, {pipeline.pp, pipeline.dp, pipeline.mb, pipeline.order}, true);
  ASSERT_TRUE(compiled) << what << "\n" << print_error(compiled.error());
  const PlanSet& reference =
      pipeline.against == VerifyAgainst::kSingle ? *compiled->single : *compiled->uncut;
  const auto data = open_batches(compiled->set, model);
  const auto reference_data = open_batches(reference, model);
  ASSERT_TRUE(data && reference_data);
  JobOptions options;
  options.steps = 5;
  options.threads = 1;
  options.verify.against = pipeline.against;
  const auto job = run_job(compiled->set, data->get(), &reference, reference_data->get(), options);
  EXPECT_TRUE(job) << what << "\n" << print_error(job.error());
}

class Pipelines : public ::testing::TestWithParam<const char*> {};

TEST_P(Pipelines, EqualTheSingleDevicePlan) {
  const std::string model = GetParam();
  if (!std::filesystem::exists(model_path(model, "model.onnx")))
    GTEST_SKIP() << "no models in " << models_folder();
  for (const Pipeline& pipeline : pipelines()) expect_equal(model, pipeline);
}

INSTANTIATE_TEST_SUITE_P(Models, Pipelines, ::testing::Values("mlp", "gpt-deep"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace piper
