// Views and groups: what becomes of a program.
#include <regex>

#include "piper/base/memory.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
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

// A model may name one value again and again: no stack has room for as many names, nor is each
// looked up from all others.
TEST(FuseColumns, ALongChainOfNamesOf16BitsIsWidenedInItsOrder) {
  constexpr int32_t kNames = 100'000;
  const TensorType x{DType::kBF16, {4, 4}};
  Program program = program_of({x, x, x}, 2, {1}, {{"Neg", {}, {0}, {2}}});
  for (int32_t k = 0; k < kNames; ++k) {
    program.values.push_back(x);
    program.ops.push_back({"Reshape", {}, {2 + k}, {3 + k}});
  }
  program.ops.push_back({"Tanh", {}, {2 + kNames}, {1}});
  const Program wide = widened(program, [](std::string_view op) { return op == "Reshape"; });
  // Casts around Neg, what Neg makes in f32, its names once more, and a cast after Tanh.
  ASSERT_EQ(wide.ops.size(), size_t{2} * kNames + 6);
  const ProgramOp &tanh = wide.ops[wide.ops.size() - 2], &last = wide.ops[wide.ops.size() - 3];
  EXPECT_EQ(tanh.op, "Tanh");
  EXPECT_EQ(last.op, "Reshape");
  EXPECT_EQ(tanh.inputs, last.outputs);
  EXPECT_EQ(wide.values[static_cast<size_t>(last.inputs[0])].dtype, DType::kF32);
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

// "Tanh Neg: 0:96 1:24 > 2:96; " of each op: bytes by value.
std::string traffic_text(const FusedProgram& program) {
  std::string text;
  for (const PassTraffic& op : traffic_of(program)) {
    text += fmt::format("{}{}:", op.is_product ? "*" : "", op.kind);
    for (const auto& [value, bytes] : op.read) text += fmt::format(" {}:{}", value, bytes);
    text += " >";
    for (const auto& [value, bytes] : op.written) text += fmt::format(" {}:{}", value, bytes);
    text += "; ";
  }
  return text;
}

TEST(Traffic, AnOpMovesEachOperandOnceAndALookUpTheRowsThatItTakes) {
  const TensorType table = f32({50, 6}), rows = f32({4, 6}), row = f32({6}),
                   narrow{DType::kBF16, {4, 6}}, ids{DType::kI64, {4}};
  FuseCounts counts;
  // y = tanh(table[ids] + b), also in 16 bits; its square, read as another shape.
  Program program =
      program_of({table, ids, row, rows, narrow, f32({24}), rows, rows, f32({24})}, 6, {3, 4, 5},
                 {{"Gather", {{"axis", int64_t{0}}}, {0, 1}, {6}},
                  {"Add", {}, {6, 2}, {7}},
                  {"Tanh", {}, {7}, {3}},
                  {"Cast", {{"to", "bf16"}}, {3}, {4}},
                  {"Reshape", {{"shape", Shape{24}}}, {3}, {8}},
                  {"Softmax", {{"axis", int64_t{0}}}, {8}, {5}}});
  EXPECT_EQ(traffic_text(fuse(program, counts)),
            "Gather: 0:96 1:32 > 6:96; Add Tanh Cast:bf16: 2:24 6:96 > 3:96 4:48; Softmax: 3:96 > "
            "5:96; ");
  // Its ops alone move what lies between them, too.
  EXPECT_EQ(traffic_text(FusedProgram{program, {}}),
            "Gather: 0:96 1:32 > 6:96; Add: 2:24 6:96 > 7:96; Tanh: 7:96 > 3:96; "
            "Cast:bf16: 3:96 > 4:48; Reshape: 3:96 > 8:96; Softmax: 8:96 > 5:96; ");
}

TEST(Traffic, WhatAProductTakesAlongIsPartOfIt) {
  FuseCounts counts;
  const Program program = program_of(
      {f32({4, 5}), f32({5, 6}), f32({6}), f32({4, 6}), f32({4, 6}), f32({4, 6}), f32({4, 6})}, 4,
      {3}, {{"MatMul", {}, {0, 1}, {4}}, {"Add", {}, {4, 2}, {3}}});
  EXPECT_EQ(traffic_text(fuse(program, counts)), "*MatMul: 0:80 1:120 2:24 > 3:96; ");
  const Program square =
      program_of({f32({4, 4}), f32({4, 4})}, 2, {1}, {{"MatMul", {}, {0, 0}, {1}}});
  EXPECT_EQ(traffic_text(fuse(square, counts)), "*MatMul: 0:64 > 1:64; ");
}

// ---- Passes

const TensorType kRows = f32({2, 3, 8}), kNarrow{DType::kBF16, {2, 3, 8}}, kRow = f32({8}),
                 kOfEach = f32({2, 3, 1});
Attrs to(const char* dtype) { return {{"to", dtype}}; }
Attrs over_rows() { return {{"axes", Shape{0, 1}}, {"keepdims", int64_t{0}}}; }
Attrs last_dim() { return {{"axis", int64_t{2}}, {"epsilon", 1e-5}}; }
std::string passes_text(const Program& program) {
  FuseCounts counts;
  return traffic_text(join_rows(fuse(program, counts)));
}

// A residual sum, the norm behind it and its rounding: what is read and kept moves once.
TEST(Passes, ASumANormAndItsCastAreOne) {
  const Program program = program_of(
      {kRows, kNarrow, kRow, kRow, kRows, kNarrow, kOfEach, kOfEach, kRows, kRows}, 8, {4, 5, 6, 7},
      {{"Cast", to("f32"), {1}, {8}},
       {"Add", {}, {0, 8}, {4}},
       {"LayerNorm", last_dim(), {4, 2, 3}, {9, 6, 7}},
       {"Cast", to("bf16"), {9}, {5}}});
  EXPECT_EQ(passes_text(program),
            "Cast:f32 Add LayerNorm Cast:bf16: 0:192 1:96 2:32 3:32 > 4:192 6:24 7:24 5:96; ");
}

// The gradient of a norm for what it read and for its parameters, the other gradient of the
// residual stream, its rounding, and the gradient of the bias before: 16-bit dy, x and the stream
// are read once, the stream and its rounding written.
TEST(Passes, GradientsOfANormAndSumsOverRowsAreOne) {
  const Program program = program_of(
      {kNarrow, kRows, kRow, kOfEach, kOfEach, kRows, kRows, kNarrow, kRow, kRow, kRow,  // args
       kRows, kRows, kRows},
      11, {6, 7, 8, 9, 10},
      {{"Cast", to("f32"), {0}, {11}},
       {"LayerNormGradX", last_dim(), {11, 1, 2, 3, 4}, {12}},
       {"LayerNormGradParams", last_dim(), {11, 1, 3, 4}, {8, 9}},
       {"Add", {}, {12, 5}, {6}},
       {"Cast", to("bf16"), {6}, {7}},
       {"Cast", to("f32"), {7}, {13}},
       {"ReduceSum", over_rows(), {13}, {10}}});
  const std::string text = passes_text(program);
  EXPECT_EQ(std::count(text.begin(), text.end(), ';'), 1) << text;
  EXPECT_NE(text.find(": 0:96 1:192 2:32 3:24 4:24 5:192 > 6:192 8:32 9:32 7:96 10:32; "),
            text.npos)
      << text;
}

TEST(Passes, ASumOverRowsIsThereOnlyWhenAllRowsAre) {
  const Program program = program_of(
      {kRows, kRows, kRow, kRows}, 3, {1, 2},
      {{"Tanh", {}, {0}, {3}}, {"ReduceSum", over_rows(), {3}, {2}}, {"Sub", {}, {3, 2}, {1}}});
  EXPECT_EQ(passes_text(program), "Tanh ReduceSum: 0:192 > 3:192 2:32; Sub: 2:32 3:192 > 1:192; ");
}

TEST(Passes, ARowThatIsGoneOverTwiceIsNotTooLong) {
  const auto passes = [](int64_t width, const char* op) {
    const TensorType rows = f32({3, width});
    FuseCounts counts;
    const FusedProgram joined = join_rows(
        fuse(program_of({rows, rows, rows, f32({width})}, 2, {1},
                        {{"Tanh", {}, {0}, {2}},
                         {op, op[0] == 'S' ? Attrs{{"axis", int64_t{1}}} : Attrs{}, {2}, {1}}}),
             counts));
    return joined.passes.back() + 1;
  };
  EXPECT_EQ(passes(16384, "Softmax"), 1u);
  EXPECT_EQ(passes(16385, "Softmax"), 2u);
  EXPECT_EQ(passes(1 << 20, "Neg"), 1u);
}

// Columns of a matrix are no rows; another number of rows is another pass.
TEST(Passes, OnlyTheSameRowsAreGoneOverTogether) {
  const TensorType square = f32({8, 8});
  EXPECT_EQ(passes_text(program_of(
                {square, square, square}, 2, {1},
                {{"Tanh", {}, {0}, {2}}, {"Softmax", {{"axis", int64_t{0}}}, {2}, {1}}})),
            "Tanh: 0:256 > 2:256; Softmax: 2:256 > 1:256; ");
  EXPECT_EQ(passes_text(program_of({square, f32({4, 16}), square, f32({4, 16})}, 2, {1},
                                   {{"Tanh", {}, {0}, {2}},
                                    {"Reshape", {{"shape", Shape{4, 16}}}, {2}, {3}},
                                    {"Softmax", {{"axis", int64_t{1}}}, {3}, {1}}})),
            "Tanh: 0:256 > 2:256; Softmax: 2:256 > 1:256; ");
  EXPECT_EQ(passes_text(program_of(
                {square, square, square}, 2, {1},
                {{"Tanh", {}, {0}, {2}}, {"Softmax", {{"axis", int64_t{1}}}, {2}, {1}}})),
            "Tanh Softmax: 0:256 > 1:256; ");  // the control
}

// Rows of two lengths are two passes, though both read a number of each row.
TEST(Passes, RowsHaveOneWidth) {
  const auto text = [](int64_t width) {
    const TensorType square = f32({8, 8}), other = f32({8, width});
    return passes_text(program_of({square, other, f32({8, 1}), square, other}, 5, {3, 4},
                                  {{"Mul", {}, {0, 2}, {3}}, {"Mul", {}, {1, 2}, {4}}}));
  };
  EXPECT_EQ(text(8), "Mul Mul: 0:256 2:32 1:256 > 3:256 4:256; ");
  EXPECT_EQ(text(16), "Mul: 0:256 2:32 > 3:256; Mul: 1:512 2:32 > 4:512; ");
}

// An op stays behind what writes its operand, and before what reads its result elsewhere.
TEST(Passes, NothingMovesPastWhatItDependsOn) {
  const TensorType square = f32({8, 8});
  const auto text = [&](std::vector<ProgramOp> between) {
    std::vector<ProgramOp> ops{{"Softmax", {{"axis", int64_t{1}}}, {0}, {4}}};
    ops.insert(ops.end(), between.begin(), between.end());
    ops.push_back({"Add", {}, {4, 3}, {1}});
    Program program =
        program_of({square, square, square, square, square, square}, 4, {1, 2}, std::move(ops));
    return passes_text(program);
  };
  EXPECT_EQ(text({{"MatMul", {}, {3, 3}, {2}}}),
            "*MatMul: 3:256 > 2:256; Softmax Add: 0:256 3:256 > 1:256; ");
  EXPECT_EQ(text({{"MatMul", {}, {4, 3}, {2}}}),
            "Softmax: 0:256 > 4:256; *MatMul: 3:256 4:256 > 2:256; Add: 3:256 4:256 > 1:256; ");
  EXPECT_EQ(text({{"MatMul", {}, {3, 3}, {0}}}),
            "Softmax: 0:256 > 4:256; *MatMul: 3:256 > 0:256; Add: 3:256 4:256 > 1:256; ");
}

TEST(Passes, WhatIsInsideTakesNoMemory) {
  const Program program =
      program_of({kRows, kRows, kRows}, 2, {1},
                 {{"Tanh", {}, {0}, {2}}, {"Softmax", {{"axis", int64_t{2}}}, {2}, {1}}});
  FuseCounts counts;
  const FusedProgram apart = fuse(program, counts);
  EXPECT_EQ(place_locals(apart).bytes, align_up(kRows.bytes()));
  EXPECT_EQ(place_locals(join_rows(apart)).bytes, 0);
}

}  // namespace
}  // namespace piper::test
