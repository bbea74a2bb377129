// Jobs that are started again: how often, with which metrics, and with data that have changed.
#include <gtest/gtest.h>

#include "sample_jobs.h"

namespace piper::restarts_test {
namespace {

class Restarts : public SampleJobs {
 protected:
  static void SetUpTestSuite() {
    SampleJobs::SetUpTestSuite();
    compile("ddp", "include: <ddp>\nparams: {dp: 2}\n");
  }
};

// Three starts after step 2 end in the same way; the fourth is refused, until somebody has looked.
TEST_F(Restarts, WithoutANewStepTheyEnd) {
  const std::string folder = path("restarts");
  const std::string flags = " --every 2 --max-restarts-without-step 2 --checkpoint " + folder +
                            " --resume-or-start " + folder + " --steps 6",
                    two = "--steps 2 --every 2 --checkpoint " + folder;
  ASSERT_EQ(run("ddp", two).first, 0);
  for (int start = 1; start < 4; ++start) {
    const auto [code, output] = run("ddp", flags, "error@1:4:step");
    EXPECT_EQ(code, 10) << start << output;
  }
  const auto refused = run("ddp", flags);
  EXPECT_EQ(refused.first, 11) << refused.second;
  EXPECT_NE(refused.second.find("was started 3 times after step 2 without a new checkpoint"),
            std::string::npos)
      << refused.second;
  EXPECT_NE(refused.second.find("and '--max-restarts-without-step 2' allows no more"),
            std::string::npos)
      << refused.second;
  std::filesystem::remove(folder + "/.starts");
  const auto good = run("ddp", flags);
  EXPECT_EQ(good.first, 0) << good.second;
  EXPECT_FALSE(std::filesystem::exists(folder + "/.starts"));
}

// So does a job whose checkpoints cannot be written, though what it has trained goes to its end.
TEST_F(Restarts, WithoutACheckpointTheyEnd) {
  const std::string folder = path("unwritten");
  const std::string flags = "--every 2 --max-restarts-without-step 1 --checkpoint " + folder +
                            " --resume-or-start " + folder + " --steps 6";
  for (const int code : {12, 12, 11}) {
    const auto ended = run("ddp", flags, "disk@0:*:write");
    EXPECT_EQ(ended.first, code) << ended.second;
  }
}

// A job whose starts cannot be counted, as on a full disk, trains only if it was told to go on.
TEST_F(Restarts, ThatCannotBeCountedEndTheJobUnlessItGoesOn) {
  std::filesystem::create_directories(path("uncounted/.starts"));
  const std::string flags =
      "--max-restarts-without-step 1 --steps 2 --checkpoint " + path("uncounted");
  const auto stopped = run("ddp", flags);
  EXPECT_EQ(stopped.first, 12) << stopped.second;
  EXPECT_FALSE(std::filesystem::exists(path("uncounted") + "/step-000000002"));
  const auto goes_on = run("ddp", flags + " --checkpoint-errors ignore");
  EXPECT_EQ(goes_on.first, 12) << goes_on.second;
  EXPECT_NE(goes_on.second.find(".starts"), std::string::npos) << goes_on.second;
  EXPECT_TRUE(std::filesystem::exists(path("uncounted") + "/step-000000002"));
}

// Replicas that differ are in no checkpoint, however seldom they are compared: a job that goes on
// from the newest one trains as one without the fault.
TEST_F(Restarts, WhatReplicasHoldOtherwiseIsInNoCheckpoint) {
  const auto flags = [](const std::string& name) {
    return "--steps 8 --every 2 --check-replicas 8 --checkpoint " + path(name);
  };
  ASSERT_EQ(run("ddp", flags("unspoilt")).first, 0);
  for (const char* rank : {"0", "1"}) {
    const std::string folder = std::string("spoilt-") + rank;
    const auto spoilt = run("ddp", flags(folder), fmt::format("flip@{}:5:update", rank));
    EXPECT_EQ(spoilt.first, 11) << spoilt.second;
    EXPECT_NE(spoilt.second.find("error: step 6: "), std::string::npos) << spoilt.second;
    EXPECT_FALSE(std::filesystem::exists(path(folder) + "/step-000000006"));
    const auto good = run("ddp", flags(folder) + " --resume " + path(folder));
    EXPECT_EQ(good.first, 0) << good.second;
    EXPECT_EQ(tensors_of(folder), tensors_of("unspoilt"));
  }
}

// A job that is started again before its first checkpoint leaves one series.
TEST_F(Restarts, MetricsBeforeTheFirstCheckpointAreOneSeries) {
  const std::string out = path("early"),
                    flags = "--steps 5 --out " + out + " --resume-or-start " + out;
  EXPECT_NE(run("ddp", flags, "error@1:4:step").first, 0);
  ASSERT_EQ(run("ddp", flags).first, 0);
  const std::string lines = read("early/metrics.jsonl");
  for (int step = 1; step <= 5; ++step) {
    const std::string line = fmt::format("{{\"step\":{},", step);
    EXPECT_NE(lines.find(line), std::string::npos) << lines;
    EXPECT_EQ(lines.find(line), lines.rfind(line)) << lines;
  }
}

TEST_F(Restarts, ChangedDataAreNamedByFile) {
  const auto train = [&](const std::string& data, const std::string& flags) {
    return run_shell(fmt::format("{}/bin/piper-run {} {} --threads 1 {} 2>&1", PIPER_BINARY_DIR,
                                 path("ddp"), data, flags));
  };
  std::string text = read("text.bin");
  const auto write = [&](const std::string& name) {
    std::ofstream(path(name), std::ios::binary) << text;
    return "--data " + path(name) + ":u8 ";
  };
  const std::string both = write("one.bin") + write("two.bin");
  ASSERT_EQ(train(both, "--steps 2 --checkpoint " + path("data")).first, 0);
  const std::string resume = "--steps 3 --resume " + path("data");
  std::filesystem::rename(path("one.bin"), path("moved.bin"));  // which is no change
  const std::string moved =
      "--data " + path("moved.bin") + ":u8 --data " + path("two.bin") + ":u8 ";
  EXPECT_EQ(train(moved, resume).first, 0);
  text[77] = 'h' + 'a' - text[77];
  write("two.bin");
  const auto [code, output] = train(moved, resume);
  EXPECT_EQ(code, 2) << output;
  EXPECT_NE(output.find(path("two.bin") + " has another content)"), std::string::npos) << output;
}

// Commands that write to a file when the job has done a step, as `metrics` tells.
std::string write_later(const std::string& metrics, const std::string& file) {
  return fmt::format(
      "(for i in $(seq 5000); do grep -qs loss {} && break; sleep 0.02; done; printf xxxx | "
      "dd of={} bs=1 seek=700 conv=notrunc) >/dev/null 2>&1 & ",
      metrics, file);
}

// Ranks on other hosts read copies of their own. Whoever notices a write ends the job on all ranks
// after the same step, with what was trained.
TEST_F(Restarts, DataOfAnyRankThatAreWrittenToEndTheJob) {
  const std::string copy = path("copy.bin"), folder = path("written");
  std::ofstream(copy, std::ios::binary) << read("text.bin");
  const auto train = [&](const std::string& data) {
    return fmt::format(
        "{}/bin/piper-run {} --threads 1 --steps 600 --checkpoint {} --metrics {} --data {}:u8",
        PIPER_BINARY_DIR, path("ddp"), folder, path("written.jsonl"), data);
  };
  const auto [code, output] =
      run_shell("exec 2>&1; " + write_later(path("written.jsonl"), copy) +
                as_processes(2, "PIPER_FAULT=lag@*:*:step " + torch_variables(2, free_port()),
                             "sh -c 'if [ $RANK = 0 ]; then " + train(path("text.bin")) +
                                 "; else " + train(copy) + "; fi; echo rank $RANK ended with $?'"));
  for (const char* said :
       {"rank 0 ended with 12", "rank 1 ended with 12",
        "copy.bin' was written to while it was in use", "another process has lost what it reads"})
    EXPECT_NE(output.find(said), std::string::npos) << said << "\n" << output;
  const auto steps = list_checkpoints(file_storage(), folder);
  ASSERT_TRUE(steps && !steps->empty()) << output;
  EXPECT_LT(steps->front(), 400) << output;  // 24 seconds
}

// Of many files some are looked at each second, in turn.
TEST_F(Restarts, EachOfManyFilesIsLookedAt) {
  const std::string shards = path("shards");
  std::filesystem::create_directory(shards);
  const std::string text = read("text.bin").substr(0, 1000);
  for (int i = 0; i < 250; ++i)
    std::ofstream(fmt::format("{}/{:03}.bin", shards, i), std::ios::binary) << text;
  const auto [code, output] = run_shell(
      "exec 2>&1; " + write_later(path("many.jsonl"), shards + "/249.bin") +
      fmt::format("PIPER_FAULT=lag@*:*:step {}/bin/piper-run {} --threads 1 --steps 600 --metrics "
                  "{} --data {}:u8",
                  PIPER_BINARY_DIR, path("ddp"), path("many.jsonl"), shards));
  EXPECT_EQ(code, 12) << output;
  EXPECT_NE(output.find("249.bin' was written to"), std::string::npos) << output;
  EXPECT_NE(output.find("interrupted after step"), std::string::npos) << output;
}

// A separator that separates nothing is a slip.
TEST_F(Restarts, SeparatorsThatDoNotOccurAreSaid) {
  const auto with = [&](const char* separator) {
    return run_shell(fmt::format("{}/bin/piper-run {} --data {}:u8:separator={} --steps 0 2>&1",
                                 PIPER_BINARY_DIR, path("ddp"), path("text.bin"), separator))
        .second;
  };
  EXPECT_NE(with("7").find("warning: the separator 7 is not among the first 200000 tokens of"),
            std::string::npos)
      << with("7");
  EXPECT_EQ(with("97").find("warning"), std::string::npos) << with("97");
}

}  // namespace
}  // namespace piper::restarts_test
