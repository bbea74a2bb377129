// The CPU backend as such: memory, refusals, results in place; Fused; and the null backend.
#include "piper/devices/cpu.h"

#include "cpu_harness.h"
#include "piper/base/memory.h"
#include "piper/devices/null.h"
#include "piper/devices/program.h"

namespace piper::test::cpu_test {
namespace {

// ---- In place, fused, determinism ----------------------------------------------------

TEST(Backend, PointwiseOpsWorkInPlace) {
  Random random(8);
  const Shape shape{3, 21};
  const TensorType type{DType::kF32, shape};
  const Tensor a = random.uniform(DType::kF32, shape, 0.1, 2);
  const Tensor b = random.uniform(DType::kF32, shape, 0.1, 2);
  for (const char* op : {"Add", "Mul", "Div", "Pow", "Max", "Exp", "Tanh", "Erf", "Neg", "Sqrt"}) {
    const bool binary = std::string_view("Add Mul Div Pow Max").find(op) != std::string_view::npos;
    for (int into = 0; into < (binary ? 2 : 1); ++into) {
      // Args a, b and the result; value 3 is a's copy, 4 is b's, 5 the result in place of one; the
      // other is read again.
      FusedProgram program;
      program.values = {type, type, type, type, type, type};
      program.num_args = 3;
      program.ops = {{"Reshape", {}, {0}, {3}}, {"Reshape", {}, {1}, {4}}};
      program.ops.push_back(
          {op, {}, binary ? std::vector<int32_t>{3, 4} : std::vector<int32_t>{3}, {5}});
      if (binary) program.ops.push_back({"Reshape", {}, {4 - into}, {1 - into}});
      program.ops.push_back({"Reshape", {}, {5}, {2}});
      const LocalPlaces lie = place_locals(program);
      ASSERT_EQ(lie.offsets[5], lie.offsets[static_cast<size_t>(3 + into)]) << op;
      const int64_t bytes = type.bytes();
      auto backend = make_cpu_backend();
      std::byte* memory = *backend->allocate(5 * align_up(bytes));
      const Bytes a_bytes = pack(a), b_bytes = pack(b);
      backend->copy(memory, a_bytes.data, bytes);
      backend->copy(memory + bytes, b_bytes.data, bytes);
      std::byte* args[] = {memory, memory + bytes, memory + 2 * bytes};
      auto loaded = backend->load(program);
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      backend->launch(*backend->bind(*loaded, args, memory + 3 * align_up(bytes)));
      const auto separate =
          binary ? run_bytes(op, {}, {a, b}, {type}) : run_bytes(op, {}, {a}, {type});
      EXPECT_EQ(std::memcmp(args[2], (*separate)[0].data, bytes), 0) << op << " into " << into;
    }
  }
}

TEST(Fused, HasTheBitsOfTheSeparateOps) {
  Random random(21);
  for (const Shape& shape : {Shape{7}, Shape{5, 130}, Shape{3, 4, 1111}, Shape{1}, Shape{0}}) {
    const Tensor x = random.uniform(DType::kF32, shape, -3, 3);
    const Tensor bias =
        random.uniform(DType::kF32, shape.size() > 1 ? Shape{shape.back()} : Shape{}, -1, 1);
    const Tensor cube = scalar(DType::kF32, 0.044715), slope = scalar(DType::kF32, 0.7978846);
    const Tensor one = scalar(DType::kF32, 1), half = scalar(DType::kF32, 0.5);
    auto op = [&](const char* name, const Tensor& a, const Tensor& b) {
      return run1(name, {}, {a, b}, x.type);
    };
    const Tensor h = op("Add", x, bias);
    const Tensor inner =
        op("Mul", op("Add", op("Mul", op("Mul", op("Mul", h, h), h), cube), h), slope);
    const Tensor outer = op("Add", run1("Tanh", {}, {inner}, x.type), one);
    const Tensor expected = op("Mul", op("Mul", h, outer), half);
    const Attrs attrs{{"expr", std::string("0 1 Add =0 @0 Mul @0 Mul 2 Mul @0 Add 3 Mul Tanh 4 Add "
                                           "@0 Mul 5 Mul")}};
    const Tensor fused = run1("Fused", attrs, {x, bias, cube, slope, one, half}, x.type);
    EXPECT_EQ(fused.v, expected.v) << to_string(shape);
  }
}

TEST(Fused, MixesElementTypes) {
  const Tensor x = tensor(DType::kF32, {3}, {-1.5, 2.5, 7});
  const Tensor n = tensor(DType::kI64, {3}, {1, 2, 3});
  const Attrs attrs{{"expr", std::string("0 1 Cast:f32 Greater 0 Cast:f64 1 Cast:f64 Where")}};
  EXPECT_EQ(run1("Fused", attrs, {x, n}, {DType::kF64, {3}}).v, (std::vector<double>{1, 2.5, 7}));
}

TEST(Fused, SaysWhatIsWrongWithItsText) {
  const Tensor x = tensor(DType::kF32, {1}, {1});
  auto error = [&](const char* expr) {
    return refusal("Fused", {{"expr", std::string(expr)}}, {x}, {x.type});
  };
  const std::string start = "program 'constant': op 0 Fused: ";
  EXPECT_EQ(error("0 1 Add"), start + "expr at '1': no such input");
  EXPECT_EQ(error("0 Add"), start + "expr at 'Add': takes 2 operands");
  EXPECT_EQ(error("0 MatMul"), start + "expr at 'MatMul': no pointwise op");
  EXPECT_EQ(error("0 Neg 0 Neg"), start + "expr leaves 2 values");
  EXPECT_EQ(error("0"), start + "expr has no op");
  EXPECT_EQ(error("@3"), start + "expr at '@3': no such name");
  EXPECT_EQ(error("0 Cast:q7"),
            start + "expr at 'Cast:q7': casts to 'q7', which is no element type");
  EXPECT_EQ(error("0 IsNaN"), start + "expr makes bool, not f32");
  EXPECT_EQ(error("0 Neg =0 Neg =1 @0 @1 Where"), start + "expr at 'Where': a condition of f32");
}

TEST(Fused, NamedValuesStayAlive) {
  const Tensor x = tensor(DType::kF32, {2}, {3, 5});
  const Attrs attrs{{"expr", std::string("0 Neg =7 0 Mul 0 Add 0 Add @7 Sub")}};
  // (-x)·x + x + x − (−x)
  EXPECT_EQ(run1("Fused", attrs, {x}, x.type).v, (std::vector<double>{0, -10}));
}

TEST(Backend, AResultDoesNotDependOnPositionOrCount) {
  Random random(2);
  const Tensor x = random.uniform(DType::kF32, {1000}, -4, 4);
  for (const char* op : {"Exp", "Tanh", "Erf", "Sigmoid", "Log", "Gelu"}) {
    const Tensor whole = run1(op, {}, {x}, x.type);
    for (int64_t first : {1, 3, 10, 990}) {
      const int64_t count = 1000 - first - first % 7;
      Tensor part{{DType::kF32, {count}}, {x.v.begin() + first, x.v.begin() + first + count}};
      const Tensor y = run1(op, {}, {part}, part.type);
      for (int64_t i = 0; i < count; ++i) {
        const bool both_nan = std::isnan(y[i]) && std::isnan(whole[first + i]);
        ASSERT_TRUE(both_nan || y[i] == whole[first + i]) << op << " " << first << " " << i;
      }
    }
  }
}

// ---- The backend ---------------------------------------------------------------------

TEST(Backend, AllocatesAlignedZeros) {
  auto backend = make_cpu_backend();
  for (int64_t bytes : {0, 1, 63, 64, 4097}) {
    auto block = backend->allocate(bytes);
    ASSERT_TRUE(block.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*block) % 256, 0u);
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ((*block)[i], std::byte{0});
  }
  EXPECT_FALSE(backend->allocate(-1).ok());
}

TEST(Backend, FillsTheElementsThatItIsToldTo) {
  auto backend = make_cpu_backend();
  const auto numbers = reinterpret_cast<double*>(*backend->allocate(6 * sizeof(double)));
  backend->fill(reinterpret_cast<std::byte*>(numbers), {DType::kF64, {5}}, 2.5);
  EXPECT_EQ(std::vector<double>(numbers, numbers + 6),
            (std::vector<double>{2.5, 2.5, 2.5, 2.5, 2.5, 0}));
}

TEST(Backend, RefusesWhatItCannotRun) {
  const TensorType type{DType::kF32, {4}};
  auto error = [&](auto change) {
    FusedProgram program{{"p", {type, type, type}, 2, {}, {{"Neg", {}, {0}, {2}}}, {}, {}, {}}, {}};
    change(program);
    auto backend = make_cpu_backend();
    auto loaded = backend->load(program);
    return loaded ? std::string() : loaded.error().message;
  };
  EXPECT_EQ(error([](Program&) {}), "");
  EXPECT_EQ(error([](Program& p) { p.ops[0].op = "Negg"; }),
            "program 'p': op 0 Negg: the cpu backend has no such op (did you mean 'Neg'?)");
  EXPECT_EQ(error([](Program& p) { p.values[0].dtype = p.values[2].dtype = DType::kBF16; }),
            "program 'p': op 0 Neg: not supported on bf16");
}

// Ops that do not take 16-bit floats have wide copies of them, of no bytes where they are empty.
TEST(Backend, SumsOfNothingIn16BitsAreZeros) {
  const auto zeros = [](const char* op, const Attrs& attrs, const std::vector<TensorType>& types,
                        const TensorType& result) {
    std::vector<Bytes> inputs;
    for (const TensorType& type : types)
      inputs.push_back(Bytes::copy_of(std::string(static_cast<size_t>(type.bytes()), '\0').data(),
                                      static_cast<size_t>(type.bytes())));
    const auto made = evaluate_op(op, attrs, types, inputs, std::vector<TensorType>{result});
    ASSERT_TRUE(made.ok()) << made.error().message;
    for (const std::byte each : made->at(0).span()) EXPECT_EQ(each, std::byte{0});
  };
  for (const DType type : {DType::kBF16, DType::kF16}) {
    zeros("ReduceSum", {{"axes", Shape{0}}}, {{type, {0, 3}}}, {type, {3}});
    zeros("GroupedMatMul", {{"trans_b", int64_t{0}}},
          {{type, {3, 0}}, {DType::kI64, {3}}, {type, {2, 0, 4}}}, {type, {3, 4}});
    zeros("GroupedMatMulGrad", {{"trans_b", int64_t{0}}, {"groups", int64_t{2}}},
          {{type, {0, 5}}, {DType::kI64, {0}}, {type, {0, 4}}}, {type, {2, 5, 4}});
  }
}

TEST(Backend, LiteralsAreOperands) {
  const TensorType type{DType::kF32, {3}}, one{DType::kF32, {}};
  const float two = 2;
  FusedProgram program{{"p", {type, type, one}, 2, {}, {{"Mul", {}, {0, 2}, {1}}}, {}, {}, {}}, {}};
  program.literals.emplace_back(2, std::string(reinterpret_cast<const char*>(&two), 4));
  auto backend = make_cpu_backend();
  float x[3] = {1, 2, 3}, y[3];
  std::byte* args[] = {reinterpret_cast<std::byte*>(x), reinterpret_cast<std::byte*>(y)};
  auto loaded = backend->load(program);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  backend->launch(*backend->bind(*loaded, args, nullptr));
  EXPECT_EQ(y[2], 6.0f);
}

TEST(NullBackend, CountsAndRunsNothing) {
  NullCounts counts;
  auto backend = make_null_backend(&counts);
  Program program{"p", {{DType::kF32, {1}}}, 1, {}, {{"NoSuchOp", {}, {0}, {0}}}, {}, {}, {}};
  std::byte* args[] = {*backend->allocate(4)};
  const int32_t bound = *backend->bind(*backend->load(program), args, nullptr);
  for (int i = 0; i < 3; ++i) backend->launch(bound);
  backend->fill(args[0], {DType::kF32, {1}}, 1);
  EXPECT_EQ(counts.loads, 1);
  EXPECT_EQ(counts.binds, 1);
  EXPECT_EQ(counts.launches, 3);
  EXPECT_EQ(counts.fills, 1);
  EXPECT_EQ(args[0][0], std::byte{0});
  EXPECT_FALSE(backend->bind(1, args, nullptr).ok());
  EXPECT_FALSE(backend->bind(0, {}, nullptr).ok());
}

}  // namespace
}  // namespace piper::test::cpu_test
