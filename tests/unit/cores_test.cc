// The threads of a job are on the cores that it says they are on.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "piper/base/data.h"
#include "piper/devices/cpu.h"
#include "piper/devices/registry.h"
#include "piper/runtime/data.h"
#include "unit/runtime_plans.h"

namespace piper {
namespace {

using namespace plans;  // NOLINT: the fixtures of this test

std::vector<int> cores_of_thread(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return cores;  // it has ended
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

// By core, how many threads of this process may be there and nowhere else.
std::map<int, int> pinned_threads() {
  std::map<int, int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto cores = cores_of_thread(std::stoi(entry.path().filename().string()));
    if (cores.size() == 1) ++found[cores[0]];
  }
  return found;
}

struct Observed {
  std::string report;                         // what the job printed
  std::map<int64_t, std::vector<int>> cores;  // by rank: of the thread that runs it
  std::map<int, int> pinned;                  // when the last step begins
};

// Threads pin themselves as they start: they are waited for.
Observed observe(const PlanSet& set, int threads, size_t wanted,
                 HelperThread helper = HelperThread::kAuto) {
  const int64_t ranks = set.world();
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("piper-cores-{}", getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(write_plan_set(set, nullptr, nullptr, (folder / "plans").string(), {}));
  const auto needs = data_needs(set);
  std::vector<NamedTensor> data;
  for (const InputNeed& need : *needs) {
    const std::vector<float> ones(static_cast<size_t>(num_elements(need.type.shape)), 1);
    data.push_back({"batch/0/" + need.name, need.type,
                    Bytes::copy_of(ones.data(), static_cast<size_t>(need.type.bytes()))});
  }
  std::sort(data.begin(), data.end(), [](auto& one, auto& other) { return one.name < other.name; });
  EXPECT_TRUE(write_safetensors((folder / "data.safetensors").string(), data));
  Observed seen;
  std::mutex mutex;
  RunOptions options;
  options.plan = (folder / "plans").string();
  options.data.sources = {(folder / "data.safetensors").string()};
  options.job.threads = threads;
  options.job.helper = helper;
  options.job.before_step = [&](int64_t rank, int64_t, const Executor&) {
    std::lock_guard lock(mutex);
    seen.cores[rank] = cores_of_thread(0);
    for (int tries = 0; tries < 500; ++tries) {
      seen.pinned = pinned_threads();
      if (rank + 1 < ranks || seen.pinned.size() >= wanted) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return ok_status();
  };
  testing::internal::CaptureStderr();
  const auto outcome = run_plans(std::move(options));
  seen.report = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(outcome) << print_error(outcome.error());
  std::filesystem::remove_all(folder);
  return seen;
}

class Cores : public testing::Test {
 protected:
  void SetUp() override {
    if (all_.size() < 2) GTEST_SKIP() << "one core: nothing is pinned";
  }
  const std::vector<int> all_ = cores_of_thread(0);
};

TEST_F(Cores, ARankHasOneForEachOfItsThreads) {
  const Observed seen = observe(replicas_oracle(2), 0, all_.size());
  EXPECT_NE(seen.report.find(fmt::format("1 rank with {} threads each, pinned;", all_.size())),
            seen.report.npos)
      << seen.report;
  EXPECT_EQ(seen.cores.at(0), std::vector<int>{all_[0]});
  std::map<int, int> one_each;
  for (int core : all_) one_each[core] = 1;
  EXPECT_EQ(seen.pinned, one_each);
}

TEST_F(Cores, EachRankHasItsOwn) {
  const auto count = static_cast<int32_t>(all_.size());
  const Observed seen = observe(replicas(count), 0, 0);
  EXPECT_NE(seen.report.find(fmt::format("{} ranks with 1 thread each, pinned;", count)),
            seen.report.npos)
      << seen.report;
  for (int32_t rank = 0; rank < count; ++rank)
    EXPECT_EQ(seen.cores.at(rank), std::vector<int>{all_[static_cast<size_t>(rank)]});
}

// Threads that are not as many as the cores move freely, and nothing else is said.
TEST_F(Cores, NoThreadIsPinnedWhereCoresAreLeft) {
  const Observed seen = observe(replicas_oracle(2), static_cast<int>(all_.size()) - 1, 0);
  EXPECT_EQ(seen.report.find("pinned"), seen.report.npos) << seen.report;
  EXPECT_EQ(seen.cores.at(0), all_);
  EXPECT_EQ(seen.pinned, (std::map<int, int>{}));
}

// One that is not asked for has a core of its own: of at least four, or that --threads leaves.
TEST_F(Cores, AHelperIsSaid) {
  const auto share = static_cast<int>(all_.size() / 2);  // of a rank
  const auto says = [&](int threads, HelperThread helper, const std::string& what) {
    const Observed seen = observe(meanwhile(), threads, 0, helper);
    EXPECT_TRUE(seen.report.starts_with("2 ranks with " + what)) << seen.report;
  };
  says(1, HelperThread::kOn, "1 thread and a helper each");
  says(1, HelperThread::kOff, "1 thread each");
  says(1, HelperThread::kAuto, share > 1 ? "1 thread and a helper each" : "1 thread each");
  if (share >= 4)
    says(0, HelperThread::kAuto, fmt::format("{} threads and a helper each", share - 1));
  const Observed idle = observe(replicas(2), 1, 0, HelperThread::kOn);
  EXPECT_TRUE(idle.report.starts_with("2 ranks with 1 thread each")) << idle.report;
  EXPECT_NE(idle.report.find("no helper has anything to do: "), idle.report.npos) << idle.report;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// In a process without room for that many stacks.
TEST(Threads, ThatTheSystemRefusesAreNotMissed) {
  const auto scarce = [] {
    const rlimit small = {rlim_t{1} << 30, rlim_t{1} << 30};
    setrlimit(RLIMIT_AS, &small);
    std::exit(make_cpu_backend({2000, {}, nullptr}) ? 0 : 1);
  };
  EXPECT_EXIT(scarce(), testing::ExitedWithCode(0), "");
}
#endif

// ---- What else the first line says --------------------------------------------------------------

std::string first_line(const PlanSet& set) {
  const std::string report = observe(set, 1, 0).report;
  return report.substr(0, report.find('\n'));
}

TEST(FirstLine, SaysThatPlansWereCompiledWithAnotherTable) {
  PlanSet set = replicas(2);
  const std::string own = cpu_products().digest.substr(0, 8);
  for (RoleProgram& role : set.roles) role.table = cpu_products().digest;
  EXPECT_EQ(first_line(set).find("compiled with"), std::string::npos);
  for (RoleProgram& role : set.roles) role.table = "0123456789abcdef";
  EXPECT_TRUE(
      first_line(set).ends_with("; the plans were compiled with table 01234567, not " + own))
      << first_line(set);
  for (RoleProgram& role : set.roles) role.target = "cuda";  // of which the table is
  EXPECT_EQ(first_line(set).find("compiled with"), std::string::npos);
}

TEST(FirstLine, SaysThatFastSumsAreInOrder) {
  PlanSet set = replicas(2);
  EXPECT_EQ(first_line(set).find("fast"), std::string::npos);
  for (RoleProgram& role : set.roles)
    for (Instruction& one : role.body) one.fast = one.kind == InstructionKind::kAllReduce;
  EXPECT_TRUE(first_line(set).ends_with("; sums that the plans call fast are formed in rank order"))
      << first_line(set);
}

// Launchers that start each other leave the variables of both: the inner one's count.
TEST(DeviceNumber, IsWhatTheLauncherSaysOfTheProcess) {
  using Variables = std::vector<std::pair<const char*, const char*>>;
  const auto number = [](const Variables& variables, bool is_process = true) {
    for (const char* const name :
         {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK", "SLURM_LOCALID"})
      unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const int64_t device = device_number({.place = 7, .is_process = is_process});
    for (const auto& [name, value] : variables) unsetenv(name);
    return device;
  };
  EXPECT_EQ(number({}), 7);
  EXPECT_EQ(number({{"SLURM_LOCALID", "3"}}), 3);
  EXPECT_EQ(number({{"LOCAL_RANK", "2"}}), 2);
  EXPECT_EQ(number({{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}), 1);
  EXPECT_EQ(number({{"MPI_LOCALRANKID", "5"}}), 5);
  EXPECT_EQ(number({{"SLURM_LOCALID", "0"}, {"LOCAL_RANK", "2"}}), 2);
  EXPECT_EQ(number({{"SLURM_LOCALID", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}), 1);
  for (const char* const nothing : {"", "x", "-1", "3x"})
    EXPECT_EQ(number({{"LOCAL_RANK", nothing}, {"SLURM_LOCALID", "3"}}), 3) << nothing;
  EXPECT_EQ(number({{"SLURM_LOCALID", "0"}}, /*is_process=*/false), 7);
}

}  // namespace
}  // namespace piper
