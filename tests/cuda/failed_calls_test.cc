// Calls of the vendor's libraries that fail, once each, in jobs of ranks over NCCL (faked):
// wherever it is, the job ends soon, with an error that names the call and the rank, or it is a
// call that nothing depends on, and the job trains what it trains without. Nothing is left behind.
//
//     PIPER_FAILURES=N  so many failures (100)    PIPER_SEED=N  draws them
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <latch>
#include <random>

#include "api.h"
#include "at_once.h"
#include "folder.h"
#include "over_nccl.h"
#include "seed.h"

namespace piper::failed_calls_test {
namespace {

using testing::HasSubstr;

// Functions of the faked libraries, which are one.
template <class Function>
Function* of_fake(const char* name) {
  static void* const library = dlopen(PIPER_FAKE_CUDA "/nccl/libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
int64_t calls_of(const char* name) {
  return of_fake<int64_t(const char*)>("fake_cuda_calls_of")(name);
}
bool fail_call(const char* name, int64_t number) {
  return of_fake<int(const char*, int64_t)>("fake_cuda_fail_call")(name, number) != 0;
}
int report() { return of_fake<int()>("fake_cuda_report")(); }

const std::vector<const char*>& all_calls() {
#define PIPER_NAME(name, result, arguments) #name,
  static const std::vector<const char*> names{
      PIPER_CUDA_DRIVER(PIPER_NAME) PIPER_CUDA_GREEN(PIPER_NAME) PIPER_NVRTC(PIPER_NAME)
          PIPER_CUBLASLT(PIPER_NAME) PIPER_NCCL(PIPER_NAME) PIPER_NCCL_WINDOWS(PIPER_NAME)};
#undef PIPER_NAME
  return names;
}

struct Outcome {
  std::vector<Error> errors;            // of ranks
  std::vector<std::string> parameters;  // their bytes
  double seconds = 0;
};

// `begin_first` is called before any rank takes its first step: a rank that none waits for could
// already make the graph of its second one.
Outcome train(const PlanSet& set, bool graphs, const std::function<void()>& begin_first = {}) {
  Outcome made;
  std::latch has_begun(1);
  const Numbers data(*data_needs(set));
  JobOptions options;
  options.steps = 3;
  options.backend = "cuda";
  options.threads = 1;
  options.graphs = graphs;
  options.start_timeout_s = options.grace_s = kNever;
  options.before_step = [&](int64_t rank, int64_t step, const Executor&) -> Status {
    if (step > 0 || !begin_first) return ok_status();
    if (rank == 0) {
      begin_first();
      has_begun.count_down();
    }
    has_begun.wait();
    return ok_status();
  };
  const auto begun = std::chrono::steady_clock::now();
  std::vector<Result<JobResult>> ranks = run_over_nccl(set, data, options, kNever);
  made.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  for (const Result<JobResult>& rank : ranks)
    if (!rank) made.errors.push_back(rank.error());
  if (!made.errors.empty()) return made;
  for (const NamedTensor& each : ranks[0]->parameters)
    made.parameters.emplace_back(reinterpret_cast<const char*>(each.data.data), each.data.size);
  return made;
}

// How often a run calls each function.
std::vector<std::pair<std::string, int64_t>> count_calls(const PlanSet& set, bool graphs) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const char* name : all_calls()) counts.emplace_back(name, -calls_of(name));
  train(set, graphs);
  for (auto& [name, count] : counts) count += calls_of(name.c_str());
  std::erase_if(counts, [](const auto& each) { return each.second == 0; });
  return counts;
}

// Calls without which a job goes on: those that release what it has had, the first try for memory
// that other processes may map, and those of a graph, where all ranks say that they have none.
bool may_go_on(const std::string& call, const std::string& said) {
  const auto has = [&](const char* word) { return call.find(word) != std::string::npos; };
  const bool releases = has("Destroy") || has("Free") || has("Release") || has("Unmap") ||
                        has("Unload") || has("Deregister") || call == "ncclCommFinalize" ||
                        call == "cuCtxSynchronize" || call == "cuCtxSetCurrent";
  return releases || call == "cuMemCreate" ||
         said.find(": no graph of its step, ") != std::string::npos;
}

bool names(const Outcome& outcome, const std::string& call) {
  return std::ranges::any_of(outcome.errors, [&](const Error& error) {
    return error.message.find(call) != std::string::npos &&
           error.message.find("rank ") != std::string::npos;
  });
}

class FailedCalls : public testing::TestWithParam<MlpJob> {
 protected:
  static void SetUpTestSuite() {
    static const Folder cache;
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/nccl", 1);
    setenv("FAKE_CUDA_DEVICES", "4", 1);  // one for each rank
    setenv("FAKE_CUDA_PAGE", "4096", 1);  // so that all memory is mapped
    setenv("XDG_CACHE_HOME", std::string(cache.path()).c_str(), 1);
  }
};

TEST_P(FailedCalls, EndTheJobOrChangeNothing) {
  const MlpJob& job = GetParam();
  const auto plans = compile_mlp(job);
  ASSERT_TRUE(plans) << print_error(plans.error());
  const Outcome right = train(plans->set, true);
  ASSERT_TRUE(right.errors.empty()) << print_error(right.errors[0]);
  const std::vector<std::pair<std::string, int64_t>> counts[] = {count_calls(plans->set, false),
                                                                 count_calls(plans->set, true)};
  const char* const wanted = std::getenv("PIPER_FAILURES");
  const int64_t failures = (wanted ? std::atoll(wanted) : 100) / 4 + 1;  // there are four jobs
  const uint64_t seed = given_seed().value_or(1);
  std::mt19937_64 random(seed);
  int64_t ended = 0, went_on = 0, not_reached = 0;
  double longest = 0;
  for (int64_t n = 0; n < failures; ++n) {
    const bool graphs = n % 2 != 0;
    const auto& [call, count] = counts[n % 2][random() % counts[n % 2].size()];
    const auto number = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(count));
    fail_call(call.c_str(), number);
    testing::internal::CaptureStderr();
    const Outcome made = train(plans->set, graphs);
    const bool has_failed = fail_call("", 0);
    const int wrong = report();
    const std::string said = testing::internal::GetCapturedStderr();
    SCOPED_TRACE(fmt::format("failure {} of PIPER_SEED={}: call {} of {} of {}, graphs {}: {}", n,
                             seed, number, count, call, graphs ? "on" : "off", said));
    EXPECT_EQ(wrong, 0);
    EXPECT_LT(made.seconds, kAtOnce);
    longest = std::max(longest, made.seconds);
    if (made.errors.empty()) {
      EXPECT_TRUE(made.parameters == right.parameters);
      (has_failed ? went_on : not_reached) += 1;
      EXPECT_TRUE(!has_failed || may_go_on(call, said)) << "nobody missed it";
      continue;
    }
    ++ended;
    EXPECT_TRUE(has_failed);
    EXPECT_EQ(made.errors.size(), static_cast<size_t>(plans->set.world()));
    EXPECT_TRUE(names(made, call)) << print_error(made.errors[0]);
  }
  fmt::print("{}: {} ended, {} went on, {} were not reached; the longest took {:.2f} s\n", job.name,
             ended, went_on, not_reached, longest);
  EXPECT_GT(ended, failures / 3);
}

// The second step makes graphs. What failed in the first is no reason to do without them.
TEST_P(FailedCalls, OfTheFirstStepEndTheJob) {
  const auto plans = compile_mlp(GetParam());
  ASSERT_TRUE(plans) << print_error(plans.error());
  for (const char* call : {"cuLaunchKernel", "cuMemcpyAsync"}) {
    const Outcome made = train(plans->set, true, [&] { fail_call(call, 1); });
    EXPECT_TRUE(fail_call("", 0)) << call << " was not called";
    EXPECT_EQ(report(), 0);
    ASSERT_EQ(made.errors.size(), static_cast<size_t>(plans->set.world()));
    EXPECT_TRUE(names(made, call)) << print_error(made.errors[0]);
    EXPECT_LT(made.seconds, kAtOnce);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Jobs, FailedCalls,
    testing::Values(
        MlpJob{"stages", "1f1b", {{"stages", "2"}, {"dp", "2"}, {"microbatches", "3"}}},
        MlpJob{"both_ways", "dualpipe", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "4"}}},
        MlpJob{"shards", "zero3", {{"dp", "2"}, {"microbatches", "2"}}},
        MlpJob{
            "fast",
            "ddp",
            {{"dp", "3"}},
            "directives:\n  - name: replicate\n    replicate: {over: dp, reduce: {sum: fast}}\n"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace piper::failed_calls_test
