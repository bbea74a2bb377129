// Recomputed activations: less memory, the same bits.
#include "equivalence/jobs.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"

namespace piper::recompute_test {
namespace {

using jobs::Shape2;

struct Case {
  const char* name;
  const char* model;
  const char* recompute;  // the directive's keys
  Shape2 shape;
};

constexpr int64_t kSteps = 5;

std::string text_for(const Case& c, bool recomputed) {
  std::string text = jobs::strategy_text(c.model, jobs::kAdamW);
  if (recomputed) text += fmt::format("directives:\n  - recompute: {}\n", c.recompute);
  return text;
}

int64_t step_bytes(const Compiled& compiled) {
  int64_t bytes = 0;
  for (const RoleSummary& role : summarise(compiled.set).roles)
    bytes += role.step_bytes + role.workspace_bytes;
  return bytes;
}

class Recompute : public testing::TestWithParam<Case> {};

TEST_P(Recompute, SavesMemoryAndKeepsEveryBit) {
  const Case& c = GetParam();
  if (!std::filesystem::exists(jobs::model_path(c.model, "model.onnx"))) GTEST_SKIP();
  const auto plain = jobs::compile_model(c.model, text_for(c, false), c.shape);
  ASSERT_TRUE(plain) << print_error(plain.error());
  const auto again = jobs::compile_model(c.model, text_for(c, true), c.shape, true);
  ASSERT_TRUE(again) << print_error(again.error());
  // A split backward keeps what both of its halves read.
  const bool split = c.shape.order == "zb-h1" || c.shape.order == "v-min";
  if (!split) {
    EXPECT_LT(step_bytes(*again), step_bytes(*plain));
  }
  const auto report = verify_plan_set(again->set);
  ASSERT_TRUE(report) << print_error(report.error());
  for (const Finding& finding : report->findings) ADD_FAILURE() << finding.rule << finding.text;
  const auto want = jobs::train(plain->set, c.model, kSteps);
  const auto got = jobs::train(again->set, c.model, kSteps);
  ASSERT_TRUE(want && got);
  jobs::expect_equal_bits(*got, *want, "without recompute");
  jobs::expect_same_when_queued(again->set, c.model, c.shape.order);
  // The oracle does not recompute.
  if (!split) {
    const auto single = jobs::train(*again->single, c.model, kSteps);
    ASSERT_TRUE(single);
    jobs::expect_equal_bits(*got, *single, "single device");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Recompute,
    testing::Values(
        Case{"gpt_layers", jobs::kSmallGpt, R"({match: "model/h/{layer}/**"})", {1, 1, 2}},
        Case{"gpt_layers_pp_dp", jobs::kSmallGpt, R"({match: "model/h/{layer}/**"})", {2, 2, 2}},
        Case{"gpt_all", jobs::kSmallGpt, "{}", {2, 1, 4, "gpipe"}},
        Case{"gpt_ops", jobs::kSmallGpt, "{ops: [Gelu, LayerNorm]}", {2, 1, 4}},
        Case{"gpt_one_stage", jobs::kSmallGpt, "{where: {stage: 0}}", {2, 1, 2}},
        Case{"gpt_budget", "gpt", "{budget: 1MiB}", {2, 1, 4}},
        Case{"gpt_budget_of_a_stage",
             "gpt",
             "{budget: 2MiB, where: {stage: 0}}",
             {2, 2, 2, "gpipe"}},
        Case{"llama_budget", "llama-hf", "{budget: 100KiB}", {2, 1, 4}},
        Case{"deep_split", "gpt-deep", "{}", {4, 1, 8, "zb-h1"}},
        Case{"gpt_in_flight", jobs::kSmallGpt, R"({where: {stage: s, mb: ">=1-s"}})", {2, 1, 4}},
        Case{"gpt_first_microbatches",
             jobs::kSmallGpt,
             R"({where: {mb: "<2"}})",
             {2, 2, 4, "gpipe"}},
        Case{"gpt_budget_of_microbatches",
             "gpt",
             R"({budget: 1MiB, where: {mb: ">0"}})",
             {2, 1, 4, "gpipe"}},
        Case{"gpt_both_ways", jobs::kSmallGpt, R"({where: {mb: "<3"}})", {2, 1, 4, "dualpipe"}},
        Case{"deep_split_microbatches",
             "gpt-deep",
             R"({where: {stage: 0, mb: "<4"}})",
             {4, 1, 8, "zb-h1"}},
        Case{"llama_microbatch", "llama-hf", "{where: {mb: 1}}", {2, 1, 2, "v-min"}},
        Case{"llama", "llama-hf", "{}", {2, 1, 2}}),
    [](const auto& info) { return std::string(info.param.name); });

// The smaller the budget, the less is kept; what does not fit is refused.
TEST(Recompute, KeepsWhatTheBudgetAllows) {
  const char* model = "gpt";
  if (!std::filesystem::exists(jobs::model_path(model, "model.onnx"))) GTEST_SKIP();
  int64_t before = INT64_MAX;
  for (const int64_t kib : {8000, 4000, 2000, 1000, 500}) {
    const std::string keys = fmt::format("{{budget: {}KiB}}", kib);
    const Case c{"", model, keys.c_str(), {2, 1, 4, "gpipe"}};
    const auto compiled = jobs::compile_model(model, text_for(c, true), c.shape);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    EXPECT_LT(step_bytes(*compiled), before) << kib;
    before = step_bytes(*compiled);
  }
  const Case c{"", model, "{budget: 100KiB}", {2, 1, 4, "gpipe"}};
  const auto refused = jobs::compile_model(model, text_for(c, true), c.shape);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "recompute: a microbatch keeps at least 130.0 KiB in stage=1, more than the budget of "
            "100.0 KiB");
}

// What runs again may read a part of what is kept, under another name, which is made for the
// backward pass: an order that names R has both in it.
TEST(Recompute, WithABudgetIsATaskOfItsOwn) {
  const std::pair<const char*, int> cases[] = {
      {"gpt", 1000}, {"llama-hf", 100}, {"vit-hf", 32}, {"moe-gshard", 32}};
  for (const auto& [model, kib] : cases) {
    if (!std::filesystem::exists(jobs::model_path(model, "model.onnx"))) continue;
    SCOPED_TRACE(fmt::format("{} {}KiB", model, kib));
    CompileOptions options;
    options.oracles = true;
    const auto compiled = jobs::compile_text(
        model,
        fmt::format("piper: 1\nmesh: {{pp: 1}}\nannotate: [{{balance: {{tag: stage, into: 1}}}}]\n"
                    "directives:\n  - split: {{dim: batch, into: 2}}\n"
                    "  - place: {{where: {{stage: s}}, on: {{pp: s}}}}\n"
                    "  - recompute: {{budget: {}KiB}}\n"
                    "  - order: {{each: pp, program: \"repeat M: F; repeat M: R? B\"}}\n",
                    kib),
        jobs::kAdamW, options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto want = jobs::train(*compiled->single, model, kSteps),
               got = jobs::train(compiled->set, model, kSteps);
    ASSERT_TRUE(want && got);
    jobs::expect_equal_bits(*got, *want, "single device");
  }
}

// In a schedule that keeps all, each further microbatch that recomputes saves memory. The first
// saves what the backward pass then needs for what it makes again.
TEST(Recompute, SavesByTheMicrobatch) {
  const char* model = "gpt";
  if (!std::filesystem::exists(jobs::model_path(model, "model.onnx"))) GTEST_SKIP();
  std::vector<int64_t> kept;
  for (const int64_t count : {0, 1, 2, 3, 4}) {
    const std::string keys = fmt::format("{{where: {{mb: \"<{}\"}}}}", count);
    const Case c{"", model, keys.c_str(), {2, 1, 4, "gpipe"}};
    const auto compiled = jobs::compile_model(model, text_for(c, count > 0), c.shape);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    for (const Explanation& one : compiled->explanations)
      if (one.directive == "recompute" && count == 2) {
        EXPECT_TRUE(one.lines.at(0).ends_with("run again in the backward pass of mb 0 to 1"))
            << one.lines.at(0);
        EXPECT_TRUE(one.lines.at(1).ends_with(" a microbatch, for mb 0 to 1")) << one.lines.at(1);
        EXPECT_TRUE(one.lines.at(2).ends_with(" a microbatch, for mb 2 to 3")) << one.lines.at(2);
        EXPECT_EQ(one.lines.at(3),
                  "chunks that differ by microbatch are not fused, and no weights are packed");
      }
    kept.push_back(step_bytes(*compiled));
  }
  for (size_t i = 2; i < kept.size(); ++i) EXPECT_LT(kept[i], kept[i - 1]) << i;
  EXPECT_LT(kept[2], kept[0]);
}

// Returns how many ops a step computes.
int64_t ops_of(const Compiled& compiled) {
  int64_t ops = 0;
  for (const RoleProgram& role : compiled.set.roles)
    for (const Instruction& one : role.body)
      if (one.kind == InstructionKind::kCompute)
        ops += std::ssize(role.programs[static_cast<size_t>(one.program)].ops);
  return ops;
}

constexpr const char* kDeep = "gpt-deep";
const std::string kTiles =
    "  - split: {scope: [\"model/h/{layer}/fc\", \"model/h/{layer}/fc_out\"], dim: 1, into: 4, "
    "as: tile}\n";

Result<Compiled> in_two_stages(const std::string& directives) {
  CompileOptions options;
  options.oracles = true;
  return jobs::compile_text(
      kDeep,
      "piper: 1\nmesh: {pp: 2}\nannotate: [{balance: {tag: stage, into: 2}}]\ndirectives:\n"
      "  - split: {dim: batch, into: 2}\n"
      "  - place: {where: {stage: s}, on: {pp: s}}\n" +
          directives,
      jobs::kAdamW, options);
}

// A region in parts that run again within a layer that runs again: the layer keeps its inputs only.
TEST(Recompute, RunsWithinWhatRunsAgain) {
  if (!std::filesystem::exists(jobs::model_path(kDeep, "model.onnx"))) GTEST_SKIP();
  const std::string tiles = "  - recompute: {where: {tile: \"*\"}}\n",
                    layers = "  - recompute: {match: \"model/h/{layer}/**\"}\n",
                    order = "  - order: {each: pp, program: \"repeat M: F; repeat M: R? B\"}\n";
  const auto plain = in_two_stages(kTiles);
  ASSERT_TRUE(plain) << print_error(plain.error());
  const auto want = jobs::train(*plain->single, kDeep, kSteps);
  ASSERT_TRUE(want);
  for (const std::string& more : {std::string(), order}) {
    const auto both = in_two_stages(kTiles + layers + tiles + more),
               alone = in_two_stages(kTiles + layers + more),
               inner = in_two_stages(kTiles + tiles + more);
    ASSERT_TRUE(both) << print_error(both.error());
    ASSERT_TRUE(alone && inner);
    const auto report = verify_plan_set(both->set, &*both->single);
    ASSERT_TRUE(report) << print_error(report.error());
    for (const Finding& finding : report->findings) ADD_FAILURE() << finding.rule << finding.text;
    const auto got = jobs::train(both->set, kDeep, kSteps);
    ASSERT_TRUE(got);
    jobs::expect_equal_bits(*got, *want, "single device");
    EXPECT_LT(step_bytes(*both), step_bytes(*inner));
    // Hidden units are made again with their part only, and what else the layer has with it.
    EXPECT_GT(ops_of(*both), ops_of(*inner));
    EXPECT_EQ(ops_of(*both), ops_of(*alone));
  }
  // Entries that share some of their ops, or all, say two things of one op.
  for (const char* other : {"[\"model/h/0/**\", \"model/ln_f/**\"]", "\"model/h/*/**\""}) {
    const auto refused =
        in_two_stages(fmt::format("{}  - recompute: {{match: {}}}\n", layers, other));
    ASSERT_FALSE(refused);
    EXPECT_TRUE(refused.error().message.ends_with("is chosen twice")) << refused.error().message;
  }
}

// A budget is of all ops of a stage, those of its parts too; what an entry names runs again anyway.
TEST(Recompute, ABudgetHoldsWhatOthersName) {
  if (!std::filesystem::exists(jobs::model_path(kDeep, "model.onnx"))) GTEST_SKIP();
  const std::string budget = "  - recompute: {budget: 400KiB}\n";
  for (const char* named :
       {"{where: {tile: \"*\"}}", "{ops: [LayerNorm, Gelu]}", "{match: \"model/h/{layer}/ln_2\"}"}) {
    SCOPED_TRACE(named);
    const std::string entry = fmt::format("  - recompute: {}\n", named);
    const auto alone = in_two_stages(kTiles + entry), both = in_two_stages(kTiles + entry + budget),
               other_way = in_two_stages(kTiles + budget + entry);
    ASSERT_TRUE(alone && both && other_way) << print_error((both ? alone : both).error());
    const auto want = jobs::train(*both->single, kDeep, kSteps),
               got = jobs::train(both->set, kDeep, kSteps);
    ASSERT_TRUE(want && got);
    jobs::expect_equal_bits(*got, *want, "single device");
    EXPECT_LT(step_bytes(*both), step_bytes(*alone));
    EXPECT_EQ(step_bytes(*both), step_bytes(*other_way));
    std::vector<std::string> kept;
    for (const Explanation& one : both->explanations)
      if (one.directive == "recompute")
        std::ranges::copy_if(one.lines, std::back_inserter(kept), [](const std::string& line) {
          return line.find(" keeps ") != std::string::npos;
        });
    EXPECT_EQ(kept.size(), 2) << join(kept, "\n");  // a line a stage
  }
}

// Rows that stay and rows that are made again are in the order of the same experts' numbers.
TEST(Recompute, KeepsWhatSendsRowsThatStay) {
  const char* model = "qwen3-moe-hf";
  if (!std::filesystem::exists(jobs::model_path(model, "model.onnx"))) GTEST_SKIP();
  const auto trained = [&](const std::string& recompute) {
    const auto compiled =
        jobs::compile_text(model,
                           "piper: 1\nmesh: {ep: 2}\ndirectives:\n"
                           "  - shard: {input: \"*\", dim: 0, over: ep}\n"
                           "  - shard: {match: \"**/experts/*\", dim: 0, over: ep}\n" +
                               recompute,
                           jobs::kAdamW, {});
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    return jobs::train(compiled->set, model, kSteps);
  };
  const auto kept = trained(""),
             again = trained("  - recompute: {ops: [RmsNorm, SwiGlu]}\n  - recompute: {}\n");
  ASSERT_TRUE(kept && again);
  jobs::expect_equal_bits(*again, *kept, "without recomputation");
}

TEST(Recompute, NamesMicrobatchesThatThereAre) {
  const char* model = "gpt";
  if (!std::filesystem::exists(jobs::model_path(model, "model.onnx"))) GTEST_SKIP();
  const Case none{"", model, R"({where: {mb: ">3"}})", {2, 1, 4}};
  const auto refused = jobs::compile_model(model, text_for(none, true), none.shape);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "recompute: matches no forward op of the microbatches 0 to 3");
  const Case twice{"", model, "{where: {mb: 1}}\n  - recompute: {where: {mb: \"<2\"}}", {2, 1, 4}};
  const auto claimed = jobs::compile_model(model, text_for(twice, true), twice.shape);
  ASSERT_FALSE(claimed);
  EXPECT_TRUE(claimed.error().message.ends_with("is chosen twice")) << claimed.error().message;
}

// The comparison above would see an op that is recomputed otherwise; so does the verifier where
// other microbatches do not recompute it.
TEST(Recompute, AnotherCopyChangesTheResult) {
  for (const bool of_one : {false, true}) {
    const char* keys = of_one ? "{where: {mb: 1}}" : R"({match: "model/h/{layer}/**"})";
    const Case c{"", "gpt", keys, {1, 1, 2}};
    if (!std::filesystem::exists(jobs::model_path(c.model, "model.onnx"))) GTEST_SKIP();
    auto compiled = jobs::compile_model(c.model, text_for(c, true), c.shape);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto right = jobs::train(compiled->set, c.model, kSteps);
    int changed = 0;
    for (Program& program : compiled->set.roles[0].programs)
      for (ProgramOp& op : program.ops)
        if (program.label.starts_with("B") && op.op == "LayerNorm") {
          op.attrs.set("epsilon", 0.1);
          ++changed;
        }
    ASSERT_GT(changed, 0);
    const auto wrong = jobs::train(compiled->set, c.model, kSteps);
    ASSERT_TRUE(right && wrong);
    EXPECT_NE(right->losses, wrong->losses);
    const auto report = verify_plan_set(compiled->set);
    ASSERT_TRUE(report) << print_error(report.error());
    ASSERT_EQ(report->findings.empty(), !of_one);
    if (of_one) {
      EXPECT_EQ(report->findings.front().rule, "microbatch");
    }
  }
}

}  // namespace
}  // namespace piper::recompute_test
