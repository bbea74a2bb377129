// Every program of whole plans on the host's emulation beside the CPU backend: what is joined,
// placed and written over in real chunks, not op by op.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "fake_cuda/run_program.h"
#include "folder.h"
#include "piper/backend_cpu.h"
#include "piper/compile.h"
#include "piper/halves.h"

namespace piper {
namespace {

struct Job {
  const char* name;
  const char* model;
  const char* strategy;
};
constexpr Job kJobs[] = {
    {"one_device", "samples/gpt/model.onnx",
     "piper: 1\ntrain: {global_batch: 4, optimizer: {adamw: {lr: 1e-3}}, clip_norm: 1}\n"
     "directives:\n  - split: {dim: batch, into: 2, as: mb}\n"},
    {"tensor", "samples/gpt/model.onnx",
     "piper: 1\ninclude: @/strategies/tensor/sequence.yaml\nparams: {tp: 2}\n"
     "train: {global_batch: 2, optimizer: {adamw: {lr: 1e-3}}}\n"},
    {"in_bf16", "samples/gpt/model.onnx",
     "piper: 1\ntrain: {global_batch: 2, optimizer: {adamw: {lr: 1e-3}}, clip_norm: 1}\n"
     "directives:\n  - precision: {compute: bf16}\n"},
    {"recomputed", "tests/data/mlp.onnx",
     "piper: 1\ninclude: [@/strategies/schedules/zb-h1.yaml, @/strategies/memory/zero3.yaml]\n"
     "params: {stages: 2, dp: 2, microbatches: 4}\n"
     "train: {global_batch: 16, optimizer: {sgd: {lr: 1e-2, momentum: 0.9}}, clip_norm: 1}\n"}};

RoleProgram role_of(const Job& job) {
  const Folder folder;
  std::string text = job.strategy;
  const std::string source = PIPER_SOURCE_DIR;
  for (size_t at; (at = text.find('@')) != std::string::npos;) text.replace(at, 1, source);
  const auto compiled = compile({.model = source + "/" + job.model,
                                 .strategy = folder.write("strategy.yaml", text),
                                 .target = "cuda",
                                 .oracles = false});
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  return compiled ? compiled->set.roles[0] : RoleProgram();
}

// Which integers an argument may have: below the least extent that any op may look up in.
int64_t below(const Program& program, int32_t arg) {
  int64_t least = 4;
  for (const ProgramOp& op : program.ops) {
    const bool looks = op.op == "Gather" || op.op.starts_with("CrossEntropy");
    if (!looks || op.inputs.size() < 2 || op.inputs[1] != arg) continue;
    const Shape& shape = program.values[static_cast<size_t>(op.inputs[0])].shape;
    least = std::min(least, op.op == "Gather" ? shape[0] : shape.back());
  }
  return least;
}

Bytes draw(const TensorType& type, std::mt19937_64& random, int64_t least_behind) {
  std::string bytes(static_cast<size_t>(type.bytes()), '\0');
  const auto number = [&] { return static_cast<double>(random() >> 11) * 0x1p-53 + 0.05; };
  for (int64_t i = 0; i < num_elements(type.shape); ++i) {
    char* const at = bytes.data() + i * info(type.dtype).bytes;
    const auto store = [&](auto x) { std::memcpy(at, &x, sizeof x); };
    const auto narrow = static_cast<float>(number());
    uint16_t half = 0;
    switch (type.dtype) {
      case DType::kF64:
        store(number());
        break;
      case DType::kF32:
        store(narrow);
        break;
      case DType::kI64:
        store(static_cast<int64_t>(random() % static_cast<uint64_t>(least_behind)));
        break;
      case DType::kI32:
        store(static_cast<int32_t>(random() % static_cast<uint64_t>(least_behind)));
        break;
      case DType::kBool:
        store(static_cast<uint8_t>(random() % 2));
        break;
      default:
        round_to_halves(type.dtype, &narrow, reinterpret_cast<std::byte*>(&half), 1);
        store(half);
    }
  }
  return Bytes::copy_of(bytes.data(), bytes.size());
}

double element(const TensorType& type, const std::byte* bytes, int64_t i) {
  const std::byte* const at = bytes + i * info(type.dtype).bytes;
  const auto load = [&](auto x) {
    std::memcpy(&x, at, sizeof x);
    return static_cast<double>(x);
  };
  switch (type.dtype) {
    case DType::kF64:
      return load(double{});
    case DType::kF32:
      return load(float{});
    case DType::kI64:
      return load(int64_t{});
    case DType::kI32:
      return load(int32_t{});
    case DType::kBool:
      return load(uint8_t{});
    default: {
      uint16_t half = 0;
      std::memcpy(&half, at, sizeof half);
      return float_of_half(type.dtype, half);
    }
  }
}

std::vector<Bytes> run_on_cpu(const Program& program, const std::vector<Bytes>& arguments) {
  const auto backend = make_cpu_backend();
  const auto loaded = backend->load(program);
  EXPECT_TRUE(loaded) << print_error(loaded.error());
  std::vector<std::byte*> args;
  for (size_t a = 0; a < arguments.size(); ++a) {
    args.push_back(*backend->allocate(program.values[a].bytes()));
    if (arguments[a].size > 0) std::memcpy(args.back(), arguments[a].data, arguments[a].size);
  }
  const auto bound =
      backend->bind(*loaded, args, *backend->allocate(backend->workspace_bytes(*loaded)));
  EXPECT_TRUE(bound);
  backend->launch(*bound);
  std::vector<Bytes> results;
  for (size_t a = 0; a < args.size(); ++a)
    results.push_back(Bytes::copy_of(args[a], static_cast<size_t>(program.values[a].bytes())));
  return results;
}

class PlanPrograms : public testing::TestWithParam<Job> {};

TEST_P(PlanPrograms, GiveWhatTheCpuGives) {
  const RoleProgram role = role_of(GetParam());
  std::mt19937_64 random(7);
  for (const Program& program : role.programs) {
    SCOPED_TRACE(program.label);
    // What is rounded to 16 bits on the way may be rounded the other way.
    const bool is_narrow = std::any_of(program.values.begin(), program.values.end(),
                                       [](const TensorType& type) { return is_half(type.dtype); });
    std::vector<Bytes> arguments;
    for (int32_t a = 0; a < program.num_args; ++a) {
      const auto at = static_cast<size_t>(a);
      arguments.push_back(program.arg_read[at] ? draw(program.values[at], random, below(program, a))
                                               : Bytes());
    }
    const std::vector<Bytes> expected = run_on_cpu(program, arguments);
    const auto made = emulator::run_on_host(program, arguments);
    ASSERT_TRUE(made) << print_error(made.error());
    for (int32_t a = 0; a < program.num_args; ++a) {
      const auto at = static_cast<size_t>(a);
      if (!program.arg_written[at]) continue;
      const TensorType& type = program.values[at];
      double greatest = 1e-3, worst = 0;
      for (int64_t i = 0; i < num_elements(type.shape); ++i)
        greatest = std::max(greatest, std::abs(element(type, expected[at].data, i)));
      for (int64_t i = 0; i < num_elements(type.shape); ++i)
        worst = std::max(worst, std::abs(element(type, (*made)[at].data, i) -
                                         element(type, expected[at].data, i)));
      EXPECT_LE(worst / greatest, is_narrow ? 2e-2 : 2e-4)
          << "argument " << a << " " << to_string(type);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Jobs, PlanPrograms, testing::ValuesIn(kJobs),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace piper
