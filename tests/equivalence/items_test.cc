// Items of an order beside forwards and backwards: what runs again, and the updates of stages. They
// train as one device does, bit for bit, keep less memory or wait less, and are refused before what
// they need.
#include <gmock/gmock.h>

#include <functional>

#include "equivalence/jobs.h"
#include "piper/plan/verify.h"

namespace piper::items_test {
namespace {

using namespace jobs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kModel = "gpt-deep";
constexpr int64_t kSteps = kSanitized ? 1 : 4;
const std::string kAdam = "optimizer: {adamw: {lr: 3e-3, weight_decay: 0.1}}, ema: {decay: 0.9}";

struct Case {
  std::string name, include, params, program, train = kAdam, more = "", mesh = "";
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

const std::string kEarly =
    "repeat min(M, P-r-1): F\n"
    "        repeat M - min(M, P-r-1): F R B\n"
    "        repeat min(M, P-r-1): R B\n";

std::string text_of(const Case& c) {
  std::string text =
      fmt::format("piper: 1\ninclude: [{}]\nparams: {{{}}}\n{}", c.include, c.params, c.mesh);
  text += fmt::format("train: {{global_batch: 8, {}}}\ndirectives:\n", c.train);
  text += c.more;
  if (!c.program.empty())
    text += "  - name: order\n    order:\n      each: pp\n      program: |\n        " + c.program;
  return text;
}

Result<Compiled> compile_case(const Case& c, bool oracles = true) {
  const Folder folder;
  CompileOptions options;
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  options.model = model_path(kModel, "model.onnx");
  options.strategy = folder.write("strategy.yaml", text_of(c));
  options.oracles = oracles;
  return compile(options);
}

class Items : public ::testing::TestWithParam<Case> {};

TEST_P(Items, TrainAsOneDeviceDoes) {
  NEED_MODEL(kModel);
  const Result<Compiled> compiled = compile_case(GetParam());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> single = train(*compiled->single, kModel, kSteps),
                        spread = train(compiled->set, kModel, kSteps);
  ASSERT_TRUE(single && spread);
  // Sums over replicas in every microbatch add the same numbers in another order.
  if ((GetParam().params + GetParam().more).find("per_microbatch") == std::string::npos)
    expect_equal_bits(*spread, *single, "single device");
  else
    EXPECT_LT(largest_difference(*spread, *single), 3e-4);
  expect_same_when_queued(compiled->set, kModel, GetParam().name);
}

const std::string kHalves =
    "repeat min(M, P-r-1): F\n"
    "        for k in 0..M:\n"
    "          F? R BI\n"
    "          if k >= r: BW\n"
    "        repeat min(M, r): BW\n";
const std::string kChunks =
    "repeat M: F[chunk=0]\n"
    "        repeat M: F[chunk=1]\n"
    "        repeat M: B[chunk=1]\n"
    "        U[chunk=1]\n"
    "        repeat M: B[chunk=0]\n"
    "        U[chunk=0]\n";
// The front's gradients are added up first, the others after all backwards.
const std::string kSums =
    "repeat M: F[chunk=0]\n"
    "        repeat M: F[chunk=1]\n"
    "        repeat M: B[chunk=1]\n"
    "        repeat M: B[chunk=0]\n"
    "        S[chunk=0] S[chunk=1]\n";
// Of stages that are all on one device, the last first.
const std::string kBackToFront =
    "for s in 0..8: F[stage=s]\n"
    "        for s in 0..8: B[stage=7-s] U[stage=7-s]\n";
// Of four stages on one device: what the next step's forward reads is updated before.
const std::string kNext =
    "for s in 0..4: repeat M: B[stage=3-s]\n"
    "        for s in 0..4:\n"
    "          U[stage=s]\n"
    "          repeat M: F[step=1, stage=s]\n";
const std::string kCredit = "  - stream: {name: reduce, credit: 64KiB}\n";
std::string small_buckets(const std::string& keys = "") {
  return "  - name: replicate\n    replicate: {over: dp, bucket: 16KiB" + keys + "}\n" + kCredit;
}
const std::string kOne = "<schedules/interleaved-1f1b>", kAgain = "<memory/recompute>";

INSTANTIATE_TEST_SUITE_P(
    All, Items,
    ::testing::Values(
        Case{"again", "<schedules/1f1b>, " + kAgain, "stages: 4, microbatches: 8", kEarly},
        Case{"again_zero3", "<schedules/1f1b>, <memory/zero3>, " + kAgain,
             "stages: 2, dp: 2, microbatches: 4", kEarly},
        Case{"again_in_halves", "<schedules/1f1b>, " + kAgain, "stages: 4, microbatches: 8",
             kHalves},
        // A backward runs itself what no item has named before.
        Case{"again_of_some", "<schedules/1f1b>, " + kAgain, "stages: 2, microbatches: 4",
             "repeat M: F\n        R[mb=2]\n        repeat M: B\n"},
        Case{"again_by_microbatch", "<schedules/1f1b>", "stages: 2, microbatches: 4",
             "repeat M: F\n        repeat M: R? B\n", kAdam,
             "  - recompute: {where: {stage: s, mb: \"<=s\"}}\n"},
        Case{"again_both_ways", "<schedules/dualpipe>, " + kAgain, "stages: 2, microbatches: 4",
             "repeat M: F\n        repeat M: R\n        repeat M: B\n"},
        Case{"again_in_a_pair", "<schedules/1f1b>, " + kAgain, "stages: 1, microbatches: 4",
             "F\n        repeat M-1: F & B\n        R B\n"},
        Case{"updates", kOne, "stages: 2, chunks: 2, microbatches: 4", kChunks},
        Case{"updates_sgd", kOne + ", <memory/ddp>", "stages: 2, chunks: 2, dp: 2, microbatches: 2",
             kChunks, kSgd},
        Case{"updates_zero1", kOne + ", <memory/zero1>",
             "stages: 2, chunks: 2, dp: 2, microbatches: 2", kChunks},
        // The own parts are taken long before the parameters are read for the last time.
        Case{"updates_of_what_is_on_the_host", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 2, dp: 2, microbatches: 1", kChunks, kAdam,
             "  - offload: {what: parameters, distance: 2}\n"},
        Case{"updates_zero3", kOne + ", <memory/zero3>",
             "stages: 2, chunks: 2, dp: 2, microbatches: 2", kChunks},
        Case{"updates_bf16", kOne + ", <memory/zero1>, <numerics/bf16>",
             "stages: 2, chunks: 2, dp: 2, microbatches: 2", kChunks},
        Case{"updates_muon", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 2, dp: 2, microbatches: 2", kChunks,
             "optimizer: {muon: {lr: 2e-3}}, groups: [{of: [vectors, embeddings, heads], "
             "optimizer: {adamw: {lr: 3e-4}}}]"},
        Case{"updates_after_the_norm", kOne, "stages: 2, chunks: 2, microbatches: 4",
             "repeat M: F[chunk=0]\n        repeat M: F[chunk=1]\n        repeat M: B[chunk=1]\n"
             "        repeat M: B[chunk=0]\n        U[chunk=0] U[chunk=1]\n",
             kAdamW},
        Case{"sums", kOne + ", <memory/ddp>", "stages: 2, chunks: 2, dp: 2, microbatches: 2", kSums,
             kAdamW},
        Case{"sums_and_updates", kOne + ", <memory/zero1>",
             "stages: 2, chunks: 2, dp: 2, microbatches: 2", kSums + "        U[chunk=0]\n"},
        Case{"sums_each_microbatch", "<schedules/1f1b>, <memory/zero2>",
             "stages: 2, dp: 2, microbatches: 4, reduce: per_microbatch, bucket_kib: 16",
             "repeat M: F\n        B\n        repeat M-1: B S\n        S\n", kAdamW},
        // A microbatch's chunks of tokens have messages of their own, from the last one on.
        Case{"sums_each_chunk_of_tokens", "<tokens/seq1f1b>, <memory/zero2>",
             "stages: 1, dp: 2, microbatches: 2, token_chunks: 2, reduce: per_microbatch, "
             "bucket_kib: 16",
             "repeat M: F F B S B S\n", kAdamW},
        // What is reduced once a step comes after what each microbatch reduces.
        Case{"sums_of_both_kinds", "<schedules/1f1b>", "stages: 1, microbatches: 2",
             "repeat M: F B S\n        S\n", kAdamW,
             "  - replicate: {over: dp, match: \"**/h/**\", bucket: 16KiB, shard: [optimizer, "
             "gradients], reduce: {when: per_microbatch}}\n"
             "  - replicate: {over: dp, bucket: 16KiB}\n",
             "mesh: {dp: 2}\n"},
        Case{"loss_in_turn", "<items/loss-in-turn>", "stages: 2, microbatches: 4, parts: 4", "",
             kAdam, "  - recompute: {where: {part: 0}}\n"},
        Case{"next_forward", kOne, "stages: 1, chunks: 4, microbatches: 2", kNext},
        Case{"next_forward_again", kOne + ", " + kAgain, "stages: 1, chunks: 4, microbatches: 1",
             kNext},
        Case{"next_forward_ddp", kOne + ", <memory/ddp>",
             "stages: 1, chunks: 4, dp: 4, microbatches: 1", kNext, kAdam, small_buckets()},
        Case{"next_forward_16_bit_sums", kOne + ", <memory/ddp>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 2", kNext, kAdam,
             small_buckets(", reduce: {dtype: bf16}")},
        Case{"next_forward_zero1", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 2", kNext, kAdam,
             small_buckets(", shard: [optimizer]")},
        Case{"next_forward_zero2", kOne + ", <memory/zero2>",
             "stages: 1, chunks: 4, dp: 4, microbatches: 1, bucket_kib: 16", kNext, kSgd, kCredit},
        Case{"next_forward_zero3", kOne + ", <memory/zero3>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 2, bucket_kib: 16", kNext, kAdam, kCredit},
        Case{"next_forward_bf16", kOne + ", <memory/zero1>, <numerics/bf16>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 1", kNext, kAdam,
             small_buckets(", shard: [optimizer]")},
        Case{"next_forward_after_the_norm", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 1", kNext, kAdamW,
             small_buckets(", shard: [optimizer]")},
        Case{"next_forward_placed_sums", kOne + ", <memory/ddp>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 1",
             "for s in 0..4: B[stage=3-s]\n"
             "        for s in 0..4:\n"
             "          S[stage=s]\n"
             "          U[stage=s]\n"
             "          F[step=1, stage=s]\n"},
        // Gradients in slices that do not divide them.
        Case{"next_forward_slices", kOne + ", <memory/ddp>",
             "stages: 1, chunks: 4, dp: 4, microbatches: 1", kNext, kAdam,
             small_buckets(", reduce: {slice: 3000}")},
        Case{"next_forward_slices_in_16_bits", kOne + ", <memory/ddp>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 2", kNext, kAdam,
             small_buckets(", reduce: {slice: 1KiB, dtype: bf16}")},
        // Of each part, in slices that do not divide it either.
        Case{"next_forward_slices_zero1", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 2", kNext, kAdam,
             small_buckets(", shard: [optimizer], reduce: {slice: 3000}")},
        Case{"next_forward_slices_zero2", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 4, dp: 4, microbatches: 1", kNext, kAdam,
             small_buckets(", shard: [optimizer, gradients], reduce: {slice: 1000B}")},
        Case{"next_forward_slices_zero3", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 1", kNext, kAdam,
             small_buckets(", shard: [optimizer, gradients, parameters], "
                           "reduce: {slice: 2KiB, dtype: bf16}")},
        Case{"slices_of_each_microbatch", kOne + ", <memory/zero1>",
             "stages: 1, chunks: 2, dp: 2, microbatches: 2", "", kSgd,
             "  - name: replicate\n    replicate: {over: dp, bucket: 16KiB, shard: [optimizer, "
             "gradients], reduce: {when: per_microbatch, slice: 1KiB}}\n"},
        // Parts that are cut again over another axis.
        Case{"slices_of_parts_of_parts", kOne + ", <memory/ddp>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 1", kNext, kAdam,
             "  - name: replicate\n"
             "    replicate: {over: dp, bucket: 16KiB, shard: [optimizer, gradients], "
             "reduce: {slice: 2KiB}}\n"
             "  - replicate: {over: node, bucket: 16KiB, shard: [optimizer], reduce: {slice: 1KiB, "
             "stream: b}}\n" +
                 kCredit,
             "mesh: {node: 2}\n"},
        Case{"slices_that_an_order_places", kOne + ", <memory/ddp>",
             "stages: 2, chunks: 2, dp: 2, microbatches: 2", kSums, kAdamW,
             "  - name: replicate\n    replicate: {over: dp, bucket: 16KiB, reduce: {slice: "
             "1KiB}}\n"},
        // Each sum over `node` takes part in several over `dp`, on another stream.
        Case{"slices_behind_other_sums", kOne + ", <memory/ddp>",
             "stages: 1, chunks: 4, dp: 2, microbatches: 1", kNext, kAdam,
             "  - name: replicate\n"
             "    replicate: {over: dp, bucket: 8KiB, reduce: {slice: 8KiB, stream: a}}\n"
             "  - replicate: {over: node, bucket: 16KiB, reduce: {stream: b}}\n"
             "  - stream: {name: a, credit: 16KiB}\n"
             "  - stream: {name: b, credit: 16KiB}\n",
             "mesh: {node: 2}\n"},
        Case{"credit_alone", "<schedules/1f1b>, <memory/ddp>", "stages: 2, dp: 2, microbatches: 4",
             "", kAdamW, small_buckets()},
        Case{"updates_and_again", kOne + ", " + kAgain, "stages: 1, chunks: 8, microbatches: 1",
             kBackToFront}),
    [](const auto& info) { return info.param.name; });

// The bytes of the arena in which gradients lie at some time of the step.
int64_t gradient_bytes(const PlanSet& set) {
  const RoleProgram& role = set.roles[0];
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const Buffer& buffer : role.buffers)
    if (const Tensor& tensor = role.tensor(buffer); tensor.name.find(".grad") != tensor.name.npos)
      places.emplace_back(buffer.offset, buffer.offset + tensor.type.bytes());
  std::sort(places.begin(), places.end());
  int64_t bytes = 0, end = 0;
  for (const auto& [from, to] : places) {
    bytes += std::max<int64_t>(0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return bytes;
}

// Gradients of one stage at a time (LOMO): each is gone before the next is made.
TEST(Updates, FreeTheGradientsOfAStage) {
  NEED_MODEL(kModel);
  Case c{"", kOne, "stages: 1, chunks: 8, microbatches: 1", kBackToFront, kSgd};
  const auto early = compile_case(c, false);
  ASSERT_TRUE(early) << print_error(early.error());
  c.program = "for s in 0..8: F[stage=s]\n        for s in 0..8: B[stage=7-s]\n";
  const auto late = compile_case(c, false);
  ASSERT_TRUE(late) << print_error(late.error());
  EXPECT_LT(gradient_bytes(early->set), gradient_bytes(late->set) / 2);
}

// While the gradient is under way, a stage runs again what its backward needs (Mario).
TEST(Again, WaitsForNoGradient) {
  NEED_MODEL(kModel);
  const auto compiled = compile_case(
      {"", "<schedules/1f1b>, " + kAgain, "stages: 2, microbatches: 4", kEarly}, false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  size_t before = 0;
  const std::vector<Instruction>& body = compiled->set.roles[0].body;
  for (size_t i = 0; i + 1 < body.size(); ++i)
    if (body[i].pass == TaskPass::kR && body[i].micro == 0)
      for (size_t k = i + 1; k < body.size(); ++k)
        before += body[k].kind == InstructionKind::kRecv && body[k].micro == 0;
  EXPECT_GT(before, 0u);
}

// Reductions are where the order names them.
TEST(Sums, AreWhereTheOrderSays) {
  NEED_MODEL(kModel);
  for (const bool named : {false, true}) {
    Case c{"", kOne + ", <memory/ddp>", "stages: 1, chunks: 2, dp: 2, microbatches: 2", kSums};
    if (!named) c.program = c.program.substr(0, c.program.find("        S["));
    const auto compiled = compile_case(c, false);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const std::vector<Instruction>& body = compiled->set.roles[0].body;
    const auto reduces = std::find_if(body.begin(), body.end(), [](const Instruction& one) {
      return one.kind == InstructionKind::kAllReduce &&
             (one.label.find(".grad") != one.label.npos ||
              one.label.find("more") != one.label.npos);
    });
    const bool before = std::any_of(
        reduces, body.end(), [](const Instruction& one) { return one.pass == TaskPass::kB; });
    ASSERT_NE(reduces, body.end());
    EXPECT_EQ(before, !named);
  }
}

// Sums that the next forward needs first overtake others, and no other sum changes its place among
// those of its stage.
TEST(Credit, LetsUrgentSumsOvertake) {
  NEED_MODEL(kModel);
  std::vector<std::vector<std::string>> orders;
  for (const bool credit : {false, true}) {
    Case c{"", kOne + ", <memory/ddp>", "stages: 1, chunks: 4, dp: 2, microbatches: 1", kNext};
    c.more = small_buckets();
    if (!credit) c.more = c.more.substr(0, c.more.find(kCredit));
    const auto compiled = compile_case(c, false);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    std::vector<std::string>& order = orders.emplace_back();
    for (const Instruction& one : compiled->set.roles[0].body)
      if (one.kind == InstructionKind::kAllReduce) order.push_back(one.label);
  }
  EXPECT_NE(orders[0], orders[1]);
  for (std::vector<std::string>& order : orders) std::sort(order.begin(), order.end());
  EXPECT_EQ(orders[0], orders[1]);
}

// A slice that is summed twice or left out, and a use between slices, are seen.
class Slices : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(WholeAndInParts, Slices, ::testing::Values("", ", shard: [optimizer]"));

TEST_P(Slices, AnotherOneIsSeen) {
  NEED_MODEL(kModel);
  Case c{"", kOne + ", <memory/ddp>", "stages: 1, chunks: 4, dp: 2, microbatches: 1", kNext, kSgd};
  c.more = small_buckets(GetParam() + std::string(", reduce: {slice: 1KiB}"));
  const auto compiled = compile_case(c, true);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto right = train(compiled->set, kModel, kSteps);
  ASSERT_TRUE(right) << print_error(right.error());
  const auto change = [&](const std::function<void(Instruction&)>& mutate) {
    PlanSet wrong = compiled->set;
    for (RoleProgram& role : wrong.roles)
      for (auto* list : {&role.body, &role.epilogue})
        for (Instruction& one : *list)
          if (one.first > 0) mutate(one);
    return wrong;
  };
  const std::function<void(Instruction&)> mutants[] = {
      [](Instruction& one) { one.first = 0; },                 // the first slice twice
      [](Instruction& one) { one.first = 0, one.count = 0; },  // all of it, too
      [](Instruction& one) { one.count -= 1; },                // an element left out
  };
  for (const auto& mutate : mutants) {
    const PlanSet wrong = change(mutate);
    const auto report = verify_plan_set(wrong, &*compiled->single);
    EXPECT_TRUE(!report || !report->findings.empty());
    const auto trained = train(wrong, kModel, kSteps);
    // A part that is made twice of the same terms is what it was.
    const bool is_same = *GetParam() != '\0' && &mutate == &mutants[1];
    if (kSteps > 1 && !is_same) {
      EXPECT_TRUE(!trained || trained->losses != right->losses);
    }
  }
  if (*GetParam() != '\0') return;
  // One that adds up otherwise than those after it.
  PlanSet largest = compiled->set;
  for (RoleProgram& role : largest.roles)
    for (auto* list : {&role.body, &role.epilogue})
      for (Instruction& one : *list)
        if (one.first == 0 && one.count > 0) one.reduction = Reduction::kMax;
  const auto report = verify_plan_set(largest, &*compiled->single);
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->findings.empty());
}

TEST(Items, AreRefusedBeforeWhatTheyNeed) {
  NEED_MODEL(kModel);
  const auto refused = [](const Case& c) {
    const auto compiled = compile_case(c, false);
    return compiled ? std::string("compiled") : print_error(compiled.error());
  };
  const std::string again = "<schedules/1f1b>, " + kAgain, four = "stages: 2, microbatches: 4";
  EXPECT_THAT(refused({"", again, four, "repeat M: F B\n        R\n"}),
              AllOf(HasSubstr("strategy.yaml:11:9"), HasSubstr("no task is left for 'R'"),
                    HasSubstr("'B' (line 10) took it")));
  EXPECT_THAT(refused({"", "<schedules/1f1b>", four, "repeat M: F R B\n"}),
              AllOf(HasSubstr("runs again for a backward, and nothing does"), HasSubstr("R?")));
  const std::string chunks = "stages: 1, chunks: 2, microbatches: 2";
  const std::string first =
      "repeat M: F[chunk=0] F[chunk=1]\n        B[chunk=1]\n        U[chunk=1]\n"
      "        B[chunk=1]\n        repeat M: B[chunk=0]\n";
  EXPECT_THAT(refused({"", kOne, chunks, first}),
              AllOf(HasSubstr("strategy.yaml:12:9"), HasSubstr(".grad'"), HasSubstr("adds to in"),
                    HasSubstr("'B stage=1 mb=1' (line 13)"), HasSubstr("last backward")));
  EXPECT_THAT(refused({"", kOne, chunks, kChunks, kAdamW}),
              AllOf(HasSubstr("strategy.yaml:13:9"), HasSubstr("'B stage=0 mb=0' (line 14)"),
                    HasSubstr("clip_norm")));
  EXPECT_THAT(refused({"", kOne, chunks, "U[mb=0]\n"}), HasSubstr("of all microbatches"));
  EXPECT_THAT(
      refused({"", kOne + ", <memory/ddp>", chunks + ", dp: 2",
               "S[chunk=0]\n        " + kSums.substr(0, kSums.find("        S[")) +
                   "        S[chunk=1]\n"}),
      AllOf(HasSubstr("strategy.yaml:10:9"), HasSubstr("comes before"), HasSubstr("(line 14)")));
  EXPECT_THAT(refused({"", kOne + ", <memory/ddp>", chunks + ", dp: 2",
                       kSums.substr(0, kSums.find(" S[chunk=1]")) + "\n"}),
              AllOf(HasSubstr("leaves"), HasSubstr("all_reduce")));
  EXPECT_THAT(
      refused({"", kOne + ", <memory/ddp>", chunks + ", dp: 2",
               "repeat 2*M: F\n        repeat 2*M: B\n        S[chunk=0]\n"
               "        U[chunk=0]\n        S[chunk=1]\n",
               kAdamW}),
      AllOf(HasSubstr("strategy.yaml:13:9"), HasSubstr("(line 14)"), HasSubstr("clip_norm")));
  EXPECT_THAT(refused({"", kOne, chunks, "F & U[chunk=0]\n"}), HasSubstr("no half of a pair"));
  EXPECT_THAT(
      refused({"", kOne, "stages: 1, chunks: 4, microbatches: 1",
               "for s in 0..4: B[stage=3-s]\n        U[stage=0] F[step=1, stage=0]\n"
               "        for s in 1..4: F[step=1, stage=s] U[stage=s]\n"}),
      AllOf(HasSubstr("strategy.yaml:12:24"), HasSubstr("'F stage=1 mb=0' of the next step"),
            HasSubstr("before this step's update of it"), HasSubstr("'U[stage=1]'")));
  EXPECT_THAT(refused({"", kOne, chunks, "F[step=1, stage=0] F[step=1, stage=1] repeat M: B\n"}),
              HasSubstr("strategy.yaml"));
  const std::string ddp = kOne + ", <memory/ddp>", two = chunks + ", dp: 2";
  EXPECT_THAT(refused({"", ddp, two, kSums, kAdam, small_buckets()}),
              AllOf(HasSubstr("so does 'S'"), HasSubstr("strategy.yaml:8:28")));
  EXPECT_THAT(refused({"", ddp, two, "", kAdam, small_buckets(", reduce: {slice: 1MiB}")}),
              AllOf(HasSubstr("less than one message, which holds at most 1.0 MiB"),
                    HasSubstr("the slice is that of strategy.yaml:7:")));
  EXPECT_THAT(refused({"", ddp, two, "", kAdam,
                       small_buckets(", shard: [optimizer], reduce: {slice: 1KiB, dtype: int8, "
                                     "lossy: true}")}),
              HasSubstr("not supported: slices of gradients that travel in int8"));
  EXPECT_THAT(refused({"", ddp, two, "", kAdam, kCredit}),
              AllOf(HasSubstr("less than one message"), HasSubstr("ddp.yaml:7")));
  EXPECT_THAT(refused({"", ddp, two, "", kAdam,
                       "  - stream: {where: {kind: input}, name: inputs, credit: 64KiB}\n"}),
              HasSubstr("'inputs' has none"));
  EXPECT_THAT(refused({"", "<schedules/pipedream-2bw>", "stages: 2, microbatches: 2",
                       "repeat M: F B\n        U[chunk=0]\n"}),
              HasSubstr("several versions"));
}

// The comparison and the verifier see what runs again otherwise, and an update that comes early.
TEST(Items, AnotherOneIsSeen) {
  NEED_MODEL(kModel);
  auto again =
      compile_case({"", "<schedules/1f1b>, " + kAgain, "stages: 2, microbatches: 4", kEarly}, true);
  ASSERT_TRUE(again) << print_error(again.error());
  const auto right = train(again->set, kModel, kSteps);
  int changed = 0;
  for (RoleProgram& role : again->set.roles)
    for (Program& program : role.programs)
      for (ProgramOp& op : program.ops)
        if (program.label.starts_with("R") && op.op == "LayerNorm")
          op.attrs.set("epsilon", 0.1), ++changed;
  ASSERT_GT(changed, 0);
  const auto wrong = train(again->set, kModel, kSteps);
  ASSERT_TRUE(right && wrong);
  EXPECT_NE(right->losses, wrong->losses);
  const auto report = verify_plan_set(again->set, &*again->single);
  ASSERT_TRUE(report) << print_error(report.error());
  EXPECT_FALSE(report->findings.empty());

  auto early = compile_case({"", kOne, "stages: 1, chunks: 2, microbatches: 2", kChunks}, true);
  ASSERT_TRUE(early) << print_error(early.error());
  std::vector<Instruction>& body = early->set.roles[0].body;
  const auto update = std::find_if(body.begin(), body.end(), [](const Instruction& one) {
    return one.pass == TaskPass::kU && one.stage == 1 && one.kind == InstructionKind::kCompute;
  });
  const auto backward = std::find_if(body.begin(), body.end(), [](const Instruction& one) {
    return one.pass == TaskPass::kB && one.micro == 1;
  });
  ASSERT_LT(backward, update);
  std::rotate(backward, update, update + 1);
  const auto moved = verify_plan_set(early->set, &*early->single);
  EXPECT_TRUE(!moved || !moved->findings.empty());
}

// A forward of the next step that reads a parameter before its update is seen, in its numbers and
// by the verifier.
TEST(Items, AForwardBeforeItsUpdateIsSeen) {
  NEED_MODEL(kModel);
  auto next = compile_case({"", kOne, "stages: 1, chunks: 4, microbatches: 1", kNext, kSgd}, true);
  ASSERT_TRUE(next) << print_error(next.error());
  const auto right = train(next->set, kModel, kSteps);
  std::vector<Instruction>& body = next->set.roles[0].body;
  const auto forward = std::ranges::find_if(body, [](const Instruction& one) {
    return one.ahead > 0 && one.kind == InstructionKind::kCompute;
  });
  const auto update = std::find_if(body.begin(), forward, [](const Instruction& one) {
    return one.pass == TaskPass::kU && one.stage == 0 && one.kind == InstructionKind::kCompute;
  });
  ASSERT_NE(update, forward);
  std::rotate(update, forward, forward + 1);
  for (Instruction& one : body) one.waits.clear();  // all of it is on one stream
  const auto moved = verify_plan_set(next->set, &*next->single);
  EXPECT_TRUE(!moved || !moved->findings.empty());
  const auto wrong = train(next->set, kModel, kSteps);
  ASSERT_TRUE(right && wrong);
  if (kSteps > 1) {
    EXPECT_NE(right->losses, wrong->losses);
  }
}

}  // namespace
}  // namespace piper::items_test
