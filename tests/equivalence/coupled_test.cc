// Losses that couple the samples of a batch, or look as if they did: uncut they train as central
// differences in double say; cut, they do the same or are refused with the op that couples.
#include <nlohmann/json.hpp>

#include "equivalence/jobs.h"

namespace piper {
namespace {

using namespace jobs;

const std::string kFolder = PIPER_SOURCE_DIR "/tests/data/coupled/";

struct Model {
  const char* name;
  const char* refusal;  // of a cut; "" where every cut is exact
};
const Model kModels[] = {
    {"batch_norm", "op Sub at norm needs the sum of 'mean' (f32[1,4]) over all its samples"},
    {"contrastive", "op MatMul at contrast couples its samples"},
    {"cumsum_over_batch", "op CumSum at scan couples its samples"},
    {"first_half", "op Slice at slice couples its samples"},
    {"max_over_batch", "op ReduceMax at pool couples its samples"},
    {"shuffled", "op Gather at shuffle couples its samples"},
    {"softmax_over_batch", "op Softmax at head couples its samples"},
    {"squared_mean", "op Mul at aux needs the sum of 'mean' (f32[1,4]) over all its samples"},
    {"ones_beside", "op Where at bias needs the sum of 'mean' (f32[4]) over all its samples"},
    {"centred_inputs", ""},
    {"entropy_sum", ""},
    {"inner", ""},
    {"losses", ""},
    {"masked_bias", ""},
    {"plain_mean", ""},
    {"pairs", ""},
    {"weight_norm", ""},
    {"zeros_beside", ""},
};

nlohmann::json reference() {
  std::ifstream file(kFolder + "reference.json");
  return nlohmann::json::parse(file);
}

Result<Compiled> compile_cut(const Folder& folder, const std::string& name, int64_t dp,
                             int64_t mb) {
  CompileOptions options;
  options.model = kFolder + name + ".onnx";
  options.strategy =
      folder.write("strategy.yaml", "piper: 1\ninclude: " PIPER_SOURCE_DIR
                                    "/strategies/ddp.yaml\n"
                                    "params: {dp: 1, microbatches: 1}\n"
                                    "train: {global_batch: 8, optimizer: {sgd: {lr: 0.1}}}\n");
  options.defines = {{"dp", std::to_string(dp)}, {"microbatches", std::to_string(mb)}};
  options.oracles = false;
  return compile(options);
}

void expect_reference(const PlanSet& set, const std::string& batches, const nlohmann::json& want,
                      const std::string& what) {
  const auto trained = train_on(set, batches, static_cast<int64_t>(want["losses"].size()));
  ASSERT_TRUE(trained) << what << print_error(trained.error());
  for (size_t k = 0; k < trained->losses.size(); ++k) {
    const double loss = want["losses"][k].get<double>();
    EXPECT_NEAR(trained->losses[k], loss, 1e-6 * std::max(1.0, loss)) << what << " step " << k;
  }
  ASSERT_EQ(trained->parameters.size(), 1u) << what;
  const auto* w = reinterpret_cast<const float*>(trained->parameters.begin()->second.data.data);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(w[i], want["w"][i].get<double>(), 1e-6) << what;
}

class Coupled : public ::testing::TestWithParam<Model> {};

TEST_P(Coupled, TrainsRightOrIsRefused) {
  const Model& model = GetParam();
  const Folder folder;
  const auto json = reference();
  const std::string batches = write_batches(folder, json["batches"]);
  const std::pair<int64_t, int64_t> cuts[] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 8}};
  for (const auto& [dp, mb] : cuts) {
    const std::string what = fmt::format("{} dp={} mb={}", model.name, dp, mb);
    const auto compiled = compile_cut(folder, model.name, dp, mb);
    std::string refusal = dp * mb > 1 ? model.refusal : "";
    if (std::string(model.name) == "pairs" && dp * mb == 8)
      refusal = "op Reshape at pairs splits 'h' (f32[8,4]) unevenly";
    if (refusal.empty()) {
      ASSERT_TRUE(compiled) << what << print_error(compiled.error());
      expect_reference(compiled->set, batches, json["models"][model.name], what);
      continue;
    }
    ASSERT_FALSE(compiled) << what;
    EXPECT_NE(compiled.error().message.find(refusal), std::string::npos)
        << compiled.error().message;
    EXPECT_EQ(compiled.error().message.find("the batch cannot be cut"), 0u)
        << compiled.error().message;
    EXPECT_EQ(compiled.error().notes.back(),
              "help: uncut, with one microbatch and one replica, the model trains as it is");
    // The place of the directive that asks for it: split, or else replicate.
    const std::string& file = compiled.error().at.file;
    EXPECT_TRUE(file.ends_with(mb > 1 ? "strategies/ddp.yaml" : "memory/ddp.yaml")) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Coupled, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace piper
