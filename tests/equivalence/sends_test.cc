// What stages hand on in fewer bits, rounded: the plans train as those for one device, which round
// at the same places, and a plan that rounds otherwise is refused.
#include "equivalence/entries.h"
#include "piper/plan/flops.h"
#include "piper/plan/verify.h"

namespace piper::sends_test {
namespace {

using namespace jobs;

const std::string kInt8 = "  - send: {across: stage, dtype: int8, lossy: true}\n",
                  kFloat8 = "  - send: {across: stage, dtype: float8, block: 32, lossy: true}\n",
                  kBf16 = "  - send: {across: stage, dtype: bf16, lossy: true}\n";

const Entries kCases[] = {
    {"int8", "dp: 1", kInt8},
    {"float8", "dp: 1", kFloat8},
    {"bf16", "dp: 1", kBf16},
    {"f16", "dp: 1", "  - send: {across: stage, dtype: f16, lossy: true}\n"},
    {"activations", "dp: 1",
     "  - send: {across: stage, dtype: int8, block: 32, what: activations, lossy: true}\n"},
    {"gradients", "dp: 1",
     "  - send: {across: stage, dtype: int8, block: 32, what: [gradients], lossy: true}\n"},
    {"each_its_own", "dp: 1",
     "  - send: {across: stage, dtype: int8, block: 32, what: activations, lossy: true}\n"
     "  - send: {across: stage, dtype: float8, block: 64, what: gradients, lossy: true}\n"},
    {"of_one_stage", "dp: 1",
     "  - send: {across: stage, dtype: int8, where: {stage: 0}, lossy: true}\n"},
    {"replicas", "dp: 2", kInt8 + "  - replicate: {over: dp, shard: [optimizer]}\n"},
    {"zero3", "dp: 2",
     kInt8 + "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"},
    {"recompute", "dp: 1", kInt8 + "  - recompute: {}\n"},
    {"bf16_ops", "dp: 1", kInt8 + "  - precision: {compute: bf16}\n"},
    {"halves_of_a_backward", "dp: 1",
     kFloat8 +
         "  - order: {each: pp, program: 'for k in 0..M: F BI BW'}\n"},
    {"fused", "dp: 1", kInt8 + "  - fuse: {where: {kind: send}}\n"},
};

Result<Compiled> compiled_with_oracles(const std::string& model, const Entries& of, int64_t pp = 2,
                                       bool evaluates = false) {
  CompileOptions options;
  options.oracles = true;
  options.evaluation = evaluates;
  return compile_text(model, text_of(of, pp), kAdamW, options);
}

class SendsCase : public ::testing::TestWithParam<Entries> {};

TEST_P(SendsCase, TrainsAsOneDeviceBitForBit) {
  NEED_MODEL("mlp");
  const Entries& of = GetParam();
  const auto compiled = compiled_with_oracles("mlp", of);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto result = train_beside_single(*compiled, "mlp", 5);
  EXPECT_TRUE(result) << print_error(result.error());
  EXPECT_TRUE(result && result->bitwise);
  expect_same_when_queued(compiled->set, "mlp", of.name);
}

INSTANTIATE_TEST_SUITE_P(Send, SendsCase, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

Trained trained_gpt(const std::string& mesh, const std::string& text, bool single = false) {
  const auto compiled = compiled_with_oracles("gpt-deep", {"", mesh, text});
  EXPECT_TRUE(compiled) << text << print_error(compiled.error());
  if (!compiled) return {};
  auto trained = train(single ? *compiled->single : compiled->set, "gpt-deep", 3);
  EXPECT_TRUE(trained) << print_error(trained.error());
  return trained ? *std::move(trained) : Trained();
}

// Axes that cut tokens or what lies within a layer cut rows of a value, and leave each whole.
TEST(Sends, BesideAxesOfShardTrainAsOneDevice) {
  NEED_MODEL("gpt-deep");
  const std::string f64 = "  - precision: {compute: f64}\n";
  const std::string small = "  - send: {across: stage, dtype: int8, block: 32, lossy: true}\n";
  const std::pair<std::string, std::string> ways[] = {
      {"tp: 2", std::string(kGptTensor)},
      {"tp: 2", kGptTensor + std::string("  - shard: {sends: \"**\", over: tp}\n")},
      {"tp: 2", kGptTensor + std::string("  - shard: {scope: \"**/ln_*\", dim: 1, over: tp}\n")},
      {"cp: 2",
       "  - shard: {input: \"*\", dim: 1, over: cp}\n  - shard: {match: \"**\", dim: none, over: "
       "cp}\n  - shard: {attention: \"**\", by: ring, over: cp}\n"},
      {"cp: 2", "  - shard: {input: \"*\", dim: 0, over: cp}\n"},
      {"dp: 1", "  - split: {dim: tokens, into: 4, as: seq}\n"},
  };
  for (const auto& [mesh, text] : ways) {
    SCOPED_TRACE(text);
    const Trained got = trained_gpt(mesh, f64 + text + small),
                  want = trained_gpt(mesh, f64 + text + small, true),
                  exact = trained_gpt(mesh, f64 + text);
    EXPECT_LT(largest_difference(got, want), 1e-12);
    EXPECT_GT(largest_difference(got, exact), 1e-6);
    EXPECT_LT(largest_difference(got, exact), 2e-2);  // Adam's steps are 3e-3 each
  }
}

TEST(Sends, TakeAQuarterOfTheBytes) {
  NEED_MODEL("gpt-deep");
  const auto bytes = [](const std::string& text) {
    const auto compiled = compiled_with_oracles("gpt-deep", {"", "dp: 1", text});
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    int64_t sum = 0;
    for (const RoleProgram& role : compiled->set.roles)
      for (const Instruction& one : role.body)
        if (one.kind == InstructionKind::kSend && one.micro >= 0)
          for (const int32_t arg : one.args) sum += role.tensor(arg).type.bytes();
    return sum;
  };
  const int64_t exact = bytes(""), int8 = bytes(kInt8), bf16 = bytes(kBf16);
  EXPECT_GT(exact, 0);
  EXPECT_EQ(bf16 * 2, exact);
  EXPECT_EQ(int8 * 4 * 256, exact * 260);
}

TEST(SendsControl, OtherRoundingsEndElsewhere) {
  NEED_MODEL("mlp");
  std::vector<Trained> all;
  for (const std::string& text :
       {std::string(), kInt8, kFloat8, kBf16, std::string(kCases[4].text), kCases[5].text}) {
    const auto compiled = compiled_with_oracles("mlp", {"", "dp: 1", text});
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto trained = train(compiled->set, "mlp", 4);
    ASSERT_TRUE(trained) << print_error(trained.error());
    all.push_back(*std::move(trained));
  }
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = 0; b < a; ++b) EXPECT_GT(largest_difference(all[a], all[b]), 0) << a << " " << b;
}

TEST(Sends, PlansThatRoundOtherwiseAreRefused) {
  NEED_MODEL("mlp");
  const auto rounded = compiled_with_oracles("mlp", {"", "dp: 1", kInt8}),
             exact = compiled_with_oracles("mlp", {"", "dp: 1", ""});
  ASSERT_TRUE(rounded && exact);
  const auto verified = [](const PlanSet& set, const Compiled& of) {
    const auto report = verify_plan_set(set, &*of.single);
    return report && report->findings.empty();
  };
  EXPECT_TRUE(verified(rounded->set, *rounded));
  EXPECT_FALSE(verified(rounded->set, *exact));
  EXPECT_FALSE(verified(exact->set, *rounded));
  int tried = 0;
  for (const char* op : {"ToBlocks", "FromBlocks"})
    for (const char* attribute : {"to", "axis"}) {
      PlanSet wrong = rounded->set;
      for (Program& program : wrong.roles[0].programs)
        for (ProgramOp& one : program.ops)
          if (one.op == op && attribute == std::string("to"))
            one.attrs.set(attribute, std::string("float8")), ++tried;
          else if (one.op == op)
            one.attrs.set(attribute, int64_t{0}), ++tried;
      EXPECT_FALSE(verified(wrong, *rounded)) << op << " " << attribute;
    }
  EXPECT_GE(tried, 4);
}

// An evaluation rounds what a step does.
TEST(Sends, EvaluationsRoundAsSteps) {
  NEED_MODEL("mlp");
  std::vector<double> losses;
  for (const std::string& text : {kFloat8, std::string()}) {
    const auto compiled = compiled_with_oracles("mlp", {"", "dp: 1", text}, 2, true);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    for (const PlanSet* set : {&compiled->set, &*compiled->single}) {
      const auto data = open_batches(*set, "mlp");
      ASSERT_TRUE(data) << print_error(data.error());
      JobOptions options;
      options.steps = 1;
      options.threads = 1;
      options.evaluation = {{"valid", data->get(), 1}};
      options.evaluate_every = 1;
      const auto job = run_job(*set, data->get(), nullptr, nullptr, options);
      ASSERT_TRUE(job) << print_error(job.error());
      losses.push_back(job->evaluations.at(0).loss);
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[2], losses[3]);
  EXPECT_NE(losses[0], losses[2]);
}

}  // namespace
}  // namespace piper::sends_test
