// Gradients of real exports at step 0, evaluated node by node, against those that PyTorch computed
// in double precision.
#include "piper/frontend/autodiff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "evaluate.h"
#include "piper/base/data.h"
#include "piper/frontend/import.h"

namespace piper {
namespace {

const std::vector<LossTerm> kCrossEntropy{
    {.kind = LossTerm::Kind::kCrossEntropy, .output = "logits", .target = "labels"}};

using test::must;
using test::Tensor;
using test::Values;

std::filesystem::path models() {
  const char* folder = std::getenv("PIPER_MODELS");
  return folder ? std::filesystem::path(folder)
                : std::filesystem::path(PIPER_SOURCE_DIR) / "../shared/models";
}

std::map<std::string, Tensor> read_reference(const std::string& path, std::string_view prefix) {
  std::map<std::string, Tensor> tensors;
  for (const NamedTensor& tensor : must(read_safetensors(path))) {
    if (!tensor.name.starts_with(prefix)) continue;
    tensors[tensor.name.substr(prefix.size())] = test::to_tensor(tensor.type, tensor.data);
  }
  return tensors;
}

// Largest difference ÷ max(largest reference value, 0.05).
double error_of(const Tensor& actual, const Tensor& expected) {
  double scale = 0.05, error = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    scale = std::max(scale, std::abs(expected.values[i]));
    const double difference = std::abs(actual.values[i] - expected.values[i]);
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
  }
  return error / scale;
}

class Reference : public testing::TestWithParam<const char*> {};

TEST_P(Reference, GradientsAtStepZero) {
  const std::filesystem::path folder = models() / GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  Graph graph = must(import_onnx(folder / "model.onnx", {.batch = 8})).graph;
  if (!graph.loss.valid()) {
    graph = must(add_loss(std::move(graph), kCrossEntropy));
  }
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  const Differentiated whole = must(differentiate(std::move(graph), train));
  EXPECT_EQ(join(whole.without_gradient, " "), "");
  const std::string reference = folder / "reference.safetensors";
  std::map<std::string, Tensor> batch = read_reference(reference, "batch/0/");
  Values values(whole.graph.values.size());
  for (ValueId id : whole.graph.inputs) {
    const auto given = batch.find(whole.graph.value(id).name);
    ASSERT_NE(given, batch.end()) << whole.graph.value(id).name;
    values[id.index()] = given->second;
  }
  values = evaluate(whole.graph, std::move(values));
  std::map<std::string, Tensor> expected = read_reference(reference, "grad/");
  EXPECT_EQ(expected.size(), whole.graph.params.size());
  double worst = 0;
  for (const Param& param : whole.graph.params) {
    // The file of bert-hf does not say that this is its name for cls.predictions.bias.
    const bool bert_bias = param.name == "model.cls.predictions.decoder.bias";
    const auto at = expected.find(bert_bias ? "model.cls.predictions.bias" : param.name);
    ASSERT_NE(at, expected.end()) << param.name;
    const Tensor& actual = *values[param.gradient.index()];
    ASSERT_EQ(actual.type.shape, at->second.type.shape) << param.name;
    const double error = error_of(actual, at->second);
    EXPECT_LE(error, 1e-5) << param.name;
    worst = std::max(worst, error);
  }
  RecordProperty("worst_error", fmt::format("{:.2e}", worst));
}

INSTANTIATE_TEST_SUITE_P(Models, Reference,
                         testing::Values("mlp", "two-tower", "gpt-deep", "gpt-unoptimized",
                                         "gpt-logits", "gpt-ts17", "bert-hf", "vit-hf", "gpt2-hf",
                                         "llama-hf", "gpt-opset23", "gpt-static", "gpt-parallel",
                                         "moe-gshard"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace piper
