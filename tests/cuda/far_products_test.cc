// Products whose operands have 2^31 elements or more, which the library's kernels for vectors and
// narrow matrices count wrongly: they are made in parts that cover the product once.
#include <gmock/gmock.h>

#include "product_parts.h"
#include "written.h"

namespace piper::far_products_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not a plan's

constexpr int64_t kFar = int64_t{1} << 31, kNarrow = 256;

struct Use {
  Shape a, b;
  bool trans_a = false, trans_b = false, adds = false;
  DType result = DType::kBF16;
  std::vector<int64_t> aligned;  // arguments whose rows have gaps
};

DeviceProgram program_of(const Use& use) {
  Written written;
  Attrs attrs{{"trans_a", int64_t{use.trans_a}}, {"trans_b", int64_t{use.trans_b}}};
  if (use.result == DType::kF32) attrs.set("to", "f32");
  if (use.adds) attrs.set("accumulate", int64_t{1});
  if (!use.aligned.empty()) attrs.set("aligned_args", use.aligned);
  const TensorType out{use.result, {use.a[use.trans_a ? 1 : 0], use.b[use.trans_b ? 0 : 1]}};
  std::vector<int32_t> inputs{written.given({DType::kBF16, use.a}, {}),
                              written.given({DType::kBF16, use.b}, {})};
  if (use.adds) inputs.push_back(written.given(out, {}));
  written.op("MatMul", attrs, inputs, {written.made(out)});
  return steps_of(written);
}

// The place of a part within the product: rows and columns of D, and k.
struct Box {
  int64_t begin[3], end[3];
  int64_t volume() const { return (end[0] - begin[0]) * (end[1] - begin[1]) * (end[2] - begin[2]); }
  bool meets(const Box& other) const {
    for (int i = 0; i < 3; ++i)
      if (end[i] <= other.begin[i] || other.end[i] <= begin[i]) return false;
    return true;
  }
};
Box box_of(const DeviceProduct& p, const DeviceStep& step) {
  const int64_t a = step.operands[0].offset / 2, b = step.operands[1].offset / 2;
  const int64_t row = p.trans_a ? a % p.lda : a / p.lda, k = p.trans_a ? a / p.lda : a % p.lda;
  const int64_t column = p.trans_b ? b / p.ldb : b % p.ldb;
  EXPECT_EQ(k, p.trans_b ? b % p.ldb : b / p.ldb);
  return {{row, column, k}, {row + p.m, column + p.n, k + p.k}};
}
int64_t farthest(const DeviceProduct& p) {
  return std::max({(p.trans_a ? p.k : p.m) * p.lda, (p.trans_b ? p.n : p.k) * p.ldb, p.m * p.ldd});
}

void expect_parts(const Use& use, size_t least) {
  const DeviceProgram program = program_of(use);
  std::vector<Box> boxes;
  int64_t volume = 0;
  for (const DeviceStep& step : program.steps) {
    if (step.kind != DeviceStep::kProduct) continue;
    const DeviceProduct& p = program.products[static_cast<size_t>(step.index)];
    EXPECT_TRUE(std::min(p.m, p.n) >= kNarrow || farthest(p) < kFar)
        << p.m << " x " << p.n << " x " << p.k;
    const Box box = box_of(p, step);
    for (const Box& other : boxes) EXPECT_FALSE(box.meets(other));
    // What is added to is there already.
    const bool adds = step.operands[2].kind != DeviceOperand::kAbsent;
    EXPECT_EQ(adds, box.begin[2] > 0 || (use.adds && use.result == DType::kF32));
    boxes.push_back(box);
    volume += box.volume();
  }
  EXPECT_GE(boxes.size(), least);
  const int64_t m = use.a[use.trans_a ? 1 : 0], k = use.a[use.trans_a ? 0 : 1];
  EXPECT_EQ(volume, m * use.b[use.trans_b ? 0 : 1] * k);
}

TEST(FarProducts, AreMadeInPartsThatCoverThemOnce) {
  // Logits of 50,257 classes, whose last column is a product of its own, and their gradient.
  expect_parts({.a = {65536, 768}, .b = {50257, 768}, .trans_b = true, .aligned = {2}}, 3);
  expect_parts({.a = {65536, 50257},
                .b = {65536, 768},
                .trans_a = true,
                .result = DType::kF32,
                .aligned = {0}},
               3);
  expect_parts({.a = {65536, 50257}, .b = {65536, 768}, .trans_a = true, .aligned = {0}}, 3);
  expect_parts({.a = {3'000'000, 1024}, .b = {1024, 1}}, 2);
  expect_parts({.a = {4, 1024}, .b = {3'000'000, 1024}, .trans_b = true}, 2);
  expect_parts({.a = {3'000'000, 1024}, .b = {3'000'000, 4}, .trans_a = true, .adds = true}, 2);
  expect_parts({.a = {3'000'000, 1024},
                .b = {3'000'000, 4},
                .trans_a = true,
                .adds = true,
                .result = DType::kF32},
               2);
  // These are for kernels that count in 64 bits, or near enough.
  expect_parts({.a = {3'000'000, 1024}, .b = {1024, 512}}, 1);
  expect_parts({.a = {2048, 1024}, .b = {1024, 1}}, 1);
}

// Makes a small product in parts of k, as far ones are made.
TEST(FarProducts, AlongKAreThoseOfTheDefinition) {
  std::mt19937_64 random(kSeed);
  for (const DType result : {DType::kF32, DType::kBF16})
    for (const bool adds : {false, true}) {
      constexpr int64_t kRows = 3, kColumns = 5, kDepth = 10;
      const auto given = [&](DType type, Shape shape) {  // whole numbers: sums are exact
        Tensor tensor = draw({DType::kI64, std::move(shape)}, random, 0, 0, 7);
        tensor.type.dtype = type;
        return tensor;
      };
      const Tensor a = given(DType::kBF16, {kRows, kDepth}),
                   b = given(DType::kBF16, {kDepth, kColumns}),
                   c = given(result, {kRows, kColumns});
      Written written;
      std::vector<int32_t> inputs{written.given(a.type, to_bytes(a)),
                                  written.given(b.type, to_bytes(b)),
                                  written.given(c.type, to_bytes(c))};
      written.op("MatMul", {}, inputs, {written.made(c.type)});
      cuda_kernels::Operands at;
      for (const auto& [place, argument] : {std::pair(cuda_kernels::kOfA, 0),
                                            {cuda_kernels::kOfB, 1},
                                            {cuda_kernels::kOfC, 2},
                                            {cuda_kernels::kOfD, 3}})
        at[place] = {DeviceOperand::kArgument, argument};
      if (!adds) at[cuda_kernels::kOfC] = {};
      DeviceProduct product{.type = DType::kBF16,
                            .result = result,
                            .m = kRows,
                            .n = kColumns,
                            .k = kDepth,
                            .lda = kDepth,
                            .ldb = kColumns,
                            .ldd = kColumns};
      cuda_kernels::Emitter emit;
      emit.begin(0, {at.begin(), at.end()});
      cuda_kernels::make_along_k(product, 4, at, emit);
      DeviceProgram program;
      program.fused = joined_for_cuda(written.program);
      emit.finish(program, 0);
      ASSERT_EQ(program.products.size(), 3U);
      const auto made = emulator::run_on_host(program, written.arguments);
      ASSERT_TRUE(made.ok()) << made.error().message;
      const Tensor d = to_tensor(c.type, (*made)[3]);
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        double sum = adds ? c.values[static_cast<size_t>(i)] : 0;
        for (int64_t k = 0; k < kDepth; ++k)
          sum += a.values[static_cast<size_t>(i / kColumns * kDepth + k)] *
                 b.values[static_cast<size_t>(k * kColumns + i % kColumns)];
        EXPECT_EQ(d.values[static_cast<size_t>(i)], sum) << i;
      }
    }
}

}  // namespace
}  // namespace piper::far_products_test
