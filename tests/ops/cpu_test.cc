// The CPU kernels that multiply, move and reduce, against naive references in double.
#include "piper/devices/cpu.h"

#include <numeric>

#include "cpu_harness.h"
#include "piper/devices/program.h"

namespace piper::test::cpu_ops_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kFloats[] = {DType::kF32, DType::kF64};
using List = std::vector<int64_t>;

// Calls f(index of each dim) for all elements of a shape in order.
template <class F>
void each_index(const Shape& shape, F f) {
  for (int64_t i = 0; i < num_elements(shape); ++i) {
    List index(shape.size());
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) index[d] = rest % shape[d];
    f(index);
  }
}
int64_t flat(const Shape& shape, const List& index) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}
Tensor numbered(DType dtype, const Shape& shape) {
  Tensor t{{dtype, shape}, std::vector<double>(num_elements(shape))};
  std::iota(t.v.begin(), t.v.end(), 1);
  if (dtype == DType::kBool) {
    for (double& v : t.v) v = int64_t(v) % 2;
  }
  return t;
}

// ---- MatMul --------------------------------------------------------------------------

struct MatMulCase {
  Shape a, b, out;
  bool trans_a, trans_b;
};
const MatMulCase kMatMuls[] = {
    {{3, 5}, {5, 7}, {3, 7}, false, false},
    {{5, 3}, {5, 7}, {3, 7}, true, false},
    {{3, 5}, {7, 5}, {3, 7}, false, true},
    {{5, 3}, {7, 5}, {3, 7}, true, true},
    {{1, 1}, {1, 1}, {1, 1}, false, false},
    {{2, 3, 64}, {64, 33}, {2, 3, 33}, false, false},
    {{2, 64, 3}, {64, 33}, {2, 3, 33}, true, false},
    {{2, 3, 64}, {33, 64}, {2, 3, 33}, false, true},
    {{2, 4, 9, 6}, {2, 4, 6, 5}, {2, 4, 9, 5}, false, false},
    {{2, 4, 9, 6}, {2, 4, 5, 6}, {2, 4, 9, 5}, false, true},
    {{2, 1, 9, 6}, {4, 6, 5}, {2, 4, 9, 5}, false, false},
    {{9, 6}, {2, 4, 6, 5}, {2, 4, 9, 5}, false, false},
    {{4, 6}, {6, 1}, {4, 1}, false, false},
    {{1, 200}, {200, 8}, {1, 8}, false, false},
    {{0, 4}, {4, 3}, {0, 3}, false, false},
    {{2, 0}, {0, 3}, {2, 3}, false, false},
};

std::vector<double> naive_matmul(const MatMulCase& c, const Tensor& a, const Tensor& b) {
  std::vector<double> out;
  const size_t ra = c.a.size(), rb = c.b.size(), r = c.out.size();
  const int64_t k = c.a[ra - (c.trans_a ? 2 : 1)];
  each_index(c.out, [&](const List& index) {
    List ia(index.end() - ra, index.end()),
        ib(index.end() - rb, index.end());  // of the first product
    for (size_t d = 0; d + 2 < ra; ++d) ia[d] = c.a[d] == 1 ? 0 : ia[d];
    for (size_t d = 0; d + 2 < rb; ++d) ib[d] = c.b[d] == 1 ? 0 : ib[d];
    ia[ra - (c.trans_a ? 1 : 2)] = index[r - 2];
    ia[ra - (c.trans_a ? 2 : 1)] = 0;
    ib[rb - (c.trans_b ? 2 : 1)] = index[r - 1];
    ib[rb - (c.trans_b ? 1 : 2)] = 0;
    const size_t step_a = c.trans_a ? static_cast<size_t>(c.a.back()) : 1;
    const size_t step_b = c.trans_b ? 1 : static_cast<size_t>(c.b.back());
    size_t at_a = flat(c.a, ia), at_b = flat(c.b, ib);
    double sum = 0;
    for (int64_t x = 0; x < k; ++x, at_a += step_a, at_b += step_b) sum += a[at_a] * b[at_b];
    out.push_back(sum);
  });
  return out;
}

TEST(MatMul, MatchesTheDefinition) {
  Random random(1);
  for (const MatMulCase& c : kMatMuls) {
    for (DType dtype : kFloats) {
      const Tensor a = random.uniform(dtype, c.a, -1, 1), b = random.uniform(dtype, c.b, -1, 1);
      Attrs attrs{{"trans_a", int64_t(c.trans_a)}, {"trans_b", int64_t(c.trans_b)}};
      std::vector<double> expected = naive_matmul(c, a, b);
      const double t = dtype == DType::kF32 ? 1e-5 : 1e-13;
      const std::string what = to_string(a.type) + to_string(b.type);
      expect_near(run1("MatMul", attrs, {a, b}, {dtype, c.out}), expected, t, t, what);
      const Tensor before = random.uniform(dtype, c.out, -1, 1);
      attrs.set("accumulate", int64_t{1});
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += before.v[i];
      expect_near(run1("MatMul", attrs, {a, b, before}, before.type), expected, t, t, what);
    }
  }
}

TEST(MatMul, AccumulatesInPlaceAndAtAnyAlignment) {
  Random random(2);
  const int64_t m = 65, n = 130, k = 300;
  const Tensor a = random.uniform(DType::kF32, {k, m}, -1, 1);
  const Tensor b = random.uniform(DType::kF32, {k, n}, -1, 1);
  FusedProgram program;
  program.values = {a.type, b.type, {DType::kF32, {m, n}}};
  program.num_args = 3;
  program.ops = {{"MatMul", {{"trans_a", int64_t{1}}, {"accumulate", int64_t{1}}}, {0, 1, 2}, {2}}};
  auto backend = make_cpu_backend();
  const int32_t loaded = *backend->load(program);
  std::vector<std::byte> first;
  for (int64_t shift : {0, 4, 20, 36}) {
    std::byte* args[3];
    const Bytes data[] = {pack(a), pack(b)};
    for (int i = 0; i < 3; ++i) {
      args[i] = *backend->allocate(program.values[i].bytes() + 64) + shift;
      if (i < 2) backend->copy(args[i], data[i].data, static_cast<int64_t>(data[i].size));
    }
    const int32_t bound = *backend->bind(loaded, args, nullptr);
    backend->launch(bound);
    backend->launch(bound);
    std::vector<std::byte> result(args[2], args[2] + m * n * 4);
    if (first.empty()) first = result;
    EXPECT_EQ(result, first) << "shifted by " << shift;
  }
  float sum = 0;
  for (int64_t x = 0; x < k; ++x) sum += float(a[x * m + 64] * b[x * n + 129]);
  float last;
  std::memcpy(&last, first.data() + (m * n - 1) * 4, 4);
  EXPECT_NEAR(last, 2 * sum, 1e-4);
}

// Cutting rows or columns changes no bit, nor does cutting k between its chains (of 128) and
// accumulating.
TEST(MatMul, HasTheSameBitsHoweverItIsCut) {
  Random random(3);
  const int64_t m = 50, n = 70, k = 600, cut_m = 13, cut_n = 33, cut_k = 256;
  auto part = [](const Tensor& t, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    Tensor out{{t.type.dtype, {r1 - r0, c1 - c0}}, {}};
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c) out.v.push_back(t[r * t.type.shape[1] + c]);
    }
    return out;
  };
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      const Tensor a = random.uniform(DType::kF32, trans_a ? Shape{k, m} : Shape{m, k}, -1, 1);
      const Tensor b = random.uniform(DType::kF32, trans_b ? Shape{n, k} : Shape{k, n}, -1, 1);
      Attrs attrs{{"trans_a", int64_t(trans_a)}, {"trans_b", int64_t(trans_b)}};
      const Tensor whole = run1("MatMul", attrs, {a, b}, {DType::kF32, {m, n}});
      auto a_part = [&](int64_t m0, int64_t m1, int64_t k0, int64_t k1) {
        return trans_a ? part(a, k0, k1, m0, m1) : part(a, m0, m1, k0, k1);
      };
      auto b_part = [&](int64_t k0, int64_t k1, int64_t n0, int64_t n1) {
        return trans_b ? part(b, n0, n1, k0, k1) : part(b, k0, k1, n0, n1);
      };
      const TensorType corner{DType::kF32, {m - cut_m, n - cut_n}};
      const Tensor first =
          run1("MatMul", attrs, {a_part(cut_m, m, 0, cut_k), b_part(0, cut_k, cut_n, n)}, corner);
      attrs.set("accumulate", int64_t{1});
      const Tensor second = run1(
          "MatMul", attrs, {a_part(cut_m, m, cut_k, k), b_part(cut_k, k, cut_n, n), first}, corner);
      EXPECT_EQ(second.v, part(whole, cut_m, m, cut_n, n).v) << trans_a << trans_b;
    }
  }
}

TEST(MatMul, PacksALeftOperandOfLongRows) {
  Random random(4);
  for (const auto& [m, n, k, trans_a] : {std::tuple{1111, 67, 270, true}, {371, 67, 1024, false}}) {
    const MatMulCase c{trans_a ? Shape{k, m} : Shape{m, k}, {k, n}, {m, n}, trans_a, false};
    const Tensor a = random.uniform(DType::kF32, c.a, -1, 1);
    const Tensor b = random.uniform(DType::kF32, c.b, -1, 1);
    expect_near(run1("MatMul", {{"trans_a", int64_t{trans_a}}}, {a, b}, {DType::kF32, {m, n}}),
                naive_matmul(c, a, b), 2e-5, 2e-5, "packed");
  }
}

TEST(MatMul, RefusesShapesThatDoNotFit) {
  const Tensor a = tensor(DType::kF32, {2, 3}, std::vector<double>(6));
  const Tensor b = tensor(DType::kF32, {2, 3}, std::vector<double>(6));
  EXPECT_EQ(refusal("MatMul", {}, {a, b}, {{DType::kF32, {2, 3}}}),
            "the inner extents 3 and 2 of f32[2,3], f32[2,3] differ");
  EXPECT_EQ(refusal("MatMul", {{"trans_b", int64_t{1}}}, {a, b}, {{DType::kF32, {2, 3}}}),
            "makes f32[2,2], not f32[2,3]");
}

// ---- Moving --------------------------------------------------------------------------

constexpr DType kAll[] = {DType::kF32, DType::kF64,  DType::kI64,
                          DType::kI32, DType::kBool, DType::kBF16};

TEST(Move, TransposesEveryWay) {
  const std::vector<std::pair<Shape, List>> cases = {
      {{3, 5}, {1, 0}},
      {{40, 50}, {1, 0}},
      {{2, 3, 4, 5}, {0, 2, 1, 3}},
      {{2, 3, 4, 5}, {0, 2, 3, 1}},
      {{2, 3, 4, 5}, {3, 2, 1, 0}},
      {{2, 3, 4, 5}, {0, 1, 3, 2}},
      {{2, 17, 33}, {0, 2, 1}},
      {{7}, {0}},
      {{}, {}},
      {{1, 4, 1, 3}, {2, 3, 0, 1}},
      {{2, 0, 3}, {2, 1, 0}},
  };
  for (DType dtype : kAll) {
    for (const auto& [from, perm] : cases) {
      const Tensor x = numbered(dtype, from);
      Shape to;
      for (int64_t p : perm) to.push_back(from[p]);
      std::vector<double> expected;
      each_index(to, [&, &perm = perm, &from = from](const List& index) {
        List source(from.size());
        for (size_t d = 0; d < perm.size(); ++d) source[perm[d]] = index[d];
        expected.push_back(x[flat(from, source)]);
      });
      EXPECT_EQ(run1("Transpose", {{"perm", perm}}, {x}, {dtype, to}).v, expected)
          << to_string(from) << to_string(perm);
    }
  }
}

TEST(Move, SlicesForwardsAndBackwards) {
  const Shape from{4, 7, 5};
  struct Case {
    List starts, ends, steps;
    Shape to;
    List first;
  };
  const Case cases[] = {
      {{1, 0, 2}, {3, 7, 5}, {1, 1, 1}, {2, 7, 3}, {1, 0, 2}},
      {{0, 6, 4}, {4, -1, 0}, {1, -2, -1}, {4, 4, 4}, {0, 6, 4}},
      {{3, 1, 0}, {0, 7, 5}, {-1, 3, 2}, {3, 2, 3}, {3, 1, 0}},
      {{3, 0, 0}, {4, 7, 5}, {1, 1, 1}, {1, 7, 5}, {3, 0, 0}},
      {{2, 0, 0}, {2, 7, 5}, {1, 1, 1}, {0, 7, 5}, {2, 0, 0}},
  };
  for (DType dtype : kAll) {
    const Tensor x = numbered(dtype, from);
    for (const Case& c : cases) {
      std::vector<double> expected;
      each_index(c.to, [&](const List& index) {
        List source(3);
        for (size_t d = 0; d < 3; ++d) source[d] = c.first[d] + index[d] * c.steps[d];
        expected.push_back(x[flat(from, source)]);
      });
      const Attrs attrs{{"starts", c.starts}, {"ends", c.ends}, {"steps", c.steps}};
      EXPECT_EQ(run1("Slice", attrs, {x}, {dtype, c.to}).v, expected) << to_string(c.starts);
    }
  }
  const Attrs beyond{{"starts", List{0, 0, 0}}, {"ends", List{9, 7, 5}}, {"steps", List{1, 1, 1}}};
  EXPECT_EQ(refusal("Slice", beyond, {numbered(DType::kF32, from)}, {{DType::kF32, {9, 7, 5}}}),
            "0:9:1 is not a range of dim 0 of f32[4,7,5]");
}

TEST(Move, ExpandsReshapesConcatenates) {
  for (DType dtype : kAll) {
    const Tensor x = numbered(dtype, {2, 1, 3});
    std::vector<double> expected;
    each_index({4, 2, 5, 3}, [&](const List& i) { expected.push_back(x[i[1] * 3 + i[3]]); });
    EXPECT_EQ(run1("Expand", {{"shape", Shape{4, 2, 5, 3}}}, {x}, {dtype, {4, 2, 5, 3}}).v,
              expected);
    EXPECT_EQ(run1("Reshape", {{"shape", Shape{3, 2}}}, {x}, {dtype, {3, 2}}).v, x.v);
    const Tensor y = numbered(dtype, {2, 2, 3});
    expected.clear();
    each_index({2, 4, 3}, [&](const List& i) {
      const bool middle = i[1] == 1 || i[1] == 2;
      expected.push_back(middle ? y[i[0] * 6 + (i[1] - 1) * 3 + i[2]] : x[i[0] * 3 + i[2]]);
    });
    EXPECT_EQ(run1("Concat", {{"axis", int64_t{1}}}, {x, y, x}, {dtype, {2, 4, 3}}).v, expected);
  }
}

TEST(Move, PadsFillsTriangles) {
  const auto filled = [](double value, DType dtype, int64_t count) {
    return Attrs{{"value", value}, {"dtype", info(dtype).name}, {"shape", Shape{count}}};
  };
  for (DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kI32}) {
    const Shape from{2, 3}, to{4, 4};
    const Tensor x = numbered(dtype, from);
    // One row above and below; two columns left, and one cut off on the right.
    const Attrs attrs{{"before", List{1, 2}}, {"after", List{1, -1}}, {"value", 9.0}};
    EXPECT_EQ(run1("Pad", attrs, {x}, {dtype, to}).v,
              (std::vector<double>{9, 9, 9, 9, 9, 9, 1, 2, 9, 9, 4, 5, 9, 9, 9, 9}));
    EXPECT_EQ(run1("Fill", filled(3, dtype, 5), {}, {dtype, {5}}).v, std::vector<double>(5, 3));
    const Tensor square = numbered(dtype, {2, 4, 5});
    for (int64_t upper : {0, 1}) {
      for (int64_t k : {-7, -3, -1, 0, 1, 2, 9}) {
        std::vector<double> expected;
        each_index({2, 4, 5}, [&](const List& i) {
          const bool keep = upper ? i[2] >= i[1] + k : i[2] <= i[1] + k;
          expected.push_back(keep ? square[flat({2, 4, 5}, i)] : 0);
        });
        const Attrs part{{"upper", upper}, {"k", k}};
        EXPECT_EQ(run1("Trilu", part, {square}, square.type).v, expected) << upper << k;
      }
    }
  }
  EXPECT_EQ(run1("Fill", filled(1, DType::kBF16, 2), {}, {DType::kBF16, {2}}).v,
            (std::vector<double>{0x3f80, 0x3f80}));
}

TEST(Gather, TakesRowsAndAddsThemBackInIndexOrder) {
  for (DType dtype : kFloats) {
    const Tensor data = numbered(dtype, {2, 4, 3});
    const Tensor at = tensor(DType::kI64, {2, 3}, {3, 0, -1, 1, 3, 3});
    std::vector<double> expected;
    each_index({2, 2, 3, 3}, [&](const List& i) {
      const int64_t row = int64_t(at[i[1] * 3 + i[2]] + 4) % 4;
      expected.push_back(data[i[0] * 12 + row * 3 + i[3]]);
    });
    const TensorType out{dtype, {2, 2, 3, 3}};
    EXPECT_EQ(run1("Gather", {{"axis", int64_t{1}}}, {data, at}, out).v, expected);
    const Tensor dy = numbered(dtype, out.shape);
    std::vector<double> grad(24, 0);
    each_index(out.shape, [&](const List& i) {
      const int64_t row = int64_t(at[i[1] * 3 + i[2]] + 4) % 4;
      grad[i[0] * 12 + row * 3 + i[3]] += dy[flat(out.shape, i)];
    });
    const Attrs attrs{{"axis", int64_t{1}}, {"size", int64_t{4}}};
    EXPECT_EQ(run1("GatherGrad", attrs, {dy, at}, data.type).v, grad);
  }
}

TEST(Gather, IndicesOutsideTouchNoMemory) {
  const Tensor data = numbered(DType::kF32, {3, 2});
  const Tensor at = tensor(DType::kI64, {4}, {1, 3, -4, 1e15});
  expect_near(run1("Gather", {{"axis", int64_t{0}}}, {data, at}, {DType::kF32, {4, 2}}),
              {3, 4, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN}, 0, 0, "Gather");
  const Tensor dy = numbered(DType::kF32, {4, 2});
  EXPECT_EQ(run1("GatherGrad", {{"axis", int64_t{0}}, {"size", int64_t{3}}}, {dy, at}, data.type).v,
            (std::vector<double>{0, 0, 1, 2, 0, 0}));
}

// Experts without tokens, with all of them, and with more than are multiplied at once; tiles that
// end inside of a matrix; indices of no matrix; parts of the matrices.
TEST(Grouped, EachRowMeetsItsMatrix) {
  Random random(16);
  const int64_t rows = 300, k = 37, n = 270, groups = 5;
  for (const int kind : {0, 1, 2})
    for (const bool trans : {false, true}) {
      const Tensor x = random.uniform(DType::kF64, {rows, k}, -1, 1),
                   dy = random.uniform(DType::kF64, {rows, n}, -1, 1),
                   w = random.uniform(DType::kF64,
                                      trans ? Shape{groups, n, k} : Shape{groups, k, n}, -1, 1);
      std::vector<double> index;
      for (int64_t r = 0; r < rows; ++r)
        index.push_back(static_cast<double>(kind == 0 ? 3 : kind == 1 ? r * r % 4 : r % 7 - 1));
      const Tensor at = tensor(DType::kI64, {rows}, index), first = tensor(DType::kI64, {}, {1});
      const auto weight = [&](int64_t g, int64_t c, int64_t j) -> size_t {
        return static_cast<size_t>(trans ? (g * n + j) * k + c : (g * k + c) * n + j);
      };
      for (const bool part : {false, true}) {  // matrices 1 to 5 of 7
        std::vector<double> y(static_cast<size_t>(rows * n)), dw(w.v.size());
        for (int64_t r = 0; r < rows; ++r) {
          int64_t g = static_cast<int64_t>(index[static_cast<size_t>(r)]);
          const int64_t whole = part ? 7 : groups, wrapped = g < 0 ? g + whole : g;
          g = wrapped - (part ? 1 : 0);
          const bool here = wrapped < whole && g >= 0 && g < groups;
          for (int64_t j = 0; j < n; ++j) {
            double& sum = y[static_cast<size_t>(r * n + j)];
            sum = wrapped < whole ? 0 : kNaN;
            for (int64_t c = 0; c < k && here; ++c) {
              const auto xs = static_cast<size_t>(r * k + c), ys = static_cast<size_t>(r * n + j);
              sum += x.v[xs] * w.v[weight(g, c, j)];
              dw[weight(g, c, j)] += x.v[xs] * dy.v[ys];
            }
          }
        }
        Attrs attrs{{"trans_b", int64_t{trans}}};
        std::vector<Tensor> forward{x, at, w}, backward{x, at, dy};
        if (part) attrs.set("whole", int64_t{7});
        if (part) forward.push_back(first), backward.push_back(first);
        const std::string what = fmt::format("kind {} trans {} part {}", kind, trans, part);
        expect_near(run1("GroupedMatMul", attrs, forward, dy.type), y, 1e-12, 1e-12, what);
        attrs.set("groups", groups);
        expect_near(run1("GroupedMatMulGrad", attrs, backward, w.type), dw, 1e-12, 1e-12, what);
      }
    }
}

TEST(Gather, OfTuples) {
  const Tensor data = numbered(DType::kI64, {2, 3, 4});
  const Tensor at = tensor(DType::kI64, {2, 2}, {1, 2, 0, -1});
  EXPECT_EQ(run1("GatherND", {}, {data, at}, {DType::kI64, {2, 4}}).v,
            (std::vector<double>{21, 22, 23, 24, 9, 10, 11, 12}));
  const Tensor per_batch = tensor(DType::kI64, {2, 1}, {2, 0});
  EXPECT_EQ(
      run1("GatherND", {{"batch_dims", int64_t{1}}}, {data, per_batch}, {DType::kI64, {2, 4}}).v,
      (std::vector<double>{9, 10, 11, 12, 13, 14, 15, 16}));
}

// ---- Reductions ----------------------------------------------------------------------

TEST(Reduce, OverAnyAxes) {
  Random random(6);
  const std::vector<std::pair<Shape, List>> cases = {
      {{1000}, {0}},          {{37, 129}, {0}},
      {{37, 129}, {1}},       {{37, 129}, {0, 1}},
      {{3, 4, 5, 6}, {1, 2}}, {{3, 4, 5, 6}, {0, 2}},
      {{3, 4, 5, 6}, {1, 3}}, {{3, 4, 5, 6}, {0, 1, 3}},
      {{2, 1, 3}, {1}},       {{1}, {0}},
      {{5, 1}, {0, 1}},       {{70, 3}, {0}},
  };
  for (const auto& [shape, axes] : cases) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kI64, DType::kI32}) {
      const Tensor x = random.uniform(dtype, shape, -9, 9);
      Shape to = shape;
      for (int64_t a : axes) to[a] = 1;
      const int64_t count = num_elements(to);
      std::vector<double> sum(count, 0), most(count, -kInf), least(count, kInf);
      for (int64_t i = 0; i < num_elements(shape); ++i) {
        const int64_t o = source_index(to, shape, i);
        sum[o] += x[i];
        most[o] = std::max(most[o], x[i]);
        least[o] = std::min(least[o], x[i]);
      }
      const Attrs attrs{{"axes", axes}, {"keepdims", int64_t{1}}};
      const double t = dtype == DType::kF32 ? 1e-4 : 1e-11;
      const std::string what = to_string(x.type) + to_string(axes);
      expect_near(run1("ReduceSum", attrs, {x}, {dtype, to}), sum, 0, t, what);
      expect_near(run1("ReduceMax", attrs, {x}, {dtype, to}), most, 0, 0, what);
      expect_near(run1("ReduceMin", attrs, {x}, {dtype, to}), least, 0, 0, what);
    }
  }
}

TEST(Reduce, KeepsNaNAndKnowsEmptySums) {
  const Tensor x = tensor(DType::kF32, {2, 2}, {1, kNaN, -kInf, 3});
  const Attrs rows{{"axes", List{1}}}, columns{{"axes", List{0}}};
  expect_near(run1("ReduceMax", rows, {x}, {DType::kF32, {2}}), {kNaN, 3}, 0, 0, "rows");
  expect_near(run1("ReduceMin", columns, {x}, {DType::kF32, {2}}), {-kInf, kNaN}, 0, 0, "columns");
  EXPECT_EQ(run1("ReduceSum", columns, {tensor(DType::kF32, {0, 2}, {})}, {DType::kF32, {2}}).v,
            (std::vector<double>{0, 0}));
}

// Blocks of 32 rows, of which every other row after the first has a sum of its own.
TEST(Reduce, SumsRowsInBlocks) {
  Random random(9);
  for (int64_t rows : {1, 3, 4, 7, 32, 33, 128}) {
    const Tensor x = random.uniform(DType::kF32, {rows, 37}, -1, 1);
    std::vector<double> expected(37);
    for (int64_t j = 0; j < 37; ++j) {
      float sum = 0;
      for (int64_t r = 0; r < rows; r += 32) {
        float odd = float(x[r * 37 + j]), even = 0;
        for (int64_t i = 1; i < std::min<int64_t>(32, rows - r); ++i)
          (i % 2 == 1 ? odd : even) += float(x[(r + i) * 37 + j]);
        sum += odd + even;
      }
      expected[j] = sum;
    }
    EXPECT_EQ(run1("ReduceSum", {{"axes", List{0}}}, {x}, {DType::kF32, {37}}).v, expected);
  }
}

TEST(CumSum, RunsBothWays) {
  const Tensor x = tensor(DType::kI64, {2, 3}, {1, 2, 3, 4, 5, 6});
  auto cumsum = [&](int64_t axis, int64_t exclusive, int64_t reverse) {
    const Attrs attrs{{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}};
    return run1("CumSum", attrs, {x}, x.type).v;
  };
  EXPECT_EQ(cumsum(1, 0, 0), (std::vector<double>{1, 3, 6, 4, 9, 15}));
  EXPECT_EQ(cumsum(1, 1, 0), (std::vector<double>{0, 1, 3, 0, 4, 9}));
  EXPECT_EQ(cumsum(1, 0, 1), (std::vector<double>{6, 5, 3, 15, 11, 6}));
  EXPECT_EQ(cumsum(0, 1, 1), (std::vector<double>{4, 5, 6, 0, 0, 0}));
}

TEST(CumSum, OfAsManyTermsAsFloatsCannotCount) {
  constexpr int64_t kTerms = 1 << 18;
  const Tensor x{{DType::kF32, {kTerms}}, std::vector<double>(kTerms, 0.1f)};
  const std::vector<double> sums = run1("CumSum", {{"axis", int64_t{0}}}, {x}, x.type).v;
  for (int64_t i = 0; i < kTerms; i += 1021)
    EXPECT_EQ(sums[static_cast<size_t>(i)], static_cast<float>(double{0.1f} * double(i + 1))) << i;
}

}  // namespace
}  // namespace piper::test::cpu_ops_test
