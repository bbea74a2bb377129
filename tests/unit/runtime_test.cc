// Executors and jobs on role programs made by hand: small enough that every number can be checked
// by eye.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "at_once.h"
#include "forwarding.h"
#include "piper/base/data.h"
#include "piper/devices/cpu.h"
#include "piper/devices/null.h"
#include "piper/plan/lanes.h"
#include "piper/runtime/job.h"
#include "sanitizer.h"
#include "unit/runtime_plans.h"

// ---- Counting every allocation of the program ---------------------------------------------------

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  if (counting.load()) allocations.fetch_add(1);
  void* block = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    block = std::malloc(size == 0 ? 1 : size);
  } else if (posix_memalign(&block, alignment, size) != 0) {
    block = nullptr;
  }
  if (block == nullptr) std::abort();
  return block;
}
}  // namespace

void* operator new(std::size_t size) { return counted(size, 1); }
void* operator new[](std::size_t size) { return counted(size, 1); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t a) {
  return counted(size, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t size, std::align_val_t a) {
  return counted(size, static_cast<std::size_t>(a));
}
void* operator new(std::size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(size, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(size, static_cast<std::size_t>(a));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(block);
}
void operator delete[](void* block, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(block);
}

namespace piper::runtime_test {
namespace {

using namespace plans;  // NOLINT: the fixtures of this test

std::vector<float> floats(const NamedTensor& tensor) {
  std::vector<float> values(tensor.data.size / 4);
  std::memcpy(values.data(), tensor.data.data, tensor.data.size);
  return values;
}

Result<JobResult> run(const PlanSet& set, const BatchSource& data, const JobOptions& options) {
  return run_job(set, &data, nullptr, nullptr, options);
}

std::string message_of(const Result<JobResult>& result) {
  return result.ok() ? "ok" : result.error().message;
}

// ---- What a step computes -----------------------------------------------------------------------

TEST(Executor, PipelineAddsOnBothRanks) {
  PlanSet set = pipeline(3);
  Numbers data({1});
  JobOptions options;
  options.steps = 2;
  auto result = run(set, data, options);
  ASSERT_TRUE(result.ok()) << message_of(result);
  ASSERT_EQ(result->steps.size(), 2u);
  // Sample i of step s is 100 s + i + 1 in every element; rank 0 adds 10, rank 1 adds 0.5 and sums
  // the microbatches.
  EXPECT_EQ(result->steps[0].loss, 3 * 10.5 + 1 + 2 + 3);
  EXPECT_EQ(result->steps[1].loss, 3 * 10.5 + 101 + 102 + 103);
  EXPECT_EQ(result->steps[0].step, 0);
  EXPECT_FALSE(result->steps[0].grad_norm.has_value());
  EXPECT_EQ(result->steps[0].peak_bytes, set.roles[0].peak_bytes());  // the larger
}

TEST(Executor, ReplicasAddInRankOrderAndKeepEqualParameters) {
  PlanSet set = replicas(4);
  Numbers data({5, 1});
  JobOptions options;
  options.steps = 3;
  auto result = run(set, data, options);
  ASSERT_TRUE(result.ok()) << message_of(result);
  // p starts at 1; each step adds sum over ranks of (x + p), x = 100 s + rank + 1.
  float p = 1;
  for (int s = 0; s < 3; ++s) {
    float sum = 100.f * static_cast<float>(s) + 1 + p;
    for (int r = 1; r < 4; ++r)
      sum += 100.f * static_cast<float>(s) + static_cast<float>(r) + 1 + p;
    p += sum;
  }
  ASSERT_EQ(result->parameters.size(), 2u);  // under its name and its alias
  EXPECT_EQ(result->parameters[0].name, "tied.p");
  EXPECT_EQ(result->parameters[1].name, "w.p");
  for (float value : floats(result->parameters[1])) EXPECT_EQ(value, p);
  EXPECT_EQ(result->steps[2].loss, 4 * 200 + 1 + 2 + 3 + 4);
}

TEST(Executor, InitialValuesComeFromTheSet) {
  PlanSet set = replicas(2);
  set.roles[0].tensor(0).init = "w0";
  std::vector<float> values = {1, 2, 3, 4, 5};
  set.tensors.emplace_back("w0", Bytes::copy_of(values.data(), 20));
  Numbers data({5, 1});
  JobOptions options;
  options.steps = 0;
  auto result = run(set, data, options);
  ASSERT_TRUE(result.ok()) << message_of(result);
  EXPECT_EQ(floats(result->parameters[1]), values);
  options.parameters = false;
  EXPECT_TRUE(run(set, data, options)->parameters.empty());
  set.tensors[0].first = "w1";
  EXPECT_EQ(message_of(run(set, data, options)),
            "the plan set holds no initial value 'w0' for buffer 'p'");
}

TEST(Executor, AStepAllocatesNothing) {
  PlanSet set = pipeline(4);
  PlanSet dp = replicas(2);
  PlanSet helped = meanwhile();
  for (const PlanSet* one : {&set, &dp, &helped}) {
    for (const char* backend : {"null", "cpu"}) {
      Numbers data(one == &dp ? std::vector<int64_t>{5, 1} : std::vector<int64_t>{1});
      auto world = make_inproc_world(2, TransportOptions{30});
      std::atomic<int> ready{0};
      std::vector<std::string> wrong(2);
      auto rank = [&](int64_t r) {
        Transport& transport = world->rank(r);
        auto kernels =
            std::string_view(backend) == "cpu" ? make_cpu_backend() : make_null_backend();
        RankSource source{one, r, &data, nullptr, 2, one == &helped};
        auto executor = Executor::load(source, *kernels, transport.control(), transport.fabric());
        std::string& text = wrong[static_cast<size_t>(r)];
        if (!executor) {
          text = executor.error().message;
          return;
        }
        auto step = [&](int64_t s) {
          if (Status status = (*executor)->run_step(s); !status) text = status.error().message;
        };
        for (int64_t s = 0; s < 3; ++s) step(s);
        (void)transport.control().barrier();
        if (r == 0) counting.store(true);
        (void)transport.control().barrier();
        for (int64_t s = 0; s < 100; ++s) step(s);
        (void)transport.control().barrier();
        if (r == 0) counting.store(false);
        (void)transport.control().barrier();
      };
      allocations.store(0);
      std::thread other(rank, 1);
      rank(0);
      other.join();
      EXPECT_EQ(wrong, (std::vector<std::string>{"", ""}));
      EXPECT_EQ(allocations.load(), 0) << backend;
    }
  }
  counting.store(true);
  delete new int;  // the counter does count
  counting.store(false);
  EXPECT_GT(allocations.load(), 0);
}

// ---- Threads beside a rank's own ----------------------------------------------------------------

// Of rank 0's last step, for which rank 1 comes late.
std::vector<TraceEvent> trace_meanwhile(HelperThread helper) {
  const PlanSet set = meanwhile();
  Numbers data({1});
  JobOptions options;
  options.steps = 3;
  options.trace_steps = 1;
  options.helper = helper;
  options.before_step = [](int64_t rank, int64_t step, const Executor&) {
    if (rank == 1 && step == 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return ok_status();
  };
  const auto result = run(set, data, options);
  EXPECT_TRUE(result.ok()) << message_of(result);
  if (!result) return {};
  for (size_t step = 0; step < 3; ++step)
    EXPECT_EQ(result->steps[step].loss, 100 * static_cast<double>(step) + 21.5);
  EXPECT_EQ(result->traces[0].events.size(), 3u);
  return result->traces[0].events;
}

TEST(Helper, ARankComputesWhileItWaitsForAMessage) {
  const auto with = trace_meanwhile(HelperThread::kOn),
             without = trace_meanwhile(HelperThread::kOff);
  ASSERT_TRUE(with.size() == 3 && without.size() == 3);
  EXPECT_LT(with[1].end_us, with[0].end_us);          // "meanwhile", before the message is there
  EXPECT_GE(with[2].start_us, with[0].end_us);        // "sum", after it
  EXPECT_GE(without[1].start_us, without[0].end_us);  // one after the other
}

TEST(Helper, IsThereOnlyForStreamsThatDoNotCompute) {
  EXPECT_TRUE(TwoThreads(meanwhile().roles[0]).overlaps());
  EXPECT_FALSE(TwoThreads(pipeline(2).roles[0]).overlaps());
  EXPECT_FALSE(TwoThreads(replicas(2).roles[0]).overlaps());
}

// Data that end before `last`.
class Ending final : public BatchSource {
 public:
  explicit Ending(int64_t last) : last_(last) {}
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    if (step >= last_) return fail("tokens.bin: 900 is no token").with_code(ExitCode::kUsage);
    return numbers_.read(step, input, first, count, to);
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  const int64_t last_;
  const Numbers numbers_{{1}};
};

// What is read a step ahead fails in the step that needs it, and where none does it fails nobody.
TEST(Helper, AnErrorOfDataComesInItsStep) {
  const PlanSet set = meanwhile();
  for (const HelperThread helper : {HelperThread::kOff, HelperThread::kOn}) {
    int64_t done = 0;
    JobOptions options;
    options.helper = helper;
    options.steps = 9;
    options.on_step = [&](const StepMetrics&) {
      ++done;
      return ok_status();
    };
    EXPECT_EQ(message_of(run(set, Ending(2), options)),
              "step 3, instruction 0 (input x): tokens.bin: 900 is no token");
    EXPECT_EQ(done, 2);
    options.steps = 2;
    EXPECT_EQ(message_of(run(set, Ending(2), options)), "ok");
  }
}

TEST(Helper, AMissingMessageIsNamedAsWithoutIt) {
  PlanSet set = meanwhile();
  set.roles[1].body.pop_back();
  Numbers data({1});
  JobOptions options;
  options.timeout_s = 1;
  options.helper = HelperThread::kOn;
  const auto result = run(set, data, options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ExitCode::kPeer);
  const std::vector<std::string>& notes = result.error().notes;
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "rank 0 is at instruction 0 (recv v)"), 1)
      << print_error(result.error());
}

// ---- Failures -----------------------------------------------------------------------------------

TEST(Faults, AMissingMessageNamesRankInstructionAndPeer) {
  PlanSet set = pipeline(3);
  set.roles[0].body.pop_back();  // the send of the last microbatch
  Numbers data({1});
  JobOptions options;
  options.timeout_s = 2;
  auto result = run(set, data, options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ExitCode::kPeer);
  // Both ranks begin to wait at the same moment, rank 0 for the other's results; whose deadline
  // passes first is the machine's choice. Either way instruction and both peers are named.
  const std::string& said = result.error().message;
  EXPECT_TRUE(said ==
                  "step 1, instruction 5 (recv y mb=2): rank 1 waited 2 s for a message on "
                  "communicator 0 from rank 0, which waits for rank 1" ||
              said ==
                  "after step 1: rank 0 waited 2 s in the exchange after the step for rank 1, "
                  "which waits for rank 0")
      << said;
  const std::vector<std::string>& notes = result.error().notes;
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_EQ(notes[0], "they wait for each other");
  for (const char* one :
       {"rank 0 is at the end of its step", "rank 1 is at instruction 5 (recv y mb=2)"})
    EXPECT_EQ(std::count(notes.begin(), notes.end(), one), 1) << one;
}

TEST(Faults, ARankThatStopsEndsAllAtOnce) {
  PlanSet set = pipeline(3);
  Numbers data({1});
  JobOptions options;
  options.steps = 10;
  options.timeout_s = kNever;
  options.before_step = [](int64_t rank, int64_t step, const Executor&) -> Status {
    if (rank == 1 && step == 4) return fail("out of memory").with_code(ExitCode::kStorage);
    return ok_status();
  };
  auto start = std::chrono::steady_clock::now();
  auto result = run(set, data, options);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kAtOnce);
  EXPECT_EQ(message_of(result), "out of memory");
  EXPECT_EQ(result.error().code, ExitCode::kStorage);
}

TEST(Faults, ARankThatHangsIsNamedWithItsInstruction) {
  PlanSet set = replicas(2);
  Numbers data({5, 1});
  JobOptions options;
  options.timeout_s = 0.5;
  std::atomic<bool> is_said = false;
  bool was_said_meanwhile = false;
  options.before_step = [&](int64_t rank, int64_t, const Executor&) {
    for (int i = 0; rank == 1 && !is_said && i < 10 * kAtOnce; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (rank == 1) was_said_meanwhile = is_said;
    return ok_status();
  };
  std::string said;
  options.on_error = [&](const Error& error) {
    said = error.message;
    is_said = true;
  };
  auto result = run(set, data, options);
  EXPECT_EQ(said, message_of(result));
  EXPECT_TRUE(was_said_meanwhile) << "the error waited for the rank that hangs";
  EXPECT_EQ(
      message_of(result),
      "step 1, instruction 3 (all_reduce grad w): rank 0 waited 0.5 s in the all-reduce of ranks "
      "[0,1] for rank 1");
}

// Threads cannot be ended: the process is.
TEST(Faults, ARankThatNeverComesBackEndsTheProcess) {
  if (kThreadSanitizer) {
    GTEST_SKIP()
        << "such a thread is a leak to the thread sanitizer, which has an exit code of its own";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stuck = [] {
    PlanSet set = replicas(2);
    Numbers data({5, 1});
    JobOptions options;
    options.timeout_s = 0.3;
    options.grace_s = 0.2;
    options.before_step = [](int64_t rank, int64_t, const Executor&) {
      while (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
      return ok_status();
    };
    static_cast<void>(run(set, data, options));
  };
  EXPECT_EXIT(stuck(), testing::ExitedWithCode(static_cast<int>(ExitCode::kPeer)),
              "rank 0 waited 0.3 s in the all-reduce of ranks .0,1. for rank 1");
}

TEST(Faults, ALossThatIsNotFiniteEndsTheRun) {
  PlanSet set = pipeline(2);
  Numbers data({1});
  data.nan_step = 2;
  JobOptions options;
  options.steps = 5;
  auto result = run(set, data, options);
  EXPECT_EQ(message_of(result), "step 3: the loss is nan");
  EXPECT_EQ(result.error().code, ExitCode::kNumeric);
}

TEST(Faults, WrongPlansAreRefusedAtLoad) {
  Numbers data({1});
  JobOptions options;
  PlanSet set = pipeline(2);
  set.roles[1].communicators[0].from = {7};
  EXPECT_EQ(message_of(run(set, data, options)), "rank 1 of 2 has no peer of rank 7");
  set.roles[1].communicators[0] = {.from = {3}, .to = {0}, .streams = {0, 0}};
  EXPECT_EQ(message_of(run(set, data, options)),
            "rank 1, instruction 0 (recv y mb=0): its communicator is of other ranks");
  set = pipeline(2);
  set.roles[0].programs[0].ops[0].op = "NoSuchOp";
  EXPECT_NE(message_of(run(set, data, options)).find("NoSuchOp"), std::string::npos);
  set = pipeline(2);
  set.roles[0].body[0].samples.count = 2;
  EXPECT_EQ(message_of(run(set, data, options)),
            "rank 0, instruction 0 (input x mb=0): samples [0, 2) of input 'x' do not fit f32[1]");
  set = pipeline(2);
  EXPECT_EQ(message_of(run_job(set, nullptr, nullptr, nullptr, options)),
            "the plan reads the input 'x', and there are no data for it");
}

TEST(Faults, PlansForOtherDevicesAndOfTooLittleMemoryAreRefusedAtLoad) {
  Numbers data({1});
  PlanSet set = pipeline(2);
  set.roles[0].target = "tpu";
  auto result = run(set, data, {});
  EXPECT_EQ(message_of(result),
            "the plan is made for the target 'tpu', which the cpu backend does not run");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ExitCode::kPlan);

  // The square of a matrix waits in the workspace for the product with it.
  Program cube;
  cube.label = "cube";
  cube.num_args = 2;
  cube.values.assign(3, {DType::kF32, {2, 2}});
  cube.ops.resize(2);
  cube.ops[0] = {.op = "MatMul", .inputs = {0, 0}, .outputs = {2}};
  cube.ops[1] = {.op = "MatMul", .inputs = {2, 0}, .outputs = {1}};
  cube.arg_read = {true, false};
  cube.arg_written = {false, true};
  RoleProgram role;
  role.mesh = {{"pp", 1}};
  role.batch = 1;
  role.inputs = {{"x", {DType::kF32, {1}}, 0}};
  role.programs = {cube};
  add_buffer(role, "w", {2, 2}, BufferKind::kConstant, 1);
  add_buffer(role, "y", {2, 2});
  add_buffer(role, "x", {1});
  role.body = {input("x", 2, 0, {0}, "x"), compute(0, {0, 1}, "cube")};
  role.reports = {{"loss", 2}};
  set = finish({role}, {0});
  set.roles[0].target = "cpu";
  set.roles[0].workspace_bytes = {15};
  result = run(set, data, {});
  EXPECT_EQ(message_of(result),
            "programs on stream 'compute' take 256 bytes for their values, the plan states 15");
  set.roles[0].workspace_bytes = {256};
  EXPECT_EQ(message_of(run(set, data, {})), "ok");
}

// ---- Comparison with an oracle ------------------------------------------------------------------

Result<JobResult> compare(VerifyAgainst against, const PlanSet& reference,
                          double param_bound = 3e-4, float offset = 0) {
  PlanSet set = replicas(2);
  Numbers data({5, 1});
  Numbers reference_data({5, 1});
  reference_data.offset = offset;
  JobOptions options;
  options.steps = 3;
  options.verify.against = against;
  options.verify.param_bound = param_bound;
  return run_job(set, &data, &reference, &reference_data, options);
}

TEST(Verify, EqualPlansAreEqual) {
  for (auto against : {VerifyAgainst::kSingle, VerifyAgainst::kUncut}) {
    auto result = compare(against, replicas_oracle(2));
    ASSERT_TRUE(result.ok()) << message_of(result);
    EXPECT_EQ(result->compared_parameters, 1);
    EXPECT_EQ(result->worst_param_error, 0);
  }
}

std::string far_in_16_bits(const char* flag) {
  return fmt::format(
      "help: '{}' sets the bound, which is meant for 32 bits: plans that compute or send in 16 "
      "bits, and optimizers that take a gradient's sign (Lion), differ by more where sums are "
      "added in another order",
      flag);
}

TEST(Verify, NamesTheLoss) {
  auto single = compare(VerifyAgainst::kSingle, replicas_oracle(2), 3e-4, 1);
  EXPECT_EQ(message_of(single),
            "step 1: the loss differs from the single-device plan: 3 here, 5 there");
  EXPECT_EQ(single.error().code, ExitCode::kNumeric);
  auto uncut = compare(VerifyAgainst::kUncut, replicas_oracle(2), 3e-4, 1);
  EXPECT_EQ(
      message_of(uncut),
      "step 1: the loss differs from the uncut plan: 3 here, 5 there (error 0.4, bound 0.0001)");
  EXPECT_EQ(uncut.error().notes, std::vector{far_in_16_bits("--loss-bound")});
  EXPECT_TRUE(single.error().notes.empty());
}

// p of the oracle starts with one other element; both add 2 + 3 and twice p.
PlanSet changed_oracle(float value, size_t at = 3) {
  PlanSet reference = replicas_oracle(2);
  reference.roles[0].tensor(0).init = "w0";
  std::vector<float> values(5, 1);
  values[at] = value;
  reference.tensors.emplace_back("w0", Bytes::copy_of(values.data(), 20));
  return reference;
}

TEST(Verify, NamesTheElement) {
  EXPECT_EQ(message_of(compare(VerifyAgainst::kSingle, changed_oracle(1.5f))),
            "step 1: parameter 'w.p' differs from the single-device plan at [0,3]: 6 on rank 0, "
            "7.5 there");
  EXPECT_EQ(message_of(compare(VerifyAgainst::kUncut, changed_oracle(1.5f))),
            "step 1: parameter 'w.p' is further from the uncut plan than 0.0003: error 0.2, most "
            "at [0,3]: 6 on "
            "rank 0, 7.5 there");
}

TEST(Verify, NoElementHidesANaN) {
  for (const size_t at : {0, 2, 4}) {
    const auto far = compare(VerifyAgainst::kUncut, changed_oracle(NAN, at));
    EXPECT_EQ(message_of(far),
              fmt::format("step 1: parameter 'w.p' is further from the uncut plan than 0.0003: "
                          "error nan, most at [0,{}]: 6 on rank 0, nan there",
                          at));
  }
}

// An Adam that never runs: what counts is that the plan has one.
PlanSet with_adam(PlanSet reference, double eps) {
  Program program;
  program.label = "update";
  program.num_args = 9;
  program.values.assign(9, {DType::kF32, {2}});
  program.values[4] = {DType::kF64, {}};
  program.values[5] = {DType::kI64, {}};
  ProgramOp op;
  op.op = "AdamW";
  op.attrs = {{"eps", eps}, {"weight_decay", 0.0}};
  op.inputs = {0, 1, 2, 3, 4, -1, 5};
  op.outputs = {6, 7, 8};
  program.ops = {op};
  program.arg_read = {true, true, true, true, true, true, false, false, false};
  program.arg_written = {false, false, false, false, false, false, true, true, true};
  reference.roles[0].programs.push_back(program);
  return reference;
}

TEST(Verify, NamesASmallEps) {
  const auto small = compare(VerifyAgainst::kUncut, with_adam(changed_oracle(1.5f), 1e-8));
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().message.substr(0, 43), "step 1: parameter 'w.p' is further from the");
  EXPECT_EQ(
      small.error().notes,
      (std::vector<std::string>{
          "the optimizer divides a gradient by its size plus eps = 1e-08: where a gradient is only "
          "rounding, as that of a key's bias, its step is no smaller, and differs from "
          "one cut of the batch to the next",
          "help: compare with 'eps: 1e-06', or with sgd", far_in_16_bits("--param-bound")}));
  for (const PlanSet& reference : {changed_oracle(1.5f), with_adam(changed_oracle(1.5f), 1e-6)}) {
    const auto far = compare(VerifyAgainst::kUncut, reference);
    ASSERT_FALSE(far);
    EXPECT_EQ(far.error().notes, std::vector{far_in_16_bits("--param-bound")});
  }
  EXPECT_TRUE(
      compare(VerifyAgainst::kSingle, with_adam(changed_oracle(1.5f), 1e-8)).error().notes.empty());
}

TEST(Verify, BoundsAreBounds) {
  float next = 1 + 0x1p-20f;
  EXPECT_FALSE(compare(VerifyAgainst::kSingle, changed_oracle(next)).ok());
  EXPECT_TRUE(compare(VerifyAgainst::kUncut, changed_oracle(next)).ok());
  EXPECT_FALSE(compare(VerifyAgainst::kUncut, changed_oracle(next), 1e-9).ok());
}

TEST(Verify, OtherParametersAreRefused) {
  PlanSet reference = replicas_oracle(2);
  reference.roles[0].tensor(0).param = "other";
  auto result = compare(VerifyAgainst::kSingle, reference);
  EXPECT_EQ(message_of(result),
            "rank 0 trains the parameter 'w.p', which the single-device plan does not have");
  EXPECT_EQ(result.error().code, ExitCode::kPlan);
}

// ---- Ends of a run ------------------------------------------------------------------------------

TEST(Job, StopsAfterTheStepUnderWay) {
  PlanSet set = pipeline(2);
  Numbers data({1});
  std::atomic<bool> stop{false};
  JobOptions options;
  options.steps = 1000;
  options.stop = &stop;
  options.on_step = [&](const StepMetrics& metrics) {
    if (metrics.step == 6) stop.store(true);
    return ok_status();
  };
  auto result = run(set, data, options);
  ASSERT_TRUE(result.ok()) << message_of(result);
  EXPECT_TRUE(result->interrupted);
  EXPECT_EQ(result->steps.size(), 7u);
}

// The memory of a job does not grow with its steps.
TEST(Job, KeepsTheMetricsOfItsLastSteps) {
  PlanSet set = pipeline(3);
  Numbers data({1});
  JobOptions options;
  options.steps = 5000;
  const auto result = run(set, data, options);
  ASSERT_TRUE(result.ok()) << message_of(result);
  EXPECT_GE(result->steps.size(), kKeptSteps);
  EXPECT_LE(result->steps.size(), 2 * kKeptSteps);
  EXPECT_EQ(result->steps.back().step, 4999);
  EXPECT_EQ(result->steps.front().step, 5000 - std::ssize(result->steps));
  EXPECT_EQ(result->totals.done, 5000);
  EXPECT_EQ(result->totals.ended, 5000);
  EXPECT_EQ(result->totals.first_loss, 3 * 10.5 + 1 + 2 + 3);
}

TEST(Job, StopsAtTheTarget) {
  PlanSet set = pipeline(2);
  Numbers data({1});
  data.falling = true;
  JobOptions options;
  options.steps = 1000;
  options.target_loss = 0;
  auto result = run(set, data, options);
  ASSERT_TRUE(result.ok()) << message_of(result);
  EXPECT_TRUE(result->reached_target);
  EXPECT_GE(result->steps.size(), 20u);
  EXPECT_LT(result->steps.size(), 1000u);
}

// ---- Devices that work asynchronously -----------------------------------------------------------

// Takes what is queued; when and how it ends, the test says.
struct Stuck {
  bool is_done = false;
  Status polled = ok_status();
  int aborts = 0;
};
class StuckFabric final : public Forwarding {
 public:
  StuckFabric(Fabric& inner, Stuck& how) : Forwarding(inner), how_(how) {}
  bool is_asynchronous() const override { return true; }
  Status send(int32_t, const std::byte*, int64_t) override { return ok_status(); }
  Status recv(int32_t, std::byte*, int64_t) override { return ok_status(); }
  Status poll() override { return how_.polled; }
  void abort() override { ++how_.aborts; }

 private:
  Stuck& how_;
};
class StuckDevice final : public Backend {
 public:
  StuckDevice(Fabric* inner, Stuck& how) : inner_(inner), how_(how) {}
  std::string_view name() const override { return "stuck"; }
  bool runs(std::string_view) const override { return true; }
  bool is_asynchronous() const override { return true; }
  Result<std::byte*> allocate(int64_t bytes, Space space) override {
    return null_->allocate(bytes, space);
  }
  Result<int32_t> load(const Program& program) override { return null_->load(program); }
  int64_t workspace_bytes(int32_t) const override { return 0; }
  Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                       std::byte* workspace) override {
    return null_->bind(program, args, workspace);
  }
  void launch(int32_t, int32_t) override {}
  void copy(std::byte*, const std::byte*, int64_t, int32_t) override {}
  void fill(std::byte*, const TensorType&, double, int32_t) override {}
  Result<bool> is_done(int32_t) override { return how_.is_done; }
  Result<std::unique_ptr<Fabric>> make_fabric(const FabricSource& source) override {
    EXPECT_TRUE(source.local.empty());
    std::unique_ptr<Fabric> made;
    if (inner_ != nullptr) made = std::make_unique<StuckFabric>(*inner_, how_);
    return made;
  }

 private:
  Fabric* inner_;
  Stuck& how_;
  std::unique_ptr<Backend> null_ = make_null_backend();
};

// The errors of two ranks on such devices, each of which stops the other.
std::vector<std::string> run_stuck(std::vector<Stuck>& how, bool own_fabric = true) {
  const PlanSet set = pipeline(2);
  const Numbers data({1});
  const auto world = make_inproc_world(2, TransportOptions{30});
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      Transport& transport = world->rank(static_cast<int64_t>(r));
      StuckDevice device(own_fabric ? &transport.fabric() : nullptr, how[r]);
      JobOptions options;
      options.steps = 3;
      options.timeout_s = 0.4 * static_cast<double>(r + 1);
      const auto result = run_rank_here(set, &data, nullptr, nullptr, transport, options, &device);
      said[r] = message_of(result);
      if (!result) transport.control().abort(result.error());
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST(AsynchronousFabric, ThatNeverCompletesEndsInAnErrorThatNamesTheInstruction) {
  std::vector<Stuck> how(2);
  const auto start = std::chrono::steady_clock::now();
  const auto said = run_stuck(how);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(said[0],
            "rank 0 waited 0.4 s for its device in step 1; what it queued last is instruction 5 "
            "(send y mb=1)");
  EXPECT_EQ(said[1], "rank 1 stopped because rank 0 failed: " + said[0]);
  EXPECT_LT(took.count(), kAtOnce);
  EXPECT_EQ(how[0].aborts, 1);
  EXPECT_EQ(how[1].aborts, 1);
}

TEST(AsynchronousFabric, SaysWhatHasGoneWrong) {
  std::vector<Stuck> how(2);
  how[1].polled = fail("communicator 0 is broken").with_code(ExitCode::kPeer);
  const auto said = run_stuck(how);
  EXPECT_EQ(said[1], "rank 1, step 1: communicator 0 is broken");
  EXPECT_EQ(said[0], "rank 0 stopped because rank 1 failed: " + said[1]);
}

TEST(AsynchronousFabric, IsNotAbortedWhereAllIsWell) {
  std::vector<Stuck> how(2, {true});
  EXPECT_EQ(run_stuck(how), std::vector<std::string>(2, "ok"));
  EXPECT_EQ(how[0].aborts + how[1].aborts, 0);
}

TEST(AsynchronousFabric, IsWhatAnAsynchronousBackendNeeds) {
  std::vector<Stuck> how(2);
  for (const std::string& one : run_stuck(how, false))
    EXPECT_EQ(one,
              "the stuck backend and the inproc fabric do not work together: only one of them "
              "queues");
}

// ---- What people see ----------------------------------------------------------------------------

TEST(Trace, HoldsTheLastStepOfEveryRank) {
  PlanSet set = pipeline(2);
  Numbers data({1});
  JobOptions options;
  options.steps = 5;
  options.trace_steps = 2;
  auto result = run(set, data, options);
  ASSERT_TRUE(result.ok()) << message_of(result);
  ASSERT_EQ(result->traces.size(), 2u);
  for (const RankTrace& trace : result->traces) {
    ASSERT_EQ(trace.events.size(), trace.role->body.size() * 2);
    EXPECT_EQ(trace.events.front().step, 3);
    EXPECT_EQ(trace.events.back().step, 4);
  }
  auto json = nlohmann::json::parse(print_trace(result->traces), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  int spans = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    EXPECT_GE(event["ts"].get<double>(), 0);
  }
  EXPECT_EQ(spans,
            static_cast<int>(result->traces[0].events.size() + result->traces[1].events.size()));
}

TEST(Metrics, OfMemoryAreOneLineOfJson) {
  MemoryMetrics memory{.stated_bytes = 4000, .taken_bytes = 4096, .free_after_load = 100};
  EXPECT_EQ(print_metrics(memory),
            "{\"memory\":{\"stated_bytes\":4000,\"taken_bytes\":4096,"
            "\"device_free_bytes_after_load\":100}}\n");
  memory.free_after_step_2 = 90;
  EXPECT_EQ(print_metrics(memory),
            "{\"memory\":{\"stated_bytes\":4000,\"taken_bytes\":4096,"
            "\"device_free_bytes_after_load\":100,\"device_free_bytes_after_step_2\":90}}\n");
}

TEST(Metrics, OneLineOfJson) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 2.5;
  metrics.tokens_per_s = 1000;
  metrics.step_ms = 1.5;
  metrics.peak_bytes = 4096;
  EXPECT_EQ(
      print_metrics(metrics),
      "{\"step\":4,\"loss\":2.5,\"grad_norm\":null,\"learning_rate\":null,\"tokens_per_s\":1000.0,"
      "\"step_ms\":1.5,\"peak_bytes\":4096}\n");
}

}  // namespace
}  // namespace piper::runtime_test
