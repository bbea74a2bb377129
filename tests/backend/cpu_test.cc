// The CPU kernels of training: normalisation, loss, optimizers; and that a launch allocates
// nothing.
#include "piper/devices/cpu.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "cpu_harness.h"
#include "piper/devices/program.h"

namespace {
std::atomic<int64_t> news{0};  // calls of operator new in this process
}
__attribute__((noinline)) void* operator new(size_t size) {
  ++news;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace piper::test::cpu_backend_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kFloats[] = {DType::kF32, DType::kF64};
using List = std::vector<int64_t>;

// ---- Softmax, layer norm, loss -------------------------------------------------------

TEST(Softmax, AndItsRelativesAlongAnyAxis) {
  Random random(12);
  const Shape shape{3, 37, 5};
  for (DType dtype : kFloats) {
    for (int64_t axis : {0, 1, 2}) {
      const Tensor x = random.uniform(dtype, shape, -9, 9),
                   dy = random.uniform(dtype, shape, -1, 1);
      Shape kept = shape;
      kept[axis] = 1;
      const int64_t lines = num_elements(kept), count = num_elements(shape);
      std::vector<double> sum(lines, 0), dot(lines, 0), total(lines, 0);
      std::vector<double> y(count), log_y(count), dx(count), log_dx(count);
      auto line = [&](int64_t i) { return source_index(kept, shape, i); };
      for (int64_t i = 0; i < count; ++i) sum[line(i)] += std::exp(x[i]);
      for (int64_t i = 0; i < count; ++i) {
        y[i] = std::exp(x[i]) / sum[line(i)];
        log_y[i] = x[i] - std::log(sum[line(i)]);
        dot[line(i)] += y[i] * dy[i];
        total[line(i)] += dy[i];
      }
      for (int64_t i = 0; i < count; ++i) {
        dx[i] = y[i] * (dy[i] - dot[line(i)]);
        log_dx[i] = dy[i] - y[i] * total[line(i)];
      }
      const Attrs attrs{{"axis", axis}};
      const double t = dtype == DType::kF32 ? 3e-6 : 1e-13;
      const Tensor softmax = run1("Softmax", attrs, {x}, x.type);
      const Tensor log_softmax = run1("LogSoftmax", attrs, {x}, x.type);
      expect_near(softmax, y, t, t, "Softmax");
      expect_near(log_softmax, log_y, t, t, "LogSoftmax");
      expect_near(run1("SoftmaxGrad", attrs, {softmax, dy}, x.type), dx, t, t, "SoftmaxGrad");
      expect_near(run1("LogSoftmaxGrad", attrs, {log_softmax, dy}, x.type), log_dx, t, t, "grad");
    }
  }
}

TEST(Softmax, TakesMasksAndSpoiledRows) {
  const Tensor x =
      tensor(DType::kF32, {4, 3}, {-kInf, 2, 2, -kInf, -kInf, -kInf, 1, kNaN, 3, 1e4, 0, -1e4});
  expect_near(run1("Softmax", {{"axis", int64_t{1}}}, {x}, x.type),
              {0, 0.5, 0.5, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, 1, 0, 0}, 1e-7, 0, "Softmax");
}

TEST(LayerNorm, AndItsGradientsFollowTheDefinition) {
  Random random(14);
  for (DType dtype : kFloats) {
    for (const auto& [shape, axis] : std::vector<std::pair<Shape, int64_t>>{
             {{6, 128}, 1}, {{2, 5, 19}, 2}, {{3, 4, 5}, 1}, {{1, 1}, 1}}) {
      const Shape params(shape.begin() + axis, shape.end());
      Shape stats = shape;
      std::fill(stats.begin() + axis, stats.end(), 1);
      const int64_t n = num_elements(params), rows = num_elements(stats);
      const Tensor x = random.uniform(dtype, shape, 1, 5), dy = random.uniform(dtype, shape, -1, 1);
      const Tensor scale = random.uniform(dtype, params, 0.5, 2),
                   bias = random.uniform(dtype, params, -1, 1);
      std::vector<double> y, mean, rstd, dx, dscale(n, 0), dbias(n, 0);
      for (int64_t r = 0; r < rows; ++r) {
        double m = 0, var = 0, g_mean = 0, g_dot = 0;
        for (int64_t i = 0; i < n; ++i) m += x[r * n + i] / n;
        for (int64_t i = 0; i < n; ++i) var += (x[r * n + i] - m) * (x[r * n + i] - m) / n;
        const double s = 1 / std::sqrt(var + 1e-3);
        auto normal = [&](int64_t i) { return (x[r * n + i] - m) * s; };
        for (int64_t i = 0; i < n; ++i) {
          y.push_back(normal(i) * scale[i] + bias[i]);
          g_mean += dy[r * n + i] * scale[i] / n;
          g_dot += dy[r * n + i] * scale[i] * normal(i) / n;
          dscale[i] += dy[r * n + i] * normal(i);
          dbias[i] += dy[r * n + i];
        }
        for (int64_t i = 0; i < n; ++i) {
          dx.push_back(s * (dy[r * n + i] * scale[i] - g_mean - normal(i) * g_dot));
        }
        mean.push_back(m);
        rstd.push_back(s);
      }
      const Attrs attrs{{"axis", axis}, {"epsilon", 1e-3}};
      const double t = dtype == DType::kF32 ? 1e-5 : 1e-12;
      const TensorType stat{dtype, stats};
      const auto out = run("LayerNorm", attrs, {x, scale, bias}, {x.type, stat, stat});
      expect_near(out[0], y, t, t, "y");
      expect_near(out[1], mean, t, t, "mean");
      expect_near(out[2], rstd, t, t, "rstd");
      const Attrs at{{"axis", axis}};
      expect_near(run1("LayerNormGradX", at, {dy, x, scale, out[1], out[2]}, x.type), dx, t, t,
                  "dx");
      const auto grads =
          run("LayerNormGradParams", at, {dy, x, out[1], out[2]}, {scale.type, scale.type});
      expect_near(grads[0], dscale, t, t, "dscale");
      expect_near(grads[1], dbias, t, t, "dbias");
      for (int64_t i = 0; i < rows * n; ++i) y[i] -= bias[i % n];
      expect_near(run("LayerNorm", attrs, {x, scale}, {x.type, stat, stat})[0], y, t, t, "no bias");
    }
  }
}

TEST(CrossEntropy, SumsOverLabelsThatCount) {
  Random random(15);
  for (DType dtype : kFloats) {
    const int64_t rows = 9, classes = 21;
    const Tensor logits = random.uniform(dtype, {3, 3, classes}, -5, 5);
    Tensor labels = random.uniform(DType::kI64, {3, 3}, 0, classes);
    labels[2] = labels[7] = -100;
    double sum = 0;
    std::vector<double> shares, grad;
    for (int64_t r = 0; r < rows; ++r) {
      double total = 0, top = -kInf;
      for (int64_t c = 0; c < classes; ++c) {
        total += std::exp(logits[r * classes + c]);
        top = std::max(top, logits[r * classes + c]);
      }
      const double lse = std::log(total);
      shares.push_back(std::exp(top - lse));
      const bool counts = labels[r] != -100;
      if (counts) sum += lse - logits[r * classes + int64_t(labels[r])];
      for (int64_t c = 0; c < classes; ++c) {
        grad.push_back(counts ? 0.25 * (std::exp(logits[r * classes + c] - lse) - (c == labels[r]))
                              : 0);
      }
    }
    const Attrs attrs{{"ignore_index", int64_t{-100}}};
    const double t = dtype == DType::kF32 ? 2e-6 : 1e-13;
    const auto out =
        run("CrossEntropySum", attrs, {logits, labels}, {{dtype, {}}, {dtype, {3, 3}}});
    expect_near(out[0], {sum}, t, 0, "sum");
    expect_near(out[1], shares, t, t, "share");
    expect_near(
        run1("CrossEntropyGrad", attrs, {logits, labels, out[1], scalar(dtype, 0.25)}, logits.type),
        grad, t, t, "grad");
    EXPECT_EQ(run1("LabelCount", attrs, {labels}, {DType::kF32, {}})[0], 7);
    labels[4] = classes;
    EXPECT_TRUE(std::isnan(
        run("CrossEntropySum", attrs, {logits, labels}, {{dtype, {}}, {dtype, {3, 3}}})[0][0]));
  }
}

// The logarithm of a sum over many classes is a number whose last bit is a larger part of the
// probabilities than they have a right to lose.
TEST(CrossEntropy, ProbabilitiesOfManyClassesAreGood) {
  Random random(17);
  const int64_t rows = 16, classes = 256;
  const Tensor logits = random.uniform(DType::kF32, {rows, classes}, -0.5, 0.5);
  const Tensor labels = random.uniform(DType::kI64, {rows}, 0, classes);
  const auto out =
      run("CrossEntropySum", {}, {logits, labels}, {{DType::kF32, {}}, {DType::kF32, {rows}}});
  const Tensor grad =
      run1("CrossEntropyGrad", {}, {logits, labels, out[1], scalar(DType::kF32, 1)}, logits.type);
  for (int64_t r = 0; r < rows; ++r) {
    double total = 0;
    for (int64_t c = 0; c < classes; ++c) total += std::exp(logits[r * classes + c]);
    for (int64_t c = 0; c < classes; ++c) {
      if (c == labels[r]) continue;
      const double want = std::exp(logits[r * classes + c]) / total;
      ASSERT_NEAR(grad[r * classes + c] / want, 1, 4e-7) << r << ", " << c;
    }
  }
}

// ---- The update ----------------------------------------------------------------------

TEST(Update, NormClipAndLearningRate) {
  Random random(16);
  const Tensor g = random.uniform(DType::kF32, {1001}, -3, 3);
  double sum = 0;
  for (double v : g.v) sum += v * v;
  const TensorType real{DType::kF64, {}};
  expect_near(run1("SumSquares", {}, {g}, real), {sum}, 1e-14, 0, "SumSquares");
  EXPECT_EQ(run1("GlobalNorm", {}, {scalar(DType::kF64, 9), scalar(DType::kF64, 16)}, real)[0], 5);
  auto clip = [&](double norm) {
    return run1("ClipFactor", {{"max_norm", 1.0}}, {scalar(DType::kF64, norm)}, real)[0];
  };
  EXPECT_EQ(clip(0.5), 1);
  EXPECT_EQ(clip(4), 1 / (4 + 1e-6));
  EXPECT_TRUE(std::isnan(clip(kNaN)));
  const Attrs attrs{{"base", 0.5},
                    {"rate",
                     "lr step 10 < step 1 + 10 / step 30 < 3.141592653589793 step 10 - 20 / * cos 1 + 0.9 * 2 / "
                     "0.1 + 0.1 ? ? *"}};
  auto rate = [&](double step) {
    return run1("LearningRate", attrs, {scalar(DType::kI64, step)}, real)[0];
  };
  EXPECT_DOUBLE_EQ(rate(0), 0.05);
  EXPECT_DOUBLE_EQ(rate(9), 0.5);
  EXPECT_DOUBLE_EQ(rate(10), 0.5);
  EXPECT_DOUBLE_EQ(rate(20), 0.5 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(rate(30), 0.05);
  EXPECT_DOUBLE_EQ(rate(1000), 0.05);
  EXPECT_EQ(run1("NextStep", {}, {scalar(DType::kI64, 41)}, {DType::kI64, {}})[0], 42);
}

TEST(Update, SgdAsPyTorchDefinesIt) {
  Random random(17);
  for (DType dtype : kFloats) {
    const Shape shape{35};
    const TensorType type{dtype, shape};
    const Tensor lr = scalar(DType::kF64, 0.1), clip = scalar(DType::kF64, 0.5);
    for (const bool nesterov : {false, true}) {
      Tensor p = random.uniform(dtype, shape, -1, 1), buffer{type, std::vector<double>(35, 0)};
      std::vector<double> q = p.v, m(35, 0);
      const Attrs attrs{{"momentum", 0.9},
                        {"dampening", nesterov ? 0.0 : 0.25},
                        {"nesterov", int64_t(nesterov)},
                        {"weight_decay", 0.01}};
      for (int step = 0; step < 3; ++step) {
        const Tensor g = random.uniform(dtype, shape, -1, 1);
        const auto out =
            run("Sgd", attrs, {p, g, buffer, lr, clip, scalar(DType::kI64, step)}, {type, type});
        for (int64_t i = 0; i < 35; ++i) {
          const double grad = 0.5 * g[i] + 0.01 * q[i];
          m[i] = step == 0 ? grad : 0.9 * m[i] + (nesterov ? 1 : 0.75) * grad;
          q[i] -= 0.1 * (nesterov ? grad + 0.9 * m[i] : m[i]);
        }
        p = out[0];
        buffer = out[1];
        expect_near(p, q, tolerance(dtype), tolerance(dtype), "p");
        expect_near(buffer, m, tolerance(dtype), tolerance(dtype), "buffer");
      }
    }
    const Tensor p = random.uniform(dtype, shape, -1, 1), g = random.uniform(dtype, shape, -1, 1);
    std::vector<double> q;
    for (int64_t i = 0; i < 35; ++i) q.push_back(p[i] - 0.1 * g[i]);
    const auto plain =
        run("Sgd", {}, {p, g, absent(), lr, absent(), scalar(DType::kI64, 0)}, {type});
    expect_near(plain[0], q, tolerance(dtype), tolerance(dtype), "plain");
  }
}

TEST(Update, AdamAsPyTorchDefinesIt) {
  Random random(18);
  for (DType dtype : kFloats) {
    for (const bool decoupled : {false, true}) {
      const Shape shape{67};
      const TensorType type{dtype, shape};
      Tensor p = random.uniform(dtype, shape, -1, 1);
      Tensor m{type, std::vector<double>(67, 0)}, v = m;
      std::vector<double> q = p.v, first(67, 0), second(67, 0);
      const Attrs attrs{{"beta1", 0.9},
                        {"beta2", 0.99},
                        {"eps", 1e-6},
                        {"weight_decay", 0.1},
                        {"decoupled", int64_t(decoupled)}};
      for (int step = 0; step < 4; ++step) {
        const Tensor g = random.uniform(dtype, shape, -1, 1);
        const auto out = run("AdamW", attrs,
                             {p, g, m, v, scalar(DType::kF64, 0.01), scalar(DType::kF64, 0.5),
                              scalar(DType::kI64, step)},
                             {type, type, type});
        const double b1 = 1 - std::pow(0.9, step + 1), b2 = 1 - std::pow(0.99, step + 1);
        for (int64_t i = 0; i < 67; ++i) {
          double grad = 0.5 * g[i];
          if (!decoupled) grad += 0.1 * q[i];
          if (decoupled) q[i] *= 1 - 0.01 * 0.1;
          first[i] = 0.9 * first[i] + 0.1 * grad;
          second[i] = 0.99 * second[i] + 0.01 * grad * grad;
          q[i] -= 0.01 / b1 * first[i] / (std::sqrt(second[i]) / std::sqrt(b2) + 1e-6);
        }
        p = out[0], m = out[1], v = out[2];
        expect_near(p, q, tolerance(dtype), tolerance(dtype), "p");
        expect_near(m, first, tolerance(dtype), tolerance(dtype), "m");
        expect_near(v, second, tolerance(dtype), tolerance(dtype), "v");
      }
    }
  }
}

// ---- All -----------------------------------------------------------------------------

TEST(Launch, AllocatesNothing) {
  const TensorType x{DType::kF32, {8, 64, 32}}, w{DType::kF32, {32, 32}}, n{DType::kF32, {32}};
  const TensorType s{DType::kF32, {8, 64, 1}}, t{DType::kF32, {8, 32, 64}};
  FusedProgram p;
  p.values = {x, w, n, x, s, s, x, t, x, n, x};
  p.num_args = static_cast<int32_t>(p.values.size());
  p.ops = {{"LayerNorm", {{"axis", int64_t{2}}}, {0, 2, 2}, {3, 4, 5}},
           {"MatMul", {}, {3, 1}, {6}},
           {"Transpose", {{"perm", List{0, 2, 1}}}, {6}, {7}},
           {"Softmax", {{"axis", int64_t{1}}}, {6}, {8}},
           {"ReduceSum", {{"axes", List{0, 1}}}, {8}, {9}},
           {"Fused", {{"expr", std::string("0 1 Add Tanh")}}, {8, 9}, {10}},
           {"Add", {}, {10, 2}, {10}}};
  auto backend = make_cpu_backend();
  std::vector<std::byte*> args;
  for (const TensorType& type : p.values) args.push_back(*backend->allocate(type.bytes()));
  auto loaded = backend->load(p);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const int32_t bound = *backend->bind(*loaded, args, nullptr);
  backend->launch(bound);
  const int64_t before = news;
  backend->launch(bound);
  EXPECT_EQ(news, before);
}

// ---- Threads -------------------------------------------------------------------------

using Bits = std::vector<std::vector<std::byte>>;  // of all arguments after a run

Bits run_threads(const FusedProgram& p, const std::vector<Bytes>& data, int threads) {
  auto backend = make_cpu_backend(CpuOptions{threads, {}});
  std::vector<std::byte*> args;
  for (size_t a = 0; a < data.size(); ++a) {
    args.push_back(*backend->allocate(p.values[a].bytes()));
    std::memcpy(args.back(), data[a].data, data[a].size);
  }
  const auto loaded = backend->load(p);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  const int32_t bound = *backend->bind(*loaded, args, nullptr);
  for (int i = 0; i < 3; ++i) backend->launch(bound);
  Bits bits;
  for (size_t a = 0; a < data.size(); ++a)
    bits.emplace_back(args[a], args[a] + p.values[a].bytes());
  return bits;
}

// Enough of everything for four threads, in sizes that no number of threads divides.
TEST(Threads, GiveTheSameBitsInAnyNumber) {
  Random random(31);
  FusedProgram p;
  std::vector<Bytes> data;
  const auto value = [&](Shape shape) {
    const Tensor t = random.uniform(DType::kF32, std::move(shape), -1, 1);
    p.values.push_back(t.type);
    data.push_back(pack(t));
    return static_cast<int32_t>(p.values.size()) - 1;
  };
  const auto scalar_value = [&](DType type, double v) {
    const Tensor t = scalar(type, v);
    p.values.push_back(t.type);
    data.push_back(pack(t));
    return static_cast<int32_t>(p.values.size()) - 1;
  };
  const int64_t m = 403, k = 211, n = 190;
  const Attrs ta{{"trans_a", int64_t{1}}}, tb{{"trans_b", int64_t{1}}};
  Attrs add = ta;
  add.set("accumulate", int64_t{1});
  const int32_t a = value({m, k}), b = value({k, n}), at = value({k, m}), bt = value({n, k});
  const int32_t wide = value({k, 1111}), batched = value({3, m, k}), batched_b = value({3, k, n});
  const int32_t x = value({m, n}), bias = value({n}), rows = value({m, 1}), old = value({m, n});
  const auto out = [&](Shape shape) { return value(std::move(shape)); };
  const auto op = [&](const char* name, Attrs attrs, std::vector<int32_t> in,
                      std::vector<int32_t> outs) {
    p.ops.push_back({name, std::move(attrs), std::move(in), std::move(outs)});
  };
  op("MatMul", {}, {a, b}, {out({m, n})});
  op("MatMul", tb, {a, bt}, {out({m, n})});
  op("MatMul", ta, {at, b}, {out({m, n})});
  op("MatMul", add, {at, b, old}, {out({m, n})});
  op("MatMul", add, {at, b, old}, {old});
  op("MatMul", {}, {a, wide}, {out({m, 1111})});
  op("MatMul", {}, {batched, batched_b}, {out({3, m, n})});
  op("MatMul", {{"then", std::string("Add Mul")}}, {a, b, bias, old}, {out({m, n})});
  op("MatMul", {{"then", std::string("Add")}}, {a, wide, value({1111})}, {out({m, 1111})});
  op("Add", {}, {x, bias}, {out({m, n})});
  op("Fused", {{"expr", std::string("0 1 Add =0 2 Mul Tanh @0 Exp")}}, {x, bias, rows},
     {out({m, n}), out({m, n})});
  op("Softmax", {{"axis", int64_t{1}}}, {x}, {out({m, n})});
  const int32_t mean = out({m, 1}), rstd = out({m, 1});
  op("LayerNorm", {{"axis", int64_t{1}}}, {x, bias, bias}, {out({m, n}), mean, rstd});
  op("LayerNormGradX", {{"axis", int64_t{1}}}, {x, old, bias, mean, rstd}, {out({m, n})});
  op("LayerNormGradX", {{"axis", int64_t{1}}, {"then", std::string("Add")}},
     {x, old, bias, mean, rstd, x}, {out({m, n})});
  op("RmsNorm", {{"axis", int64_t{1}}}, {x, bias}, {out({m, n}), rstd});
  op("RmsNormGradX", {{"axis", int64_t{1}}, {"then", std::string("Mul")}},
     {x, old, bias, rstd, old}, {out({m, n})});
  const int32_t lr = scalar_value(DType::kF64, 0.1), step = scalar_value(DType::kI64, 3);
  const int32_t w = value({40000}), g = value({40000}), m1 = value({40000});
  const int32_t m2 = out({40000});
  std::memset(const_cast<std::byte*>(data.back().data), 0,
              data.back().size);  // no root of it is NaN
  op("AdamW", {}, {w, g, m1, m2, lr, -1, step}, {w, m1, m2});
  const Shape heads{3, 70, 5, 16};
  const int32_t q = value(heads), key = value(heads), v = value(heads), dy = value(heads);
  const int32_t y = out(heads), lse = out({3, 5, 70});
  const Attrs attention{
      {"causal", int64_t{1}}, {"scale", 0.25}, {"tokens_first", List{1, 1, 1, 1}}};
  op("Attention", attention, {q, key, v}, {y, lse});
  op("AttentionGrad", attention, {q, key, v, y, lse, dy}, {out(heads), out(heads), out(heads)});
  p.num_args = static_cast<int32_t>(p.values.size());
  const Bits one = run_threads(p, data, 1);
  for (int threads : {2, 3, 4}) EXPECT_TRUE(run_threads(p, data, threads) == one) << threads;
  p.ops[0].attrs.set("trans_a", int64_t{0});  // the control: another program shows
  p.ops[9].op = "Sub";
  EXPECT_FALSE(run_threads(p, data, 2) == one);
}

TEST(Threads, LaunchWithoutAllocation) {
  const TensorType x{DType::kF32, {512, 256}}, w{DType::kF32, {256, 256}};
  FusedProgram p;
  p.values = {x, w, x, x};
  p.num_args = 4;
  p.ops = {{"MatMul", {}, {0, 1}, {2}}, {"Tanh", {}, {2}, {3}}};
  auto backend = make_cpu_backend(CpuOptions{2, {}});
  std::vector<std::byte*> args;
  for (const TensorType& type : p.values) args.push_back(*backend->allocate(type.bytes()));
  const int32_t bound = *backend->bind(*backend->load(p), args, nullptr);
  backend->launch(bound);
  const int64_t before = news;
  for (int i = 0; i < 5; ++i) backend->launch(bound);
  EXPECT_EQ(news, before);
}

TEST(Ops, AreListedByName) {
  const std::vector<std::string> ops = cpu_ops();
  EXPECT_TRUE(std::is_sorted(ops.begin(), ops.end()));
  EXPECT_EQ(std::adjacent_find(ops.begin(), ops.end()), ops.end());
}

}  // namespace
}  // namespace piper::test::cpu_backend_test
