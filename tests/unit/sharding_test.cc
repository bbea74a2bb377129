#include "piper/planner/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>

#include "golden.h"
#include "piper/frontend/autodiff.h"
#include "piper/frontend/import.h"
#include "support/forms/parse_graph.h"
#include "unit/sharding_oracle.h"

namespace piper {
namespace {

const std::vector<LossTerm> kCrossEntropy{
    {.kind = LossTerm::Kind::kCrossEntropy, .output = "logits", .target = "labels"}};

int64_t number_in(const std::string& text, const std::string& name) {
  size_t at = text.find(name + "=");
  int64_t value = 0;
  if (at == std::string::npos) return value;
  const char* begin = text.data() + at + name.size() + 1;
  std::from_chars(begin, text.data() + text.size(), value);
  return value;
}

BatchCut parse_cut(const std::string& text) {
  return {number_in(text, "replicas"), number_in(text, "microbatches"), {}};
}

// The nodes that sharding changes nothing about are noise: values and nodes alone are compared.
TEST(Sharding, Golden) {
  golden::run("sharding/*.test", {"after", "error"}, [](const golden::Case& c) -> golden::Section {
    Result<Graph> graph = parse_graph(c.text("graph"));
    if (!graph) return {"error", print_error(graph.error())};
    Result<Graph> uncut = shard_batch(*graph, BatchCut{});
    EXPECT_TRUE(uncut.ok()) << c.file << ":" << c.line;
    Result<Graph> cut = shard_batch(*graph, parse_cut(c.text("cut")));
    if (!cut) return {"error", print_error(cut.error())};
    Status checked = check_graph(*cut);
    EXPECT_TRUE(checked.ok()) << print_error(checked.error());
    SCOPED_TRACE(fmt::format("{}:{}", c.file, c.line));
    oracle::expect_same(*cut, *uncut, oracle::random_sources(*graph, 1, 2), 1e-5);
    return {"after", print_graph(*cut)};
  });
}

TEST(Sharding, ErrorsStandAtTheDirective) {
  const Result<Graph> graph = parse_graph(
      "graph batch=8 shards=1\n"
      "input %x:f32[8,4] batch_dim=0\n"
      "%soft:f32[8,4] = Softmax(%x) {axis=0} pass=F scope=head\n");
  ASSERT_TRUE(graph.ok());
  Result<Graph> cut = shard_batch(*graph, {1, 4, {"strategy.yaml", 3, 7, 5}});
  ASSERT_FALSE(cut.ok());
  const std::string text = print_error(cut.error());
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "strategy.yaml:3:7: error: the batch cannot be cut: op Softmax at head couples its "
            "samples");
}

// ---- Random graphs ------------------------------------------------------------------------------

constexpr int64_t kBatch = 8, kSteps = 3, kWidth = 4;

// A random network on x[8,3,4]: rows of samples go through random ops, shapes change and come back,
// and every parameter gets a contribution like a gradient.
class RandomModel {
 public:
  explicit RandomModel(unsigned seed) : random_(seed), build_(graph) {
    graph.batch = kBatch;
    x_ = source("x", {DType::kF64, {kBatch, kSteps, kWidth}}, 0);
    labels_ = source("labels", {DType::kI64, {kBatch, kSteps}}, 0);
    for (int i = 0; i < 8; ++i) x_ = step(x_);
    finish();
  }
  Graph graph;

 private:
  size_t pick(size_t count) { return random_() % count; }
  ValueId source(std::string name, TensorType type, int batch_dim) {
    Value value;
    value.name = std::move(name);
    value.type = std::move(type);
    value.kind = batch_dim >= 0 ? ValueKind::kInput : ValueKind::kState;
    value.batch_dim = batch_dim;
    ValueId id = graph.add_value(std::move(value));
    if (batch_dim >= 0) graph.inputs.push_back(id);
    return id;
  }
  ValueId param(Shape shape) {
    Param param;
    param.name = fmt::format("w{}", graph.params.size());
    param.value = source(param.name, {DType::kF64, std::move(shape)}, -1);
    graph.params.push_back(param);
    return param.value;
  }
  // Along the samples all the same, spelled out or to be expanded.
  ValueId mask() {
    std::vector<double> row(kSteps * kWidth), all;
    for (double& element : row) element = static_cast<double>(pick(5)) - 2;
    for (int64_t b = 0; b < kBatch; ++b) all.insert(all.end(), row.begin(), row.end());
    TensorType one{DType::kF64, {1, kSteps, kWidth}}, full{DType::kF64, {kBatch, kSteps, kWidth}};
    if (pick(2) == 0) return build_.constant(full, oracle::encode(full, all));
    ValueId expanded = build_.expand(build_.constant(one, oracle::encode(one, row)), full.shape);
    return pick(2) == 0 ? expanded : build_.neg(expanded);
  }
  ValueId linear(ValueId x) {
    ValueId y = build_.matmul(x, param({kWidth, kWidth}));
    add_gradient(build_.matmul(build_.reshape(x, {kBatch * kSteps, kWidth}),
                               build_.reshape(y, {kBatch * kSteps, kWidth}), true, false));
    return y;
  }
  ValueId bias(ValueId x) {
    ValueId y = build_.add(x, param({kWidth}));
    add_gradient(masked(build_.sum_to(y, {kWidth})));
    return y;
  }
  // A sum over the samples, or some of its elements and zeros.
  ValueId masked(ValueId sum) {
    const ValueId zero = build_.scalar(0, DType::kF64);
    const uint8_t bits[kWidth] = {1, 0, 0, 1};
    const ValueId mask =
        build_.constant({DType::kBool, {kWidth}}, Bytes::copy_of(bits, sizeof bits));
    const ValueId zeros = build_.expand(build_.reshape(zero, {1}), {kWidth});
    switch (pick(4)) {
      case 0:
        return build_.op1("Where", {mask, sum, zero});
      case 1:
        return build_.op1("Where", {mask, zeros, sum});
      case 2:
        return build_.reduce_sum(
            build_.op1("Concat",
                       {build_.reshape(zeros, {1, kWidth}), build_.reshape(sum, {1, kWidth})},
                       {{"axis", int64_t{0}}}),
            {0}, false);
      default:
        return sum;
    }
  }
  // There and back through a dim that holds samples inside, in front, or between other factors.
  ValueId detour(ValueId x) {
    constexpr int64_t kPerms[][3] = {{1, 0, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}};
    const auto& perm = kPerms[pick(4)];
    std::vector<int64_t> inverse(3);
    for (size_t d = 0; d < 3; ++d) inverse[static_cast<size_t>(perm[d])] = static_cast<int64_t>(d);
    ValueId turned = build_.transpose(x, {perm[0], perm[1], perm[2]});
    Shape shape = build_.shape(turned);
    Shape flat{shape[0] * shape[1], shape[2]};
    if (pick(2) == 0) flat = {shape[0], shape[1] * shape[2]};
    ValueId merged = build_.op1("Tanh", {build_.reshape(turned, flat)});
    if (pick(2) == 0) merged = build_.reshape(merged, {kBatch * kSteps * kWidth});
    return build_.transpose(build_.reshape(merged, shape), inverse);
  }
  ValueId attend(ValueId x) {
    ValueId scores = build_.matmul(x, x, false, true);
    return build_.matmul(build_.op1("Softmax", {scores}, {{"axis", int64_t{2}}}), x);
  }
  // Divides by a number that needs all samples, but no parameter.
  ValueId by_count(ValueId x) {
    ValueId count = build_.op1("LabelCount", {labels_}, {{"ignore_index", int64_t{0}}});
    ValueId real = build_.op1("Cast", {count}, {{"to", "f64"}});
    if (pick(2) == 0) real = build_.expand(real, build_.shape(x));
    ValueId scaled = build_.mul(real, build_.scalar(0.1, DType::kF64));
    return build_.div(x, pick(2) == 0 ? build_.op1("Exp", {scaled}) : scaled);
  }
  ValueId step(ValueId x) {
    switch (pick(8)) {
      case 0:
        return linear(x);
      case 1:
        return bias(x);
      case 2:
        return build_.mul(x, mask());
      case 3:
        return build_.add(x, build_.op1("Tanh", {mask()}));
      case 4:
        return attend(x);
      case 5:
        return by_count(x);
      default:
        return detour(x);
    }
  }
  void add_gradient(ValueId contribution) { gradients_.push_back(contribution); }
  void finish() {
    build_.pass = Pass::kU;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      graph.params[i].gradient = build_.op1("StepSum", {gradients_[i]});
    }
    ValueId sum = build_.reduce_sum(x_, {0, 1, 2}, false);
    ValueId count = build_.op1("LabelCount", {labels_}, {{"ignore_index", int64_t{0}}});
    ValueId mean = build_.div(sum, build_.op1("Cast", {count}, {{"to", "f64"}}));
    graph.loss = build_.op1("StepSum", {mean});
  }

  std::mt19937 random_;
  Builder build_;
  ValueId x_, labels_;
  std::vector<ValueId> gradients_;
};

TEST(Sharding, RandomGraphsGiveTheSameNumbersWhateverTheCut) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomModel model(seed);
    ASSERT_TRUE(check_graph(model.graph).ok());
    Result<Graph> uncut = shard_batch(model.graph, {});
    ASSERT_TRUE(uncut.ok());
    oracle::Sources sources = oracle::random_sources(model.graph, seed, 3);
    for (auto [replicas, microbatches] : {std::pair{1, 2}, {2, 1}, {2, 2}, {1, 8}}) {
      Result<Graph> cut = shard_batch(model.graph, {replicas, microbatches, {}});
      ASSERT_TRUE(cut.ok()) << print_error(cut.error()) << print_graph(model.graph);
      EXPECT_EQ(cut->shards, replicas * microbatches);
      EXPECT_EQ(cut->nodes.size(), uncut->nodes.size());
      Status checked = check_graph(*cut);
      ASSERT_TRUE(checked.ok()) << print_error(checked.error());
      for (const Param& param : cut->params) {
        const Node& sum = cut->node(cut->value(param.gradient).producer);
        EXPECT_EQ(cut->value(sum.inputs[0]).layout.kind, LayoutKind::kPartial);
      }
      oracle::expect_same(*cut, *uncut, sources, 1e-12);
      if (HasFailure()) return;
    }
  }
}

// The comparison above can fail: a mean made otherwise differs.
TEST(Sharding, OracleSeesAWrongLayout) {
  RandomModel model(1);
  Result<Graph> uncut = shard_batch(model.graph, {}), cut = shard_batch(model.graph, {1, 2, {}});
  ASSERT_TRUE(cut.ok());
  oracle::Sources sources = oracle::random_sources(model.graph, 1, 3);
  oracle::Run right(*cut, sources), whole(*uncut, sources);
  ASSERT_NEAR(right.whole(cut->loss)[0], whole.whole(uncut->loss)[0], 1e-12);
  const Node& sum = cut->node(cut->value(cut->loss).producer);
  cut->node(cut->value(sum.inputs[0]).producer).op = "Max";  // was Div by the count
  oracle::Run wrong(*cut, sources);
  EXPECT_GT(std::abs(wrong.whole(cut->loss)[0] - whole.whole(uncut->loss)[0]), 1e-6);
}

// ---- Real models --------------------------------------------------------------------------------

Result<Graph> training_graph(const std::string& path, bool has_loss) {
  ImportOptions options;
  options.batch = 8;
  PIPER_ASSIGN(Imported imported, import_onnx(path, options));
  Graph graph = std::move(imported.graph);
  if (!has_loss) {
    PIPER_ASSIGN(graph, add_loss(std::move(graph), kCrossEntropy));
  }
  TrainSpec train;
  train.optimizer.name = "adamw";
  train.groups = {{"**", {}, 1e-3, 0.1}};
  train.clip_norm = 1.0;
  PIPER_ASSIGN(Differentiated result, differentiate(std::move(graph), train));
  return std::move(result.graph);
}

int count_early_sums(const Graph& graph) {
  int count = 0;
  for (const Node& node : graph.nodes) count += node.op == "StepSum" && node.pass == Pass::kF;
  return count;
}

class Models : public testing::TestWithParam<const char*> {};

TEST_P(Models, GiveTheSameNumbersWhateverTheCut) {
  const char* folder = std::getenv("PIPER_MODELS");
  std::string models = folder ? folder : PIPER_SOURCE_DIR "/../shared/models";
  std::string path = models + "/" + GetParam() + "/model.onnx";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  Result<Graph> graph = training_graph(path, std::string(GetParam()) != "gpt-logits");
  ASSERT_TRUE(graph.ok()) << print_error(graph.error());
  Result<Graph> uncut = shard_batch(*graph, {});
  ASSERT_TRUE(uncut.ok());
  oracle::Sources sources = oracle::random_sources(*graph, 1, 4);
  for (auto [replicas, microbatches] : {std::pair{1, 4}, {2, 1}, {2, 4}}) {
    Result<Graph> cut = shard_batch(*graph, {replicas, microbatches, {}});
    ASSERT_TRUE(cut.ok()) << print_error(cut.error());
    Status checked = check_graph(*cut);
    ASSERT_TRUE(checked.ok()) << print_error(checked.error());
    EXPECT_EQ(cut->nodes.size(), uncut->nodes.size());
    // One sum before the microbatches: the label count. The two others are means of squares.
    bool has_labels = std::string(GetParam()).starts_with("gpt");
    EXPECT_EQ(count_early_sums(*cut), has_labels ? 1 : 0);
    EXPECT_EQ(count_early_sums(*uncut), count_early_sums(*cut));
    bool is_large = std::string(GetParam()) == "gpt";  // a minute, op by op
    if (!is_large && replicas == 2) oracle::expect_same(*cut, *uncut, sources, 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Sharding, Models,
                         testing::Values("mlp", "two-tower", "gpt", "gpt-deep", "gpt-unoptimized",
                                         "gpt-logits", "gpt-ts17"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A pass of quadratic time would meet the time limit of tests.
TEST(Sharding, ManyNodesTakeLinearTime) {
  Graph graph;
  graph.batch = 8;
  Value x;
  x.name = "x";
  x.kind = ValueKind::kInput;
  x.batch_dim = 0;
  x.type = {DType::kF32, {8, 4}};
  ValueId at = graph.add_value(x);
  graph.inputs = {at};
  Builder build(graph);
  for (int i = 0; i < 200000; ++i) at = build.neg(at);
  graph.loss = build.op1("StepSum", {build.reduce_sum(at, {0, 1}, false)});
  ASSERT_TRUE(shard_batch(graph, {2, 2, {}}).ok());
  EXPECT_TRUE(evaluated(graph));
}

}  // namespace
}  // namespace piper
