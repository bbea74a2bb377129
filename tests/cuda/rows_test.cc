// Passes over rows, as the cuda backend makes them, give what their ops give one by one on the CPU.
#include <limits>

#include "composed.h"
#include "piper/base/float16.h"

namespace piper::rows_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test

constexpr double kOfFloat = 4e-6, kOfBf16 = 0x1p-6;
struct Size {
  int64_t rows, width;
};
constexpr Size kSizes[] = {{1, 1},     {33, 33},  {70, 1},   {5, 7},    {1, 33},
                           {70, 33},   {3, 64},   {19, 768}, {2, 5000}, {2, 16384},
                           {25000, 7}, {700, 40}, {1, 768}};
constexpr size_t kOfOne = 2;  // of these: in rows of one element what sums is a pass by itself

Attrs last_axis(bool with_epsilon) {
  Attrs attrs{{"axis", int64_t{1}}};
  if (with_epsilon) attrs.set("epsilon", 1e-5);
  return attrs;
}

// What a block of a transformer has in front of its products: the residual, its sum, and the norm.
// All sizes are in one program, each of them a pass.
TEST(Rows, ANormWithWhatStandsAroundIt) {
  Written w;
  std::vector<int32_t> sums, shown;
  for (const auto& [rows, width] : kSizes) {
    const int32_t x = w.input(bf16({rows, width})), residual = w.input(f32({rows, width}));
    sums.push_back(w.op("Add", {w.cast(x, DType::kF32), residual}));
    const auto norm = w.ops(
        "LayerNorm", {sums.back(), w.input(f32({width})), w.input(f32({width}))}, last_axis(true));
    shown.insert(shown.end(), {sums.back(), w.cast(norm[0], DType::kBF16), norm[1], norm[2]});
  }
  EXPECT_EQ(w.passes(shown), std::size(kSizes) + 2 * kOfOne);
  w.expect(shown, kOfBf16);
  w.expect(sums, kExact);
}

TEST(Rows, TheGradientsOfANorm) {
  Written w;
  std::vector<int32_t> wide, shown;
  for (const auto& [rows, width] : kSizes) {
    const int32_t dy = w.cast(w.input(bf16({rows, width})), DType::kF32);
    const int32_t x = w.input(f32({rows, width})), more = w.input(f32({rows, width}));
    const int32_t mean = w.input(f32({rows, 1})), rstd = w.input(f32({rows, 1}), 0.5, 2);
    const int32_t dx =
        w.op("LayerNormGradX", {dy, x, w.input(f32({width})), mean, rstd}, last_axis(false));
    const auto params = w.ops("LayerNormGradParams", {dy, x, mean, rstd}, last_axis(false));
    const int32_t all = w.op("Add", {dx, more}), narrow = w.cast(all, DType::kBF16);
    const int32_t bias = w.op("ReduceSum", {w.cast(narrow, DType::kF32)},
                              {{"axes", Shape{0}}, {"keepdims", int64_t{0}}});
    wide.insert(wide.end(), {all, params[0], params[1]});
    shown.insert(shown.end(), {all, narrow, params[0], params[1], bias});
  }
  EXPECT_EQ(w.passes(shown), std::size(kSizes) + 4 * kOfOne);
  w.expect(shown, kOfBf16);
  w.expect(wide, 4 * kOfFloat);
}

// The bits of what is summed are the same whatever else the pass has, and wherever operands lie: a
// backward in halves, or a forward that is done again, has other ops beside it.
TEST(Rows, SumsHaveTheSameBitsInAnyPass) {
  constexpr Size kMany[] = {{33, 33},  {40, 8},   {16, 24}, {64, 768}, {70, 96},
                            {5, 1600}, {9, 5000}, {130, 7}, {300, 40}, {3, 16384}};
  for (const auto& [rows, width] : kMany) {
    SCOPED_TRACE(fmt::format("[{}, {}]", rows, width));
    std::vector<std::vector<Bytes>> made;
    for (const bool has_more : {false, true}) {
      Written w;
      // A view that begins at an odd element leaves no more than one to be moved at once.
      const int32_t apart = w.input(f32({rows + 1, width}));
      const int32_t dy = w.input(f32({rows, width})), scale = w.input(f32({width}));
      const int32_t x =
          w.op("Slice", {apart},
               {{"starts", Shape{1, 0}}, {"ends", Shape{rows + 1, width}}, {"steps", Shape{1, 1}}});
      const int32_t mean = w.input(f32({rows, 1})), rstd = w.input(f32({rows, 1}), 0.5, 2);
      const Attrs sums{{"axes", Shape{0}}, {"keepdims", int64_t{0}}};
      std::vector<int32_t> shown{
          w.op("LayerNormGradX", {dy, x, scale, mean, rstd}, last_axis(false)),
          w.op("Softmax", {dy}, last_axis(false)), w.op("ReduceSum", {dy}, sums)};
      const size_t common = shown.size();
      if (has_more) {
        const auto params = w.ops("LayerNormGradParams", {dy, x, mean, rstd}, last_axis(false));
        int32_t all = w.op("Mul", {shown[0], shown[1]});
        for (int k = 0; k < 6; ++k) {
          const int32_t more = w.input(bf16({rows, width}));
          shown.push_back(all = w.op("Add", {all, w.cast(more, DType::kF32)}));
        }
        shown.insert(shown.end(), {params[0], params[1], w.op("ReduceSum", {all}, sums),
                                   w.op("Softmax", {all}, last_axis(false))});
      }
      const std::vector<Bytes> results = w.results(shown);
      made.emplace_back(results.begin(), results.begin() + static_cast<ptrdiff_t>(common));
    }
    for (size_t s = 0; s < made[0].size(); ++s)
      EXPECT_EQ(as_text(made[0][s].span()), as_text(made[1][s].span())) << "result " << s;
  }
}

TEST(Rows, ColumnsRowsAndSingleElements) {
  Written w;
  std::vector<int32_t> exact, near;
  const int32_t one = w.input(f32({}), 0.5, 2);
  for (const auto& [rows, width] : kSizes) {
    if (rows * width > 50000) continue;
    const int32_t x = w.input(f32({rows, width})), column = w.input(f32({rows, 1}));
    const int32_t row = w.input(f32({width}));
    const int32_t a = w.op("Mul", {w.op("Add", {x, column}), one}), b = w.op("Max", {a, row});
    exact.insert(exact.end(), {a, b});
    const auto norm = w.ops("RmsNorm", {b, row}, last_axis(true));
    const int32_t back = w.op("Div", {norm[0], w.op("Add", {norm[1], one})});
    const int32_t p = w.op("Softmax", {back}, last_axis(false));
    const int32_t dp = w.op("SoftmaxGrad", {p, x}, last_axis(false));
    const Attrs over{{"axes", Shape{1}}, {"keepdims", int64_t{1}}};
    const int32_t most = w.op("ReduceMax", {a}, over), least = w.op("ReduceMin", {a}, over);
    exact.insert(exact.end(), {most, least, w.op("Sub", {b, most}), w.op("Add", {least, column})});
    near.push_back(w.op("Mul", {w.op("ReduceSum", {a}, over), b}));
    const int32_t log = w.op("LogSoftmax", {x}, last_axis(false));
    const int32_t dlog = w.op("LogSoftmaxGrad", {log, b}, last_axis(false));
    near.insert(near.end(), {norm[1], back, p, dp, log, dlog});
  }
  w.expect(exact, kExact);
  w.expect(near, 8 * kOfFloat);
}

// Of rows that tiles cut, and of what a pass has beside them for each row.
TEST(Rows, SumsOverRows) {
  const Attrs sums{{"axes", Shape{0}}, {"keepdims", int64_t{0}}};
  Written w;
  std::vector<int32_t> exact, near;
  for (const auto& [rows, width] : {Size{40, 5000}, Size{1300, 33}, Size{9, 1}, Size{3, 4104}}) {
    const int32_t x = w.input(f32({rows, width})), column = w.op("Neg", {w.input(f32({rows, 1}))});
    const int32_t y = w.op("Mul", {x, column});
    exact.insert(exact.end(), {y, column});
    near.insert(near.end(), {w.op("ReduceSum", {y}, sums), w.op("ReduceSum", {column}, sums)});
    const int32_t whole = w.input({DType::kI32, {rows, width}});
    exact.push_back(w.op("ReduceSum", {w.op("Add", {whole, whole})}, sums));
  }
  w.expect(exact, kExact);
  w.expect(near, 4 * kOfFloat);
}

TEST(Rows, RmsNormOf16Bits) {
  for (const auto& [rows, width] : {Size{33, 768}, Size{4, 4096}, Size{9, 31}}) {
    SCOPED_TRACE(fmt::format("[{}, {}]", rows, width));
    Written w;
    const int32_t x = w.input(bf16({rows, width})), dy = w.input(bf16({rows, width}));
    const int32_t scale = w.input(bf16({width}));
    const auto norm = w.ops("RmsNorm", {x, scale}, last_axis(true));
    const int32_t dx = w.op("RmsNormGradX", {dy, x, scale, norm[1]}, last_axis(false));
    const int32_t dscale = w.op("RmsNormGradScale", {dy, x, norm[1]}, last_axis(false));
    w.expect({norm[0], dx, dscale}, kOfBf16);
  }
}

// Rows that are too long to be joined, or kept in registers.
TEST(Rows, LongOnes) {
  constexpr int64_t kWidth = 20000;
  Written w;
  const int32_t x = w.input(f32({3, kWidth}));
  const int32_t y = w.ops("LayerNorm", {x, w.input(f32({kWidth}))}, last_axis(true))[0];
  const int32_t p = w.op("LogSoftmax", {y}, last_axis(false));
  const int32_t sum =
      w.op("ReduceSum", {w.op("Neg", {x})}, {{"axes", Shape{0}}, {"keepdims", int64_t{0}}});
  w.expect({y, p, sum}, 8 * kOfFloat);
}

TEST(Rows, OperandsThatAreBroadcastInAnyWay) {
  const Shape shapes[] = {{2, 3, 4, 5}, {3, 1, 5},    {2, 1, 4, 1}, {5}, {1, 3, 1, 1},
                          {2, 3, 1, 5}, {1, 1, 4, 5}, {4, 1},       {}};
  Written w;
  std::vector<int32_t> shown;
  const int32_t whole = w.input(f32(shapes[0]));
  for (const Shape& a : shapes)
    for (const Shape& b : shapes) {
      const int32_t sum = w.op("Add", {w.input(f32(a)), w.input(f32(b))});
      shown.push_back(sum);
      shown.push_back(w.op("Where", {w.op("Less", {sum, whole}), whole, sum}));
    }
  w.expect(shown, kExact);
}

TEST(Rows, NumbersOfTheProgram) {
  Written w;
  std::vector<int32_t> shown;
  const auto add = [&](DType type, auto... numbers) {
    for (const auto number : {numbers...}) {
      const int32_t x = w.input({type, {4, 6}});
      const int32_t one = w.literal({type, {}}, bytes_of(std::vector{number}));
      shown.push_back(w.op("Add", {w.op("Max", {x, one}), one}));
    }
  };
  add(DType::kF32, 0.1f, -0.0f, 1e-42f, std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN(), 16777217.0f);
  add(DType::kF64, 0.1, -1e300, 5e-324);
  add(DType::kI64, int64_t{1} << 62, std::numeric_limits<int64_t>::min(), int64_t{-3});
  add(DType::kI32, std::numeric_limits<int32_t>::min(), int32_t{7});
  add(DType::kBF16, uint16_t{0x3f80}, uint16_t{0xff80}, uint16_t{0x7fc0});
  w.expect(shown, kExact);
}

// Values under another shape are the same bytes: no pass stores them for that alone.
TEST(Rows, OtherShapesOfTheSame) {
  Written w;
  const int32_t x = w.input(f32({6, 4, 8})), row = w.input(f32({8}));
  const int32_t y = w.op("Add", {x, row});
  const int32_t flat = w.op("Reshape", {y}, {{"shape", Shape{24, 8}}});
  const int32_t norm = w.ops("RmsNorm", {flat, row}, last_axis(true))[0];
  const int32_t back = w.op("Reshape", {norm}, {{"shape", Shape{6, 4, 8}}});
  const int32_t sum = w.op("Add", {back, x});
  EXPECT_EQ(w.passes({sum}), 1u);
  w.expect({sum}, 4 * kOfFloat);
  w.expect({y, sum}, 4 * kOfFloat);
}

// ---- Random passes ------------------------------------------------------------------------------

class RandomPass : public ::testing::TestWithParam<int> {};

TEST_P(RandomPass, IsThatOfItsOps) {
  const auto seed = static_cast<uint64_t>(GetParam());
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  constexpr int64_t kRows[] = {1, 2, 5, 40, 130}, kWidths[] = {1, 5, 8, 24, 33, 40, 768};
  const int64_t rows = kRows[below(5)], width = kWidths[below(7)];
  const DType type = below(3) == 0 ? DType::kBF16 : DType::kF32;
  Written w(seed);
  std::vector<int32_t> values{w.input({type, {rows, width}}), w.input({type, {rows, width}})};
  const int32_t column = w.input({type, {rows, 1}}, 0.5, 2), row = w.input({type, {width}});
  bool is_exact = type == DType::kF32;
  std::vector<int32_t> shown;
  const Attrs sums{{"axes", Shape{0}}, {"keepdims", int64_t{0}}};
  const auto pick = [&] { return values[below(values.size())]; };
  for (size_t step = 0; step < 4 + below(10); ++step) {
    const int32_t x = pick();
    const size_t kind = below(13);
    if (kind < 7) {
      constexpr const char* kOps[] = {"Add", "Sub", "Mul", "Max", "Min"};
      const int32_t with[] = {pick(), pick(), column, row};
      values.push_back(w.op(kOps[below(5)], {x, with[below(4)]}));
    } else if (kind == 7) {
      values.push_back(w.op("Relu", {x}));
    } else if (kind == 8) {
      shown.push_back(w.op("ReduceSum", {x}, sums));
      is_exact = false;
    } else if (kind == 9) {
      values.push_back(w.op("Softmax", {x}, last_axis(false)));
      is_exact = false;
    } else if (kind == 10) {
      const auto norm = w.ops("RmsNorm", {x, row}, last_axis(true));
      values.push_back(norm[0]);
      values.push_back(w.op("Mul", {x, norm[1]}));
      is_exact = false;
    } else if (kind == 11) {
      const char* const how = below(2) == 0 ? "ReduceMax" : "ReduceSum";
      const int32_t one = w.op(how, {x}, {{"axes", Shape{1}}, {"keepdims", int64_t{1}}});
      values.push_back(w.op("Sub", {pick(), one}));
      is_exact = false;
    } else {
      values.push_back(w.cast(w.cast(x, DType::kBF16), type));
    }
  }
  values.push_back(w.op("Sub", {values.back(), row}));
  shown.push_back(values.back());
  if (values.size() > 3) shown.push_back(values[values.size() - 2]);
  w.expect(shown, is_exact ? kExact : type == DType::kF32 ? 1e-2 : 4 * kOfBf16);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomPass, ::testing::Range(1, 25));

// ---- Words --------------------------------------------------------------------------------------

// All pairs of these.
template <class T>
std::pair<std::vector<T>, std::vector<T>> pairs_of(const std::vector<T>& elements) {
  std::pair<std::vector<T>, std::vector<T>> pairs;
  for (const T a : elements)
    for (const T b : elements) pairs.first.push_back(a), pairs.second.push_back(b);
  return pairs;
}

template <class T>
void expect_words(DType type, const std::vector<T>& elements, const std::vector<std::string>& unary,
                  const std::vector<std::string>& binary, double bound) {
  const auto [as, bs] = pairs_of(elements);
  Written w;
  const TensorType of{type, {static_cast<int64_t>(as.size())}};
  const int32_t a = w.given(of, bytes_of(as)), b = w.given(of, bytes_of(bs));
  std::vector<int32_t> shown;
  for (const std::string& op : unary) shown.push_back(w.op(op, {a}));
  for (const std::string& op : binary) shown.push_back(w.op(op, {a, b}));
  if (binary.size() > 1) shown.push_back(w.op("Mod", {a, b}, {{"fmod", int64_t{1}}}));
  for (const DType to : {DType::kF32, DType::kI64, DType::kI32, DType::kBool, DType::kBF16})
    if (bound == kExact) shown.push_back(w.cast(a, to));
  w.expect(shown, bound);
}

const std::vector<std::string> kOfAll = {"Add", "Sub",     "Mul",           "Div",  "Max",
                                         "Min", "Mod",     "Equal",         "Less", "LessOrEqual",
                                         "Pow", "Greater", "GreaterOrEqual"};

TEST(Words, OfIntegersWrapAroundAndDivideByZero) {
  std::vector<std::string> words = kOfAll;
  words.insert(words.end(), {"BitwiseAnd", "BitwiseOr", "BitwiseXor"});
  expect_words<int32_t>(DType::kI32,
                        {0, 1, -1, 2, 3, -3, 7, -8, 1000003, std::numeric_limits<int32_t>::max(),
                         std::numeric_limits<int32_t>::min()},
                        {"Neg", "Abs", "Sign"}, words, kExact);
  expect_words<int64_t>(DType::kI64,
                        {0, 1, -1, 2, 5, -7, 1LL << 40, std::numeric_limits<int64_t>::max(),
                         std::numeric_limits<int64_t>::min()},
                        {"Neg", "Abs", "Sign"}, words, kExact);
}

TEST(Words, OfFloatsAreThoseOfTheCpuAtTheEdges) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> edges = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f,  1.5f,   -2.5f, 2.0f,   3.0f,
                                    kInf, -kInf, kNan, 3e9f,  -3e9f, 1e-40f, 1e20f, -1e20f, 7.25f};
  std::vector<std::string> words = kOfAll;
  std::erase(words, "Pow");
  expect_words<float>(DType::kF32, edges,
                      {"Neg", "Abs", "Sign", "Relu", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal",
                       "Detach", "IsNaN"},
                      words, kExact);
  const std::vector<double> wide(edges.begin(), edges.end());
  expect_words<double>(DType::kF64, wide, {"Neg", "Abs", "Sign", "Relu", "Round"}, words, kExact);
}

TEST(Words, OfFunctionsAreNearThoseOfTheCpu) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> finite = {0.0f, 1.0f,  -1.0f,  0.3f,  -0.7f,   2.0f, 3.0f,
                                     5.0f, -9.0f, -14.0f, 20.0f, -300.0f, 95.0f};
  std::vector<float> all = finite;
  all.insert(all.end(), {kInf, -kInf, kNan});
  const auto count = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  Written w;
  std::vector<int32_t> shown;
  const int32_t x = w.given(f32({count(all)}), bytes_of(all));
  for (const char* op :
       {"Exp", "Log", "Tanh", "Sigmoid", "Softplus", "Erf", "Silu", "Gelu", "Sin", "Cos", "Tan",
        "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"})
    shown.push_back(w.op(op, {x}));
  const auto [as, bs] = pairs_of(finite);
  const int32_t a = w.given(f32({count(as)}), bytes_of(as));
  const int32_t b = w.given(f32({count(bs)}), bytes_of(bs));
  for (const char* op : {"Pow", "SiluGrad", "SwiGlu"}) shown.push_back(w.op(op, {a, b}));
  for (const char* how : {"none", "tanh"}) {
    shown.push_back(w.op("Gelu", {a}, {{"approximate", how}}));
    shown.push_back(w.op("GeluGrad", {a, b}, {{"approximate", how}}));
  }
  w.expect(shown, 4 * kOfFloat, Written::kOfEach);
}

// ---- Cross-entropy ------------------------------------------------------------------------------

// Rows that do not begin at multiples of 16 bytes; what is kept, and what is too much for that.
TEST(CrossEntropy, OfManyClasses) {
  for (const auto& [type, classes] :
       {std::pair(DType::kBF16, 50257), std::pair(DType::kBF16, 50304),
        std::pair(DType::kF32, 30001), std::pair(DType::kF64, 701), std::pair(DType::kBF16, 3),
        std::pair(DType::kF16, 1)}) {
    SCOPED_TRACE(fmt::format("{} classes of {}", classes, info(type).name));
    Written w;
    const DType wide = is_half(type) ? DType::kF32 : type;
    const int32_t logits = w.input({type, {3, classes}}, -4, 4);
    const int64_t last = classes - 1;
    const int32_t labels =
        w.given({DType::kI64, {3}}, bytes_of(std::vector<int64_t>{last, -100, last / 2}));
    const Attrs ignore{{"ignore_index", int64_t{-100}}};
    const auto sum = w.ops("CrossEntropySum", {logits, labels}, ignore);
    const int32_t scale = w.input({wide, {}});
    const int32_t grad = w.op("CrossEntropyGrad", {logits, labels, sum[1], scale}, ignore);
    w.expect({sum[0], sum[1]}, 4 * kOfFloat);
    w.expect({sum[1], grad}, is_half(type) ? kOfBf16 : 4 * kOfFloat);  // nobody reads the sum
  }
}

// ---- Rows with gaps between them ----------------------------------------------------------------

// Products' logits and their gradients, whose rows are no multiple of 16 bytes.
struct Head : Written {
  std::vector<int32_t> near, wide;  // results, of 16 bits and of f32 sums

  Head(DType type, int64_t rows, int64_t classes) {
    constexpr int64_t kWidth = 24;
    const DType sums = is_half(type) ? DType::kF32 : type;
    const int32_t x = input({type, {2, rows, kWidth}}), w = input({type, {classes, kWidth}}, -1, 1);
    const int32_t raw = op("MatMul", {x, w}, {{"trans_a", int64_t{0}}, {"trans_b", int64_t{1}}});
    const int32_t bias = input({type, {classes}});
    const int32_t logits = op("Tanh", {op("Add", {raw, bias})});
    std::vector<int64_t> classes_of_rows;
    for (int64_t r = 0; r < 2 * rows; ++r)
      classes_of_rows.push_back(r == 1 ? -100 : r * 37 % classes);
    const int32_t labels = given({DType::kI64, {2, rows}}, bytes_of(classes_of_rows));
    const Attrs ignore{{"ignore_index", int64_t{-100}}};
    const auto sum = ops("CrossEntropySum", {logits, labels}, ignore);
    const int32_t scale = input({sums, {}}, 0.5, 2);
    const int32_t dlogits = op("CrossEntropyGrad", {logits, labels, sum[1], scale}, ignore);
    const int32_t dx =
        op("MatMul", {dlogits, w}, {{"trans_a", int64_t{0}}, {"trans_b", int64_t{0}}});
    const auto as_rows = [&](int32_t value, int64_t columns) {
      return op("Reshape", {value}, {{"shape", Shape{2 * rows, columns}}});
    };
    Attrs transposed{{"trans_a", int64_t{1}}, {"trans_b", int64_t{0}}};
    if (is_half(type)) transposed.set("to", "f32");
    const int32_t dw = op("MatMul", {as_rows(dlogits, classes), as_rows(x, kWidth)}, transposed);
    const int32_t top = op("ReduceMax", {logits}, {{"axes", Shape{2}}, {"keepdims", int64_t{0}}});
    const int32_t likely = op("Softmax", {dlogits}, {{"axis", int64_t{2}}});
    near = {dx, likely};
    wide = {sum[0], dw};
    if (!is_half(type)) wide.push_back(top);
  }
  Program program_of_all() const {
    std::vector<int32_t> all = near;
    all.insert(all.end(), wide.begin(), wide.end());
    return program(all);
  }
};

TEST(Rows, WithGapsBetweenThem) {
  for (const auto& [type, classes, pitch] : {std::tuple(DType::kBF16, 259, 264),
                                             {DType::kF16, 1057, 1088},
                                             {DType::kBF16, 1031, 1088},
                                             {DType::kF32, 67, 68},
                                             {DType::kF32, 1031, 1056},
                                             {DType::kF64, 33, 34}}) {
    SCOPED_TRACE(fmt::format("{} classes of {}", classes, info(type).name));
    const Head head(type, 5, classes);
    const DeviceProgram made = must(device_program(head.program_of_all()));
    // Of 16 bits the last classes are products of their own, or added by a kernel along k.
    const int64_t tail = is_half(type) ? classes % 8 : 0;
    std::vector<std::array<int64_t, 3>> extents, wanted{{10, classes - tail, 24}};
    if (tail > 0) wanted.push_back({10, tail, 24});
    wanted.push_back({10, 24, classes - tail});
    wanted.push_back({classes - tail, 24, 10});
    if (tail > 0) wanted.push_back({tail, 24, 10});
    for (const DeviceProduct& one : made.products) {
      extents.push_back({one.m, one.n, one.k});
      EXPECT_EQ(one.n == 24 ? one.lda : one.ldd, pitch);
      EXPECT_TRUE(one.n != 24 || one.ldd == 24);
    }
    EXPECT_EQ(extents, wanted);
    head.expect(head.near, is_half(type) ? 2 * kOfBf16 : 4 * kOfFloat);
    head.expect(head.wide, is_half(type) ? kOfBf16 : 4 * kOfFloat);
  }
}

// Sums along 259 elements: 256 by the library, in f32, and the last three by a kernel.
TEST(Products, AlongAnExtentThatIsNoWholeNumberOfRuns) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(info(type).name);
    struct Shown : Written {
      using Written::program;
    } w;
    const int32_t weights = w.input({type, {8, 259}}, -1, 1);
    const int32_t x = w.op("MatMul", {w.input({type, {6, 8}}, -1, 1), weights}),
                  y = w.op("MatMul", {w.input({type, {16, 8}}, -1, 1), weights});
    const int32_t b = w.input({type, {259, 16}}, -1, 1);
    const Attrs wide{{"to", std::string("f32")}}, transposed{{"trans_b", int64_t{1}}},
        adds{{"to", std::string("f32")}, {"accumulate", int64_t{1}}};
    const int32_t narrow = w.op("MatMul", {x, b}), by_rows = w.op("MatMul", {x, y}, transposed),
                  sums = w.op("MatMul", {x, b}, wide);
    const DeviceProgram made = must(device_program(w.program({narrow, by_rows, sums})));
    std::vector<int64_t> along;
    for (const DeviceProduct& one : made.products)
      if (one.k != 8) along.push_back(one.k);
    EXPECT_EQ(along, (std::vector<int64_t>{256, 256, 256}));
    w.expect({narrow, by_rows}, kOfBf16);
    w.expect({sums}, 16 * kOfFloat);
  }
}

// What passes move of such rows, they move 16 bytes at once but for the ends; what has no gaps, or
// is too short, stays as it is.
TEST(Rows, WithoutGapsWhereAnOpKnowsNone) {
  const auto pitches = [](int64_t classes, bool is_copied) {
    struct Shown : Written {
      using Written::program;
    } w;
    const int32_t x = w.input(bf16({6, 8})), weights = w.input(bf16({8, classes}));
    const int32_t y = w.op("MatMul", {x, weights});
    std::vector<int32_t> shown{
        w.op("Softmax", {w.op("MatMul", {x, y}, {{"trans_a", int64_t{1}}})}, last_axis(false))};
    if (is_copied) shown.push_back(w.op("Concat", {y, y}, {{"axis", int64_t{0}}}));
    const DeviceProgram made = must(device_program(w.program(shown)));
    w.expect(shown, kOfBf16);
    return std::vector<int64_t>{made.products[0].ldd, made.products[1].ldb, made.products[1].ldd};
  };
  EXPECT_EQ(pitches(259, false), (std::vector<int64_t>{264, 264, 264}));
  EXPECT_EQ(pitches(259, true), (std::vector<int64_t>{259, 259, 264}));
  EXPECT_EQ(pitches(256, false), (std::vector<int64_t>{256, 256, 256}));
  EXPECT_EQ(pitches(67, false), (std::vector<int64_t>{67, 67, 67}));
}

TEST(CrossEntropy, OfAPartOfTheClasses) {
  constexpr int64_t kPart = 700, kFirst = 1400, kWhole = 2100;
  Written w;
  const int32_t logits = w.input(bf16({4, kPart}));
  const int32_t labels = w.given({DType::kI64, {4}},
                                 bytes_of(std::vector<int64_t>{kFirst + 5, 3, kWhole - 1, kWhole}));
  const int32_t top = w.input(f32({4}), 2, 4),
                first = w.given({DType::kI64, {}}, bytes_of(std::vector<int64_t>{kFirst}));
  const Attrs attrs{{"ignore_index", int64_t{3}}, {"whole", kWhole}};
  const auto terms = w.ops("CrossEntropyTerms", {logits, labels, top, first}, attrs);
  const int32_t share = w.input(f32({4}), 0, 1), scale = w.input(f32({}));
  const int32_t grad = w.op("CrossEntropyGrad", {logits, labels, share, scale, top, first}, attrs);
  w.expect({terms[0], terms[1]}, 4 * kOfFloat);
  w.expect({grad}, kOfBf16);
}

}  // namespace
}  // namespace piper::rows_test
