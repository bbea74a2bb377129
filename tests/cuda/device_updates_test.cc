// Updates and scalars of a step as the cuda backend makes them: many updates in one launch, sums
// that do not depend on how they are cut.
#include "written.h"

namespace piper::device_updates_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not a plan's

// ---- Updates ------------------------------------------------------------------------------------

struct Update {
  std::string op;
  Attrs attrs;
  size_t states;  // inputs that are states or absent
  bool buffered = true;
  unsigned halves = 0;  // a bit for each state that is in bf16 where it would be in f32
};
const Update kUpdates[] = {
    {"AdamW", {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}, 2},
    {"AdamW", {{"weight_decay", 0.1}, {"decoupled", int64_t{0}}}, 2},
    {"OnnxAdam", {{"weight_decay", 0.1}, {"weight_decay_after", 0.01}, {"count", int64_t{2}}}, 2},
    {"Sgd", {{"momentum", 0.9}, {"dampening", 0.1}, {"nesterov", int64_t{1}}}, 1},
    {"Sgd", {{"weight_decay", 0.1}}, 1, false},
    {"Adagrad", {{"lr_decay", 0.1}, {"weight_decay", 0.1}}, 1},
    {"Lion", {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.1}}, 1},
    {"Lion", {{"beta1", 0.9}, {"beta2", 0.99}, {"ema", 0.75}}, 2},
    {"AdamW", {{"weight_decay", 0.1}, {"ema", 0.75}}, 3},
    {"AdamW", {{"weight_decay", 0.1}}, 2, true, 1},
    {"AdamW", {{"weight_decay", 0.1}, {"ema", 0.75}}, 3, true, 3},
    {"Sgd", {{"momentum", 0.9}}, 1, true, 1},
    {"Muon", {{"scale", 0.5}, {"weight_decay", 0.1}}, 0},
    {"Muon", {{"scale", 0.5}, {"weight_decay", 0.1}, {"ema", 0.75}}, 1},
    {"Adafactor", {{"weight_decay", 0.1}}, 0},
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
  const auto state = [&](size_t s) {
    if (param == DType::kF64) return param;
    return (update.halves >> s & 1) != 0 ? DType::kBF16 : DType::kF32;
  };
  std::vector<int32_t> inputs, outputs;
  const auto tensor = [&](DType type, double low) {
    inputs.push_back(to.given({type, shape}, to_bytes(draw({type, shape}, random, low, 1.0, 2))));
  };
  tensor(param, -1);
  tensor(gradient, -1);
  for (size_t s = 0; s < update.states; ++s)
    if (update.buffered)
      tensor(state(s), 0);
    else
      inputs.push_back(-1);
  inputs.push_back(to.given({DType::kF64, {}}, scalar(scalars.rate)));
  inputs.push_back(to.given({DType::kF64, {}}, scalar(scalars.clip)));
  inputs.push_back(to.given({DType::kI64, {}}, scalar(scalars.step)));
  inputs.push_back(to.given({DType::kBool, {}}, scalar(scalars.skip)));
  outputs.push_back(to.made({param, shape}));
  for (size_t s = 0; s < update.states && update.buffered; ++s)
    outputs.push_back(to.made({state(s), shape}));
  to.op(update.op, update.attrs, inputs, outputs);
  return outputs;
}

// The CPU's kernels round a product and a sum once only where the machine can.
bool cpu_fuses() { return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"); }

constexpr std::pair<DType, DType> kTypes[] = {{DType::kF32, DType::kF32},
                                              {DType::kF32, DType::kBF16},
                                              {DType::kBF16, DType::kF32},
                                              {DType::kF16, DType::kF16},
                                              {DType::kF64, DType::kF64}};
const Shape kShapes[] = {{5}, {1, 4096}, {0, 3}, {4097}, {3, 1371}, {}};

// Update i of a tensor of some shape and type. Returns its results; a parameter in f32 is cast,
// too, if `copy` says to what.
std::vector<int32_t> add_update(Written& to, const Update& update, size_t i,
                                std::optional<DType> copy = {}) {
  const auto& [param, gradient] = kTypes[i / std::size(kShapes)];
  const size_t shape = i % std::size(kShapes);
  std::mt19937_64 random(kSeed + i);
  Scalars scalars{.rate = 0.01 * static_cast<double>(shape + 1),
                  .step = static_cast<int64_t>(shape)};
  scalars.skip = shape == 4;
  std::vector<int32_t> made =
      add_update(to, update, kShapes[shape], param, gradient, scalars, random);
  if (copy && param == DType::kF32) {
    const int32_t cast = to.made({*copy, kShapes[shape]});
    to.op("Cast", {{"to", std::string(info(*copy).name)}}, {made[0]}, {cast});
    made.push_back(cast);
  }
  return made;
}
constexpr size_t kUpdatesOfAll = std::size(kTypes) * std::size(kShapes);

Bytes cast_on_cpu(const TensorType& type, const Bytes& data, DType to) {
  Written cast;
  cast.op("Cast", {{"to", std::string(info(to).name)}}, {cast.given(type, data)},
          {cast.made({to, type.shape})});
  return on_cpu(cast)[0];
}

// Compares what updates in one program make with what the CPU makes of each.
void expect_as_on_cpu(const Update& update, const Written& joined,
                      const std::vector<std::vector<int32_t>>& outputs, std::optional<DType> copy) {
  const std::vector<Bytes> made = run(joined);
  for (size_t i = 0; i < outputs.size(); ++i) {
    Written alone;
    const std::vector<int32_t> own = add_update(alone, update, i);
    const std::vector<Bytes> cpu = on_cpu(alone);
    for (size_t o = 0; o < own.size(); ++o)
      EXPECT_TRUE(same(made[static_cast<size_t>(outputs[i][o])], cpu[o]) || !cpu_fuses())
          << "update " << i << ", result " << o << " (seed " << kSeed << ")";
    if (outputs[i].size() == own.size()) continue;
    EXPECT_TRUE(same(made[static_cast<size_t>(outputs[i].back())],
                     cast_on_cpu(alone.program.values[static_cast<size_t>(own[0])],
                                 made[static_cast<size_t>(outputs[i][0])], *copy)))
        << "copy of update " << i << " (seed " << kSeed << ")";
  }
}

class Updates : public ::testing::TestWithParam<Update> {};

TEST_P(Updates, JoinedAreTheSameBitsAsOnTheCpu) {
  Written joined;
  std::vector<std::vector<int32_t>> outputs;
  for (size_t i = 0; i < kUpdatesOfAll; ++i) outputs.push_back(add_update(joined, GetParam(), i));
  EXPECT_EQ(steps_of(joined).kernels.size(), std::size(kTypes));
  expect_as_on_cpu(GetParam(), joined, outputs, {});
}

// As in the update of a layer whose parameters are computed with in 16 bits.
TEST_P(Updates, WithOtherOpsAndCastsBetweenThemAreOneKernelOfEachKind) {
  for (const DType copy : {DType::kBF16, DType::kF16}) {
    Written joined;
    std::vector<std::vector<int32_t>> outputs;
    for (size_t i = 0; i < kUpdatesOfAll; ++i) {
      outputs.push_back(
          add_update(joined, GetParam(), i, i % 2 ? std::optional(copy) : std::nullopt));
      if (i % 5 > 0) continue;
      const int32_t step = joined.given({DType::kI64, {}}, scalar(int64_t{1}));
      joined.op("NextStep", {}, {step}, {step});
    }
    EXPECT_EQ(steps_of(joined).kernels.size(), std::size(kTypes) + kUpdatesOfAll / 5);
    expect_as_on_cpu(GetParam(), joined, outputs, copy);
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

// Absent operands and both operands of a Cast take pointers, too.
TEST(UpdateRuns, CountAbsentOperandsAndCasts) {
  std::mt19937_64 random(kSeed);
  Written written;
  for (int i = 0; i < 100; ++i) {
    const auto made =
        add_update(written, kUpdates[0], {i + 1}, DType::kF32, DType::kF32, {}, random);
    ProgramOp& update = written.program.ops.back();
    update.inputs[5] = -1;  // no factor of clipping
    written.op("Cast", {{"to", std::string("bf16")}}, {made[0]},
               {written.made({DType::kBF16, {i + 1}})});
  }
  size_t pointers = 0;
  for (const DeviceKernel& kernel : steps_of(written).kernels) {
    EXPECT_LE(kernel.pointers, 480);
    pointers += static_cast<size_t>(kernel.pointers);
  }
  EXPECT_EQ(pointers, size_t{100 * (11 + 2)});
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

// A second Cast of a parameter, one to another type, one of a state and one of a parameter in f64
// are kernels of their own.
TEST(UpdateRuns, TakeCastsOfParametersAlone) {
  const auto kernels_with = [](DType param, size_t result, std::initializer_list<DType> casts) {
    std::mt19937_64 random(kSeed);
    Written written;
    const auto made = add_update(written, kUpdates[0], {40}, param, param, {}, random);
    std::vector<int32_t> all;
    for (const DType to : casts) {
      all.push_back(written.made({to, {40}}));
      written.op("Cast", {{"to", std::string(info(to).name)}}, {made[result]}, {all.back()});
    }
    const std::vector<Bytes> here = run(written);
    for (size_t c = 0; c < all.size(); ++c)
      EXPECT_TRUE(same(here[static_cast<size_t>(all[c])],
                       cast_on_cpu(written.program.values[static_cast<size_t>(made[result])],
                                   here[static_cast<size_t>(made[result])], std::data(casts)[c])));
    return steps_of(written).kernels.size();
  };
  EXPECT_EQ(kernels_with(DType::kF32, 0, {DType::kBF16}), 1u);
  EXPECT_EQ(kernels_with(DType::kF32, 0, {DType::kBF16, DType::kBF16}), 2u);
  EXPECT_EQ(kernels_with(DType::kF32, 0, {DType::kBF16, DType::kF16}), 2u);
  EXPECT_EQ(kernels_with(DType::kF32, 0, {DType::kF64}), 2u);
  EXPECT_EQ(kernels_with(DType::kF32, 1, {DType::kBF16}), 2u);
  EXPECT_EQ(kernels_with(DType::kF64, 0, {DType::kBF16}), 2u);
}

// A Cast that is written where a gradient lies, which another part of the run may still read, waits
// for the run.
TEST(UpdateRuns, LeaveACastThatIsWrittenOverAnOperand) {
  std::mt19937_64 random(kSeed);
  Written written;
  const auto made = add_update(written, kUpdates[0], {4097}, DType::kF32, DType::kBF16, {}, random);
  const int32_t gradient = written.program.ops[0].inputs[1];
  const std::vector<Bytes> expected = on_cpu(written);
  written.op("Cast", {{"to", std::string("bf16")}}, {made[0]}, {gradient});
  written.program.arg_written[static_cast<size_t>(gradient)] = true;
  EXPECT_EQ(steps_of(written).kernels.size(), 2u);
  const std::vector<Bytes> here = run(written);
  EXPECT_TRUE(same(here[static_cast<size_t>(made[0])], expected[0]) || !cpu_fuses());
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
                    {"rate",
                     "lr step 3 < step 1 + 3 / step 9 < 3.141592653589793 step 3 - 6 / * cos 1 + "
                     "0.9 * 2 / 0.1 + step 4 % 1 >= 0.1 0.2 ? ? ? *"}};
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
}  // namespace piper::device_updates_test
