// Ranks that are processes, as torchrun starts them, over a faked NCCL that meets in a folder: what
// one rank trains, bit for bit; and what becomes of the others when one ends, stops or never comes.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "at_once.h"
#include "cuda/samples.h"
#include "folder.h"
#include "shell.h"

namespace piper {
namespace {

class NcclProcesses : public testing::Test {
 protected:
  void SetUp() override {
    write_samples(at("x.npy"), 16, 1);
    write_samples(at("y.npy"), 4, 2);
    std::filesystem::create_directory(at("letters"));
  }
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  void compile(const char* strategy, const char* flags) {
    folder_.write("strategy.yaml",
                  fmt::format("piper: 1\ninclude: {}/strategies/{}.yaml\ntrain:\n  global_batch: "
                              "12\n  optimizer: {{sgd: {{lr: 1e-2}}}}\n",
                              PIPER_SOURCE_DIR, strategy));
    const auto [code, output] = run_shell(fmt::format(
        "{0}/bin/piperc {1}/tests/data/mlp.onnx {2}/strategy.yaml {3} --target cuda -o {2}/plans "
        "--force 2>&1",
        PIPER_BINARY_DIR, PIPER_SOURCE_DIR, folder_.path(), flags));
    ASSERT_EQ(code, 0) << output;
  }
  // The environment is that of scripts for other programs, in which plans would not work.
  std::string variables(int world) const {
    return fmt::format(
        "PIPER_CUDA_PATH={}/nccl FAKE_NCCL_FOLDER={} FAKE_CUDA_PAGE=4096 XDG_CACHE_HOME={} {} "
        "CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_RUNTIME_CONNECT=1 NCCL_COMM_BLOCKING=1 "
        "NCCL_LAUNCH_ORDER_IMPLICIT=1 NCCL_GRAPH_MIXING_SUPPORT=0 NCCL_CGA_CLUSTER_SIZE=4 "
        "NCCL_MIN_CTAS=32 NCCL_MAX_CTAS=64 NCCL_MIN_NCHANNELS=16",
        PIPER_FAKE_CUDA, at("letters"), folder_.path(), torch_variables(world, free_port()));
  }
  std::string run(const std::string& flags) const {
    return fmt::format(
        "{0}/bin/piper-run {1}/plans --backend cuda --data x={1}/x.npy --data y={1}/y.npy {2}",
        PIPER_BINARY_DIR, folder_.path(), flags);
  }
  // Of processes of which something becomes: their exit codes, what they said, and how many seconds
  // after `act` all but rank 1 had ended.
  struct Ended {
    std::vector<int> codes;
    std::vector<std::string> said;
    double seconds = 0;
  };
  Ended disturb(int world, const std::string& more, const std::string& flags,
                const std::string& act) {
    std::filesystem::remove(at("m"));
    const std::string script = fmt::format(
        "cd {0}; for RANK in $(seq 0 {1}); do env {2} {3} {4} > out$RANK 2>&1 & echo $! > "
        "pid$RANK; "
        "done; {5}; S=$(date +%s%N); for RANK in 0 $(seq 2 {1}); do wait $(cat pid$RANK); echo $? "
        "> "
        "code$RANK; done; echo $(($(date +%s%N) - S)) > took; kill -CONT $(cat pid1) 2> /dev/null; "
        "wait $(cat pid1); echo $? > code1",
        folder_.path(), world - 1, variables(world), more,
        run("--steps 100000000 --log-every 1000000000 --metrics m " + flags), act);
    run_shell("bash -c '" + script + "' 2>&1");
    Ended ended;
    for (int rank = 0; rank < world; ++rank) {
      const auto read = [&](const char* name) {
        const auto text = read_text_file(at(fmt::format("{}{}", name, rank)), 1 << 20);
        return text ? *text : "";
      };
      ended.codes.push_back(std::atoi(read("code").c_str()));
      ended.said.push_back(read("out"));
    }
    const auto took = read_text_file(at("took"), 64);
    ended.seconds = took ? std::atof(took->c_str()) / 1e9 : 1e9;
    return ended;
  }
  // Nothing of what they told each other is left. A draft, which a rank was killed over, was told
  // to nobody.
  void expect_no_letters() const {
    for (const auto& entry : std::filesystem::directory_iterator(at("letters")))
      if (const std::string name = entry.path().filename(); !name.starts_with("draft-"))
        ADD_FAILURE() << name;
  }
  static constexpr const char* kTrains =
      "for i in $(seq 5000); do grep -qs \"\\\"step\\\":3,\" m && break; sleep 0.02; done; ";

  const Folder folder_;
};

// Replicas share windows of memory, where NCCL has any; stages, whose buffers lie elsewhere, each
// know their own.
TEST_F(NcclProcesses, TrainWhatOneTrains) {
  struct Case {
    const char *strategy, *flags, *variables, *registers;
  };
  for (const Case& one :
       {Case{"ddp", "-D dp=2", "", " memory, [1-9][0-9]* windows, 0 registrations"},
        {"ddp", "-D dp=2", " FAKE_NCCL_VERSION=22605",
         " memory, 0 windows, [1-9][0-9]* registrations"},
        {"1f1b", "-D stages=2 -D dp=1 -D microbatches=3", "",
         " memory, 0 windows, [1-9][0-9]* registrations"}}) {
    compile(one.strategy, one.flags);
    const auto [code, output] =
        run_shell("(" +
                  as_processes(2, variables(2) + one.variables + " FAKE_CUDA_COUNT=1",
                               run("--steps 3 --verify-against single")) +
                  ") 2>&1");
    EXPECT_EQ(code, 0) << output;
    EXPECT_THAT(output, testing::HasSubstr("equal to the single-device plan bit for bit"));
    const size_t named =
        output.find("of the environment, CUDA_DEVICE_MAX_CONNECTIONS=1, NCCL_RUNTIME_CONNECT=1, ");
    EXPECT_NE(named, output.npos) << output;
    EXPECT_EQ(output.find("of the environment", named + 1), output.npos) << "said by two ranks";
    EXPECT_THAT(output, testing::ContainsRegex(one.registers));
    EXPECT_EQ(output.find("shares no windows of memory") != std::string::npos, *one.variables != 0)
        << output;
    expect_no_letters();
  }
}

// Checkpoints are copied from devices whose steps are queued ahead, also in the middle of a run,
// and where steps overlap. The tenth step is timed, and queued behind the graph of the one before.
TEST_F(NcclProcesses, GoOnFromCheckpointsBitForBit) {
  for (const auto& [strategy, flags] :
       {std::pair("ddp", "-D dp=2"), std::pair("zero3", "-D dp=2"),
        std::pair("1f1b", "-D stages=2 -D dp=1 -D microbatches=3"),
        std::pair("pipedream-2bw", "-D stages=2 -D dp=1 -D microbatches=3")}) {
    compile(strategy, flags);
    std::filesystem::remove_all(at("checkpoints"));
    const auto start = [&](const std::string& more) {
      const auto [code, output] = run_shell(
          "(" + as_processes(2, variables(2) + " FAKE_CUDA_COUNT=1", run("--threads 1 " + more)) +
          ") 2>&1");
      EXPECT_EQ(code, 0) << strategy << output;
      return output;
    };
    start("--steps 11 --save " + at("whole"));
    start("--steps 5 --every 2 --checkpoint " + at("checkpoints"));
    const std::string resumed =
        start("--steps 11 --resume " + at("checkpoints") + " --save " + at("rest"));
    EXPECT_THAT(resumed, testing::HasSubstr("goes on after step 5"));
    const std::string early =
        start("--steps 11 --resume " + at("checkpoints/step-000000002") + " --save " + at("early"));
    const auto read = [&](const char* name) { return *read_text_file(at(name), 1 << 28); };
    EXPECT_EQ(read("whole"), read("rest")) << strategy;
    EXPECT_EQ(read("whole"), read("early")) << strategy;
    expect_no_letters();
  }
}

// A job that goes back begins with a section of its own, so that from then on other memory of the
// host holds the inputs of steps with the same number.
TEST_F(NcclProcesses, GoBackToTheSameBitsWithGraphsAndWithout) {
  compile("zero3", "-D dp=2");
  const std::string samples = *read_text_file(at("x.npy"), 1 << 28);
  constexpr size_t kHeader = 128, kBatchBytes = 12 * 16 * sizeof(float);
  for (const size_t step : {3, 4}) {
    std::string spoilt = samples;
    const float nan = std::nanf("");
    std::memcpy(spoilt.data() + kHeader + step * kBatchBytes, &nan, sizeof nan);
    folder_.write("x.npy", spoilt);
    const auto saved = [&](const std::string& more) {
      std::filesystem::remove_all(at("checkpoints"));
      const auto [code, output] = run_shell(
          "(" +
          as_processes(2, variables(2) + " FAKE_CUDA_COUNT=1",
                       run("--threads 1 --steps 6 --every 2 --on-nan rollback --no-shuffle "
                           "--save " +
                           at("kept") + " --checkpoint " + at("checkpoints") + " " + more)) +
          ") 2>&1");
      EXPECT_EQ(code, 0) << output;
      EXPECT_THAT(output, testing::HasSubstr("the job goes on from the checkpoint after step"));
      const auto text = read_text_file(at("kept"), 1 << 28);
      return text ? *text : "";
    };
    const std::string by_graphs = saved("");
    EXPECT_FALSE(by_graphs.empty());
    EXPECT_TRUE(by_graphs == saved("--graphs off")) << step;
  }
}

// States move by way of hosts when a job goes on under other plans, and new communicators are made.
TEST_F(NcclProcesses, SwitchToOtherPlansBitForBit) {
  compile("1f1b", "-D stages=2 -D dp=1 -D microbatches=3");
  std::filesystem::rename(at("plans"), at("others"));
  compile("zero3", "-D dp=2");
  const auto start = [&](const std::string& more) {
    const auto [code, output] = run_shell(
        "(" + as_processes(2, variables(2) + " FAKE_CUDA_COUNT=1", run("--threads 1 " + more)) +
        ") 2>&1");
    EXPECT_EQ(code, 0) << output;
    return output;
  };
  start("--steps 3 --checkpoint " + at("checkpoints"));
  const std::string ours =
      start("--steps 6 --switch " + at("others") + "@3 --save " + at("switched"));
  EXPECT_THAT(ours, testing::HasSubstr("bytes moved between ranks"));
  start("--steps 6 --save " + at("unswitched"));
  std::filesystem::remove_all(at("plans"));
  std::filesystem::rename(at("others"), at("plans"));
  start("--steps 6 --resume " + at("checkpoints") + " --save " + at("resumed"));
  const auto read = [&](const char* name) { return *read_text_file(at(name), 1 << 28); };
  EXPECT_EQ(read("switched"), read("resumed"));
  EXPECT_NE(read("switched"), read("unswitched"));
  expect_no_letters();
}

// Both ranks end, and who calls says what.
TEST_F(NcclProcesses, NameTheCallThatFails) {
  compile("ddp", "-D dp=2");
  for (const char* const call :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
        "ncclCommWindowRegister", "ncclGroupEnd", "ncclSend", "ncclRecv"}) {
    const auto [code, output] =
        run_shell("(" +
                  as_processes(2,
                               fmt::format("FAKE_CUDA_FAIL_FIRST=$([ $RANK = 0 ] && echo {}) {}",
                                           call, variables(2)),
                               run("--steps 2")) +
                  ") 2>&1");
    EXPECT_EQ(code, 10) << call << output;
    EXPECT_THAT(output, testing::HasSubstr(call));
    EXPECT_THAT(output, testing::Not(testing::HasSubstr("never released")));
    expect_no_letters();
  }
}

// Whoever is left ends with the code that says that restarting is sensible, and names who is gone.
TEST_F(NcclProcesses, NameWhoEndsStopsOrNeverComes) {
  compile("ddp", "-D dp=3");
  const std::string quick = "--timeout 2 --start-timeout 60";
  const Ended killed = disturb(3, "", quick, kTrains + std::string("kill -9 $(cat pid1)"));
  EXPECT_EQ(killed.codes, (std::vector<int>{10, 137, 10})) << killed.said[0] << killed.said[2];
  EXPECT_LT(killed.seconds, kAtOnce);
  for (const int rank : {0, 2})
    EXPECT_THAT(killed.said[static_cast<size_t>(rank)], testing::HasSubstr("rank 1"));
  EXPECT_THAT(killed.said[0], testing::HasSubstr("rank 0 lost rank 1 (127.0.0.1:"));
  expect_no_letters();

  const Ended stopped = disturb(3, "", quick, kTrains + std::string("kill -STOP $(cat pid1)"));
  EXPECT_EQ(stopped.codes, (std::vector<int>{10, 10, 10})) << stopped.said[0] << stopped.said[1];
  EXPECT_GT(stopped.seconds, 1.9);
  EXPECT_LT(stopped.seconds, kAtOnce);
  EXPECT_THAT(stopped.said[0] + stopped.said[2],  // wherever in a step rank 1 was stopped
              testing::ContainsRegex("rank [02] waited [0-9.]+ s (for its device in step [0-9]+; "
                                     "rank 1 does not go on|in the exchange after the step for "
                                     "rank (1|0, which waits for rank 1))"));
  expect_no_letters();

  // The others are told before it ends what it has queued, which may take for ever.
  const Ended failed = disturb(3,
                               "FAKE_CUDA_FAIL_FIRST=$([ $RANK = 1 ] && echo cuGraphLaunch) "
                               "FAKE_CUDA_STOP=$([ $RANK = 1 ] && echo ncclCommAbort)",
                               "--timeout 300 --start-timeout 300", "true");
  EXPECT_LT(failed.seconds, kAtOnce);
  for (const size_t rank : {0u, 2u})
    EXPECT_THAT(failed.said[rank],
                testing::ContainsRegex("because rank 1 failed: .*cuGraphLaunch"));
  expect_no_letters();

  // Before it has joined its first communicator.
  const Ended late = disturb(3, "FAKE_CUDA_STOP=$([ $RANK = 1 ] && echo ncclCommInitRankConfig)",
                             "--start-timeout 3", "true");
  EXPECT_EQ(late.codes[0], 10) << late.said[0];
  EXPECT_EQ(late.codes[2], 10) << late.said[2];
  EXPECT_LT(late.seconds, kAtOnce);
  EXPECT_THAT(
      late.said[0] + late.said[2],
      testing::ContainsRegex("rank [02] waited 3 s for the other ranks of communicator 0 of "
                             "ranks .0,1,2.; rank 1 does not go on"));
  expect_no_letters();
}

}  // namespace
}  // namespace piper
