// The threads of a job are on the cores that it says they are on.

#include "cores.h"

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

// Sets variables of launchers for its life; those of others are not there.
class Launched {
 public:
  using Variables = std::vector<std::pair<const char*, const char*>>;
  explicit Launched(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name, value, 1);
  }
  ~Launched() { clear(); }

 private:
  static void clear() {
    for (const char* const name :
         {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALRANKID",
          "MPI_LOCALNRANKS", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_LOCALID",
          "SLURM_STEP_TASKS_PER_NODE"})
      unsetenv(name);
  }
};

// Launchers that start each other leave the variables of both: the inner one's count.
TEST(DeviceNumber, IsWhatTheLauncherSaysOfTheProcess) {
  const auto number = [](const Launched::Variables& variables, bool is_process = true) {
    const Launched launched(variables);
    return device_number({.place = 7, .is_process = is_process});
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

TEST(PlaceOnHost, HasAsManyRanksAsTheLauncherSays) {
  const auto ranks = [](const Launched::Variables& variables) {
    const Launched launched(variables);
    const auto here = place_on_host();
    return here ? here->ranks : -1;
  };
  EXPECT_EQ(ranks({}), -1);
  EXPECT_EQ(ranks({{"LOCAL_RANK", "2"}}), 0);
  EXPECT_EQ(ranks({{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "8"}}), 8);
  EXPECT_EQ(ranks({{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}), 0);  // it contradicts itself
  EXPECT_EQ(ranks({{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}}), 3);
  const auto slurm = [&](const char* text) {
    return ranks({{"SLURM_LOCALID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", text}});
  };
  EXPECT_EQ(slurm("4"), 4);
  EXPECT_EQ(slurm("4(x2)"), 4);
  EXPECT_EQ(slurm("4(x2),3"), 0);
  EXPECT_EQ(slurm("4,3"), 0);
}

// Of 16 ranks as many are on this host as it has cores: each has a core, whatever its rank is. The
// cores are this thread's parent's, too, unless a launcher has bound this process.
TEST_F(Cores, ARankThatIsAProcessSharesThemWithItsHostOnly) {
  if (cores_of_thread(getppid()).size() != all_.size()) GTEST_SKIP() << "bound to some cores";
  const auto count = std::ssize(all_);
  const std::string size = std::to_string(count), last = std::to_string(count - 1);
  const int64_t world = 2 * count;
  {
    const Launched launched({{"LOCAL_RANK", last.c_str()}, {"LOCAL_WORLD_SIZE", size.c_str()}});
    const piper::Cores cores = cores_of_process({}, false, world - 1, world);
    EXPECT_EQ(cores.threads, 1);
    EXPECT_EQ(cores.pinned, std::vector<int>{all_.back()});
    EXPECT_EQ(cores.place, count - 1);
  }
  {
    const Launched launched({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
    const piper::Cores cores = cores_of_process({}, false, world - 1, world);
    EXPECT_EQ(cores.threads, count);
    EXPECT_EQ(cores.pinned, all_);
  }
  {
    const Launched launched({});
    EXPECT_TRUE(cores_of_process({}, false, 0, count).pinned.empty());
    EXPECT_EQ(cores_of_process({}, false, 0, 1).pinned, all_);
  }
}

// mpirun binds each process to cores of its own: all of them compute.
TEST_F(Cores, ARankHasAllThatItIsBoundTo) {
  if (all_.size() < 4 || cores_of_thread(getppid()).size() != all_.size())
    GTEST_SKIP() << "needs four cores, and a parent that has them";
  const auto bind = [](std::span<const int> cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(core, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
  };
  const std::vector<int> half(all_.begin(), all_.begin() + std::ssize(all_) / 2);
  bind(half);
  {
    const Launched launched({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
    EXPECT_EQ(cores_of_process({}, false, 1, 2).pinned, half);
  }
  {
    const Launched launched({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}});  // two on each half
    const piper::Cores cores = cores_of_process({}, false, 1, 4);
    EXPECT_EQ(cores.threads, std::max<int64_t>(1, std::ssize(half) / 2));
    EXPECT_TRUE(cores.pinned.empty());
  }
  bind(all_);
}

}  // namespace
}  // namespace piper
