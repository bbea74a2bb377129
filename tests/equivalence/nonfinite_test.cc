// Gradients that are not finite: no rank makes the update, what is saved is the state of the step
// before, and the job ends, goes on or goes back as it was asked to.
#include <gtest/gtest.h>

#include "sample_jobs.h"

namespace piper::nonfinite_test {
namespace {

struct Way {
  const char* name;
  const char* text;
  const char* fault;  // of one rank, in the fourth step
};
constexpr Way kWays[] = {
    {"ddp", "include: <ddp>\nparams: {dp: 2}\n", "nan@1:4:backward"},
    {"zero3", "include: <zero3>\nparams: {dp: 3}\n", "nan@2:4:backward"},
    {"pp", "include: <1f1b>\nparams: {stages: 2, dp: 2, microbatches: 3}\n", "nan@3:4:forward"},
    {"zb", "include: <zbv>\nparams: {stages: 2, microbatches: 4}\n", "nan@0:4:backward"},
    {"tp", "include: <tensor/tensor>\nparams: {tp: 2}\n", "nan@1:4:forward"}};

class NonFinite : public SampleJobs {};

// What one rank makes of its values ends the job on all, which saves what it had before the step.
TEST_F(NonFinite, TheStateOfTheStepBeforeIsSaved) {
  for (const Way& way : kWays) {
    compile(way.name, way.text);
    const std::string stopped = std::string("stopped-") + way.name,
                      before = std::string("before-") + way.name,
                      after = std::string("after-") + way.name;
    const auto [code, output] = run(
        way.name, "--steps 6 --checkpoint " + path(stopped) + " --save " + path("a"), way.fault);
    EXPECT_EQ(code, 11) << way.name << output;
    EXPECT_NE(output.find("what is saved is the state after step 3"), std::string::npos) << output;
    ASSERT_EQ(
        run(way.name, "--steps 3 --checkpoint " + path(before) + " --save " + path("b")).first, 0);
    ASSERT_EQ(run(way.name, "--steps 4 --checkpoint " + path(after)).first, 0);
    EXPECT_TRUE(tensors_of(stopped) == tensors_of(before)) << way.name;
    EXPECT_FALSE(tensors_of(stopped) == tensors_of(after)) << way.name;
    EXPECT_TRUE(read("a") == read("b")) << way.name;
    // What goes on from there, without the fault, is the job that had none.
    ASSERT_EQ(run(way.name, "--steps 6 --resume " + path(stopped) + " --save " + path("a")).first,
              0);
    ASSERT_EQ(run(way.name, "--steps 6 --save " + path("b")).first, 0);
    EXPECT_TRUE(read("a") == read("b")) << way.name;
  }
}

// The same as processes: all end with the same code.
TEST_F(NonFinite, ProcessesEndTogether) {
  compile("pp", kWays[2].text);
  const auto [code, output] =
      run_shell("exec 2>&1; " +
                as_processes(4, "PIPER_FAULT=nan@3:2:backward " + torch_variables(4, free_port()),
                             command("pp", "--steps 6 --checkpoint " + path("processes"))));
  EXPECT_EQ(code, 11) << output;
  ASSERT_EQ(run("pp", "--steps 1 --checkpoint " + path("one")).first, 0);
  EXPECT_TRUE(tensors_of("processes") == tensors_of("one")) << output;
}

// A skipped step changes nothing, and counts as no update; it is counted beside them.
TEST_F(NonFinite, ASkippedStepLeavesEverythingAsItWas) {
  for (const Way& way : kWays) {
    compile(way.name, way.text);
    const std::string folder = std::string("skipped-") + way.name;
    const auto [code, output] = run(way.name,
                                    "--steps 4 --on-nan skip --checkpoint " + path(folder) +
                                        " --metrics " + path(folder + ".jsonl"),
                                    way.fault);
    EXPECT_EQ(code, 0) << way.name << output;
    EXPECT_NE(read(folder + ".jsonl").find("\"skipped\":true,\"steps_skipped\":1"),
              std::string::npos);
    const std::string before = std::string("three-") + way.name;
    ASSERT_EQ(run(way.name, "--steps 3 --checkpoint " + path(before)).first, 0);
    EXPECT_TRUE(tensors_of(folder) == tensors_of(before)) << way.name;
  }
}

// The job goes back to the checkpoint after step 2, and trains on what comes after step 4.
TEST_F(NonFinite, AJobGoesBackAndLeavesOutTheData) {
  for (const Way& way : {kWays[1], kWays[2], kWays[4]}) {
    compile(way.name, way.text);
    const std::string folder = std::string("back-") + way.name;
    const std::string flags = "--every 2 --on-nan rollback --metrics " + path(folder + ".jsonl");
    const auto [code, output] =
        run(way.name, "--steps 6 --checkpoint " + path(folder) + " " + flags, way.fault);
    ASSERT_EQ(code, 11) << way.name << output;  // step 4 fails whenever it comes: three times
    EXPECT_NE(output.find("the job has gone back 3 times"), std::string::npos) << output;
    // 2 steps; 2 + 2 + 2 left out; step 3 of the last attempt, saved as the state before step 4.
    const auto reader = CheckpointReader::open(file_storage(), path(folder) + "/step-000000003");
    ASSERT_TRUE(reader) << print_error(reader.error());
    EXPECT_EQ(reader->about().samples, 12 * (2 + 2 + 2 + 2 + 1));
    const std::string lines = read(folder + ".jsonl");
    EXPECT_EQ(lines.find("{\"step\":3,"), lines.rfind("{\"step\":3,"));
  }
}

// On the way back ranks wait for each other as they do when a job begins; a job that is killed
// there goes on from the same checkpoint.
TEST_F(NonFinite, TheWayBackMayTakeLongerThanAStep) {
  compile("pp", kWays[2].text);
  const std::string flags =
      "--steps 6 --every 2 --on-nan rollback --most-rollbacks 1 --timeout 1 "
      "--checkpoint ";
  const auto [code, output] = run("pp", flags + path("late"), "nan@3:4:backward,slow@1:2:back");
  EXPECT_EQ(code, 11) << output;
  EXPECT_NE(output.find("the job has gone back 1 times"), std::string::npos) << output;
  const auto killed = run("pp", flags + path("killed"), "nan@3:4:backward,kill@1:2:back");
  EXPECT_NE(killed.first, 11) << killed.second;
  const auto resumed = run("pp", flags + path("killed") + " --resume " + path("killed"));
  EXPECT_EQ(resumed.first, 0) << resumed.second;
  ASSERT_EQ(run("pp", "--steps 6 --checkpoint " + path("whole")).first, 0);
  EXPECT_TRUE(tensors_of("killed") == tensors_of("whole"));
}

// What was evaluated before the checkpoint was written is not evaluated again, nor is what the job
// began with.
TEST_F(NonFinite, AJobThatGoesBackEvaluatesOnce) {
  compile("evaluates", kWays[0].text, kTrain, "--eval");
  std::ofstream(path("valid.bin"), std::ios::binary) << read("text.bin").substr(0, 2000);
  const auto evaluations = [&](const char* every) {
    const std::string folder = std::string("evaluates-") + every;
    const auto [code, output] =
        run("evaluates",
            fmt::format("--steps 6 --every {} --on-nan rollback --checkpoint {} --metrics {} "
                        "--eval-data {}:u8",
                        every, path(folder), path(folder + ".jsonl"), path("valid.bin")),
            "nan@1:4:backward");
    EXPECT_EQ(code, 11) << output;
    const std::string lines = read(folder + ".jsonl");
    int count = 0;
    for (size_t at = 0; (at = lines.find("{\"evaluation\"", at)) != std::string::npos; ++at)
      ++count;
    return count;
  };
  EXPECT_EQ(evaluations("2"), 1);
  EXPECT_EQ(evaluations("4"), 0);
}

// A checkpoint may hold what spoils every step after it. From the second one on that the job gets
// no further from, it takes the one before.
TEST_F(NonFinite, ASpoiltCheckpointIsGoneBackFromToTheOneBefore) {
  for (const Way& way : {kWays[1], kWays[4]}) {
    compile(way.name, way.text);
    const std::string folder = std::string("spoilt-") + way.name,
                      spoilt = path(folder) + "/step-000000004",
                      aside = path(folder) + "/damaged-step-000000004";
    ASSERT_EQ(
        run(way.name, "--steps 4 --every 2 --checkpoint " + path(folder), "nan@0:4:update").first,
        0);
    const std::string flags = "--steps 6 --every 2 --on-nan rollback --checkpoint " + path(folder) +
                              " --resume " + path(folder);
    std::filesystem::rename(path(folder) + "/step-000000002", path("elsewhere"));
    const auto stuck = run(way.name, flags);
    EXPECT_EQ(stuck.first, 11) << way.name << stuck.second;  // there is no other
    EXPECT_TRUE(std::filesystem::exists(spoilt)) << stuck.second;
    std::filesystem::rename(path("elsewhere"), path(folder) + "/step-000000002");
    const auto [code, output] = run(way.name, flags);
    EXPECT_EQ(code, 0) << way.name << output;
    EXPECT_NE(output.find("got no further than before"), std::string::npos) << output;
    EXPECT_TRUE(std::filesystem::exists(aside)) << output;
    // Step 5 failed twice: 1 step of data was left out, and then 5 - 2.
    const auto reader = CheckpointReader::open(file_storage(), path(folder) + "/step-000000006");
    ASSERT_TRUE(reader) << print_error(reader.error());
    EXPECT_EQ(reader->about().samples, 12 * (6 + 1 + 3));
  }
}

// Before its first checkpoint a job goes back to what it began with: the plans' values, or those of
// another folder or file. It trains on the data after the step that failed.
TEST_F(NonFinite, AJobWithoutACheckpointGoesBackToWhereItBegan) {
  const std::string text = read("text.bin");
  const size_t left_out = 3 * 12 * 32;  // three steps of 12 windows
  std::ofstream(path("later.bin"), std::ios::binary) << text.substr(left_out);
  const std::string train =
      "train: {global_batch: 12, optimizer: {adamw: {lr: 1e-3}}, clip_norm: "
      "1.0}\n";
  for (const Way& way : {kWays[1], kWays[2], kWays[4]}) {
    const std::string plans = std::string("began-") + way.name, back = path(plans + "-back"),
                      straight = path(plans + "-straight"), other = path(plans + "-other");
    compile(plans, way.text, train);
    const std::string once =
        "--no-shuffle --every 100 --on-nan rollback --most-rollbacks 1 --checkpoint ";
    const std::string later =
        fmt::format("{}/bin/piper-run {} --data {}:u8 --threads 1 --no-shuffle 2>&1 ",
                    PIPER_BINARY_DIR, path(plans), path("later.bin"));
    const std::string fault =
        std::string(way.fault).replace(std::string(way.fault).find(":4:"), 3, ":3:");
    const auto [code, output] = run(plans, "--steps 6 " + once + back, fault);
    EXPECT_EQ(code, 11) << way.name << output;  // step 3 fails again
    EXPECT_NE(output.find("the job goes on from where it began"), std::string::npos) << output;
    ASSERT_EQ(run_shell(later + "--steps 2 --checkpoint " + straight).first, 0);
    EXPECT_TRUE(tensors_of(plans + "-back") == tensors_of(plans + "-straight")) << output;
    const auto reader = CheckpointReader::open(file_storage(), back + "/step-000000002");
    ASSERT_TRUE(reader) << print_error(reader.error());
    EXPECT_EQ(reader->about().samples, 12 * (2 + 3));

    const auto resumed =
        run(plans, "--steps 6 --resume " + straight + " --accept data " + once + other, fault);
    EXPECT_EQ(resumed.first, 11) << resumed.second;
    EXPECT_NE(resumed.second.find("goes on from the checkpoint after step 2"), std::string::npos)
        << resumed.second;
    const std::string init = path(plans + ".safetensors"), began = path(plans + "-init");
    ASSERT_EQ(run(plans, "--no-shuffle --steps 1 --save " + init).first, 0);
    const auto begun = run(plans, "--steps 6 --init " + init + " " + once + began, fault);
    EXPECT_EQ(begun.first, 11) << begun.second;
    ASSERT_EQ(
        run_shell(later + "--steps 2 --init " + init + " --checkpoint " + straight + "-init").first,
        0);
    EXPECT_TRUE(tensors_of(plans + "-init") == tensors_of(plans + "-straight-init"))
        << begun.second;
    EXPECT_FALSE(tensors_of(plans + "-init") == tensors_of(plans + "-back")) << begun.second;
  }
}

// Under tensor parallelism all ranks have some gradients alike, and each forms the norm from its
// own copy: a copy that one rank has spoilt ends the job on all, or sends it back.
TEST_F(NonFinite, ACopyThatOneRankHasSpoiltIsSeen) {
  compile("tp", kWays[4].text);
  for (const int rank : {0, 1}) {
    const std::string fault = fmt::format("nan@{}:4:backward", rank),
                      folder = fmt::format("copy-{}", rank);
    const auto [code, output] =
        run("tp", "--steps 6 --every 2 --checkpoint " + path(folder), fault);
    EXPECT_EQ(code, 11) << output;
    const auto steps = list_checkpoints(file_storage(), path(folder));
    ASSERT_TRUE(steps) << output;
    EXPECT_LE(steps->front(), 3) << output;  // nothing of the fourth step is saved
  }
}

// Plans whose updates do not wait for the norm say so; skip_nonfinite lets them wait.
TEST_F(NonFinite, PlansWithoutANormSaySo) {
  const std::string train = "train: {global_batch: 12, optimizer: {sgd: {lr: 0.01}}";
  compile("free", kWays[0].text, train + "}\n");
  compile("waits", kWays[0].text, train + ", skip_nonfinite: true}\n");
  const auto refused = run("free", "--steps 6 --on-nan skip");
  EXPECT_EQ(refused.first, 2) << refused.second;
  EXPECT_NE(refused.second.find("skip_nonfinite"), std::string::npos) << refused.second;
  const auto spoilt = run("free", "--steps 6 --checkpoint " + path("free-at"), kWays[0].fault);
  EXPECT_EQ(spoilt.first, 11) << spoilt.second;
  EXPECT_NE(spoilt.second.find("the update was made, and is not saved"), std::string::npos)
      << spoilt.second;
  const auto steps = list_checkpoints(file_storage(), path("free-at"));
  EXPECT_TRUE(steps && steps->empty());
  const auto waits = run("waits", "--steps 4 --on-nan skip --save " + path("a"), kWays[0].fault);
  EXPECT_EQ(waits.first, 0) << waits.second;
  ASSERT_EQ(run("free", "--steps 3 --save " + path("b")).first, 0);
  EXPECT_TRUE(read("a") == read("b"));
}

}  // namespace
}  // namespace piper::nonfinite_test
