// What the graphs that cuDNN is given mean: the backend cuda on faked libraries, with a cuDNN among
// them that goes through a graph operation by operation, beside the CPU backend. With a device,
// PIPER_CUDA_PATH=/usr/local/cuda/lib64 PIPER_ON_DEVICE=1 ask cuDNN itself.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "attention_plan.h"
#include "evaluate.h"
#include "libraries.h"
#include "piper/devices/cuda.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

using namespace test;  // NOLINT: the helpers of this test
constexpr uint64_t kSeed = 20250312;

constexpr double kLowest = -std::numeric_limits<double>::infinity();

// An attention, or several parts of its keys that are merged, and the gradients of each.
struct Case {
  DType type;
  int64_t queries, keys, heads, kv_heads, width, v_width;
  bool causal;
  std::vector<int64_t> tokens_first;
  int64_t offset = 0;
  double softcap = 0;
  std::optional<TensorType> mask = {};
  std::vector<int64_t> first = {};                    // of equal stretches of queries
  std::vector<std::vector<int64_t>> first_keys = {};  // of each part
  int64_t all_keys = keys;

  TensorType operand(size_t i) const {  // q, k, v, y
    const bool of_keys = i == 1 || i == 2;
    const int64_t tokens = of_keys ? keys : queries, h = of_keys ? kv_heads : heads;
    const int64_t w = i > 1 ? v_width : width;
    return {type, tokens_first[i] ? Shape{2, tokens, h, w} : Shape{2, h, tokens, w}};
  }
  Attrs attrs() const {
    Attrs a{{"tokens_first", tokens_first}, {"scale", 0.4}};
    if (causal) a.set("causal", int64_t{1}), a.set("offset", offset);
    if (softcap > 0) a.set("softcap", softcap);
    if (all_keys != keys && mask && mask->shape[3] != 1) a.set("keys", all_keys);
    return a;
  }
};

struct Job {
  Program program;
  std::vector<std::string> data, names;  // of arguments
  struct Place {
    size_t mask = 0, first = 0;  // arguments
    size_t op = 0, end = 0;      // its ops
    size_t first_argument = 0, end_argument = 0;
  };
  std::vector<Place> cases;
  std::mt19937_64 random{kSeed};

  int32_t add(const TensorType& type, std::optional<Bytes> data_read) {
    program.values.push_back(type);
    program.arg_read.push_back(data_read.has_value());
    program.arg_written.push_back(!data_read);
    std::string bytes(static_cast<size_t>(type.bytes()), '\0');
    if (data_read) std::memcpy(bytes.data(), data_read->data, bytes.size());
    data.push_back(std::move(bytes));
    names.emplace_back();
    return program.num_args++;
  }
  int32_t read(const TensorType& type) { return add(type, to_bytes(draw(type, random, -1, 1, 2))); }
  int32_t write(const TensorType& type, std::string name) {
    const int32_t argument = add(type, std::nullopt);
    names.back() = std::move(name);
    return argument;
  }
  int32_t numbers(const std::vector<int64_t>& of) {
    if (of.empty()) return -1;
    const Shape shape = of.size() == 1 ? Shape{} : Shape{std::ssize(of)};
    return add({DType::kI64, shape}, Bytes::copy_of(of.data(), of.size() * sizeof(int64_t)));
  }
  // Of which one row in five hides all keys, one the first ten, and each every third one.
  int32_t add_mask(const TensorType& type) {
    test::Tensor drawn = draw(type, random, -1, 1, 2);
    for (size_t i = 0; i < drawn.values.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / type.shape[3],
                    key = static_cast<int64_t>(i) % type.shape[3];
      const bool hides = row % 5 == 4 || (row % 5 == 1 && key < 10) || key % 3 == 1;
      if (type.dtype == DType::kBool) drawn.values[i] = hides ? 0 : 1;
      if (type.dtype != DType::kBool && hides) drawn.values[i] = kLowest;
    }
    return add(type, to_bytes(drawn));
  }
};

void add_case(Job& job, const Case& c) {
  const TensorType sums{DType::kF32, {2, c.heads, c.queries}};
  const size_t first_argument = job.data.size();
  const auto name = [&](const char* of, size_t part) {
    return c.first_keys.empty() ? std::string(of) : fmt::format("{}{}", of, part);
  };
  const int32_t q = job.read(c.operand(0)), dy = job.read(c.operand(3));
  const int32_t mask = c.mask ? job.add_mask(*c.mask) : -1, first = job.numbers(c.first);
  const size_t op = job.program.ops.size();
  std::vector<std::vector<int32_t>> parts;  // q, k, v, mask, first, first_key
  int32_t y = -1, lse = -1;
  for (size_t p = 0; p < std::max<size_t>(c.first_keys.size(), 1); ++p) {
    const int32_t k = job.read(c.operand(1)), v = job.read(c.operand(2));
    const int32_t first_key = job.numbers(c.first_keys.empty() ? Shape{} : c.first_keys[p]);
    parts.push_back({q, k, v, mask, first, first_key});
    while (parts.back().back() < 0) parts.back().pop_back();
    const std::vector<int32_t> made{job.write(c.operand(3), name("y", p)),
                                    job.write(sums, name("lse", p))};
    job.program.ops.push_back({"Attention", c.attrs(), parts.back(), made});
    if (p > 0) {
      const std::vector<int32_t> all{job.write(c.operand(3), name("y to ", p)),
                                     job.write(sums, name("lse to ", p))};
      job.program.ops.push_back({"AttentionMerge",
                                 {{"tokens_first", c.tokens_first[3]}},
                                 {y, lse, made[0], made[1]},
                                 all});
      y = all[0], lse = all[1];
    } else {
      y = made[0], lse = made[1];
    }
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    std::vector<int32_t> inputs = parts[p], made;
    inputs.insert(inputs.begin() + 3, {y, lse, dy});
    constexpr const char* kGradients[] = {"dq", "dk", "dv"};
    for (size_t i = 0; i < 3; ++i) made.push_back(job.write(c.operand(i), name(kGradients[i], p)));
    job.program.ops.push_back({"AttentionGrad", c.attrs(), inputs, made});
  }
  job.cases.push_back({static_cast<size_t>(mask), static_cast<size_t>(first), op,
                       job.program.ops.size(), first_argument, job.data.size()});
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
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/cudnn:" PIPER_FAKE_CUDA "/all", 0);
    setenv("XDG_CACHE_HOME", PIPER_FAKE_CUDA "/cache", 1);
    setenv("FAKE_CUDA_CHECK", "1", 1);
  }
};

bool is_on_device() {
  const char* const wanted = std::getenv("PIPER_ON_DEVICE");
  return wanted && std::string_view(wanted) == "1";
}

std::string text_of(const Case& c) {
  std::string text = fmt::format(
      "{}, {} queries, {} of {} keys, {} heads on {}, widths {} and {}, tokens first {}",
      info(c.type).name, c.queries, c.keys, c.all_keys, c.heads, c.kv_heads, c.width, c.v_width,
      fmt::join(c.tokens_first, ""));
  if (c.causal) text += fmt::format(", causal from {} on", c.offset);
  if (c.softcap > 0) text += fmt::format(", cap {}", c.softcap);
  if (c.mask) text += fmt::format(", mask {}", to_string(*c.mask));
  if (!c.first.empty()) text += fmt::format(", first queries {}", fmt::join(c.first, " "));
  for (const auto& part : c.first_keys) text += fmt::format(", keys from {}", fmt::join(part, " "));
  return text;
}

// What was made of a tensor beside what is wanted.
struct Distance {
  double greatest = 0, scale = 0, bound = 0;
  int64_t wrong = 0, first_wrong = 0;  // elements
  double made = 0, wanted = 0;         // of the first wrong one
};

double bound_of(DType made, DType operands) {
  return made == DType::kF32 ? 2e-3 : operands == DType::kBF16 ? 2e-2 : 5e-3;
}

// Roundings to 16 bits of weights and adjoints are relative to the greatest of their sums.
// Logarithms of sums of no terms are the greatest number, and exact.
Distance distance(const std::vector<double>& made, const std::vector<double>& wanted,
                  double bound) {
  constexpr double kLeastScale = 0.1, kNoSum = 1e30;
  Distance d{.scale = kLeastScale};
  for (const double x : wanted)
    if (std::abs(x) < kNoSum) d.scale = std::max(d.scale, std::abs(x));
  d.bound = bound * d.scale;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (made[i] == wanted[i]) continue;
    const double by = std::abs(made[i] - wanted[i]);
    if (!(by <= d.greatest)) d.greatest = by;
    if (by <= d.bound) continue;
    if (d.wrong++ == 0)
      d.first_wrong = static_cast<int64_t>(i), d.made = made[i], d.wanted = wanted[i];
  }
  return d;
}

// Of all that a case makes, by argument.
std::vector<std::pair<size_t, Distance>> distances(const Job& job, size_t which,
                                                   const std::vector<std::string>& made,
                                                   const std::vector<std::string>& wanted) {
  const Job::Place& place = job.cases[which];
  const DType operands = job.program.values[place.first_argument].dtype;  // that of q
  std::vector<std::pair<size_t, Distance>> all;
  for (size_t a = place.first_argument; a < place.end_argument; ++a) {
    if (!job.program.arg_written[a]) continue;
    const auto values = [&](const std::string& bytes) {
      return to_tensor(job.program.values[a], Bytes::copy_of(bytes.data(), bytes.size())).values;
    };
    all.emplace_back(a, distance(values(made[a]), values(wanted[a]),
                                 bound_of(job.program.values[a].dtype, operands)));
  }
  return all;
}
bool differ(const Job& job, size_t which, const std::vector<std::string>& made,
            const std::vector<std::string>& wanted) {
  return std::ranges::any_of(distances(job, which, made, wanted),
                             [](const auto& each) { return each.second.wrong > 0; });
}

const std::vector<int64_t> kTokens(4, 1), kHeads(4, 0);
constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kBool = DType::kBool;

const Case kCases[] = {
    {kBF16, 19, 19, 2, 2, 16, 16, true, kTokens},
    {kF16, 19, 19, 4, 2, 8, 24, true, kHeads},
    {kF16, 7, 21, 2, 1, 16, 8, false, {1, 0, 0, 1}},
    {kF16, 7, 21, 2, 1, 8, 8, true, kTokens, 14},
    {kBF16, 11, 21, 2, 2, 8, 8, false, kTokens, 0, 0, TensorType{kBF16, {2, 1, 1, 21}}},
    {kF16, 11, 21, 4, 2, 8, 8, false, kHeads, 0, 0, TensorType{kBool, {2, 4, 11, 21}}},
    {kF16, 11, 11, 4, 1, 8, 8, true, kTokens, 0, 0, TensorType{kBool, {1, 1, 11, 11}}},
    {kF16, 11, 21, 2, 1, 8, 8, true, kTokens, 10, 0, TensorType{kF16, {1, 2, 11, 21}}},
    {kF16, 13, 13, 4, 2, 8, 8, true, kTokens, 0, 1.5},
    {kF16, 13, 13, 2, 2, 8, 8, false, kTokens, 0, 2, TensorType{kF16, {2, 1, 13, 13}}},
    {kF16, 8, 32, 2, 1, 8, 8, true, kTokens, 0, 0, {}, {17}},
    {kF16, 8, 32, 2, 1, 8, 8, true, kTokens, 0, 0, {}, {4, 24}},
    {kBF16, 10, 10, 2, 1, 8, 8, true, kTokens, 0, 0, {}, {20}, {{0}, {10}, {20}, {30}}, 40},
    {kF16,
     10,
     10,
     2,
     1,
     8,
     8,
     true,
     kTokens,
     0,
     0,
     {},
     {5, 30},
     {{5, 30}, {35, 0}, {10, 25}, {15, 20}},
     40},
    {kF16,
     10,
     10,
     2,
     2,
     8,
     8,
     true,
     kHeads,
     0,
     2,
     TensorType{kBool, {2, 1, 10, 20}},
     {5, 10},
     {{5, 10}, {0, 15}},
     20},
    {kF16,
     10,
     10,
     2,
     2,
     8,
     8,
     false,
     kTokens,
     0,
     0,
     TensorType{kF16, {2, 1, 1, 20}},
     {},
     {{5, 10}, {0, 15}},
     20},
    {kBF16, 70, 200, 4, 2, 64, 64, false, kTokens, 0, 0, TensorType{kBool, {2, 1, 1, 200}}},
    {kBF16, 130, 130, 2, 1, 64, 64, true, kTokens, 0, 0, TensorType{kBF16, {1, 2, 1, 130}}},
};

Job job_of_all() {
  Job job;
  for (const Case& c : kCases) add_case(job, c);
  job.program.label = "attention";
  return job;
}

// What cuDNN makes of the job of all.
std::vector<std::string> run_by_cudnn(const Job& job) {
  std::string note;
  const auto cuda = must(make_cuda_backend({.note = [&](const std::string& said) {
    if (said.starts_with("attention by")) note = said;
  }}));
  std::vector<std::string> made = run(*cuda, job);
  EXPECT_EQ(note, "");  // of kernels in cuDNN's place
  return made;
}
const std::vector<std::string>& made_by_cudnn() {
  static const std::vector<std::string> made = run_by_cudnn(job_of_all());
  return made;
}

TEST_F(CudnnNumbers, AreThoseOfTheCpu) {
  const Job job = job_of_all();
  const auto is_merge = [](const ProgramOp& op) { return op.op == "AttentionMerge"; };
  EXPECT_EQ(std::ssize(must(device_program(job.program)).attentions),
            std::ssize(job.program.ops) - std::ranges::count_if(job.program.ops, is_merge));
  const std::vector<std::string>& made = made_by_cudnn();
  const std::vector<std::string> wanted = run(*make_cpu_backend(), job);
  for (size_t c = 0; c < job.cases.size(); ++c) {
    const std::string which = fmt::format("case {}: {}", c, text_of(kCases[c]));
    std::string all;  // the greatest difference of each result (its scale, the bound)
    for (const auto& [a, d] : distances(job, c, made, wanted)) {
      all +=
          fmt::format("; {} {:.2g} ({:.2g}, {:.2g})", job.names[a], d.greatest, d.scale, d.bound);
      if (d.wrong > 0)
        ADD_FAILURE() << which << ": " << job.names[a] << " " << to_string(job.program.values[a])
                      << ": " << d.wrong << " wrong, element " << d.first_wrong << ": " << d.made
                      << " is not " << d.wanted;
    }
    fmt::print("{}{}\n", which, all);
  }
}

// What a graph must not forget is seen above: results without it are others.
TEST_F(CudnnNumbers, DifferFromThoseOfAnythingElse) {
  using Place = Job::Place;
  const auto turn = [](std::string& bytes, int64_t by) {
    std::rotate(bytes.begin(), bytes.begin() + by, bytes.end());
  };
  const auto set = [](Job& job, const Place& at, const char* op, const char* name, auto value) {
    for (size_t o = at.op; o < at.end; ++o)
      if (job.program.ops[o].op == op) job.program.ops[o].attrs.set(name, value);
  };
  const std::pair<size_t, std::function<void(Job&, const Place&)>> others[] = {
      {3, [&](Job& job, const Place& p) { set(job, p, "Attention", "offset", int64_t{13}); }},
      {3, [&](Job& job, const Place& p) { set(job, p, "AttentionGrad", "offset", int64_t{13}); }},
      {4, [&](Job& job, const Place& p) { turn(job.data[p.mask], 2); }},
      {5, [&](Job& job, const Place& p) { turn(job.data[p.mask], 1); }},
      {8, [&](Job& job, const Place& p) { set(job, p, "Attention", "softcap", 0.0); }},
      {8, [&](Job& job, const Place& p) { set(job, p, "AttentionGrad", "softcap", 0.0); }},
      {9, [&](Job& job, const Place& p) { set(job, p, "AttentionGrad", "softcap", 1.0); }},
      {10, [&](Job& job, const Place& p) { --job.data[p.first][0]; }},
      {13, [&](Job& job, const Place& p) { ++job.data[p.first][8]; }},
      {15, [&](Job& job, const Place& p) { turn(job.data[p.mask], 2); }},
  };
  const Job job = job_of_all();
  const std::vector<std::string>& made = made_by_cudnn();
  for (const auto& other : others) {
    Job changed = job;
    other.second(changed, job.cases[other.first]);
    EXPECT_TRUE(differ(job, other.first, made, run(*make_cpu_backend(), changed)))
        << &other - others << ", case " << other.first;
  }
}

// Each call has the addresses of its samples and heads.
TEST_F(CudnnNumbers, SlicesFollowEachOther) {
  using namespace cuda;  // NOLINT: what is tested
  if (is_on_device()) GTEST_SKIP() << "the plan is for no device";
  constexpr int64_t kAll = 4096 * 4096;  // scores of a head
  DeviceAttention a{.is_gradient = true, .type = DType::kBF16};
  a.batch = 2, a.queries = a.keys = 4096, a.heads = 24, a.kv_heads = 12, a.width = a.v_width = 64;
  a.q = a.y = a.dq = {4096 * 24 * 64, 24 * 64, 64, 0};
  a.k = a.v = a.dk = a.dv = {4096 * 12 * 64, 12 * 64, 64, 0};
  a.v.first = 8;
  a.mask = DeviceAttention::kAdds, a.mask_step = {24 * kAll, kAll, 4096, 1};
  ASSERT_EQ(cudnn_slice(a).samples, 1);
  ASSERT_EQ(cudnn_slice(a).kv_heads, 3);
  const Cudnn& api = must(opened<Cudnn>())->functions;
  const DnnObject properties = must(dnn_properties(api, "{}"));
  const AttentionPlan plan = must(AttentionPlan::make(api, a, {.properties = &properties}));
  std::vector<std::byte> memory(1);
  const std::vector<std::byte*> operands(12, memory.data());
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
      const bool is_sums = operand == 4, of_keys = operand == 1 || operand == 2 || operand > 9;
      const int64_t head = of_keys ? first : 2 * first;
      const int64_t expected = operand == 5 ? (sample * 24 + head) * kAll * 2
                               : is_sums    ? (sample * 24 + head) * 4096 * 4
                               : of_keys    ? (sample * 4096 * 12 + head) * 64 * 2
                                            : (sample * 4096 * 24 + head) * 64 * 2;
      EXPECT_EQ(pointers[p] - memory.data(), expected + (operand == 2 ? 16 : 0))
          << "call " << c << ", operand " << operand;
    }
  }
}

}  // namespace
}  // namespace piper
