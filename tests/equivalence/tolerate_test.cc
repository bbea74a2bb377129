// Plans for fewer ranks beside those for all: a job that loses ranks is started again on those that
// are left, takes the plans for them, and trains as their single-device plan does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "piper/base/float16.h"
#include "piper/plan/worlds.h"
#include "sample_jobs.h"

namespace piper::tolerate_test {
namespace {

class Tolerate : public SampleJobs {
 protected:
  static std::pair<int, std::string> piperc(const std::string& name, const std::string& text,
                                            const std::string& flags) {
    std::ofstream(path(name + ".yaml")) << "piper: 1\n" << text << kTrain;
    return run_shell(
        fmt::format("{}/bin/piperc {}/tests/data/small_gpt/model.onnx {} -o {} {} 2>&1",
                    PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path(name + ".yaml"), path(name), flags));
  }
  static std::pair<int, std::string> start(int processes, const std::string& plans,
                                           const std::string& flags,
                                           const std::string& fault = "") {
    return run_shell(
        "exec 2>&1; export PIPER_FAULT=" + fault + "; " +
        as_processes(processes, torch_variables(processes, free_port()), command(plans, flags)));
  }
};

constexpr const char* kPipeline = "include: <1f1b>\nparams: {stages: 2, dp: 3, microbatches: 2}\n";

TEST_F(Tolerate, AJobGoesOnWithFewerAndFewerRanks) {
  const auto [code, output] = piperc("plans", kPipeline, "--tolerate 2");
  ASSERT_EQ(code, 0) << output;
  const auto worlds = read_plan_folder(path("plans"));
  ASSERT_TRUE(worlds) << output;
  std::vector<int64_t> ranks;
  for (const PlanFolder::Set& set : worlds->sets) ranks.push_back(set.ranks);
  EXPECT_EQ(ranks, (std::vector<int64_t>{6, 4, 2}));
  const std::string folder = path("job"),
                    flags = fmt::format("--every 1 --checkpoint {} --resume-or-start {} ", folder,
                                        folder);
  const auto six = start(6, "plans", flags + "--steps 9", "kill@5:4:step"),
             four = start(4, "plans", flags + "--steps 5 --verify-against single"),
             two = start(2, "plans",
                         flags + "--steps 7 --verify-against single --save " + path("saved"));
  EXPECT_NE(six.first, 0) << six.second;
  EXPECT_EQ(four.first, 0) << four.second;
  EXPECT_EQ(two.first, 0) << two.second;
  EXPECT_NE(four.second.find("goes on after step "), std::string::npos) << four.second;
  EXPECT_NE(two.second.find("goes on after step 5"), std::string::npos) << two.second;
  for (const auto& one : {four, two})
    EXPECT_NE(one.second.find("equal to the single-device plan bit for bit"), std::string::npos)
        << one.second;

  // A job on six ranks that nobody kills comes to nearly the same; one without its data does not.
  const auto whole = run("plans", "--steps 7 --save " + path("whole")),
             other = run("plans", "--steps 7 --seed 5 --save " + path("other"));
  ASSERT_EQ(whole.first, 0) << whole.second;
  ASSERT_EQ(other.first, 0) << other.second;
  const auto difference = [&](const std::string& file) {
    const auto ours = read_safetensors(path("saved")), theirs = read_safetensors(path(file));
    EXPECT_TRUE(ours && theirs);
    double most = 0;
    for (size_t t = 0; t < ours->size(); ++t)
      for (int64_t k = 0; k < num_elements((*ours)[t].type.shape); ++k)
        most = std::max(most, std::abs(float_at(DType::kF32, (*ours)[t].data.data + 4 * k) -
                                       float_at(DType::kF32, (*theirs)[t].data.data + 4 * k)));
    return most;
  };
  EXPECT_LT(difference("whole"), 2e-4);
  EXPECT_GT(difference("other"), 1e-3);
}

TEST_F(Tolerate, NoPlansForSoManyAreListed) {
  ASSERT_EQ(piperc("listed", kPipeline, "--tolerate 1").first, 0);
  const auto three = start(3, "listed", "--steps 2");
  EXPECT_EQ(three.first, 2) << three.second;
  EXPECT_NE(three.second.find(
                fmt::format("the plans are for 6 ({0}/world-6), 4 ({0}/world-4)", path("listed"))),
            std::string::npos)
      << three.second;
}

// Twelve samples in three microbatches on three replicas cannot be; on two they can.
TEST_F(Tolerate, WhatCannotBeMadeIsSaid) {
  const std::string text = "include: <1f1b>\nparams: {stages: 2, dp: 4, microbatches: 3}\n";
  const auto one = piperc("gap", text, "--tolerate 1 --no-oracles");
  EXPECT_EQ(one.first, 1) << one.second;
  EXPECT_NE(one.second.find("no plans for fewer replicas can be made"), std::string::npos)
      << one.second;
  const auto two = piperc("gap", text, "--tolerate 2 --force --no-oracles");
  EXPECT_EQ(two.first, 0) << two.second;
  EXPECT_NE(two.second.find("6 ranks (dp 3): not made"), std::string::npos) << two.second;
  const auto six = start(6, "gap", "--steps 2");
  EXPECT_EQ(six.first, 2) << six.second;
  EXPECT_NE(six.second.find("has none for 6"), std::string::npos) << six.second;
  const auto verified =
      run_shell(fmt::format("{}/bin/piper-verify {} 2>&1", PIPER_BINARY_DIR, path("gap")));
  EXPECT_EQ(verified.first, 0) << verified.second;
  EXPECT_NE(verified.second.find("world-4: ok"), std::string::npos) << verified.second;
  const auto simulated = run_shell(fmt::format(
      "{}/bin/piper-sim {} --costs F=1,B=2 --no-sensitivity 2>&1", PIPER_BINARY_DIR, path("gap")));
  EXPECT_EQ(simulated.first, 0) << simulated.second;
  EXPECT_NE(simulated.second.find("world-4\nplans       4 ranks"), std::string::npos)
      << simulated.second;
  EXPECT_EQ(simulated.second.find("ramp-up"), std::string::npos) << simulated.second;
  const auto alone = run_shell(fmt::format("{}/bin/piper-sim {} --costs F=1,B=2 --why 0@1 2>&1",
                                           PIPER_BINARY_DIR, path("gap")));
  EXPECT_EQ(alone.first, 2);
  EXPECT_NE(alone.second.find("it has 2 plan sets: name one of them, "), std::string::npos)
      << alone.second;
}

// Plans of any kind replace plans of any kind, whole, and nothing else.
TEST_F(Tolerate, FoldersOfAllKindsReplaceEachOther) {
  const std::string text = "include: <ddp>\nparams: {dp: 2}\n";
  const auto write_growing = [&](int batch) {
    std::ofstream(path("grows.yaml"))
        << "piper: 1\n"
        << text << "train: {optimizer: {sgd: {lr: 0.1}}, global_batch: 12, rampup: [{steps: 2, "
        << "global_batch: " << batch << "}]}\n";
  };
  const auto stages = [&](int batch, const std::string& flags) {
    write_growing(batch);
    return run_shell(fmt::format(
        "{}/bin/piperc {}/tests/data/small_gpt/model.onnx {} -o {} --no-oracles {} 2>&1",
        PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path("grows.yaml"), path("kinds"), flags));
  };
  const auto holds = [&] {
    std::set<std::string> names;
    for (const auto& one : std::filesystem::directory_iterator(path("kinds")))
      names.insert(one.path().filename().string());
    return names;
  };
  const std::string no_oracles = "--no-oracles ";
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(piperc("kinds", text, no_oracles + "--force").first, 0);
    EXPECT_TRUE(holds().contains("manifest.json"));
    const auto kept = stages(4, "");
    EXPECT_EQ(kept.first, 1) << kept.second;
    EXPECT_NE(kept.second.find("--force"), std::string::npos) << kept.second;
    const auto made = stages(4, "--force");
    EXPECT_EQ(made.first, 0) << made.second;
    EXPECT_EQ(holds(), (std::set<std::string>{"stages.json", "stage-0", "stage-1"}));
    // A stage that cannot be made leaves all as it was.
    const auto bad = stages(5, "--force");
    EXPECT_EQ(bad.first, 1) << bad.second;
    EXPECT_NE(bad.second.find("this is the stage of 'rampup' in line 4, with 5 samples"),
              std::string::npos)
        << bad.second;
    EXPECT_EQ(holds().size(), 3u);
    EXPECT_EQ(piperc("kinds", text, no_oracles + "--tolerate 1").first, 1);
    EXPECT_EQ(piperc("kinds", text, no_oracles + "--tolerate 1 --force").first, 0);
    EXPECT_EQ(holds(), (std::set<std::string>{"worlds.json", "world-2", "world-1"}));
  }
  std::ofstream(path("kinds/world-1/thesis.txt")) << "text";
  EXPECT_EQ(stages(4, "--force").first, 1);
  EXPECT_EQ(holds(), (std::set<std::string>{"worlds.json", "world-2", "world-1"}));
  std::filesystem::remove(path("kinds/world-1/thesis.txt"));
  ASSERT_EQ(stages(4, "--force").first, 0);
  // Each stage is proved, predicted and compared, and so are the ways between them.
  const auto tool = [&](const std::string& what) {
    return run_shell(fmt::format("cd {}; {}/bin/{} 2>&1", folder(), PIPER_BINARY_DIR, what));
  };
  const auto verified = tool("piper-verify kinds"),
             simulated = tool("piper-sim kinds --costs F=1,B=2,U=1 --no-sensitivity"),
             same = tool("piper-diff kinds kinds"), other = tool("piper-diff kinds kinds/stage-0");
  EXPECT_EQ(verified.first, 0) << verified.second;
  for (const char* line :
       {"kinds/stage-0: ok", "kinds/stage-1: ok", "kinds/stage-0 -> kinds/stage-1: ok: "})
    EXPECT_NE(verified.second.find(line), std::string::npos) << verified.second;
  EXPECT_EQ(simulated.first, 0) << simulated.second;
  EXPECT_NE(simulated.second.find("ramp-up     0.008 s      the first 2 steps"), std::string::npos)
      << simulated.second;
  EXPECT_EQ(same.first, 0) << same.second;
  EXPECT_NE(same.second.find("kinds/stage-1 → kinds/stage-1"), std::string::npos) << same.second;
  // It compares sets that run the same steps; without a ramp-up one set runs all of them.
  EXPECT_EQ(other.first, 1) << other.second;
  EXPECT_NE(other.second.find("kinds/stage-0 → kinds/stage-0: no difference"), std::string::npos)
      << other.second;
  EXPECT_NE(other.second.find("kinds/stage-1 → kinds/stage-0: "), std::string::npos)
      << other.second;
  const std::string strategies =
      fmt::format("--model {}/tests/data/small_gpt/model.onnx grows.yaml ", PIPER_SOURCE_DIR);
  const auto compiled = tool("piper-diff " + strategies + "grows.yaml");
  EXPECT_EQ(compiled.first, 0) << compiled.second;
  EXPECT_NE(compiled.second.find("grows.yaml/stage-0 → "), std::string::npos) << compiled.second;
  // What --verify-against compares is one plan set.
  const auto refused = run("kinds", "--steps 4 --verify-against single");
  EXPECT_EQ(refused.first, 2) << refused.second;
  EXPECT_NE(refused.second.find("compares the steps of one of them"), std::string::npos)
      << refused.second;
  write_growing(5);
  const auto dry =
      tool(fmt::format("piperc {}/tests/data/small_gpt/model.onnx grows.yaml "
                       "--dry-run",
                       PIPER_SOURCE_DIR));
  EXPECT_EQ(dry.first, 1) << dry.second;
  EXPECT_NE(dry.second.find("this is the stage of 'rampup'"), std::string::npos) << dry.second;
}

TEST_F(Tolerate, BadInput) {
  const auto none = piperc("none", "include: <1f1b>\nparams: {stages: 2, microbatches: 4}\n",
                           "--tolerate 1"),
             all = piperc("all", kPipeline, "--tolerate 3");
  EXPECT_EQ(none.first, 2) << none.second;
  EXPECT_NE(none.second.find("replica"), std::string::npos) << none.second;
  EXPECT_EQ(all.first, 2) << all.second;
  EXPECT_NE(all.second.find("--tolerate 2 at most"), std::string::npos) << all.second;
  std::filesystem::create_directory(path("mine"));
  std::ofstream(path("mine/thesis.txt")) << "text";
  const auto mine = piperc("mine", kPipeline, "--tolerate 1 --force");
  EXPECT_EQ(mine.first, 1) << mine.second;
  EXPECT_NE(mine.second.find("thesis.txt"), std::string::npos) << mine.second;
  EXPECT_EQ(read("mine/thesis.txt"), "text");
  std::filesystem::create_directory(path("broken"));
  for (const char* index :
       {"", "[]", "{\"format\":\"piper worlds\",\"format_version\":9}",
        "{\"format\":\"piper worlds\",\"format_version\":2,\"sets\":[{\"ranks\":2,\"folder\":"
        "\"../../etc\"}],\"missing\":[]}",
        "{\"format\":\"piper worlds\",\"format_version\":2,\"sets\":[],\"missing\":[]}"}) {
    std::ofstream(path("broken/worlds.json")) << index;
    const auto worlds = read_plan_folder(path("broken"));
    EXPECT_TRUE(!worlds && worlds.error().code == ExitCode::kPlan) << index;
  }
}

}  // namespace
}  // namespace piper::tolerate_test
