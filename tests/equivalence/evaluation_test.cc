// Evaluations: every strategy finds the loss that the plan for one device finds and that PyTorch
// finds, and trains on as if it had not looked.
#include <cmath>
#include <nlohmann/json.hpp>

#include "equivalence/jobs.h"
#include "piper/base/memory.h"
#include "piper/plan/verify.h"
#include "piper/runtime/checkpoint.h"
#include "shell.h"

namespace piper::evaluation_test {
namespace {

using namespace jobs;

constexpr const char* kFolder = PIPER_SOURCE_DIR "/tests/data/evaluation/";
constexpr const char* kTrain =
    "train: {global_batch: 8, optimizer: {adamw: {lr: 1e-2}}, clip_norm: 1.0}\n";

std::string file_of(const char* name) { return std::string(kFolder) + name; }

// Batch norms need all samples at once, so that replicas exchange sums when they train: these are
// formed in another order than on one device. Strategies that cut the batch into microbatches run a
// model with dropout, noise and blocks that samples skip.
enum class With { kNorms, kNoise };
std::string model_with(With what) {
  return what == With::kNorms ? file_of("model.onnx")
                              : PIPER_SOURCE_DIR "/tests/data/dropout/dynamo.onnx";
}

struct Strategy {
  const char* name;
  const char* text;
  With what = With::kNoise;
  bool same_sums = true;  // as the single-device plan forms them
};
constexpr Strategy kStrategies[] = {
    {"one", "", With::kNorms},
    {"ddp", "include: <ddp>\nparams: {dp: 2}\n", With::kNorms, false},
    {"zero1", "include: <zero1>\nparams: {dp: 4}\n", With::kNorms, false},
    {"zero3", "include: <zero3>\nparams: {dp: 2}\n", With::kNorms, false},
    {"stages", "include: <1f1b>\nparams: {stages: 2, microbatches: 1}\n", With::kNorms},
    {"stages_ddp", "include: <1f1b>\nparams: {stages: 2, dp: 2, microbatches: 1}\n", With::kNorms,
     false},
    {"vocabulary",
     "mesh: {tp: 3}\ndirectives:\n  - shard: {match: table/*, dim: 0, over: tp, pad: true}\n",
     With::kNorms, false},
    {"columns", "mesh: {tp: 2}\ndirectives:\n  - shard: {match: \"h/*/up/*\", dim: 0, over: tp}\n",
     With::kNorms, false},
    {"microbatches", "include: <ddp>\nparams: {dp: 2, microbatches: 4}\n"},
    {"pipeline", "include: <1f1b>\nparams: {stages: 2, microbatches: 4}\n"},
    {"zbv", "include: <zbv>\nparams: {stages: 2, microbatches: 4}\n"},
    {"dualpipe", "include: <dualpipe>\nparams: {stages: 2, microbatches: 4}\n"},
    {"pipeline_ddp", "include: <1f1b>\nparams: {stages: 2, dp: 2, microbatches: 2}\n"},
    {"two_versions", "include: <pipedream-2bw>\nparams: {stages: 2, microbatches: 4}\n"},
    {"recompute",
     "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\ndirectives:\n  - recompute: {where: "
     "{stage: 0}}\n"},
    {"halves", "include: <zero3>\nparams: {dp: 2}\ndirectives:\n  - precision: {compute: bf16}\n"},
    // A step gathers the version before; the evaluation the newest.
    {"halves_of_two_versions",
     "include: <zero3>\nparams: {dp: 2}\nweight_versions: 2\ndirectives:\n"
     "  - precision: {compute: bf16}\n"}};

Compiled compile_here(const std::string& text, const std::string& model = file_of("model.onnx"),
                      const char* train = kTrain) {
  const Folder folder;
  CompileOptions options;
  options.model = model;
  options.strategy = folder.write("strategy.yaml", "piper: 1\n" + text + train);
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  options.evaluation = true;
  auto compiled = compile(options);
  EXPECT_TRUE(compiled) << text << print_error(compiled.error());
  return compiled ? *std::move(compiled) : Compiled();
}

struct Outcome {
  Trained trained;
  std::vector<double> losses;  // of the evaluations
};
Outcome run(const PlanSet& set, int64_t steps, int64_t every, const std::string& valid,
            const std::string& training = file_of("training.safetensors")) {
  Outcome result;
  const auto data = open_file(set, training), held_out = open_file(set, valid);
  EXPECT_TRUE(data && held_out) << (data ? "" : print_error(data.error()));
  if (!data || !held_out) return result;
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  if (every > 0) options.evaluation = {{"valid", held_out->get(), (*held_out)->steps()}};
  options.evaluate_every = every;
  auto job = run_job(set, data->get(), nullptr, nullptr, options);
  EXPECT_TRUE(job) << print_error(job.error());
  if (!job) return result;
  for (const EvaluationMetrics& one : job->evaluations) result.losses.push_back(one.loss);
  result.trained = trained_by(*std::move(job));
  return result;
}

double reference(const char* name, size_t at = 0) {
  const auto tensors = read_safetensors(file_of("valid.safetensors"));
  EXPECT_TRUE(tensors);
  for (const NamedTensor& tensor : *tensors)
    if (tensor.name == name) return reinterpret_cast<const double*>(tensor.data.data)[at];
  ADD_FAILURE() << name;
  return NAN;
}

class EveryStrategy : public ::testing::TestWithParam<Strategy> {};

// After each step it is the loss that the plan for one device finds, and before the first step
// PyTorch's. What is trained has the bits of a job that does not evaluate.
TEST_P(EveryStrategy, EvaluatesAsOneDeviceAndPyTorch) {
  const Strategy& strategy = GetParam();
  const Compiled compiled = compile_here(strategy.text, model_with(strategy.what));
  ASSERT_TRUE(compiled.single);
  const std::string valid = file_of("valid.safetensors");
  const Outcome first = run(compiled.set, 0, 1, valid),
                first_single = run(*compiled.single, 0, 1, valid);
  ASSERT_EQ(first.losses.size(), 1u);
  ASSERT_EQ(first_single.losses.size(), 1u);
  EXPECT_NEAR(first.losses[0], first_single.losses[0], 1e-6);
  if (strategy.what == With::kNorms) {
    EXPECT_NEAR(first.losses[0], reference("loss"), 1e-6);
  }
  const Outcome own = run(compiled.set, 4, 1, valid), single = run(*compiled.single, 4, 1, valid),
                without = run(compiled.set, 4, 0, valid);
  ASSERT_EQ(own.losses.size(), 4u);
  ASSERT_EQ(single.losses.size(), 4u);
  for (size_t k = 0; k < 4; ++k) {
    if (strategy.same_sums) {
      EXPECT_EQ(own.losses[k], single.losses[k]) << k;
    }
    EXPECT_NEAR(own.losses[k], single.losses[k], 1e-3) << k;  // AdamW magnifies rounding
  }
  EXPECT_NE(own.losses[0], own.losses[3]);  // it is learned from
  expect_equal_bits(own.trained, without.trained, strategy.name);
}

INSTANTIATE_TEST_SUITE_P(Evaluation, EveryStrategy, ::testing::ValuesIn(kStrategies),
                         [](const auto& info) { return std::string(info.param.name); });

// The loss of a set is of all its labels: neither a mean of the losses of its batches, nor of steps
// in training, in which dropout draws and norms take the batch's own statistics.
TEST(Evaluation, IsNoMeanOfBatchesAndNoStepOfTraining) {
  const Compiled compiled = compile_here("");
  ASSERT_TRUE(compiled.single);
  double mean = 0;
  for (size_t k = 0; k < 3; ++k) mean += reference("losses", k) / 3;
  EXPECT_GT(std::abs(mean - reference("loss")), 1e-3);
  const std::string valid = file_of("valid.safetensors");
  const Outcome trained = run(compiled.set, 1, 0, valid, valid);
  ASSERT_EQ(trained.trained.losses.size(), 1u);
  EXPECT_GT(std::abs(trained.trained.losses[0] - reference("losses", 0)), 1e-3);
}

// Noise on embeddings, whole samples that skip a block, dropout of attention: none is drawn, so
// that an evaluation has one value, whatever the step.
TEST(Evaluation, DrawsNothing) {
  const Folder folder;
  const std::string model = PIPER_SOURCE_DIR "/tests/data/dropout/dynamo.onnx";
  const std::string valid = file_of("valid.safetensors");
  std::optional<double> first;
  for (const char* text : {"", "include: <ddp>\nparams: {dp: 2}\n",
                           "include: <1f1b>\nparams: {stages: 2, microbatches: "
                           "2}\n",
                           "include: <zero3>\nparams: {dp: 2, microbatches: 2}\n"}) {
    const Compiled compiled =
        compile_here(text, model, "train: {global_batch: 8, optimizer: {sgd: {lr: 0}}}\n");
    ASSERT_TRUE(compiled.single);
    const Outcome own = run(compiled.set, 3, 1, valid), single = run(*compiled.single, 1, 1, valid);
    ASSERT_EQ(own.losses.size(), 3u);
    EXPECT_EQ(own.losses[0], own.losses[2]) << text;
    EXPECT_EQ(own.losses[0], single.losses[0]) << text;
    EXPECT_NE(own.trained.losses[0], own.trained.losses[2]);  // training draws
    if (!first) first = own.losses[0];
    EXPECT_NEAR(own.losses[0], *first, 1e-6) << text;
  }
}

// On devices that only queue, in orders that seeds draw.
TEST(Evaluation, QueuedInAnyOrder) {
  for (const char* text : {"include: <zero3>\nparams: {dp: 2, microbatches: 2}\n",
                           "include: <dualpipe>\nparams: {stages: 2, microbatches: 4}\n"}) {
    const Compiled compiled = compile_here(text, model_with(With::kNoise));
    const auto data = open_file(compiled.set, file_of("training.safetensors")),
               valid = open_file(compiled.set, file_of("valid.safetensors"));
    ASSERT_TRUE(data && valid);
    std::vector<double> want;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const auto world = make_sim_world(compiled.set.world(), seed);
      const auto job = run_simulated(compiled.set, data->get(), *world, 2, valid->get());
      ASSERT_TRUE(job) << text << "seed " << seed << "\n" << print_error(job.error());
      std::vector<double> losses;
      for (const EvaluationMetrics& one : job->evaluations) losses.push_back(one.loss);
      ASSERT_EQ(losses.size(), 3u);
      if (want.empty()) want = losses;
      EXPECT_EQ(losses, want) << "seed " << seed;
    }
    JobOptions options;
    options.steps = 2;
    options.threads = 1;
    options.evaluation = {{"first", valid->get(), 1}};
    const auto threads = run_job(compiled.set, data->get(), nullptr, nullptr, options);
    ASSERT_TRUE(threads) << print_error(threads.error());
    EXPECT_DOUBLE_EQ(threads->evaluations.at(0).loss, want[0]) << text;
  }
}

// Models of PyTorch's exporter, whose later samples have fewer labels: before the first step an
// evaluation of the first batch is the loss of that step.
TEST(Evaluation, ExportedModelsAreEvaluatedAsTheyAre) {
  for (const char* model : {"gpt-deep", "llama-hf", "bert-hf", "moe-gshard"}) {
    const std::string path = model_path(model, "reference.json");
    const auto text = read_text_file(path, 1 << 24);
    if (!text) GTEST_SKIP() << path;
    for (const char* order : {"1f1b", "zero3"}) {
      const Folder folder;
      CompileOptions options;
      options.evaluation = true;
      options.library = {PIPER_SOURCE_DIR "/strategies"};
      const std::string dp = std::string(order) == "1f1b" ? "stages: 2, microbatches: 2" : "dp: 2";
      auto compiled =
          compile_text(model, fmt::format("piper: 1\ninclude: <{}>\nparams: {{{}}}\n", order, dp),
                       kAdamW, options);
      ASSERT_TRUE(compiled) << model << print_error(compiled.error());
      const auto data = open_batches(compiled->set, model);
      ASSERT_TRUE(data) << print_error(data.error());
      JobOptions job;
      job.steps = 1;
      job.threads = 1;
      job.evaluation = {{"valid", data->get(), 1}};
      std::vector<double> losses;
      job.steps = 0;
      auto before = run_job(compiled->set, data->get(), nullptr, nullptr, job);
      ASSERT_TRUE(before) << print_error(before.error());
      ASSERT_EQ(before->evaluations.size(), 1u);
      job.steps = 1;
      auto trained = run_job(compiled->set, data->get(), nullptr, nullptr, job);
      ASSERT_TRUE(trained) << print_error(trained.error());
      EXPECT_NEAR(before->evaluations[0].loss, trained->steps[0].loss.value_or(NAN), 1e-6)
          << model << " " << order;
    }
  }
}

// A kernel of a convolution that runs again is read in another shape, and has no copy in 16 bits:
// an evaluation rounds it, too.
TEST(Evaluation, OfKernelsThatRunAgainIn16Bits) {
  NEED_MODEL("vit-hf");
  for (const char* recompute : {"{}", "{where: {mb: 0}}"}) {
    CompileOptions options;
    options.evaluation = options.oracles = true;
    const auto compiled =
        compile_text("vit-hf",
                     fmt::format("piper: 1\ndirectives:\n  - split: {{dim: batch, into: 2}}\n"
                                 "  - precision: {{compute: bf16}}\n  - recompute: {}\n",
                                 recompute),
                     kAdamW, options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto data = open_batches(compiled->set, "vit-hf");
    ASSERT_TRUE(data) << print_error(data.error());
    JobOptions job;
    job.threads = 1;
    job.steps = 0;
    job.evaluation = {{"valid", data->get(), 1}};
    std::vector<double> losses;
    for (const PlanSet* set : {&compiled->set, &*compiled->single}) {
      const auto evaluated = run_job(*set, data->get(), nullptr, nullptr, job);
      ASSERT_TRUE(evaluated) << print_error(evaluated.error());
      losses.push_back(evaluated->evaluations.at(0).loss);
    }
    EXPECT_EQ(losses[0], losses[1]);
  }
}

// ---- Plans --------------------------------------------------------------------------------------

// What the verifier must not miss: an evaluation that writes a state, one whose memory is that of a
// state, one that adds a batch twice, and one that shows another sum.
TEST(Evaluation, WrongPlansAreRefused) {
  const Compiled compiled = compile_here("include: <1f1b>\nparams: {stages: 2, microbatches: 4}\n",
                                         model_with(With::kNoise));
  ASSERT_TRUE(compiled.single);
  const auto verify = [&](const PlanSet& set) {
    const auto report = verify_plan_set(set, &*compiled.single);
    EXPECT_TRUE(report) << print_error(report.error());
    return report ? report->findings : std::vector<Finding>();
  };
  EXPECT_TRUE(verify(compiled.set).empty());
  const auto expect_refused = [&](const PlanSet& set, const char* rule) {
    const auto findings = verify(set);
    const bool found = std::any_of(findings.begin(), findings.end(), [&](const Finding& one) {
      return one.rule == rule && one.text.starts_with("evaluation: ");
    });
    EXPECT_TRUE(found) << rule << (findings.empty() ? "" : ", not " + findings[0].text);
  };
  const auto find = [](RoleProgram& role, auto fits) {
    return std::find_if(role.evaluation.begin(), role.evaluation.end(), fits);
  };
  {  // the update of the step's number, behind the evaluation
    PlanSet set = compiled.set;
    RoleProgram& role = set.roles[0];
    const auto update =
        std::find_if(role.body.rbegin(), role.body.rend(), [&](const Instruction& one) {
          return one.kind == InstructionKind::kCompute && one.pass == TaskPass::kU &&
                 std::any_of(one.args.begin(), one.args.end(), [&](int32_t arg) {
                   return role.tensor(arg).kind == BufferKind::kState;
                 });
        });
    ASSERT_NE(update, role.body.rend());
    Instruction copy = *update;
    copy.waits.clear(), copy.sum_reads.clear(), copy.combines.clear(), copy.contributions.clear();
    role.evaluation.push_back(copy);
    expect_refused(set, "structure");
  }
  {  // a value in the place of a parameter
    PlanSet set = compiled.set;
    RoleProgram& role = set.roles[0];
    const auto compute = find(role, [&](const Instruction& one) {
      return one.kind == InstructionKind::kCompute && one.pass == TaskPass::kF;
    });
    ASSERT_NE(compute, role.evaluation.end());
    for (const int32_t arg : compute->args)
      if (role.tensor(arg).kind == BufferKind::kStep)
        role.buffers[static_cast<size_t>(arg)].offset = 0;
    role.arena_bytes = 0;
    for (const Buffer& buffer : role.buffers)
      role.arena_bytes =
          std::max(role.arena_bytes, align_up(buffer.offset + role.tensor(buffer).type.bytes()));
    expect_refused(set, "memory");
  }
  {  // the samples of another microbatch
    PlanSet set = compiled.set;
    for (RoleProgram& role : set.roles) {
      const auto sum = find(role, [](const Instruction& one) {
        return !one.contributions.empty() && one.micro == 1;
      });
      if (sum != role.evaluation.end()) sum->samples.first = 0;
    }
    expect_refused(set, "sum");
  }
  {  // the weight as the loss
    PlanSet set = compiled.set;
    for (RoleProgram& role : set.roles)
      std::swap(role.evaluation_reports[0].buffer, role.evaluation_reports[1].buffer);
    expect_refused(set, "update");
  }
  {  // a rank that does not take part
    PlanSet set = compiled.set;
    set.roles[0].evaluation.clear(), set.roles[0].evaluation_reports.clear();
    EXPECT_FALSE(verify_plan_set(set, &*compiled.single) &&
                 verify_plan_set(set, &*compiled.single)->findings.empty());
  }
}

TEST(Evaluation, PlansWithoutAskingHaveNone) {
  const Folder folder;
  CompileOptions options;
  options.model = file_of("model.onnx");
  options.strategy = folder.write("strategy.yaml", std::string("piper: 1\n") + kTrain);
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const RoleProgram& role : compiled->set.roles) EXPECT_TRUE(role.evaluation.empty());
}

// ---- Jobs ---------------------------------------------------------------------------------------

class Jobs : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<Folder>();
    folder_->write(
        "strategy.yaml",
        std::string("piper: 1\ninclude: <1f1b>\nparams: {stages: 2, microbatches: 2}\n") +
            "train: {global_batch: 8, optimizer: {adamw: {lr: 3e-2}}}\n");
    const auto [code, output] =
        run_shell(fmt::format("{}/bin/piperc {} {} -o {} --eval 2>&1", PIPER_BINARY_DIR,
                              model_with(With::kNoise), path("strategy.yaml"), path("plans")));
    ASSERT_EQ(code, 0) << output;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string path(const std::string& name) { return folder_->path() + "/" + name; }
  static std::pair<int, std::string> run(const std::string& flags, const std::string& before = "") {
    return run_shell(fmt::format("{} {}/bin/piper-run {} --data {} --threads 1 {} 2>&1", before,
                                 PIPER_BINARY_DIR, path("plans"), file_of("training.safetensors"),
                                 flags));
  }
  static void expect_runs(const std::string& flags) {
    const auto [code, output] = run(flags);
    EXPECT_EQ(code, 0) << flags << "\n" << output;
  }
  static std::string valid() { return "--eval-data " + file_of("valid.safetensors"); }
  static std::string read(const std::string& name) {
    const auto text = read_text_file(path(name), 1 << 28);
    EXPECT_TRUE(text) << name;
    return text ? *text : "";
  }
  // The losses of evaluations in a file of metrics, by step.
  static std::map<int64_t, double> losses(const std::string& name,
                                          const std::string& set = "valid") {
    std::map<int64_t, double> found;
    for (const std::string& line : split_text(read(name), '\n')) {
      if (line.empty()) continue;
      const auto json = nlohmann::json::parse(line);
      if (json.contains("evaluation") && json["evaluation"] == set)
        found[json["step"]] = json["loss"];
    }
    return found;
  }
  static std::vector<int64_t> checkpoints(const std::string& name) {
    const auto steps = list_checkpoints(file_storage(), path(name));
    EXPECT_TRUE(steps);
    return steps ? *steps : std::vector<int64_t>();
  }

  static std::unique_ptr<Folder> folder_;
};
std::unique_ptr<Folder> Jobs::folder_;

TEST_F(Jobs, GoOnBitForBit) {
  expect_runs("--steps 6 --save " + path("plain.safetensors"));
  expect_runs("--steps 6 --eval-every 2 " + valid() + " --metrics " + path("whole.jsonl") +
              " --save " + path("whole.safetensors"));
  EXPECT_EQ(read("plain.safetensors"), read("whole.safetensors"));
  EXPECT_EQ(losses("whole.jsonl").size(), 3u);
  expect_runs("--steps 3 --eval-every 2 " + valid() + " --checkpoint " + path("parts") +
              " --metrics " + path("parts.jsonl"));
  expect_runs("--steps 6 --eval-every 2 " + valid() + " --resume " + path("parts") + " --metrics " +
              path("parts.jsonl") + " --save " + path("parts.safetensors"));
  EXPECT_EQ(read("plain.safetensors"), read("parts.safetensors"));
  auto in_parts = losses("parts.jsonl");
  ASSERT_TRUE(in_parts.contains(3));  // the end of the first job
  const double at_three = in_parts[3];
  in_parts.erase(3);
  EXPECT_EQ(in_parts, losses("whole.jsonl"));
  // What was trained, evaluated by itself.
  for (const char* how : {"--resume", "--init"}) {
    expect_runs(fmt::format("--eval-only {} {} {} --metrics {}", valid(), how, path("parts"),
                            path(std::string(how) + ".jsonl")));
    const auto only = losses(std::string(how) + ".jsonl");
    ASSERT_EQ(only.size(), 1u) << how;
    EXPECT_EQ(only.begin()->second, at_three) << how;
  }
}

// A name ends no label of Prometheus' text.
TEST_F(Jobs, NamesOfSetsAreEscaped) {
  expect_runs("--steps 2 --eval-every 2 --out " + path("named") +
              " --eval-data 'a\"b\\c=" + file_of("valid.safetensors") + "'");
  EXPECT_NE(read("named/metrics.prom").find("piper_evaluation_loss{set=\"a\\\"b\\\\c\"} "),
            std::string::npos)
      << read("named/metrics.prom");
}

TEST_F(Jobs, ASetWithoutLabelsHasNoLossAndSaysSo) {
  auto tensors = read_safetensors(std::string(kFolder) + "valid.safetensors");
  ASSERT_TRUE(tensors);
  const std::vector<int64_t> none(48, -100);
  std::erase_if(*tensors, [](const auto& one) { return !one.name.starts_with("batch/"); });
  for (NamedTensor& one : *tensors)
    if (one.name.ends_with("labels")) one.data = Bytes::copy_of(none.data(), 48 * sizeof(int64_t));
  ASSERT_TRUE(write_safetensors(path("ignored.safetensors"), *tensors));
  const auto [code, output] =
      run("--steps 2 --eval-every 2 --eval-data " + path("ignored.safetensors"));
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("warning: evaluation of 'valid' after step 2: no label of its 3 batches "
                        "counts, so there is no loss"),
            std::string::npos)
      << output;
}

// What --eval-ema finds is what an evaluation finds of a file with the averages in the parameters'
// place, under strategies that hold parameters and averages alike and otherwise.
TEST_F(Jobs, AveragesAreEvaluated) {
  const auto at = [&](const std::string& plans, const std::string& flags) {
    std::filesystem::remove(path("ema.jsonl"));
    const auto [code, output] = run_shell(fmt::format(
        "{}/bin/piper-run {} --data {} --threads 1 {} --metrics {} 2>&1", PIPER_BINARY_DIR,
        path(plans), file_of("training.safetensors"), flags, path("ema.jsonl")));
    EXPECT_EQ(code, 0) << output;
    const auto found = losses("ema.jsonl");
    return found.empty() ? NAN : found.rbegin()->second;
  };
  const std::string kept = path("averaged"), evaluate = "--eval-only " + valid();
  for (const auto& [name, text] :
       {std::pair("ema-stages", "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\n"),
        std::pair("ema-zero1", "include: <zero1>\nparams: {dp: 2}\n"),
        std::pair("ema-zero3", "include: <zero3>\nparams: {dp: 2}\n"),
        std::pair("ema-bf16", "include: [<zero1>, <numerics/bf16>]\nparams: {dp: 2}\n")}) {
    folder_->write(std::string(name) + ".yaml",
                   fmt::format("piper: 1\n{}train: {{global_batch: 8, optimizer: {{adamw: {{lr: "
                               "3e-2}}}}, ema: {{decay: 0.7}}}}\n",
                               text));
    const auto [code, output] = run_shell(
        fmt::format("{}/bin/piperc {} {} -o {} --eval 2>&1", PIPER_BINARY_DIR,
                    model_with(With::kNoise), path(std::string(name) + ".yaml"), path(name)));
    ASSERT_EQ(code, 0) << output;
  }
  // In the middle of a job they change nothing that it trains.
  at("ema-zero1", "--steps 5 --checkpoint " + kept + " --save " + path("alone.safetensors"));
  const auto in_jobs = [&](const std::string& plans, const std::string& flags) {
    return at(plans, "--steps 5 --eval-every 1 " + valid() + flags + " --save " +
                         path(plans + ".safetensors"));
  };
  const double in_job = in_jobs("ema-zero1", " --eval-ema");
  EXPECT_EQ(read("ema-zero1.safetensors"), read("alone.safetensors"));
  EXPECT_NE(in_job, in_jobs("ema-zero1", ""));
  const auto reader = CheckpointReader::open(file_storage(), kept + "/step-000000005");
  ASSERT_TRUE(reader) << print_error(reader.error());
  std::vector<NamedTensor> averages;
  for (const auto& [name, type] : reader->types()) {
    if (!name.ends_with(".ema")) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
    ASSERT_TRUE(reader->read(name, {type, {}, 0, num_elements(type.shape)}, bytes.data()));
    averages.push_back(
        {name.substr(0, name.size() - 4), type, Bytes::copy_of(bytes.data(), bytes.size())});
  }
  ASSERT_FALSE(averages.empty());
  ASSERT_TRUE(write_safetensors(path("averages.safetensors"), averages));
  for (const char* plans : {"ema-zero1", "ema-stages"}) {
    const double ours = at(plans, evaluate + " --eval-ema --resume " + kept);
    EXPECT_EQ(ours, at(plans, evaluate + " --init " + path("averages.safetensors"))) << plans;
    EXPECT_NE(ours, at(plans, evaluate + " --resume " + kept)) << plans;
    if (plans == std::string("ema-zero1")) {
      EXPECT_EQ(ours, in_job);
    }
  }
  // Each rank of several processes takes what the others hold, where 16-bit copies are used, too.
  for (const char* plans : {"ema-bf16", "ema-zero3"}) {
    const std::string folder = path(std::string(plans) + "-kept");
    const double alone = in_jobs(plans, " --eval-ema --every 5 --checkpoint " + folder);
    EXPECT_EQ(alone, at(plans, evaluate + " --eval-ema --resume " + folder)) << plans;
    EXPECT_NE(alone, at(plans, evaluate + " --resume " + folder)) << plans;
  }
  expect_runs("--steps 2 --checkpoint " + path("no-averages"));
  const auto none = run(evaluate + " --eval-ema --resume " + path("no-averages"));
  EXPECT_EQ(none.first, 2);
  EXPECT_NE(none.second.find("holds no averages of parameters"), std::string::npos) << none.second;
  EXPECT_EQ(run("--steps 2 --eval-ema").first, 2);
  const auto keeps_none = run("--steps 2 --eval-ema --eval-every 1 " + valid());
  EXPECT_EQ(keeps_none.first, 2);
  EXPECT_NE(keeps_none.second.find("keep no averages of parameters"), std::string::npos)
      << keeps_none.second;
  EXPECT_EQ(run(evaluate + " --eval-ema").first, 2);
}

// The training loss is lowest at the end, that of evaluation is not.
TEST_F(Jobs, KeepTheCheckpointOfLowestLoss) {
  const auto [code, output] = run(fmt::format(
      "--steps 6 {} --eval-every 1 --out {} --every 1 --keep best=2", valid(), path("out")));
  ASSERT_EQ(code, 0) << output;
  const auto all = losses("out/metrics.jsonl");
  ASSERT_EQ(all.size(), 6u);
  std::vector<std::pair<double, int64_t>> order;
  for (const auto& [step, loss] : all) order.emplace_back(loss, step);
  std::sort(order.begin(), order.end());
  EXPECT_NE(order[0].second, 6);  // or the rule shows nothing
  std::vector<int64_t> want{6, order[0].second, order[1].second};
  std::sort(want.rbegin(), want.rend());
  want.erase(std::unique(want.begin(), want.end()), want.end());
  EXPECT_EQ(checkpoints("out/checkpoints"), want);
  EXPECT_NE(read("out/metrics.prom").find("piper_evaluation_loss{set=\"valid\"} "),
            std::string::npos);
  EXPECT_NE(output.find("after step 6: valid loss "), std::string::npos) << output;
  const auto [refused, why] = run(fmt::format(
      "--steps 6 {} --eval-every 4 --checkpoint {} --every 2 --keep best=2", valid(), path("no")));
  EXPECT_EQ(refused, 2);
  EXPECT_NE(why.find("let --every be a multiple of --eval-every"), std::string::npos) << why;
}

// An evaluation of an older checkpoint adds to what a run has told, and takes nothing away.
TEST_F(Jobs, AnEvaluationLeavesARunAsItIs) {
  const std::string out = path("told");
  expect_runs(fmt::format("--steps 6 {} --out {} --every 2", valid(), out));
  const std::string metrics = read("told/metrics.jsonl"), values = read("told/metrics.prom");
  expect_runs(fmt::format("--eval-only {} --resume {}/checkpoints/step-000000002 --out {}", valid(),
                          out, out));
  const std::string after = read("told/metrics.jsonl");
  EXPECT_TRUE(after.starts_with(metrics)) << after;
  EXPECT_GT(after.size(), metrics.size());
  EXPECT_EQ(read("told/metrics.prom"), values);
  // Nor does a branch, or a job of other plans that begins where there is no checkpoint yet.
  expect_runs(fmt::format(
      "--steps 4 --branch {}/checkpoints/step-000000002 --metrics {}/metrics.jsonl", out, out));
  EXPECT_TRUE(read("told/metrics.jsonl").starts_with(after));
}

// An evaluation of the initial values, too, begins no series: the job that goes on cuts what lies
// beyond its checkpoint before and behind that.
TEST_F(Jobs, AnEvaluationBeginsNoSeries) {
  const std::string out = path("series");
  expect_runs(fmt::format("--steps 6 {} --eval-every 2 --out {} --every 2", valid(), out));
  expect_runs(fmt::format("--eval-only {} --out {}", valid(), out));
  std::filesystem::remove_all(out + "/checkpoints/step-000000006");
  expect_runs(fmt::format("--steps 8 {} --eval-every 2 --resume {} --out {}", valid(), out, out));
  const std::string series = read("series/metrics.jsonl");
  for (int step = 1; step <= 8; ++step) {
    const std::string line = fmt::format("\n{{\"step\":{},", step);
    EXPECT_NE(series.find(line), std::string::npos) << series;
    EXPECT_EQ(series.find(line), series.rfind(line)) << series;
  }
  EXPECT_NE(series.find("\"evaluates\":true"), std::string::npos) << series;
}

// Checkpoints by the clock are evaluated by chance only: best ones are not known of them.
TEST_F(Jobs, BestByTheClockIsRefused) {
  const auto [code, output] =
      run(fmt::format("--steps 6 {} --eval-every 4 --checkpoint {} --minutes 1 --keep best=2",
                      valid(), path("no")));
  EXPECT_EQ(code, 2) << output;
  EXPECT_NE(output.find("--minutes"), std::string::npos) << output;
}

// The rows that fill no batch count as all others do; sets have names, and several sources.
TEST_F(Jobs, EvaluateSeveralSets) {
  const auto write = [&](const char* name, int64_t rows, int64_t shift, int64_t first = 0) {
    std::string header =
        fmt::format("{{'descr': '<i8', 'fortran_order': False, 'shape': ({}, 6), }}", rows);
    header.resize((header.size() + 10 + 63) / 64 * 64 - 11, ' ');
    header += '\n';
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(header.size() & 255);
    bytes += static_cast<char>(header.size() >> 8);
    bytes += header;
    for (int64_t i = first * 6; i < (first + rows) * 6; ++i) {
      const int64_t number = (i * i * 7 + i / 6 + shift) % 24;
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
    return folder_->write(name, bytes);
  };
  const std::string ids = write("ids.npy", 20, 0), labels = write("labels.npy", 20, 1),
                    few_ids = write("few_ids.npy", 16, 0), few = write("few.npy", 16, 1),
                    last_ids = write("last_ids.npy", 4, 0, 16), last = write("last.npy", 4, 1, 16);
  const auto set = [](const char* name, const std::string& a, const std::string& b) {
    return fmt::format("--eval-data {0}=input_ids={1} --eval-data {0}=labels={2} ", name, a, b);
  };
  expect_runs("--steps 1 " + set("all", ids, labels) + set("whole", few_ids, few) +
              set("rest", last_ids, last) + valid() + " --metrics " + path("sets.jsonl"));
  EXPECT_EQ(losses("sets.jsonl").size(), 1u);
  const double whole = losses("sets.jsonl", "whole")[1], rest = losses("sets.jsonl", "rest")[1],
               both = losses("sets.jsonl", "all")[1];
  EXPECT_NEAR(both, (16 * whole + 4 * rest) / 20, 1e-12);
  EXPECT_GT(std::abs(rest - whole), 1e-3);  // or it would not matter how rows are counted
  EXPECT_NE(losses("sets.jsonl", "all"), losses("sets.jsonl"));
  // With --eval-only it is what the other inputs are read from, too.
  const auto [ended, told] =
      run_shell(fmt::format("{}/bin/piper-run {} --threads 1 --eval-only {} 2>&1", PIPER_BINARY_DIR,
                            path("plans"), set("rest", last_ids, last)));
  EXPECT_EQ(ended, 0) << told;
  expect_runs("--steps 1 --eval-batches 1 " + valid() + " --metrics " + path("one.jsonl"));
  EXPECT_NE(losses("one.jsonl"), losses("sets.jsonl"));
  const std::pair<std::string, const char*> wrong[] = {
      {"--eval-data missing.bin", "--eval-data 'valid': "},
      {"--eval-every 2", "--eval-data SOURCE"}};
  for (const auto& [flags, text] : wrong) {
    const auto [code, output] = run(flags);
    EXPECT_TRUE(code == 1 || code == 2) << output;
    EXPECT_NE(output.find(text), std::string::npos) << output;
  }
}

// The loss of a mixture is that of all samples of all its sources, whatever their weights.
TEST_F(Jobs, EvaluateAMixtureAsAWhole) {
  const auto tokens = [&](const char* name, size_t windows, size_t factor) {
    std::string text;
    for (size_t at = 0; at <= windows * 6; ++at)
      text += static_cast<char>((at * at * factor + at / 7) % 24);
    folder_->write(name, text);
  };
  tokens("small.bin", 8, 1);
  tokens("large.bin", 66, 5);
  const auto mix = [&](const char* weight) {
    return "--eval-data " +
           folder_->write(fmt::format("mix{}.yaml", weight),
                          fmt::format("sources:\n"
                                      "  - {{name: a, files: small.bin, type: u8, weight: {}}}\n"
                                      "  - {{name: b, files: large.bin, type: u8, weight: 66}}\n",
                                      weight));
  };
  const auto loss_of = [&](const std::string& data) {
    std::filesystem::remove(path("mixed.jsonl"));
    const auto [code, output] = run("--eval-only " + data + " --metrics " + path("mixed.jsonl"));
    EXPECT_EQ(code, 0) << output;
    EXPECT_EQ(output.find("left out"), output.npos) << output;
    const auto found = losses("mixed.jsonl");
    EXPECT_EQ(found.size(), 1u) << output;
    return found.empty() ? NAN : found.begin()->second;
  };
  const std::string small = "--eval-data " + path("small.bin") + ":u8 ",
                    large = "--eval-data " + path("large.bin") + ":u8 ";
  const double whole = loss_of(small + large), equal = loss_of(mix("66")),
               by_size = loss_of(mix("8"));
  EXPECT_NEAR(whole, (8 * loss_of(small) + 66 * loss_of(large)) / 74, 1e-6);
  EXPECT_NEAR(equal, whole, 1e-6);
  EXPECT_NEAR(by_size, whole, 1e-6);
  // The first batch is of both by their weights, and so another one where these differ.
  EXPECT_GT(std::abs(loss_of("--eval-batches 1 " + mix("66")) - whole), 1e-4);
  EXPECT_NE(loss_of("--eval-batches 1 " + mix("66")), loss_of("--eval-batches 1 " + mix("8")));
}

// A signal breaks off an evaluation, which then says nothing; SIGUSR1 asks for a checkpoint.
TEST_F(Jobs, HearSignalsWhileTheyEvaluate) {
  const std::string flags = "--steps 6 --eval-every 2 " + valid() + " --checkpoint ";
  const auto [stopped, output] =
      run(flags + path("stopped") + " --metrics " + path("stopped.jsonl"),
          "PIPER_FAULT=term@0:4:evaluate");
  EXPECT_EQ(stopped, 130) << output;
  EXPECT_EQ(checkpoints("stopped"), std::vector<int64_t>{4});
  const auto found = losses("stopped.jsonl");
  EXPECT_EQ(found.size(), 1u);
  EXPECT_TRUE(found.contains(2));
  const auto [code, text] = run(flags + path("asked") + " --metrics " + path("asked.jsonl"),
                                "PIPER_FAULT=usr1@0:2:evaluate");
  EXPECT_EQ(code, 0) << text;
  EXPECT_EQ(checkpoints("asked"), (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(losses("asked.jsonl").size(), 3u);
}

// Ranks that are processes find the same, and go on alike.
TEST_F(Jobs, ProcessesEvaluate) {
  const auto metrics = [&](const char* name) { return " --metrics " + path(name); };
  const std::string flags = "--steps 4 --eval-every 2 " + valid();
  expect_runs(flags + metrics("threads.jsonl"));
  const std::string command =
      fmt::format("{}/bin/piper-run {} --data {} --threads 1 {}", PIPER_BINARY_DIR, path("plans"),
                  file_of("training.safetensors"), flags + metrics("processes.jsonl"));
  const auto [code, output] =
      run_shell(as_processes(2, torch_variables(2, free_port()), command) + " 2>&1");
  EXPECT_EQ(code, 0) << output;
  EXPECT_EQ(losses("threads.jsonl"), losses("processes.jsonl"));
}

}  // namespace
}  // namespace piper::evaluation_test
