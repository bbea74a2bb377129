// Mixed precision: the same bits under every plan of one cut, near f32 and yet not f32; loss
// scaling as torch.amp.GradScaler does it.
#include <cstring>
#include <nlohmann/json.hpp>

#include "equivalence/jobs.h"

namespace piper::precision_test {
namespace {

using namespace jobs;

bool has_model(const std::string& model) {
  return std::filesystem::exists(model_path(model, "model.onnx"));
}
#define NEEDS_MODEL(model) \
  if (!has_model(model)) GTEST_SKIP() << "no models in " << models_folder()

std::string text_with(const std::string& model, const std::string& train,
                      const std::string& directives) {
  return strategy_text(model, train) + "directives:\n" + directives;
}

struct Outcome {
  Trained trained;
  std::vector<double> scales, skipped;
};
Outcome run_of(const std::string& model, const std::string& text, const Shape2& shape,
               int64_t steps, VerifyAgainst against = VerifyAgainst::kNone) {
  Outcome run;
  auto compiled = compile_model(model, text, shape, against != VerifyAgainst::kNone);
  if (!compiled) {
    ADD_FAILURE() << text << print_error(compiled.error());
    return run;
  }
  auto data = open_batches(compiled->set, model);
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.verify.against = against;
  const PlanSet* reference = against == VerifyAgainst::kNone ? nullptr : &*compiled->single;
  std::unique_ptr<BatchSource> reference_data;
  if (reference) reference_data = std::move(*open_batches(*reference, model));
  auto job = run_job(compiled->set, data->get(), reference, reference_data.get(), options);
  if (shape.pp == 2 && shape.dp == 2) expect_same_when_queued(compiled->set, model, text);
  if (!job) {
    ADD_FAILURE() << text << print_error(job.error());
    return run;
  }
  for (const StepMetrics& step : job->steps) {
    run.trained.losses.push_back(step.loss.value_or(NAN));
    const double norm = step.grad_norm.value_or(NAN);
    run.trained.norms.push_back(std::isfinite(norm) ? norm : -1);  // so that it equals itself
    if (step.loss_scale) run.scales.push_back(*step.loss_scale);
    if (step.skipped) run.skipped.push_back(*step.skipped);
  }
  for (NamedTensor& tensor : job->parameters)
    run.trained.parameters[tensor.name] = std::move(tensor);
  return run;
}

// A parameter stored in bf16: the upper half of an f32.
NamedTensor in_f32(const NamedTensor& tensor) {
  if (tensor.type.dtype != DType::kBF16) return tensor;
  std::string bytes(tensor.data.size * 2, '\0');
  for (size_t i = 0; i < tensor.data.size / 2; ++i)
    std::memcpy(bytes.data() + 4 * i + 2, tensor.data.data + 2 * i, 2);
  NamedTensor wide = tensor;
  wide.type.dtype = DType::kF32;
  wide.data = Bytes::copy_of(bytes.data(), bytes.size());
  return wide;
}

double worst_error(const Trained& got, const Trained& want) {
  double worst = 0;
  for (const auto& [name, tensor] : want.parameters)
    worst = std::max(worst, tensor_error(got.parameters.at(name), tensor));
  return worst;
}

constexpr const char* kBf16 = "  - precision: {compute: bf16}\n";
constexpr const char* kF16 = "  - precision: {compute: f16, loss_scale: {init_scale: 1024}}\n";
// The first steps overflow.
constexpr const char* kOverflow =
    "  - precision: {compute: f16, loss_scale: {init_scale: 1e9, backoff_factor: 0.01, "
    "growth_interval: 3}}\n";

class Precision : public ::testing::TestWithParam<const char*> {};

TEST_P(Precision, GivesTheSameBitsUnderEveryPlanOfOneCut) {
  const std::string model = kSmallGpt;
  NEEDS_MODEL(model);
  const std::string text = text_with(model, kAdamW, GetParam());
  const int64_t steps = kSanitized ? 2 : 4;
  const Outcome first = run_of(model, text, {2, 2, 4, "1f1b"}, steps, VerifyAgainst::kSingle);
  if (kSanitized) return;
  for (const Shape2& shape : {Shape2{1, 2, 4, "1f1b"}, Shape2{4, 2, 4, "gpipe"},
                              Shape2{2, 2, 4, "zero1"}, Shape2{2, 2, 4, "zero3"}}) {
    const Outcome other = run_of(model, text, shape, steps);
    expect_equal_bits(first.trained, other.trained, shape.order);
    EXPECT_EQ(first.scales, other.scales);
    EXPECT_EQ(first.skipped, other.skipped);
  }
  for (const char* again : {"{match: \"**/h/{layer}/**\"}", "{ops: [Gelu, LayerNorm]}"})
    expect_equal_bits(
        first.trained,
        run_of(model, fmt::format("{}  - recompute: {}\n", text, again), {2, 2, 4, "1f1b"}, steps)
            .trained,
        again);
}

TEST_P(Precision, StaysNearSinglePrecisionAndIsNotIt) {
  const std::string model = "gpt-unoptimized";
  NEEDS_MODEL(model);
  const int64_t steps = kSanitized ? 4 : 10;
  const Outcome wide = run_of(model, strategy_text(model, kSgd), {1, 1, 1}, steps);
  const Outcome narrow = run_of(model, text_with(model, kSgd, GetParam()), {1, 1, 1}, steps);
  if (GetParam() == kOverflow) {
    EXPECT_EQ(narrow.skipped.front(), 1);
    EXPECT_EQ(narrow.skipped.back(), 0);
    return;  // fewer updates
  }
  const double bound = GetParam() == kBf16 ? 2e-2 : 2e-3;
  for (size_t k = 0; k < wide.trained.losses.size(); ++k)
    EXPECT_NEAR(narrow.trained.losses[k], wide.trained.losses[k], bound * 4) << k;
  const double error = worst_error(narrow.trained, wide.trained);
  EXPECT_LE(error, bound);
  EXPECT_GE(error, 1e-6) << "the directive changed nothing";
}

INSTANTIATE_TEST_SUITE_P(
    Types, Precision, ::testing::Values(kBf16, kF16, kOverflow), [](const auto& info) {
      return std::string(info.index == 0 ? "bf16" : info.index == 1 ? "f16" : "overflow");
    });

// Where a stage ends between a product and its bias, the two are rounded as one all the same, also
// where the stage behind has nothing else.
TEST(Stages, RoundAsOneDeviceDoesWhereverTheyEnd) {
  for (const auto& [model, most] : {std::pair<std::string, int64_t>{"mlp", 7}, {"gpt-deep", 6}}) {
    NEEDS_MODEL(model);
    const std::string text = text_with(model, kAdamW, kBf16);
    const Outcome one = run_of(model, text, {1, 1, 4, "1f1b"}, 2);
    for (int64_t stages = model == "mlp" ? 2 : most; stages <= most; ++stages)
      expect_equal_bits(one.trained, run_of(model, text, {stages, 1, 4, "1f1b"}, 2).trained,
                        fmt::format("{} on {} stages", model, stages));
  }
}

// Between the passes the loss keeps logits of 16 bits alone, and over them makes their gradient.
TEST(Classifier, MakesTheGradientWhereItsLogitsLie) {
  const std::string model = "gpt-unoptimized";
  NEEDS_MODEL(model);
  const auto compiled = compile_model(model, text_with(model, kSgd, kBf16), {1, 1, 2});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int gradients = 0;
  for (const Program& program : compiled->set.roles[0].programs)
    for (const ProgramOp& op : program.ops) {
      if (op.op != "CrossEntropyGrad") continue;
      ++gradients;
      EXPECT_EQ(op.outputs[0], op.inputs[0]);
      EXPECT_LT(op.outputs[0], program.num_args);
      EXPECT_EQ(program.values[static_cast<size_t>(op.outputs[0])].dtype, DType::kBF16);
    }
  EXPECT_GT(gradients, 0);
}

// Experts' weights have gradients of 16-bit rows, which tensor cores multiply, and sums that are
// not rounded; on ranks as on one device.
TEST(Experts, GradientsOfWeightsReadRowsIn16Bits) {
  const std::string model = "qwen3-moe-hf";
  NEEDS_MODEL(model);
  const std::string text = text_with(model, kAdamW, kBf16);
  const auto compiled = compile_model(model, text, {1, 1, 2});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int gradients = 0;
  for (const Program& program : compiled->set.roles[0].programs)
    for (const ProgramOp& op : program.ops) {
      if (op.op != "GroupedMatMulGrad") continue;
      ++gradients;
      const auto type = [&](int32_t value) {
        return program.values[static_cast<size_t>(value)].dtype;
      };
      EXPECT_EQ(type(op.inputs[0]), DType::kBF16);
      EXPECT_EQ(type(op.inputs[2]), DType::kBF16);
      EXPECT_EQ(type(op.outputs[0]), DType::kF32);
    }
  EXPECT_GT(gradients, 0);
  run_of(model, text, {2, 2, 2, "zero1"}, 3, VerifyAgainst::kSingle);
}

// A power of two scales exactly.
TEST(LossScale, OfAPowerOfTwoChangesNoBitInF32) {
  const std::string model = "gpt-unoptimized";
  NEEDS_MODEL(model);
  for (const char* train : {kSgd, kAdamW}) {
    const Outcome plain = run_of(model, strategy_text(model, train), {2, 1, 2}, 3);
    const Outcome scaled = run_of(
        model,
        text_with(model, train, "  - precision: {compute: f32, loss_scale: {static: 4096}}\n"),
        {2, 1, 2}, 3);
    expect_equal_bits(plain.trained, scaled.trained, train);
    EXPECT_EQ(scaled.skipped, std::vector<double>(3, 0));
    const Outcome other = run_of(
        model,
        text_with(model, train, "  - precision: {compute: f32, loss_scale: {static: 3e3}}\n"),
        {2, 1, 2}, 3);
    EXPECT_GT(worst_error(other.trained, plain.trained), 0) << "the scale is not used";
  }
}

TEST(LossScale, ASkippedStepKeepsEveryBitAndCountsAsNone) {
  const std::string model = "mlp";
  NEEDS_MODEL(model);
  // Never finite: nothing changes, whatever the number of steps.
  const std::string never =
      text_with(model, kAdamW, "  - precision: {compute: f16, loss_scale: {static: 1e38}}\n");
  const Outcome none = run_of(model, never, {1, 1, 1}, 1),
                more = run_of(model, never, {2, 2, 2}, 5);
  EXPECT_EQ(more.skipped, std::vector<double>(5, 1));
  for (const auto& [name, tensor] : none.trained.parameters)
    EXPECT_TRUE(as_text(tensor.data.span()) ==
                as_text(more.trained.parameters.at(name).data.span()))
        << name;
  // A learning rate that begins at the first step that is taken: its warm-up does not count others.
  const std::string train = std::string(kAdamW) + ", schedule: [{warmup: 100}]";
  auto compiled = compile_model(
      model,
      text_with(model, train, "  - precision: {compute: f16, loss_scale: {init_scale: 1e9}}\n"),
      {1, 1, 1});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  auto data = open_batches(compiled->set, model);
  JobOptions options;
  options.steps = 20;
  options.threads = 1;
  const auto job = run_job(compiled->set, data->get(), nullptr, nullptr, options);
  ASSERT_TRUE(job) << print_error(job.error());
  double taken = 0;
  for (const StepMetrics& step : job->steps) {
    EXPECT_NEAR(*step.learning_rate, 3e-3 * (taken + 1) / 100, 1e-12) << step.step;
    taken += 1 - *step.skipped;
  }
  EXPECT_GT(taken, 3);
  EXPECT_LT(taken, 20);
}

// What torch.amp.GradScaler made of the same model and batches: tests/data/make_grad_scaler.py.
TEST(LossScale, FollowsTorch) {
  const std::string model = "mlp";
  NEEDS_MODEL(model);
  std::ifstream file(PIPER_SOURCE_DIR "/tests/data/grad_scaler.json");
  const auto json = nlohmann::json::parse(file);
  const std::string text = text_with(
      model, json["train"].get<std::string>(),
      "  - precision: {compute: f16, loss_scale: " + json["loss_scale"].get<std::string>() + "}\n");
  for (const Shape2& shape : {Shape2{1, 1, 1, "1f1b"}, Shape2{2, 2, 2, "1f1b"}}) {
    const Outcome run = run_of(model, text, shape, static_cast<int64_t>(json["losses"].size()));
    EXPECT_EQ(run.scales, json["scales"].get<std::vector<double>>());
    EXPECT_EQ(run.skipped, json["skipped"].get<std::vector<double>>());
    for (size_t k = 0; k < run.trained.losses.size(); ++k)
      EXPECT_NEAR(run.trained.losses[k], json["losses"][k].get<double>(), 2e-3) << k;
  }
  double skipped = 0;
  for (const auto& one : json["skipped"]) skipped += one.get<double>();
  EXPECT_GT(skipped, 0);
}

// In 16 bits of storage small updates are rounded away; the model's bound is 2e-2.
TEST(Masters, AreWhatSmallUpdatesNeed) {
  const std::string model = "gpt-bf16";
  NEEDS_MODEL(model);
  if (kSanitized) return;
  const auto tensors = reference_tensors(model);
  const auto error_with = [&](const char* directives) {
    const Outcome run = run_of(model, text_with(model, kSgd, directives), {1, 1, 1}, 20);
    double worst = 0;
    for (const auto& [name, tensor] : run.trained.parameters)
      if (const auto want = tensors.find("sgd/" + name); want != tensors.end())
        worst = std::max(worst, tensor_error(in_f32(tensor), want->second));
    return worst;
  };
  EXPECT_LE(error_with("  - precision: {compute: bf16, master: f32}\n"), 2e-2);
  EXPECT_GT(error_with("  - precision: {compute: bf16, master: none}\n"), 2e-2);
}

std::string error_of(const std::string& directives) {
  const auto compiled = compile_model("mlp", text_with("mlp", kSgd, directives), {1, 1, 1});
  return compiled ? ""
                  : fmt::format("{}:{}: {}", compiled.error().at.line, compiled.error().at.column,
                                compiled.error().message);
}

TEST(Errors, SayWhatIsWrongAndWhere) {
  NEEDS_MODEL("mlp");
  const std::pair<const char*, const char*> cases[] = {
      {"  - precision: {compute: bf16, match: \"model/9/**\"}\n",
       "5:5: precision: matches no forward op"},
      {"  - precision: {compute: bf16, keep: [Matmul]}\n",
       "5:39: precision: none of these ops is 'Matmul' (did you mean 'MatMul'?)"},
      {"  - precision: {compute: bf16}\n  - precision: {compute: f16}\n",
       "6:5: precision: MatMul at 'model/0' is chosen twice"},
      {"  - precision: {compute: f32}\n", ""},
      {"  - precision: {compute: f64}\n  - precision: {compute: f64}\n",
       "6:5: precision: MatMul at 'model/0' is chosen twice"},
      {"  - split: {dim: batch, into: 1}\n  - precision: {compute: f16, where: {mb: 0}}\n",
       "5:5: the batch is split twice"},
  };
  for (const auto& [directives, message] : cases) EXPECT_EQ(error_of(directives), message);
}

TEST(Errors, OnnxCannotSayIt) {
  NEEDS_MODEL("mlp");
  const Folder folder;
  CompileOptions options;
  options.model = model_path("mlp", "model.onnx");
  options.strategy =
      folder.write("strategy.yaml", "piper: 1\ndirectives: [{precision: {compute: bf16}}]\n");
  const Status status = emit_onnx_training(options, folder.path() + "/out.onnx");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "precision cannot be said in training_info");
}

TEST(Explain, SaysWhatIsComputedInWhichType) {
  NEEDS_MODEL("gpt-bf16");
  const auto compiled = compile_model("gpt-bf16", text_with("gpt-bf16", kSgd, kBf16), {1, 1, 1});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  std::vector<std::string> lines;
  for (const Explanation& one : compiled->explanations)
    if (one.directive == "precision") lines = one.lines;
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "in bf16: 4 Attention, 17 MatMul", "in f32: 1 CrossEntropySum, 9 LayerNorm",
                       "in the type of their operands: 60 others",
                       "inserted 51 casts, 33 of them of parameters",
                       "left out 1 casts of the model", "52 parameters have masters in f32",
                       "33 parameters are kept in 16 bits, too, 106.2 KiB more: the update rounds "
                       "them, no pass"}));
}

}  // namespace
}  // namespace piper::precision_test
