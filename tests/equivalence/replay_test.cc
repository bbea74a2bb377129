// Steps that run twice: nothing changes where both runs have the same bits, and the rank and the
// instruction are named where they have not.
#include <gtest/gtest.h>

#include "sample_jobs.h"

namespace piper::replay_test {
namespace {

struct Way {
  const char* name;
  const char* text;
  const char* fault;  // a bit that one rank turns; with %d for the step
  const char* named;
};
constexpr Way kWays[] = {
    {"ddp", "include: <ddp>\nparams: {dp: 2}\n", "flip@1:{}:forward", "rank 1"},
    {"zero3", "include: <zero3>\nparams: {dp: 3}\n", "flip@2:{}:backward", "rank 2"},
    {"pp", "include: <1f1b>\nparams: {stages: 2, dp: 2, microbatches: 3}\n", "flip@3:{}:backward",
     "rank 3"},
    {"zb", "include: <zbv>\nparams: {stages: 2, microbatches: 4}\n", "flip@0:{}:forward", "rank 0"},
    {"tp", "include: <tensor/tensor>\nparams: {tp: 2}\n", "flip@1:{}:forward", "rank 1"}};

class Replay : public SampleJobs {};

TEST_F(Replay, FindsABitThatOneRankTurns) {
  for (const Way& way : kWays) {
    compile(way.name, way.text);
    const auto fault = [&](int step) { return fmt::format(fmt::runtime(way.fault), step); };
    const auto [code, output] = run(way.name, "--steps 6 --replay 2", fault(4));
    EXPECT_EQ(code, 11) << way.name << output;
    EXPECT_NE(output.find(fmt::format("step 4, {}, instruction", way.named)), std::string::npos)
        << way.name << output;
    EXPECT_NE(output.find("it gave other bits when it ran again"), std::string::npos) << output;
    // The control: a step that runs once trains on wrong bits, and nobody says so.
    ASSERT_EQ(run(way.name, "--steps 4 --replay 2 --save " + path("wrong"), fault(3)).first, 0);
    ASSERT_EQ(run(way.name, "--steps 4 --replay 2 --save " + path("twice")).first, 0);
    ASSERT_EQ(run(way.name, "--steps 4 --save " + path("once")).first, 0);
    EXPECT_TRUE(read("twice") == read("once")) << way.name;
    EXPECT_FALSE(read("wrong") == read("once")) << way.name;
  }
}

// As processes, with random draws, and with a helper thread, which rests while a step is replayed.
TEST_F(Replay, ProcessesAgree) {
  compile("pp", kWays[2].text);
  const auto with = [&](const std::string& fault) {
    return run_shell("exec 2>&1; " +
                     as_processes(4, "PIPER_FAULT=" + fault + " " + torch_variables(4, free_port()),
                                  command("pp", "--steps 4 --replay 2 --helper-thread on --save " +
                                                    path("processes"))));
  };
  const auto good = with(""), bad = with("flip@1:2:backward");
  EXPECT_EQ(good.first, 0) << good.second;
  ASSERT_EQ(run("pp", "--steps 4 --save " + path("threads")).first, 0);
  EXPECT_TRUE(read("processes") == read("threads"));
  // A launcher's exit code is that of the rank which ends first, and only one has found it.
  EXPECT_TRUE(bad.first == 11 || bad.first == 10) << bad.second;
  EXPECT_NE(bad.second.find("step 2, rank 1, instruction"), std::string::npos) << bad.second;
}

// An evaluation after such a step is no second run of it.
TEST_F(Replay, EvaluationsRunOnce) {
  compile("evaluated", kWays[0].text, kTrain, "--eval");
  const auto [code, output] =
      run("evaluated", "--steps 4 --replay 1 --eval-every 1 --eval-batches 2 --eval-data " +
                           path("text.bin") + ":u8");
  EXPECT_EQ(code, 0) << output;
}

TEST_F(Replay, PlansThatCannotSaySo) {
  compile("versions", "include: <pipedream-2bw>\nparams: {stages: 2, microbatches: 4}\n");
  const auto [code, output] = run("versions", "--steps 4 --replay 2");
  EXPECT_EQ(code, 2) << output;
  EXPECT_NE(output.find("--replay is not supported where steps overlap"), std::string::npos)
      << output;
}

}  // namespace
}  // namespace piper::replay_test
