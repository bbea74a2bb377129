// What a job leaves when it fails, and what it says of itself while it runs: what each rank did
// last, who is slow, how much of the devices it uses.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "sample_jobs.h"

namespace piper::flight_test {
namespace {

class Flight : public SampleJobs {
 protected:
  static void SetUpTestSuite() {
    SampleJobs::SetUpTestSuite();
    offer("ddp", [] { compile("ddp", "include: <ddp>\nparams: {dp: 2}\n"); });
    offer("pp",
          [] { compile("pp", "include: <1f1b>\nparams: {stages: 2, dp: 1, microbatches: 3}\n"); });
  }
  static std::string processes(const std::string& plans, const std::string& fault,
                               const std::string& flags) {
    return run_shell("exec 2>&1; " +
                     as_processes(2, "PIPER_FAULT=" + fault + " " + torch_variables(2, free_port()),
                                  command(plans, flags)))
        .second;
  }
};

// The rank that fails, and the one that waits for it, say what they did and for whom they wait.
TEST_F(Flight, EachRankLeavesWhatItDidLast) {
  const std::string out = path("error");
  const std::string output = processes("pp", "error@1:3:backward", "--steps 5 --out " + out);
  EXPECT_NE(output.find("what rank 1 did last is in " + out + "/flight/rank00001.txt"),
            std::string::npos)
      << output;
  const std::string failed = read("error/flight/rank00001.txt"),
                    waits = read("error/flight/rank00000.txt");
  EXPECT_NE(failed.find("rank 1: it fails as asked (PIPER_FAULT)"), std::string::npos) << failed;
  EXPECT_TRUE(std::regex_search(failed, std::regex(" 3  instruction \\d+ \\(compute B"))) << failed;
  EXPECT_LE(std::count(failed.begin(), failed.end(), '\n'), 64 + 8) << failed;
  EXPECT_TRUE(std::regex_search(waits, std::regex(" 3  instruction \\d+ \\(recv"))) << waits;
}

// One that stands still is written while it does, with its stack: its process ends later.
TEST_F(Flight, ARankThatStandsStillLeavesItsStack) {
  const std::string out = path("hang");
  const std::string flags = "--steps 5 --timeout 2 --start-timeout 20 --out " + out;
  const auto [code, output] =
      run_shell("exec 2>&1; " +
                as_processes(2, "PIPER_FAULT=hang@1:3:forward " + torch_variables(2, free_port()),
                             "timeout -s KILL 30 " + command("ddp", flags)));
  EXPECT_NE(code, 0) << output;
  const std::string hangs = read("hang/flight/rank00001.txt");
  EXPECT_NE(hangs.find("it makes no progress, and waits for no other rank"), std::string::npos)
      << hangs;
  EXPECT_NE(hangs.find("stack of its own thread"), std::string::npos) << hangs;
  EXPECT_TRUE(std::regex_search(hangs, std::regex("(nanosleep|piper-run)\\S*\\[?0?x?"))) << hangs;
  EXPECT_TRUE(std::regex_search(hangs, std::regex(" 3  instruction \\d+ \\(compute F"))) << hangs;
}

TEST_F(Flight, ACrashLeavesItsStack) {
  const std::string out = path("crash");
  const std::string output = processes("ddp", "segv@1:2:update", "--steps 5 --out " + out);
  const std::string crashed = read("crash/flight/rank00001.txt");
  EXPECT_NE(crashed.find("it crashed: SIGSEGV"), std::string::npos) << crashed << output;
  EXPECT_NE(crashed.find("stack of the crashed thread"), std::string::npos) << crashed;
}

// A job that ends well leaves nothing, and what the one before left is kept once.
TEST_F(Flight, AGoodJobLeavesNothing) {
  const std::string out = path("good");
  EXPECT_NE(run("ddp", "--steps 2 --out " + out, "throw@0:1:forward").first, 0);
  EXPECT_TRUE(std::filesystem::exists(out + "/flight/rank00000.txt"));
  EXPECT_EQ(run("ddp", "--steps 2 --out " + out).first, 0);
  EXPECT_FALSE(std::filesystem::exists(out + "/flight/rank00000.txt"));
  EXPECT_TRUE(std::filesystem::exists(out + "/flight/rank00000.before.txt"));
}

// Rank 1 lags in each forward; nobody lags in what both do alike.
TEST_F(Flight, ASlowRankIsNamed) {
  const auto [code, output] = run("ddp", "--steps 20 --out " + path("slow"), "lag@1:*:forward");
  ASSERT_EQ(code, 0) << output;
  EXPECT_TRUE(std::regex_search(output, std::regex("rank 1 takes \\d+\\.\\d x the others in F: ")))
      << output;
  EXPECT_EQ(output.find("rank 0 takes"), std::string::npos) << output;
  const std::string lines = read("slow/metrics.jsonl"), values = read("slow/metrics.prom");
  EXPECT_NE(lines.find("\"slow\":[{\"rank\":1,\"in\":\"F\""), std::string::npos) << lines;
  EXPECT_NE(lines.find("\"spent_ms\":{\"F\":"), std::string::npos) << lines;
  EXPECT_NE(values.find("\npiper_spent_seconds{on=\"data\"} "), std::string::npos) << values;
}

// The same FLOPs and peak mean the same MFU where the time is the same: halved by twice the peak.
TEST_F(Flight, MfuIsOfTheStatedPeak) {
  const auto mfu_times_ms = [&](const std::string& peak) {
    const std::string file = path("mfu.jsonl");
    std::filesystem::remove(file);
    EXPECT_EQ(run("ddp", "--steps 1 --peak " + peak + " --metrics " + file).first, 0);
    const std::string lines = read("mfu.jsonl");
    std::smatch mfu, ms;
    EXPECT_TRUE(std::regex_search(lines, mfu, std::regex("\"mfu\":([0-9.e+-]+)"))) << lines;
    EXPECT_TRUE(std::regex_search(lines, ms, std::regex("\"step_ms\":([0-9.e+-]+)"))) << lines;
    return mfu.empty() || ms.empty() ? 0 : std::stod(mfu[1]) * std::stod(ms[1]);
  };
  const double one = mfu_times_ms("1e12"), two = mfu_times_ms("2e12");
  EXPECT_NEAR(one / two, 2, 1e-6);
  // Per token: 6 FLOPs for each parameter that is multiplied with, and attention.
  EXPECT_GT(one, 0);
}

}  // namespace
}  // namespace piper::flight_test
