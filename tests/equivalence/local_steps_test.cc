// Local steps: sites that train by themselves, joined by an outer optimizer, train as the plan for
// one device does, which plays all sites; other outer optimizers and intervals do not.
#include "equivalence/jobs.h"
#include "equivalence/sample_jobs.h"
#include "piper/plan/verify.h"

namespace piper {
namespace {

using namespace jobs;

constexpr int64_t kEvery = 3, kSteps = 7;  // two outer updates, and a step more

std::string local_steps(int64_t every = kEvery, const char* momentum = "0.9") {
  return fmt::format(
      "  - local_steps: {{over: site, every: {}, outer: {{sgd: {{lr: 0.7, momentum: {}, nesterov: "
      "{}}}}}}}\n",
      every, momentum, std::string(momentum) == "0" ? "false" : "true");
}

struct Way {
  const char* name;
  const char* text;  // before the directive
  const char* model = "mlp";
  const char* train = "optimizer: {adamw: {lr: 3e-3, weight_decay: 0.1}}";
  bool same_sums = true;  // as the single-device plan forms them
};
const std::string kTensor = std::string("mesh: {site: 2, tp: 2}\ndirectives:\n") + kGptTensor;
const Way kWays[] = {
    {"sites", "mesh: {site: 2}\ndirectives:\n"},
    {"four_sites", "mesh: {site: 4}\ndirectives:\n"},
    {"sgd", "mesh: {site: 2}\ndirectives:\n", "mlp", "optimizer: {sgd: {lr: 0.05}}"},
    {"microbatches", "mesh: {site: 2}\ndirectives:\n  - split: {dim: batch, into: 2, as: mb}\n"},
    {"stages",
     "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n"},
    {"dp", "include: <ddp>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"zero1", "include: <zero1>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"zero2", "include: <zero2>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"bf16",
     "include: <ddp>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"
     "  - precision: {compute: bf16}\n"},
    {"tied",
     "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n  - recompute: {where: {stage: 0}}\n",
     "gpt"},
    {"tp", kTensor.c_str(), "gpt", "optimizer: {adamw: {lr: 3e-3, eps: 1e-6}}", false}};

Result<Compiled> compile_way(const Way& way, const std::string& directive) {
  CompileOptions options;
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  options.oracles = true;
  return compile_text(way.model, "piper: 1\n" + std::string(way.text) + directive, way.train,
                      options);
}

class LocalSteps : public ::testing::TestWithParam<Way> {};

TEST_P(LocalSteps, EqualOneDeviceBitForBit) {
  const Way& way = GetParam();
  NEED_MODEL(way.model);
  const auto compiled = compile_way(way, local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  ASSERT_TRUE(compiled->single);
  const auto ours = train(compiled->set, way.model, kSteps),
             single = train(*compiled->single, way.model, kSteps);
  ASSERT_TRUE(ours) << print_error(ours.error());
  ASSERT_TRUE(single) << print_error(single.error());
  if (way.same_sums) expect_equal_bits(*ours, *single, way.name);
  EXPECT_LE(largest_difference(*ours, *single), way.same_sums ? 0 : 3e-4) << way.name;
}

// The controls: without momentum, and at other steps, the outer optimizer leads elsewhere.
TEST_P(LocalSteps, OtherOuterOptimizersDiverge) {
  const Way& way = GetParam();
  NEED_MODEL(way.model);
  std::vector<Trained> trained;
  for (const std::string& directive :
       {local_steps(), local_steps(kEvery, "0"), local_steps(kEvery - 1)}) {
    const auto compiled = compile_way(way, directive);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto one = train(compiled->set, way.model, kSteps);
    ASSERT_TRUE(one) << print_error(one.error());
    trained.push_back(*std::move(one));
  }
  EXPECT_GT(largest_difference(trained[1], trained[0]), 1e-4) << way.name;
  EXPECT_GT(largest_difference(trained[2], trained[0]), 1e-4) << way.name;
}

INSTANTIATE_TEST_SUITE_P(Ways, LocalSteps, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return info.param.name; });

// ---- Proof --------------------------------------------------------------------------------------

std::string first_finding(const PlanSet& set, const PlanSet& single) {
  const auto report = verify_plan_set(set, &single);
  if (!report) return print_error(report.error());
  return report->findings.empty() ? "" : report->findings.front().text;
}

TEST(LocalStepsProof, FindsOuterUpdatesThatAreWrong) {
  NEED_MODEL("mlp");
  const auto compiled = compile_way(kWays[0], local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& single = *compiled->single;
  EXPECT_EQ(first_finding(compiled->set, single), "");
  ASSERT_EQ(compiled->set.roles.size(), 2u);

  PlanSet other = compiled->set;
  for (RoleProgram& role : other.roles) role.outer_every = kEvery + 1;
  EXPECT_NE(first_finding(other, single), "") << "at other steps";

  other = compiled->set;
  other.roles[1].outer_every = kEvery + 1;
  EXPECT_NE(first_finding(other, single), "") << "one rank at other steps";

  other = compiled->set;
  for (RoleProgram& role : other.roles) role.outer.clear(), role.outer_every = 0;
  EXPECT_NE(first_finding(other, single), "") << "none at all";

  for (size_t r = 0; r < 2; ++r)
    for (size_t i = 0; i < compiled->set.roles[r].outer.size(); ++i) {
      other = compiled->set;
      std::vector<Instruction>& outer = other.roles[r].outer;
      const std::string what = fmt::format("role {} without '{}'", r, outer[i].label);
      outer.erase(outer.begin() + static_cast<std::ptrdiff_t>(i));
      for (Instruction& one : outer) {
        std::erase(one.waits, static_cast<int32_t>(i));
        for (int32_t& wait : one.waits) wait -= wait > static_cast<int32_t>(i) ? 1 : 0;
      }
      EXPECT_NE(first_finding(other, single), "") << what;
    }
}

// ---- Checkpoints --------------------------------------------------------------------------------

class LocalStepsJobs : public SampleJobs {};

// A job that ends between two outer updates goes on with other stages, and one that is killed from
// its last checkpoint: both end with all states of one that ran on.
TEST_F(LocalStepsJobs, GoOnElsewhereBetweenOuterUpdates) {
  const std::string train = "train: {global_batch: 12, optimizer: {adamw: {lr: 2e-3}}}\n";
  compile(
      "here",
      "mesh: {site: 2}\ndirectives:\n  - split: {dim: batch, into: 6, as: mb}\n" + local_steps(),
      train);
  compile("there",
          "include: <1f1b>\nparams: {stages: 2, microbatches: 6}\nmesh: {site: 2}\ndirectives:\n" +
              local_steps(),
          train);
  const auto all = run("there", "--steps 8 --checkpoint " + path("all")),
             part = run("here", "--steps 5 --checkpoint " + path("part")),
             rest = run("there",
                        "--steps 8 --resume " + path("part") + " --checkpoint " + path("rest"));
  for (const auto& one : {all, part, rest}) ASSERT_EQ(one.first, 0) << one.second;
  const auto wanted = tensors_of("all");
  EXPECT_TRUE(tensors_of("rest") == wanted);

  const auto killed = run("there", "--steps 8 --every 2 --checkpoint " + path("killed"),
                          "kill@1:7:step"),
             resumed = run("there", "--steps 8 --resume " + path("killed") + " --checkpoint " +
                                        path("killed"));
  EXPECT_NE(killed.first, 0) << killed.second;
  ASSERT_EQ(resumed.first, 0) << resumed.second;
  EXPECT_TRUE(tensors_of("killed") == wanted);
  // The control: without the outer states.
  const auto fresh =
      run("there", "--steps 3 --init " + path("part") + " --checkpoint " + path("fresh"));
  ASSERT_EQ(fresh.first, 0) << fresh.second;
  EXPECT_FALSE(tensors_of("fresh") == wanted);
}

// Tools say how often there is an outer update, and what it sends.
TEST_F(LocalStepsJobs, AreCountedByTools) {
  const std::string train = "train: {global_batch: 12, optimizer: {adamw: {lr: 2e-3}}}\n",
                    mesh = "mesh: {site: 2}\ndirectives:\n";
  compile("three", mesh + local_steps(), train);
  compile("four", mesh + local_steps(4), train);
  const auto tool = [](const std::string& words) {
    return run_shell(fmt::format("{}/bin/{} 2>&1", PIPER_BINARY_DIR, words));
  };
  const auto proved = tool("piper-verify " + path("three"));
  EXPECT_EQ(proved.first, 0) << proved.second;
  const auto simulated =
      tool(fmt::format("piper-sim {} --cluster {}/strategies/clusters/two-cores.yaml",
                       path("three"), PIPER_SOURCE_DIR));
  EXPECT_EQ(simulated.first, 0) << simulated.second;
  EXPECT_NE(simulated.second.find("an update each 3 steps"), std::string::npos) << simulated.second;
  const auto differ = tool(fmt::format("piper-diff {} {}", path("three"), path("four")));
  EXPECT_EQ(differ.first, 1) << differ.second;
  EXPECT_NE(differ.second.find("local_steps"), std::string::npos) << differ.second;
}

}  // namespace
}  // namespace piper
