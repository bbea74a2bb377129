// What is fused computes the same bits.
#include "piper/base/memory.h"
#include "unit/fuse_programs.h"

namespace piper::test {
namespace {

// Pointwise ops, reshapes, softmax and sums of rows and over rows, over random earlier values; some
// results are arguments.
Program random_program(std::mt19937& random, int32_t outputs) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const TensorType full = f32({6, 50}), flat = f32({300}), row = f32({50}), column = f32({6, 1});
  std::vector<TensorType> values{full, row, column};
  for (int32_t o = 0; o < outputs; ++o) values.push_back(o % 2 ? full : flat);
  std::vector<int32_t> by_shape[4] = {{0}, {}, {1}, {2}};  // full, flat, row, column
  std::vector<ProgramOp> ops;
  const auto add = [&](std::string op, Attrs attrs, std::vector<int32_t> in, int shape) {
    const TensorType types[] = {full, flat, row, column};
    values.push_back(types[shape]);
    by_shape[shape].push_back(static_cast<int32_t>(values.size()) - 1);
    ops.push_back({std::move(op), std::move(attrs), std::move(in), {by_shape[shape].back()}});
  };
  const auto any = [&](int shape) { return by_shape[shape][below(by_shape[shape].size())]; };
  add("Reshape", {{"shape", Shape{300}}}, {0}, 1);
  const char* unary[] = {"Tanh", "Neg", "Sigmoid", "Relu"};
  const char* binary[] = {"Add", "Mul", "Sub", "Max"};
  for (int i = 0; i < 30; ++i) {
    const int shape = below(5) == 0 ? 1 : 0;
    switch (below(6)) {
      case 0:
        add(unary[below(4)], {}, {any(shape)}, shape);
        break;
      case 1:
        add("Reshape", {{"shape", Shape{300}}}, {any(0)}, 1);
        break;
      case 2:
        add("Reshape", {{"shape", Shape{6, 50}}}, {any(1)}, 0);
        break;
      case 3:
        if (below(3) == 0) {
          add("Softmax", {{"axis", int64_t{1}}}, {any(0)}, 0);
        } else {
          const int64_t over = below(2) ? 1 : 0;
          add("ReduceSum", {{"axes", std::vector{over}}, {"keepdims", over}}, {any(0)},
              over ? 3 : 2);
        }
        break;
      case 4:
        add(binary[below(4)], {}, {any(0), any(below(2) ? 2 : 3)}, 0);
        break;
      default:
        add(binary[below(4)], {}, {any(shape), any(shape)}, shape);
    }
  }
  std::vector<int32_t> written;
  for (int32_t o = 0; o < outputs; ++o) {
    const bool is_full = o % 2;
    written.push_back(3 + o);
    if (below(2))
      ops.push_back({"Reshape",
                     {{"shape", is_full ? Shape{6, 50} : Shape{300}}},
                     {any(is_full ? 1 : 0)},
                     {3 + o}});
    else
      ops.push_back({"Tanh", {}, {any(is_full ? 0 : 1)}, {3 + o}});
  }
  return program_of(std::move(values), 3 + outputs, written, std::move(ops));
}

TEST(FuseBits, RandomProgramsComputeTheSameFusedAndNot) {
  FuseCounts counts;
  bool wrong_expression_shows = false;
  size_t passes_saved = 0, moved = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const Program plain = random_program(random, 5);
    FusedProgram fused = fuse(plain, counts);
    std::vector<std::vector<float>> args;
    for (int32_t a = 0; a < plain.num_args; ++a) {
      args.emplace_back(
          static_cast<size_t>(num_elements(plain.values[static_cast<size_t>(a)].shape)));
      for (float& x : args.back())
        x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 500;
    }
    const auto want = run(plain, args);
    ASSERT_EQ(run(fused, args), want) << "seed " << seed << "\n" << text_of(fused);
    FusedProgram joined = join_rows(fused);
    moved += text_of(joined) != text_of(fused);
    passes_saved += joined.ops.size() - 1 - joined.passes.back();
    joined.passes.clear();
    ASSERT_EQ(run(joined, args), want) << "seed " << seed << "\n" << text_of(joined);
    for (ProgramOp& op : fused.ops) {  // the control: one word changed
      std::string expr = op.attrs.text("expr");
      const size_t at = expr.find("Add");
      if (at == expr.npos) continue;
      op.attrs.set("expr", expr.replace(at, 3, "Sub"));
      wrong_expression_shows = wrong_expression_shows || run(fused, args) != want;
      break;
    }
  }
  EXPECT_TRUE(wrong_expression_shows);
  EXPECT_GT(counts.groups, 80);
  EXPECT_GT(counts.views, 250);
  EXPECT_GT(passes_saved, 80u);
  EXPECT_GT(moved, 10u);
}

// Of two numbers that one pass makes, the first may be stored over what the second reads.
TEST(FuseBits, ANumberIsReadBeforeAnotherIsStoredOverIt) {
  const TensorType one = f32({}), six = f32({6});
  const Program plain = program_of(
      {six, one, six, one, one, one, six}, 3, {2},
      {{"ReduceSum", {{"axes", std::vector{int64_t{0}}}, {"keepdims", int64_t{0}}}, {0}, {3}},
       {"Tanh", {}, {1}, {4}},
       {"Mul", {}, {3, 4}, {5}},
       {"Mul", {}, {0, 4}, {6}},
       {"Add", {}, {6, 5}, {2}}});
  FuseCounts counts;
  const FusedProgram fused = fuse(plain, counts);
  const std::vector<std::vector<float>> args{{1, 2, 3, 4, 5, 6}, {0.5F}, std::vector<float>(6)};
  EXPECT_EQ(run(fused, args), run(plain, args)) << text_of(fused);
}

// Products with rows, columns and depths on both sides of every cut; sums and products behind them.
TEST(FuseBits, FinishedProductsAreTheSame) {
  std::mt19937 random(7);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                {5, 40, 128},
                                {13, 33, 129},
                                {50, 70, 300},
                                {250, 31, 257},
                                {30, 600, 520}}) {
    for (int form = 0; form < 8; ++form) {
      const bool ta = form & 1, tb = form & 2, multiplies = form & 4;
      const TensorType y = f32({m, n});
      Program plain =
          program_of({f32(ta ? Shape{k, m} : Shape{m, k}), f32(tb ? Shape{n, k} : Shape{k, n}),
                      f32({n}), y, y, y, y},
                     5, {4},
                     {{"MatMul", {{"trans_a", int64_t{ta}}, {"trans_b", int64_t{tb}}}, {0, 1}, {5}},
                      {"Add", {}, {5, 2}, {6}},
                      {multiplies ? "Mul" : "Add", {}, {3, 6}, {4}}});
      FuseCounts counts;
      FusedProgram finished = fuse(plain, counts);
      ASSERT_EQ(counts.finished, 2);
      std::vector<std::vector<float>> args;
      for (int32_t a = 0; a < 5; ++a) {
        args.emplace_back(
            static_cast<size_t>(num_elements(plain.values[static_cast<size_t>(a)].shape)));
        for (float& x : args.back())
          x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 500;
      }
      const auto want = run(plain, args);
      EXPECT_EQ(run(finished, args), want) << m << " " << n << " " << k << " form " << form;
      finished.ops[0].attrs.set("then", std::string("Mul Add"));  // the control
      EXPECT_NE(run(finished, args), want);
    }
  }
}

// A product of 16-bit operands that keeps its sums gives those of the operands in f32.
TEST(FuseBits, SumsThatAreKeptAreThoseOfWiderOperands) {
  const TensorType a = f32({70, 31}), b = f32({70, 45}), y = f32({31, 45});
  const auto narrow = [](TensorType type) {
    type.dtype = DType::kBF16;
    return type;
  };
  const auto cast = [](const char* dtype) { return Attrs{{"to", dtype}}; };
  const Attrs product{{"trans_a", int64_t{1}}};
  Attrs kept = product;
  kept.set("to", std::string("f32"));
  const std::vector<ProgramOp> rounded{{"Cast", cast("bf16"), {0}, {3}},
                                       {"Cast", cast("bf16"), {1}, {4}}};
  const auto with = [&](std::vector<TensorType> more, const std::vector<ProgramOp>& behind) {
    std::vector<TensorType> values{a, b, y, narrow(a), narrow(b)};
    values.insert(values.end(), more.begin(), more.end());
    std::vector<ProgramOp> ops = rounded;
    ops.insert(ops.end(), behind.begin(), behind.end());
    return program_of(std::move(values), 3, {2}, std::move(ops));
  };
  std::mt19937 random(5);
  std::vector<std::vector<float>> args;
  for (const TensorType& type : {a, b, y}) {
    args.emplace_back(static_cast<size_t>(num_elements(type.shape)));
    for (float& v : args.back()) v = static_cast<float>(random() % 2001) / 1000 - 1;
  }
  const auto want = run_planned(with({a, b}, {{"Cast", cast("f32"), {3}, {5}},
                                              {"Cast", cast("f32"), {4}, {6}},
                                              {"MatMul", product, {5, 6}, {2}}}),
                                args);
  EXPECT_EQ(run_planned(with({}, {{"MatMul", kept, {3, 4}, {2}}}), args), want);
  EXPECT_NE(run_planned(with({narrow(y)}, {{"MatMul", product, {3, 4}, {5}},  // the control
                                           {"Cast", cast("f32"), {5}, {2}}}),
                        args),
            want);
}

TEST(FuseBits, FinishedNormGradientsAreTheSame) {
  std::mt19937 random(11);
  const TensorType x = f32({37, 21}), scale = f32({21}), rstd = f32({37, 1});
  for (const bool centred : {false, true}) {
    std::vector<int32_t> inputs{0, 1, 2, 3};
    if (centred) inputs.push_back(4);
    const Program plain = program_of(
        {x, x, scale, rstd, rstd, x, x, x}, 7, {6},
        {{centred ? "LayerNormGradX" : "RmsNormGradX", {{"axis", int64_t{1}}}, inputs, {7}},
         {"Add", {}, {5, 7}, {6}}});
    FuseCounts counts;
    FusedProgram finished = fuse(plain, counts);
    ASSERT_EQ(counts.finished, 1);
    std::vector<std::vector<float>> args;
    for (int32_t a = 0; a < 7; ++a) {
      args.emplace_back(
          static_cast<size_t>(num_elements(plain.values[static_cast<size_t>(a)].shape)));
      for (float& v : args.back())
        v = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 500;
    }
    const auto want = run(plain, args);
    EXPECT_EQ(run(finished, args), want);
    finished.ops[0].attrs.set("then", std::string("Mul"));  // the control
    EXPECT_NE(run(finished, args), want);
  }
}

// An output may be stored over any input, also one that is read after it.
TEST(FuseBits, OutputsMayTakeThePlaceOfInputs) {
  const TensorType x = f32({3, 700});
  std::vector<std::vector<float>> args(4, std::vector<float>(2100));
  for (size_t i = 0; i < 2100; ++i) {
    args[0][i] = static_cast<float>(i % 17) - 8;
    args[1][i] = static_cast<float>(i % 29) / 4 - 3;
  }
  // in0 · (in0 + in1) − in1 and max(in0 + in1, in0), of the negative args: 6 and 7, or 7 and 6.
  for (const auto& [first, second, kept] :
       {std::tuple{4, 5, -1}, {5, 4, -1}, {4, 5, 4}, {4, 5, 5}, {5, 4, 4}}) {
    FusedProgram program;
    program.values.assign(8, x);
    program.num_args = 4;
    const std::string expr =
        first == 4 ? "0 0 1 Add =0 Mul 1 Sub @0 0 Max" : "1 1 0 Add =0 Mul 0 Sub @0 1 Max";
    program.ops = {{"Neg", {}, {0}, {4}},
                   {"Neg", {}, {1}, {5}},
                   {"Fused", {{"expr", expr}}, {first, second}, {6, 7}},
                   {"Neg", {}, {6}, {2}},
                   {"Neg", {}, {7}, {3}}};
    if (kept >= 0) program.ops.push_back({"Neg", {}, {kept}, {kept == 4 ? 0 : 1}});
    EXPECT_EQ(place_locals(program).bytes, (kept < 0 ? 2 : 3) * align_up(x.bytes()));
    FusedProgram apart = program;  // locals are arguments
    apart.num_args = 8;
    auto more = args;
    more.resize(8, args[0]);
    const auto got = run(program, args), want = run(apart, more);
    for (size_t a : {2, 3}) EXPECT_EQ(got[a], want[a]) << first << " " << second << " " << kept;
  }
}

}  // namespace
}  // namespace piper::test
