// Products and updates as the cuda backend makes them: many updates in one launch, batches of any
// form, results that are rounded once, experts.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "fake_cuda/run_program.h"
#include "piper/halves.h"
#include "piper/signatures.h"
#include "unit/op_uses.h"

namespace piper {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not a plan's
using ::testing::ElementsAre;

// ---- Programs of ops with arguments of their own ------------------------------------------------

struct Written {
  Program program;
  std::vector<Bytes> arguments;

  int32_t given(const TensorType& type, Bytes data) {
    add(type, true);
    arguments.back() = std::move(data);
    return program.num_args - 1;
  }
  int32_t made(const TensorType& type) {
    add(type, false);
    return program.num_args - 1;
  }
  void op(std::string name, Attrs attrs, std::vector<int32_t> inputs,
          std::vector<int32_t> outputs) {
    for (const int32_t output : outputs) program.arg_written[static_cast<size_t>(output)] = true;
    program.ops.push_back(
        {std::move(name), std::move(attrs), std::move(inputs), std::move(outputs)});
  }

 private:
  void add(const TensorType& type, bool is_read) {
    program.values.push_back(type);
    program.arg_read.push_back(is_read);
    program.arg_written.push_back(!is_read);
    arguments.emplace_back();
    ++program.num_args;
  }
};

DeviceProgram steps_of(const Written& written) { return must(device_program(written.program)); }
std::vector<Bytes> run(const Written& written) {
  return must(
      emulator::run_on_host(written.program, written.arguments, {emulator::Order::kRandom, kSeed}));
}
bool same(const Bytes& a, const Bytes& b) {
  return a.size == b.size && (a.size == 0 || std::memcmp(a.data, b.data, a.size) == 0);
}
template <class T>
Bytes scalar(T value) {
  return Bytes::copy_of(&value, sizeof value);
}
double real_of(const Bytes& bytes) { return to_tensor({DType::kF64, {}}, bytes).values[0]; }

// ---- Updates ------------------------------------------------------------------------------------

struct Update {
  std::string op;
  Attrs attrs;
  size_t states;  // inputs that are states or absent
  bool buffered = true;
};
const Update kUpdates[] = {
    {"AdamW", {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}, 2},
    {"AdamW", {{"weight_decay", 0.1}, {"decoupled", int64_t{0}}}, 2},
    {"OnnxAdam", {{"weight_decay", 0.1}, {"weight_decay_after", 0.01}, {"count", int64_t{2}}}, 2},
    {"Sgd", {{"momentum", 0.9}, {"dampening", 0.1}, {"nesterov", int64_t{1}}}, 1},
    {"Sgd", {{"weight_decay", 0.1}}, 1, false},
    {"Adagrad", {{"lr_decay", 0.1}, {"weight_decay", 0.1}}, 1},
};

struct Scalars {
  double rate = 0.01, clip = 0.5;
  int64_t step = 3;
  bool skip = false;
};
constexpr size_t kScalars = 4;

// The op's operands as arguments, of a parameter and a gradient of these types.
std::vector<int32_t> add_update(Written& to, const Update& update, const Shape& shape, DType param,
                                DType gradient, const Scalars& scalars, std::mt19937_64& random) {
  const DType state = param == DType::kF64 ? param : DType::kF32;
  std::vector<int32_t> inputs, outputs;
  const auto tensor = [&](DType type, double low) {
    inputs.push_back(to.given({type, shape}, to_bytes(draw({type, shape}, random, low, 1.0, 2))));
  };
  tensor(param, -1);
  tensor(gradient, -1);
  for (size_t s = 0; s < update.states; ++s)
    if (update.buffered)
      tensor(state, 0);
    else
      inputs.push_back(-1);
  inputs.push_back(to.given({DType::kF64, {}}, scalar(scalars.rate)));
  inputs.push_back(to.given({DType::kF64, {}}, scalar(scalars.clip)));
  inputs.push_back(to.given({DType::kI64, {}}, scalar(scalars.step)));
  inputs.push_back(to.given({DType::kBool, {}}, scalar(scalars.skip)));
  outputs.push_back(to.made({param, shape}));
  for (size_t s = 0; s < update.states && update.buffered; ++s)
    outputs.push_back(to.made({state, shape}));
  to.op(update.op, update.attrs, inputs, outputs);
  return outputs;
}

// What the CPU makes of the last op.
std::vector<Bytes> on_cpu(const Written& written) {
  const ProgramOp& op = written.program.ops.back();
  std::vector<TensorType> in, out;
  std::vector<Bytes> data;
  for (const int32_t input : op.inputs) {
    in.push_back(input < 0 ? TensorType{} : written.program.values[static_cast<size_t>(input)]);
    data.push_back(input < 0 ? Bytes{} : written.arguments[static_cast<size_t>(input)]);
  }
  for (const int32_t output : op.outputs)
    out.push_back(written.program.values[static_cast<size_t>(output)]);
  return must(evaluate_op(op.op, op.attrs, in, data, out));
}

// The CPU's kernels round a product and a sum once only where the machine can.
bool cpu_fuses() { return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"); }

class Updates : public ::testing::TestWithParam<Update> {};

TEST_P(Updates, JoinedAreTheSameBitsAsAloneAndAsOnTheCpu) {
  const std::pair<DType, DType> types[] = {{DType::kF32, DType::kF32},
                                           {DType::kF32, DType::kBF16},
                                           {DType::kBF16, DType::kF32},
                                           {DType::kF16, DType::kF16},
                                           {DType::kF64, DType::kF64}};
  const Shape shapes[] = {{5}, {1, 4096}, {0, 3}, {4097}, {3, 1371}, {}};
  for (const auto& [param, gradient] : types) {
    std::mt19937_64 random(kSeed);
    SCOPED_TRACE(fmt::format("{} and {} (seed {})", info(param).name, info(gradient).name, kSeed));
    Written joined;
    std::vector<std::vector<int32_t>> outputs;
    std::vector<std::vector<Bytes>> alone;
    std::vector<std::vector<Bytes>> expected;
    for (size_t i = 0; i < std::size(shapes); ++i) {
      Scalars scalars{.rate = 0.01 * static_cast<double>(i + 1), .step = static_cast<int64_t>(i)};
      scalars.skip = i == 4;
      const std::mt19937_64 before = random;
      outputs.push_back(
          add_update(joined, GetParam(), shapes[i], param, gradient, scalars, random));
      expected.push_back(on_cpu(joined));
      Written one;
      std::mt19937_64 again = before;
      const auto own = add_update(one, GetParam(), shapes[i], param, gradient, scalars, again);
      const std::vector<Bytes> made = run(one);
      std::vector<Bytes>& kept = alone.emplace_back();
      for (const int32_t output : own) kept.push_back(made[static_cast<size_t>(output)]);
    }
    ASSERT_EQ(steps_of(joined).steps.size(), 1u);
    const std::vector<Bytes> made = run(joined);
    for (size_t i = 0; i < outputs.size(); ++i)
      for (size_t o = 0; o < outputs[i].size(); ++o) {
        const Bytes& here = made[static_cast<size_t>(outputs[i][o])];
        EXPECT_TRUE(same(here, alone[i][o])) << "tensor " << i << ", output " << o;
        EXPECT_TRUE(same(here, expected[i][o]) || !cpu_fuses())
            << "tensor " << i << ", output " << o << " on the CPU";
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Updates, ::testing::ValuesIn(kUpdates), [](const auto& info) {
  return fmt::format("{}{}", info.param.op, info.index);
});

TEST(UpdateRuns, AreCutWhereAKernelHasNoMoreParameters) {
  std::mt19937_64 random(kSeed);
  Written written;
  for (int i = 0; i < 100; ++i)
    add_update(written, kUpdates[0], {i + 1}, DType::kF32, DType::kF32, {}, random);
  const DeviceProgram made = steps_of(written);
  ASSERT_EQ(made.kernels.size(), 3u);  // 11 operands each, up to 480 a launch
  EXPECT_EQ(made.kernels[0].pointers, 43 * 11);
  EXPECT_EQ(made.kernels[2].pointers, 14 * 11);
  EXPECT_TRUE(must(emulator::run_on_host(written.program, written.arguments)).size() > 0);
}

TEST(UpdateRuns, EndWhereAnOpReadsWhatOneBeforeItWrites) {
  std::mt19937_64 random(kSeed);
  Written written;
  const Shape shape{100};
  const auto first = add_update(written, kUpdates[4], shape, DType::kF32, DType::kF32, {}, random);
  ProgramOp second = written.program.ops[0];
  second.inputs[0] = first[0];
  second.outputs = {written.made({DType::kF32, shape})};
  written.program.arg_written.back() = true;
  written.program.ops.push_back(second);
  EXPECT_EQ(steps_of(written).kernels.size(), 2u);
  const std::vector<Bytes> made = run(written);
  Written again = written;
  again.arguments[static_cast<size_t>(first[0])] = made[static_cast<size_t>(first[0])];
  EXPECT_TRUE(same(made.back(), on_cpu(again)[0]) || !cpu_fuses());
}

TEST(UpdateRuns, EndWhereAttributesOrTypesDiffer) {
  std::mt19937_64 random(kSeed);
  Written written;
  add_update(written, kUpdates[0], {7}, DType::kF32, DType::kF32, {}, random);
  add_update(written, kUpdates[0], {7}, DType::kF32, DType::kBF16, {}, random);
  add_update(written, kUpdates[1], {7}, DType::kF32, DType::kBF16, {}, random);
  EXPECT_EQ(steps_of(written).kernels.size(), 3u);
}

// ---- Sums of squares ----------------------------------------------------------------------------

TensorType flat(DType type, int64_t count) { return {type, {count}}; }

TEST(SumSquares, OfPartsIsTheSumOfThosePartsPaddedOrNot) {
  constexpr int64_t kCount = 100003, kParts = 3, kRun = 33335;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF64}) {
    std::mt19937_64 random(kSeed);
    const Tensor whole = draw(flat(type, kCount), random, -1, 1, 2);
    Written written;
    const int32_t sum = written.given(whole.type, to_bytes(whole));
    const int32_t total = written.made({DType::kF64, {}});
    written.op("SumSquares", {{"parts", kParts}}, {sum}, {total});
    std::vector<int32_t> sums;
    for (int64_t part = 0; part < kParts; ++part) {
      Tensor one{flat(type, kRun), std::vector<double>(kRun)};
      std::copy(whole.values.begin() + part * kRun,
                whole.values.begin() + std::min((part + 1) * kRun, kCount), one.values.begin());
      sums.push_back(written.made({DType::kF64, {}}));
      written.op("SumSquares", {}, {written.given(one.type, to_bytes(one))}, {sums.back()});
    }
    // The parts are a run of their own: other attributes.
    EXPECT_EQ(steps_of(written).kernels.size(), 4u);
    const std::vector<Bytes> made = run(written);
    double added = 0, expected = 0;
    for (const int32_t part : sums) added += real_of(made[static_cast<size_t>(part)]);
    for (const double x : to_tensor(whole.type, to_bytes(whole)).values) expected += x * x;
    const double all = real_of(made[static_cast<size_t>(total)]);
    EXPECT_EQ(all, added) << info(type).name << " (seed " << kSeed << ")";
    EXPECT_NEAR(all, expected, 1e-12 * expected) << info(type).name;
  }
}

TEST(SumSquares, OfNothingIsZero) {
  Written written;
  const int32_t none = written.given(flat(DType::kF32, 0), Bytes::zeros(0));
  const int32_t sum = written.made({DType::kF64, {}});
  written.op("SumSquares", {}, {none}, {sum});
  EXPECT_EQ(real_of(run(written)[static_cast<size_t>(sum)]), 0);
}

TEST(GlobalNorm, AddsMoreSumsThanAKernelHasParametersInTheOrderOfTheCpu) {
  std::mt19937_64 random(kSeed);
  Written written;
  std::vector<int32_t> sums;
  for (int64_t i = 0; i < 700; ++i) {
    const TensorType type{DType::kF64, i % 50 == 3 ? Shape{i} : Shape{}};
    sums.push_back(written.given(type, to_bytes(draw(type, random, 0, 1e3, 2))));
  }
  const int32_t norm = written.made({DType::kF64, {}});
  written.op("GlobalNorm", {}, sums, {norm});
  EXPECT_EQ(steps_of(written).kernels.size(), 2u);
  EXPECT_TRUE(same(run(written)[static_cast<size_t>(norm)], on_cpu(written)[0]))
      << "seed " << kSeed;
}

// ---- Products -----------------------------------------------------------------------------------

struct Drawn {
  Shape a, b, out;
  Attrs attrs;
  DType type = DType::kF32, result = DType::kF32;
};

TensorType product_type(const Attrs& attrs, const TensorType& a, const TensorType& b) {
  OpTypes use;
  use.attrs = attrs, use.inputs = {a, b}, use.present = {true, true};
  return must(find_op("MatMul")->types(use))[0];
}

Drawn draw_product(std::mt19937_64& random) {
  const auto up_to = [&](uint64_t most) { return static_cast<int64_t>(random() % most); };
  Drawn drawn;
  const int64_t rank = up_to(5), m = up_to(4) + 1, n = up_to(4) + 1, k = up_to(4);
  const bool trans_a = up_to(2), trans_b = up_to(2);
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t extent = up_to(4) + 1, form = up_to(4);
    if (!drawn.a.empty() || up_to(3) != 0) drawn.a.push_back(form == 1 ? 1 : extent);
    if (!drawn.b.empty() || up_to(3) != 0) drawn.b.push_back(form == 2 ? 1 : extent);
    if (form == 1 && drawn.b.empty() && !drawn.a.empty()) drawn.a.back() = extent;
    if (form == 2 && drawn.a.empty() && !drawn.b.empty()) drawn.b.back() = extent;
  }
  drawn.a.insert(drawn.a.end(), {trans_a ? k : m, trans_a ? m : k});
  drawn.b.insert(drawn.b.end(), {trans_b ? n : k, trans_b ? k : n});
  drawn.attrs = {{"trans_a", int64_t{trans_a}}, {"trans_b", int64_t{trans_b}}};
  constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};
  drawn.type = drawn.result = kTypes[up_to(4)];
  if (drawn.type != DType::kF64 && up_to(2)) {
    drawn.attrs.set("to", "f32");
    drawn.result = DType::kF32;
  }
  drawn.out = product_type(drawn.attrs, {drawn.type, drawn.a}, {drawn.type, drawn.b}).shape;
  return drawn;
}

// The product by its definition.
std::vector<double> multiply(const Drawn& drawn, const Tensor& a, const Tensor& b,
                             std::vector<double> sums) {
  const size_t rank = drawn.out.size();
  const bool ta = drawn.attrs.integer("trans_a"), tb = drawn.attrs.integer("trans_b");
  const auto at = [&](const Tensor& x, std::vector<int64_t> index, int64_t row, int64_t column) {
    const Shape& shape = x.type.shape;
    int64_t place = 0;
    for (size_t d = 0; d + 2 < shape.size(); ++d) {
      const int64_t here = index[rank - shape.size() + d];
      place = place * shape[d] + (shape[d] == 1 ? 0 : here);
    }
    place = (place * shape[shape.size() - 2] + row) * shape.back() + column;
    return x.values[static_cast<size_t>(place)];
  };
  const int64_t k = drawn.a[drawn.a.size() - (ta ? 2 : 1)];
  for (size_t i = 0; i < sums.size(); ++i) {
    std::vector<int64_t> index(rank);
    auto rest = static_cast<int64_t>(i);
    for (size_t d = rank; d-- > 0; rest /= drawn.out[d]) index[d] = rest % drawn.out[d];
    const int64_t row = index[rank - 2], column = index[rank - 1];
    for (int64_t l = 0; l < k; ++l)
      sums[i] += (ta ? at(a, index, l, row) : at(a, index, row, l)) *
                 (tb ? at(b, index, column, l) : at(b, index, l, column));
  }
  return sums;
}

TEST(Products, OfBatchesOfAnyFormAreThoseOfTheDefinition) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    Drawn drawn = draw_product(random);
    SCOPED_TRACE(fmt::format(
        "round {}: {} · {} {} (seed {})", round, to_string(TensorType{drawn.type, drawn.a}),
        to_string(TensorType{drawn.type, drawn.b}), print_attrs(drawn.attrs), kSeed));
    const auto given = [&](DType type, const Shape& shape) {  // whole numbers: sums are exact
      Tensor tensor = draw({DType::kI64, shape}, random, 0, 0, 7);
      tensor.type.dtype = type;
      return tensor;
    };
    const Tensor a = given(drawn.type, drawn.a), b = given(drawn.type, drawn.b),
                 c = given(drawn.result, drawn.out);
    const int form = static_cast<int>(random() % 3);  // alone, added, added in place
    Written written;
    std::vector<int32_t> inputs{written.given(a.type, to_bytes(a)),
                                written.given(b.type, to_bytes(b))};
    std::vector<double> sums(c.values.size());
    if (form > 0) {
      drawn.attrs.set("accumulate", int64_t{1});
      inputs.push_back(written.given(c.type, to_bytes(c)));
      sums = c.values;
    }
    const int32_t out = form == 2 ? inputs.back() : written.made(c.type);
    written.op("MatMul", drawn.attrs, inputs, {out});
    const Tensor made = to_tensor(c.type, run(written)[static_cast<size_t>(out)]);
    ASSERT_EQ(made.values, multiply(drawn, a, b, std::move(sums)));
  }
}

std::vector<int64_t> batches_of(const Shape& a, const Shape& b, bool trans_a = false) {
  Written written;
  const Attrs attrs{{"trans_a", int64_t{trans_a}}};
  const TensorType of_a{DType::kF32, a}, of_b{DType::kF32, b};
  const TensorType out = product_type(attrs, of_a, of_b);
  written.op("MatMul", attrs, {written.given(of_a, {}), written.given(of_b, {})},
             {written.made(out)});
  std::vector<int64_t> batches;
  for (const DeviceProduct& product : steps_of(written).products) batches.push_back(product.batch);
  return batches;
}

TEST(Products, AreAsFewAsStridesCanSay) {
  EXPECT_THAT(batches_of({2, 3, 4, 6}, {6, 2}), ElementsAre(1));        // rows of one matrix
  EXPECT_THAT(batches_of({2, 3, 6, 4}, {6, 2}, true), ElementsAre(6));  // of which B is the same
  EXPECT_THAT(batches_of({2, 3, 4, 6}, {2, 3, 6, 2}), ElementsAre(6));
  EXPECT_THAT(batches_of({4, 6}, {2, 3, 6, 2}), ElementsAre(6));
  EXPECT_THAT(batches_of({2, 3, 4, 6}, {2, 1, 6, 2}), ElementsAre(2));
  EXPECT_THAT(batches_of({2, 1, 4, 6}, {3, 6, 2}), ElementsAre(3, 3));
  EXPECT_THAT(batches_of({0, 4, 6}, {6, 2}), ElementsAre());
}

// ---- Linear -------------------------------------------------------------------------------------

double activated(std::string_view activation, double x) {
  if (activation == "none") return x;
  if (activation == "gelu") return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Of 16 bits each result is one of the two neighbours of what is exact, and the nearer one where
// f32 can tell.
void expect_rounded_once(DType type, double made, double exact, std::string_view what) {
  const double last = std::ldexp(1, std::ilogb(exact) - (type == DType::kBF16 ? 7 : 10));
  ASSERT_LE(std::abs(made - exact), 0.5 * last + 1e-5 * std::abs(exact) + 1e-9)
      << what << ": " << made << " of " << exact;
}

void check_linear(DType type, const std::string& activation, int64_t rows, int64_t k, int64_t n) {
  SCOPED_TRACE(
      fmt::format("{} {} [{}, {}] · [{}, {}]", info(type).name, activation, rows, k, n, k));
  std::mt19937_64 random(kSeed);
  const auto given = [&](const Shape& shape) {
    const Tensor drawn = draw({type, shape}, random, -1, 1, 2);
    return to_tensor(drawn.type, to_bytes(drawn));
  };
  const Tensor x = given({rows, k}), w = given({n, k}), bias = given({n});
  Written written;
  const TensorType out{type, {rows, n}};
  const std::vector<int32_t> inputs{written.given(x.type, to_bytes(x)),
                                    written.given(w.type, to_bytes(w)),
                                    written.given(bias.type, to_bytes(bias))};
  std::vector<int32_t> outputs{written.made(out)};
  if (activation != "none") outputs.push_back(written.made(out));
  written.op("Linear", {{"trans_b", int64_t{1}}, {"activation", activation}}, inputs, outputs);
  const std::vector<Bytes> made = run(written);
  const Tensor y = to_tensor(out, made[static_cast<size_t>(outputs[0])]);
  const Tensor pre = to_tensor(out, made[static_cast<size_t>(outputs.back())]);
  for (int64_t i = 0; i < rows * n; ++i) {
    double sum = bias.values[static_cast<size_t>(i % n)];
    for (int64_t l = 0; l < k; ++l)
      sum += x.values[static_cast<size_t>(i / n * k + l)] *
             w.values[static_cast<size_t>(i % n * k + l)];
    const auto at = static_cast<size_t>(i);
    if (is_half(type)) {
      ASSERT_NO_FATAL_FAILURE(
          expect_rounded_once(type, y.values[at], activated(activation, sum), "y"));
      ASSERT_NO_FATAL_FAILURE(expect_rounded_once(type, pre.values[at], sum, "pre"));
    } else {
      const double bound = type == DType::kF64 ? 1e-14 : 4e-6;
      ASSERT_NEAR(y.values[at], activated(activation, sum), bound);
      ASSERT_NEAR(pre.values[at], sum, bound);
    }
  }
}

TEST(Linear, RoundsEachResultOnce) {
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64})
    for (const char* activation : {"none", "gelu", "gelu_tanh"}) {
      check_linear(type, activation, 9, 5, 16);
      check_linear(type, activation, 5, 3, 7);
      check_linear(type, activation, 3, 0, 4);
    }
}

// f32 sums of all rows would take more than their part of the memory.
TEST(Linear, WithSumsOfItsOwnGoesThroughItsRowsInParts) {
  constexpr int64_t kColumns = 65544, kRows = 130;
  Written written;
  const DType type = DType::kBF16;
  const TensorType out{type, {kRows, kColumns}};
  const int32_t x = written.given({type, {kRows, 1}}, {}),
                w = written.given({type, {1, kColumns}}, {}),
                bias = written.given({type, {kColumns}}, {});
  const int32_t y = written.made(out), pre = written.made(out);
  written.op("Linear", {{"activation", "gelu"}}, {x, w, bias}, {y, pre});
  const DeviceProgram made = steps_of(written);
  ASSERT_EQ(made.products.size(), 2u);
  EXPECT_EQ(made.products[0].m, 128);
  EXPECT_EQ(made.products[1].m, 2);
  EXPECT_EQ(made.workspace_bytes, 128 * kColumns * 4);
  ASSERT_EQ(made.steps.size(), 4u);
  EXPECT_EQ(made.steps[2].operands[0], (DeviceOperand{DeviceOperand::kArgument, x, 256}));
  EXPECT_EQ(made.steps[3].operands[2],
            (DeviceOperand{DeviceOperand::kArgument, y, 128 * kColumns * 2}));
  EXPECT_EQ(made.steps[3].operands[3],
            (DeviceOperand{DeviceOperand::kArgument, pre, 128 * kColumns * 2}));
}

// The epilogues that a library has, and no others.
TEST(Linear, IsOfTheLibraryAloneWhereThatIsExact) {
  const auto steps = [](DType type, const char* activation, int64_t n) {
    Written written;
    const TensorType out{type, {4, n}};
    std::vector<int32_t> outputs{written.made(out)};
    if (std::string_view(activation) != "none") outputs.push_back(written.made(out));
    const int32_t x = written.given({type, {4, 8}}, {}), w = written.given({type, {8, n}}, {});
    written.op("Linear", {{"activation", activation}}, {x, w, written.given({type, {n}}, {})},
               outputs);
    return steps_of(written).steps.size();
  };
  EXPECT_EQ(steps(DType::kBF16, "none", 7), 1u);
  EXPECT_EQ(steps(DType::kF32, "none", 7), 1u);
  EXPECT_EQ(steps(DType::kF64, "none", 7), 2u);
  EXPECT_EQ(steps(DType::kBF16, "gelu_tanh", 16), 1u);
  EXPECT_EQ(steps(DType::kBF16, "gelu_tanh", 12), 2u);
  EXPECT_EQ(steps(DType::kF32, "gelu_tanh", 16), 2u);
  EXPECT_EQ(steps(DType::kBF16, "gelu", 16), 2u);
}

// ---- Experts ------------------------------------------------------------------------------------

struct Experts {
  int64_t rows, k, n, here, whole;
  int trans_b;
  enum Choice { kSpread, kOne, kOutside } choice = kSpread;
};

Tensor choices(const Experts& e, DType type, std::mt19937_64& random) {
  Tensor index{{type, {e.rows}}, {}};
  for (int64_t r = 0; r < e.rows; ++r) {
    auto value = static_cast<double>(random() % static_cast<uint64_t>(e.whole));
    if (e.choice == Experts::kOne) value = static_cast<double>(e.whole - 1);
    if (e.choice == Experts::kOutside && random() % 3 == 0) value -= static_cast<double>(e.whole);
    if (e.choice == Experts::kOutside && random() % 5 == 0) value = static_cast<double>(e.whole);
    index.values.push_back(value);
  }
  return index;
}

void check_experts(const Experts& e, DType type, DType index_type, bool is_gradient) {
  SCOPED_TRACE(fmt::format("{} {} rows, {} of {} matrices of {} x {}, trans_b={} (seed {})",
                           info(type).name, e.rows, e.here, e.whole, e.k, e.n, e.trans_b, kSeed));
  std::mt19937_64 random(kSeed);
  const auto given = [&](Written& to, const TensorType& of) {
    return to.given(of, to_bytes(draw(of, random, -1, 1, 2)));
  };
  Written written;
  const Tensor index = choices(e, index_type, random);
  const Shape matrices = e.trans_b ? Shape{e.here, e.n, e.k} : Shape{e.here, e.k, e.n};
  const TensorType y{type, {e.rows, e.n}}, w{type, matrices};
  std::vector<int32_t> inputs{given(written, {type, {e.rows, e.k}}),
                              written.given(index.type, to_bytes(index)),
                              given(written, is_gradient ? y : w)};
  Attrs attrs{{"trans_b", int64_t{e.trans_b}}};
  if (is_gradient) attrs.set("groups", e.here);
  if (e.here != e.whole) {
    attrs.set("whole", e.whole);
    inputs.push_back(written.given({DType::kI64, {}}, scalar(int64_t{1})));
  }
  const TensorType made_type = is_gradient ? w : y;
  const int32_t out = written.made(made_type);
  written.op(is_gradient ? "GroupedMatMulGrad" : "GroupedMatMul", attrs, inputs, {out});
  const Tensor made = to_tensor(made_type, run(written)[static_cast<size_t>(out)]);
  const Tensor expected = to_tensor(made_type, on_cpu(written)[0]);
  const double scale = static_cast<double>(is_gradient ? e.rows : e.k);
  const double of_type = type == DType::kBF16 ? 0x1p-7 : type == DType::kF64 ? 1e-15 : 1e-6;
  for (size_t i = 0; i < made.values.size(); ++i) {
    const double a = made.values[i], b = expected.values[i];
    ASSERT_EQ(std::isnan(a), std::isnan(b)) << "element " << i;
    if (std::isnan(a)) continue;
    const double bound = of_type * (is_half(type) ? std::abs(b) : scale) + 1e-7 * scale;
    ASSERT_LE(std::abs(a - b), bound) << "element " << i << ": " << a << " is not " << b;
  }
}

TEST(Experts, AgreeWithTheCpu) {
  const Experts cases[] = {{200, 40, 72, 3, 3, 0, Experts::kSpread},
                           {200, 33, 70, 3, 3, 1, Experts::kSpread},
                           {130, 8, 65, 4, 4, 0, Experts::kOne},
                           {150, 10, 12, 2, 4, 1, Experts::kOutside},
                           {70, 66, 9, 40, 41, 0, Experts::kOutside}};
  for (const Experts& e : cases)
    for (const bool is_gradient : {false, true}) {
      check_experts(e, DType::kF32, DType::kI64, is_gradient);
      check_experts(e, DType::kBF16, DType::kI32, is_gradient);
    }
  check_experts(cases[1], DType::kF64, DType::kI64, false);
  check_experts(cases[1], DType::kF64, DType::kI64, true);
}

TEST(Experts, WithoutRowsOrDepthGiveZeros) {
  for (const bool is_gradient : {false, true}) {
    check_experts({0, 5, 6, 3, 3, 0}, DType::kF32, DType::kI64, is_gradient);
    check_experts({7, 0, 6, 3, 3, 0}, DType::kF32, DType::kI64, is_gradient);
  }
}

// ---- Scalars ------------------------------------------------------------------------------------

TEST(LearningRates, FollowTheSchedule) {
  const Attrs attrs{{"base", 0.5},
                    {"warmup", int64_t{3}},
                    {"cosine", int64_t{1}},
                    {"total", int64_t{9}},
                    {"min_ratio", 0.1}};
  Written written;
  std::vector<double> expected;
  std::vector<int32_t> rates;
  for (int64_t step = 0; step < 12; ++step) {
    rates.push_back(written.made({DType::kF64, {}}));
    written.op("LearningRate", attrs, {written.given({DType::kI64, {}}, scalar(step))},
               {rates.back()});
    expected.push_back(real_of(on_cpu(written)[0]));
  }
  const std::vector<Bytes> made = run(written);
  for (size_t i = 0; i < rates.size(); ++i)
    EXPECT_DOUBLE_EQ(real_of(made[static_cast<size_t>(rates[i])]), expected[i]) << "step " << i;
}

TEST(LossScales, ShrinkGrowAndStayFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const Attrs attrs{{"growth", 2.0}, {"backoff", 0.5}, {"interval", int64_t{3}}};
  struct Now {
    float scale;
    int64_t good;
    bool skip;
  };
  for (const Now& now : {Now{8, 1, false}, {8, 2, false}, {8, 2, true}, {kMost, 2, false}}) {
    Written written;
    const int32_t scale = written.given({DType::kF32, {}}, scalar(now.scale)),
                  good = written.given({DType::kI64, {}}, scalar(now.good)),
                  skip = written.given({DType::kBool, {}}, scalar(now.skip));
    written.op("NextLossScale", attrs, {scale, good, skip}, {scale, good});
    const std::vector<Bytes> expected = on_cpu(written), made = run(written);
    EXPECT_TRUE(same(made[0], expected[0])) << now.scale << " " << now.good;
    EXPECT_TRUE(same(made[1], expected[1])) << now.scale << " " << now.good;
  }
}

}  // namespace
}  // namespace piper
