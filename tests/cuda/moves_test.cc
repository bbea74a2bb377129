// Ops that move, gather, scatter, reduce, scan and draw elements, where the samples of the table of
// ops do not reach: tiles and words that do not fit, views that lie anywhere, long rows, equal
// indices, parts of several shards, indices above 2^31.
#include <limits>

#include "uses_on_host.h"

namespace piper::moves_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using Tensor = test::Tensor;
using List = std::vector<int64_t>;

constexpr uint64_t kSeed = 20241107;
constexpr DType kSizes[] = {DType::kBool, DType::kBF16, DType::kF32, DType::kI64};

Tensor drawn(DType dtype, Shape shape, int64_t int_high = 100) {
  std::mt19937_64 random(kSeed + static_cast<uint64_t>(num_elements(shape)));
  return draw({dtype, std::move(shape)}, random, -2, 2, int_high);
}
Tensor scalar(int64_t value) { return {{DType::kI64, {}}, {static_cast<double>(value)}}; }
Tensor numbers(DType dtype, std::vector<double> values) {
  return {{dtype, {static_cast<int64_t>(values.size())}}, std::move(values)};
}

// ---- What moves ---------------------------------------------------------------------------------

TEST(Moves, TilesAndWordsThatDoNotFit) {
  Uses uses;
  for (const DType dtype : kSizes) {
    uses.add("Transpose", {{"perm", List{1, 0}}}, {drawn(dtype, {70, 33})});
    uses.add("Transpose", {{"perm", List{0, 2, 1}}}, {drawn(dtype, {2, 16, 130})});
    uses.add("Transpose", {{"perm", List{2, 1, 0}}}, {drawn(dtype, {40, 3, 17})});
    uses.add("Transpose", {{"perm", List{2, 1, 0}}}, {drawn(dtype, {5, 3, 17})});
    uses.add("Transpose", {{"perm", List{0, 2, 1, 3}}}, {drawn(dtype, {2, 5, 3, 16})});
    uses.add("Transpose", {{"perm", List{1, 0, 2}}}, {drawn(dtype, {4, 3, 6})});
    uses.add("Slice", {{"starts", List{1, 16}}, {"ends", List{6, 48}}, {"steps", List{2, 1}}},
             {drawn(dtype, {7, 64})});
    uses.add("Slice", {{"starts", List{6, 60}}, {"ends", List{-1, 3}}, {"steps", List{-3, -2}}},
             {drawn(dtype, {7, 64})});
    uses.add("Slice",
             {{"starts", List{0, 3, 2}}, {"ends", List{5, 1, 3}}, {"steps", List{1, -1, 1}}},
             {drawn(dtype, {5, 7, 3})});
    uses.add(
        "Concat", {{"axis", int64_t{1}}},
        {drawn(dtype, {3, 16}), drawn(dtype, {3, 5}), drawn(dtype, {3, 0}), drawn(dtype, {3, 8})});
    uses.add("Concat", {{"axis", int64_t{0}}}, {drawn(dtype, {3, 7}), drawn(dtype, {2, 7})});
    uses.add("Expand", {{"shape", Shape{9, 40}}}, {drawn(dtype, {9, 1})});
    uses.add("Expand", {{"shape", Shape{9, 7, 24}}}, {drawn(dtype, {9, 1, 24})});
    uses.add("Expand", {{"shape", Shape{300}}}, {drawn(dtype, {1})});
    uses.add("Pad", {{"before", List{1, 8}}, {"after", List{0, -8}}, {"value", 1.0}},
             {drawn(dtype, {5, 32})});
    uses.add("Pad", {{"before", List{0, -3, 1, 0}}, {"after", List{2, 5, 1, 0}}, {"value", 0.0}},
             {drawn(dtype, {2, 4, 3, 8})});
    uses.add("Pad", {{"before", List{3}}, {"after", List{2}}, {"value", 1.0}}, {drawn(dtype, {0})});
    for (const int64_t upper : {0, 1})
      for (const int64_t k : {-100, -3, 0, 2, 100})
        uses.add("Trilu", {{"upper", upper}, {"k", k}}, {drawn(dtype, {2, 5, 16})});
    uses.add("Unfold",
             {{"kernel", List{1, 2, 4}}, {"strides", List{1, 2, 4}}, {"dilations", List{1, 1, 1}}},
             {drawn(dtype, {2, 2, 3, 4, 16})});
    uses.add("Fill", {{"shape", Shape{7, 11}}, {"value", -1.0}, {"dtype", info(dtype).name}}, {});
  }
  uses.expect_equal();
}

TEST(Moves, NothingIsLaunchedForNothing) {
  Uses uses;
  uses.add("Transpose", {{"perm", List{1, 0}}}, {drawn(DType::kF32, {0, 3})});
  uses.add("Slice", {{"starts", List{0}}, {"ends", List{0}}, {"steps", List{1}}},
           {drawn(DType::kF32, {3})});
  uses.add("Concat", {{"axis", int64_t{0}}},
           {drawn(DType::kF32, {0, 3}), drawn(DType::kF32, {0, 3})});
  uses.add("Gather", {{"axis", int64_t{0}}}, {drawn(DType::kF32, {3, 2}), drawn(DType::kI64, {0})});
  uses.add("ReduceSum", {{"axes", List{1}}, {"keepdims", int64_t{0}}},
           {drawn(DType::kF32, {0, 3})});
  uses.add("CumSum", {{"axis", int64_t{0}}}, {drawn(DType::kF32, {0, 3})});
  uses.add("Trilu", {{"upper", int64_t{1}}}, {drawn(DType::kF32, {0, 3, 3})});
  uses.add("TopK", {{"axis", int64_t{0}}, {"k", int64_t{0}}}, {drawn(DType::kF32, {3})});
  const DeviceProgram made = must(device_program(uses.program()));
  EXPECT_EQ(made.steps.size(), 0u);
  uses.expect_equal();
}

TEST(Moves, ViewsThatLieAnywhere) {
  Uses uses;
  for (const DType dtype : kSizes) {
    uses.add_view("Transpose", {{"perm", List{1, 0, 2}}}, drawn(dtype, {3, 4, 16}));
    uses.add_view("Transpose", {{"perm", List{1, 0}}}, drawn(dtype, {32, 64}));
    uses.add_view("Slice", {{"starts", List{0, 16}}, {"ends", List{4, 32}}, {"steps", List{1, 1}}},
                  drawn(dtype, {4, 48}));
    uses.add_view("Concat", {{"axis", int64_t{1}}}, drawn(dtype, {4, 16}), {drawn(dtype, {4, 16})});
    uses.add_view("Pad", {{"before", List{1, 0}}, {"after", List{0, 0}}}, drawn(dtype, {4, 16}));
    uses.add_view("Expand", {{"shape", Shape{3, 4, 16}}}, drawn(dtype, {4, 16}));
    uses.add_view("Trilu", {{"upper", int64_t{0}}, {"k", int64_t{1}}}, drawn(dtype, {16, 16}));
    uses.add_view("Gather", {{"axis", int64_t{0}}}, drawn(dtype, {8, 16}),
                  {drawn(DType::kI64, {9}, 8)});
  }
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    uses.add_view("GatherGrad", {{"axis", int64_t{0}}, {"size", int64_t{8}}}, drawn(dtype, {9, 16}),
                  {drawn(DType::kI64, {9}, 8)});
    uses.add_view("ReduceMax", {{"axes", List{0}}, {"keepdims", int64_t{0}}},
                  drawn(dtype, {9, 16}));
    uses.add_view("ReduceMax", {{"axes", List{1}}, {"keepdims", int64_t{0}}},
                  drawn(dtype, {9, 160}));
    uses.add_view("Dropout", {{"ratio", 0.25}}, drawn(dtype, {4, 16}), {scalar(7), scalar(3)});
    const Tensor angles = drawn(dtype, {4, 8});
    for (const int64_t interleaved : {0, 1})
      uses.add_view("Rotary", {{"interleaved", interleaved}},
                    Tensor{{dtype, {4, 16}}, std::vector<double>(64, 0.5)},
                    {Tensor{angles.type, std::vector<double>(32, 1.0)},
                     Tensor{angles.type, std::vector<double>(32, 0.5)}});
  }
  uses.expect_equal();
}

// ---- What indices name --------------------------------------------------------------------------

// Some indices count from the end, some lie outside.
Tensor wild_indices(DType dtype, Shape shape, int64_t size) {
  Tensor tensor = drawn(dtype, std::move(shape), 2 * size + 2);
  for (double& value : tensor.values) value -= static_cast<double>(size + 1);
  return tensor;
}

TEST(Moves, IndicesThatLieOutsideTakeNothing) {
  Uses uses;
  for (const DType dtype :
       {DType::kBool, DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kI32}) {
    for (const DType index : {DType::kI32, DType::kI64}) {
      uses.add("Gather", {{"axis", int64_t{1}}},
               {drawn(dtype, {2, 5, 16}), wild_indices(index, {3, 4}, 5)});
      uses.add("Gather", {{"axis", int64_t{0}}, {"whole", int64_t{20}}},
               {drawn(dtype, {5, 7}), wild_indices(index, {40}, 20), scalar(10)});
      uses.add("GatherND", {{"batch_dims", int64_t{1}}},
               {drawn(dtype, {2, 3, 4, 8}), wild_indices(index, {2, 6, 2}, 3)});
      uses.add("GatherND", {}, {drawn(dtype, {3, 4}), drawn(index, {5, 0})});
      uses.add("GatherElements", {{"axis", int64_t{1}}},
               {drawn(dtype, {4, 5, 3}), wild_indices(index, {2, 9, 3}, 5)});
    }
  }
  uses.expect_equal();
}

// More rows than are sorted in one block, few places: sums ascend by position, as on the CPU.
TEST(Moves, EqualIndicesAreSummedInOrder) {
  Uses uses;
  const auto sized = [](int64_t axis, int64_t size) {
    return Attrs{{"axis", axis}, {"size", size}};
  };
  uses.add("GatherGrad", sized(0, 7),
           {drawn(DType::kF32, {9000, 3}), drawn(DType::kI64, {9000}, 7)});
  uses.add("GatherGrad", sized(0, 2),
           {drawn(DType::kF32, {50, 20, 8}), drawn(DType::kI32, {50, 20}, 2)});
  uses.add("GatherGrad", sized(1, 5),
           {drawn(DType::kF64, {3, 700, 4}), drawn(DType::kI64, {700}, 5)});
  uses.add("GatherGrad", sized(0, 5),
           {drawn(DType::kBF16, {700, 16}), wild_indices(DType::kI64, {700}, 5)}, 0x1p-8);
  Attrs part = sized(0, 5);
  part.set("whole", int64_t{20});
  uses.add("GatherGrad", part,
           {drawn(DType::kF32, {700, 4}), wild_indices(DType::kI32, {700}, 20), scalar(10)});
  uses.add("GatherGrad", sized(0, 1), {drawn(DType::kF32, {1}), drawn(DType::kI64, {1}, 1)});
  uses.add("GatherGrad", sized(0, 3), {drawn(DType::kF32, {0, 4}), drawn(DType::kI64, {0})});
  uses.add("GatherNDGrad", {{"batch_dims", int64_t{1}}, {"sizes", Shape{2, 3}}},
           {drawn(DType::kF32, {2, 300, 4}), wild_indices(DType::kI64, {2, 300, 2}, 3)});
  uses.add("GatherElementsGrad", {{"axis", int64_t{1}}, {"sizes", Shape{4, 6, 3}}},
           {drawn(DType::kF32, {4, 500, 2}), wild_indices(DType::kI64, {4, 500, 2}, 6)});
  uses.expect_equal();
}

TEST(Moves, PlacesThatRepeatAreCombinedInOrder) {
  Uses uses;
  for (const std::string reduction : {"none", "add", "mul", "max", "min"})
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kI32, DType::kBF16}) {
      const double bound = dtype == DType::kBF16 ? 0x1p-8 : 0;
      uses.add("ScatterElements", {{"axis", int64_t{0}}, {"reduction", reduction}},
               {drawn(dtype, {4, 3, 5}), wild_indices(DType::kI64, {20, 3, 4}, 4),
                drawn(dtype, {20, 3, 4})},
               bound);
      uses.add(
          "ScatterND", {{"reduction", reduction}},
          {drawn(dtype, {3, 2, 4}), wild_indices(DType::kI32, {9, 2}, 2), drawn(dtype, {9, 4})},
          bound);
    }
  uses.add(
      "ScatterND", {{"reduction", "none"}},
      {drawn(DType::kBool, {3, 16}), drawn(DType::kI64, {9, 1}, 3), drawn(DType::kBool, {9, 16})});
  uses.add("ScatterND", {{"reduction", "add"}},
           {drawn(DType::kF32, {3, 4}), drawn(DType::kI64, {2, 0}), drawn(DType::kF32, {2, 3, 4})});
  uses.expect_equal();
}

TEST(Moves, TheGreatestAreTakenInOrder) {
  Uses uses;
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinite = std::numeric_limits<double>::infinity();
  const std::vector<double> odd{1, nan, -0.0, 0, infinite, -1, nan, 1, -infinite, 0, 2, -1};
  for (const int64_t largest : {0, 1}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64})
      uses.add("TopK", {{"axis", int64_t{0}}, {"k", int64_t{12}}, {"largest", largest}},
               {numbers(dtype, odd)});
    for (const DType dtype : {DType::kI32, DType::kI64}) {
      Tensor many = drawn(dtype, {3, 700}, 50);  // with equal ones
      for (double& value : many.values) value -= 25;
      uses.add("TopK", {{"axis", int64_t{1}}, {"k", int64_t{5}}, {"largest", largest}}, {many});
      uses.add("TopK", {{"axis", int64_t{0}}, {"k", int64_t{2}}, {"largest", largest}}, {many});
    }
  }
  uses.expect_equal();
}

// ---- Sums ---------------------------------------------------------------------------------------

TEST(Moves, RunningSumsOfLongLines) {
  Uses uses;
  for (const int64_t exclusive : {0, 1})
    for (const int64_t reverse : {0, 1}) {
      const auto along = [&](int64_t axis) {
        return Attrs{{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}};
      };
      uses.add("CumSum", along(1), {drawn(DType::kI64, {2, 2500})});
      uses.add("CumSum", along(1), {drawn(DType::kF32, {2, 1027, 3})});
      uses.add("CumSum", along(1), {drawn(DType::kBF16, {3, 300})});
      uses.add("CumSum", along(0), {drawn(DType::kF32, {100, 40})});
      uses.add("CumSum", along(0), {drawn(DType::kI32, {7, 40})});
    }
  uses.expect_equal();
}

TEST(Moves, ReductionsOverAnyDims) {
  Uses uses;
  const auto over = [](List axes) {
    return Attrs{{"axes", std::move(axes)}, {"keepdims", int64_t{0}}};
  };
  for (const std::string op : {"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"})
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64, DType::kI64, DType::kI32}) {
      const bool exact = op == "ReduceMax" || op == "ReduceMin" || !info(dtype).is_float;
      const double bound = exact ? 0 : dtype == DType::kBF16 ? 0x1p-7 : 1e-5;
      uses.add(op, over({1}), {drawn(dtype, {3, 1000})}, bound);
      uses.add(op, over({1}), {drawn(dtype, {3, 7})}, bound);
      uses.add(op, over({0}), {drawn(dtype, {100, 40})}, bound);
      uses.add(op, over({0}), {drawn(dtype, {3, 321})}, bound);
      uses.add(op, over({0, 2}), {drawn(dtype, {5, 3, 16, 2})}, bound);
      uses.add(op, over({1, 3}), {drawn(dtype, {2, 3, 5, 64})}, bound);
      // The CPU backend takes no bf16 of nothing.
      if (dtype != DType::kBF16) uses.add(op, over({0, 1}), {drawn(dtype, {0, 3, 5})}, bound);
      uses.add(op, over({}), {drawn(dtype, {3, 5})}, bound);
    }
  uses.expect_equal();
}

// So much for so few results that it is done in parts.
TEST(Moves, ReductionsInParts) {
  Uses uses;
  const auto over = [](List axes) {
    return Attrs{{"axes", std::move(axes)}, {"keepdims", int64_t{1}}};
  };
  const auto positive = [](DType dtype, Shape shape) {
    Tensor tensor = drawn(dtype, std::move(shape));
    for (double& value : tensor.values) value = std::abs(value);
    return tensor;
  };
  uses.add("ReduceSum", over({0, 1}), {drawn(DType::kI64, {70, 300})});
  uses.add("ReduceSum", over({0, 1}), {positive(DType::kF32, {70, 301})}, 1e-5);
  uses.add("ReduceSum", over({0, 1}), {positive(DType::kBF16, {70, 600})}, 0x1p-7);
  uses.add("ReduceSum", over({0}), {drawn(DType::kI32, {9000, 3})});
  uses.add("ReduceSum", over({0}), {positive(DType::kBF16, {700, 48})}, 0x1p-7);
  Tensor holed = drawn(DType::kF32, {700, 48});
  holed.values[4811] = std::numeric_limits<double>::quiet_NaN();
  uses.add("ReduceMax", over({0}), {holed});
  uses.add("ReduceMin", over({0, 1}), {holed});
  const DeviceProgram made = must(device_program(uses.program()));
  EXPECT_EQ(made.kernels.size(), 14u) << "each in two kernels";
  uses.expect_equal();
}

TEST(Moves, GradientsOfReductions) {
  Uses uses;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    for (const Shape& shape : {Shape{2, 5}, Shape{2, 40}, Shape{2, 1500}}) {
      Tensor x = drawn(dtype, shape), y{{dtype, {2, 1}}, {1, 1}}, dy = drawn(dtype, {2, 1});
      for (const size_t hit : {3, 4, 7}) x.values[hit] = 1;  // in both rows, or one
      for (const int64_t first : {0, 1})
        uses.add("ReduceExtremeGrad", {{"axes", List{1}}, {"first", first}}, {dy, x, y},
                 dtype == DType::kBF16 ? 0x1p-8 : 0);
      Tensor near_one = x;
      for (double& value : near_one.values) value = 1 + value / 1024;
      near_one.values[2] = 0;
      near_one = to_tensor(near_one.type, to_bytes(near_one));
      uses.add("ReduceProdGrad", {{"axes", List{1}}}, {dy, near_one},
               dtype == DType::kBF16 ? 0x1p-7 : 1e-4);
    }
  const Tensor x = drawn(DType::kF32, {6, 40}), dy = drawn(DType::kF32, {1, 40});
  const Tensor y = evaluate("ReduceMax", {{"axes", List{0}}, {"keepdims", int64_t{1}}}, {x},
                            {{DType::kF32, {1, 40}}})[0];
  uses.add("ReduceExtremeGrad", {{"axes", List{0}}, {"first", int64_t{1}}}, {dy, x, y});
  uses.add("ReduceProdGrad", {{"axes", List{0}}}, {dy, x}, 1e-6);
  uses.expect_equal();
}

TEST(Moves, WindowsAreAddedInOrder) {
  Uses uses;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
    uses.add("Fold",
             {{"size", List{5, 6, 7}}, {"strides", List{1, 2, 1}}, {"dilations", List{2, 1, 3}}},
             {drawn(dtype, {2, 3, 3, 4, 3, 2, 2, 2})}, dtype == DType::kBF16 ? 0x1p-8 : 0);
  uses.expect_equal();
}

TEST(Moves, RowsAreTurned) {
  Uses uses;
  for (const int64_t interleaved : {0, 1})
    for (const int64_t inverse : {0, 1})
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
        const Attrs attrs{{"interleaved", interleaved}, {"inverse", inverse}};
        const double bound = is_16_bit(dtype) ? 0x1p-7 : 1e-6;
        for (const int64_t half : {16, 3}) {
          const Tensor x = drawn(dtype, {2, 3, 4, 2 * half});
          for (const bool in_place : {false, true})
            for (const Shape& table : {Shape{1, 1, 4, half}, Shape{2, 1, 4, half}})
              uses.add("Rotary", attrs, {x, drawn(dtype, table), drawn(dtype, table)}, bound,
                       in_place);
        }
      }
  uses.expect_equal();
}

// ---- Drawn numbers ------------------------------------------------------------------------------

TEST(Moves, PartsDrawWhatTheWholeDraws) {
  Uses uses;
  const Tensor key = scalar(int64_t{1} << 40 | 77), step = scalar(int64_t{1} << 33 | 5);
  const Attrs cuts[] = {
      {{"rows", int64_t{6}}, {"shards", int64_t{3}}},
      {{"rows", int64_t{1}}, {"shards", int64_t{2}}, {"cuts", List{12, 2}}},
      {{"rows", int64_t{2}}, {"shards", int64_t{4}}, {"cuts", List{-12, 2, 4, 2}}},
      {{"cuts", List{12, 2}}, {"zeros", List{0, 2, 8, 1, 6, 4}}},
      {{"cuts", List{12, 2}}, {"zeros", List{1, 6, 3}}},
  };
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64})
    for (const int64_t width : {8, 7})
      for (const Attrs& cut : cuts) {
        const TensorType type{dtype, {12, width}};
        Operands operands{key, step, std::nullopt};
        if (cut.find("rows")) operands[2] = numbers(DType::kI64, {4, 5});
        for (size_t axis = 0; axis < cut.integers("cuts").size() / 2; ++axis)
          operands.push_back(scalar(1));
        Attrs attrs = cut;
        attrs.set("ratio", 0.4);
        Operands masked = operands;
        masked.insert(masked.begin(), drawn(dtype, type.shape));
        OpTypes use{{}, {}, {}, attrs};
        for (const auto& operand : masked) {
          use.inputs.push_back(operand ? operand->type : TensorType{});
          use.present.push_back(operand.has_value());
        }
        if (!find_op("Dropout")->types(use)) continue;  // such runs do not fit such rows
        for (const bool in_place : {false, true})
          uses.add("Dropout", attrs, masked, is_16_bit(dtype) ? 0x1p-8 : 0, in_place);
        attrs = cut;
        attrs.set("shape", type.shape);
        attrs.set("dtype", info(dtype).name);
        attrs.set("shift", -1.0);
        attrs.set("scale", 3.0);
        for (const std::string kind : {"uniform", "normal"}) {
          attrs.set("distribution", kind);
          uses.add("Random", attrs, operands,
                   kind == "uniform"  ? 0
                   : is_16_bit(dtype) ? 0x1p-8
                                      : 1e-7);
        }
      }
  EXPECT_GE(uses.program().ops.size(), 120u);
  uses.expect_equal();
}

// ---- Tensors of more than 2^31 elements ---------------------------------------------------------

Result<DeviceProgram> program_of(std::string_view op, Attrs attrs, std::vector<TensorType> inputs) {
  OpTypes types{inputs, std::vector<bool>(inputs.size(), true), {}, attrs};
  types.outputs = must(find_op(op)->types(types));
  Program program;
  ProgramOp use{std::string(op), std::move(attrs), {}, {}};
  for (const auto* side : {&types.inputs, &types.outputs})
    for (const TensorType& type : *side) {
      (side == &types.inputs ? use.inputs : use.outputs).push_back(program.num_args++);
      program.values.push_back(type);
      program.arg_read.push_back(side == &types.inputs);
      program.arg_written.push_back(side != &types.inputs);
    }
  program.ops.push_back(std::move(use));
  return device_program(program);
}

// The first kernel's own lines have `parts`, and no index of 32 bits.
void expect_wide(std::string_view op, Attrs attrs, std::vector<TensorType> inputs,
                 std::vector<std::string> parts, int64_t blocks) {
  const DeviceProgram made = must(program_of(op, std::move(attrs), std::move(inputs)));
  const std::string rest = made.source.substr(made.source.find("KERNEL(k0"));
  const std::string body = rest.substr(0, rest.find("\n}\n"));
  for (const std::string& part : parts)
    EXPECT_NE(body.find(part), std::string::npos) << op << " has no '" << part << "':\n" << body;
  EXPECT_EQ(body.find("<int32_t"), std::string::npos) << op << ":\n" << body;
  EXPECT_EQ(made.kernels[0].blocks, blocks) << op;
}

TEST(Moves, NumbersAboveTwoToThe31) {
  const int64_t rows = int64_t{3} << 20, wide = int64_t{1} << 12;  // 12.9e9 elements
  const TensorType bytes{DType::kBool, {rows, wide}}, halves{DType::kBF16, {rows, wide}};
  const TensorType floats{DType::kF32, {rows, wide}};
  expect_wide("Transpose", {{"perm", List{1, 0}}}, {halves}, {"Turned<int64_t, 1>"},
              rows / 64 * (wide / 64));
  expect_wide("Slice", {{"starts", List{0, 0}}, {"ends", List{rows, wide}}, {"steps", List{1, 3}}},
              {bytes}, {"Strides<int64_t, ", "int64_t(4297064448LL)"}, 4297064448 / 256);
  expect_wide("Expand", {{"shape", Shape{3, rows, wide}}}, {floats}, {"int64_t(9663676416LL)"},
              9663676416 / 256);
  expect_wide("Gather", {{"axis", int64_t{0}}}, {halves, {DType::kI64, {2 * rows}}},
              {"int64_t(3221225472LL)"}, 3221225472 / 256);
  expect_wide("Trilu", {{"upper", int64_t{1}}}, {bytes}, {"triangle<int64_t>"},
              rows * wide / 16 / 256);
  expect_wide("ReduceProd", {{"axes", List{0}}, {"keepdims", int64_t{0}}}, {floats},
              {"Reduced<int64_t, 1, 1>"}, 1024);
  expect_wide("CumSum", {{"axis", int64_t{0}}}, {floats}, {"Scanned<int64_t>"}, wide);
  expect_wide("Dropout", {{"ratio", 0.5}}, {floats, {DType::kI64, {}}, {DType::kI64, {}}},
              {"12884901888ull"}, rows * wide / 4 / 256);
}

}  // namespace
}  // namespace piper::moves_test
