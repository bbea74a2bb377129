// piper-run as a command, with threads and under mpirun, on role programs made by hand.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "at_once.h"
#include "forwarding.h"
#include "sanitizer.h"
#include "shell.h"
#include "unit/runtime_plans.h"

namespace piper {
namespace {

using namespace plans;  // NOLINT: the fixtures of this test

const std::string kModels = PIPER_SOURCE_DIR "/tests/data/parameters/";

// A written plan set and its data, gone with the test.
class Command : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("piper-runtime-{}", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    PlanSet set = replicas(2);
    PlanSet single = replicas_oracle(2);
    Status written = write_plan_set(set, &single, nullptr, path("plans"), {});
    ASSERT_TRUE(written.ok()) << written.error().message;
    std::vector<NamedTensor> batches;
    for (int k = 0; k < 4; ++k) {
      std::vector<float> x(10);
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(k) + 0.1f * static_cast<float>(i);
      batches.push_back(
          {fmt::format("batch/{}/t", k), {DType::kF32, {2}}, Bytes::copy_of(x.data(), 8)});
      batches.push_back(
          {fmt::format("batch/{}/x", k), {DType::kF32, {2, 5}}, Bytes::copy_of(x.data(), 40)});
    }
    Status data = write_safetensors(path("data.safetensors"), batches);
    ASSERT_TRUE(data.ok()) << data.error().message;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string bytes_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Runs this program again as piper-run, under `launcher` ("" for none); arguments behind the
  // plan.
  std::pair<int, std::string> spawn(const std::string& launcher, const std::string& arguments) {
    std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    std::string command = fmt::format("{}{} '{}' --run-plan {} 2>&1", launcher.empty() ? "" : kMpi,
                                      launcher, self, arguments);
    return run_shell(command);
  }
  static std::pair<int, std::string> run_piperc(const std::string& model, const std::string& to) {
    std::ofstream(to + ".yaml") << "piper: 1\ntrain: {global_batch: 4}\n";
    return run_shell(fmt::format("{0}/bin/piperc {1} {2}.yaml -o {2} --force --no-oracles 2>&1",
                                 PIPER_BINARY_DIR, model, to));
  }

  std::filesystem::path folder_;
};

TEST_F(Command, ThreadsAndProcessesSaveTheSameBytes) {
  SKIP_UNDER_THREAD_SANITIZER();
  auto [code, output] =
      spawn("", fmt::format("{} {} {}", path("plans"), path("data.safetensors"), path("a")));
  ASSERT_EQ(code, 0) << output;
  EXPECT_NE(output.find(
                "equal to the single-device plan bit for bit: loss and 1 parameter after each of 4 "
                "steps\n"),
            std::string::npos)
      << output;
  auto [mpi_code, mpi_output] = spawn(
      "mpirun -n 2", fmt::format("{} {} {}", path("plans"), path("data.safetensors"), path("b")));
  ASSERT_EQ(mpi_code, 0) << mpi_output;
  EXPECT_EQ(bytes_of(path("a")), bytes_of(path("b")));
  EXPECT_FALSE(bytes_of(path("a")).empty());
  // One plan file a process, in the wrong order: the plan's rank counts.
  std::string one = fmt::format("{} {} ", path("data.safetensors"), path("c"));
  std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  auto [each_code, each_output] = spawn(
      "mpirun -n 1", fmt::format("{} {} : -n 1 '{}' --run-plan {} {}", path("plans/rank1.plan"),
                                 one, self, path("plans/rank0.plan"), one));
  ASSERT_EQ(each_code, 0) << each_output;
  EXPECT_EQ(bytes_of(path("a")), bytes_of(path("c")));
}

// Processes that a launcher without MPI has started: as torchrun and as srun do, and by hand.
class OverTcp : public Command {
 protected:
  std::string piper_run(const std::string& more) const {
    return fmt::format("{}/bin/piper-run --data {} --threads 1 {}", PIPER_BINARY_DIR,
                       path("data.safetensors"), more);
  }
  std::string plans(const std::string& more) const {
    return piper_run(fmt::format("{} {}", path("plans"), more));
  }
  // Two ranks that run until something happens, which `act` does when both have trained a while.
  std::pair<int, std::string> disturb(const std::string& act) {
    const std::string job = as_processes(
        2, torch_variables(2, free_port()),
        plans(fmt::format("--steps 100000000 --log-every 1000000000 --timeout 2 --metrics {} "
                          "--save {}",
                          path("m"), path("a"))),
        folder_.string());
    return run_shell(
        fmt::format("cd {}; ({}) 2>&1 & J=$!; for i in $(seq 5000); do grep -qs "
                    "'\"step\":20,' m && break; sleep 0.02; done; {}; wait $J",
                    folder_.string(), job, act));
  }
};

// Another program may have filled the memory that the processes of a host share: then they send
// each other what they would have read there.
TEST_F(OverTcp, RanksOfOneHostDoWithoutSharedMemory) {
  if (run_shell("unshare -rm mount -t tmpfs -o size=8k tmpfs /dev/shm 2>&1").first != 0)
    GTEST_SKIP() << "only a user who may mount a file system can fill one";
  const auto [code, output] = run_shell(plans("--steps 4 --save " + path("a")) + " 2>&1");
  ASSERT_EQ(code, 0) << output;
  std::ofstream(path("full.sh")) << "mount -t tmpfs -o size=8k tmpfs /dev/shm\n"
                                    "head -c 8192 /dev/zero > /dev/shm/full\n"
                                 << as_processes(2, torch_variables(2, free_port()),
                                                 plans("--steps 4 --save " + path("b")));
  const auto [also, said] = run_shell(fmt::format("unshare -rm bash {} 2>&1", path("full.sh")));
  EXPECT_EQ(also, 0) << said;
  EXPECT_EQ(bytes_of(path("a")), bytes_of(path("b")));
}

TEST_F(OverTcp, AllStartsSaveTheSameBytes) {
  const auto [code, output] = run_shell(plans("--steps 4 --save " + path("a")) + " 2>&1");
  ASSERT_EQ(code, 0) << output;
  const std::string slurm = fmt::format(
      "SLURM_PROCID=$RANK SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_NODELIST=localhost "
      "SLURM_JOB_ID={} SLURM_STEP_ID=0",
      getpid());
  const std::string by_hand = piper_run(
      fmt::format("{}/rank$RANK.plan --rendezvous localhost:{}", path("plans"), free_port()));
  const std::tuple<std::string, std::string, std::string> starts[] = {
      {"torchrun", torch_variables(2, free_port()), plans("")},
      {"srun", slurm, plans("")},
      {"by hand", "", by_hand}};
  for (const auto& [name, variables, command] : starts) {
    const auto [also, said] =
        run_shell("(" +
                  as_processes(2, variables,
                               command + " --steps 4 --verify-against single --save " + path("b")) +
                  ") 2>&1");
    EXPECT_EQ(also, 0) << name << said;
    EXPECT_EQ(bytes_of(path("a")), bytes_of(path("b"))) << name;
    std::filesystem::remove(path("b"));
  }
  EXPECT_FALSE(bytes_of(path("a")).empty());
}

TEST_F(OverTcp, ARankThatIsKilledIsNamedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto [code, output] = disturb("kill -9 $(cat pid1)");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kAtOnce);
  EXPECT_NE(output.find("rank 0 lost rank 1 (127.0.0.1:"), std::string::npos) << output;
  EXPECT_NE(output.find("its process ended"), std::string::npos) << output;
  EXPECT_EQ(code, 137) << output;  // the last one's that did not end well
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

TEST_F(OverTcp, ARankThatStopsIsNamedWithItsAddress) {
  const auto [code, output] = disturb(
      "kill -STOP $(cat pid1); for i in $(seq 3000); do kill -0 $(cat pid0) 2> /dev/null || break; "
      "sleep 0.02; done; kill -9 $(cat pid1)");
  EXPECT_NE(output.find("rank 0 waited "), std::string::npos) << output;
  EXPECT_NE(output.find("rank 1 listens at 127.0.0.1:"), std::string::npos) << output;
  EXPECT_NE(code, 0);
}

TEST_F(OverTcp, ARunThatIsToldToEndSaves) {
  const auto [code, output] = disturb("kill -TERM $(cat pid0)");
  EXPECT_EQ(code, 130) << output;
  EXPECT_TRUE(std::filesystem::exists(path("a"))) << output;
}

TEST_F(OverTcp, ARankThatFailsTellsAllWhy) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto [code, output] =
      run_shell("(" +
                as_processes(2, torch_variables(2, free_port()),
                             fmt::format("{} --run-plan {} {} {} fail", self, path("plans"),
                                         path("data.safetensors"), path("a"))) +
                ") 2>&1");
  EXPECT_NE(output.find("error: the disk of rank 1 is full"), std::string::npos) << output;
  EXPECT_NE(output.find("rank 0 stopped because rank 1 failed: the disk of rank 1 is full"),
            std::string::npos)
      << output;
  EXPECT_EQ(code, static_cast<int>(ExitCode::kStorage)) << output;
}

// Before all have come, and while plans are compared.
TEST_F(OverTcp, ARankThatEndsDuringTheStartIsNamed) {
  const int port = free_port();
  const std::string at = torch_variables(3, port);
  PlanSet set = replicas(3);
  Status written = write_plan_set(set, nullptr, nullptr, path("three"), {});
  ASSERT_TRUE(written.ok()) << written.error().message;
  std::vector<float> x(15);
  std::vector<NamedTensor> batch{
      {"batch/0/t", {DType::kF32, {3}}, Bytes::copy_of(x.data(), 12)},
      {"batch/0/x", {DType::kF32, {3, 5}}, Bytes::copy_of(x.data(), 60)}};
  written = write_safetensors(path("three.safetensors"), batch);
  ASSERT_TRUE(written.ok()) << written.error().message;
  const std::string three =
      fmt::format("{0}/bin/piper-run {1} --data {1}.safetensors --threads 1 --start-timeout 60",
                  PIPER_BINARY_DIR, path("three"));
  // Rank 1 is killed when it has come to rank 0: a connection is established, 01, to the port.
  const auto [code, output] = run_shell(fmt::format(
      "cd {}; (RANK=0; env {} {} & Z=$!; RANK=1; env {} {} & O=$!; for i in $(seq 1000); do cat "
      "/proc/net/tcp /proc/net/tcp6 | grep -q ':{:04X} 01 ' && break; sleep 0.02; done; sleep 1; "
      "kill -9 $O; wait $Z) 2>&1",
      folder_.string(), at, three, at, three, port));
  EXPECT_EQ(code, 10) << output;
  EXPECT_NE(output.find("error: rank 1 (127.0.0.1:"), std::string::npos) << output;
  EXPECT_NE(output.find("was lost before all had come to 127.0.0.1:"), std::string::npos) << output;
  EXPECT_NE(output.find(": its process ended\n"), std::string::npos) << output;
}

// Before it could train: nobody waits for it.
TEST_F(OverTcp, ARankThatCannotTakePartTellsAllWhy) {
  std::filesystem::create_directories(path("here1"));
  std::filesystem::copy(path("data.safetensors"), path("here1/data.safetensors"));
  std::filesystem::copy(path("plans"), path("here1/plans"),
                        std::filesystem::copy_options::recursive);
  const std::pair<std::string, std::string> cases[] = {
      {fmt::format("{} --data {}/here$RANK/data.safetensors", path("plans"), folder_.string()),
       "no file is named '" + path("here0/data.safetensors")},
      {fmt::format("{}/here$RANK/plans --data {}", folder_.string(), path("data.safetensors")),
       path("here0/plans")},
      {fmt::format("{} --data {} --save {}/here$RANK/a", path("plans"), path("data.safetensors"),
                   folder_.string()),
       "cannot write " + path("here0/a")}};
  for (const auto& [arguments, why] : cases) {
    const auto start = std::chrono::steady_clock::now();
    const auto [code, output] = run_shell(
        "(" +
        as_processes(2, torch_variables(2, free_port()),
                     fmt::format("{}/bin/piper-run {} --threads 1", PIPER_BINARY_DIR, arguments)) +
        ") 2>&1");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), kAtOnce) << output;
    EXPECT_NE(code, 0) << output;
    EXPECT_NE(output.find("error: rank 0 cannot take part: "), std::string::npos) << output;
    const size_t first = output.find(why);
    ASSERT_NE(first, std::string::npos) << output;
    EXPECT_NE(output.find(why, first + 1), std::string::npos) << output;  // by both
  }
}

TEST_F(OverTcp, VariablesThatAreNoRanksAreRefused) {
  for (const char* variables :
       {"RANK=x WORLD_SIZE=2", "RANK=-1 WORLD_SIZE=2", "WORLD_SIZE=0 RANK=0"}) {
    const auto [code, output] =
        run_shell(fmt::format("env {} {} 2>&1", variables, plans("--save " + path("a"))));
    EXPECT_EQ(code, 2) << output;
    EXPECT_EQ(output.find("error: the environment says "), 0u) << output;
    EXPECT_FALSE(std::filesystem::exists(path("a")));
  }
}

TEST_F(OverTcp, OtherFlagsAndWorldsAreRefusedByAll) {
  const std::string seeds = plans("--steps 2 --seed $RANK");
  const auto [code, output] =
      run_shell("(" + as_processes(2, torch_variables(2, free_port()), seeds) + ") 2>&1");
  EXPECT_EQ(code, 1) << output;
  EXPECT_NE(output.find("rank 1 runs with --seed 1, rank 0 with --seed 0"), std::string::npos)
      << output;
  const std::pair<const char*, const char*> others[] = {
      {"--timeout 1$RANK", "--timeout 11, rank 0 with --timeout 10"},
      {"--start-timeout 2$RANK", "--start-timeout 21, rank 0 with --start-timeout 20"},
      {"$(test $RANK = 0 || echo --no-fuse)", "--no-fuse given, rank 0 with --no-fuse not given"},
      {"--verify-against single --loss-bound 0.$RANK",
       "--loss-bound 0.1, rank 0 with --loss-bound 0"},
      {"--verify-against single --param-bound 0.$RANK",
       "--param-bound 0.1, rank 0 with --param-bound 0"},
      {"$(test $RANK = 0 || echo --resume-or-start none)",
       "a start from --resume-or-start, rank 0 with a start from initial values"}};
  for (const auto& [flags, differs] : others) {
    const auto [refused, why] = run_shell("(" +
                                          as_processes(2, torch_variables(2, free_port()),
                                                       plans(fmt::format("--steps 2 {}", flags))) +
                                          ") 2>&1");
    EXPECT_EQ(refused, 1) << why;
    EXPECT_NE(why.find(fmt::format("rank 1 runs with {}", differs)), std::string::npos) << why;
  }
  const auto [other, said] = run_shell(
      "(" + as_processes(1, torch_variables(3, free_port()), plans("--steps 2")) + ") 2>&1");
  EXPECT_EQ(other, 2) << said;
  EXPECT_NE(said.find("is for 2 ranks, but 3 processes were started"), std::string::npos) << said;
}

// Bounds that nothing misses: only that replicas stay equal is left to see.
TEST_F(Command, ReplicasThatDriftApartAreFound) {
  PlanSet set = replicas(2);
  set.roles[0].body.erase(set.roles[0].body.begin() + 3);  // the all-reduce
  PlanSet uncut = replicas_oracle(2);
  Status written = write_plan_set(set, nullptr, &uncut, path("drifting"), {});
  ASSERT_TRUE(written.ok()) << written.error().message;
  std::string arguments =
      fmt::format("{} {} {} apart", path("drifting"), path("data.safetensors"), path("a"));
  auto [code, output] = spawn("", arguments);
  EXPECT_EQ(code, static_cast<int>(ExitCode::kNumeric)) << output;
  EXPECT_NE(output.find("step 1: parameter 'w.p' differs between ranks at [0,0]: "),
            std::string::npos)
      << output;
  if (kThreadSanitizer) return;
  auto [mpi_code, mpi_output] = spawn("mpirun -n 2", arguments);
  EXPECT_EQ(mpi_code, static_cast<int>(ExitCode::kNumeric)) << mpi_output;
  EXPECT_NE(mpi_output.find("step 1: parameter 'w.p' differs between rank 0 and rank 1"),
            std::string::npos)
      << mpi_output;
}

TEST_F(Command, SaysWhyASingleDevicePlanIsNoTraining) {
  PlanSet set = replicas(2);
  set.manifest.predictions["single_instructions"] = 70000;
  const PlanSet first = replicas_oracle(2);
  Status written = write_plan_set(set, &first, nullptr, path("large"), {});
  ASSERT_TRUE(written.ok()) << written.error().message;
  auto [code, output] =
      spawn("", fmt::format("{} {} {}", path("large"), path("data.safetensors"), path("a")));
  EXPECT_EQ(code, static_cast<int>(ExitCode::kUsage));
  EXPECT_EQ(output,
            fmt::format("error: {} plays only the first replica, so the job cannot be compared "
                        "with it\n"
                        "  = note: for all replicas it would have about 70000 instructions\n"
                        "  = help: compile with 'piperc --oracles', or compare with "
                        "'--verify-against uncut'\n",
                        path("large/single")));
}

// As compilers take them: an option has the word after it, and no further ones.
TEST(Piperc, DefinitionsMayStandBeforeTheModel) {
  const auto [code, output] = run_shell(
      fmt::format("cd {} && {}/bin/piperc -D dp=4 -D microbatches=2 samples/gpt/model.onnx "
                  "samples/gpt/pp2-dp2.yaml --dry-run --explain=summary 2>&1",
                  PIPER_SOURCE_DIR, PIPER_BINARY_DIR));
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("batch 16 = 4 replicas × 2 microbatches"), std::string::npos) << output;
}

TEST_F(Command, RefusesAWorldOfAnotherSize) {
  SKIP_UNDER_THREAD_SANITIZER();
  auto [code, output] = spawn(
      "mpirun -n 3", fmt::format("{} {} {}", path("plans"), path("data.safetensors"), path("a")));
  EXPECT_NE(code, 0);
  EXPECT_NE(output.find("is for 2 ranks, but 3 processes were started"), std::string::npos)
      << output;
  auto [alone, said] = spawn(
      "", fmt::format("{} {} {}", path("plans/rank1.plan"), path("data.safetensors"), path("a")));
  EXPECT_EQ(alone, 2);
  EXPECT_NE(said.find("is one of 2 ranks, and no launcher started this process"), std::string::npos)
      << said;
  // What is advised is the directory: one plan for all would not run.
  auto [lone, heard] = spawn("mpirun -n 1", fmt::format("{} {} {}", path("plans/rank1.plan"),
                                                        path("data.safetensors"), path("a")));
  EXPECT_EQ(lone, 2);
  EXPECT_NE(heard.find(fmt::format("is for 2 ranks, but 1 process was started\n"
                                   "  = help: mpirun -n 2 piper-run {}\n",
                                   path("plans"))),
            std::string::npos)
      << heard;
}

TEST_F(Command, AFailingRankEndsTheJobWithItsReason) {
  SKIP_UNDER_THREAD_SANITIZER();
  auto start = std::chrono::steady_clock::now();
  auto [code, output] = spawn("mpirun -n 2", fmt::format("{} {} {} fail", path("plans"),
                                                         path("data.safetensors"), path("a")));
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kAtOnce);
  EXPECT_EQ(code, static_cast<int>(ExitCode::kStorage)) << output;
  EXPECT_NE(output.find("error: the disk of rank 1 is full"), std::string::npos) << output;
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

// Mapped memory of a file that has become shorter: no step begins without its data, on any rank,
// and what was trained is saved. With a thread that reads ahead, and without.
TEST_F(Command, DataThatAreCutEndTheRunWithWhatWasTrained) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  const std::string whole = bytes_of(path("data.safetensors"));
  for (const char* helper : {"off", "on"}) {
    std::ofstream(path("data.safetensors"), std::ios::binary) << whole;
    std::filesystem::remove(path("m"));
    std::filesystem::remove(path("a"));
    auto [code, output] = run_shell(fmt::format(
        "(for i in $(seq 5000); do grep -qs loss {0}/m && break; sleep 0.02; done; "
        "truncate -s 0 {0}/data.safetensors) >/dev/null & "
        "{1}/bin/piper-run {0}/plans --data {0}/data.safetensors --steps 100000000 --threads 1 "
        "--metrics {0}/m --save {0}/a --helper-thread {2} --log-every 1000000000 2>&1; exit $?",
        folder_.string(), PIPER_BINARY_DIR, helper));
    EXPECT_EQ(code, 12) << output;
    EXPECT_NE(output.find(fmt::format("'{}' was cut or became unreadable while it was in use\n",
                                      path("data.safetensors"))),
              std::string::npos)
        << output;
    EXPECT_NE(output.find("interrupted after step "), std::string::npos) << output;
    EXPECT_TRUE(std::filesystem::exists(path("a"))) << output;
  }
}

// The same number of steps without an accident leaves the same bytes: no rank trained on what had
// vanished.
TEST_F(OverTcp, DataThatAreCutEndTheRunWithWhatWasTrained) {
  const auto [code, output] = disturb("truncate -s 0 data.safetensors");
  EXPECT_EQ(code, 12) << output;
  EXPECT_NE(output.find("was cut or became unreadable while it was in use\n"), std::string::npos)
      << output;
  const size_t at = output.find("interrupted after step ");
  ASSERT_NE(at, std::string::npos) << output;
  const std::string saved = bytes_of(path("a"));
  EXPECT_FALSE(saved.empty());
  SetUp();
  const auto [again, said] =
      run_shell(plans(fmt::format("--steps {} --log-every 1000000000 --save {}",
                                  std::stoll(output.substr(at + 23)), path("a"))) +
                " 2>&1");
  EXPECT_EQ(again, 0) << said;
  EXPECT_EQ(bytes_of(path("a")), saved);
}

// The run ends early, with what was trained: no numbers say that the data were others.
TEST_F(Command, DataThatIsOverwrittenIsNoticed) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  auto [code, output] = run_shell(fmt::format(
      "(for i in $(seq 5000); do grep -qs loss {0}/m && break; sleep 0.02; done; "
      "printf x | dd of={0}/data.safetensors bs=1 seek=400 conv=notrunc) >/dev/null 2>&1 & "
      "{1}/bin/piper-run {0}/plans --data {0}/data.safetensors --steps 1000000 --threads 1 "
      "--metrics {0}/m --save {0}/a --log-every 1000000000 2>&1; exit $?",
      folder_.string(), PIPER_BINARY_DIR));
  EXPECT_EQ(code, 12) << output;
  EXPECT_NE(output.find(fmt::format("error: '{}' was written to while it was in use",
                                    path("data.safetensors"))),
            std::string::npos)
      << output;
  EXPECT_TRUE(std::filesystem::exists(path("a")));
}

// Waits until the run has done a step: a line of its own stands before those of steps.
bool runs(const std::string& metrics) {
  for (int i = 0; i < 5000; ++i) {
    std::ifstream in(metrics);
    for (std::string line; std::getline(in, line);)
      if (line.find("\"loss\"") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

TEST_F(Command, AStoppedThreadEndsTheJobAndIsNamed) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  const pid_t child = fork();
  if (child == 0) {
    static_cast<void>(!freopen(path("said").c_str(), "w", stderr));
    execl(PIPER_BINARY_DIR "/bin/piper-run", "piper-run", path("plans").c_str(), "--data",
          path("data.safetensors").c_str(), "--steps", "100000000", "--threads", "1", "--timeout",
          "1", "--metrics", path("m").c_str(), "--log-every", "1000000000", nullptr);
    _exit(99);
  }
  ASSERT_TRUE(runs(path("m")));
  pid_t last = child;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", child)))
    last = std::max(last, static_cast<pid_t>(std::stol(task.path().filename().string())));
  ASSERT_GT(last, child);
  const bool stopped = ptrace(PTRACE_SEIZE, last, nullptr, nullptr) == 0 &&
                       ptrace(PTRACE_INTERRUPT, last, nullptr, nullptr) == 0;
  if (!stopped) kill(child, SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  int status = 0;  // of the process, which comes after that of the thread
  while (waitpid(-1, &status, __WALL) != child || WIFSTOPPED(status)) {
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!stopped) GTEST_SKIP() << "the system lets nobody be traced";
  const std::string said = bytes_of(path("said"));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 10) << status << said;
  EXPECT_LT(took.count(), kAtOnce);
  EXPECT_NE(said.find("error: "), std::string::npos) << said;
  EXPECT_NE(said.find("rank 0 waited 1 s"), std::string::npos) << said;
  EXPECT_NE(said.find("  = note: rank 1 is at "), std::string::npos) << said;
}

// What was trained is saved, whatever else is lost; and the exit code says that something is.
TEST_F(Command, AFullDiskCostsNeitherTheRunNorTheSave) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  const std::string run = fmt::format(
      "{1}/bin/piper-run {0}/plans --data {0}/data.safetensors "
      "--steps 40 --threads 1 --save {0}/a",
      folder_.string(), PIPER_BINARY_DIR);
  const auto lost = [&](const std::string& before, const std::string& flags) {
    std::filesystem::remove(path("a"));
    auto [code, output] = run_shell(before + run + flags + " 2>&1");
    return fmt::format("{} {} {}", code, std::filesystem::exists(path("a")) ? "saved" : "lost",
                       output);
  };
  const auto expect = [](const std::string& got, const std::string& start,
                         const std::string& said) {
    EXPECT_EQ(got.substr(0, start.size()), start) << got;
    EXPECT_NE(got.find(said), std::string::npos) << got;
  };
  expect(lost("", ""), "0 saved", "saved 2 parameters to ");
  expect(lost("", " --metrics /dev/full"), "12 saved",
         "error: cannot write /dev/full: No space left on device\n  = note: the run goes on "
         "without metrics");
  expect(lost("", " --trace /dev/full"), "12 saved", "No space left on device");
  expect(lost("ulimit -f 2; ", fmt::format(" --metrics {}/m", folder_.string())), "12 saved",
         "/m: File too large\n");
  expect(lost("ulimit -f 0; ", ""), "12 lost", " B are needed, ");
  auto [code, output] = run_shell(run + " 2>&1 >/dev/full");
  EXPECT_EQ(code, 12) << output;
  EXPECT_NE(output.find("what was printed did not arrive: No space left"), std::string::npos);
  EXPECT_EQ(run_shell(run + " 2>/dev/null >&-").first, 12);
  std::filesystem::remove(path("a"));
  run_shell(fmt::format("({} 2>&1; echo $? > {}) | true", run, path("code")));
  EXPECT_EQ(bytes_of(path("code")), "12\n");
  EXPECT_TRUE(std::filesystem::exists(path("a")));
}

TEST_F(Command, ARunThatIsToldToEndSaves) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  for (const char* signal : {"INT", "TERM", "HUP"}) {
    std::filesystem::remove(path("a"));
    std::filesystem::remove(path("m"));
    auto [code, output] = run_shell(fmt::format(
        "cd {}; sh -c 'echo $$ > pid; exec {}/bin/piper-run plans --data data.safetensors --steps "
        "100000000 --threads 1 --metrics m --log-every 1000000000 --save a' 2>&1 & for i in $(seq "
        "1000); do grep -qs loss m && break; sleep 0.02; done; kill -{} $(cat pid); wait $!",
        folder_.string(), PIPER_BINARY_DIR, signal));
    EXPECT_EQ(code, 130) << signal << output;
    EXPECT_TRUE(std::filesystem::exists(path("a"))) << signal;
  }
}

// Two processes of which rank 0 saves into a pipe, so for as long as nobody reads it. Meanwhile
// `act` is done, where $PID is the process of `rank`.
class Saving : public Command {
 protected:
  std::pair<int, std::string> save(int rank, const std::string& act) {
    const std::string run = fmt::format(
        "{}/bin/piper-run {}/plans --data {}/data.safetensors --steps 2 --threads 1 "
        "--start-timeout 1 --metrics {}/m --save {}/pipe",
        PIPER_BINARY_DIR, folder_.string(), folder_.string(), folder_.string(), folder_.string());
    const std::string told =
        fmt::format("sh -c 'echo $$ > {}/pid; exec {}'", folder_.string(), run);
    return run_shell(fmt::format(
        "cd {}; mkfifo pipe; (for i in $(seq 5000); do grep -qs '\"step\":2' m && break; "
        "sleep 0.02; done; sleep 0.3; PID=$(cat pid); {}) >/dev/null 2>&1 & "
        "{}mpirun -n 1 {} : -n 1 {} 2>&1; exit $?",
        folder_.string(), act, kMpi, rank == 0 ? told : run, rank == 0 ? run : told));
  }
};

TEST_F(Saving, TakesAsLongAsItTakes) {
  SKIP_UNDER_THREAD_SANITIZER();
  auto [code, output] = save(0, "sleep 2.5; cat pipe > a");
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("saved 2 parameters to "), std::string::npos) << output;
  EXPECT_FALSE(bytes_of(path("a")).empty());
}

TEST_F(Saving, ARankThatStopsIsNamed) {
  SKIP_UNDER_THREAD_SANITIZER();
  auto [code, output] = save(0, "kill -STOP $PID");
  EXPECT_EQ(code, 10) << output;
  EXPECT_NE(output.find("error: after the last step: rank 1 waited 1 s in the last exchange for "
                        "rank 0\n"
                        "  = note: rank 0 is at what it does after the last step\n"),
            std::string::npos)
      << output;
}

TEST_F(Saving, IsDoneBeforeAnotherRankIsMissed) {
  SKIP_UNDER_THREAD_SANITIZER();
  auto [code, output] = save(1, "kill -STOP $PID; sleep 1.5; cat pipe > a");
  EXPECT_EQ(code, 10) << output;
  EXPECT_NE(output.find("saved 2 parameters to "), std::string::npos) << output;
  EXPECT_NE(output.find("error: after the last step: rank 0 waited 1 s in the last exchange for "
                        "rank 1\n"),
            std::string::npos)
      << output;
  EXPECT_FALSE(bytes_of(path("a")).empty());
}

// Libraries that cannot be loaded at all are the loader's, which says so with 127.
TEST_F(Command, LittleMemoryIsSaid) {
  if (kSanitized) GTEST_SKIP() << "sanitizers want more";
  const std::string bin = PIPER_BINARY_DIR "/bin/", gpt = PIPER_SOURCE_DIR "/samples/gpt/";
  const std::string programs[] = {
      fmt::format("{}piperc {}model.onnx {}pp2-dp2.yaml --dry-run", bin, gpt, gpt),
      fmt::format("{}piper-verify {}", bin, path("plans")),
      fmt::format("{0}piper-run {1} --data {2} --steps 1", bin, path("plans"),
                  path("data.safetensors"))};
  std::string refused;
  for (const std::string& program : programs) {
    const int enough = run_shell(program + " 2>&1 >/dev/null").first;
    for (int megabytes = 20; megabytes <= 200; megabytes += megabytes < 80 ? 4 : 30) {
      const auto [code, output] =
          run_shell(fmt::format("ulimit -v {}000; {} 2>&1 >/dev/null", megabytes, program));
      const bool said = code == 12 ? output.find("error: ") != output.npos
                                   : code == 127 && output.find("shared") != output.npos;
      EXPECT_TRUE(code == enough || said)
          << megabytes << " MB: " << program << ": " << code << output;
      if (code == 12) refused += program.substr(bin.size(), 8);
    }
  }
  for (const char* name : {"piperc", "piper-ve", "piper-ru"})
    EXPECT_NE(refused.find(name), std::string::npos) << name;
}

// Threads have stacks of the usual size, whatever the limit is. The environment, which the system
// puts on the stack before the program begins, is left out.
TEST_F(Command, ALittleStackIsEnough) {
  if (kSanitized) GTEST_SKIP() << "sanitizers want more before the program begins";
  for (const char* limit : {"ulimit -s 16", "ulimit -S -s 64"}) {
    const auto [code, output] = run_shell(
        fmt::format("{0}; exec env -i {1}/bin/piper-run {2}/plans --data {2}/data.safetensors "
                    "--steps 3 2>&1",
                    limit, PIPER_BINARY_DIR, folder_.string()));
    EXPECT_TRUE(code == 0 || (code == 12 && output.find("help: ulimit -s 8192") != output.npos))
        << code << output;
  }
}

TEST_F(Command, MetricsOfEarlierRunsStay) {
  RunOptions options;
  options.plan = path("plans");
  options.data.sources = {path("data.safetensors")};
  options.metrics = path("m");
  options.job.steps = 2;
  const auto lines = [&] {
    std::vector<std::string> all = split_text(bytes_of(path("m")), '\n');
    for (std::string& line : all) line = line.substr(0, line.find(','));
    return all;
  };
  ASSERT_TRUE(run_plans(options));
  EXPECT_EQ(lines(), (std::vector<std::string>{"{\"run\":1", "{\"step\":1", "{\"step\":2", ""}));
  std::ofstream(path("m"), std::ios::app) << "{\"step\":3";  // as a killed run leaves it
  ASSERT_TRUE(run_plans(options));
  EXPECT_EQ(lines(),
            (std::vector<std::string>{"{\"run\":1", "{\"step\":1", "{\"step\":2", "{\"step\":3",
                                      "{\"run\":2", "{\"step\":1", "{\"step\":2", ""}));
}

// Of all flags that change what runs: two that would train silently, one that would wait in vain.
TEST_F(Command, ProcessesWithOtherFlagsAreRefused) {
  SKIP_UNDER_THREAD_SANITIZER();
  std::string other = bytes_of(path("data.safetensors"));
  other.back() ^= 1;
  std::ofstream(path("other.safetensors"), std::ios::binary) << other;
  const auto run = [&](const std::string& first, const std::string& second) {
    return run_shell(fmt::format(
        "{4}mpirun -n 1 {0}/bin/piper-run {1}/plans --data {1}/{2} : -n 1 {0}/bin/piper-run "
        "{1}/plans --data {1}/{3} 2>&1",
        PIPER_BINARY_DIR, folder_.string(), first, second, kMpi));
  };
  const std::string same = "data.safetensors";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {same + " --seed 1", same + " --seed 2", "rank 1 runs with --seed 2, rank 0 with --seed 1"},
      {same, "other.safetensors", "rank 1 runs with --data of digest "},
      {same, same + " --save " + path("a"),
       "rank 1 runs with --save given, rank 0 with --save "
       "not given"},
  };
  for (const auto& [first, second, said] : cases) {
    auto [code, output] = run(first, second);
    EXPECT_EQ(code, 1) << output;
    EXPECT_NE(output.find(said), std::string::npos) << output;
  }
}

std::string message_of(const Result<JobResult>& result) {
  return result ? "ok" : result.error().message;
}

// One bit of what a replica holds, too high to be rounded away later; the numbers go on as if
// nothing were.
Result<JobResult> run_with_flipped_bit(int32_t ranks, int64_t check_replicas) {
  PlanSet set = replicas(ranks);
  Numbers data({5, 1});
  JobOptions options;
  options.steps = 6;
  options.check_replicas = check_replicas;
  options.before_step = [](int64_t rank, int64_t step, const Executor& executor) {
    if (rank == 1 && step == 2) {
      auto* bytes = const_cast<std::byte*>(executor.buffer("p").data());
      bytes[6] ^= std::byte{16};
    }
    return ok_status();
  };
  return run_job(set, &data, nullptr, nullptr, options);
}

TEST(Replicas, AFlippedBitInAReplicaIsFound) {
  EXPECT_TRUE(run_with_flipped_bit(3, 0));
  const auto found = run_with_flipped_bit(3, 2);
  EXPECT_EQ(message_of(found), "step 4: 'w.p' on rank 1 differs from its replica on ranks 0, 2");
  EXPECT_EQ(found.error().code, ExitCode::kNumeric);
  EXPECT_EQ(found.error().notes[0], "what most ranks hold is taken for right");
  const auto of_two = run_with_flipped_bit(2, 5);  // and after the last
  EXPECT_EQ(message_of(of_two), "step 5: 'w.p' on rank 1 differs from its replica on rank 0");
  EXPECT_EQ(of_two.error().notes[0],
            "which of them is wrong cannot be told: no value has a majority");
}

TEST(Replicas, EqualReplicasPass) {
  PlanSet set = replicas(3);
  Numbers data({5, 1});
  JobOptions options;
  options.steps = 4;
  options.check_replicas = 1;
  EXPECT_EQ(message_of(run_job(set, &data, nullptr, nullptr, options)), "ok");
  options.timeout_s = 2;
  set.roles[0].steps_ahead = 1;  // where ranks do not wait for each other between steps
  set.roles[0].epilogue = set.roles[0].body;
  EXPECT_EQ(message_of(run_job(set, &data, nullptr, nullptr, options)), "ok");
  PlanSet stages = pipeline(2);  // nothing is there twice
  Numbers numbers({1});
  EXPECT_EQ(message_of(run_job(stages, &numbers, nullptr, nullptr, options)), "ok");
}

class Counted final : public Transport {
 public:
  explicit Counted(Transport& inner) : counting(inner.control()), inner_(inner) {}
  Control& control() override { return counting; }
  Fabric& fabric() override { return inner_.fabric(); }
  Counting counting;

 private:
  Transport& inner_;
};

// The most messages and bytes of any rank to compare replicas twice and to bring what is saved.
std::pair<int64_t, int64_t> most_told(int64_t ranks) {
  const PlanSet set = replicas(static_cast<int32_t>(ranks));
  Numbers data({5, 1});
  const auto world = make_inproc_world(ranks, TransportOptions{30});
  std::vector<int64_t> messages(static_cast<size_t>(ranks)), bytes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Counted transport(world->rank(rank));
      JobOptions options;
      options.steps = 2;
      options.check_replicas = 1;
      const auto result = run_rank_here(set, &data, nullptr, nullptr, transport, options);
      EXPECT_EQ(message_of(result), "ok");
      EXPECT_EQ(result ? result->parameters.size() : 0, rank == 0 ? 2U : 0U);
      messages[static_cast<size_t>(rank)] = transport.counting.messages;
      bytes[static_cast<size_t>(rank)] = transport.counting.told;
    });
  for (std::thread& thread : threads) thread.join();
  return {*std::ranges::max_element(messages), *std::ranges::max_element(bytes)};
}

TEST(Replicas, NoRankTellsMoreInALargerWorld) {
  const auto few = most_told(18), many = most_told(80);
  EXPECT_EQ(few.first, many.first);
  EXPECT_LE(many.second, few.second + 16 * 8 * Control::kFanOut);  // more ranks are named
}

TEST_F(Command, AFlippedBitOfAProcessIsFound) {
  SKIP_UNDER_THREAD_SANITIZER();
  auto [code, output] = spawn("mpirun -n 2", fmt::format("{} {} {} flip", path("plans"),
                                                         path("data.safetensors"), path("a")));
  EXPECT_EQ(code, static_cast<int>(ExitCode::kNumeric)) << output;
  EXPECT_NE(output.find("step 3: 'w.p' on rank 1 differs from its replica on rank 0"),
            std::string::npos)
      << output;
}

// A step that runs only where the strategy asks for it.
TEST_F(Command, NothingToDumpIsSaid) {
  const auto dump = [&](const std::string& directives) {
    std::ofstream(path("dumped.yaml"))
        << "piper: 1\nmesh: {pp: 2}\ntrain: {global_batch: 8}\n"
           "annotate: [{balance: {tag: stage, into: 2}}]\n"
           "directives:\n  - place: {where: {stage: s}, on: {pp: s}}\n"
        << directives;
    return run_shell(fmt::format("{}/bin/piperc {}/tests/data/mlp.onnx {} --dump fuse 2>&1",
                                 PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path("dumped.yaml")));
  };
  EXPECT_EQ(
      dump(""),
      std::pair(0, std::string("note: nothing to dump: the strategy has no 'fuse' directive\n")));
  EXPECT_EQ(dump("  - fuse: {where: {kind: send}}\n").second.find("note: nothing"),
            std::string::npos);
}

TEST_F(Command, PicturesAreTheSameFromBothPrograms) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  std::ofstream(path("text.bin")) << std::string(4096, 'a');
  const auto piperc = [&](const std::string& flags) {
    return run_shell(
        fmt::format("{}/bin/piperc {}/samples/gpt/model.onnx "
                    "{}/samples/gpt/pp2-dp2.yaml {} 2>&1 >{}",
                    PIPER_BINARY_DIR, PIPER_SOURCE_DIR, PIPER_SOURCE_DIR, flags, path("out")));
  };
  EXPECT_EQ(piperc(fmt::format("-o {} --no-oracles --picture", path("drawn"))).first, 0);
  const std::string drawn = bytes_of(path("out"));
  EXPECT_NE(drawn.find("F forward, B backward"), drawn.npos) << drawn;
  const auto [code, output] = run_shell(
      fmt::format("{}/bin/piper-run {} --data {}:u8 --steps 1 --backend null --picture 2>/dev/null",
                  PIPER_BINARY_DIR, path("drawn"), path("text.bin")));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(output.substr(0, drawn.size()), drawn);

  EXPECT_EQ(piperc(fmt::format("--svg {} --costs unit", path("drawn.svg"))).first, 0);
  EXPECT_EQ(bytes_of(path("out")), "");
  EXPECT_TRUE(bytes_of(path("drawn.svg")).ends_with("</svg>\n"));
  EXPECT_EQ(piperc(fmt::format("--svg {}/none/drawn.svg", path(""))).first,
            static_cast<int>(ExitCode::kStorage));
  for (const char* wrong :
       {"--picture --dump plan", "--dry-run --width 80", "--dry-run --costs unit",
        "--picture --costs seconds", "--picture --width -1"})
    EXPECT_EQ(piperc(wrong).first, static_cast<int>(ExitCode::kUsage)) << wrong;
}

// Not with --explain alone.
TEST_F(Command, WhatIsNotSureOfParametersIsSaidOnEveryRun) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  for (int k = 0; k < 2; ++k) {
    const auto [code, said] = run_piperc(kModels + "older_tied.onnx", path("tied"));
    EXPECT_EQ(code, 0) << said;
    for (const char* line :
         {"note: words.weight: has a row of zeros", "note: scale: perhaps a buffer",
          "note: head.weight: tied to words.weight\n"})
      EXPECT_NE(said.find(line), std::string::npos) << line << "\n" << said;
  }
}

TEST_F(Command, ARefusedModelOfTheOlderExporterGetsHelpThatFitsIt) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  const auto [code, said] = run_piperc(kModels + "older_folded.onnx", path("folded"));
  EXPECT_EQ(code, 1) << said;
  EXPECT_NE(
      said.find("  = help: export the module by tools/export.py, which loses nothing; or with "
                "dynamo=True, or with do_constant_folding=False and "
                "training=TrainingMode.PRESERVE\n"),
      std::string::npos)
      << said;
  EXPECT_EQ(said.find("optimize=False"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(path("folded")));
}

// Data beside the model: there, not there, and not all of it.
TEST_F(Command, DataBesideAModelThatAreMissingOrCutAreItsFault) {
  if (kThreadSanitizer) GTEST_SKIP() << "the program itself is another test's";
  const std::string model = path("external.onnx"), data = path("w.bin");
  std::filesystem::copy_file(kModels + "external.onnx", model);
  EXPECT_EQ(run_piperc(model, path("external")).first, 1);
  EXPECT_NE(run_piperc(model, path("external")).second.find("w.bin"), std::string::npos);
  std::ofstream(data) << std::string(15, 'x');
  const auto [code, said] = run_piperc(model, path("external"));
  EXPECT_EQ(code, 1) << said;
  EXPECT_NE(said.find("w.bin"), std::string::npos) << said;
  std::ofstream(data) << std::string(16, 'x');
  EXPECT_EQ(run_piperc(model, path("external")).first, 0);
}

// What a run says when it is refused.
std::string refused(RunOptions options) {
  std::string said;
  options.on_error = [&](const Error& error) { said += print_error(error); };
  auto outcome = run_plans(std::move(options));
  const ExitCode code = outcome ? outcome->code : outcome.error().code;
  return code == ExitCode::kOk ? "ok" : fmt::format("{}: {}", static_cast<int>(code), said);
}

// Fails the first times that rank 0 writes its file of a checkpoint.
class StorageThatRecovers : public Storage {
 public:
  explicit StorageThatRecovers(int failures) : left_(failures) {}
  Status write(const std::string& path, std::span<const std::string_view> parts) override {
    if (path.ends_with("/rank00000.safetensors") && left_-- > 0)
      return fail("the disk hiccups").with_code(ExitCode::kStorage);
    return file_storage().write(path, parts);
  }
  Result<Bytes> read(const std::string& path) override { return file_storage().read(path); }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    return file_storage().list(folder);
  }
  Status publish(const std::string& built, const std::string& folder) override {
    return file_storage().publish(built, folder);
  }
  Status remove(const std::string& folder) override { return file_storage().remove(folder); }

 private:
  std::atomic<int> left_;
};

// No later checkpoint would hold what the last steps have trained.
TEST_F(Command, ALastCheckpointThatIsNotWrittenIsTriedOnceMore) {
  for (const int failures : {1, 2}) {
    StorageThatRecovers storage(failures);
    RunOptions options;
    options.plan = path("plans");
    options.data.sources = {path("data.safetensors")};
    options.job.steps = 2;
    options.job.checkpoint.emplace();
    options.job.checkpoint->folder = path(fmt::format("kept-{}", failures));
    options.job.checkpoint->storage = &storage;
    const std::string kept = options.job.checkpoint->folder, said = refused(std::move(options));
    EXPECT_NE(said.find("step-000000002 is not written: rank 0: the disk hiccups"), said.npos)
        << said;
    const auto steps = list_checkpoints(file_storage(), kept);
    ASSERT_TRUE(steps);
    EXPECT_EQ(steps->size(), failures == 1 ? 1U : 0U);
  }
}

TEST_F(Command, ALauncherThatDoesNotSayWhereRank0ListensIsRefused) {
  RunOptions options;
  options.plan = path("plans");
  options.data.sources = {path("data.safetensors")};
  setenv("LOCAL_RANK", "1", 1);
  setenv("WORLD_SIZE", "2", 1);
  const std::string said = refused(options);
  setenv("LOCAL_RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  const std::string alone = refused(options);
  unsetenv("LOCAL_RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_EQ(said,
            "2: error: the launcher says that this is rank 1 of 2, but not where rank 0 listens\n"
            "  = help: set MASTER_ADDR and MASTER_PORT, or give --rendezvous HOST:PORT\n");
  EXPECT_EQ(alone, "ok");
  options.rendezvous = "127.0.0.1:1";
  EXPECT_EQ(refused(options),
            "2: error: --rendezvous does not say which rank this process is\n"
            "  = help: give one rankN.plan, or set RANK and WORLD_SIZE\n");
  options.plan = path("plans/rank1.plan");
  options.rendezvous = "nowhere";
  EXPECT_EQ(refused(options).find("2: error: 'nowhere' is no HOST:PORT\n"), 0u);
}

TEST_F(Command, TheNullBackendSavesAndComparesNothing) {
  RunOptions options;
  options.plan = path("plans");
  options.data.sources = {path("data.safetensors")};
  options.job.backend = "null";
  EXPECT_EQ(refused(options), "ok");
  const std::string wanted =
      "2: error: the null backend computes nothing: there is nothing to save, to compare or to "
      "wait for\n";
  RunOptions saves = options, compares = options;
  saves.save = path("a");
  compares.job.verify.against = VerifyAgainst::kSingle;
  EXPECT_EQ(refused(saves), wanted);
  EXPECT_EQ(refused(compares), wanted);
}

TEST_F(Command, DevicesAreSaidWithoutAPlan) {
  const auto [code, output] = run_shell("'" PIPER_BINARY_DIR "/bin/piper-run' --devices 2>&1");
  EXPECT_EQ(code, 0) << output;
  EXPECT_EQ(output.find("cuda"), 0u) << output;
  EXPECT_NE(output.find("        driver "), std::string::npos) << output;
}

TEST_F(Command, MetricsGoToADeviceToo) {
  RunOptions options;
  options.plan = path("plans");
  options.data.sources = {path("data.safetensors")};
  options.metrics = "/dev/null";
  EXPECT_EQ(refused(options), "ok");
  options.metrics = "/dev/full";
  EXPECT_EQ(refused(options),
            "12: error: cannot write /dev/full: No space left on device\n"
            "  = note: the run goes on without metrics\n");
  options.metrics = path("plans");
  EXPECT_EQ(refused(options), fmt::format("12: error: {} is a directory\n", path("plans")));
}

// A disk without room is named before the first step. Where one may not mount a small one, nothing
// is tried.
TEST_F(Command, WhatIsTrainedNeedsRoom) {
  if (run_shell("unshare -rm true 2>&1").first != 0) GTEST_SKIP() << "no mounts of one's own";
  const auto run = [&](const char* before) {
    return run_shell(fmt::format(
        "mkdir -p {0}/small && unshare -rm sh -c 'mount -t tmpfs -o size=64k none {0}/small && "
        "{1} {2}/bin/piper-run {0}/plans --data {0}/data.safetensors --steps 2 --save {0}/small/a' "
        "2>&1",
        folder_.string(), before, PIPER_BINARY_DIR));
  };
  const auto empty = run("");
  EXPECT_EQ(empty.first, 0) << empty.second;
  const std::string fill = fmt::format("cat /dev/zero 2>&1 > {}/full;", path("small"));
  const auto full = run(fill.c_str());
  EXPECT_EQ(full.first, 12) << full.second;
  EXPECT_NE(full.second.find("error: --save: what is trained takes "), std::string::npos)
      << full.second;
}

// PLAN DATA SAVE [fail|apart|flip]: four steps, compared with the single-device plan.
int run_plan(int argc, char** argv) {
  RunOptions options;
  options.plan = argv[0];
  options.data.sources = {argv[1]};
  options.data.shuffle = false;
  options.save = argv[2];
  options.job.steps = 4;
  options.job.verify.against = VerifyAgainst::kSingle;
  if (argc > 3 && std::string_view(argv[3]) == "apart") {
    options.job.verify = {VerifyAgainst::kUncut, 1e9, 1e9};
  } else if (argc > 3 && std::string_view(argv[3]) == "flip") {
    options.job.verify.against = VerifyAgainst::kNone;
    options.job.check_replicas = 1;
    options.job.before_step = [](int64_t rank, int64_t step, const Executor& executor) {
      if (rank == 1 && step == 2)
        const_cast<std::byte*>(executor.buffer("p").data())[6] ^= std::byte{16};
      return ok_status();
    };
  } else if (argc > 3) {
    options.job.before_step = [](int64_t rank, int64_t step, const Executor&) -> Status {
      if (rank != 1 || step != 2) return ok_status();
      return fail("the disk of rank 1 is full").with_code(ExitCode::kStorage);
    };
  }
  auto outcome = run_plans(std::move(options));
  return static_cast<int>(outcome ? outcome->code : outcome.error().code);
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  if (argc >= 5 && std::string_view(argv[1]) == "--run-plan")
    return piper::run_plan(argc - 2, argv + 2);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
