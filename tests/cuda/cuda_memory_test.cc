// The device's memory: what a plan states is all that its ranks take, in whole pages, by the count
// of the (faked) driver; for strategies of every kind. Nothing else is taken while they train.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "folder.h"
#include "piper/planner/compile.h"
#include "piper/runtime/job.h"

namespace piper::cuda_memory_test {
namespace {

constexpr int64_t kPage = int64_t{2} << 20;
int64_t in_pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class Zeros final : public BatchSource {
 public:
  explicit Zeros(const PlanSet& set) : needs_(*data_needs(set)) {}
  Status read(int64_t, int input, int64_t, int64_t count, std::byte* to) const override {
    const TensorType& type = needs_[static_cast<size_t>(input)].type;
    std::memset(to, 0, static_cast<size_t>(type.bytes() / type.shape[0] * count));
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  std::vector<InputNeed> needs_;
};

// Of the device, as the driver counts it; the thread has a context.
int64_t device_bytes() {
  static void* const driver = dlopen(PIPER_FAKE_CUDA "/nccl/libcuda.so.1", RTLD_LAZY);
  static const auto ask =
      reinterpret_cast<int (*)(size_t*, size_t*)>(dlsym(driver, "cuMemGetInfo_v2"));
  size_t left = 0, all = 0;
  return ask && ask(&left, &all) == 0 ? static_cast<int64_t>(all - left) : -1;
}

struct Job {
  const char* name;
  const char* strategy;  // of the library; "": a rank
  std::vector<Definition> definitions;
  const char* more = "";  // of the strategy
};

class CudaMemory : public testing::TestWithParam<Job> {
 protected:
  static void SetUpTestSuite() {
    static const Folder cache;
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/nccl", 1);
    setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
    setenv("FAKE_CUDA_DEVICES", "1", 1);
  }
  static Result<PlanSet> plans(const Job& job) {
    const Folder folder;
    const std::string source = PIPER_SOURCE_DIR;
    std::string text = "piper: 1\ntrain: {global_batch: 24, optimizer: {adamw: {lr: 1e-2}}}\n";
    if (*job.strategy)
      text += fmt::format("include: {}/strategies/{}.yaml\n", source, job.strategy);
    PIPER_ASSIGN(Compiled compiled,
                 compile({.model = source + "/tests/data/mlp.onnx",
                          .strategy = folder.write("strategy.yaml", text + job.more),
                          .defines = job.definitions,
                          .target = "cuda",
                          .oracles = false}));
    return std::move(compiled.set);
  }
  // Ranks as threads of one device; `look` is called by rank 0 before each step, when all are
  // loaded.
  static Result<JobResult> run(const PlanSet& set, int64_t steps,
                               std::function<void(const Executor&, int64_t)> look) {
    const Zeros data(set);
    JobOptions options;
    options.backend = "cuda";
    options.threads = 1;
    options.steps = steps;
    options.on_error = [](const Error&) {};
    options.before_step = [&](int64_t rank, int64_t step, const Executor& executor) {
      if (rank == 0) look(executor, step);
      return ok_status();
    };
    return run_job(set, &data, nullptr, nullptr, options);
  }
};

TEST_P(CudaMemory, IsWhatPlansState) {
  const auto set = plans(GetParam());
  ASSERT_TRUE(set) << print_error(set.error());
  int64_t expected = 0;
  for (const int32_t role : set->role_of_rank)
    expected += in_pages(set->roles[static_cast<size_t>(role)].peak_bytes());
  int64_t looks = 0;
  const auto result = run(*set, 2, [&](const Executor& executor, int64_t step) {
    EXPECT_EQ(device_bytes(), expected) << "step " << step;
    const RoleProgram& role = executor.role();
    EXPECT_EQ(executor.backend().taken().device, in_pages(role.peak_bytes()));
    EXPECT_EQ(executor.backend().taken().host, role.host_bytes + role.staging_bytes);
    ++looks;
  });
  ASSERT_TRUE(result) << print_error(result.error());
  EXPECT_EQ(looks, 2);
  int64_t most = 0;
  for (const RoleProgram& role : set->roles) most = std::max(most, in_pages(role.peak_bytes()));
  EXPECT_EQ(result->taken_bytes, most);
}
constexpr const char* kHalves = "directives:\n  - precision: {compute: bf16}\n";
INSTANTIATE_TEST_SUITE_P(
    Strategies, CudaMemory,
    testing::Values(Job{"one_rank_in_halves", "", {}, kHalves},
                    Job{"ddp_in_halves", "ddp", {{"dp", "2"}}, kHalves},
                    Job{"zero3", "zero3", {{"dp", "2"}, {"microbatches", "2"}}},
                    Job{"stages", "1f1b", {{"stages", "2"}, {"dp", "1"}, {"microbatches", "3"}}}),
    [](const auto& info) { return info.param.name; });

// A control for each part: a plan that states 256 bytes less is refused, before it trains.
TEST_F(CudaMemory, LessThanIsTakenIsRefused) {
  const auto set = plans({"", "ddp", {{"dp", "2"}}});
  ASSERT_TRUE(set) << print_error(set.error());
  ASSERT_GT(set->roles[0].transport_bytes, 0);
  for (int64_t RoleProgram::*part : {&RoleProgram::transport_bytes, &RoleProgram::scratch_bytes}) {
    PlanSet less = *set;
    less.roles[0].*part -= 256;
    const auto result = run(less, 2, [](const Executor&, int64_t) {});
    ASSERT_FALSE(result) << "nobody missed it";
    EXPECT_EQ(result.error().code, ExitCode::kPlan) << result.error().message;
    EXPECT_NE(result.error().message.find("the plan states "), std::string::npos)
        << result.error().message;
  }
}

}  // namespace
}  // namespace piper::cuda_memory_test
