// Batch norms in training mode, and other buffers that forward changes: losses, parameters and
// buffers are PyTorch's after five steps, on one device and on the stages of a pipeline; and what
// the strategy may say of them.
#include "equivalence/jobs.h"
#include "piper/base/data.h"
#include "piper/plan/verify.h"

namespace piper::batch_norm_test {
namespace {

using namespace jobs;

std::string file_of(const std::string& model, const char* ending) {
  return PIPER_SOURCE_DIR "/tests/data/batch_norm/" + model + ending;
}

Result<Compiled> compile_file(const std::string& path, const Shape2& shape,
                              const std::string& more = "") {
  const Folder folder;
  CompileOptions options;
  options.model = path;
  options.strategy = folder.write(
      "strategy.yaml", "piper: 1\ninclude: " PIPER_SOURCE_DIR
                       "/strategies/1f1b.yaml\nparams: {stages: 1, dp: 1, microbatches: 1}\n"
                       "train: {global_batch: 8, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}\n" +
                           more);
  options.defines = {{"stages", std::to_string(shape.pp)},
                     {"dp", std::to_string(shape.dp)},
                     {"microbatches", std::to_string(shape.mb)}};
  options.oracles = false;
  return compile(options);
}

Result<Compiled> compile_norms(const std::string& model, const Shape2& shape,
                               const std::string& more = "") {
  return compile_file(file_of(model, ".onnx"), shape, more);
}

std::map<std::string, NamedTensor> reference_of(const std::string& model) {
  std::map<std::string, NamedTensor> tensors;
  auto read = read_safetensors(file_of(model, ".safetensors"));
  EXPECT_TRUE(read);
  if (read)
    for (NamedTensor& tensor : *read) tensors[tensor.name] = std::move(tensor);
  return tensors;
}

Result<Trained> run(const PlanSet& set, const std::string& model, int64_t steps = 5) {
  return train_on(set, file_of(model, ".safetensors"), steps);
}

class BatchNorm : public ::testing::TestWithParam<const char*> {};

void expect_as_in_pytorch(const Trained& trained, const std::map<std::string, NamedTensor>& want,
                          const std::string& what) {
  const auto* losses = reinterpret_cast<const float*>(want.at("losses").data.data);
  for (size_t k = 0; k < 5; ++k)
    EXPECT_NEAR(trained.losses[k], losses[k], 2e-5) << what << " step " << k;
  size_t compared = 0;
  for (const auto& [name, tensor] : want) {
    if (!name.starts_with("after/")) continue;
    const auto got = trained.parameters.find(name.substr(6));
    ASSERT_NE(got, trained.parameters.end()) << what << " lacks " << name;
    EXPECT_LT(tensor_error(got->second, tensor), 2e-5) << what << " " << name;
    ++compared;
  }
  EXPECT_EQ(compared, trained.parameters.size()) << what;
}

TEST_P(BatchNorm, TrainsAsInPyTorch) {
  const std::string model = GetParam();
  const auto want = reference_of(model);
  std::optional<Trained> first;
  const bool has_layers =
      model != "centred" && model != "codes" && model != "router";  // to cut between
  for (int64_t stages = 1; stages <= (has_layers ? 3 : 1); ++stages) {
    const std::string what = fmt::format("{} on {} stages", model, stages);
    const auto compiled = compile_norms(model, {stages, 1, 1});
    ASSERT_TRUE(compiled) << what << print_error(compiled.error());
    const auto trained = run(compiled->set, model);
    ASSERT_TRUE(trained) << what << print_error(trained.error());
    expect_as_in_pytorch(*trained, want, what);
    if (!first) first = *trained;
    expect_equal_bits(*trained, *first, what);
  }
}

const char* kParts =
    "directives: [{name: replicate, replicate: {over: dp, shard: [optimizer, gradients, "
    "parameters]}}]\n";

// The statistics are those of all samples, whose replicas exchange sums (SyncBatchNorm).
TEST_P(BatchNorm, TrainsOnReplicas) {
  const std::string model = GetParam();
  const bool has_layers = model != "centred" && model != "codes" && model != "router";
  for (const Shape2& shape : {Shape2{1, 2, 1}, Shape2{1, 4, 1}, Shape2{has_layers ? 2 : 1, 2, 1}}) {
    for (const char* more : {"", kParts}) {
      const std::string what =
          fmt::format("{} on {} stages, {} replicas {}", model, shape.pp, shape.dp, more);
      const auto compiled = compile_norms(model, shape, more);
      ASSERT_TRUE(compiled) << what << print_error(compiled.error());
      const auto trained = run(compiled->set, model);
      ASSERT_TRUE(trained) << what << print_error(trained.error());
      expect_as_in_pytorch(*trained, reference_of(model), what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BatchNorm,
                         ::testing::Values("residual", "twice", "centred", "codes", "spectral",
                                           "router"),
                         [](const auto& info) { return std::string(info.param); });

// Channels in blocks behind a norm that forward calls twice: the second call's statistics are in
// blocks, and add to what the first call has made of the running ones.
TEST(BatchNorm, TrainsInBlocksOfChannels) {
  const auto compiled = compile_norms("twice", {1, 1, 1},
                                      "mesh: {b: 2}\ndirectives: [{shard: {match: "
                                      "\"conv2.bias\", dim: 0, over: b}}]\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto trained = run(compiled->set, "twice");
  ASSERT_TRUE(trained) << print_error(trained.error());
  expect_as_in_pytorch(*trained, reference_of("twice"), "two blocks");
}

// Fewer updates, and ONNX's variance instead of PyTorch's, miss the reference.
TEST(BatchNorm, TheBoundTellsOtherStatisticsApart) {
  const auto want = reference_of("residual");
  const auto compiled = compile_norms("residual", {});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto trained = run(compiled->set, "residual", 4);
  ASSERT_TRUE(trained) << print_error(trained.error());
  for (const char* name : {"bn1.running_mean", "bn1.running_var", "bn3.running_var"})
    EXPECT_GT(tensor_error(trained->parameters.at(name), want.at("after/" + std::string(name))),
              1e-3)
        << name;
  const auto file = read_text_file(file_of("residual", ".onnx"), 1 << 20);
  ASSERT_TRUE(file);
  std::string text = *file;
  text.replace(text.find("pytorch"), 7, "another");
  const Folder folder;
  const auto plain = compile_file(folder.write("plain.onnx", text), {});
  ASSERT_TRUE(plain) << print_error(plain.error());
  const auto other = run(plain->set, "residual");
  ASSERT_TRUE(other) << print_error(other.error());
  const auto error = [&](const char* name) {
    return tensor_error(other->parameters.at(name), want.at("after/" + std::string(name)));
  };
  EXPECT_LT(error("bn3.running_mean"), 2e-5);
  EXPECT_GT(error("bn3.running_var"), 1e-3);
}

// The statistics have the type of the states, whatever their batch was computed in.
TEST(BatchNorm, TrainsInEveryPrecision) {
  const auto want = reference_of("residual");
  for (const auto& [type, bound] : {std::pair{"f64", 2e-6}, {"bf16", 4e-2}, {"f16", 4e-3}}) {
    const auto compiled = compile_norms(
        "residual", {2, 1, 1}, fmt::format("directives: [{{precision: {{compute: {}}}}}]\n", type));
    ASSERT_TRUE(compiled) << type << print_error(compiled.error());
    const auto trained = run(compiled->set, "residual");
    ASSERT_TRUE(trained) << type << print_error(trained.error());
    for (const auto& [name, tensor] : want) {
      const bool is_statistic = name.find(".running_") != name.npos;
      if (!name.starts_with("after/") || (bound > 1e-5 && !is_statistic)) continue;
      EXPECT_LT(tensor_error(trained->parameters.at(name.substr(6)), tensor), bound)
          << type << " " << name;
    }
  }
}

TEST(BatchNorm, MicrobatchesAreRefused) {
  for (const char* model : {"residual", "centred"})
    for (const Shape2& shape : {Shape2{1, 1, 2}, Shape2{1, 2, 2}}) {
      const auto compiled = compile_norms(model, shape);
      ASSERT_FALSE(compiled) << model;
      EXPECT_TRUE(compiled.error().message.starts_with("the batch cannot be cut: op "))
          << compiled.error().message;
    }
}

// What a buffer becomes without the samples, each microbatch would make again: it counts once. What
// it becomes of sums over the batch, and nothing of the step reads, is made when these are there.
TEST(BatchNorm, BuffersTrainInMicrobatches) {
  for (const char* model : {"spectral", "codes", "router"})
    for (const Shape2& shape : {Shape2{1, 1, 2}, Shape2{1, 2, 2}, Shape2{1, 1, 8}}) {
      const std::string what =
          fmt::format("{}: {} replicas, {} microbatches", model, shape.dp, shape.mb);
      const auto compiled = compile_norms(model, shape);
      ASSERT_TRUE(compiled) << what << print_error(compiled.error());
      const auto trained = run(compiled->set, model);
      ASSERT_TRUE(trained) << what << print_error(trained.error());
      expect_as_in_pytorch(*trained, reference_of(model), what);
    }
}

// Without it the table would be that of the file in every step.
TEST(BatchNorm, ExcludedBuffersStayAsTheyAre) {
  const auto want = reference_of("codes");
  const auto compiled =
      compile_norms("codes", {}, "parameters: [{exclude: table}, {exclude: sums}]\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto trained = run(compiled->set, "codes");
  ASSERT_TRUE(trained) << print_error(trained.error());
  EXPECT_FALSE(trained->parameters.contains("table"));
  EXPECT_GT(tensor_error(trained->parameters.at("inner.weight"), want.at("after/inner.weight")),
            1e-3);
}

// Frozen parameters do not change, but what the norm keeps does, as in PyTorch.
TEST(BatchNorm, FrozenNormsGoOnCounting) {
  const auto want = reference_of("residual");
  const auto compiled = compile_norms("residual", {}, "parameters: [{freeze: \"bn1/**\"}]\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto one = run(compiled->set, "residual", 1), two = run(compiled->set, "residual", 2);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(tensor_error(one->parameters.at("bn1.weight"), two->parameters.at("bn1.weight")), 0);
  EXPECT_GT(
      tensor_error(one->parameters.at("bn1.running_var"), two->parameters.at("bn1.running_var")),
      1e-3);
}

TEST(BatchNorm, ExcludedStatisticsAreConstants) {
  const auto compiled =
      compile_norms("residual", {}, "parameters: [{exclude: \"bn1/running_*\"}]\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto trained = run(compiled->set, "residual", 1);
  ASSERT_TRUE(trained) << print_error(trained.error());
  EXPECT_FALSE(trained->parameters.contains("bn1.running_mean"));
  EXPECT_TRUE(trained->parameters.contains("bn2.running_mean"));
}

// A plan in which a state follows another norm's batch is refused, and one in which it follows
// none.
TEST(BatchNorm, TheVerifierKnowsWhoseStatisticItIs) {
  auto compiled = compile_norms("residual", {});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto findings = [](const PlanSet& set) {
    std::vector<std::string> texts;
    const auto report = verify_plan_set(set);
    EXPECT_TRUE(report);
    if (report)
      for (const Finding& finding : report->findings) texts.push_back(finding.text);
    return texts;
  };
  ASSERT_EQ(findings(compiled->set), std::vector<std::string>());
  PlanSet swapped = compiled->set;
  const std::string one = "bn1.running_mean.batch", two = "bn2.running_mean.batch";
  for (SumTarget& target : swapped.roles[0].sum_targets)
    target.name = target.name == one ? two : target.name == two ? one : target.name;
  EXPECT_EQ(
      findings(swapped),
      (std::vector<std::string>{
          "'U' on rank 0 updates parameter 'bn1.running_mean' without its finished sum",
          "'U' on rank 0 updates parameter 'bn2.running_mean' without its finished sum"}));
  PlanSet unknown = compiled->set;
  for (SumTarget& target : unknown.roles[0].sum_targets)
    if (target.name == one) target.name = "something";
  EXPECT_EQ(findings(unknown),
            (std::vector<std::string>{
                "'U' on rank 0 writes parameter 'bn1.running_mean', which has no gradient"}));
}

}  // namespace
}  // namespace piper::batch_norm_test
