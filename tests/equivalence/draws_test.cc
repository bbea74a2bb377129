// A model that draws random numbers trains alike under every strategy: the numbers belong to the
// sample, the op and the step.
#include <regex>

#include "equivalence/jobs.h"
#include "piper/base/data.h"
#include "piper/plan/verify.h"
#include "piper/runtime/data.h"

namespace piper::equivalence_draws_test {
namespace {

using namespace jobs;

constexpr int64_t kBatch = 8, kTime = 6, kVocabulary = 24, kBatches = 4;

// Tokens, and labels of which some are ignored: fewer in later samples.
void write_data(const std::string& path) {
  std::vector<std::vector<int64_t>> data;
  std::vector<NamedTensor> tensors;
  data.reserve(2 * kBatches);
  for (int64_t k = 0; k < kBatches; ++k)
    for (const char* name : {"input_ids", "labels"}) {
      std::vector<int64_t>& elements = data.emplace_back();
      for (int64_t i = 0; i < kBatch * kTime; ++i) {
        const bool ignored = *name == 'l' && i % kTime > kTime - i / kTime / 2;
        elements.push_back(ignored ? -100 : (k * 31 + i * i * 7 + (*name == 'l')) % kVocabulary);
      }
      tensors.push_back({fmt::format("batch/{}/{}", k, name),
                         {DType::kI64, {kBatch, kTime}},
                         Bytes::copy_of(elements.data(), elements.size() * sizeof(int64_t))});
    }
  ASSERT_TRUE(write_safetensors(path, tensors));
}

class Draws : public ::testing::Test {
 protected:
  void SetUp() override { write_data(data_path()); }
  std::string data_path() const { return folder_.path() + "/data.safetensors"; }

  Compiled compile_with(const Shape2& shape, const std::string& train, bool oracles = false,
                        const char* file = "dynamo.onnx", const std::string& more = "") {
    CompileOptions options;
    options.model = std::string(PIPER_SOURCE_DIR "/tests/data/dropout/") + file;
    options.strategy = folder_.write(
        "strategy.yaml", "piper: 1\ninclude: " PIPER_SOURCE_DIR "/strategies/" + shape.order +
                             ".yaml\nparams: {stages: 1, dp: 1, microbatches: 1}\n"
                             "train: {global_batch: 8, " +
                             train + "}\n" + more);
    options.defines = {{"stages", std::to_string(shape.pp)},
                       {"dp", std::to_string(shape.dp)},
                       {"microbatches", std::to_string(shape.mb)}};
    options.oracles = oracles;
    auto compiled = compile(options);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    return *std::move(compiled);
  }

  Trained run(const PlanSet& set, int64_t steps, int threads = 1) {
    const auto needs = data_needs(set);
    DataOptions sources;
    sources.sources = {data_path()};
    const auto data = open_data(sources, *needs, kBatch);
    EXPECT_TRUE(data) << print_error(data.error());
    JobOptions options;
    options.steps = steps;
    options.threads = threads;
    auto job = run_job(set, data->get(), nullptr, nullptr, options);
    EXPECT_TRUE(job) << print_error(job.error());
    Trained trained;
    for (const StepMetrics& step : job->steps) {
      trained.losses.push_back(step.loss.value_or(NAN));
      trained.norms.push_back(step.grad_norm.value_or(NAN));
    }
    for (NamedTensor& tensor : job->parameters) trained.parameters[tensor.name] = std::move(tensor);
    return trained;
  }

  Folder folder_;
};

const std::string kTrain = std::string(kSgd) + ", seed: 3";

bool equal_bits(const Trained& a, const Trained& b) {
  if (a.losses != b.losses || a.norms != b.norms) return false;
  for (const auto& [name, tensor] : a.parameters)
    if (as_text(tensor.data.span()) != as_text(b.parameters.at(name).data.span())) return false;
  return true;
}
double worst(const Trained& a, const Trained& b) {
  double error = 0;
  for (size_t k = 0; k < a.losses.size(); ++k)
    error = std::max(error, std::abs(a.losses[k] - b.losses[k]) / a.losses[k]);
  for (const auto& [name, tensor] : a.parameters)
    error = std::max(error, tensor_error(tensor, b.parameters.at(name)));
  return error;
}

TEST_F(Draws, EveryStrategyDrawsTheSame) {
  constexpr int64_t kSteps = 4;
  for (const char* file : {"dynamo.onnx", "torchscript.onnx"}) {
    const Trained whole = run(compile_with({1, 1, 1}, kTrain, false, file).set, kSteps);
    std::map<std::pair<int64_t, int64_t>, Trained> by_cut;
    for (const Shape2& shape :
         {Shape2{1, 1, 4}, Shape2{2, 1, 4}, Shape2{4, 1, 4, "gpipe"}, Shape2{2, 1, 1},
          Shape2{1, 2, 1}, Shape2{2, 2, 1}, Shape2{1, 2, 4}, Shape2{2, 2, 4}, Shape2{1, 8, 1}}) {
      if (kSanitized && (shape.pp == 4 || shape.dp == 8)) continue;
      const std::string what = fmt::format("{} {} {} {}", file, shape.pp, shape.dp, shape.mb);
      const Trained trained = run(compile_with(shape, kTrain, false, file).set, kSteps);
      EXPECT_LE(worst(whole, trained), 2e-6) << what;
      const auto [known, fresh] = by_cut.try_emplace({shape.dp, shape.mb}, trained);
      EXPECT_TRUE(equal_bits(known->second, trained)) << what;
    }
  }
}

// Split and overlapped backwards, chunks placed as rings and as a V, recomputed activations: what
// is drawn again in the backward pass, or in a second forward, is what was drawn before.
TEST_F(Draws, EveryScheduleDrawsTheSame) {
  std::vector<Shape2> shapes{{2, 1, 4, "zb-h1"}, {2, 1, 4, "dualpipev"}};
  if (!kSanitized)
    for (const char* order : {"interleaved-1f1b", "zb-h2", "zbv"})
      shapes.push_back({2, 2, 4, order});
  for (const std::string more : {"", "directives: [{recompute: {}}]\n"})
    for (const Shape2& shape : shapes) {
      const Compiled compiled = compile_with(shape, kTrain, true, "dynamo.onnx", more);
      const auto draws = [](const PlanSet& set) {
        int64_t count = 0;
        for (const RoleProgram& role : set.roles)
          for (const Instruction& one : role.body)
            if (one.program >= 0)
              for (const ProgramOp& op : role.programs[static_cast<size_t>(one.program)].ops)
                count += op.op == "Dropout";
        return count;
      };
      // One device plays all replicas.
      EXPECT_EQ(shape.dp * draws(compiled.set) > draws(*compiled.single), !more.empty())
          << shape.order;
      EXPECT_TRUE(equal_bits(run(compiled.set, 2), run(*compiled.single, 2)))
          << shape.order << " " << more;
    }
}

TEST_F(Draws, ThreadsAndOraclesDrawTheSame) {
  const Compiled compiled = compile_with({2, 2, 2}, kTrain, true);
  const Trained trained = run(compiled.set, 2);
  EXPECT_TRUE(equal_bits(run(*compiled.single, 2), trained));
  EXPECT_LE(worst(run(*compiled.uncut, 2), trained), 2e-6);
  EXPECT_TRUE(equal_bits(run(compile_with({1, 1, 1}, kTrain).set, 2, 3),
                         run(compile_with({1, 1, 1}, kTrain).set, 2, 1)));
}

// Every piece takes itself for the first one: the same numbers for other samples.
TEST_F(Draws, WithoutTheNumberOfTheSampleTheyDiffer) {
  const Trained whole = run(compile_with({1, 1, 1}, kTrain).set, 2);
  for (const Shape2& shape : {Shape2{1, 1, 4}, Shape2{1, 2, 1}}) {
    PlanSet set = compile_with(shape, kTrain).set;
    int changed = 0;
    for (RoleProgram& role : set.roles)
      for (Instruction& one : role.body)
        if (one.kind == InstructionKind::kInput && one.input.empty()) {
          one.samples.first = 0;
          std::fill(one.samples.stride.begin(), one.samples.stride.end(), 0);
          ++changed;
        }
    EXPECT_EQ(changed, shape.mb) << "one for each microbatch";
    const auto proof = verify_plan_set(set);
    ASSERT_TRUE(proof);
    EXPECT_FALSE(proof->findings.empty());
    EXPECT_GT(worst(whole, run(set, 2)), 1e-4);
  }
}

// Blocks of heads, of tokens and of samples draw what the whole tensor draws there.
TEST_F(Draws, BlocksOverMeshAxesDrawTheSame) {
  const std::string split = "  - split: {dim: batch, into: 2}\n";
  const std::string weights =
      "  - shard: {match: [\"h/*/qkv/*\", \"h/*/up/*\"], dim: 0, over: tp}\n"
      "  - shard: {match: [\"h/*/proj/weight\", \"h/*/down/weight\"], dim: 1, over: tp}\n";
  const std::string zeros = std::regex_replace(weights, std::regex("tp}"), "tp, pad: true}");
  const std::string tokens = "  - shard: {scope: \"h/*/ln_*\", dim: 1, over: tp}\n";
  const std::string samples = "  - shard: {input: \"*\", dim: 0, over: ep}\n";
  const std::string zigzag = "  - shard: {input: \"*\", dim: 1, over: cp, order: zigzag}\n";
  const auto compiled = [&](const std::string& mesh, const std::string& directives) {
    CompileOptions options;
    options.model = PIPER_SOURCE_DIR "/tests/data/dropout/dynamo.onnx";
    options.strategy = folder_.write(
        "strategy.yaml", fmt::format("piper: 1\nmesh: {}\ntrain: {{global_batch: 8, {}}}\n"
                                     "directives:\n  - precision: {{compute: f64}}\n{}",
                                     mesh, kTrain, directives));
    options.oracles = false;
    auto made = compile(options);
    EXPECT_TRUE(made) << print_error(made.error());
    return std::move(made->set);
  };
  const Trained whole = run(compiled("{}", ""), 3);
  const auto difference = [&](const PlanSet& set) {
    const Trained trained = run(set, 3);
    double most = 0;
    for (size_t k = 0; k < whole.losses.size(); ++k)
      most = std::max({most, std::abs(trained.losses[k] - whole.losses[k]),
                       std::abs(trained.norms[k] - whole.norms[k])});
    return most;
  };
  struct {
    std::string mesh, directives;
    size_t axes;  // that cut some of the draws
  } cases[] = {{"{tp: 2}", weights, 1},
               {"{tp: 2}", split + weights + tokens, 1},
               {"{ep: 4}", split + samples, 1},
               {"{dp: 2, ep: 2}", split + samples + "  - replicate: {over: dp}\n", 1},
               {"{cp: 3}", zigzag, 1},
               {"{cp: 3}", split + zigzag, 1},  // "*" is no number of samples
               {"{ep: 2, tp: 2}", weights + tokens + samples, 2},
               {"{tp: 2, ep: 2}", split + samples + weights + tokens, 2},
               {"{tp: 3}", split + zeros, 1},  // hidden dims and heads go on into zeros
               {"{tp: 3, ep: 2}", samples + zeros, 2}};
  for (const auto& [mesh, directives, axes] : cases) {
    SCOPED_TRACE(mesh + "\n" + directives);
    PlanSet set = compiled(mesh, directives);
    size_t most = 0;
    for (const Program& program : set.roles[0].programs)
      for (const ProgramOp& op : program.ops)
        if (op.op == "Dropout") most = std::max(most, op.attrs.integers("cuts").size() / 2);
    EXPECT_EQ(most, axes);
    EXPECT_LE(difference(set), 1e-12);
    const auto is_refused = [](const PlanSet& wrong) {
      const auto proof = verify_plan_set(wrong);
      return proof && !proof->findings.empty();
    };
    PlanSet other = set;
    for (Program& program : other.roles[0].programs)
      for (ProgramOp& op : program.ops)
        if (std::vector<int64_t> cuts = op.attrs.integers("cuts"); !cuts.empty()) {
          cuts[0] = cuts[0] == 1 ? 2 : 1;
          op.attrs.set("cuts", cuts);
        }
    EXPECT_TRUE(is_refused(other));
    for (Instruction& one : set.roles[0].body)
      if (one.kind == InstructionKind::kPosition) one.outer = 0;
    EXPECT_GT(difference(set), 1e-4);
    EXPECT_TRUE(is_refused(set));
  }
}

// A step is drawn by its number, wherever a run begins; another seed draws others.
// Steps that overlap: what begins while the step before is under way draws by its own number.
TEST_F(Draws, OverlappingStepsDrawByTheirOwnNumber) {
  constexpr int64_t kSteps = 5;
  for (const char* train : {"optimizer: {sgd: {lr: 0.02}}", "optimizer: {adamw: {lr: 1e-2}}"})
    for (const Shape2& shape :
         {Shape2{2, 1, 4, "pipedream-2bw"}, Shape2{4, 2, 4, "pipedream-2bw"}}) {
      if (kSanitized && shape.pp == 4) continue;
      Compiled compiled = compile_with(shape, train, true);
      const Trained single = run(*compiled.single, kSteps), trained = run(compiled.set, kSteps);
      EXPECT_TRUE(equal_bits(single, trained)) << train << " " << shape.pp;
      // With the number of the step under way they would draw again what that one drew.
      for (RoleProgram& role : compiled.set.roles)
        for (Instruction& one : role.body)
          for (int32_t& arg : one.args)
            if (one.ahead && role.name(arg) == "next_step")
              for (size_t b = 0; b < role.buffers.size(); ++b)
                if (role.tensor(b).previous_of == arg) arg = static_cast<int32_t>(b);
      EXPECT_FALSE(equal_bits(single, run(compiled.set, kSteps)));
      const auto report = verify_plan_set(compiled.set);
      ASSERT_TRUE(report);
      const bool seen =
          std::any_of(report->findings.begin(), report->findings.end(), [](const Finding& finding) {
            return finding.rule == "sum" &&
                   finding.text.find("not the number of") != std::string::npos;
          });
      EXPECT_TRUE(seen);
    }
}

TEST_F(Draws, StepsAreDrawnByTheirNumber) {
  const std::string still = "optimizer: {sgd: {lr: 1e-30}}, seed: ";
  const PlanSet set = compile_with({1, 1, 2}, still + "3").set;
  const Trained first = run(set, kBatches + 2);
  EXPECT_NE(first.losses[0], first.losses[kBatches]) << "the same batch in another step";
  PlanSet later = set;
  for (RoleProgram& role : later.roles)
    for (Tensor& tensor : role.tensors)
      if (tensor.name == "step") tensor.fill = kBatches;
  const Trained resumed = run(later, 2);
  EXPECT_EQ(resumed.losses[0], first.losses[kBatches]);
  EXPECT_EQ(resumed.losses[1], first.losses[kBatches + 1]);
  EXPECT_NE(run(compile_with({1, 1, 2}, still + "4").set, 1).losses[0], first.losses[0]);
  EXPECT_EQ(run(compile_with({1, 1, 2}, still + "3").set, 1).losses[0], first.losses[0]);
}

// Keys are arguments: equal layers share their programs.
TEST_F(Draws, EqualLayersHaveOneProgram) {
  const PlanSet set = compile_with({1, 1, 1}, kTrain).set;
  const std::vector<Program>& programs = set.roles[0].programs;
  const auto count = [&](std::string_view label) {
    return std::count_if(programs.begin(), programs.end(),
                         [&](const Program& program) { return program.label.starts_with(label); });
  };
  EXPECT_EQ(count("F stage=0 h/"), 1);
  EXPECT_EQ(count("B stage=0 h/"), 1);
}

}  // namespace
}  // namespace piper::equivalence_draws_test
