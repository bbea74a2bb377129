// What the graphs that cuDNN is given mean: the backend cuda on faked libraries, with a cuDNN among
// them that goes through a graph operation by operation, beside the CPU backend.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "attention_plan.h"
#include "evaluate.h"
#include "libraries.h"
#include "piper/backend_cuda.h"
#include "piper/ops.h"

namespace piper {
namespace {

using namespace test;  // NOLINT: the helpers of this test
constexpr uint64_t kSeed = 20250312;

struct Case {
  DType type;
  int64_t queries, keys, heads, kv_heads, width, v_width;
  bool causal;
  std::vector<int64_t> tokens_first;

  TensorType operand(size_t i) const {  // q, k, v, y
    const bool of_keys = i == 1 || i == 2;
    const int64_t tokens = of_keys ? keys : queries, h = of_keys ? kv_heads : heads;
    const int64_t w = i > 1 ? v_width : width;
    return {type, tokens_first[i] ? Shape{2, tokens, h, w} : Shape{2, h, tokens, w}};
  }
};

struct Job {
  Program program;
  std::vector<std::string> data;  // of arguments
};

Job job_of(const Case& c) {
  Job job;
  std::mt19937_64 random(kSeed);
  const auto add = [&](const TensorType& type, bool is_read) {
    job.program.values.push_back(type);
    job.program.arg_read.push_back(is_read);
    job.program.arg_written.push_back(!is_read);
    std::string bytes(static_cast<size_t>(type.bytes()), '\0');
    if (is_read) {
      const Bytes drawn = to_bytes(draw(type, random, -1, 1, 2));
      std::memcpy(bytes.data(), drawn.data, drawn.size);
    }
    job.data.push_back(std::move(bytes));
    return job.program.num_args++;
  };
  Attrs attrs{{"tokens_first", c.tokens_first}, {"scale", 0.4}};
  if (c.causal) attrs.set("causal", int64_t{1});
  const int32_t q = add(c.operand(0), true), k = add(c.operand(1), true),
                v = add(c.operand(2), true), dy = add(c.operand(3), true);
  const int32_t y = add(c.operand(3), false),
                lse = add({DType::kF32, {2, c.heads, c.queries}}, false);
  std::vector<int32_t> made;
  for (size_t i = 0; i < 3; ++i) made.push_back(add(c.operand(i), false));
  job.program.label = "attention";
  job.program.ops = {{"Attention", attrs, {q, k, v}, {y, lse}},
                     {"AttentionGrad", attrs, {q, k, v, y, lse, dy}, made}};
  return job;
}

// What the arguments are afterwards.
std::vector<std::string> run(Backend& backend, const Job& job) {
  const int32_t loaded = must(backend.load(job.program));
  std::vector<std::byte*> args;
  std::vector<std::string> made = job.data;
  for (std::string& data : made) {
    args.push_back(must(backend.allocate(std::ssize(data))));
    backend.copy(args.back(), reinterpret_cast<const std::byte*>(data.data()), std::ssize(data), 0);
  }
  std::byte* const workspace = must(backend.allocate(backend.workspace_bytes(loaded) + 256));
  backend.launch(must(backend.bind(loaded, args, workspace)), 0);
  for (size_t a = 0; a < args.size(); ++a)
    backend.copy(reinterpret_cast<std::byte*>(made[a].data()), args[a], std::ssize(made[a]), 0);
  const int32_t event = must(backend.add_event());
  backend.record(event, 0);
  const Status status = backend.finish(event);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return made;
}

class CudnnNumbers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/cudnn:" PIPER_FAKE_CUDA "/all", 1);
    setenv("XDG_CACHE_HOME", PIPER_FAKE_CUDA "/cache", 1);
    setenv("FAKE_CUDA_CHECK", "1", 1);
  }
};

TEST_F(CudnnNumbers, AreThoseOfTheCpu) {
  const std::vector<int64_t> tokens(4, 1), heads(4, 0);
  const Case cases[] = {{DType::kBF16, 19, 19, 2, 2, 16, 16, true, tokens},
                        {DType::kF16, 19, 19, 4, 2, 8, 24, true, heads},
                        {DType::kF16, 7, 21, 2, 1, 16, 8, false, {1, 0, 0, 1}}};
  for (const Case& c : cases) {
    const Job job = job_of(c);
    std::vector<std::string> notes;
    const auto cuda = must(make_cuda_backend({.note = [&](const std::string& note) {
      if (note.starts_with("attention by")) notes.push_back(note);
    }}));
    const auto expected = run(*make_cpu_backend(), job), made = run(*cuda, job);
    EXPECT_EQ(notes, std::vector<std::string>{});  // of kernels in cuDNN's place
    const double bound = c.type == DType::kBF16 ? 2e-2 : 3e-3;
    for (size_t a = 0; a < made.size(); ++a) {
      const TensorType& type = job.program.values[a];
      const auto tensor = [&](const std::string& bytes) {
        return to_tensor(type, Bytes::copy_of(bytes.data(), bytes.size())).values;
      };
      const std::vector<double> actual = tensor(made[a]), wanted = tensor(expected[a]);
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(actual[i], wanted[i], bound * std::max(1.0, std::abs(wanted[i])))
            << "argument " << a << ", element " << i;
    }
  }
}

// Each call has the addresses of its samples and heads.
TEST_F(CudnnNumbers, SlicesFollowEachOther) {
  using namespace cuda;  // NOLINT: what is tested
  DeviceAttention a{.is_gradient = true, .type = DType::kBF16};
  a.batch = 2, a.queries = a.keys = 4096, a.heads = 24, a.kv_heads = 12, a.width = a.v_width = 64;
  a.q = a.y = a.dq = {4096 * 24 * 64, 24 * 64, 64, 0};
  a.k = a.v = a.dk = a.dv = {4096 * 12 * 64, 12 * 64, 64, 0};
  a.v.first = 8;
  ASSERT_EQ(cudnn_slice(a).samples, 1);
  ASSERT_EQ(cudnn_slice(a).kv_heads, 3);
  const Cudnn& api = must(opened<Cudnn>())->functions;
  const DnnObject properties = must(dnn_properties(api, "{}"));
  const AttentionPlan plan = must(AttentionPlan::make(api, a, {.properties = &properties}));
  std::vector<std::byte> memory(1);
  const std::vector<std::byte*> operands(9, memory.data());
  const AttentionPlan::Calls calls = must(plan.bind(operands, memory.data()));
  ASSERT_EQ(calls.size(), 8u);
  const AttentionGraph graph = attention_graph(a);
  for (size_t c = 0; c < calls.size(); ++c) {
    const auto sample = static_cast<int64_t>(c / 4), first = static_cast<int64_t>(c % 4) * 3;
    const std::byte* pointers[32] = {};
    int64_t count = 0;
    ASSERT_EQ(api.cudnnBackendGetAttribute(calls[c].get(), kDnnPackPointers, kDnnTypePointer, 32,
                                           &count, pointers),
              0);
    for (size_t p = 0; p < graph.places.size(); ++p) {
      const size_t operand = graph.places[p].operand;
      const bool is_sums = operand == 4, of_keys = operand == 1 || operand == 2 || operand > 6;
      const int64_t head = of_keys ? first : 2 * first;
      const int64_t expected = is_sums   ? (sample * 24 + head) * 4096 * 4
                               : of_keys ? (sample * 4096 * 12 + head) * 64 * 2
                                         : (sample * 4096 * 24 + head) * 64 * 2;
      EXPECT_EQ(pointers[p] - memory.data(), expected + (operand == 2 ? 16 : 0))
          << "call " << c << ", operand " << operand;
    }
  }
}

}  // namespace
}  // namespace piper
