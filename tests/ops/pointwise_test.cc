// Pointwise ops of the CPU backend, and its casts, against the C library and naive loops in double.
#include <array>
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
    {"Detach", [](double x) { return x; }, -1e30, 1e30, 0},
    {"Neg", [](double x) { return -x; }, -1e30, 1e30, 0},
    {"Abs", [](double x) { return std::abs(x); }, -1e30, 1e30, 0},
    {"Exp", [](double x) { return std::exp(x); }, -105, 90, 2},
    {"Log", [](double x) { return std::log(x); }, 0, 3e38, 2},
    {"Log", [](double x) { return std::log(x); }, 0.5, 2, 2},
    {"Sqrt", [](double x) { return std::sqrt(x); }, 0, 1e30, 0},
    {"Reciprocal", [](double x) { return 1 / x; }, -10, 10, 0},
    {"Tanh", [](double x) { return std::tanh(x); }, -12, 12, 3},
    {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -85, 85, 3},
    {"Softplus", [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); },
     -100, 100, 4},
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

TEST(Binary, BitsOfIntegers) {
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    const Tensor a = tensor(dtype, {4}, {12, -1, INT32_MIN, 7}), b = tensor(dtype, {1}, {10});
    const auto of = [&](const char* op) { return run1(op, {}, {a, b}, a.type).v; };
    EXPECT_EQ(of("BitwiseAnd"), (std::vector<double>{8, 10, 0, 2}));
    EXPECT_EQ(of("BitwiseOr"), (std::vector<double>{14, -1, INT32_MIN + 10.0, 15}));
    EXPECT_EQ(of("BitwiseXor"), (std::vector<double>{6, -11, INT32_MIN + 10.0, 13}));
  }
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

}  // namespace
}  // namespace piper::test
