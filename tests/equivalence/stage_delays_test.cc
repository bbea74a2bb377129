// A delay for each stage: whole models against a single device under the same rule, and chains
// against the rule written by hand.
#include "equivalence/against_single.h"
#include "equivalence/commands.h"
#include "equivalence/sample_jobs.h"
#include "piper/plan/verify.h"

namespace piper::stage_delays_test {
namespace {

using namespace jobs;

struct Sizes {
  int64_t pp, dp, mb;
};

constexpr const char *kFalling = "{where: {stage: s}, versions: pp - s}",
                     *kRising = "[{where: {stage: s}, versions: s + 1}]",
                     *kOne = "{where: {stage: 1}, versions: 3}";

// The library's order with these delays, keys of its entry of replicas, and directives.
Result<Compiled> compile(const std::string& model, const std::string& train,
                         const std::string& order, const std::string& versions,
                         const std::string& cut, const std::string& directives, const Sizes& s) {
  std::string text = library_text(order);
  if (const size_t known = text.find("weight_versions:"); known != text.npos && !versions.empty())
    text.erase(known, text.find('\n', known) + 1 - known);
  if (!versions.empty())
    text.insert(text.find("annotate:"), fmt::format("weight_versions: {}\n", versions));
  const std::string bucket = "bucket: 25MiB";
  text.replace(text.find(bucket), bucket.size(), "bucket: 1KiB" + cut);
  CompileOptions options;
  options.defines = definitions_of(text, {s.pp, s.dp, s.mb});
  options.oracles = true;
  return compile_text(model, text + directives, train, options);
}

bool finds(const PlanSet& set, const std::string& rule, const std::string& words,
           const PlanSet* single = nullptr) {
  const auto report = verify_plan_set(set, single);
  return report &&
         std::any_of(report->findings.begin(), report->findings.end(), [&](const Finding& one) {
           return one.rule == rule && one.text.find(words) != std::string::npos;
         });
}

class Models : public OfModels {};

TEST_P(Models, EqualTheSingleDeviceUnderTheSameRule) {
  const std::string model = GetParam();
  const std::string all = ", shard: [optimizer, gradients, parameters], gather: {prefetch: 1}",
                    bf16 = "  - precision: {compute: bf16}\n", again = "  - recompute: {}\n";
  struct Case {
    const char *order, *versions, *train;
    Sizes sizes;
    std::string cut, directives;
  };
  for (const auto& [order, versions, train, s, cut, directives] :
       {Case{"pipedream", "", kSgd, {2, 1, 1}}, Case{"pipedream", "", kAdamW, {2, 2, 2}},
        Case{"pipedream", "", kAdamW, {3, 1, 2}}, Case{"pipedream", "", kAdamW, {4, 2, 4}},
        Case{"pipedream", "", kAdamW, {3, 2, 4}, ", shard: [optimizer]"},
        Case{"pipedream", "", kAdamW, {2, 2, 4}, all, again},
        Case{"pipedream", "", kAdamW, {4, 1, 4}, "", bf16},
        Case{"pipedream", "", kAdamW, {3, 1, 1}}, Case{"pipedream", "", kAdamW, {4, 1, 2}},
        Case{"pipedream", "", kAdamW, {4, 2, 1}, ", shard: [optimizer]"},
        Case{"pipedream", "", kSgd, {4, 2, 2}, all, again},
        Case{"pipedream", "4", kAdamW, {4, 1, 1}, "", bf16},
        Case{"pipedream", kFalling, kSgd, {2, 2, 2}}, Case{"1f1b", kFalling, kSgd, {3, 1, 4}},
        Case{"1f1b", kFalling, kAdamW, {4, 2, 4}, ", shard: [optimizer]"},
        Case{"1f1b", kRising, kAdamW, {3, 2, 4}, all},
        Case{"1f1b", kRising, kAdamW, {4, 1, 4}, "", bf16},
        Case{"1f1b", kOne, kAdamW, {2, 2, 2}, ", shard: [optimizer, gradients]"},
        Case{"pipedream-2bw",
             "[{where: {stage: \"<2\"}, versions: 3}, "
             "{where: {stage: \">=2\"}, versions: 2}]",
             kSgd,
             {4, 1, 8}}}) {
    if (kSanitized && s.pp != 2) continue;
    SCOPED_TRACE(fmt::format("{} {} {} pp={} dp={} mb={}", order, versions, cut + directives, s.pp,
                             s.dp, s.mb));
    const auto compiled = compile(model, train, order, versions, cut, directives, s);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const Status same = run_against(compiled->set, *compiled->single, model, 7);
    EXPECT_TRUE(same) << print_error(same.error());
    if (train == kAdamW) expect_same_when_queued(compiled->set, model, cut + directives);
  }
}

// Uncut, too: sums are formed in another order, parameters are the same but for rounding.
TEST_P(Models, TrainAsOneBatchDoes) {
  const std::string model = GetParam();
  const auto compiled = compile(model, kSgd, "1f1b", kFalling, "", "", {3, 1, 4});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  ASSERT_TRUE(compiled->uncut);
  const auto cut = train(compiled->set, model, 6), whole = train(*compiled->uncut, model, 6);
  ASSERT_TRUE(cut && whole);
  for (size_t step = 0; step < 6; ++step)
    EXPECT_NEAR(cut->losses[step], whole->losses[step], 1e-5 * std::abs(whole->losses[step]));
}

// So few steps that the first ends before the last begins, and so many that bodies follow bodies.
TEST_P(Models, TrainAsManyStepsAsAskedForWithStepsSeveralAhead) {
  const std::string model = GetParam();
  const auto compiled = compile(model, kAdamW, "pipedream", "", "", "", {4, 1, 1});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  EXPECT_EQ(compiled->set.roles[0].steps_ahead, 3);
  for (const int64_t steps : {1, 2, 3, 4, 6}) {
    const auto got = train(compiled->set, model, steps);
    const auto want = train(*compiled->single, model, steps);
    ASSERT_TRUE(got && want);
    ASSERT_EQ(static_cast<int64_t>(got->losses.size()), steps);
    expect_equal_bits(*got, *want, fmt::format("{} steps", steps));
  }
}

// Forwards of a step two ahead that read a version too old or too new.
TEST_P(Models, AnotherVersionOfALaterStepIsSeen) {
  const std::string model = GetParam();
  const auto compiled = compile(model, kSgd, "pipedream", "", "", "", {3, 1, 1});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const RoleProgram& right = compiled->set.roles[0];
  ASSERT_EQ(right.steps_ahead, 2);
  for (const bool newer : {false, true}) {
    PlanSet wrong = compiled->set;
    int64_t reads = 0;
    for (Instruction& one : wrong.roles[0].body)
      for (int32_t& arg : one.args)
        for (size_t b = 0; b < right.buffers.size() && one.ahead == 2; ++b) {
          const int32_t of = right.tensor(static_cast<int32_t>(b)).previous_of;
          if (of < 0 || (newer ? static_cast<int32_t>(b) : of) != arg) continue;
          arg = newer ? of : static_cast<int32_t>(b);
          ++reads;
          break;
        }
    if (reads == 0) continue;  // what it reads is the newest
    EXPECT_TRUE(finds(wrong, "sum", "as it is before step"));
    EXPECT_FALSE(run_against(wrong, *compiled->single, model, 6));
  }
}

// Delays agree as long as the weights that they read are the first ones.
TEST_P(Models, DifferFromOtherDelays) {
  const std::string model = GetParam();
  const Sizes s{3, 1, 4};
  const auto falling = compile(model, kSgd, "1f1b", kFalling, "", "", s),
             rising = compile(model, kSgd, "1f1b", kRising, "", "", s),
             three = compile(model, kSgd, "1f1b", "3", "", "", s);
  ASSERT_TRUE(falling && rising && three);
  for (const auto& [set, other] :
       {std::pair(&falling->set, &*rising->single), std::pair(&falling->set, &*three->single),
        std::pair(&three->set, &*falling->single)}) {
    EXPECT_TRUE(run_against(*set, *other, model, 1));
    const Status differs = run_against(*set, *other, model, 5);
    ASSERT_FALSE(differs);
    EXPECT_TRUE(differs.error().message.starts_with("step 3: the loss differs") ||
                differs.error().message.starts_with("step 2: the loss differs"))
        << differs.error().message;
    EXPECT_TRUE(finds(*set, "single", "updates before a step", other));
  }
}

// A version too new or too old for one stage, one that is not passed on, one that a stage lacks.
TEST_P(Models, AnotherVersionOfOneStageIsSeen) {
  const std::string model = GetParam();
  const auto compiled = compile(model, kSgd, "1f1b", kFalling, "", "", {4, 1, 4});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int64_t seen = 0;
  for (size_t r = 0; r < compiled->set.roles.size(); ++r) {
    const RoleProgram& right = compiled->set.roles[r];
    // One too new, where there is one: what microbatches read.
    PlanSet newer = compiled->set, lost = compiled->set;
    int64_t reads = 0, copies = 0;
    for (Instruction& one : newer.roles[r].body)
      for (int32_t& arg : one.args)
        if (one.kind == InstructionKind::kCompute && one.micro >= 0 &&
            right.tensor(arg).previous_of >= 0 && right.tensor(arg).type.dtype != DType::kI64) {
          arg = right.tensor(arg).previous_of;
          ++reads;
        }
    if (reads > 0) {
      EXPECT_TRUE(finds(newer, "sum", "as it is before step")) << r;
      EXPECT_FALSE(run_against(newer, *compiled->single, model, 6)) << r;
    }
    // A version that is not passed on.
    auto& body = lost.roles[r].body;
    for (size_t i = 0; i < body.size() && copies == 0; ++i)
      if (body[i].kind == InstructionKind::kCopy &&
          right.tensor(body[i].args[1]).type.dtype != DType::kI64) {
        const auto at = static_cast<int32_t>(i);
        body.erase(body.begin() + at);
        for (Instruction& one : body) {
          std::erase(one.waits, at);
          for (int32_t& wait : one.waits) wait -= wait > at ? 1 : 0;
        }
        ++copies;
      }
    if (copies > 0) {
      EXPECT_TRUE(finds(lost, "sum", "does not hold the version before")) << r;
      EXPECT_FALSE(run_against(lost, *compiled->single, model, 7)) << r;
    }
    EXPECT_EQ(reads > 0, copies > 0) << r;
    seen += reads > 0 ? 1 : 0;
  }
  EXPECT_GE(seen, 2);
}

// Forwards of the next step that read, in one stage, a version too old or too new.
TEST_P(Models, AnotherVersionOfTheNextStepIsSeen) {
  const std::string model = GetParam();
  const auto compiled = compile(model, kSgd, "pipedream", kFalling, "", "", {4, 1, 4});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int64_t seen = 0;
  for (size_t r = 0; r < compiled->set.roles.size(); ++r) {
    const RoleProgram& right = compiled->set.roles[r];
    std::map<int32_t, int32_t> older, newer;
    for (size_t b = 0; b < right.buffers.size(); ++b)
      if (const int32_t of = right.tensor(b).previous_of;
          of >= 0 && right.tensor(b).type.dtype != DType::kI64)
        older[of] = static_cast<int32_t>(b), newer[static_cast<int32_t>(b)] = of;
    for (const auto& other : {older, newer}) {
      PlanSet wrong = compiled->set;
      int64_t reads = 0;
      for (Instruction& one : wrong.roles[r].body)
        for (int32_t& arg : one.args)
          if (const auto to = other.find(arg); one.ahead > 0 && to != other.end())
            arg = to->second, ++reads;
      if (reads == 0) continue;
      ++seen;
      EXPECT_TRUE(finds(wrong, "sum", "as it is before step")) << r;
      EXPECT_FALSE(run_against(wrong, *compiled->single, model, 6)) << r;
    }
  }
  EXPECT_GE(seen, 3);
}

// A stage that keeps fewer versions than one device is refused beside its plan, and trains
// otherwise.
TEST_P(Models, ADelayOfFewerUpdatesIsSeen) {
  const std::string model = GetParam();
  const auto three = compile(model, kSgd, "1f1b", kOne, "", "", {2, 1, 2}),
             two = compile(model, kSgd, "1f1b", "{where: {stage: 1}, versions: 2}", "", "",
                           {2, 1, 2});
  ASSERT_TRUE(three && two);
  EXPECT_TRUE(finds(two->set, "single", "as it is 1 updates before a step, 2 on one device",
                    &*three->single));
  EXPECT_FALSE(run_against(two->set, *three->single, model, 5));
}

INSTANTIATE_TEST_SUITE_P(StageDelays, Models, ::testing::Values("mlp", "gpt-deep"),
                         [](const auto& info) { return identifier(info.param); });

// A parameter that the first and the last stage read has the delay of the first, on both.
TEST(StageDelaysOfTies, AreTheLargest) {
  NEED_MODEL("gpt");
  const auto compiled = compile("gpt", kAdamW, "1f1b", kFalling, "", "", {2, 1, 4});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  std::map<std::string, std::set<int32_t>> kept;  // by parameter: versions on some rank
  for (const RoleProgram& role : compiled->set.roles) {
    std::map<std::string, int32_t> own;
    for (const Tensor& tensor : role.tensors)
      if (tensor.kind == BufferKind::kState && !role.original(tensor).param.empty())
        own[role.original(tensor).param] =
            std::max(own[role.original(tensor).param], role.age(tensor) + 1);
    for (const auto& [param, versions] : own) kept[param].insert(versions);
  }
  std::set<int32_t> numbers;
  for (const auto& [param, versions] : kept) {
    EXPECT_EQ(versions.size(), 1U) << param;
    numbers.insert(versions.begin(), versions.end());
  }
  EXPECT_EQ(numbers, (std::set<int32_t>{1, 2}));
  EXPECT_TRUE(std::ranges::any_of(compiled->explanations, [](const Explanation& each) {
    return each.directive == "weight_versions" &&
           each.lines[0].ends_with(
               "has 2 versions on all devices, though some of its readers ask for 1 only");
  }));
  const Status same = run_against(compiled->set, *compiled->single, "gpt", 6);
  EXPECT_TRUE(same) << print_error(same.error());
}

// ---- Jobs of piper-run --------------------------------------------------------------------------

class StageDelayJobs : public SampleJobs {};

// A job that ends after some step and goes on under another strategy saves what one job saves.
TEST_F(StageDelayJobs, GoOnBitForBit) {
  const std::string stages = "include: <pipedream>\nparams: {stages: 2, dp: 2, microbatches: 3}\n";
  compile("stages", stages);
  compile("cut",
          "include: [<schedules/pipedream>, <memory/zero1>]\n"
          "params: {stages: 2, dp: 2, microbatches: 3}\n");
  const auto all = run("stages", "--steps 7 --every 1 --keep last=7 --checkpoint " + path("kept") +
                                     " --save " + path("a"));
  ASSERT_EQ(all.first, 0) << all.second;
  const auto plain = run("stages", "--steps 7 --verify-against single --save " + path("p"));
  ASSERT_EQ(plain.first, 0) << plain.second;
  EXPECT_EQ(read("a"), read("p"));
  EXPECT_EQ(read("a").find(".previous"), std::string::npos);
  for (int64_t step : {1, 2, 5})
    for (const char* name : {"stages", "cut"}) {
      const auto rest = run(name, fmt::format("--steps 7 --resume {}/step-{:09} --save {}",
                                              path("kept"), step, path("b")));
      ASSERT_EQ(rest.first, 0) << name << rest.second;
      EXPECT_EQ(read("a"), read("b")) << name << " after step " << step;
    }
}

}  // namespace
}  // namespace piper::stage_delays_test
