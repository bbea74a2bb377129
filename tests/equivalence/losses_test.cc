// Losses that a strategy names over the outputs of a forward-only model: whole and cut they train
// as torch.nn.functional says (tests/data/make_losses.py), in f64.
#include <nlohmann/json.hpp>

#include "equivalence/jobs.h"

namespace piper::losses_test {
namespace {

using namespace jobs;

const std::string kFolder = PIPER_SOURCE_DIR "/tests/data/losses/";
constexpr int64_t kSteps = 3;

nlohmann::json cases() {
  std::ifstream file(kFolder + "cases.json");
  return nlohmann::json::parse(file);
}

struct Cut {
  const char* name;
  int stages, dp, microbatches, tp;
};
constexpr Cut kCuts[] = {{"whole", 1, 1, 1, 1},        {"replicas", 1, 2, 1, 1},
                         {"microbatches", 1, 1, 4, 1}, {"pipeline", 2, 1, 2, 1},
                         {"tensors", 1, 1, 1, 2},      {"all", 2, 2, 2, 2}};

Result<Compiled> compile_loss(const Folder& folder, const std::string& loss, const Cut& cut) {
  CompileOptions options;
  options.model = kFolder + "model.onnx";
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\ninclude: {}/strategies/1f1b.yaml\n"
                  "params: {{stages: {}, dp: {}, microbatches: {}}}\nmesh: {{tp: {}}}\n"
                  "loss: {}\n"
                  "train: {{global_batch: 8, optimizer: {{sgd: {{lr: 0.05, momentum: 0.9}}}}}}\n"
                  "directives:\n"
                  "  - shard: {{match: [\"fc1/*\", \"fc2/*\"], dim: 0, over: tp}}\n",
                  PIPER_SOURCE_DIR, cut.stages, cut.dp, cut.microbatches, cut.tp, loss));
  options.oracles = false;
  return compile(options);
}

class Losses : public ::testing::TestWithParam<Cut> {};

TEST_P(Losses, TrainAsInTorch) {
  const nlohmann::json all = cases();
  for (const auto& [name, loss] : all.items()) {
    const Folder folder;
    const auto compiled = compile_loss(folder, loss.get<std::string>(), GetParam());
    ASSERT_TRUE(compiled) << name << print_error(compiled.error());
    const auto trained = train_on(compiled->set, kFolder + "reference.safetensors", kSteps);
    ASSERT_TRUE(trained) << name << print_error(trained.error());
    EXPECT_LT(difference_from(*trained, kFolder + "reference.safetensors", name + "/"), 1e-12)
        << name;
  }
}

// What a term's factor changes is seen by the comparison above.
TEST_P(Losses, AnotherWeightIsSeen) {
  const nlohmann::json all = cases();
  for (const auto& [name, loss] : all.items()) {
    std::string text = loss.get<std::string>();
    if (!text.starts_with("{")) continue;
    text.insert(text.size() - 1, ", weight: 1.001");
    const Folder folder;
    const auto compiled = compile_loss(folder, text, GetParam());
    ASSERT_TRUE(compiled) << name << print_error(compiled.error());
    const auto trained = train_on(compiled->set, kFolder + "reference.safetensors", kSteps);
    ASSERT_TRUE(trained) << name << print_error(trained.error());
    EXPECT_GT(difference_from(*trained, kFolder + "reference.safetensors", name + "/"), 1e-6)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, Losses, ::testing::ValuesIn(kCuts),
                         [](const auto& info) { return std::string(info.param.name); });

struct Wrong {
  const char* loss;
  const char* message;
  int column;
};
constexpr Wrong kWrong[] = {
    {"outt", "loss: the model has no value 'outt' (did you mean 'out'?)", 7},
    {"out", "loss: 'out' is f64[8,20], not a scalar", 7},
    {"{msee: {output: out, target: target}}", "unknown key 'msee' in 'loss' (did you mean 'mse'?)",
     8},
    {"{mse: {output: out, target: target}, mean: out}",
     "'loss' has exactly one of the keys output, mean, sum, cross_entropy, mse, l1, smooth_l1, "
     "huber, bce, bce_with_logits, kl",
     44},
    {"{mse: {output: out}}", "'mse' needs the key 'target'", 8},
    {"{mse: {output: z, target: target}}", "loss: the model has no value 'z'", 22},
    {"{mse: {output: out, target: scores}}",
     "loss: the target of 'out' must be f64[8,20], but 'scores' is f64[8,5,4]", 35},
    {"{cross_entropy: {logits: last, labels: x}}",
     "loss: the target of 'last' must be i64[8,4], but 'x' is f64[8,6]", 46},
    {"{cross_entropy: {logits: last, labels: labels, dim: 3}}",
     "loss: 'last' is f64[8,4,5], which has no dim 3 of classes", 8},
    {"{mse: {output: total, target: target}}",
     "loss: the target of 'total' would be [], and no dim counts the 8 samples of a batch", 37},
    {"{smooth_l1: {output: out, target: target, beta: 0}}", "", 55},
    {"[]", "'loss' is a list without terms", 7},
    {"[{mse: {output: out, target: target}}, {mean: chance}]",
     "loss: the model has no value 'chance' (did you mean 'chances'?)", 53},
};

TEST(Loss, ErrorsStandAtTheName) {
  for (const Wrong& wrong : kWrong) {
    const Folder folder;
    const auto compiled = compile_loss(folder, wrong.loss, kCuts[0]);
    ASSERT_FALSE(compiled) << wrong.loss;
    const Error& error = compiled.error();
    EXPECT_EQ(error.message.rfind(wrong.message, 0), 0u) << wrong.loss << error.message;
    EXPECT_EQ(error.at.line, 5) << wrong.loss << print_error(error);
    EXPECT_EQ(error.at.column, wrong.column) << wrong.loss << print_error(error);
  }
}

}  // namespace
}  // namespace piper::losses_test
