// Products as the cuda backend makes them: batches of any form, results that are rounded once,
// experts.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "piper/base/float16.h"
#include "written.h"

namespace piper::device_products_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not a plan's
using ::testing::ElementsAre;

// ---- Products -----------------------------------------------------------------------------------

struct Drawn {
  Shape a, b, out;
  Attrs attrs;
  DType type = DType::kF32, result = DType::kF32;
};

TensorType product_type(const Attrs& attrs, const TensorType& a, const TensorType& b) {
  OpTypes use;
  use.attrs = attrs, use.inputs = {a, b}, use.present = {true, true};
  return must(find_op("MatMul")->types(use))[0];
}

Drawn draw_product(std::mt19937_64& random) {
  const auto up_to = [&](uint64_t most) { return static_cast<int64_t>(random() % most); };
  Drawn drawn;
  const int64_t rank = up_to(5), m = up_to(4) + 1, n = up_to(4) + 1, k = up_to(4);
  const bool trans_a = up_to(2), trans_b = up_to(2);
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t extent = up_to(4) + 1, form = up_to(4);
    if (!drawn.a.empty() || up_to(3) != 0) drawn.a.push_back(form == 1 ? 1 : extent);
    if (!drawn.b.empty() || up_to(3) != 0) drawn.b.push_back(form == 2 ? 1 : extent);
    if (form == 1 && drawn.b.empty() && !drawn.a.empty()) drawn.a.back() = extent;
    if (form == 2 && drawn.a.empty() && !drawn.b.empty()) drawn.b.back() = extent;
  }
  drawn.a.insert(drawn.a.end(), {trans_a ? k : m, trans_a ? m : k});
  drawn.b.insert(drawn.b.end(), {trans_b ? n : k, trans_b ? k : n});
  drawn.attrs = {{"trans_a", int64_t{trans_a}}, {"trans_b", int64_t{trans_b}}};
  constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};
  drawn.type = drawn.result = kTypes[up_to(4)];
  if (drawn.type != DType::kF64 && up_to(2)) {
    drawn.attrs.set("to", "f32");
    drawn.result = DType::kF32;
  }
  drawn.out = product_type(drawn.attrs, {drawn.type, drawn.a}, {drawn.type, drawn.b}).shape;
  return drawn;
}

// The product by its definition.
std::vector<double> multiply(const Drawn& drawn, const Tensor& a, const Tensor& b,
                             std::vector<double> sums) {
  const size_t rank = drawn.out.size();
  const bool ta = drawn.attrs.integer("trans_a"), tb = drawn.attrs.integer("trans_b");
  const auto at = [&](const Tensor& x, std::vector<int64_t> index, int64_t row, int64_t column) {
    const Shape& shape = x.type.shape;
    int64_t place = 0;
    for (size_t d = 0; d + 2 < shape.size(); ++d) {
      const int64_t here = index[rank - shape.size() + d];
      place = place * shape[d] + (shape[d] == 1 ? 0 : here);
    }
    place = (place * shape[shape.size() - 2] + row) * shape.back() + column;
    return x.values[static_cast<size_t>(place)];
  };
  const int64_t k = drawn.a[drawn.a.size() - (ta ? 2 : 1)];
  for (size_t i = 0; i < sums.size(); ++i) {
    std::vector<int64_t> index(rank);
    auto rest = static_cast<int64_t>(i);
    for (size_t d = rank; d-- > 0; rest /= drawn.out[d]) index[d] = rest % drawn.out[d];
    const int64_t row = index[rank - 2], column = index[rank - 1];
    for (int64_t l = 0; l < k; ++l)
      sums[i] += (ta ? at(a, index, l, row) : at(a, index, row, l)) *
                 (tb ? at(b, index, column, l) : at(b, index, l, column));
  }
  return sums;
}

TEST(Products, OfBatchesOfAnyFormAreThoseOfTheDefinition) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    Drawn drawn = draw_product(random);
    SCOPED_TRACE(fmt::format(
        "round {}: {} · {} {} (seed {})", round, to_string(TensorType{drawn.type, drawn.a}),
        to_string(TensorType{drawn.type, drawn.b}), print_attrs(drawn.attrs), kSeed));
    const auto given = [&](DType type, const Shape& shape) {  // whole numbers: sums are exact
      Tensor tensor = draw({DType::kI64, shape}, random, 0, 0, 7);
      tensor.type.dtype = type;
      return tensor;
    };
    const Tensor a = given(drawn.type, drawn.a), b = given(drawn.type, drawn.b),
                 c = given(drawn.result, drawn.out);
    const int form = static_cast<int>(random() % 3);  // alone, added, added in place
    Written written;
    std::vector<int32_t> inputs{written.given(a.type, to_bytes(a)),
                                written.given(b.type, to_bytes(b))};
    std::vector<double> sums(c.values.size());
    if (form > 0) {
      drawn.attrs.set("accumulate", int64_t{1});
      inputs.push_back(written.given(c.type, to_bytes(c)));
      sums = c.values;
    }
    const int32_t out = form == 2 ? inputs.back() : written.made(c.type);
    written.op("MatMul", drawn.attrs, inputs, {out});
    const Tensor made = to_tensor(c.type, run(written)[static_cast<size_t>(out)]);
    ASSERT_EQ(made.values, multiply(drawn, a, b, std::move(sums)));
  }
}

std::vector<int64_t> batches_of(const Shape& a, const Shape& b, bool trans_a = false) {
  Written written;
  const Attrs attrs{{"trans_a", int64_t{trans_a}}};
  const TensorType of_a{DType::kF32, a}, of_b{DType::kF32, b};
  const TensorType out = product_type(attrs, of_a, of_b);
  written.op("MatMul", attrs, {written.given(of_a, {}), written.given(of_b, {})},
             {written.made(out)});
  std::vector<int64_t> batches;
  for (const DeviceProduct& product : steps_of(written).products) batches.push_back(product.batch);
  return batches;
}

TEST(Products, AreAsFewAsStridesCanSay) {
  EXPECT_THAT(batches_of({2, 3, 4, 6}, {6, 2}), ElementsAre(1));        // rows of one matrix
  EXPECT_THAT(batches_of({2, 3, 6, 4}, {6, 2}, true), ElementsAre(6));  // of which B is the same
  EXPECT_THAT(batches_of({2, 3, 4, 6}, {2, 3, 6, 2}), ElementsAre(6));
  EXPECT_THAT(batches_of({4, 6}, {2, 3, 6, 2}), ElementsAre(6));
  EXPECT_THAT(batches_of({2, 3, 4, 6}, {2, 1, 6, 2}), ElementsAre(2));
  EXPECT_THAT(batches_of({2, 1, 4, 6}, {3, 6, 2}), ElementsAre(3, 3));
  EXPECT_THAT(batches_of({0, 4, 6}, {6, 2}), ElementsAre());
}

// ---- Several ops in one program, whose results are looked at when it has run --------------------
using Results = std::vector<Bytes>;
struct Checks {
  Written written;
  std::vector<std::function<void(const Results&)>> checks;

  void run() const {
    const Results made = test::run(written);
    for (const auto& check : checks) check(made);
  }
};

// ---- Linear -------------------------------------------------------------------------------------

double activated(std::string_view activation, double x) {
  if (activation == "none") return x;
  if (activation == "gelu") return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Of 16 bits a result is as near as half of its last place, and what f32 sums leave open.
void expect_rounded_once(DType type, double made, double exact, std::string_view what) {
  const double bits = type == DType::kBF16 ? 7 : 10;
  const double last = is_half(type) ? std::ldexp(1, std::ilogb(exact) - static_cast<int>(bits)) : 0;
  const double open = type == DType::kF64 ? 1e-14 : 1e-5 * std::abs(exact) + 2e-6;
  EXPECT_LE(std::abs(made - exact), 0.5 * last + open) << what << ": " << made << " of " << exact;
}

void add_linear(Checks& to, DType type, const std::string& activation, int64_t rows, int64_t k,
                int64_t n) {
  std::mt19937_64 random(kSeed);
  const auto given = [&](const Shape& shape) {
    const Tensor drawn = draw({type, shape}, random, -1, 1, 2);
    return to_tensor(drawn.type, to_bytes(drawn));
  };
  const Tensor x = given({rows, k}), w = given({n, k}), bias = given({n});
  const TensorType out{type, {rows, n}};
  const std::vector<int32_t> inputs{to.written.given(x.type, to_bytes(x)),
                                    to.written.given(w.type, to_bytes(w)),
                                    to.written.given(bias.type, to_bytes(bias))};
  std::vector<int32_t> outputs{to.written.made(out)};
  if (activation != "none") outputs.push_back(to.written.made(out));
  to.written.op("Linear", {{"trans_b", int64_t{1}}, {"activation", activation}}, inputs, outputs);
  to.checks.emplace_back([=](const Results& made) {
    SCOPED_TRACE(fmt::format("{} {} [{}, {}] · [{}, {}] (seed {})", info(type).name, activation,
                             rows, k, n, k, kSeed));
    const Tensor y = to_tensor(out, made[static_cast<size_t>(outputs[0])]);
    const Tensor pre = to_tensor(out, made[static_cast<size_t>(outputs.back())]);
    for (int64_t i = 0; i < rows * n; ++i) {
      double sum = bias.values[static_cast<size_t>(i % n)];
      for (int64_t l = 0; l < k; ++l)
        sum += x.values[static_cast<size_t>(i / n * k + l)] *
               w.values[static_cast<size_t>(i % n * k + l)];
      const auto at = static_cast<size_t>(i);
      expect_rounded_once(type, y.values[at], activated(activation, sum), "y");
      expect_rounded_once(type, pre.values[at], sum, "what the activation is taken of");
    }
  });
}

TEST(Linear, RoundsEachResultOnce) {
  Checks all;
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64})
    for (const char* activation : {"none", "gelu", "gelu_tanh"}) {
      add_linear(all, type, activation, 9, 5, 16);
      add_linear(all, type, activation, 5, 3, 7);
      add_linear(all, type, activation, 3, 0, 4);
    }
  all.run();
}

// f32 sums of all rows would take more than their part of the memory.
TEST(Linear, WithSumsOfItsOwnGoesThroughItsRowsInParts) {
  constexpr int64_t kColumns = 65544, kRows = 130;
  Written written;
  const DType type = DType::kBF16;
  const TensorType out{type, {kRows, kColumns}};
  const int32_t x = written.given({type, {kRows, 1}}, {}),
                w = written.given({type, {1, kColumns}}, {}),
                bias = written.given({type, {kColumns}}, {});
  const int32_t y = written.made(out), pre = written.made(out);
  written.op("Linear", {{"activation", "gelu"}}, {x, w, bias}, {y, pre});
  const DeviceProgram made = steps_of(written);
  ASSERT_EQ(made.products.size(), 2u);
  EXPECT_EQ(made.products[0].m, 128);
  EXPECT_EQ(made.products[1].m, 2);
  EXPECT_EQ(made.workspace_bytes, 128 * kColumns * 4);
  ASSERT_EQ(made.steps.size(), 4u);
  EXPECT_EQ(made.steps[2].operands[0], (DeviceOperand{DeviceOperand::kArgument, x, 256}));
  EXPECT_EQ(made.steps[3].operands[2],
            (DeviceOperand{DeviceOperand::kArgument, y, 128 * kColumns * 2}));
  EXPECT_EQ(made.steps[3].operands[3],
            (DeviceOperand{DeviceOperand::kArgument, pre, 128 * kColumns * 2}));
}

// The epilogues that a library has, and no others.
TEST(Linear, IsOfTheLibraryAloneWhereThatIsExact) {
  const auto steps = [](DType type, const char* activation, int64_t n) {
    Written written;
    const TensorType out{type, {4, n}};
    std::vector<int32_t> outputs{written.made(out)};
    if (std::string_view(activation) != "none") outputs.push_back(written.made(out));
    const int32_t x = written.given({type, {4, 8}}, {}), w = written.given({type, {8, n}}, {});
    written.op("Linear", {{"activation", activation}}, {x, w, written.given({type, {n}}, {})},
               outputs);
    return steps_of(written).steps.size();
  };
  EXPECT_EQ(steps(DType::kBF16, "none", 7), 1u);
  EXPECT_EQ(steps(DType::kF32, "none", 7), 1u);
  EXPECT_EQ(steps(DType::kF64, "none", 7), 2u);
  EXPECT_EQ(steps(DType::kBF16, "gelu_tanh", 16), 1u);
  EXPECT_EQ(steps(DType::kBF16, "gelu_tanh", 12), 2u);
  EXPECT_EQ(steps(DType::kF32, "gelu_tanh", 16), 2u);
  EXPECT_EQ(steps(DType::kBF16, "gelu", 16), 2u);
}

// ---- Experts ------------------------------------------------------------------------------------

struct Experts {
  int64_t rows, k, n, here, whole;
  int trans_b;
  enum Choice { kSpread, kOne, kOutside } choice = kSpread;
};

Tensor choices(const Experts& e, DType type, std::mt19937_64& random) {
  Tensor index{{type, {e.rows}}, {}};
  for (int64_t r = 0; r < e.rows; ++r) {
    auto value = static_cast<double>(random() % static_cast<uint64_t>(e.whole));
    if (e.choice == Experts::kOne) value = static_cast<double>(e.whole - 1);
    if (e.choice == Experts::kOutside && random() % 3 == 0) value -= static_cast<double>(e.whole);
    if (e.choice == Experts::kOutside && random() % 5 == 0) value = static_cast<double>(e.whole);
    index.values.push_back(value);
  }
  return index;
}

void add_experts(Checks& to, const Experts& e, DType type, DType index_type, bool is_gradient,
                 bool is_wide = false) {
  std::mt19937_64 random(kSeed);
  const auto given = [&](const TensorType& of) {
    return to.written.given(of, to_bytes(draw(of, random, -1, 1, 2)));
  };
  const Tensor index = choices(e, index_type, random);
  const Shape matrices = e.trans_b ? Shape{e.here, e.n, e.k} : Shape{e.here, e.k, e.n};
  const TensorType y{type, {e.rows, e.n}}, w{type, matrices};
  TensorType made_type = is_gradient ? w : y;
  if (is_wide) made_type.dtype = DType::kF32;
  std::vector<int32_t> inputs{given({type, {e.rows, e.k}}),
                              to.written.given(index.type, to_bytes(index)),
                              given(is_gradient ? y : w)};
  Attrs attrs{{"trans_b", int64_t{e.trans_b}}};
  if (is_gradient) attrs.set("groups", e.here);
  if (is_wide) attrs.set("to", "f32");
  if (e.here != e.whole) {
    attrs.set("whole", e.whole);
    inputs.push_back(to.written.given({DType::kI64, {}}, scalar(int64_t{1})));
  }
  const int32_t out = to.written.made(made_type);
  to.written.op(is_gradient ? "GroupedMatMulGrad" : "GroupedMatMul", attrs, inputs, {out});
  const Tensor expected = to_tensor(made_type, on_cpu(to.written)[0]);
  to.checks.emplace_back([=](const Results& all) {
    SCOPED_TRACE(fmt::format("{} {} rows, {} of {} matrices of {} x {}, trans_b={} (seed {})",
                             info(type).name, e.rows, e.here, e.whole, e.k, e.n, e.trans_b, kSeed));
    const Tensor made = to_tensor(made_type, all[static_cast<size_t>(out)]);
    const double terms = static_cast<double>(is_gradient ? e.rows : e.k);
    const double of_sums = terms * (type == DType::kF64 ? 1e-15 : 1e-6);
    for (size_t i = 0; i < made.values.size(); ++i) {
      const double a = made.values[i], b = expected.values[i];
      const double bound =
          of_sums +
          (is_half(made_type.dtype) ? std::abs(b) * (type == DType::kBF16 ? 0x1p-7 : 0x1p-10) : 0);
      ASSERT_TRUE(std::abs(a - b) <= bound || (std::isnan(a) && std::isnan(b)))
          << "element " << i << ": " << a << " is not " << b;
    }
  });
}

// Both 16-bit floats, by tensor cores, at the edges of their tiles and with operands that are
// aligned to all or to one of their elements; the first and the last matrix have no rows in some.
TEST(Experts, Of16BitsAgreeWithTheCpuAtTheEdgesOfTiles) {
  const Experts cases[] = {{129, 40, 136, 2, 2, 0, Experts::kSpread},
                           {70, 32, 130, 2, 2, 1, Experts::kOne},
                           {60, 130, 20, 3, 3, 0, Experts::kOne},
                           {65, 31, 15, 2, 4, 1, Experts::kOutside}};
  Checks all;
  for (const bool is_gradient : {false, true})
    for (const Experts& e : cases) add_experts(all, e, DType::kF16, DType::kI64, is_gradient);
  for (const Experts& e : cases) add_experts(all, e, DType::kBF16, DType::kI64, true, true);
  add_experts(all, {40, 0, 24, 2, 2, 0}, DType::kBF16, DType::kI64, false);
  add_experts(all, {0, 16, 24, 2, 2, 0}, DType::kBF16, DType::kI64, true);
  all.run();
  const auto made = [&](emulator::Order::Kind order) {
    return must(emulator::run_on_host(all.written.program, all.written.arguments, {order}));
  };
  const Results forward = made(emulator::Order::kForward),
                backward = made(emulator::Order::kBackward);
  for (size_t a = 0; a < forward.size(); ++a) EXPECT_TRUE(same(forward[a], backward[a])) << a;
}

TEST(Experts, AgreeWithTheCpu) {
  const Experts cases[] = {{200, 40, 72, 3, 3, 0, Experts::kSpread},
                           {200, 33, 70, 3, 3, 1, Experts::kSpread},
                           {130, 8, 65, 4, 4, 0, Experts::kOne},
                           {150, 10, 12, 2, 4, 1, Experts::kOutside},
                           {70, 66, 9, 40, 41, 0, Experts::kOutside}};
  const Experts empty[] = {{0, 5, 6, 3, 3, 0}, {7, 0, 6, 3, 3, 1}};
  Checks all;
  for (const bool is_gradient : {false, true}) {
    for (const Experts& e : cases) {
      add_experts(all, e, DType::kF32, DType::kI64, is_gradient);
      add_experts(all, e, DType::kBF16, DType::kI32, is_gradient);
    }
    for (const Experts& e : empty) add_experts(all, e, DType::kF32, DType::kI64, is_gradient);
    add_experts(all, cases[1], DType::kF64, DType::kI64, is_gradient);
  }
  all.run();
}

}  // namespace
}  // namespace piper::device_products_test
