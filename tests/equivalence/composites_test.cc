// Composite ops against the primitive ops they stand for: written out again, in double precision;
// found in real exports, whose gradients then stay the same.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "evaluate.h"
#include "ops/expand.h"
#include "piper/base/data.h"
#include "piper/frontend/autodiff.h"
#include "piper/frontend/import.h"
#include "piper/frontend/patterns.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

const std::vector<LossTerm> kCrossEntropy{
    {.kind = LossTerm::Kind::kCrossEntropy, .output = "logits", .target = "labels"}};

using test::must;
using test::Tensor;
using test::Values;

constexpr uint64_t kSeed = 20240711;

// ---- Samples of the op table ------------------------------------------------------------------

// A graph whose loss is the op's first output times drawn numbers. Floats are parameters times an
// input that is one, so that adjoints go both ways, through values that depend on inputs.
Graph loss_of(const OpDef& def, const OpSample& sample, std::mt19937_64& random) {
  Graph graph;
  Value one{.name = "one", .type = {DType::kF64, {}}, .kind = ValueKind::kInput};
  graph.inputs.push_back(graph.add_value(one));
  Builder build(graph);
  std::vector<ValueId> operands;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const TensorType& type = sample.inputs[i];
    const Bytes data =
        test::to_bytes(test::draw(type, random, sample.low, sample.high, sample.int_high));
    if (!info(type.dtype).is_float) {
      operands.push_back(build.constant(type, data));
      continue;
    }
    Value value{.name = fmt::format("p{}", i), .type = type, .kind = ValueKind::kState};
    value.data = data;
    Param param;
    param.name = param.scope = value.name;
    param.value = graph.add_value(std::move(value));
    graph.params.push_back(param);
    operands.push_back(build.mul(param.value, graph.inputs[0]));
  }
  const ValueId y = build.op(def.name, operands, sample.attrs)[0];
  const TensorType type = build.type(y);
  const ValueId weights = build.constant(type, test::to_bytes(test::draw(type, random, -1, 1, 1)));
  std::vector<int64_t> axes;
  for (size_t d = 0; d < type.shape.size(); ++d) axes.push_back(static_cast<int64_t>(d));
  graph.loss = build.reduce_sum(build.mul(y, weights), axes, false);
  graph.outputs = {graph.loss};
  return graph;
}

std::vector<Tensor> gradients(const Graph& step) {
  Values values(step.values.size());
  values[step.inputs[0].index()] = Tensor{{DType::kF64, {}}, {1}};
  values = evaluate(step, std::move(values));
  std::vector<Tensor> all{*values[step.loss.index()]};
  for (const Param& param : step.params)
    if (param.gradient.valid()) all.push_back(*values[param.gradient.index()]);
  return all;
}

void expect_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    double scale = 1;
    for (double x : expected[i].values) scale = std::max(scale, std::abs(x));
    for (size_t e = 0; e < expected[i].values.size(); ++e)
      ASSERT_LE(std::abs(actual[i].values[e] - expected[i].values[e]), 1e-10 * scale)
          << "value " << i << " element " << e;
  }
}

bool has_composite(const Graph& graph) {
  const auto ops = expandable_ops();
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return std::binary_search(ops.begin(), ops.end(), node.op);
  });
}
Graph written_out(Graph graph) {
  return must(expand_composites(std::move(graph), [](std::string_view) { return true; }));
}

// The composite with its own gradient; the same step with all composites, backward ones too,
// written out; and the gradient that autodiff makes of the written-out forward op.
TEST(Composites, AgreeWithThePrimitiveOps) {
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  int checked = 0;
  for (const std::string_view op : expandable_ops()) {
    const OpDef* def = find_op(op);
    ASSERT_NE(def, nullptr) << op;
    if (!def->gradient) continue;  // backward: the forward op's sample reaches it
    for (size_t i = 0; i < def->samples.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} sample {} (seed {})", op, i, kSeed + i));
      std::mt19937_64 random(kSeed + i);
      const Graph forward = loss_of(*def, def->samples[i], random);
      const Graph own = must(differentiate(forward, train)).graph;
      const Graph expanded = written_out(own);
      EXPECT_TRUE(has_composite(own));
      EXPECT_FALSE(has_composite(expanded));
      const std::vector<Tensor> expected = gradients(own);
      expect_same(gradients(expanded), expected);
      const Graph differentiated = must(differentiate(written_out(forward), train)).graph;
      EXPECT_FALSE(has_composite(differentiated));
      expect_same(gradients(differentiated), expected);
      ++checked;
    }
  }
  EXPECT_GE(checked, 25);
}

TEST(Composites, OnlyThoseThatAreWantedAreWrittenOut) {
  std::mt19937_64 random(kSeed);
  const OpDef* def = find_op("Gelu");
  const Graph graph = loss_of(*def, def->samples[0], random);
  const Graph same =
      must(expand_composites(graph, [](std::string_view op) { return op != "Gelu"; }));
  EXPECT_EQ(print_graph(same), print_graph(graph));
}

// ---- Real exports -----------------------------------------------------------------------------

std::filesystem::path models() {
  const char* folder = std::getenv("PIPER_MODELS");
  return folder ? std::filesystem::path(folder)
                : std::filesystem::path(PIPER_SOURCE_DIR) / "../shared/models";
}

using Counts = std::map<std::string, int64_t>;
struct Model {
  const char* name;
  Counts composites;
};
std::ostream& operator<<(std::ostream& out, const Model& model) { return out << model.name; }

Counts of_gpt(int64_t layers) {
  return {{"Attention", layers},
          {"LayerNorm", 2 * layers + 1},
          {"Gelu", layers},
          {"CrossEntropySum", 1}};
}
const Model kModels[] = {
    {"gpt", of_gpt(4)},
    {"gpt-deep", of_gpt(8)},
    {"gpt-logits", of_gpt(4)},
    {"gpt-opset23", of_gpt(4)},
    {"gpt-parallel", of_gpt(4)},
    {"gpt-static", of_gpt(4)},
    {"gpt-ts17", of_gpt(4)},
    {"gpt-unoptimized", of_gpt(4)},
    {"gpt2-hf", of_gpt(4)},
    {"moe-gshard", {{"Attention", 4}, {"LayerNorm", 12}, {"Gelu", 8}, {"CrossEntropySum", 1}}},
    {"qwen3-moe-hf",
     {{"Attention", 4},
      {"RmsNorm", 17},
      {"Rotary", 8},
      {"SwiGlu", 4},
      {"GroupedMatMul", 8},
      {"CrossEntropySum", 1}}},
    {"bert-hf", {{"Attention", 4}, {"LayerNorm", 10}, {"Gelu", 5}, {"CrossEntropySum", 1}}},
    {"vit-hf", {{"Attention", 4}, {"LayerNorm", 9}, {"Gelu", 4}, {"CrossEntropySum", 1}}},
    {"llama-hf",
     {{"Attention", 4}, {"RmsNorm", 9}, {"Rotary", 8}, {"SwiGlu", 4}, {"CrossEntropySum", 1}}},
};

class Exports : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    folder_ = models() / GetParam().name;
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "no " << folder_;
  }
  Graph import() const {
    Graph graph = must(import_onnx(folder_ / "model.onnx", {.batch = 8})).graph;
    if (graph.loss.valid()) return graph;
    return must(add_loss(std::move(graph), kCrossEntropy));
  }
  std::filesystem::path folder_;
};

TEST_P(Exports, HoldTheseComposites) {
  const Graph found = must(recognise(import())).graph;
  const auto ops = expandable_ops();
  Counts counts;
  for (const Node& node : found.nodes)
    if (std::binary_search(ops.begin(), ops.end(), node.op)) ++counts[node.op];
  EXPECT_EQ(counts, GetParam().composites);
  for (const Node& node : found.nodes) {
    const bool decoder = std::string(GetParam().name).find("bert") == std::string::npos &&
                         std::string(GetParam().name).find("vit") == std::string::npos;
    if (node.op != "Attention") continue;
    EXPECT_EQ(node.attrs.integer("causal"), int64_t{decoder});
  }
}

// The gradients of step 0 with composites, with composites written out again, and as imported.
TEST_P(Exports, HaveTheSameGradients) {
  // What the evaluation here, op by op in vectors of doubles, takes too long for; and what has
  // other bounds, by choices of experts that rounding turns.
  const std::string name = GetParam().name;
  if (name == "gpt" || name == "moe-gshard") GTEST_SKIP() << name << " is compared elsewhere";
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  std::map<std::string, Tensor> batch;
  for (const NamedTensor& t : must(read_safetensors(folder_ / "reference.safetensors")))
    if (t.name.starts_with("batch/0/")) batch[t.name.substr(8)] = test::to_tensor(t.type, t.data);
  const auto gradients = [&](const Graph& step) {
    Values values(step.values.size());
    for (ValueId id : step.inputs) values[id.index()] = batch.at(step.value(id).name);
    values = evaluate(step, std::move(values));
    std::map<std::string, Tensor> all;
    for (const Param& param : step.params) all[param.name] = *values[param.gradient.index()];
    return all;
  };
  const auto plain = gradients(must(differentiate(import(), train)).graph);
  const Graph composite = must(differentiate(must(recognise(import())).graph, train)).graph;
  double whole = 0;
  for (const auto& [param, tensor] : plain)
    for (double x : tensor.values) whole += x * x;
  for (const auto& other : {gradients(composite), gradients(written_out(composite))}) {
    for (const auto& [param, expected] : plain) {
      double distance = 0, size = 1e-6 * whole;  // some gradients are zero but for rounding
      const Tensor& actual = other.at(param);
      ASSERT_EQ(actual.type, expected.type) << param;
      for (size_t i = 0; i < expected.values.size(); ++i) {
        distance += std::pow(actual.values[i] - expected.values[i], 2);
        size += std::pow(expected.values[i], 2);
      }
      EXPECT_LE(std::sqrt(distance / size), 5e-6) << param;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Exports, testing::ValuesIn(kModels), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace piper
