// What plans come to, as --explain prints it.
#include "piper/inspect/summary.h"

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "folder.h"
#include "piper/base/float16.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
#include "piper/planner/compile.h"

namespace piper::summary_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

std::string source(const std::string& path) { return std::string(PIPER_SOURCE_DIR) + "/" + path; }

// The sample model under a strategy of the library, with more lines.
Result<Compiled> compile_like(const std::string& library, const std::string& params,
                              const std::string& more) {
  const Folder folder;
  const std::string text = fmt::format("piper: 1\ninclude: {}\nparams: {}\n{}",
                                       source("strategies/" + library), params, more);
  return compile({.model = source("samples/gpt/model.onnx"),
                  .strategy = folder.write("strategy.yaml", text),
                  .oracles = false});
}
Summary summary_of(const std::string& library, const std::string& params, const std::string& more) {
  const auto compiled = compile_like(library, params, more);
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  return compiled ? summarise(compiled->set) : Summary();
}

constexpr const char* kTrain =
    "train:\n  global_batch: 64\n  optimizer: {adamw: {lr: 1e-3}}\n"
    "  groups: [{match: \"**/bias\", lr: 1e-4}]\n  clip_norm: 1\n";

TEST(Explain, LinesOfTheStrategyAreSaidWhereAskedForAlone) {
  const auto topics = parse_topics("all"), with_lines = parse_topics("all,lines");
  ASSERT_TRUE(topics && with_lines);
  const auto plain = compile_like("1f1b.yaml", "{stages: 2, microbatches: 4}", kTrain);
  const auto moved = compile_like("1f1b.yaml", "{stages: 2, microbatches: 4}",
                                  "# a comment\n\n\n" + std::string(kTrain));
  ASSERT_TRUE(plain && moved);
  EXPECT_EQ(explain(*plain, *topics), explain(*moved, *topics));
  EXPECT_THAT(explain(*plain, *topics), Not(HasSubstr(".yaml")));
  EXPECT_THAT(explain(*moved, *with_lines), HasSubstr("strategy.yaml:10: groups\n"));
}

TEST(Explain, TopicsAreAsNamed) {
  EXPECT_EQ(parse_topics("")->names, parse_topics("summary")->names);
  EXPECT_THAT(parse_topics("lines,order")->names, testing::ElementsAre("order"));
  EXPECT_TRUE(parse_topics("order,lines")->lines);
  EXPECT_FALSE(parse_topics("all")->lines);
  const auto wrong = parse_topics("order,memroy");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ExitCode::kUsage);
  EXPECT_THAT(wrong.error().message, HasSubstr("did you mean 'memory'"));
}

TEST(Summary, TrainSaysWhatEachParameterIsTrainedWith) {
  // The update sees parts, or copies of states that lie on the host.
  for (const char* more : {"", "directives:\n  - offload: {what: optimizer}\n"})
    for (const char* library : {"ddp.yaml", "zero1.yaml", "zero3.yaml"}) {
      const bool zero = std::string_view(library) != "ddp.yaml";
      const Summary summary =
          summary_of(library, zero ? "{stages: 2, dp: 2, microbatches: 2}" : "{dp: 2}",
                     std::string(kTrain) + more);
      const auto lines = train_lines(summary);
      ASSERT_EQ(lines.size(), 5U) << library << more << join(lines, "\n");
      EXPECT_THAT(lines[0], HasSubstr("global_batch 64"));
      EXPECT_THAT(lines[0], HasSubstr("clip_norm 1"));
      EXPECT_THAT(lines[1], testing::StartsWith(
                                "adamw, lr 0.0001, betas [0.9, 0.999], eps 1e-08, weight_decay"));
      EXPECT_THAT(lines[1], HasSubstr(": 25 parameters, "));
      EXPECT_THAT(lines[2], HasSubstr("4 x model.h.*.ln_1.bias, "));
      EXPECT_THAT(lines[3], HasSubstr("lr 0.001"));
      EXPECT_THAT(lines[3], HasSubstr(": 27 parameters, "));
      EXPECT_THAT(lines[4], HasSubstr("model.wte.weight, "));
    }
}

int64_t collective_bytes(const Summary& summary) {
  int64_t bytes = 0;
  for (const TrafficSummary& each : summary.roles[0].traffic)
    if (is_collective(each.kind)) bytes += each.bytes;
  return bytes;
}

// An all-reduce is a reduce-scatter and an all-gather, whichever way it is written.
TEST(Summary, BytesAreThoseThatARankSends) {
  for (const char* dp : {"{dp: 2}", "{dp: 4}"}) {
    const int64_t whole = collective_bytes(summary_of("memory/ddp.yaml", dp, kTrain)),
                  parts = collective_bytes(summary_of("memory/zero1.yaml", dp, kTrain));
    EXPECT_GT(whole, 1 << 20);
    EXPECT_NEAR(static_cast<double>(parts) / static_cast<double>(whole), 1, 0.001);
  }
  // Of n ranks 2(n-1)/n of all gradients.
  const auto of = [](const char* dp) {
    return collective_bytes(summary_of("memory/ddp.yaml", dp, kTrain));
  };
  EXPECT_NEAR(static_cast<double>(of("{dp: 4}")) / static_cast<double>(of("{dp: 2}")), 1.5, 0.001);
}

// Streams are no matter of how much a rank sends.
TEST(Explain, MessagesOfSeveralStreamsAreOneLine) {
  const char* strategy =
      "mesh: {tp: 2}\ntrain: {global_batch: 8, optimizer: {sgd: {lr: 0.1}}}\ndirectives:\n"
      "  - shard: {match: \"**/fc/*\", dim: 0, over: tp}\n"
      "  - shard: {match: \"**/proj/weight\", dim: 1, over: tp}\n";
  const auto lines = [&](const std::string& more) {
    const Folder folder;
    const auto compiled =
        compile({.model = source("samples/gpt/model.onnx"),
                 .strategy = folder.write("strategy.yaml", "piper: 1\n" + (strategy + more)),
                 .oracles = false});
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    return compiled ? traffic_lines(summarise(compiled->set)) : std::vector<std::string>();
  };
  const auto alone = lines("");
  EXPECT_FALSE(alone.empty());
  EXPECT_EQ(lines("  - stream: {where: {kind: all_reduce, pass: B}, name: tp}\n"), alone);
}

TEST(Explain, MessagesAreSaidOnce) {
  const auto compiled = compile_like("memory/ddp.yaml", "{dp: 2}", kTrain);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const char* topics : {"summary", "comm", "summary,directives,comm", "all"}) {
    const std::string text = explain(*compiled, *parse_topics(topics));
    const size_t first = text.find("messages\n");
    EXPECT_NE(first, text.npos) << topics;
    EXPECT_EQ(text.find("messages\n", first + 1), text.npos) << topics;
  }
}

TEST(Summary, OrderIsWhole) {
  const auto lines = order_lines(summary_of("1f1b.yaml", "{stages: 2, microbatches: 32}", kTrain));
  EXPECT_THAT(lines[0], testing::StartsWith("pp=0: F0 F1 B0 F2 B1 F3 "));
  EXPECT_THAT(lines[0], testing::EndsWith(" F31 B30 B31"));
  EXPECT_THAT(lines[0], Not(HasSubstr("…")));
}

TEST(Summary, OrderHasPairsStagesStreamsAndRecomputation) {
  const auto lines = order_lines(summary_of(
      "dualpipe.yaml", "{stages: 2, microbatches: 4}",
      std::string(kTrain) +
          "directives:\n  - recompute: {match: \"model/h/{l}/**\", where: {stage: 1}}\n"));
  EXPECT_EQ(lines[0], "pp=0: 0F0 1F2 0F1 1BI2* 1BW2* 1F3&0BI0 0BW0 1BI3* 1BW3* 0BI1 0BW1");
  EXPECT_THAT(lines, Contains(HasSubstr("stream 'overlap': ")));
  EXPECT_THAT(lines, Contains(testing::ContainsRegex(
                         "\\* recomputes [0-9]+ forward ops of stage=1 in 2 microbatches")));
}

TEST(Summary, TasksOfTheNextStepAreMarked) {
  const auto lines =
      order_lines(summary_of("pipedream-2bw.yaml", "{stages: 2, microbatches: 4}", kTrain));
  EXPECT_THAT(lines[0], HasSubstr("F0'"));
}

// A stage keeps what its forwards make and its backwards read.
TEST(Summary, RecomputationKeepsWhatItsDirectiveSays) {
  const Summary plain = summary_of("1f1b.yaml", "{stages: 2, microbatches: 4}", kTrain);
  const auto again = compile_like(
      "1f1b.yaml", "{stages: 2, microbatches: 4}",
      std::string(kTrain) + "directives:\n  - recompute: {match: \"model/h/{l}/**\"}\n");
  ASSERT_TRUE(again);
  const auto kept = [](const Summary& summary) {
    double bytes = 0;
    for (const StageSummary& stage : summary.stages) bytes += stage.kept_bytes;
    return bytes;
  };
  const double less = kept(summarise(again->set));
  EXPECT_GT(kept(plain), 4 * less);
  std::vector<std::string> lines;
  for (const Explanation& e : again->explanations)
    lines.insert(lines.end(), e.lines.begin(), e.lines.end());
  EXPECT_THAT(lines,
              Contains(testing::StartsWith(fmt::format("kept for the backward pass: {} instead of ",
                                                       human_bytes(static_cast<int64_t>(less))))));
}

// A model that is stored in 16 bits is updated in 32: its weights are converted there and back.
constexpr const char* kHalves = R"(plan batch=2 arena=768 workspace=[0]
stream 0 "compute"
input "x" i64[2] high=9 ignore=-100
buffer 0 "w" bf16[4] state at=0 init="w" param="w"
buffer 1 "g" f32[4] step at=256
buffer 2 "step" i64[] state at=512
program 0 label="U" args=3
  value 0 bf16[4] read written
  value 1 f32[4] read
  value 2 i64[] read
  value 3 f32[4]
  value 4 f32[4]
  value 5 f64[]
  value 6 f32[] literal=0x00000043
  value 7 f64[]
  op LearningRate in=[2] out=[5] {base=0.25, rate="lr"}
  op LossScale in=[6] out=[7]
  op Cast in=[0] out=[3] {to="f32"}
  op Sgd in=[3,1,-1,5,-1,2] out=[4] {dampening=0.0, momentum=0.0, nesterov=0, weight_decay=0.0}
  op Cast in=[4] out=[0] {to="bf16"}
body
  0 compute label="U" program=0 args=[0,1,2] pass="U"
)";

TEST(Summary, WeightsThatAreConvertedAreTrained) {
  const auto role = parse_plan(kHalves);
  ASSERT_TRUE(role) << print_error(role.error());
  PlanSet set;
  set.roles = {*role};
  set.role_of_rank = {0};
  const auto lines = train_lines(summarise(set));
  ASSERT_EQ(lines.size(), 2U) << join(lines, "\n");
  EXPECT_THAT(lines[0], HasSubstr("loss_scale static 128"));
  EXPECT_THAT(lines[0], HasSubstr("input x i64[2] from 0 to 9, -100 ignored"));
  EXPECT_THAT(lines[1], testing::StartsWith("sgd, lr 0.25, "));
}

// Of two chunks on a device: what the first hands to the second is kept for the second.
TEST(Summary, AStageKeepsWhatItsBackwardReads) {
  const Summary summary = summary_of("zbv.yaml", "{stages: 2, microbatches: 4}", kTrain);
  const auto kept = [&](const char* name) {
    for (const StageSummary& stage : summary.stages)
      if (stage.name == name) return stage.kept_bytes;
    return 0.0;
  };
  ASSERT_EQ(summary.stages.size(), 4U);
  EXPECT_EQ(summary.stages[2].name, "stage=2");  // the last to run on the first device is 3
  EXPECT_GT(kept("stage=1"), 0);
  EXPECT_EQ(kept("stage=1"), kept("stage=2"));
}

TEST(Summary, ColumnsOfMemoryAddUp) {
  const Summary summary = summary_of("1f1b.yaml", "{stages: 2, microbatches: 4}", kTrain);
  for (const RoleSummary& role : summary.roles)
    EXPECT_EQ(role.weight_bytes + role.optimizer_bytes + role.step_bytes + role.workspace_bytes +
                  role.constant_bytes + role.packed_bytes + role.transport_bytes +
                  role.scratch_bytes,
              role.peak_bytes);
}

TEST(Summary, SmallNumbersOfOperationsAreReadable) {
  EXPECT_EQ(human_flops(0), "0 FLOP");
  EXPECT_EQ(human_flops(12), "12 FLOP");
  EXPECT_EQ(human_flops(4567), "4.567 kFLOP");
  EXPECT_EQ(human_flops(2.5e5), "0.250 MFLOP");
}

// The bytes that a pass moves, in ops whose kind begins with `op`.
int64_t moved(const MemoryTraffic& traffic, TaskPass pass, std::string_view op) {
  int64_t bytes = 0;
  for (const MemoryTraffic::Kind& kind : traffic.kinds)
    if (kind.pass == pass && kind.op.starts_with(op)) bytes += kind.bytes();
  return bytes;
}

// AdamW reads a parameter, its gradient and two states, and writes all but the gradient; a sum of
// squares reads the gradient. The loss reads the logits, and its gradient reads and writes them.
TEST(Traffic, OfAStepIsThatOfItsFormulas) {
  for (const char* target : {"cpu", "cuda"}) {
    SCOPED_TRACE(target);
    std::vector<MemoryTraffic> by_cut;
    for (const char* microbatches : {"1", "4"}) {
      const Folder folder;
      const auto compiled = compile(
          {.model = source("samples/gpt/model.onnx"),
           .strategy = folder.write(
               "strategy.yaml",
               fmt::format("piper: 1\n{}directives:\n  - split: {{dim: batch, into: {}, as: mb}}\n",
                           kTrain, microbatches)),
           .target = target,
           .oracles = false});
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const Summary summary = summarise(compiled->set);
      const int64_t elements = summary.roles[0].elements;
      const auto parameters = static_cast<int64_t>(summary.parameters.size());
      by_cut.push_back(memory_traffic(compiled->set)[0]);
      const MemoryTraffic& traffic = by_cut.back();
      // Among them whether gradients are finite.
      constexpr int64_t kNumbersOfAnUpdate = 3 * 8 + 1, kF64 = 8;
      EXPECT_EQ(moved(traffic, TaskPass::kU, "AdamW"),
                7 * 4 * elements + kNumbersOfAnUpdate * parameters);
      EXPECT_EQ(moved(traffic, TaskPass::kU, "SumSquares"), 4 * elements + kF64 * parameters);
      constexpr int64_t kRows = 64 * 128, kClasses = 256;
      EXPECT_NEAR(static_cast<double>(moved(traffic, TaskPass::kF, "CrossEntropySum")),
                  kRows * (4.0 * kClasses + 8 + 4), 100);
      EXPECT_NEAR(static_cast<double>(moved(traffic, TaskPass::kB, "CrossEntropyGrad")),
                  kRows * (8.0 * kClasses + 8 + 4), 100);
      EXPECT_THAT(explain(*compiled, *parse_topics("traffic")),
                  HasSubstr(fmt::format("in a step on {} beside products and attention", target)));
      EXPECT_GT(traffic.product_bytes(), 0);
    }
    // Gradients are added up and parameters read once a microbatch.
    EXPECT_GT(by_cut[1].other_bytes() + by_cut[1].product_bytes(),
              by_cut[0].other_bytes() + by_cut[0].product_bytes());
  }
}

// Bytes of numbers between 0 and 1, of integers below 4.
std::string random_bytes(const TensorType& type, std::mt19937& random) {
  std::string bytes(static_cast<size_t>(type.bytes()), '\0');
  const auto width = static_cast<size_t>(info(type.dtype).bytes);
  for (size_t at = 0; at < bytes.size(); at += width) {
    const auto number = static_cast<float>(random() % 1000) / 1000;
    const auto wide = static_cast<double>(number);
    const auto integer = static_cast<int64_t>(random() % (type.dtype == DType::kBool ? 2 : 4));
    std::byte half[2];
    if (is_half(type.dtype)) round_to_halves(type.dtype, &number, half, 1);
    std::memcpy(bytes.data() + at,
                type.dtype == DType::kF64   ? static_cast<const void*>(&wide)
                : type.dtype == DType::kF32 ? static_cast<const void*>(&number)
                : is_half(type.dtype)       ? static_cast<const void*>(half)
                                            : static_cast<const void*>(&integer),
                width);
  }
  return bytes;
}
template <class Loaded>
std::vector<std::string> run_on_cpu(const Loaded& program, std::vector<std::string> args) {
  const auto backend = make_cpu_backend();
  const auto loaded = backend->load(program);
  EXPECT_TRUE(loaded) << print_error(loaded.error());
  if (!loaded) return {};
  std::vector<std::byte*> pointers;
  for (std::string& arg : args) {
    pointers.push_back(*backend->allocate(static_cast<int64_t>(arg.size())));
    std::memcpy(pointers.back(), arg.data(), arg.size());
  }
  std::byte* const workspace = *backend->allocate(backend->workspace_bytes(*loaded));
  backend->launch(*backend->bind(*loaded, pointers, workspace));
  for (size_t a = 0; a < args.size(); ++a) std::memcpy(args[a].data(), pointers[a], args[a].size());
  return args;
}

// The programs of a whole step, in passes over rows: their ops, one by one in the order of these,
// compute what the plan's do.
TEST(Traffic, ProgramsInPassesComputeTheSame) {
  const auto compiled =
      compile_like("1f1b.yaml", "{stages: 2, microbatches: 4}",
                   std::string(kTrain) + "directives:\n  - precision: {compute: bf16}\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  std::mt19937 random(1);
  size_t saved = 0;
  bool shows = false;
  std::vector<Program> programs;
  for (const RoleProgram& role : compiled->set.roles)
    programs.insert(programs.end(), role.programs.begin(), role.programs.end());
  for (const Program& program : programs) {
    FusedProgram joined = join_rows(joined_for_cpu(program));
    if (!joined.ops.empty()) saved += joined.ops.size() - 1 - joined.passes.back();
    joined.passes.clear();
    std::vector<std::string> args;
    for (int32_t a = 0; a < program.num_args; ++a)
      args.push_back(random_bytes(program.values[static_cast<size_t>(a)], random));
    const auto want = run_on_cpu(program, args);
    EXPECT_EQ(run_on_cpu(joined, args) == want, true) << program.label;
    const auto norm = std::find_if(joined.ops.begin(), joined.ops.end(),
                                   [](const ProgramOp& op) { return op.op == "LayerNormGradX"; });
    if (norm == joined.ops.end()) continue;
    std::swap(norm->inputs[3], norm->inputs[4]);  // the control
    shows |= run_on_cpu(joined, args) != want;
  }
  EXPECT_GT(saved, 30u);
  EXPECT_TRUE(shows);
}

TEST(Explain, SaysWhatIsLeftOut) {
  const auto compiled = compile_like(
      "zero1.yaml", "{stages: 2, dp: 2, microbatches: 4, again: 0}",
      std::string(kTrain) +
          "directives:\n  - {name: replicate, replicate: {over: dp}}\n  - drop: order\n"
          "  - {recompute: {}, when: $again}\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const std::string text = explain(*compiled, *parse_topics(""));
  EXPECT_THAT(text, HasSubstr("recompute\n    left out: its 'when' is 0\n"));
  EXPECT_THAT(text, HasSubstr("replicate\n    left out: a file that includes it has its own\n"));
  EXPECT_THAT(text, HasSubstr("order\n    left out: it is dropped\n"));
}

}  // namespace
}  // namespace piper::summary_test
