// Attention's kernels on the host against the CPU backend: beyond the samples of the table of ops,
// at the edges of tiles and chunks, with numbers, masks of every form and packed operands.
#include <fmt/format.h>

#include <cstring>

#include "evaluate.h"
#include "fake_cuda/run_program.h"

namespace piper::cuda_attention_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test

constexpr uint64_t kSeed = 20250311;
constexpr double kNone = -std::numeric_limits<double>::infinity();

// ---- Programs that are run here and there -------------------------------------------------------

struct Job {
  Program program;
  std::vector<Bytes> arguments;  // empty: written
  std::vector<std::string> labels;
  std::mt19937_64 random{kSeed};

  int32_t add(TensorType type, std::optional<Bytes> data, std::string label) {
    program.values.push_back(std::move(type));
    program.arg_read.push_back(data.has_value());
    program.arg_written.push_back(!data.has_value());
    arguments.push_back(data ? *data : Bytes{});
    labels.push_back(std::move(label));
    return program.num_args++;
  }
  int32_t read(const TensorType& type, double low = -1, double high = 1) {
    return add(type, to_bytes(draw(type, random, low, high, 2)), "input");
  }
  int32_t write(const TensorType& type, const std::string& label) {
    return add(type, std::nullopt, label);
  }
};

// What the CPU backend writes.
std::vector<Bytes> run_on_cpu(const Job& job) {
  const auto backend = make_cpu_backend();
  const int32_t loaded = must(backend->load(job.program));
  std::vector<std::string> memory;
  std::vector<std::byte*> pointers;
  for (size_t a = 0; a < job.arguments.size(); ++a) {
    const Bytes& data = job.arguments[a];
    const auto bytes = static_cast<size_t>(job.program.values[a].bytes());
    std::byte* const at = must(backend->allocate(std::max<int64_t>(std::ssize(data.span()), 64) +
                                                 static_cast<int64_t>(bytes)));
    if (data.data) std::memcpy(at, data.data, bytes);
    pointers.push_back(at);
  }
  std::byte* const workspace = must(backend->allocate(backend->workspace_bytes(loaded) + 64));
  backend->launch(must(backend->bind(loaded, pointers, workspace)));
  std::vector<Bytes> made;
  for (size_t a = 0; a < pointers.size(); ++a)
    made.push_back(Bytes::copy_of(pointers[a], static_cast<size_t>(job.program.values[a].bytes())));
  return made;
}

double bound_of(DType type) {
  return type == DType::kF64   ? 1e-12
         : type == DType::kF32 ? 2e-5
         : type == DType::kF16 ? 3e-3
                               : 2.5e-2;
}

// Numbers that stand for nothing (of a query that sees no key) are the same ones.
void compare(const TensorType& type, const Bytes& made, const Bytes& wanted, DType operands,
             const std::string& label) {
  const std::vector<double> actual = to_tensor(type, made).values,
                            expected = to_tensor(type, wanted).values;
  constexpr double kHuge = 1e30;
  double scale = 1;
  for (const double x : expected)
    if (std::abs(x) < kHuge) scale = std::max(scale, std::abs(x));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    ASSERT_LE(std::abs(actual[i] - expected[i]), bound_of(operands) * scale)
        << label << ", element " << i << ": " << actual[i] << " is not " << expected[i];
  }
}

void check(const Job& job, DType operands) {
  const std::vector<Bytes> expected = run_on_cpu(job);
  std::vector<Bytes> first;
  std::vector<emulator::Order> orders{{emulator::Order::kForward},
                                      {emulator::Order::kRandom, kSeed}};
  if (is_16_bit(operands)) orders.push_back({emulator::Order::kBackward});
  for (const emulator::Order& order : orders) {
    auto made = emulator::run_on_host(job.program, job.arguments, order);
    ASSERT_TRUE(made.ok()) << made.error().message;
    for (size_t a = 0; a < first.size(); ++a)
      ASSERT_TRUE(std::ranges::equal(made->at(a).span(), first[a].span()))
          << job.labels[a] << " depends on the order of threads";
    first = *std::move(made);
  }
  for (size_t a = 0; a < first.size(); ++a)
    if (job.program.arg_written[a])
      compare(job.program.values[a], first[a], expected[a], operands, job.labels[a]);
}

// ---- One attention and its gradient -------------------------------------------------------------

struct Case {
  int64_t queries, keys;
  DType type = DType::kF32;
  int64_t heads = 2, kv_heads = 2, width = 8, v_width = 8, batch = 1;
  std::vector<int64_t> tokens_first = {1, 1, 1, 1};
  bool causal = false;
  int64_t offset = 0;
  double softcap = 0, masked = kNone;
  std::optional<TensorType> mask = {};
  std::vector<int64_t> first = {}, first_key = {};  // of equal stretches
  int64_t all_keys = keys;

  TensorType operand(size_t i) const {  // q, k, v, y
    const bool of_keys = i == 1 || i == 2;
    const int64_t tokens = of_keys ? keys : queries, h = of_keys ? kv_heads : heads;
    const int64_t w = i > 1 ? v_width : width;
    return {type, tokens_first[i] ? Shape{batch, tokens, h, w} : Shape{batch, h, tokens, w}};
  }
  TensorType sums() const {
    return {type == DType::kF64 ? type : DType::kF32, {batch, heads, queries}};
  }
  Attrs attrs() const {
    Attrs a{{"tokens_first", tokens_first}, {"scale", 0.4}};
    if (causal) a.set("causal", int64_t{1}), a.set("offset", offset);
    if (softcap > 0) a.set("softcap", softcap);
    if (masked != kNone) a.set("masked_score", masked);
    if (all_keys != keys && mask && mask->shape[3] != 1) a.set("keys", all_keys);
    return a;
  }
  std::string label() const {
    return fmt::format("{} {}x{} of {} heads, {} of keys, {} and {} wide", info(type).name, queries,
                       keys, heads, kv_heads, width, v_width);
  }
};

int32_t add_numbers(Job& job, const std::vector<int64_t>& numbers) {
  if (numbers.empty()) return -1;
  const Shape shape = numbers.size() == 1 ? Shape{} : Shape{std::ssize(numbers)};
  return job.add({DType::kI64, shape},
                 Bytes::copy_of(numbers.data(), numbers.size() * sizeof(int64_t)), "numbers");
}

// Of booleans, and of terms in another type than the operands, each fifth row hides all.
int32_t add_mask(Job& job, const TensorType& type, DType operands) {
  if (type.dtype != DType::kBool && type.dtype == operands) return job.read(type);
  const bool is_bool = type.dtype == DType::kBool;
  test::Tensor mask = is_bool ? draw(type, job.random, 0, 1, 2) : draw(type, job.random, -1, 1, 2);
  for (size_t i = 0; i < mask.values.size(); ++i)
    if (static_cast<int64_t>(i) / type.shape[3] % 5 == 0) mask.values[i] = is_bool ? 0 : -0x1p100;
  return job.add(type, to_bytes(mask), "mask");
}

void add_case(Job& job, const Case& c) {
  const std::string label = c.label();
  std::vector<int32_t> inputs, others;
  for (size_t i = 0; i < 3; ++i) inputs.push_back(job.read(c.operand(i)));
  const bool has_numbers = !c.first.empty() || !c.first_key.empty();
  if (c.mask || has_numbers) others.push_back(c.mask ? add_mask(job, *c.mask, c.type) : -1);
  if (has_numbers) others.push_back(add_numbers(job, c.first));
  if (!c.first_key.empty()) others.push_back(add_numbers(job, c.first_key));
  const int32_t y = job.write(c.operand(3), "y, " + label),
                lse = job.write(c.sums(), "lse, " + label);
  std::vector<int32_t> all = inputs;
  all.insert(all.end(), others.begin(), others.end());
  job.program.ops.push_back({"Attention", c.attrs(), all, {y, lse}});
  all = {inputs[0], inputs[1], inputs[2], y, lse, job.read(c.operand(3))};
  all.insert(all.end(), others.begin(), others.end());
  std::vector<int32_t> made;
  for (size_t i = 0; i < 3; ++i)
    made.push_back(job.write(c.operand(i), fmt::format("gradient {}, {}", i, label)));
  Attrs attrs = c.attrs();
  if (c.mask && c.mask->dtype != DType::kBool) {
    attrs.set("mask_grad", int64_t{1});
    made.push_back(job.write(*c.mask, "gradient of the mask, " + label));
  }
  job.program.ops.push_back({"AttentionGrad", attrs, all, made});
}

void check(const std::vector<Case>& cases) {
  Job job;
  for (const Case& c : cases) add_case(job, c);
  check(job, cases[0].type);
}

TEST(CudaAttention, AtTheEdgesOfTiles) {
  std::vector<Case> cases;
  for (const int64_t tokens : {1, 31, 32, 33, 63, 64, 65, 130})
    cases.push_back({.queries = tokens, .keys = tokens, .kv_heads = 1, .causal = true});
  cases.push_back({.queries = 5, .keys = 130, .causal = true, .offset = 125});
  cases.push_back({.queries = 70, .keys = 33});
  check(cases);
}

TEST(CudaAttention, OfAnyWidth) {
  std::vector<Case> cases;
  for (const int64_t width : {1, 7, 16, 40, 129})
    cases.push_back({.queries = 19,
                     .keys = 35,
                     .heads = 1,
                     .kv_heads = 1,
                     .width = width,
                     .v_width = 137 - width,
                     .causal = true,
                     .offset = 16});
  check(cases);
  for (Case& c : cases) c.type = DType::kF64;
  check(cases);
}

TEST(CudaAttention, Of16Bits) {
  for (const DType type : {DType::kBF16, DType::kF16})
    check({{.queries = 70, .keys = 70, .type = type, .heads = 4, .kv_heads = 2, .causal = true},
           {.queries = 9, .keys = 34, .type = type, .width = 12, .v_width = 20},
           {.queries = 34, .keys = 9, .type = type, .tokens_first = {0, 1, 0, 1}}});
}

// What tensor cores do: 16-bit floats of whole eights. With all that a score can be, in tiles that
// are seen whole, in part and not at all, of one stretch and of two.
std::vector<Case> cases_of_16_bits(DType type) {
  Case ring{.queries = 80, .keys = 136, .type = type, .kv_heads = 1, .width = 16, .v_width = 24};
  ring.causal = true, ring.first = {60, 300}, ring.first_key = {0, 272}, ring.all_keys = 400;
  Case masked = ring;
  masked.mask = {type, {1, 2, 80, 400}}, masked.softcap = 1.5;
  return {{.queries = 130, .keys = 130, .type = type, .kv_heads = 1, .width = 64, .causal = true},
          {.queries = 65,
           .keys = 64,
           .type = type,
           .heads = 1,
           .kv_heads = 1,
           .width = 40,
           .v_width = 128},
          {.queries = 9, .keys = 70, .type = type, .width = 24, .causal = true, .offset = 61},
          {.queries = 70,
           .keys = 20,
           .type = type,
           .tokens_first = {0, 1, 0, 1},
           .causal = true,
           .offset = -17},
          {.queries = 66,
           .keys = 37,
           .type = type,
           .masked = -2,
           .mask = TensorType{DType::kBool, {1, 2, 66, 37}}},
          ring,
          masked};
}

TEST(CudaAttention, Of16BitsByTensorCores) {
  for (const DType type : {DType::kBF16, DType::kF16}) check(cases_of_16_bits(type));
}

// Terms that f16 has not, in f32: those of each fifth row are the same, of a number that hides all.
TEST(CudaAttention, OfF16WithTermsInF32) {
  for (const bool by_mma : {false, true}) {
    Job job;
    for (const Shape& shape : {Shape{1, 2, 70, 33}, Shape{1, 1, 70, 33}, Shape{1, 2, 1, 33}}) {
      const int64_t width = by_mma ? 16 : 12;
      add_case(job, {.queries = 70,
                     .keys = 33,
                     .type = DType::kF16,
                     .width = width,
                     .v_width = width,
                     .mask = TensorType{DType::kF32, shape}});
      const std::string source = must(device_program(job.program)).source;
      EXPECT_EQ(source.find("  mma::forward<") != std::string::npos, by_mma);
    }
    check(job, DType::kF16);
  }
}

TEST(CudaAttention, WhatTensorCoresDo) {
  const auto is_by_mma = [](const Case& c) {
    Job job;
    add_case(job, c);
    const std::string source = must(device_program(job.program)).source;
    const bool forward = source.find("  mma::forward<") != std::string::npos;
    EXPECT_EQ(source.find("  mma::key_gradients<") != std::string::npos, forward) << c.label();
    return forward;
  };
  const Case plain{.queries = 9, .keys = 9, .type = DType::kBF16, .width = 24, .v_width = 128};
  EXPECT_TRUE(is_by_mma(plain));
  for (const int64_t width : {0, 4, 20, 136}) {
    Case other = plain;
    other.width = width;
    EXPECT_FALSE(is_by_mma(other)) << width;
    other = plain, other.v_width = width;
    EXPECT_FALSE(is_by_mma(other)) << width;
  }
  for (const DType type : {DType::kF32, DType::kF64}) {
    Case other = plain;
    other.type = type;
    EXPECT_FALSE(is_by_mma(other));
  }
}

TEST(CudaAttention, WhereSomeQueriesOrKeysSeeNothing) {
  check({{.queries = 70, .keys = 70, .causal = true, .offset = -17},
         {.queries = 70, .keys = 70, .causal = true, .offset = -70},
         {.queries = 9, .keys = 100, .causal = true, .offset = 3},
         {.queries = 40, .keys = 40, .mask = TensorType{DType::kBool, {1, 1, 40, 40}}}});
}

TEST(CudaAttention, OfNothing) {
  check({{.queries = 5, .keys = 0},
         {.queries = 0, .keys = 5},
         {.queries = 5, .keys = 5, .batch = 0},
         {.queries = 5, .keys = 5, .width = 0},
         {.queries = 5, .keys = 5, .v_width = 0}});
}

TEST(CudaAttention, WithMasksAndCaps) {
  std::vector<Case> cases;
  const Case plain{.queries = 37, .keys = 70, .type = DType::kF64, .kv_heads = 1, .batch = 2};
  for (const Shape& shape : {Shape{2, 2, 37, 70}, Shape{2, 1, 37, 70}, Shape{1, 2, 37, 1},
                             Shape{1, 1, 1, 70}, Shape{2, 2, 1, 1}, Shape{1, 1, 1, 1}}) {
    Case added = plain, kept = plain;
    added.mask = {DType::kF64, shape}, kept.mask = {DType::kBool, shape};
    added.softcap = 1.5, kept.masked = -2;
    added.causal = kept.causal = true, added.offset = kept.offset = 20;
    cases.push_back(added);
    cases.push_back(kept);
  }
  check(cases);
}

TEST(CudaAttention, OfTokensInStretches) {
  std::vector<Case> cases;
  const Case plain{.queries = 20, .keys = 20, .causal = true, .first = {10, 60}};
  for (const int64_t r : {0, 1, 2, 3}) {
    Case c = plain;
    c.first_key = {10 * r, 70 - 10 * r}, c.all_keys = 80;
    cases.push_back(c);
    c.mask = {DType::kF32, {1, 2, 20, 80}};
    cases.push_back(c);
  }
  cases.push_back({.queries = 10, .keys = 40, .causal = true, .first = {5}});
  cases.push_back({.queries = 140,
                   .keys = 200,
                   .kv_heads = 1,
                   .causal = true,
                   .first = {600, 1650},
                   .first_key = {1050, 0, 2000, 600}});
  check(cases);
}

// Parts of the keys, put together.
TEST(CudaAttention, PartsAreMerged) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Job job;
    Case c{.queries = 40, .keys = 20, .type = type, .causal = true, .first = {0}};
    c.first_key = {0}, c.all_keys = 40;
    std::vector<int32_t> made;
    for (const int64_t key : {0, 20}) {
      c.first_key = {key};
      std::vector<int32_t> inputs;
      for (size_t i = 0; i < 3; ++i) inputs.push_back(job.read(c.operand(i)));
      inputs.insert(inputs.end(), {-1, add_numbers(job, c.first), add_numbers(job, c.first_key)});
      made.push_back(job.write(c.operand(3), "y of a part"));
      made.push_back(job.write(c.sums(), "lse of a part"));
      job.program.ops.push_back(
          {"Attention", c.attrs(), inputs, {made[made.size() - 2], made.back()}});
    }
    const std::vector<int32_t> all{job.write(c.operand(3), "y"), job.write(c.sums(), "lse")};
    job.program.ops.push_back({"AttentionMerge", {{"tokens_first", int64_t{1}}}, made, all});
    check(job, type);
  }
}

// q, k and v are columns of one tensor, and their gradients of another.
Job packed(DType type, int64_t tokens, int64_t width) {
  Job job;
  const int64_t heads[] = {4, 2, 2}, first[] = {0, 4 * width, 6 * width};
  Case c{.queries = tokens,
         .keys = tokens,
         .type = type,
         .heads = 4,
         .width = width,
         .v_width = width,
         .batch = 2,
         .causal = true};
  const TensorType all{type, {2, tokens, 8 * width}};
  const int32_t from = job.read(all), dy = job.read(c.operand(3));
  const int32_t y = job.write(c.operand(3), "y"), lse = job.write(c.sums(), "lse"),
                gradient = job.write(all, "packed gradient");
  const auto local = [&](const TensorType& of) {
    job.program.values.push_back(of);
    return static_cast<int32_t>(job.program.values.size()) - 1;
  };
  std::vector<int32_t> inputs, made, flat;
  for (size_t i = 0; i < 3; ++i) {
    const Shape starts{0, 0, first[i]}, ends{2, tokens, first[i] + heads[i] * width};
    const int32_t part = local({type, {2, tokens, heads[i] * width}});
    job.program.ops.push_back(
        {"Slice", {{"starts", starts}, {"ends", ends}, {"steps", Shape{1, 1, 1}}}, {from}, {part}});
    inputs.push_back(local(c.operand(i)));
    job.program.ops.push_back(
        {"Reshape", {{"shape", c.operand(i).shape}}, {part}, {inputs.back()}});
    made.push_back(local(c.operand(i)));
    flat.push_back(local({type, {2, tokens, heads[i] * width}}));
  }
  job.program.ops.push_back({"Attention", c.attrs(), inputs, {y, lse}});
  job.program.ops.push_back(
      {"AttentionGrad", c.attrs(), {inputs[0], inputs[1], inputs[2], y, lse, dy}, made});
  for (size_t i = 0; i < 3; ++i)
    job.program.ops.push_back({"Reshape",
                               {{"shape", job.program.values[static_cast<size_t>(flat[i])].shape}},
                               {made[i]},
                               {flat[i]}});
  job.program.ops.push_back({"Concat", {{"axis", int64_t{2}}}, flat, {gradient}});
  return job;
}

TEST(CudaAttention, OfPackedOperands) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Job job = packed(type, 37, 24);
    const DeviceProgram made = must(device_program(job.program));
    EXPECT_EQ(made.fused.ops.size(), 2u);  // no Slice, no Concat
    check(job, type);
  }
}

// ---- What is a library's ------------------------------------------------------------------------

TEST(CudaAttention, StepsForALibraryHaveKernelsBehindThem) {
  const DeviceProgram made = must(device_program(packed(DType::kBF16, 37, 24).program));
  ASSERT_EQ(made.attentions.size(), 2u);
  std::vector<std::string> steps;
  for (const DeviceStep& step : made.steps)
    steps.push_back(step.kind == DeviceStep::kAttention ? fmt::format("library {}", step.instead)
                                                        : "kernel");
  EXPECT_EQ(steps, (std::vector<std::string>{"library 1", "kernel", "library 3", "kernel", "kernel",
                                             "kernel"}));
  const DeviceAttention& a = made.attentions[1];
  EXPECT_TRUE(a.is_gradient && a.causal);
  EXPECT_EQ(a.k, (DeviceRows{.batch = 37 * 192, .token = 192, .head = 24, .first = 96}));
  EXPECT_EQ(a.dv, (DeviceRows{.batch = 37 * 192, .token = 192, .head = 24, .first = 144}));
  EXPECT_EQ(a.y, (DeviceRows{.batch = 37 * 96, .token = 96, .head = 24}));
  EXPECT_GE(made.workspace_bytes, cudnn_slice(a).bytes);
}

DeviceAttention plain(int64_t batch, int64_t tokens, int64_t heads, int64_t width) {
  DeviceAttention a{.is_gradient = true, .type = DType::kBF16};
  a.batch = batch, a.queries = a.keys = tokens, a.heads = a.kv_heads = heads;
  a.width = a.v_width = width;
  a.q = a.k = a.v = a.y = a.dq = a.dk = a.dv = {tokens * heads * width, heads * width, width, 0};
  return a;
}

TEST(CudaAttention, WhatCudnnTakes) {
  using Change = void (*)(DeviceAttention&);
  EXPECT_TRUE(cudnn_takes(plain(2, 128, 4, 64)));
  const Change taken[] = {
      [](DeviceAttention& a) { a.causal = true; },
      [](DeviceAttention& a) { a.type = DType::kF16; },
      [](DeviceAttention& a) { a.keys = 77; },
      [](DeviceAttention& a) { a.kv_heads = 2; },
      [](DeviceAttention& a) { a.causal = true, a.offset = 1; },
      [](DeviceAttention& a) { a.softcap = 1; },
      [](DeviceAttention& a) { a.mask = DeviceAttention::kAdds, a.mask_step[3] = 1; },
      [](DeviceAttention& a) {
        a.mask = DeviceAttention::kAdds, a.mask_step = {0, 0, 16384, 1};
        a.queries = a.keys = 16384;
      },
      [](DeviceAttention& a) {
        a.mask = DeviceAttention::kAdds, a.mask_step[3] = 1;
        a.is_gradient = false, a.queries = 1;
      },
      [](DeviceAttention& a) { a.key_stretches = 1; },
      [](DeviceAttention& a) { a.causal = true, a.query_stretches = a.key_stretches = 2; }};
  const Change refused[] = {[](DeviceAttention& a) { a.type = DType::kF32; },
                            [](DeviceAttention& a) { a.causal = true, a.offset = -1; },
                            [](DeviceAttention& a) { a.mask = DeviceAttention::kAdds; },
                            [](DeviceAttention& a) {
                              a.mask = DeviceAttention::kKeeps, a.mask_step[3] = 1;
                              a.masked_score = -1e4;
                            },
                            [](DeviceAttention& a) {
                              a.mask = DeviceAttention::kAdds, a.mask_step[3] = 1;
                              a.type = DType::kF16, a.wide_mask = true;
                            },
                            [](DeviceAttention& a) {
                              a.mask = DeviceAttention::kAdds, a.mask_step[3] = 1;
                              a.mask_grad = true;
                            },
                            [](DeviceAttention& a) {
                              a.mask = DeviceAttention::kAdds, a.mask_step[3] = 1;
                              a.queries = 1;
                            },
                            [](DeviceAttention& a) {
                              a.mask = DeviceAttention::kAdds, a.mask_step = {16384, 0, 0, 1};
                              a.queries = a.keys = 16384;
                            },
                            [](DeviceAttention& a) { a.causal = true, a.key_stretches = 1; },
                            [](DeviceAttention& a) { a.causal = true, a.query_stretches = 8; },
                            [](DeviceAttention& a) { a.width = 60; },
                            [](DeviceAttention& a) { a.v_width = 136; },
                            [](DeviceAttention& a) { a.k.first = 4; },
                            [](DeviceAttention& a) { a.batch = 0; },
                            [](DeviceAttention& a) { a.queries = a.keys = 1; },
                            [](DeviceAttention& a) { a.queries = a.keys = 65536; }};
  for (const Change& change : taken) {
    DeviceAttention a = plain(2, 128, 4, 64);
    change(a);
    EXPECT_TRUE(cudnn_takes(a)) << &change - taken;
  }
  for (const Change& change : refused) {
    DeviceAttention a = plain(2, 128, 4, 64);
    change(a);
    EXPECT_FALSE(cudnn_takes(a)) << &change - refused;
  }
}

// A row of terms for all queries is repeated for those of a gradient.
TEST(CudaAttention, TermsForCudnn) {
  DeviceAttention a = plain(2, 11, 4, 8);
  a.mask = DeviceAttention::kAdds, a.mask_step = {11, 0, 0, 1};
  EXPECT_EQ(cudnn_terms(a).dims, (std::array<int64_t, 4>{2, 1, 11, 11}));
  EXPECT_EQ(cudnn_terms(a).steps, (std::array<int64_t, 4>{176, 176, 16, 1}));
  EXPECT_EQ(cudnn_terms(a).bytes, 2 * 176 * 2);
  a.is_gradient = false;
  EXPECT_EQ(cudnn_terms(a).dims, (std::array<int64_t, 4>{2, 1, 1, 11}));
}

TEST(CudaAttention, GradientsAreMadeInSlicesOfSamplesOrOfHeads) {
  const auto slice = [](const DeviceAttention& a) {
    const CudnnSlice s = cudnn_slice(a);
    return std::vector<int64_t>{s.samples, s.kv_heads};
  };
  EXPECT_EQ(slice(plain(4, 1024, 12, 64)), (std::vector<int64_t>{4, 12}));
  EXPECT_EQ(slice(plain(64, 1024, 12, 64)), (std::vector<int64_t>{8, 12}));
  EXPECT_EQ(slice(plain(7, 1024, 12, 64)), (std::vector<int64_t>{7, 12}));
  EXPECT_EQ(slice(plain(11, 1024, 12, 64)), (std::vector<int64_t>{1, 12}));
  EXPECT_EQ(slice(plain(2, 4096, 12, 64)), (std::vector<int64_t>{1, 6}));
  EXPECT_LE(cudnn_slice(plain(64, 1024, 12, 64)).bytes, kMostCudnnBytes);
  DeviceAttention forward = plain(64, 1024, 12, 64);
  forward.is_gradient = false;
  EXPECT_EQ(slice(forward), (std::vector<int64_t>{64, 12}));
  EXPECT_LE(cudnn_slice(forward).bytes, 4096);
}

}  // namespace
}  // namespace piper::cuda_attention_test
