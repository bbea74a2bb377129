// The CPU backend as such, its pointwise ops, and Fused.
#include <array>
#include <functional>
#include <limits>

#include "cpu_harness.h"

namespace piper::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kFloats[] = {DType::kF32, DType::kF64};

// ---- One operand ---------------------------------------------------------------------

struct UnaryCase {
  const char* op;
  double (*f)(double);
  double low, high;
  int64_t ulps;  // f32
};
double gelu(double x) { return x * 0.5 * (1 + std::erf(x * std::sqrt(0.5))); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
const UnaryCase kUnary[] = {
    {"Neg", [](double x) { return -x; }, -1e30, 1e30, 0},
    {"Abs", [](double x) { return std::abs(x); }, -1e30, 1e30, 0},
    {"Exp", [](double x) { return std::exp(x); }, -105, 90, 2},
    {"Log", [](double x) { return std::log(x); }, 0, 3e38, 2},
    {"Log", [](double x) { return std::log(x); }, 0.5, 2, 2},
    {"Sqrt", [](double x) { return std::sqrt(x); }, 0, 1e30, 0},
    {"Reciprocal", [](double x) { return 1 / x; }, -10, 10, 0},
    {"Tanh", [](double x) { return std::tanh(x); }, -12, 12, 3},
    {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -85, 85, 3},
    {"Erf", [](double x) { return std::erf(x); }, -5, 5, 3},
    {"Relu", [](double x) { return x < 0 ? 0 : x; }, -5, 5, 0},
    {"Sin", [](double x) { return std::sin(x); }, -50, 50, 1},
    {"Cos", [](double x) { return std::cos(x); }, -50, 50, 1},
    {"Sign", [](double x) { return double(x > 0) - double(x < 0); }, -5, 5, 0},
    {"Floor", [](double x) { return std::floor(x); }, -5, 5, 0},
    {"Ceil", [](double x) { return std::ceil(x); }, -5, 5, 0},
    {"Round", [](double x) { return std::nearbyint(x); }, -5, 5, 0},
};

TEST(Unary, MatchesTheCLibraryOnRandomValuesOfOddCounts) {
  for (const UnaryCase& c : kUnary) {
    Random random(11);
    for (int64_t count : {0, 1, 3, 7, 16, 17, 33, 5000}) {
      for (DType dtype : kFloats) {
        const Tensor x = random.uniform(dtype, {count}, c.low, c.high);
        const Tensor y = run1(c.op, {}, {x}, x.type);
        for (int64_t i = 0; i < count; ++i) {
          const double expected = c.f(x[i]);
          if (dtype == DType::kF64) {
            ASSERT_DOUBLE_EQ(y[i], expected) << c.op << "(" << x[i] << ")";
          } else {
            ASSERT_LE(ulps(float(y[i]), float(expected)), c.ulps) << c.op << "(" << x[i] << ")";
          }
        }
      }
    }
  }
}

TEST(Unary, TreatsSpecialValuesAsTheCLibraryDoes) {
  const std::vector<double> values = {kNaN, kInf, -kInf,  0.0,    -0.0,   1e-40,   -1e-40, 1e-45,
                                      88.8, -88,  -103.9, -104.5, 3.4e38, -3.4e38, 0.5,    -2.5};
  for (const UnaryCase& c : kUnary) {
    for (DType dtype : kFloats) {
      Tensor x = tensor(dtype, {int64_t(values.size())}, values);
      if (dtype == DType::kF32) {
        for (double& v : x.v) v = static_cast<float>(v);
      }
      const Tensor y = run1(c.op, {}, {x}, x.type);
      for (size_t i = 0; i < values.size(); ++i) {
        const double expected = c.op == std::string("Sign") && std::isnan(x.v[i]) ? 0 : c.f(x.v[i]);
        if (dtype == DType::kF64) {
          if (!std::isnan(expected)) {
            ASSERT_DOUBLE_EQ(y.v[i], expected) << c.op << x.v[i];
          }
          ASSERT_EQ(std::isnan(y.v[i]), std::isnan(expected)) << c.op << "(" << x.v[i] << ")";
        } else {
          ASSERT_LE(ulps(float(y.v[i]), float(expected)), std::max<int64_t>(c.ulps, 1))
              << c.op << "(" << x.v[i] << "): " << y.v[i];
        }
      }
    }
  }
}

// Every 4201st float there is.
TEST(Unary, HoldsItsPrecisionOverAllFloats) {
  for (const UnaryCase& c : kUnary) {
    if (c.ulps < 2) continue;
    Tensor x{{DType::kF32, {}}, {}};
    for (uint64_t bits = 0; bits <= 0xffffffff; bits += 4201) {
      const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
      if (!std::isnan(value)) x.v.push_back(value);
    }
    x.type.shape = {int64_t(x.v.size())};
    const Tensor y = run1(c.op, {}, {x}, x.type);
    int64_t worst = 0;
    double where = 0;
    for (size_t i = 0; i < x.v.size(); ++i) {
      const int64_t distance = ulps(float(y.v[i]), float(c.f(x.v[i])));
      if (distance > worst) where = x.v[i];
      worst = std::max(worst, distance);
    }
    EXPECT_LE(worst, c.ulps) << c.op << " at " << where;
  }
}

TEST(Unary, GeluAndItsGradientFollowTheirFormulas) {
  Random random(5);
  for (DType dtype : kFloats) {
    for (const char* approximate : {"none", "tanh"}) {
      const bool tanh = approximate == std::string("tanh");
      const Tensor x = random.uniform(dtype, {999}, -6, 6);
      const Tensor dy = random.uniform(dtype, {999}, -1, 1);
      std::vector<double> y, dx;
      for (int64_t i = 0; i < 999; ++i) {
        auto f = [&](double v) { return tanh ? gelu_tanh(v) : gelu(v); };
        y.push_back(f(x[i]));
        const double h = 1e-4;  // a five-point difference: error about h^4
        dx.push_back(dy[i] *
                     (f(x[i] - 2 * h) - 8 * f(x[i] - h) + 8 * f(x[i] + h) - f(x[i] + 2 * h)) /
                     (12 * h));
      }
      const Attrs attrs{{"approximate", std::string(approximate)}};
      const double t = dtype == DType::kF32 ? 1e-6 : 1e-11;
      const Tensor made = run1("Gelu", attrs, {x}, x.type);
      const Tensor gradient = run1("GeluGrad", attrs, {x, dy}, x.type);
      expect_near(gradient, dx, t, t, "GeluGrad");
      expect_near(made, y, t, t, "Gelu");
      // Both at once have the same bits.
      const std::vector<Tensor> both = run("GeluAndSlope", attrs, {x}, {x.type, x.type});
      EXPECT_EQ(both[0].v, made.v);
      EXPECT_EQ(run1("Mul", {}, {dy, both[1]}, x.type).v, gradient.v);
    }
  }
}

// ---- Several operands ----------------------------------------------------------------

const std::vector<std::array<Shape, 3>> kBroadcasts = {
    {Shape{7}, Shape{7}, Shape{7}},
    {Shape{5, 33}, Shape{}, Shape{5, 33}},
    {Shape{}, Shape{5, 33}, Shape{5, 33}},
    {Shape{5, 33}, Shape{33}, Shape{5, 33}},
    {Shape{5, 1}, Shape{5, 33}, Shape{5, 33}},
    {Shape{2, 3, 4, 5}, Shape{1, 3, 1, 5}, Shape{2, 3, 4, 5}},
    {Shape{4, 1, 3}, Shape{5, 1}, Shape{4, 5, 3}},
    {Shape{1}, Shape{1, 1}, Shape{1, 1}},
    {Shape{0, 3}, Shape{3}, Shape{0, 3}},
    {Shape{}, Shape{}, Shape{}},
};
double floored_mod(double a, double b) { return a - b * std::floor(a / b); }
struct BinaryCase {
  const char* op;
  double (*f)(double, double);
  bool to_bool;
};
const BinaryCase kBinary[] = {
    {"Add", [](double a, double b) { return a + b; }, false},
    {"Sub", [](double a, double b) { return a - b; }, false},
    {"Mul", [](double a, double b) { return a * b; }, false},
    {"Div", [](double a, double b) { return a / b; }, false},
    {"Max", [](double a, double b) { return a > b ? a : b; }, false},
    {"Min", [](double a, double b) { return a < b ? a : b; }, false},
    {"Mod", floored_mod, false},
    {"Equal", [](double a, double b) { return double(a == b); }, true},
    {"Less", [](double a, double b) { return double(a < b); }, true},
    {"LessOrEqual", [](double a, double b) { return double(a <= b); }, true},
    {"Greater", [](double a, double b) { return double(a > b); }, true},
    {"GreaterOrEqual", [](double a, double b) { return double(a >= b); }, true},
};

TEST(Binary, BroadcastsAsNumpyDoes) {
  Random random(3);
  for (const BinaryCase& c : kBinary) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kI32}) {
      for (const auto& [a_shape, b_shape, out_shape] : kBroadcasts) {
        const bool real = dtype == DType::kF32 || dtype == DType::kF64;
        const Tensor a = random.uniform(dtype, a_shape, -4, 4);
        const Tensor b = random.uniform(dtype, b_shape, real ? -4 : 1, 4);
        const TensorType out{c.to_bool ? DType::kBool : dtype, out_shape};
        std::vector<double> expected;
        for (int64_t i = 0; i < num_elements(out_shape); ++i) {
          const double x =
              c.f(a[source_index(a_shape, out_shape, i)], b[source_index(b_shape, out_shape, i)]);
          expected.push_back(real || c.to_bool ? x : std::trunc(x));
        }
        expect_near(run1(c.op, {}, {a, b}, out), expected, 1e-6, real ? 1e-6 : 0,
                    fmt::format("{} {} {}", c.op, to_string(a.type), to_string(b.type)));
      }
    }
  }
}

TEST(Binary, PowTakesIntegerAndRealExponents) {
  const Tensor x = tensor(DType::kF64, {4}, {2, -3, 0.5, 10});
  const auto pow_by = [&](double e) {
    return run1("Pow", {}, {x, scalar(DType::kF64, e)}, x.type).v;
  };
  EXPECT_EQ(pow_by(2), (std::vector<double>{4, 9, 0.25, 100}));
  EXPECT_EQ(pow_by(3), (std::vector<double>{8, -27, 0.125, 1000}));
  EXPECT_EQ(pow_by(-1), (std::vector<double>{0.5, 1.0 / -3, 2, 0.1}));
  EXPECT_DOUBLE_EQ(pow_by(0.5)[3], std::sqrt(10.0));
  // Element by element the same bits as with one exponent for all.
  const Tensor e = tensor(DType::kF64, {4}, {3, 2, 3, -1});
  EXPECT_EQ(run1("Pow", {}, {x, e}, x.type).v, (std::vector<double>{8, 9, 0.125, 0.1}));
  const Tensor n = tensor(DType::kI64, {5}, {3, -2, 0, -1, 7});
  const Tensor by = tensor(DType::kI64, {5}, {4, 3, 0, -3, -1});
  EXPECT_EQ(run1("Pow", {}, {n, by}, n.type).v, (std::vector<double>{81, -8, 1, -1, 0}));
}

TEST(Binary, MaxAndMinKeepNaN) {
  const Tensor a = tensor(DType::kF32, {4}, {kNaN, 1, kNaN, -kInf});
  const Tensor b = tensor(DType::kF32, {4}, {1, kNaN, kNaN, 2});
  expect_near(run1("Max", {}, {a, b}, a.type), {kNaN, kNaN, kNaN, 2}, 0, 0, "Max");
  expect_near(run1("Min", {}, {a, b}, a.type), {kNaN, kNaN, kNaN, -kInf}, 0, 0, "Min");
  expect_near(run1("IsNaN", {}, {a}, {DType::kBool, {4}}), {1, 0, 1, 0}, 0, 0, "IsNaN");
}

TEST(Binary, IntegersNeverTrap) {
  const Tensor a = tensor(DType::kI32, {5}, {INT32_MIN, 7, INT32_MAX, -7, 7});
  const Tensor b = tensor(DType::kI32, {5}, {-1, 0, 1, 2, -2});
  const auto of = [&](const char* op) { return run1(op, {}, {a, b}, a.type).v; };
  EXPECT_EQ(of("Div"), (std::vector<double>{INT32_MIN, 0, INT32_MAX, -3, -3}));
  EXPECT_EQ(of("Mod"), (std::vector<double>{0, 0, 0, 1, -1}));
  EXPECT_EQ(of("Add")[2], INT32_MIN);
  EXPECT_EQ(run1("Mod", {{"fmod", int64_t{1}}}, {a, b}, a.type).v,
            (std::vector<double>{0, 0, 0, -1, 1}));
  EXPECT_EQ(run1("Abs", {}, {a}, a.type)[0], INT32_MIN);
}

TEST(Binary, LogicAndWhere) {
  const Tensor a = tensor(DType::kBool, {4}, {0, 1, 0, 1});
  const Tensor b = tensor(DType::kBool, {4}, {0, 0, 1, 1});
  EXPECT_EQ(run1("And", {}, {a, b}, a.type).v, (std::vector<double>{0, 0, 0, 1}));
  EXPECT_EQ(run1("Or", {}, {a, b}, a.type).v, (std::vector<double>{0, 1, 1, 1}));
  EXPECT_EQ(run1("Xor", {}, {a, b}, a.type).v, (std::vector<double>{0, 1, 1, 0}));
  EXPECT_EQ(run1("Not", {}, {a}, a.type).v, (std::vector<double>{1, 0, 1, 0}));
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kBool, DType::kBF16}) {
    const Tensor x = tensor(dtype, {2, 1}, {1, 0}), y = tensor(dtype, {}, {1});
    EXPECT_EQ(run1("Where", {}, {a, x, y}, {dtype, {2, 4}}).v,
              (std::vector<double>{1, 1, 1, 1, 1, 0, 1, 0}));
    EXPECT_EQ(run1("Where", {}, {tensor(DType::kBool, {}, {0}), x, y}, x.type).v,
              (std::vector<double>{1, 1}));
  }
}

TEST(Cast, RoundsAndSaturates) {
  auto cast = [](const Tensor& x, DType to) {
    return run1("Cast", {{"to", std::string(info(to).name)}}, {x}, {to, x.type.shape}).v;
  };
  const Tensor x = tensor(DType::kF32, {7}, {1.75, -1.75, kNaN, kInf, -1e30, 0, 3e9});
  EXPECT_EQ(cast(x, DType::kI32),
            (std::vector<double>{1, -1, 0, INT32_MAX, INT32_MIN, 0, INT32_MAX}));
  EXPECT_EQ(cast(x, DType::kBool), (std::vector<double>{1, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(cast(tensor(DType::kI64, {2}, {-3, 5}), DType::kF64), (std::vector<double>{-3, 5}));
  // 1 + 2^-8 lies half way between two bf16 numbers and goes to the even one, 1 + 3×2^-8 likewise
  // up.
  const Tensor halves = tensor(DType::kF32, {4}, {1.00390625, 1.01171875, 65520, 5.9604645e-8});
  EXPECT_EQ(cast(halves, DType::kBF16), (std::vector<double>{0x3f80, 0x3f82, 0x4780, 0x3380}));
  EXPECT_EQ(cast(halves, DType::kF16), (std::vector<double>{0x3c04, 0x3c0c, 0x7c00, 1}));
}

TEST(Cast, SixteenBitFloatsSurviveTheRoundTrip) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    Tensor all{{dtype, {65536}}, {}};
    for (int i = 0; i < 65536; ++i) all.v.push_back(i);
    const Attrs wide{{"to", std::string("f32")}}, narrow{{"to", std::string(info(dtype).name)}};
    const Tensor floats = run1("Cast", wide, {all}, {DType::kF32, {65536}});
    const Tensor back = run1("Cast", narrow, {floats}, all.type);
    for (int64_t i = 0; i < 65536; ++i) {
      if (!std::isnan(floats[i])) {
        ASSERT_EQ(back[i], i) << info(dtype).name;
      }
    }
  }
}

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
      Program
          program;  // args a, b, out; value 3 is a's copy, 4 is b's, 5 the result in place of one
      program.values = {type, type, type, type, type, type};
      program.num_args = 3;
      const int64_t bytes = type.bytes();
      program.offsets = {-1, -1, -1, 0, bytes, into * bytes};
      program.workspace_bytes = 2 * bytes;
      program.ops = {{"Reshape", {}, {0}, {3}}, {"Reshape", {}, {1}, {4}}};
      program.ops.push_back(
          {op, {}, binary ? std::vector<int32_t>{3, 4} : std::vector<int32_t>{3}, {5}});
      program.ops.push_back({"Reshape", {}, {5}, {2}});
      auto backend = make_cpu_backend();
      std::byte* memory = *backend->allocate(5 * bytes + 64);
      const Bytes a_bytes = pack(a), b_bytes = pack(b);
      backend->copy(memory, a_bytes.data, bytes);
      backend->copy(memory + bytes, b_bytes.data, bytes);
      std::byte* args[] = {memory, memory + bytes, memory + 2 * bytes};
      auto loaded = backend->load(program);
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      backend->launch(*backend->bind(*loaded, args, memory + 3 * bytes));
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

TEST(Backend, SumAddsInOrder) {
  auto backend = make_cpu_backend();
  const int64_t count = 5001;
  std::vector<std::vector<float>> terms;
  std::vector<const std::byte*> from;
  Random random(4);
  for (int k = 0; k < 5; ++k) {
    const Tensor t = random.uniform(DType::kF32, {count}, -1, 1);
    terms.emplace_back(t.v.begin(), t.v.end());
  }
  for (const auto& term : terms) from.push_back(reinterpret_cast<const std::byte*>(term.data()));
  std::vector<float> out(count);
  backend->sum(reinterpret_cast<std::byte*>(out.data()), from, DType::kF32, count);
  for (int64_t i = 0; i < count; ++i) {
    float expected = terms[0][i];
    for (int k = 1; k < 5; ++k) expected += terms[k][i];
    ASSERT_EQ(out[i], expected);
  }
  // In place over one of the terms.
  backend->sum(reinterpret_cast<std::byte*>(terms[2].data()), from, DType::kF32, count);
  EXPECT_EQ(terms[2], out);
}

TEST(Backend, AllocatesAlignedZeros) {
  auto backend = make_cpu_backend();
  for (int64_t bytes : {0, 1, 63, 64, 4097}) {
    auto block = backend->allocate(bytes);
    ASSERT_TRUE(block.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*block) % 64, 0u);
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ((*block)[i], std::byte{0});
  }
  EXPECT_EQ(backend->allocate(-1).ok(), false);
  backend->fill(*backend->allocate(40), {DType::kF64, {5}}, 2.5);
}

TEST(Backend, RefusesWhatItCannotRun) {
  const TensorType type{DType::kF32, {4}};
  auto error = [&](auto change) {
    Program program{"p", {type, type, type}, 2, {-1, -1, 0}, {}, {{"Neg", {}, {0}, {2}}}, {}, {},
                    16};
    change(program);
    auto backend = make_cpu_backend();
    auto loaded = backend->load(program);
    return loaded ? std::string() : loaded.error().message;
  };
  EXPECT_EQ(error([](Program&) {}), "");
  EXPECT_EQ(error([](Program& p) { p.ops[0].op = "Negg"; }),
            "program 'p': op 0 Negg: the cpu backend has no such op (did you mean 'Neg'?)");
  EXPECT_EQ(error([](Program& p) { p.ops[0].inputs = {9}; }),
            "program 'p': op 0 Neg: names value 9 of 3");
  EXPECT_EQ(error([](Program& p) { p.ops[0].inputs = {}; }),
            "program 'p': op 0 Neg: has 0 inputs, not 1");
  EXPECT_EQ(error([](Program& p) { p.offsets[2] = 4; }),
            "program 'p': value 2 lies outside the workspace");
  EXPECT_EQ(error([](Program& p) { p.values[2].shape = {-4}; }), "program 'p': [-4] is no size");
  EXPECT_EQ(error([](Program& p) {
              p.values[2].shape = {5};
              p.workspace_bytes = 20;
            }),
            "program 'p': op 0 Neg: [4] does not broadcast to [5]");
  EXPECT_EQ(error([](Program& p) { p.values[0].dtype = p.values[2].dtype = DType::kBF16; }),
            "program 'p': op 0 Neg: not supported on bf16");
  EXPECT_EQ(error([&](Program& p) {  // value 3 overlaps half of value 2
              p.values.push_back(type);
              p.offsets.push_back(8);
              p.workspace_bytes = 24;
              p.ops.push_back({"Neg", {}, {2}, {3}});
            }),
            "program 'p': op 1 Neg: output 3 overlaps input 2 in the workspace");
}

TEST(Backend, LiteralsAreOperands) {
  const TensorType type{DType::kF32, {3}}, one{DType::kF32, {}};
  const float two = 2;
  Program program{"p", {type, type, one}, 2, {-1, -1, -1}, {}, {{"Mul", {}, {0, 2}, {1}}}, {}, {},
                  0};
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
  Program program{"p", {{DType::kF32, {1}}}, 1, {-1}, {}, {{"NoSuchOp", {}, {0}, {0}}}, {}, {}, 0};
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
}  // namespace piper::test
