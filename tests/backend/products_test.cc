// The table of cuts of matrix products: how it is read, what it chooses, and that its choices
// differ in nothing but speed.
#include <bit>

#include "cpu_harness.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
#include "sanitizer.h"

namespace piper::test::products_test {
namespace {

constexpr const char* kTable = R"(# a comment
products 1
processor any
  : depth=128 columns=64 height=24
processor Acme 6 7 AVX2   # another one
  aT f64 rows>=100 : depth=512 pack
  a bT depth%96 line<=192 : columns=128
  b columns<=8 : height=48 columns=64
  :
processor any AVX2
  : depth=384
)";

ProductTable read(std::string_view text, std::string_view processor, std::string_view kernels) {
  Result<ProductTable> table = read_products(text, processor, kernels);
  EXPECT_TRUE(table) << print_error(table.error());
  return table ? *table : ProductTable{};
}
std::string refused(std::string_view text) {
  const Result<ProductTable> table = read_products(text, "Acme 6 7", "AVX2");
  if (table) return "";
  return fmt::format("{}:{}: {}", table.error().at.file, table.error().at.line,
                     table.error().message);
}

TEST(Products, TakesTheEntryThatFitsBest) {
  EXPECT_EQ(read(kTable, "Acme 6 7", "AVX2").entry, "Acme 6 7 AVX2");
  EXPECT_EQ(read(kTable, "Acme 6 8", "AVX2").entry, "any AVX2");
  EXPECT_EQ(read(kTable, "unknown", "AVX3").entry, "any");
}

TEST(Products, TakesTheFirstRuleThatHolds) {
  const ProductTable table = read(kTable, "Acme 6 7", "AVX2");
  const auto cut = [&](DType dtype, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k) {
    return cut_of(table, {dtype, trans_a, trans_b, m, n, k});
  };
  const ProductCut plain, first{512, 512, 240, true}, second{256, 128, 240}, third{256, 64, 48};
  EXPECT_EQ(cut(DType::kF64, true, false, 100, 9, 5), first);
  EXPECT_EQ(cut(DType::kF32, true, false, 100, 9, 5), plain);
  EXPECT_EQ(cut(DType::kF64, true, false, 99, 9, 5), plain);
  EXPECT_EQ(cut(DType::kF32, false, true, 99, 9, 192), second);
  EXPECT_EQ(cut(DType::kF32, false, true, 99, 9, 100), plain);
  EXPECT_EQ(cut(DType::kF32, false, true, 99, 9, 288), plain);
  EXPECT_EQ(cut(DType::kF32, true, true, 99, 9, 192), plain);
  EXPECT_EQ(cut(DType::kF32, false, false, 99, 8, 192), third);
  EXPECT_EQ(cut(DType::kF32, false, true, 99, 8, 100), plain);
}

TEST(Products, DigestIsOfTheWholeTableButItsComments) {
  const std::string text = kTable;
  const std::string digest = read(text, "Acme 6 7", "AVX2").digest;
  EXPECT_EQ(read(text + "# more\n", "other", "AVX3").digest, digest);
  EXPECT_NE(read(text + "processor b\n :\n", "Acme 6 7", "AVX2").digest, digest);
}

TEST(Products, RefusesWhatIsMalformed) {
  const std::string start = "products 1\nprocessor any\n";
  EXPECT_EQ(refused(""), "products:0: holds nothing");
  EXPECT_EQ(refused("# no more\n"), "products:0: holds nothing");
  EXPECT_EQ(refused("products 2\n"), "products:1: begins with 'products 2', not with 'products 1'");
  EXPECT_EQ(refused("products 1\n"), "products:0: has nothing for processor 'any'");
  EXPECT_EQ(refused("products 1\nprocessor any AVX3\n :\n"),
            "products:0: has nothing for processor 'any'");
  EXPECT_EQ(refused("products 1\n :\n"), "products:2: a rule before the first processor");
  EXPECT_EQ(refused(start + " depth=256\n"), "products:3: a rule is 'CONDITION… : CUT…'");
  EXPECT_EQ(refused(start + " aT:\n"), "products:3: a rule is 'CONDITION… : CUT…'");
  EXPECT_EQ(refused(start + " tall :\n"), "products:3: 'tall' is no condition");
  EXPECT_EQ(refused(start + " rows<9 :\n"), "products:3: 'rows<9' is no condition");
  EXPECT_EQ(refused(start + " rows%0 :\n"), "products:3: 'rows%0' is no condition");
  EXPECT_EQ(refused(start + " : wide\n"), "products:3: 'wide' is no part of a cut");
  EXPECT_EQ(refused(start + " : depth=-128\n"), "products:3: 'depth=-128' is no part of a cut");
  EXPECT_EQ(refused(start + " : depth=99999999999999999999\n"),
            "products:3: 'depth=99999999999999999999' is no part of a cut");
  EXPECT_EQ(refused(start + " : depth=192\n"), "products:3: depth=192 is no multiple of 128");
  EXPECT_EQ(refused(start + " : columns=100\n"), "products:3: columns=100 is no multiple of 64");
  EXPECT_EQ(refused(start + " : height=36\n"), "products:3: height=36 is no multiple of 24");
  EXPECT_EQ(refused(start + " : depth=1024 columns=1024\n"),
            "products:3: depth=1024 columns=1024 height=240 needs more than 4.0 MiB");
  EXPECT_EQ(refused(start + " : depth=9223372036854775680\n"),
            "products:3: depth=9223372036854775680 columns=512 height=240 needs more than 4.0 MiB");
  EXPECT_EQ(refused(start + " aT :\n"),
            "products:0: the last rule of processor 'any' has conditions");
  EXPECT_EQ(refused(start + " :\n aT :\n"), "products:4: a rule after one without conditions");
  EXPECT_EQ(refused(start + " :\nprocessor any\n :\n"),
            "products:4: processor 'any' is here twice");
}

TEST(Products, TheBuiltInTableIsWholeForEveryProcessor) {
  const ProductTable& own = cpu_products();
  EXPECT_TRUE(own.entry.starts_with(cpu_processor()) || own.entry.starts_with("any")) << own.entry;
  ASSERT_FALSE(own.rules.empty());
  EXPECT_TRUE(own.rules.back().conditions.empty());
  EXPECT_EQ(own.digest.size(), 32u);
  // Rows of a transposed by 4 KiB fall into one set of the near cache.
  EXPECT_TRUE(cut_of(own, {DType::kF32, false, false, 512, 512, 2048}).pack_a);
}

// The instruction sets that multiply here, and have bits of their own: vectors, and tiles.
std::vector<std::string> kernels_here() {
  std::vector<std::string> kernels{""};
  if (cpu_kernels() == "AMX") kernels.push_back("AMX");
  return kernels;
}

// a · b, accumulated, of every kind of operand, with all products cut as `cut` says.
std::vector<Bytes> products_cut(const std::string& cut, DType dtype, std::string_view kernels) {
  const ProductTable table = read("products 1\nprocessor any\n : " + cut, "", kernels);
  const auto backend = make_cpu_backend({2, {}, &table});
  Random random(11);
  std::vector<Bytes> results;
  for (const auto& [m, n, k] : {std::tuple{403, 190, 300}, {50, 1111, 129}, {25, 70, 700}})
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true}) {
        FusedProgram p;
        p.values = {{dtype, trans_a ? Shape{k, m} : Shape{m, k}},
                    {dtype, trans_b ? Shape{n, k} : Shape{k, n}},
                    {dtype, {m, n}}};
        p.num_args = 3;
        const Attrs attrs{{"trans_a", int64_t{trans_a}},
                          {"trans_b", int64_t{trans_b}},
                          {"accumulate", int64_t{1}}};
        p.ops = {{"MatMul", attrs, {0, 1, 2}, {2}}};
        std::vector<std::byte*> args;
        for (const TensorType& type : p.values) {
          const Bytes data = pack(random.uniform(dtype, type.shape, -1, 1));
          args.push_back(*backend->allocate(type.bytes()));
          backend->copy(args.back(), data.data, type.bytes());
        }
        backend->launch(*backend->bind(*backend->load(p), args, nullptr));
        results.push_back(Bytes::copy_of(args[2], static_cast<size_t>(p.values[2].bytes())));
      }
  return results;
}

TEST(Products, HaveTheSameBitsWithEveryCut) {
  for (DType dtype : {DType::kF32, DType::kF64})
    for (const std::string& kernels : kernels_here()) {
      if (kThreadSanitizer && dtype == DType::kF64) continue;  // threads share them alike
      const std::vector<Bytes> usual = products_cut("", dtype, kernels);
      for (const char* cut :
           {"pack", "depth=128", "depth=128 columns=64 height=24", "depth=512 columns=64 pack",
            "depth=384 columns=192 height=48 pack", "depth=128 columns=1024 height=240 pack",
            "depth=256 columns=512 height=960"}) {
        const std::vector<Bytes> other = products_cut(cut, dtype, kernels);
        for (size_t i = 0; i < usual.size(); ++i)
          EXPECT_EQ(as_text(other[i].span()), as_text(usual[i].span()))
              << kernels << " " << cut << ", product " << i;
      }
    }
}

// c = a · b, of rows and of columns that no tile or vector divides; by two threads.
Bytes product_of(const Tensor& a, const Tensor& b, bool trans_b, bool packed,
                 const ProductTable* table = nullptr) {
  const int64_t m = a.type.shape[0], k = a.type.shape[1], n = b.type.shape[trans_b ? 0 : 1];
  const TensorType c{a.type.dtype, {m, n}};
  FusedProgram p;
  p.values = {a.type, b.type, {a.type.dtype, Shape{k, (n + 31) / 32 * 32}}, c};
  p.num_args = 4;
  const Attrs form{{"trans_b", int64_t{trans_b}}};
  if (packed)
    p.ops = {{"Pack", form, {1}, {2}}, {"MatMul", {{"packed_b", int64_t{1}}}, {0, 2}, {3}}};
  else
    p.ops = {{"MatMul", form, {0, 1}, {3}}};
  const auto backend = make_cpu_backend({2, {}, table});
  std::vector<std::byte*> args;
  for (const TensorType& type : p.values) args.push_back(*backend->allocate(type.bytes()));
  const Bytes data[] = {pack(a), pack(b)};
  for (size_t i = 0; i < 2; ++i)
    backend->copy(args[i], data[i].data, static_cast<int64_t>(data[i].size));
  backend->launch(*backend->bind(*backend->load(p), args, nullptr));
  return Bytes::copy_of(args[3], static_cast<size_t>(c.bytes()));
}

TEST(Products, HaveTheSameBitsWithAPackedOperand) {
  Random random(12);
  for (DType dtype : {DType::kF32, DType::kF64})
    for (const auto& [m, n, k] :
         {std::tuple{31, 190, 300}, {50, 1111, 129}, {200, 70, 700}, {1, 64, 64}})
      for (const bool trans_b : {false, true}) {
        const Tensor a = random.uniform(dtype, {m, k}, -1, 1);
        const Tensor b = random.uniform(dtype, trans_b ? Shape{n, k} : Shape{k, n}, -1, 1);
        EXPECT_EQ(as_text(product_of(a, b, trans_b, true).span()),
                  as_text(product_of(a, b, trans_b, false).span()))
            << m << "," << n << "," << k << (trans_b ? " transposed" : "");
      }
}

// a[m,k] · b[n,k] with these kernels, as numbers.
std::vector<double> numbers_of(const Tensor& a, const Tensor& b, std::string_view kernels) {
  const ProductTable table = read("products 1\nprocessor any\n :", "", kernels);
  const Bytes c = product_of(a, b, true, false, &table);
  const auto* const at = reinterpret_cast<const float*>(c.data);
  return {at, at + c.size / sizeof(float)};
}

// Vectors round after each multiply-add, tiles leave out what is below that.
TEST(Products, TilesRoundNoMoreThanVectors) {
  if (cpu_kernels() != "AMX") GTEST_SKIP() << "multiplies f32 in vectors: " << cpu_kernels();
  Random random(13);
  for (const int64_t k : {31, 128, 513, 2000}) {
    const int64_t m = 45, n = 70;
    Tensor a = random.uniform(DType::kF32, {m, k}, -1, 1);
    Tensor b = random.uniform(DType::kF32, {n, k}, -1, 1);
    for (size_t i = 0; i < a.v.size(); i += 3) a.v[i] *= 1e-3;  // what is small keeps its bits, too
    for (Tensor* t : {&a, &b})
      for (double& x : t->v) x = static_cast<float>(x);
    double worst[2] = {};
    for (const bool tiles : {false, true}) {
      const std::vector<double> c = numbers_of(a, b, tiles ? "AMX" : "");
      for (int64_t i = 0; i < m * n; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < k; ++j) {
          const double term =
              a.v[static_cast<size_t>(i / n * k + j)] * b.v[static_cast<size_t>(i % n * k + j)];
          sum += term, magnitude += std::abs(term);
        }
        worst[tiles] =
            std::max(worst[tiles], std::abs(c[static_cast<size_t>(i)] - sum) / magnitude);
      }
    }
    EXPECT_LE(worst[1], worst[0] * 1.25) << k;
    EXPECT_GT(worst[1], 0) << k;
    EXPECT_NE(numbers_of(a, b, "AMX"), numbers_of(a, b, "")) << k;  // tiles are used
  }
}

TEST(Products, TilesKeepWhatIsNotFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Random random(14);
  for (const std::string& kernels : kernels_here()) {
    Tensor a = random.uniform(DType::kF32, {40, 600}, 1, 2);
    Tensor b = random.uniform(DType::kF32, {50, 600}, 1, 2);
    const auto set = [](Tensor& t, int64_t row, int64_t k, double x) {
      t.v[static_cast<size_t>(row * 600 + k)] = x;
    };
    set(a, 3, 5, kInfinity), set(a, 7, 590, -kInfinity), set(a, 9, 0, NAN);
    set(a, 11, 33, std::bit_cast<float>(~0u));     // carries into its sign when it is rounded
    set(b, 30, 5, 0), set(b, 31, 590, 0);          // infinite times zero
    set(a, 20, 100, kMost), set(b, 40, 100, 0.5);  // rounds to an infinite bf16
    const std::vector<double> c = numbers_of(a, b, kernels);
    const auto at = [&](int64_t i, int64_t j) { return c[static_cast<size_t>(i * 50 + j)]; };
    EXPECT_EQ(at(3, 0), kInfinity);
    EXPECT_EQ(at(7, 0), -kInfinity);
    EXPECT_TRUE(std::isnan(at(3, 30)) && std::isnan(at(7, 31)));
    for (int64_t j = 0; j < 50; ++j) EXPECT_TRUE(std::isnan(at(9, j)) && std::isnan(at(11, j)));
    EXPECT_EQ(at(20, 40), kMost / 2) << kernels;
    EXPECT_TRUE(std::isfinite(at(0, 0)) && std::isfinite(at(39, 49)));
  }
}

// Parts of numbers that are zero in a whole block are left out: this changes no bit of other rows.
TEST(Products, HaveTheSameBitsBesideRowsOfMoreBits) {
  Random random(15);
  for (const std::string& kernels : kernels_here()) {
    Tensor a = random.uniform(DType::kF32, {32, 600}, -1, 1);
    Tensor b = random.uniform(DType::kF32, {32, 600}, -1, 1);
    for (Tensor* t : {&a, &b})
      for (double& x : t->v) x = std::round(x * 64) / 64;  // bf16 holds all of them
    const std::vector<double> short_ones = numbers_of(a, b, kernels);
    a.v.back() = b.v.back() = 1.0f / 3;
    const std::vector<double> others = numbers_of(a, b, kernels);
    for (size_t i = 0; i < 31 * 32; ++i)
      if (i % 32 != 31) {
        EXPECT_EQ(short_ones[i], others[i]) << kernels << " " << i;
      }
    EXPECT_NE(short_ones.back(), others.back());
  }
}

// A plan does not depend on the processor that it is made on.
TEST(Products, ConstantsAreThoseOfVectors) {
  Random random(16);
  const Tensor a = random.uniform(DType::kF32, {40, 600}, -1, 1);
  const Tensor b = random.uniform(DType::kF32, {50, 600}, -1, 1);
  const TensorType types[] = {a.type, b.type}, out[] = {{DType::kF32, {40, 50}}};
  const Bytes data[] = {pack(a), pack(b)};
  const auto folded = evaluate_op("MatMul", {{"trans_b", int64_t{1}}}, types, data, out);
  ASSERT_TRUE(folded) << print_error(folded.error());
  const ProductTable vectors = read("products 1\nprocessor any\n :", "", "");
  EXPECT_EQ(as_text(folded->front().span()),
            as_text(product_of(a, b, true, false, &vectors).span()));
}

}  // namespace
}  // namespace piper::test::products_test
