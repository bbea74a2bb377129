// Messages on streams of their own, receives posted early and late: every schedule of the library
// ends as without them whatever the streams and the speed of each, or is refused with the circle in
// which its messages would wait.
#include "equivalence/jobs.h"
#include "equivalence/layouts.h"
#include "mutation/interpreter.h"

namespace piper::streams_test {
namespace {

using layouts::kLayouts;

Result<Compiled> compile_with(const std::string& file, const jobs::Shape2& shape,
                              const std::string& layout, const std::string& posting) {
  const std::string library = jobs::library_text(file);
  std::string text = "piper: 1\ninclude: " PIPER_SOURCE_DIR "/strategies/" + file + ".yaml\n";
  text += "train: {global_batch: 16, optimizer: {sgd: {lr: 0.1}}}\ndirectives:\n";
  text += "  - stream: {where: {kind: all_reduce}, name: scalars}\n" + layout;
  if (!posting.empty())
    text += fmt::format("  - prefetch: {{where: {{kind: recv}}, distance: {}}}\n", posting);
  const Folder folder;
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/tests/data/mlp.onnx";
  options.strategy = folder.write("strategy.yaml", text);
  options.defines = jobs::definitions_of(library, shape);
  options.oracles = false;
  return compile(options);
}

// A run of the plan under one order of its streams.
mutation::Outcome run(const PlanSet& set, uint64_t seed) {
  return mutation::interpret(set, {.seed = seed, .in_order = seed == 0, .steps = 1});
}

class Streams : public testing::TestWithParam<std::string> {};

TEST_P(Streams, NoLayoutDeadlocksOrChangesTheResult) {
  const std::string file = GetParam();
  const jobs::Shape2 shape{2, 1, 4};
  const auto plain = compile_with(file, shape, "", "");
  ASSERT_TRUE(plain) << print_error(plain.error());
  const mutation::Outcome want = run(plain->set, 0);
  ASSERT_EQ(want.fault, "");
  for (const layouts::Layout& layout : kLayouts)
    for (const std::string posting : layouts::kPostings) {
      const std::string what = fmt::format("{} {} '{}'", file, layout.name, posting);
      const auto compiled = compile_with(file, shape, layout.directives, posting);
      if (!compiled) {
        // Only what was asked to come late may be refused, and says why.
        EXPECT_TRUE(posting == "lazy" || posting == "2") << what << print_error(compiled.error());
        EXPECT_TRUE(compiled.error().message.starts_with(
            "prefetch: messages that wait for their receives block each other: "))
            << what << print_error(compiled.error());
        continue;
      }
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const mutation::Outcome got = run(compiled->set, seed);
        EXPECT_EQ(got.fault, "") << what;
        EXPECT_EQ(got.symbols, want.symbols) << what;
      }
    }
}

std::vector<std::string> pipelines() {
  std::vector<std::string> files;
  for (const std::string& file : jobs::library_files())
    if (jobs::library_text(file).find("weight_versions") == std::string::npos &&
        jobs::library_text(file).find("place: {") != std::string::npos)
      files.push_back(file);
  return files;
}
INSTANTIATE_TEST_SUITE_P(Library, Streams, testing::ValuesIn(pipelines()),
                         [](const auto& info) { return jobs::identifier(info.param); });

// What is known of receives that are posted just before their reader, on one stream with the sends
// and on two: GPipe runs, all others wait for each other; on a stream for each direction 1F1B runs.
TEST(Streams, LateReceivesWaitInACircleWhereTheyMust) {
  const jobs::Shape2 shape{4, 1, 8};
  EXPECT_TRUE(compile_with("gpipe", shape, kLayouts[1].directives, "lazy"));
  EXPECT_FALSE(compile_with("1f1b", shape, kLayouts[1].directives, "lazy"));
  EXPECT_FALSE(compile_with("zb-h1", shape, kLayouts[1].directives, "lazy"));
  EXPECT_TRUE(compile_with("1f1b", shape, kLayouts[2].directives, "lazy"));
  EXPECT_TRUE(compile_with("zb-h1", shape, kLayouts[2].directives, "lazy"));
}

TEST(Streams, TheShortestCircleIsPrinted) {
  const auto refused = compile_with("1f1b", {2, 1, 4}, kLayouts[1].directives, "lazy");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "prefetch: messages that wait for their receives block each other: "
            "'send linear_2/MatMul_9 mb=1' on rank 0 waits for 'recv linear_2/MatMul_9 mb=1' on "
            "rank 1, which comes after 'send d_Add_16 mb=0'; 'send d_Add_16 mb=0' on rank 1 waits "
            "for 'recv d_Add_16 mb=0' on rank 0, which comes after 'send linear_2/MatMul_9 mb=1'");
  EXPECT_NE(print_error(refused.error()).find("strategy.yaml:7:5: error: prefetch: "),
            std::string::npos)
      << print_error(refused.error());
}

// What comes early holds memory for longer, and the plan states it.
TEST(Streams, EarlyInputsAreInTheArena) {
  const jobs::Shape2 shape{2, 1, 16};
  const auto with = [&](const char* distance) {
    return compile_with(
        "1f1b", shape,
        fmt::format("  - prefetch: {{where: {{kind: input}}, distance: {}}}\n", distance), "");
  };
  const auto late = with("lazy"), ahead = with("6"), early = with("eager");
  ASSERT_TRUE(late && ahead && early);
  EXPECT_LT(late->set.roles[0].arena_bytes, ahead->set.roles[0].arena_bytes);
  EXPECT_LT(ahead->set.roles[0].arena_bytes, early->set.roles[0].arena_bytes);
}

// '&&' gives the collectives of each half of a pair a stream of their own: the same results, and no
// note that one half waits for those of the other.
TEST(Streams, OfEachHalfOfAPairEndAlike) {
  const auto made = [](const char* sign) {
    std::string text = jobs::library_text("schedules/dualpipev");
    for (size_t at = 0; (at = text.find(" & ", at)) != text.npos; at += 4)
      text.replace(at, 3, fmt::format(" {} ", sign));
    text +=
        "  - shard: {match: \"model/0/*\", dim: 0, over: tp}\n"
        "  - shard: {match: \"model/2/*\", dim: 0, over: tp}\n"
        "  - stream: {where: {kind: [all_reduce, all_gather, reduce_scatter], mb: \"*\"}, "
        "name: tp}\n";
    const size_t mesh = text.find("mesh: {pp: $stages}");
    EXPECT_NE(mesh, text.npos);
    text.replace(
        mesh, 19,
        "mesh: {pp: $stages, tp: 2}\ntrain: {global_batch: 8, optimizer: {sgd: {lr: 0.1}}}");
    const Folder folder;
    CompileOptions options;
    options.model = PIPER_SOURCE_DIR "/tests/data/mlp.onnx";
    options.strategy = folder.write("strategy.yaml", text);
    options.defines = {{"stages", "2"}, {"microbatches", "4"}};
    options.oracles = false;
    return compile(options);
  };
  const auto shared = made("&"), apart = made("&&");
  ASSERT_TRUE(shared) << print_error(shared.error());
  ASSERT_TRUE(apart) << print_error(apart.error());
  const auto on = [](const PlanSet& set, std::string_view name) {
    int64_t count = 0;
    for (const RoleProgram& role : set.roles)
      for (const Instruction& one : role.body)
        count += role.streams[static_cast<size_t>(one.stream)].name == name;
    return count;
  };
  EXPECT_EQ(on(shared->set, "tp.second"), 0);
  EXPECT_GT(on(apart->set, "tp.second"), 0);
  EXPECT_EQ(on(apart->set, "tp") + on(apart->set, "tp.second"), on(shared->set, "tp"));
  const mutation::Outcome want = run(shared->set, 0);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const mutation::Outcome got = run(apart->set, seed);
    EXPECT_EQ(got.fault, "");
    EXPECT_EQ(got.symbols, want.symbols);
  }
}

}  // namespace
}  // namespace piper::streams_test
