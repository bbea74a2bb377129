// The oracle: in f64 a model trains as PyTorch's float64 reference does, to the rounding with which
// the reference is stored. What f32 adds to that is rounding alone.
#include <nlohmann/json.hpp>

#include "equivalence/entries.h"

namespace piper::double_test {
namespace {

using namespace jobs;

// The references' parameters are stored in f32, which is 6e-8 off. Losses are stored whole; what is
// left of theirs are the constants of the exported files, which are f32 (without such, as in `mlp`,
// they are 4e-16 off). AdamW magnifies that where gradients are tiny.
struct Bound {
  double loss, parameter;
};
Bound bound_of(const std::string& model, const char* optimizer) {
  if (optimizer == kSgd) return {2e-8, 1e-7};
  return {5e-8, model == "llama-hf" ? 5e-6 : 1e-6};  // the rotary tables are f32, too
}

struct Error {
  double loss = 0, parameter = 0;
};
Error error_of(const std::string& model, const char* optimizer, const Trained& trained) {
  Error error;
  const auto json = reference_json(model);
  for (size_t k = 0; k < trained.losses.size(); ++k) {
    const double want = json[optimizer]["losses"][k].get<double>();
    error.loss =
        std::max(error.loss, std::abs(trained.losses[k] - want) / std::max(std::abs(want), 0.05));
  }
  if (trained.losses.size() < json[optimizer]["losses"].size()) return error;
  const std::string prefix = std::string(optimizer) + "/";
  for (const auto& [name, want] : reference_tensors(model))
    if (name.starts_with(prefix)) {
      const auto got = trained.parameters.find(name.substr(prefix.size()));
      const double worst =
          got == trained.parameters.end() ? INFINITY : tensor_error(got->second, want);
      if (worst > error.parameter) error.parameter = worst;
    }
  return error;
}

Trained train_in_f64(const std::string& model, const char* optimizer, const Shape2& shape,
                     int64_t steps) {
  const std::string text =
      strategy_text(model, optimizer) + "directives: [{precision: {compute: f64}}]\n";
  const auto compiled = compile_model(model, text, shape);
  if (!compiled) {
    ADD_FAILURE() << model << ": " << print_error(compiled.error());
    return {};
  }
  auto trained = train(compiled->set, model, steps);
  if (!trained) {
    ADD_FAILURE() << model << ": " << print_error(trained.error());
    return {};
  }
  return *std::move(trained);
}

class Double : public ::testing::TestWithParam<const char*> {};

TEST_P(Double, EqualsTheReferenceToItsStorage) {
  const std::string model = GetParam();
  NEED_MODEL(model);
  const bool is_small = model == "mlp" || model == "two-tower";
  if (kSanitized && !is_small) GTEST_SKIP() << "slow under sanitizers";
  for (const auto& [name, optimizer] : {std::pair{"sgd", kSgd}, std::pair{"adamw", kAdamW}}) {
    if (model == "gpt" && optimizer == kSgd) continue;  // the largest
    const Bound bound = bound_of(model, optimizer);
    for (const Shape2& shape : {Shape2{1, 1, 1}, Shape2{2, 2, 2}}) {
      if (model == "gpt" && shape.pp > 1) continue;
      const Error error = error_of(model, name, train_in_f64(model, optimizer, shape, 20));
      EXPECT_LE(error.loss, bound.loss) << name << " pp=" << shape.pp;
      EXPECT_LE(error.parameter, bound.parameter) << name << " pp=" << shape.pp;
    }
  }
}

// Squares of gradients are f64, too, and round wherever they are added up: over both levels of
// replicas they are added as one device adds them, run by run.
TEST(DoubleNorm, AddsSquaresOfTwoLevelsAsOneDeviceDoes) {
  NEED_MODEL("mlp");
  const Entries of{"levels", "dp: 2, out: 4",
                   "  - precision: {compute: f64}\n"
                   "  - replicate: {over: dp, shard: [optimizer, gradients]}\n"
                   "  - replicate: {over: out, shard: [optimizer]}\n",
                   1};
  const auto compiled = compile_text(
      "mlp", text_of(of, 1), "optimizer: {adamw: {lr: 1e-2}}, clip_norm: 0.5", {.oracles = true});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto result = train_beside_single(*compiled, "mlp", 5);
  EXPECT_TRUE(result) << print_error(result.error());
  EXPECT_TRUE(result && result->bitwise);
}

// What f32 hides is seen: a learning rate that is one part in 400,000 off.
TEST(DoubleControl, SeesASmallError) {
  NEED_MODEL("mlp");
  const Trained wrong =
      train_in_f64("mlp", "optimizer: {sgd: {lr: 0.02000005, momentum: 0.9}}", {1, 1, 1}, 20);
  const Error error = error_of("mlp", "sgd", wrong);
  EXPECT_GT(error.loss, bound_of("mlp", kSgd).loss);
  EXPECT_GT(error.parameter, bound_of("mlp", kSgd).parameter);
  EXPECT_LT(error.parameter, 5e-6);  // what f32 is held to
}

INSTANTIATE_TEST_SUITE_P(Models, Double,
                         ::testing::Values("mlp", "two-tower", "gpt-deep", "gpt-unoptimized",
                                           "gpt-logits", "gpt-ts17", "gpt", "bert-hf", "vit-hf",
                                           "gpt2-hf", "llama-hf", "gpt-opset23", "gpt-static",
                                           "gpt-parallel"),
                         [](const auto& info) { return identifier(info.param); });

}  // namespace
}  // namespace piper::double_test
