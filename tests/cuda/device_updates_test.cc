// Updates and scalars of a step as the cuda backend makes them: many updates in one launch, sums
// that do not depend on how they are cut.
#include "written.h"

namespace piper {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not a plan's

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

// The CPU's kernels round a product and a sum once only where the machine can.
bool cpu_fuses() { return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"); }

// Updates of tensors of several shapes and types; `apart`: with other ops between them.
struct Many {
  Written written;
  std::vector<int32_t> outputs;
  std::vector<Bytes> on_cpu;
};
constexpr std::pair<DType, DType> kTypes[] = {{DType::kF32, DType::kF32},
                                              {DType::kF32, DType::kBF16},
                                              {DType::kBF16, DType::kF32},
                                              {DType::kF16, DType::kF16},
                                              {DType::kF64, DType::kF64}};
const Shape kShapes[] = {{5}, {1, 4096}, {0, 3}, {4097}, {3, 1371}, {}};

Many make_many(const Update& update, bool apart) {
  Many many;
  std::mt19937_64 random(kSeed);
  for (const auto& [param, gradient] : kTypes)
    for (size_t i = 0; i < std::size(kShapes); ++i) {
      Scalars scalars{.rate = 0.01 * static_cast<double>(i + 1), .step = static_cast<int64_t>(i)};
      scalars.skip = i == 4;
      const auto made =
          add_update(many.written, update, kShapes[i], param, gradient, scalars, random);
      many.outputs.insert(many.outputs.end(), made.begin(), made.end());
      for (Bytes& each : on_cpu(many.written)) many.on_cpu.push_back(std::move(each));
      if (!apart) continue;
      const int32_t step = many.written.given({DType::kI64, {}}, scalar(int64_t{1}));
      many.written.op("NextStep", {}, {step}, {step});
    }
  return many;
}

class Updates : public ::testing::TestWithParam<Update> {};

TEST_P(Updates, JoinedAreTheSameBitsAsAloneAndAsOnTheCpu) {
  const Many joined = make_many(GetParam(), false), alone = make_many(GetParam(), true);
  EXPECT_EQ(steps_of(joined.written).kernels.size(), std::size(kTypes));
  const size_t ops = std::size(kTypes) * std::size(kShapes);
  EXPECT_EQ(steps_of(alone.written).kernels.size(), 2 * ops - std::size(kTypes));  // one is empty
  const std::vector<Bytes> made = run(joined.written), others = run(alone.written);
  for (size_t o = 0; o < joined.outputs.size(); ++o) {
    const Bytes& here = made[static_cast<size_t>(joined.outputs[o])];
    EXPECT_TRUE(same(here, others[static_cast<size_t>(alone.outputs[o])]))
        << "output " << o << " (seed " << kSeed << ")";
    EXPECT_TRUE(same(here, joined.on_cpu[o]) || !cpu_fuses())
        << "output " << o << " on the CPU (seed " << kSeed << ")";
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

TEST(UpdateRuns, TakeOtherNumbersButNoOtherTypes) {
  std::mt19937_64 random(kSeed);
  Written written;
  std::vector<int32_t> outputs;
  std::vector<Bytes> expected;
  const auto add = [&](const Update& update, DType gradient) {
    const auto own = add_update(written, update, {7}, DType::kF32, gradient, {}, random);
    outputs.insert(outputs.end(), own.begin(), own.end());
    for (Bytes& each : on_cpu(written)) expected.push_back(std::move(each));
  };
  add(kUpdates[0], DType::kF32);
  add(kUpdates[1], DType::kF32);
  add(kUpdates[1], DType::kBF16);
  EXPECT_EQ(steps_of(written).kernels.size(), 2u);
  const std::vector<Bytes> made = run(written);
  for (size_t o = 0; o < outputs.size(); ++o)
    EXPECT_TRUE(same(made[static_cast<size_t>(outputs[o])], expected[o]) || !cpu_fuses())
        << "output " << o << " (seed " << kSeed << ")";
}

// The gradient is a slice of a longer tensor, of which nothing is copied.
TEST(UpdateRuns, TakeTensorsThatBeginAnywhere) {
  constexpr int64_t kCount = 203;
  for (const DType gradient : {DType::kF32, DType::kBF16}) {
    std::mt19937_64 random(kSeed);
    Written written;
    const auto outputs =
        add_update(written, kUpdates[0], {kCount}, DType::kF32, gradient, {}, random);
    const std::vector<Bytes> expected = on_cpu(written);
    ProgramOp& update = written.program.ops[0];
    const Bytes& aligned = written.arguments[static_cast<size_t>(update.inputs[1])];
    std::string longer(static_cast<size_t>(info(gradient).bytes), '\0');
    longer += as_text(aligned.span());
    const int32_t whole =
        written.given({gradient, {kCount + 1}}, Bytes::copy_of(longer.data(), longer.size()));
    const int32_t sum = written.made({DType::kF64, {}}),
                  of_aligned = written.made({DType::kF64, {}});
    const auto slice = static_cast<int32_t>(written.program.values.size());
    written.program.values.push_back({gradient, {kCount}});
    written.op("SumSquares", {}, {slice}, {sum});
    written.op("SumSquares", {}, {written.program.ops[0].inputs[1]}, {of_aligned});
    written.program.ops[0].inputs[1] = slice;
    const std::vector<int64_t> starts{1}, ends{kCount + 1};
    written.program.ops.insert(
        written.program.ops.begin(),
        {"Slice", {{"starts", starts}, {"ends", ends}, {"steps", starts}}, {whole}, {slice}});
    ASSERT_EQ(steps_of(written).steps.size(), 3u) << "something is copied";
    const std::vector<Bytes> made = run(written);
    for (size_t o = 0; o < outputs.size(); ++o)
      EXPECT_TRUE(same(made[static_cast<size_t>(outputs[o])], expected[o]) || !cpu_fuses())
          << "output " << o << " (seed " << kSeed << ")";
    EXPECT_TRUE(same(made[static_cast<size_t>(sum)], made[static_cast<size_t>(of_aligned)]));
  }
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
    EXPECT_EQ(steps_of(written).kernels.size(), 2u);
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
