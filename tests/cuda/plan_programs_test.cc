// The programs of whole plans, as the cuda backend makes and joins them, give what the CPU backend
// gives.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "evaluate.h"
#include "folder.h"
#include "piper/planner/compile.h"
#include "run_on_device.h"

namespace piper {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not that of plans

constexpr uint64_t kSeed = 20261124;

struct Case {
  const char* name;
  const char* strategy;
  bool is_narrow = false;
};
constexpr Case kCases[] = {
    {"F32", "train:\n  global_batch: 4\n  optimizer: {adamw: {lr: 1e-3}}\n  clip_norm: 1\n"},
    {"Bf16",
     "train:\n  global_batch: 4\n  optimizer: {adamw: {lr: 1e-3}}\n  clip_norm: 1\n"
     "directives:\n  - precision: {compute: bf16}\n",
     true},
    {"Tensor",
     "include: @/strategies/tensor/sequence.yaml\nparams: {tp: 2}\n"
     "train: {global_batch: 2, optimizer: {sgd: {lr: 1e-2, momentum: 0.9}}}\n"},
};

// Programs that were packed for another machine (tests/gpu/pack) are told where the sources are
// there.
std::string sources() {
  const char* told = std::getenv("PIPER_SOURCE");
  return told ? told : PIPER_SOURCE_DIR;
}

std::vector<Program> programs_of(const Case& one) {
  const Folder folder;
  std::string text = std::string("piper: 1\n") + one.strategy;
  if (const size_t at = text.find('@'); at != std::string::npos) text.replace(at, 1, sources());
  const auto compiled = compile({.model = sources() + "/samples/gpt/model.onnx",
                                 .strategy = folder.write("strategy.yaml", text),
                                 .target = "cuda",
                                 .oracles = false});
  EXPECT_TRUE(compiled.ok()) << print_error(compiled.error());
  return compiled ? compiled->set.roles[0].programs : std::vector<Program>();
}

std::vector<Bytes> draw_arguments(const Program& program) {
  std::mt19937_64 random(kSeed);
  std::vector<Bytes> arguments;
  for (size_t i = 0; i < static_cast<size_t>(program.num_args); ++i)
    arguments.push_back(
        program.arg_read[i] ? to_bytes(draw(program.values[i], random, -0.2, 0.3, 100)) : Bytes{});
  return arguments;
}

Result<std::vector<Bytes>> run_on_cpu(const Program& program, std::span<const Bytes> arguments) {
  const auto backend = make_cpu_backend();
  PIPER_ASSIGN(const int32_t loaded, backend->load(program));
  PIPER_ASSIGN(std::byte* const workspace, backend->allocate(backend->workspace_bytes(loaded)));
  std::vector<std::byte*> args;
  for (size_t i = 0; i < arguments.size(); ++i) {
    PIPER_ASSIGN(args.emplace_back(), backend->allocate(program.values[i].bytes()));
    if (arguments[i].data) std::memcpy(args[i], arguments[i].data, arguments[i].size);
  }
  PIPER_ASSIGN(const int32_t bound, backend->bind(loaded, args, workspace));
  backend->launch(bound);
  std::vector<Bytes> made;
  for (size_t i = 0; i < args.size(); ++i)
    made.push_back(Bytes::copy_of(args[i], static_cast<size_t>(program.values[i].bytes())));
  return made;
}

// The largest difference ÷ the largest number that is expected, or a small one.
double error_of(const TensorType& type, const Bytes& made, const Bytes& wanted) {
  const Tensor a = to_tensor(type, made), e = to_tensor(type, wanted);
  double scale = 1e-3, most = 0;
  for (const double x : e.values) scale = std::max(scale, std::abs(x));
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double x = a.values[i], y = e.values[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double difference = std::abs(x - y) / scale;
    most = std::max(most, std::isnan(difference) ? INFINITY : difference);
  }
  return most;
}

void expect_same(const Program& program, double bound) {
  const std::vector<Bytes> arguments = draw_arguments(program);
  const auto made = run_where_wanted(program, arguments);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const auto wanted = run_on_cpu(program, arguments);
  ASSERT_TRUE(wanted.ok()) << wanted.error().message;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!program.arg_written[i]) continue;
    EXPECT_LE(error_of(program.values[i], (*made)[i], (*wanted)[i]), bound)
        << "argument " << i << " of " << to_string(program.values[i]);
  }
}

class PlanPrograms : public ::testing::TestWithParam<Case> {};

// Compiles all programs for the host by two threads, since each compilation takes seconds.
void compile_on_host(const std::vector<Program>& programs) {
  std::vector<const Program*> left;
  for (const Program& program : programs) left.push_back(&program);
  std::mutex one_at_a_time;
  const auto compile_some = [&] {
    for (;;) {
      const Program* next = nullptr;
      {
        const std::lock_guard lock(one_at_a_time);
        if (left.empty()) return;
        next = left.back();
        left.pop_back();
      }
      const Status compiled = emulator::compile_on_host(*next);
      EXPECT_TRUE(compiled.ok()) << next->label << ": " << compiled.error().message;
    }
  };
  std::thread other(compile_some);
  compile_some();
  other.join();
}

TEST_P(PlanPrograms, AgreeWithTheCpu) {
  const std::vector<Program> programs = programs_of(GetParam());
  if (!is_on_device()) compile_on_host(programs);
  for (const Program& program : programs) {
    SCOPED_TRACE(fmt::format("program '{}' (seed {})", program.label, kSeed));
    expect_same(program, GetParam().is_narrow ? 2e-2 : 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(OfTheSample, PlanPrograms, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace piper
