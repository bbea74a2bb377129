// Models with training_info train as the operators' pseudo code says, in double, whatever the cut;
// what of it is not supported is refused.
#include "equivalence/jobs.h"

namespace piper {
namespace {

using namespace jobs;

const std::string kFolder = PIPER_SOURCE_DIR "/tests/data/training/";

nlohmann::json reference() {
  std::ifstream file(kFolder + "reference.json");
  return nlohmann::json::parse(file);
}

// The batches as the data room reads them.
std::string write_batches(const Folder& folder, const nlohmann::json& batches) {
  std::vector<NamedTensor> tensors;
  for (size_t k = 0; k < batches.size(); ++k)
    for (const auto& [name, values] : batches[k].items()) {
      const auto reals = values.get<std::vector<float>>();
      tensors.push_back({fmt::format("batch/{}/{}", k, name),
                         {DType::kF32, {8, static_cast<int64_t>(reals.size()) / 8}},
                         Bytes::copy_of(reals.data(), reals.size() * sizeof(float))});
    }
  const std::string path = folder.path() + "/batches.safetensors";
  EXPECT_TRUE(write_safetensors(path, tensors, {}));
  return path;
}

Result<Compiled> compile_file(const Folder& folder, const std::string& model,
                              const std::string& more, int64_t dp = 1, int64_t mb = 1) {
  CompileOptions options;
  options.model = model;
  options.strategy =
      folder.write("strategy.yaml", "piper: 1\ninclude: " PIPER_SOURCE_DIR
                                    "/strategies/ddp.yaml\nparams: {dp: 1, microbatches: 1}\n" +
                                        more);
  options.defines = {{"dp", std::to_string(dp)}, {"microbatches", std::to_string(mb)}};
  options.oracles = false;
  return compile(options);
}
const std::string kPlain = "train: {global_batch: 8}\n";

Result<Trained> run(const PlanSet& set, const std::string& batches, int64_t steps) {
  PIPER_ASSIGN(const auto needs, data_needs(set));
  DataOptions options;
  options.sources = {batches};
  PIPER_ASSIGN(const auto data, open_data(options, needs, set.roles[0].batch));
  JobOptions job_options;
  job_options.steps = steps;
  job_options.threads = 1;
  PIPER_ASSIGN(JobResult job, run_job(set, data.get(), nullptr, nullptr, job_options));
  Trained trained;
  for (const StepMetrics& step : job.steps) trained.losses.push_back(step.loss.value_or(NAN));
  for (NamedTensor& tensor : job.parameters) trained.parameters[tensor.name] = std::move(tensor);
  return trained;
}

TEST(TrainingInfo, TrainsAsTheOperatorsSay) {
  const Folder folder;
  const auto json = reference();
  const std::string batches = write_batches(folder, json["batches"]);
  ASSERT_EQ(json["models"].size(), 6u);
  for (const auto& [name, want] : json["models"].items())
    for (const auto& [dp, mb] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}}) {
      const std::string what = fmt::format("{} dp={} mb={}", name, dp, mb);
      const auto compiled = compile_file(folder, kFolder + name + ".onnx", kPlain, dp, mb);
      ASSERT_TRUE(compiled) << what << print_error(compiled.error());
      const auto trained = run(compiled->set, batches, 4);
      ASSERT_TRUE(trained) << what << print_error(trained.error());
      for (size_t k = 0; k < 4; ++k)
        EXPECT_NEAR(trained->losses[k], want["losses"][k].get<double>(), 2e-6) << what << k;
      EXPECT_EQ(trained->parameters.size(), name == "mixed" ? 2u : 3u);
      for (const auto& [parameter, tensor] : trained->parameters) {
        const auto* got = reinterpret_cast<const float*>(tensor.data.data);
        const auto expected = want["parameters"][parameter].get<std::vector<double>>();
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_NEAR(got[i], expected[i], 2e-6) << what << " " << parameter;
      }
    }
}

TEST(TrainingInfo, TheStrategysOptimizerReplacesTheModels) {
  const Folder folder;
  const auto compiled = compile_file(folder, kFolder + "mixed.onnx",
                                     "train: {global_batch: 8, optimizer: {sgd: {lr: 0.25}}}\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const std::string plan = print_plan(compiled->set.roles[0]);
  EXPECT_NE(plan.find("base=0.25"), plan.npos);
  EXPECT_EQ(plan.find("OnnxAdam"), plan.npos);
  const auto groups = compile_file(folder, kFolder + "mixed.onnx",
                                   "train: {global_batch: 8, groups: [{match: \"w\", lr: 0.1}]}\n");
  ASSERT_FALSE(groups);
  EXPECT_EQ(groups.error().message, "groups without an optimizer: the model has its own");
  EXPECT_EQ(groups.error().at.line, 4);
}

TEST(TrainingInfo, RefusesWhatItDoesNotMean) {
  const Folder folder;
  const std::pair<const char*, const char*> kRefused[] = {
      {"binding",
       "training_info updates 'one' from 'T_next', which is neither a parameter, an optimizer's "
       "state nor its T"},
      {"clipped",
       "node 'w_next' (ai.onnx.preview.training::Momentum): 'dw_small' is not the gradient of 'w' "
       "as a Gradient node makes it; to change gradients before the optimizer is not supported"},
      {"count",
       "node 'w_next' (ai.onnx.preview.training::Momentum): its T 'one' is not an initializer "
       "that an update_binding counts up by one"},
      {"point",
       "node 'dw' (ai.onnx.preview.training::Gradient): a gradient at other values than those of "
       "its xs and zs is not supported"},
      {"rate",
       "node 'w_next' (ai.onnx.preview.training::Momentum): its learning rate 'x' is not a "
       "constant"},
      {"state",
       "node 'w_next' (ai.onnx.preview.training::Momentum): to begin with a state 'w.V' that is "
       "not zero is not supported"},
      {"two", "2 entries of training_info are not supported, only one"},
      {"unbound",
       "node 'w_next' (ai.onnx.preview.training::Momentum): its result 'w_next' is not bound to "
       "'w' by update_binding"},
  };
  for (const auto& [name, message] : kRefused) {
    const auto compiled = compile_file(folder, kFolder + "refused_" + name + ".onnx", kPlain);
    ASSERT_FALSE(compiled) << name;
    EXPECT_EQ(compiled.error().message, message);
    EXPECT_TRUE(compiled.error().at.file.ends_with(name + std::string(".onnx")));
  }
}

}  // namespace
}  // namespace piper
