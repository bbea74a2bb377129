// Views and groups: what becomes of a program.
#include <regex>

#include "piper/halves.h"
#include "unit/fuse_programs.h"

namespace piper::test {
namespace {

TEST(FuseViews, AReshapeIsAViewOfWhatItReadsOrIsReadInTheArgument) {
  const TensorType a = f32({2, 6}), b = f32({3, 4});
  // Of an argument, of a local, and into an argument.
  const Program program = program_of({a, b, b, a, b, b}, 3, {1, 2},
                                     {{"Reshape", {{"shape", Shape{3, 4}}}, {0}, {4}},
                                      {"Neg", {}, {4}, {1}},
                                      {"Softmax", {{"axis", int64_t{1}}}, {0}, {3}},
                                      {"Reshape", {{"shape", Shape{3, 4}}}, {3}, {2}}});
  EXPECT_EQ(fused_text(program), "Neg 4>1; Softmax 0>3; x3 is x2+0; x4 is x0+0; ");
}

TEST(FuseViews, SlicesOfOneRunAreViewsOthersAreNot) {
  const auto slice = [](Shape starts, Shape to) {
    Shape ends;
    for (size_t d = 0; d < to.size(); ++d) ends.push_back(starts[d] + to[d]);
    const Program program = program_of(
        {f32({4, 2, 3}), f32(to), f32(to)}, 2, {1},
        {{"Slice", {{"starts", starts}, {"ends", ends}, {"steps", Shape(3, 1)}}, {0}, {2}},
         {"Neg", {}, {2}, {1}}});
    return fused_text(program);
  };
  EXPECT_EQ(slice({1, 0, 0}, {2, 2, 3}), "Neg 2>1; x2 is x0+24; ");
  EXPECT_EQ(slice({3, 1, 0}, {1, 1, 3}), "Neg 2>1; x2 is x0+84; ");
  EXPECT_EQ(slice({3, 1, 2}, {1, 1, 1}), "Neg 2>1; x2 is x0+92; ");
  EXPECT_EQ(slice({0, 1, 0}, {4, 1, 3}), "Slice 0>2; Neg 2>1; ");
  EXPECT_EQ(slice({1, 0, 1}, {1, 2, 2}), "Slice 0>2; Neg 2>1; ");
}

TEST(FuseViews, AnArgumentThatIsWrittenLaterIsCopied) {
  const TensorType a = f32({4}), b = f32({2, 2});
  Program program = program_of({a, b, b}, 2, {1},
                               {{"Reshape", {{"shape", Shape{2, 2}}}, {0}, {2}},
                                {"Neg", {}, {0}, {0}},
                                {"Softmax", {{"axis", int64_t{0}}}, {2}, {1}}});
  program.arg_written[0] = true;
  EXPECT_EQ(fused_text(program), "Reshape 0>2; Neg 0>0; Softmax 2>1; ");
}

// q, k and v of 4, 2 and 2 heads from the columns of argument 0, their attention's gradient, and
// the gradients put together again, in the order `order`, into argument 3. Argument 1 is y, 2 lse,
// 4 dy.
// Argument 5, if there is one, gets the negative of k.
Program joint_attention(const std::vector<size_t>& order, bool negative = false) {
  const int64_t heads[] = {4, 2, 2}, first[] = {0, 12, 18};
  const TensorType all = f32({2, 5, 24}), y = f32({2, 5, 4, 3});
  std::vector<TensorType> values{all, y, f32({2, 4, 5}), all, y};
  if (negative) values.push_back(f32({2, 5, 6}));
  std::vector<ProgramOp> ops;
  const auto add = [&](std::string op, Attrs attrs, std::vector<int32_t> in, Shape shape) {
    const auto id = static_cast<int32_t>(values.size());
    values.push_back(f32(std::move(shape)));
    ops.push_back({std::move(op), std::move(attrs), std::move(in), {id}});
    return id;
  };
  std::vector<int32_t> operands;
  for (size_t i = 0; i < 3; ++i) {
    const Shape starts{0, 0, first[i]}, ends{2, 5, first[i] + heads[i] * 3},
        shape{2, 5, heads[i], 3};
    const int32_t part =
        add("Slice", {{"starts", starts}, {"ends", ends}, {"steps", Shape{1, 1, 1}}}, {0},
            {2, 5, heads[i] * 3});
    operands.push_back(add("Reshape", {{"shape", shape}}, {part}, shape));
  }
  const Attrs attrs{{"tokens_first", Shape{1, 1, 1, 1}}, {"scale", 0.5}, {"causal", int64_t{1}}};
  const int32_t q = operands[0], k = operands[1], v = operands[2];
  ops.push_back({"Attention", attrs, {q, k, v}, {1, 2}});
  const auto grads = static_cast<int32_t>(values.size());
  for (int64_t h : heads) values.push_back(f32({2, 5, h, 3}));
  ops.push_back({"AttentionGrad", attrs, {q, k, v, 1, 2, 4}, {grads, grads + 1, grads + 2}});
  std::vector<int32_t> pieces;
  for (size_t i : order) {
    const Shape shape{2, 5, heads[i] * 3};
    pieces.push_back(add("Reshape", {{"shape", shape}}, {grads + static_cast<int32_t>(i)}, shape));
  }
  ops.push_back({"Concat", {{"axis", int64_t{2}}}, pieces, {3}});
  if (!negative) return program_of(values, 5, {1, 2, 3}, ops);
  ops.push_back({"Neg", {}, {ops[2].outputs[0]}, {5}});
  return program_of(values, 6, {1, 2, 3, 5}, ops);
}

std::vector<std::vector<float>> random_args(const Program& program, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<float>> args;
  for (int32_t a = 0; a < program.num_args; ++a) {
    const Shape& shape = program.values[static_cast<size_t>(a)].shape;
    args.emplace_back(static_cast<size_t>(num_elements(shape)));
    for (float& x : args.back()) x = static_cast<float>(random() % 2001) / 1000 - 1;
  }
  return args;
}

TEST(FuseColumns, SlicesOfOneTensorAreReadAndMadeWhereTheyLie) {
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2}, {2, 0, 1}}) {
    const Program plain = joint_attention(order);
    FuseCounts counts;
    FusedProgram fused = fuse(plain, counts);
    EXPECT_EQ(text_of(fused), "Attention 0,0,0>1,2; AttentionGrad 0,0,0,1,2,4>3; ");
    const auto args = random_args(plain, 3), want = run(plain, args);
    EXPECT_EQ(run(fused, args), want);
    fused.ops[1].attrs.set("grad_columns", Shape{12, 0, 6});  // the control: other columns
    EXPECT_NE(run(fused, args), want);
  }
}

TEST(FuseColumns, ASliceThatIsReadElsewhereStays) {
  const Program plain = joint_attention({0, 1, 2}, true);
  FuseCounts counts;
  const FusedProgram fused = fuse(plain, counts);
  EXPECT_EQ(text_of(fused),
            "Slice 0>6; Attention 0,0,0>1,2; AttentionGrad 0,0,0,1,2,4>3; Neg 6>5; ");
  const auto args = random_args(plain, 4);
  EXPECT_EQ(run(fused, args), run(plain, args));
}

TEST(FuseColumns, NothingChangesWhereTheTensorIsWrittenBetween) {
  Program program = joint_attention({0, 1, 2});
  program.arg_written[0] = true;
  const auto attention = std::find_if(program.ops.begin(), program.ops.end(),
                                      [](const ProgramOp& op) { return op.op == "Attention"; });
  program.ops.insert(attention, {"Neg", {}, {0}, {0}});
  const std::string text = fused_text(program);
  EXPECT_EQ(text.find("Attention 0,0,0"), text.npos) << text;
  EXPECT_NE(text.find("Concat"), text.npos) << text;
  const auto args = random_args(program, 5);
  FuseCounts counts;
  EXPECT_EQ(run(fuse(program, counts), args), run(program, args));
}

// In 16 bits, and made here: one cast of the tensor is read and no slice is copied.
TEST(FuseColumns, SlicesOf16BitsAreColumnsOfOneCast) {
  Program program = joint_attention({0, 1, 2});
  for (size_t v = 0; v < program.values.size(); ++v)
    if (v != 2) program.values[v].dtype = DType::kBF16;  // all but the logarithms of the sums
  program.arg_written[0] = true;
  program.ops.insert(program.ops.begin(), {"Neg", {}, {0}, {0}});
  FuseCounts counts;
  const auto moves = [](std::string_view op) {
    return op == "Slice" || op == "Reshape" || op == "Concat" || op == "Cast" || op == "Fused";
  };
  const FusedProgram fused = fuse(widened(program, moves), counts);
  const std::string text = text_of(fused);
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(Attention (\d+),\1,\1>)"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(AttentionGrad (\d+),\1,\1,)"))) << text;
  EXPECT_EQ(text.find("Slice"), text.npos) << text;
  std::vector<std::vector<float>> args = random_args(program, 6);
  for (auto& arg : args)  // the upper halves of two floats each
    for (float& x : arg) {
      const auto bits = std::bit_cast<uint32_t>(x);
      x = std::bit_cast<float>((bits & 0xffff0000u) | bits >> 16);
    }
  const auto want = run_planned(program, args);
  EXPECT_EQ(run(fused, args), want);
  EXPECT_NE(want, args);
}

TEST(FuseGroups, AChainWithABroadcastBiasIsOneOpWithTwoOutputs) {
  const TensorType x = f32({4, 8}), bias = f32({8});
  const Program program =
      program_of({x, bias, x, x, x, x}, 4, {2, 3},
                 {{"Add", {}, {0, 1}, {2}}, {"Tanh", {}, {2}, {4}}, {"Mul", {}, {2, 4}, {3}}});
  EXPECT_EQ(fused_text(program), "Fused 0,1>2,3 '0 1 Add =0 @0 @0 Tanh Mul'; ");
}

TEST(FuseGroups, NothingMovesOverAReaderOfItsResult) {
  const TensorType x = f32({4, 4});
  // Softmax reads t, and the sum reads what it makes: they cannot be one pass.
  const Program program = program_of({x, x, x, x}, 2, {1},
                                     {{"Tanh", {}, {0}, {2}},
                                      {"Softmax", {{"axis", int64_t{1}}}, {2}, {3}},
                                      {"Add", {}, {2, 3}, {1}}});
  EXPECT_EQ(fused_text(program), "Tanh 0>2; Softmax 2>3; Add 2,3>1; ");
}

TEST(FuseGroups, AnotherShapeIsAnotherPass) {
  const TensorType x = f32({4, 4}), row = f32({4});
  const Program program =
      program_of({x, row, x, row}, 3, {2}, {{"Exp", {}, {1}, {3}}, {"Mul", {}, {0, 3}, {2}}});
  EXPECT_EQ(fused_text(program), "Exp 1>3; Mul 0,3>2; ");
}

TEST(FuseGroups, WhatNobodyReadsIsNotMade) {
  const TensorType x = f32({4});
  const Program program = program_of(
      {x, x, x, x}, 2, {1}, {{"Neg", {}, {0}, {2}}, {"Tanh", {}, {2}, {3}}, {"Exp", {}, {0}, {1}}});
  EXPECT_EQ(fused_text(program), "Exp 0>1; ");
}

TEST(FuseGroups, AccumulationStandsAlone) {
  const TensorType x = f32({4});
  Program program = program_of({x, x, x}, 2, {}, {{"Neg", {}, {0}, {2}}, {"Add", {}, {1, 2}, {1}}});
  program.arg_written[1] = true;
  EXPECT_EQ(fused_text(program), "Neg 0>2; Add 1,2>1; ");
}

TEST(FuseProducts, ABiasAndAResidualAreAddedWhereTheProductIsMade) {
  const TensorType x = f32({2, 4, 8}), w = f32({8, 8}), bias = f32({8});
  // y = x·w; b = y + bias; r = x + b; a third sum is a pass of its own.
  const Program program = program_of({x, w, bias, x, x, x, x}, 4, {3},
                                     {{"MatMul", {}, {0, 1}, {4}},
                                      {"Add", {}, {4, 2}, {5}},
                                      {"Mul", {}, {0, 5}, {6}},
                                      {"Add", {}, {6, 0}, {3}}});
  EXPECT_EQ(fused_text(program), "MatMul 0,1,2,0>4 'Add Mul'; Add 4,0>3; ");
  FuseCounts counts;
  fuse(program, counts);
  EXPECT_EQ(counts.finished, 2);
}

// In its own place, where what it takes is made before it: others find what it read still near.
TEST(FuseProducts, TheGradientOfANormTakesTheResidual) {
  const TensorType x = f32({4, 8}), scale = f32({8}), rstd = f32({4, 1});
  const Attrs axis{{"axis", int64_t{1}}};
  const auto text = [&](std::vector<ProgramOp> ops) {
    return fused_text(
        program_of({x, x, scale, rstd, x, x, scale, x, x}, 7, {5, 6}, std::move(ops)));
  };
  const ProgramOp grad{"RmsNormGradX", axis, {0, 1, 2, 3}, {7}};
  const ProgramOp params{"RmsNormGradScale", axis, {0, 1, 3}, {6}};
  EXPECT_EQ(text({grad, params, {"Add", {}, {7, 4}, {5}}}),
            "RmsNormGradX 0,1,2,3,4>5 'Add'; RmsNormGradScale 0,1,3>6; ");
  EXPECT_EQ(text({grad, params, {"Exp", {}, {4}, {8}}, {"Add", {}, {8, 7}, {5}}}),
            "RmsNormGradScale 0,1,3>6; Exp 4>7; RmsNormGradX 0,1,2,3,7>5 'Add'; ");
  // One word, and no rows.
  EXPECT_EQ(text({grad, params, {"Add", {}, {7, 4}, {8}}, {"Mul", {}, {8, 2}, {5}}}),
            "RmsNormGradX 0,1,2,3,4>7 'Add'; RmsNormGradScale 0,1,3>6; Mul 7,2>5; ");
  EXPECT_EQ(text({grad, params, {"Mul", {}, {7, 2}, {5}}}),
            "RmsNormGradX 0,1,2,3>7; RmsNormGradScale 0,1,3>6; Mul 7,2>5; ");
}

TEST(FuseProducts, TheLaterOfTwoProductsTakesTheSum) {
  const TensorType x = f32({4, 4});
  const Program program = program_of(
      {x, x, x, x, x}, 3, {2},
      {{"MatMul", {}, {0, 1}, {3}}, {"MatMul", {}, {1, 0}, {4}}, {"Add", {}, {4, 3}, {2}}});
  EXPECT_EQ(fused_text(program), "MatMul 0,1>3; MatMul 1,0,3>2 'Add'; ");
}

TEST(FuseProducts, WhatCannotBePartOfAProductStandsAlone) {
  const TensorType x = f32({4, 4}), column = f32({4, 1}), wide = f32({2, 4, 4});
  const auto text = [](std::vector<TensorType> values, std::vector<ProgramOp> ops) {
    Program program = program_of(std::move(values), 3, {2}, std::move(ops));
    return fused_text(program);
  };
  const ProgramOp product{"MatMul", {}, {0, 1}, {3}};
  // Another operand than a row or a matrix; a result of another shape; the product itself.
  EXPECT_EQ(text({x, x, x, x, column}, {product, {"Exp", {}, {0}, {4}}, {"Add", {}, {3, 4}, {2}}}),
            "MatMul 0,1>3; Exp 0>4; Add 3,4>2; ");
  EXPECT_EQ(
      text({x, x, wide, x, wide},
           {product, {"Expand", {{"shape", wide.shape}}, {0}, {4}}, {"Add", {}, {3, 4}, {2}}}),
      "MatMul 0,1>3; Expand 0>4; Add 3,4>2; ");
  EXPECT_EQ(text({x, x, x, x}, {product, {"Add", {}, {3, 3}, {2}}}), "MatMul 0,1>3; Add 3,3>2; ");
  // A group of pointwise ops would read the sum: no pass would be less.
  EXPECT_EQ(text({x, x, x, x, x}, {product, {"Mul", {}, {3, 0}, {4}}, {"Tanh", {}, {4}, {2}}}),
            "MatMul 0,1>3; Fused 3,0>2 '0 1 Mul Tanh'; ");
  // Somebody else reads the product, too.
  EXPECT_EQ(text({x, x, x, x, x}, {product, {"Add", {}, {3, 0}, {4}}, {"MatMul", {}, {3, 4}, {2}}}),
            "MatMul 0,1>3; Add 3,0>4; MatMul 3,4>2; ");
}

TEST(FuseProducts, NothingIsReadAfterItIsOverwritten) {
  const TensorType x = f32({4, 4});
  const auto text = [&](int32_t between, int32_t into) {
    // `between` changes in place before the sum, which goes to argument `into`.
    Program program = program_of({x, x, x, x, x}, 4, {2},
                                 {{"MatMul", {}, {0, 1}, {4}},
                                  {"Neg", {}, {between}, {between}},
                                  {"Add", {}, {4, 3}, {into}},
                                  {"Exp", {}, {3}, {2}}});
    program.arg_written[static_cast<size_t>(between)] = true;
    program.arg_written[static_cast<size_t>(into)] = true;
    return fused_text(program);
  };
  EXPECT_EQ(text(3, 0), "MatMul 0,1>4; Neg 3>3; Add 4,3>0; Exp 3>2; ");
  EXPECT_EQ(text(1, 3), "MatMul 0,1>4; Neg 1>1; Add 4,3>3; Exp 3>2; ");
  EXPECT_EQ(text(3, 2), "Neg 3>3; MatMul 0,1,3>2 'Add'; Exp 3>2; ");  // the control
}

// A Fused op of two knows every pointwise op there is, with the bits of the op alone.
TEST(FuseGroups, EveryPointwiseOpIsAWord) {
  int words = 0;
  for (const OpDef* def : all_ops()) {
    if (!def->pointwise) continue;
    for (const OpSample& sample : def->samples) {
      OpTypes use{sample.inputs, std::vector<bool>(sample.inputs.size(), true), {}, sample.attrs};
      const auto types = def->types(use);
      ASSERT_TRUE(types.ok()) << def->name;
      if ((*types)[0].dtype != DType::kF64 || num_elements((*types)[0].shape) == 0) continue;
      const auto n = static_cast<int32_t>(sample.inputs.size());
      std::vector<TensorType> values = sample.inputs;
      for (int i = 0; i < 2; ++i) values.push_back((*types)[0]);
      std::vector<int32_t> inputs(static_cast<size_t>(n));
      for (int32_t i = 0; i < n; ++i) inputs[static_cast<size_t>(i)] = i;
      const Program program = program_of(
          values, n + 1, {n},
          {{std::string(def->name), sample.attrs, inputs, {n + 1}}, {"Neg", {}, {n + 1}, {n}}});
      FuseCounts counts;
      const FusedProgram one = fuse(program, counts);
      ASSERT_EQ(one.ops.size(), 1u) << def->name << print_attrs(sample.attrs);
      const auto loaded = make_cpu_backend()->load(one);
      EXPECT_TRUE(loaded.ok()) << def->name << ": " << loaded.error().message;
      ++words;
    }
  }
  EXPECT_GT(words, 30);
}

}  // namespace
}  // namespace piper::test
