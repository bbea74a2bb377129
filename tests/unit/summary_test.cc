// What plans come to, as --explain prints it.
#include "piper/summary.h"

#include <gmock/gmock.h>

#include "folder.h"
#include "piper/compile.h"

namespace piper {
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
      ASSERT_EQ(lines.size(), 3U) << library << more << join(lines, "\n");
      EXPECT_THAT(lines[0], HasSubstr("global_batch 64"));
      EXPECT_THAT(lines[0], HasSubstr("clip_norm 1"));
      EXPECT_THAT(lines[1], testing::StartsWith(
                                "adamw, lr 0.0001, betas [0.9, 0.999], eps 1e-08, weight_decay"));
      EXPECT_THAT(lines[1], HasSubstr(": 25 parameters, "));
      EXPECT_THAT(lines[2], HasSubstr("lr 0.001"));
      EXPECT_THAT(lines[2], HasSubstr(": 27 parameters, "));
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
  EXPECT_EQ(lines[0], "pp=0: 0F0 1F2 0F1 1B2* 1F3&0B0 1B3* 0B1");
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

}  // namespace
}  // namespace piper
