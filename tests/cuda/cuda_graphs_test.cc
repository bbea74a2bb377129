// Steps as graphs where ranks communicate over NCCL, on faked libraries (fake_cuda/fake.h), which
// check what may stand in a graph: the bits of steps that are queued op by op. And what no step
// does, as a graph or not: memory is taken and handles are made before the first.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <mutex>

#include "folder.h"
#include "over_nccl.h"

namespace piper::cuda_graphs_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 5;

// Calls of the faked libraries, which are one.
template <class Function>
Function* of_fake(const char* name) {
  static void* const library = dlopen(PIPER_FAKE_CUDA "/nccl/libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
int64_t calls_of(const char* name) {
  return of_fake<int64_t(const char*)>("fake_cuda_calls")(name);
}
int64_t fail_captured(int64_t number) {
  return of_fake<int64_t(int64_t)>("fake_cuda_fail_captured")(number);
}
int report() { return of_fake<int()>("fake_cuda_report")(); }
void seed(int64_t number) { of_fake<void(int64_t)>("fake_cuda_seed")(number); }

// What takes memory, or makes what lasts.
int64_t memory_calls() {
  int64_t count = 0;
  for (const char* name : {"cuMemAlloc", "cuMemFree", "cuMemHost", "cuMemCreate", "cuMemRelease",
                           "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddress",
                           "cuStreamCreate", "cuStreamDestroy", "cuEventCreate", "cuEventDestroy",
                           "cuModule", "cuGreen", "cuFunc", "nvrtc", "ncclCommInit"})
    count += calls_of(name);
  return count;
}

Result<Compiled> compiled(const MlpJob& job) { return compile_mlp(job); }

struct Trained {
  std::vector<double> losses;
  std::vector<std::string> parameters;  // their bytes
  std::vector<Error> errors;            // of ranks
  int64_t graphs = 0;                   // that were queued
  int64_t memory = 0;                   // calls for it, from the first step to the end of the last
  bool operator==(const Trained& other) const {
    return losses == other.losses && parameters == other.parameters;
  }
};

// Each rank as a process of its own would run it, or, where they are not `apart`, as threads that
// copy from each other. The last one ends before the step `fails_at`.
Trained train(const PlanSet& set, bool graphs, bool apart = true, int64_t fails_at = -1) {
  Trained made;
  const Numbers data(*data_needs(set));
  std::mutex mutex;
  std::optional<int64_t> memory;
  JobOptions options;
  options.steps = kSteps;
  options.backend = "cuda";
  options.threads = 1;
  options.graphs = graphs;
  options.start_timeout_s = options.grace_s = 20;
  options.before_step = [&](int64_t rank, int64_t step, const Executor&) -> Status {
    const std::lock_guard lock(mutex);
    if (!memory) memory = memory_calls();
    if (rank + 1 == set.world() && step == fails_at) return fail("the last rank ends");
    return ok_status();
  };
  options.on_step = [&](const StepMetrics& metrics) {
    const std::lock_guard lock(mutex);
    made.losses.push_back(metrics.loss.value_or(0));
    made.memory = memory_calls() - *memory;
    return ok_status();
  };
  const int64_t before = calls_of("cuGraphLaunch");
  const auto keep = [&](Result<JobResult> result, bool is_first) {
    if (!result) return made.errors.push_back(result.error());
    for (const NamedTensor& each : result->parameters)
      if (is_first)
        made.parameters.emplace_back(reinterpret_cast<const char*>(each.data.data), each.data.size);
  };
  if (!apart) {
    keep(run_job(set, &data, nullptr, nullptr, options), true);
  } else {
    std::vector<Result<JobResult>> ranks = run_over_nccl(set, data, options, 20);
    for (size_t rank = 0; rank < ranks.size(); ++rank) keep(std::move(ranks[rank]), rank == 0);
  }
  made.graphs = calls_of("cuGraphLaunch") - before;
  return made;
}

class Graphs : public testing::TestWithParam<MlpJob> {
 protected:
  static void SetUpTestSuite() {
    static const Folder cache;
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/nccl", 1);
    setenv("FAKE_CUDA_DEVICES", "4", 1);  // NCCL has one for each rank
    setenv("XDG_CACHE_HOME", std::string(cache.path()).c_str(), 1);
  }
};

TEST_P(Graphs, ChangeNoBit) {
  const auto plans = compiled(GetParam());
  ASSERT_TRUE(plans) << print_error(plans.error());
  const Trained plain = train(plans->set, false);
  ASSERT_TRUE(plain.errors.empty()) << print_error(plain.errors[0]);
  ASSERT_EQ(plain.losses.size(), static_cast<size_t>(kSteps));
  ASSERT_FALSE(plain.parameters.empty());
  EXPECT_EQ(plain.graphs, 0);
  EXPECT_EQ(plain.memory, 0);
  EXPECT_GT(memory_calls(), 0);
  for (int64_t number = 1; number <= 3; ++number) {
    SCOPED_TRACE(fmt::format("seed {}", number));
    seed(number);
    const Trained made = train(plans->set, true);
    ASSERT_TRUE(made.errors.empty()) << print_error(made.errors[0]);
    EXPECT_TRUE(made == plain);
    EXPECT_EQ(made.graphs, plans->set.world() * (kSteps - 1));
    EXPECT_EQ(made.memory, 0);
  }
  EXPECT_EQ(report(), 0);
}
INSTANTIATE_TEST_SUITE_P(
    Strategies, Graphs,
    testing::Values(
        MlpJob{"ddp", "ddp", {{"dp", "3"}, {"microbatches", "2"}}},
        MlpJob{
            "fast",
            "ddp",
            {{"dp", "2"}},
            "directives:\n  - name: replicate\n    replicate: {over: dp, reduce: {sum: fast}}\n"},
        MlpJob{"zero3", "zero3", {{"dp", "2"}, {"microbatches", "2"}}},
        MlpJob{"stages", "1f1b", {{"stages", "2"}, {"dp", "2"}, {"microbatches", "3"}}},
        MlpJob{
            "halves_of_backward", "zb-h1", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "4"}}},
        MlpJob{"both_ways", "dualpipev", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "6"}}},
        MlpJob{"tensor",
               "tensor/tensor",
               {{"tp", "2"}},
               "directives:\n  - name: columns\n    shard: {match: ['**/0/*'], dim: 0, over: tp}\n"
               "  - name: rows\n    shard: {match: ['**/2/weight'], dim: 1, over: tp}\n"}),
    [](const auto& info) { return info.param.name; });

// A call that makes a graph fails once. Then all ranks queue their steps op by op, which is
// said, or the run ends with an error that names rank and step; nothing is left behind.
class GraphsThatFail : public Graphs {};

TEST_P(GraphsThatFail, AreSaid) {
  const auto plans = compiled(GetParam());
  ASSERT_TRUE(plans) << print_error(plans.error());
  const Trained plain = train(plans->set, false);
  ASSERT_TRUE(plain.errors.empty()) << print_error(plain.errors[0]);
  fail_captured(0);
  train(plans->set, true);
  const int64_t count = fail_captured(0);
  ASSERT_GT(count, 50);
  // The first, which let streams into the graph, and some others; PIPER_SEED draws these.
  constexpr int64_t kFirst = 9;
  const char* const drawn = std::getenv("PIPER_SEED");
  const int64_t each = count / 12, first = 1 + (drawn ? std::atoll(drawn) * kFirst : 0) % each;
  int64_t without = 0, ended = 0;
  for (int64_t call = first; call <= count; call += call < kFirst ? 1 : each) {
    fail_captured(call);
    testing::internal::CaptureStderr();
    const Trained made = train(plans->set, true);
    const int wrong = report();
    const std::string said = testing::internal::GetCapturedStderr();
    SCOPED_TRACE(fmt::format("call {} of {}: {}", call, count, said));
    ASSERT_EQ(wrong, 0);
    const bool is_said = said.find(": no graph of its step, ") != std::string::npos;
    if (made.errors.empty()) {
      EXPECT_TRUE(made == plain);
      EXPECT_EQ(made.graphs, is_said ? 0 : plans->set.world() * (kSteps - 1));
      without += is_said;
      continue;
    }
    ++ended;
    EXPECT_FALSE(is_said);
    EXPECT_TRUE(std::ranges::any_of(made.errors, [](const Error& error) {
      return error.message.find("rank ") != std::string::npos &&
             error.message.find("step ") != std::string::npos;
    })) << print_error(made.errors[0]);
  }
  EXPECT_GT(without + ended, 8);
}
INSTANTIATE_TEST_SUITE_P(
    Strategies, GraphsThatFail,
    testing::Values(MlpJob{
        "stages", "1f1b", {{"stages", "2"}, {"dp", "2"}, {"microbatches", "3"}}}),
    [](const auto& info) { return info.param.name; });

// What the others have queued of the step ends, with its communicators and their graphs.
TEST_F(Graphs, EndWhereARankHasEnded) {
  const auto plans = compiled({"", "ddp", {{"dp", "2"}}});
  ASSERT_TRUE(plans) << print_error(plans.error());
  const Trained made = train(plans->set, true, true, 3);
  ASSERT_EQ(made.errors.size(), 2u);
  for (const Error& error : made.errors)
    EXPECT_THAT(error.message, HasSubstr("the last rank ends"));
  EXPECT_EQ(report(), 0);
}

// Ranks of one process order their copies by events, which hosts record: no graph.
TEST_F(Graphs, AreNotOfRanksThatCopyFromEachOther) {
  const auto plans = compiled({"", "zb-h1", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "4"}}});
  ASSERT_TRUE(plans) << print_error(plans.error());
  const Trained one = train(*plans->single, true), made = train(plans->set, true, false);
  ASSERT_TRUE(made.errors.empty()) << print_error(made.errors[0]);
  EXPECT_TRUE(made == one);
  EXPECT_EQ(one.graphs, kSteps - 1);
  EXPECT_EQ(made.graphs, 0);
  EXPECT_EQ(one.memory, 0);
  EXPECT_EQ(made.memory, 0);
}

// Ranks that are threads load the same programs: each source is compiled once.
TEST_F(Graphs, AreOfKernelsThatOneRankCompilesForAll) {
  const auto plans = compiled({"", "ddp", {{"dp", "3"}}});
  ASSERT_TRUE(plans) << print_error(plans.error());
  const Folder cache;
  const std::string before = std::getenv("XDG_CACHE_HOME");
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  const int64_t compiled_before = calls_of("nvrtcCompileProgram");
  const Trained made = train(plans->set, true, false);
  setenv("XDG_CACHE_HOME", before.c_str(), 1);
  ASSERT_TRUE(made.errors.empty()) << print_error(made.errors[0]);
  const auto files = std::distance(std::filesystem::directory_iterator(cache.path() + "/piper"),
                                   std::filesystem::directory_iterator());
  EXPECT_GT(files, 3);
  EXPECT_EQ(calls_of("nvrtcCompileProgram") - compiled_before, files);
}

// A launcher's number of the process says which device a rank takes that is a process, and says
// nothing of ranks that are threads.
TEST_F(Graphs, AreOfTheDeviceThatALauncherSays) {
  const auto plans = compiled({"", "ddp", {{"dp", "2"}}});
  ASSERT_TRUE(plans) << print_error(plans.error());
  const auto contexts = [] {
    std::vector<int64_t> of_device;
    for (int device = 0; device < 4; ++device)
      of_device.push_back(calls_of(fmt::format("context of device {}", device).c_str()));
    return of_device;
  };
  const auto taken = [&](const PlanSet& set, bool apart) {
    std::vector<int64_t> before = contexts();
    setenv("SLURM_LOCALID", "3", 1);
    const Trained made = train(set, true, apart);
    unsetenv("SLURM_LOCALID");
    EXPECT_TRUE(made.errors.empty()) << print_error(made.errors[0]);
    std::vector<int64_t> more = contexts();
    for (size_t device = 0; device < more.size(); ++device) more[device] -= before[device];
    return more;
  };
  EXPECT_EQ(taken(*plans->single, true), (std::vector<int64_t>{0, 0, 0, 1}));
  EXPECT_EQ(taken(plans->set, false), (std::vector<int64_t>{1, 1, 0, 0}));
}

}  // namespace
}  // namespace piper::cuda_graphs_test
