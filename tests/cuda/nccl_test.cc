// Ranks with a device each that communicate over NCCL, on faked libraries: what one rank trains,
// bit for bit, and within rounding where the library adds up itself.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "at_once.h"
#include "folder.h"
#include "nccl_links.h"
#include "over_nccl.h"

namespace piper::nccl_test {
namespace {

constexpr int64_t kSteps = 3;
constexpr double kTimeout = 60;  // seconds

struct Job {
  const char* name;
  const char* strategy;
  std::vector<Definition> definitions;
  const char* more = "";  // of the strategy
  bool is_exact = true;
};

using Parameters = std::vector<NamedTensor>;

// A function of the faked libraries, which are one.
template <class Function>
Function* of_fake(const char* name) {
  static void* const library = dlopen(PIPER_FAKE_CUDA "/nccl/libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

JobOptions options_of() {
  JobOptions options;
  options.steps = kSteps;
  options.backend = "cuda";
  options.threads = 1;
  return options;
}

// Each rank as a process of its own would run it.
Result<Parameters> train(const PlanSet& set, bool graphs = true) {
  PIPER_ASSIGN(std::vector<InputNeed> needs, data_needs(set));
  const Numbers data(std::move(needs));
  JobOptions options = options_of();
  options.graphs = graphs;
  options.start_timeout_s = options.grace_s = kTimeout;
  std::vector<Result<JobResult>> ranks = run_over_nccl(set, data, options, kTimeout);
  for (const Result<JobResult>& rank : ranks)
    if (!rank) return rank.error();
  return std::move(ranks[0]->parameters);
}

class Nccl : public testing::TestWithParam<Job> {
 protected:
  static void SetUpTestSuite() {
    static const Folder cache;
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/nccl", 1);
    setenv("FAKE_CUDA_PAGE", "4096", 1);  // so that all memory is mapped
    setenv("FAKE_NVRTC_PLAIN", "1", 1);
    // The driver may load a kernel lazily, and the host then waits until all that is queued on its
    // device has ended, messages included. Each rank has a device of its own.
    setenv("FAKE_CUDA_LAZY", "1", 1);
    setenv("FAKE_CUDA_DEVICES", "4", 1);
    setenv("XDG_CACHE_HOME", std::string(cache.path()).c_str(), 1);
  }
  static void TearDownTestSuite() { unsetenv("FAKE_CUDA_LAZY"); }
};

TEST_P(Nccl, TrainsWhatOneRankTrains) {
  const Job& job = GetParam();
  const auto compiled = compile_mlp(job.strategy, job.definitions, job.more);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto many = train(compiled->set), op_by_op = train(compiled->set, /*graphs=*/false),
             one = train(*compiled->single);
  ASSERT_TRUE(many) << print_error(many.error());
  ASSERT_TRUE(op_by_op) << print_error(op_by_op.error());
  ASSERT_TRUE(one) << print_error(one.error());
  ASSERT_EQ(many->size(), one->size());
  ASSERT_FALSE(one->empty());
  bool is_same = true;
  for (size_t p = 0; p < one->size(); ++p) {
    const Bytes &a = (*many)[p].data, &b = (*one)[p].data, &plain = (*op_by_op)[p].data;
    ASSERT_EQ(a.size, b.size);
    ASSERT_EQ(a.size, plain.size);
    EXPECT_EQ(std::memcmp(a.data, plain.data, a.size), 0) << (*one)[p].name << " without graphs";
    is_same &= std::memcmp(a.data, b.data, a.size) == 0;
    EXPECT_TRUE(!job.is_exact || is_same) << (*one)[p].name;
    for (size_t i = 0; i + sizeof(float) <= a.size; i += sizeof(float)) {
      float x = 0, y = 0;
      std::memcpy(&x, a.data + i, sizeof x);
      std::memcpy(&y, b.data + i, sizeof y);
      ASSERT_NEAR(x, y, 1e-4) << (*one)[p].name;
    }
  }
  // The library adds in an order of its own: other bits say that it has.
  EXPECT_EQ(is_same, job.is_exact);
}
INSTANTIATE_TEST_SUITE_P(
    Strategies, Nccl,
    testing::Values(
        Job{"ddp", "ddp", {{"dp", "3"}, {"microbatches", "2"}}},
        Job{"fast",
            "ddp",
            {{"dp", "3"}},
            "directives:\n  - name: replicate\n    replicate: {over: dp, reduce: {sum: fast}}\n",
            false},
        Job{"fast_parts",
            "zero3",
            {{"dp", "3"}, {"microbatches", "2"}},
            "directives:\n  - name: replicate\n    replicate: {over: dp, shard: [optimizer, "
            "gradients, "
            "parameters], reduce: {sum: fast}}\n",
            false},
        Job{"zero3", "zero3", {{"dp", "2"}, {"microbatches", "2"}}},
        Job{"in_eight_bits",
            "zero3",
            {{"dp", "3"}, {"microbatches", "2"}},
            "directives:\n  - name: replicate\n    replicate: {over: dp, shard: [optimizer, "
            "gradients, "
            "parameters], gather: {dtype: int8, block: 32, lossy: true}, reduce: {dtype: float8, "
            "block: 32, lossy: true}}\n"},
        Job{"stages", "1f1b", {{"stages", "2"}, {"dp", "2"}, {"microbatches", "3"}}},
        Job{"both_ways", "dualpipev", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "6"}}},
        Job{"two_pipelines", "dualpipe", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "4"}}},
        Job{"crossed_pipelines", "chimera", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "4"}}}),
    [](const auto& info) { return info.param.name; });

// Counts a job's calls of a function of the faked library, by all ranks: before the first step of
// any, for which they wait for each other, and in all.
struct Calls {
  int64_t connecting = -1, all = 0;
};
Calls calls_of(const char* name, const PlanSet& set) {
  const auto now = [&] { return of_fake<int64_t(const char*)>("fake_cuda_calls")(name); };
  const int64_t before = now();
  Calls calls;
  std::barrier meet(static_cast<ptrdiff_t>(set.world()));
  JobOptions options = options_of();
  options.before_step = [&](int64_t rank, int64_t step, const Executor&) {
    if (step > 0) return ok_status();
    meet.arrive_and_wait();
    if (rank == 0) calls.connecting = now() - before;
    meet.arrive_and_wait();
    return ok_status();
  };
  const Numbers data(*data_needs(set));
  for (const auto& rank : run_over_nccl(set, data, options, kTimeout))
    EXPECT_TRUE(rank) << print_error(rank.error());
  calls.all = now() - before;
  return calls;
}

// A sum of one number connects what adds before the first step.
TEST_F(Nccl, FastSumsConnectBeforeTheFirstStep) {
  const auto compiled = compile_mlp(
      "ddp", {{"dp", "2"}},
      "directives:\n  - name: replicate\n    replicate: {over: dp, reduce: {sum: fast}}\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Calls sums = calls_of("ncclAllReduce", compiled->set);
  const auto& all = compiled->set.roles[0].communicators;
  EXPECT_EQ(sums.connecting,
            2 * std::ranges::count_if(all, [](const auto& each) { return !each.is_pair(); }));
}

// Parameters in parts are gathered by the library, which is connected for that before the first
// step.
TEST_F(Nccl, PartsAreGatheredByTheLibrary) {
  const auto compiled = compile_mlp("zero3", {{"dp", "2"}, {"microbatches", "2"}}, "");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Calls gathers = calls_of("ncclAllGather", compiled->set);
  std::set<int32_t> communicators;
  for (const Instruction& one : compiled->set.roles[0].body)
    if (one.kind == InstructionKind::kAllGather) communicators.insert(one.communicator);
  ASSERT_FALSE(communicators.empty());
  EXPECT_EQ(gathers.connecting, 2 * std::ssize(communicators));
  EXPECT_GT(gathers.all, gathers.connecting);
}

// What the plan says is kept; of the rest all that a rank may have under way at once get even
// shares, and are fewer than there are multiprocessors.
TEST(Blocks, AreSharedByWhatRunsAtOnce) {
  const Communicator group{.axes = {0}, .streams = {1}},
      forward{.from = {-1, 0}, .to = {-1, 1}, .streams = {0, 0}},
      backward{.from = {-1, 1}, .to = {-1, 0}, .streams = {0, 0}};
  const auto most = [](std::vector<Communicator> all, int multiprocessors) {
    return cuda::blocks_of(all, multiprocessors);
  };
  EXPECT_EQ(most({group}, 132).most, (std::vector<int>{32}));
  EXPECT_EQ(most({group}, 21).most, (std::vector<int>{20}));
  // At a place: the group's queue, that of what is sent, that of what is received.
  EXPECT_EQ(most({group, forward, backward}, 22).most, (std::vector<int>{7, 7, 7}));
  // A pair uses no more than 8, and leaves the others to the group.
  EXPECT_EQ(most({group, forward, backward}, 41).most, (std::vector<int>{24, 8, 8}));
  EXPECT_EQ(most({group, forward, backward}, 132).most, (std::vector<int>{32, 8, 8}));
  EXPECT_EQ(most({forward, backward}, 132).most, (std::vector<int>{8, 8}));
  Communicator said = group;
  said.sms = 8;
  EXPECT_EQ(most({said, forward, backward}, 61).most, (std::vector<int>{8, 8, 8}));
  EXPECT_EQ(most({said, forward, backward}, 19).most, (std::vector<int>{8, 5, 5}));
  Communicator wide = forward;
  wide.sms = 20;
  EXPECT_EQ(most({group, wide, backward}, 132).most, (std::vector<int>{32, 20, 8}));
  EXPECT_FALSE(most({said, forward, backward}, 61).are_too_many);
  EXPECT_TRUE(most({said, forward, backward}, 10).are_too_many);
  EXPECT_EQ(most({said, forward, backward}, 10).most, (std::vector<int>{8, 1, 1}));
  // Two groups of one stream follow each other.
  EXPECT_EQ(most({group, group}, 21).most, (std::vector<int>{20, 20}));
}

// A rank ends in the middle of a step. The others have kernels of two communicators queued, some of
// which stand behind a kernel of another one that waits for the rank that is gone.
TEST_F(Nccl, ARankThatEndsTakesTheOthersAlong) {
  const auto compiled =
      compile_mlp("1f1b", {{"stages", "2"}, {"dp", "2"}, {"microbatches", "3"}}, "");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Numbers data(*data_needs(compiled->set));
  for (const bool graphs : {false, true}) {
    for (int64_t gone = 0; gone < compiled->set.world(); ++gone) {
      SCOPED_TRACE(fmt::format("rank {}, graphs {}", gone, graphs ? "on" : "off"));
      JobOptions options = options_of();
      options.graphs = graphs;
      options.before_step = [&](int64_t rank, int64_t step, const Executor&) -> Status {
        if (rank == gone && step == 2) return fail("its host is out of order");
        return ok_status();
      };
      const auto begun = std::chrono::steady_clock::now();
      const auto ranks = run_over_nccl(compiled->set, data, options, kNever);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
      EXPECT_LT(took.count(), kAtOnce);
      for (int64_t rank = 0; rank < compiled->set.world(); ++rank) {
        const auto& result = ranks[static_cast<size_t>(rank)];
        ASSERT_FALSE(result);
        const std::string wanted =
            rank == gone ? "its host is out of order"
                         : fmt::format(
                               "rank {} stopped because rank {} failed: its host is out of "
                               "order",
                               rank, gone);
        EXPECT_NE(result.error().message.find(wanted), std::string::npos) << result.error().message;
      }
    }
  }
  EXPECT_EQ(of_fake<int()>("fake_cuda_report")(), 0);
}

// What another rank does not answer ends in an error that names it.
TEST_F(Nccl, ARankThatNeverComesIsMissed) {
  const auto world = make_inproc_world(2, TransportOptions{1});
  JobOptions options = options_of();
  options.start_timeout_s = 1;
  const Folder folder;
  const std::string source = PIPER_SOURCE_DIR;
  const auto compiled =
      compile({.model = source + "/tests/data/mlp.onnx",
               .strategy = folder.write("strategy.yaml",
                                        "piper: 1\ninclude: " + source +
                                            "/strategies/ddp.yaml\ntrain: {global_batch: 8}\n"),
               .defines = {{"dp", "2"}},
               .target = "cuda",
               .oracles = false});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Numbers data(*data_needs(compiled->set));
  const auto result =
      run_rank_here(compiled->set, &data, nullptr, nullptr, world->rank(0), options);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ExitCode::kPeer);
  EXPECT_NE(result.error().message.find("rank 0 waited 1 s"), std::string::npos)
      << result.error().message;
}

}  // namespace
}  // namespace piper::nccl_test
