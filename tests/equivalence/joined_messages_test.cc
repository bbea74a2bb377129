// Messages that travel together: whatever is joined, plans train with the same bits, and run under
// any layout of streams, posting of receives and order of the streams.
#include "equivalence/commands.h"
#include "equivalence/layouts.h"
#include "mutation/interpreter.h"

namespace piper::joined_messages_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 3;
const char* const kModel = "gpt-deep";

struct Case {
  const char* name;
  const char* order;  // a file of strategies/
  Shape2 shape;
  std::string directives;
  std::string fuses;
  int versions = 1;
  std::string annotate;
};

const std::string kSends = "  - fuse: {where: {kind: send}}\n";
const std::string kExchanges = "  - fuse: {where: {kind: send, mb: absent}, bucket: 2KiB}\n";
const std::string kPairs = "  - fuse: {where: {kind: send}, microbatches: 2}\n";
const std::string kFours =
    "  - fuse: {where: {kind: send, pass: F}, microbatches: 4}\n"
    "  - fuse: {where: {kind: send, pass: B}, microbatches: 2}\n";
const std::string kReductions = "  - fuse: {where: {kind: all_reduce}, bucket: 64KiB}\n";
const std::string kScatters =
    "  - fuse: {where: {kind: reduce_scatter}, bucket: 1MiB, microbatches: 2}\n"
    "  - fuse: {where: {kind: all_gather}, bucket: 4KiB}\n";
const std::string kPerMicrobatch =
    "  - place: {where: {stage: s}, on: {pp: s}}\n"
    "  - split: {dim: batch, into: $microbatches}\n"
    "  - replicate: {over: dp, shard: [optimizer, gradients], reduce: {when: per_microbatch}}\n";
const std::string kPlain =
    "  - place: {where: {stage: s}, on: {pp: s}}\n"
    "  - split: {dim: batch, into: $microbatches}\n"
    "  - replicate: {over: dp}\n";
const std::string kIn16Bits = "  - precision: {compute: f32, reduce: bf16}\n";
const std::string kAcrossSteps =
    "  - place: {where: {stage: s}, on: {pp: s}}\n"
    "  - split: {dim: batch, into: $microbatches}\n"
    "  - replicate: {over: dp, shard: [optimizer, gradients]}\n"
    "  - order:\n      each: pp\n      program: |\n"
    "        repeat M - (P-r-1): F B\n        repeat P-r-1: F[step=1] B\n";
const std::string kAcrossEachStep =
    kPerMicrobatch +
    "  - order:\n      each: pp\n      program: |\n"
    "        repeat M - (P-r-1): F B\n        repeat P-r-1: F[step=1] B\n";
// The boundary between the stages runs through a block: a residual and products are sent on.
const std::string kMidBlock =
    "annotate:\n"
    "  - {match: \"model/h/4/ln_1/**\", tags: {stage: 0}}\n"
    "  - {match: \"model/h/4/qkv/**\", tags: {stage: 0}}\n";
const std::string kWholeSteps =
    "  - fuse: {where: {kind: [send, reduce_scatter, all_gather]}, bucket: 64KiB}\n";

const Case kCases[] = {
    {"chimera", "chimera", {2, 2, 4}, "", kSends},
    {"chimera_buckets", "chimera", {4, 1, 4}, "", kExchanges},
    {"dualpipe", "dualpipe", {2, 2, 4}, "", kSends},
    {"dualpipe_pairs", "dualpipe", {2, 1, 8}, "", kPairs},
    {"gpipe_pairs", "gpipe", {2, 1, 4}, "", kPairs},
    {"one_f_one_b_pairs", "1f1b", {2, 2, 4}, "", kPairs},
    {"several_values", "1f1b", {2, 2, 4}, "", kSends, 1, kMidBlock},
    {"several_values_pairs", "1f1b", {2, 1, 4}, "", kPairs, 1, kMidBlock},
    {"several_values_split", "zb-h1", {2, 1, 4}, "", kSends, 1, kMidBlock},
    {"interleaved", "interleaved-1f1b", {2, 1, 4}, "", kPairs},
    {"zbv", "zbv", {2, 1, 4}, "", kPairs},
    {"reductions", "", {2, 2, 2}, kPlain, kReductions},
    {"scatters", "", {2, 2, 4}, kPerMicrobatch, kScatters},
    {"scatters_in_16_bits", "", {2, 2, 4}, kPerMicrobatch + kIn16Bits, kScatters},
    {"two_versions", "", {2, 2, 4}, kAcrossSteps, kWholeSteps, 2},
    {"two_versions_pairs", "pipedream-2bw", {4, 1, 8}, "", kPairs, 2},
    {"two_versions_fours", "pipedream-2bw", {2, 1, 8}, "", kFours, 2},
    {"two_versions_scatters", "", {2, 2, 4}, kAcrossEachStep, kScatters, 2},
    {"two_versions_in_16_bits", "", {2, 2, 4}, kAcrossSteps + kIn16Bits, kWholeSteps, 2},
};

Result<Compiled> compile_case(const Case& of, const std::string& train, const std::string& fuses,
                              bool oracles = false) {
  std::string text = "piper: 1\n";
  if (of.order != std::string("pipedream-2bw"))  // it says so itself
    text += fmt::format("weight_versions: {}\n", of.versions);
  if (of.directives.empty())
    text += fmt::format("include: {}/strategies/{}.yaml\n", PIPER_SOURCE_DIR, of.order);
  else
    text +=
        "params: {stages: 1, dp: 1, microbatches: 1}\nmesh: {pp: $stages, dp: $dp}\n"
        "annotate: [{balance: {tag: stage, into: $stages}}]\n";
  text += of.annotate;
  const std::string directives = of.directives + fuses;
  if (!directives.empty()) text += "directives:\n" + directives;
  CompileOptions options;
  options.oracles = oracles;
  options.defines = {{"stages", std::to_string(of.shape.pp)},
                     {"dp", std::to_string(of.shape.dp)},
                     {"microbatches", std::to_string(of.shape.mb)}};
  return compile_text(kModel, text, train, options);
}

size_t count_messages(const PlanSet& set) {
  size_t count = 0;
  for (const RoleProgram& role : set.roles)
    for (const Instruction& one : role.body)
      count += one.kind == InstructionKind::kSend || is_collective(one.kind);
  return count;
}

class Joined : public ::testing::TestWithParam<Case> {};

TEST_P(Joined, TrainsWithTheSameBits) {
  NEED_MODEL(kModel);
  for (const std::string& train_text : {std::string(kAdamW), std::string(kSgd)}) {
    if (kSanitized && train_text == kSgd) continue;
    const auto apart = compile_case(GetParam(), train_text, "");
    ASSERT_TRUE(apart) << print_error(apart.error());
    const auto joined = compile_case(GetParam(), train_text, GetParam().fuses);
    ASSERT_TRUE(joined) << print_error(joined.error());
    EXPECT_LT(count_messages(joined->set), count_messages(apart->set));
    const auto want = train(apart->set, kModel, kSteps), got = train(joined->set, kModel, kSteps);
    ASSERT_TRUE(want) << print_error(want.error());
    ASSERT_TRUE(got) << print_error(got.error());
    expect_equal_bits(*got, *want, GetParam().name);
    if (train_text == kAdamW) expect_same_when_queued(joined->set, kModel, GetParam().name);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Joined, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Under another transport, too: sends and receives of several tensors, joined reductions.
TEST(JoinedProcesses, SaveTheSameBytesAsThreads) {
  NEED_MODEL(kModel);
  for (const char* name :
       {"chimera", "one_f_one_b_pairs", "several_values", "two_versions_in_16_bits"}) {
    SCOPED_TRACE(name);
    const Case& of = *std::find_if(std::begin(kCases), std::end(kCases),
                                   [&](const Case& one) { return one.name == std::string(name); });
    const auto compiled = compile_case(of, kAdamW, of.fuses, true);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    expect_processes_save_the_same(*compiled, kModel);
  }
}

// What is received in the wrong order of a message's tensors changes the training.
TEST(JoinedControl, TheOrderOfTheTensorsMatters) {
  NEED_MODEL(kModel);
  const auto compiled = compile_case(kCases[0], kSgd, kCases[0].fuses);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto want = train(compiled->set, kModel, kSteps);
  ASSERT_TRUE(want) << print_error(want.error());
  int tried = 0;
  for (size_t r = 0; r < compiled->set.roles.size(); ++r)
    for (size_t i = 0; i < compiled->set.roles[r].body.size(); ++i) {
      PlanSet changed = compiled->set;
      RoleProgram& role = changed.roles[r];
      Instruction& one = role.body[i];
      if (one.kind != InstructionKind::kRecv || one.args.size() < 2) continue;
      size_t a = 0, b = 1;
      const auto type = [&](size_t k) { return role.tensor(one.args[k]).type; };
      while (b < one.args.size() && type(a) != type(b))
        if (++b == one.args.size() && a + 2 < one.args.size()) b = ++a + 1;
      if (b >= one.args.size()) continue;
      std::swap(one.args[a], one.args[b]);
      ++tried;
      const auto got = train(changed, kModel, kSteps);
      EXPECT_TRUE(!got || got->losses != want->losses) << one.label;
    }
  EXPECT_GT(tried, 2);
}

// On a small model, with symbols for values: as without joining, or refused with the circle.
TEST(JoinedStreams, NoLayoutDeadlocksOrChangesTheResult) {
  const auto compile_with = [](const char* file, const std::string& more) {
    const Folder folder;
    CompileOptions options;
    options.model = PIPER_SOURCE_DIR "/tests/data/mlp.onnx";
    options.strategy = folder.write(
        "strategy.yaml",
        fmt::format("piper: 1\ninclude: {}/strategies/{}.yaml\n"
                    "train: {{global_batch: 16, optimizer: {{sgd: {{lr: 0.1}}}}}}\ndirectives:\n"
                    "  - stream: {{where: {{kind: all_reduce}}, name: scalars}}\n{}",
                    PIPER_SOURCE_DIR, file, more));
    options.defines = definitions_of(library_text(file), {2, 1, 8});
    options.oracles = false;
    return compile(options);
  };
  for (const char* file : {"1f1b", "gpipe", "chimera", "dualpipe", "zbv"}) {
    const auto plain = compile_with(file, "");
    ASSERT_TRUE(plain) << print_error(plain.error());
    const mutation::Outcome want =
        mutation::interpret(plain->set, {.seed = 0, .in_order = true, .steps = 1});
    ASSERT_EQ(want.fault, "");
    for (const std::string& fuses : {kSends, kPairs})
      for (const layouts::Layout& layout : layouts::kLayouts)
        for (const std::string posting : layouts::kPostings) {
          const std::string what = fmt::format("{} {} '{}'\n{}", file, layout.name, posting, fuses);
          std::string more = fuses + layout.directives;
          if (!posting.empty())
            more += fmt::format("  - prefetch: {{where: {{kind: recv}}, distance: {}}}\n", posting);
          const auto compiled = compile_with(file, more);
          if (!compiled) {
            EXPECT_TRUE(posting == "lazy" || posting == "2") << what;
            EXPECT_TRUE(compiled.error().message.starts_with(
                "prefetch: messages that wait for their receives block each other: "))
                << what << print_error(compiled.error());
            continue;
          }
          for (uint64_t seed = 0; seed < 3; ++seed) {
            const mutation::Outcome got = mutation::interpret(
                compiled->set, {.seed = seed, .in_order = seed == 0, .steps = 1});
            EXPECT_EQ(got.fault, "") << what;
            EXPECT_EQ(got.symbols, want.symbols) << what;
          }
        }
  }
}

}  // namespace
}  // namespace piper::joined_messages_test
