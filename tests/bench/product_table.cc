// Which cut of a matrix product is the fastest, for each class of shapes that training has: prints
// an entry of src/devices/cpu/products.txt for the processor it runs on. One thread; the cuts
// alternate, and the least times count, of the processor. Operands come from memory that other products have used since,
// as in a step.
//
//   product_table [avx2]      with avx2: of the kernels for AVX2
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "hwy/targets.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"

namespace piper {
namespace {

// Less than so much is not worth a rule: what two runs differ by.
constexpr double kWorth = 1.015;

// The first one is taken wherever none is better.
constexpr const char* kCuts[] = {
    "depth=256 columns=512 height=240",      "depth=128 columns=512 height=240",
    "depth=512 columns=512 height=240",      "depth=256 columns=512 height=960",
    "depth=128 columns=512 height=240 pack", "depth=128 columns=1024 height=240 pack",
    "depth=128 columns=1024 height=120 pack"};
constexpr size_t kCutCount = std::size(kCuts);

struct Product {
  int64_t m, n, k;
};
// A class's condition, and shapes in it: linear layers of models of 128, 256, 384 and 512 features
// on a batch, on a sample of 128 tokens, and on pipelines' microbatches of 32 and 64.
struct Class {
  const char* condition;
  bool trans_a, trans_b;
  std::vector<Product> shapes;
};
const Class kClasses[] = {
    {"a line%1024", false, false, {{512, 512, 2048}, {1024, 256, 1024}, {256, 512, 2048}}},
    {"a bT rows<=96",
     false,
     true,
     {{32, 512, 128}, {64, 512, 128}, {32, 1536, 384}, {64, 384, 128}}},
    {"a b rows<=96",
     false,
     false,
     {{32, 128, 512}, {64, 128, 512}, {32, 384, 1536}, {64, 128, 384}}},
    {"a bT", false, true, {{1024, 512, 128}, {128, 512, 128}, {1024, 1152, 384}, {512, 688, 256}}},
    {"a b", false, false, {{1024, 128, 512}, {128, 128, 512}, {1024, 384, 1152}, {512, 256, 688}}},
    {"aT depth<=96", true, false, {{512, 128, 32}, {512, 128, 64}, {1536, 384, 32}}},
    {"aT rows>=1024", true, false, {{1152, 384, 1024}, {2048, 512, 512}, {1536, 384, 1024}}},
    {"aT rows>=512", true, false, {{512, 128, 1024}, {768, 256, 1024}, {688, 256, 512}}},
    {"aT columns>=256", true, false, {{384, 384, 1024}, {256, 688, 512}, {384, 512, 1024}}},
    {"aT", true, false, {{384, 128, 1024}, {128, 128, 1024}, {384, 128, 128}}},
};

// That this thread has had of the processor.
double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

class Timer {
 public:
  Timer() {
    for (const char* cut : kCuts)
      tables_.push_back(
          *read_products(fmt::format("products 1\nprocessor any\n: {}", cut), "", ""));
    for (const ProductTable& table : tables_)
      backends_.push_back(make_cpu_backend({1, {}, &table}));
  }

  // The logarithms of the least seconds with each cut are added to `sums`.
  void measure(const Class& of, const Product& p, double (&sums)[kCutCount]) {
    const std::vector<std::vector<std::byte*>> operands = allocate(p);
    const Program program = product(of, p);
    const double flops = 2.0 * static_cast<double>(p.m * p.n * p.k);
    const int repeats =
        std::max(1, static_cast<int>(3e7 / flops) / static_cast<int>(operands.size()));
    double least[kCutCount];
    std::fill_n(least, kCutCount, INFINITY);
    std::vector<int32_t> bound[kCutCount];
    for (size_t c = 0; c < kCutCount; ++c) {
      const int32_t loaded = *backends_[c]->load(program);
      for (const auto& args : operands)
        bound[c].push_back(*backends_[c]->bind(loaded, args, nullptr));
    }
    for (int round = 0; round < 9; ++round)
      for (size_t c = 0; c < kCutCount; ++c) {
        const double start = thread_seconds();
        for (int i = 0; i < repeats; ++i)
          for (int32_t one : bound[c]) backends_[c]->launch(one);
        least[c] = std::min(least[c], thread_seconds() - start);
      }
    for (size_t c = 0; c < kCutCount; ++c) sums[c] += std::log(least[c]);
  }

 private:
  // So many that what a product reads has left the near caches since it was read last.
  std::vector<std::vector<std::byte*>> allocate(const Product& p) {
    constexpr int64_t kFar = int64_t{8} << 20;
    const int64_t elements[] = {p.m * p.k, p.k * p.n, p.m * p.n};
    const int64_t bytes = 4 * (elements[0] + elements[1] + elements[2]);
    std::vector<std::vector<std::byte*>> sets(
        static_cast<size_t>(std::clamp<int64_t>(kFar / bytes, 1, 16)));
    for (auto& set : sets)
      for (int64_t count : elements) {
        set.push_back(*backends_[0]->allocate(4 * count));
        auto* const data = reinterpret_cast<float*>(set.back());
        for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
      }
    return sets;
  }
  static Program product(const Class& of, const Product& p) {
    const auto shape = [](int64_t r, int64_t c, bool t) { return t ? Shape{c, r} : Shape{r, c}; };
    FusedProgram program;
    program.values = {{DType::kF32, shape(p.m, p.k, of.trans_a)},
                      {DType::kF32, shape(p.k, p.n, of.trans_b)},
                      {DType::kF32, {p.m, p.n}}};
    program.num_args = 3;
    program.ops = {{"MatMul",
                    {{"trans_a", int64_t{of.trans_a}}, {"trans_b", int64_t{of.trans_b}}},
                    {0, 1},
                    {2}}};
    return program;
  }

  std::vector<ProductTable> tables_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

void print_entry() {
  std::printf("processor %s %s\n", cpu_processor().c_str(), std::string(cpu_kernels()).c_str());
  Timer timer;
  for (const Class& of : kClasses) {
    double sums[kCutCount] = {};
    for (const Product& p : of.shapes) timer.measure(of, p, sums);
    const size_t best = static_cast<size_t>(std::min_element(sums, sums + kCutCount) - sums);
    const auto gain = [&](size_t c) {
      return std::exp((sums[0] - sums[c]) / static_cast<double>(of.shapes.size()));
    };
    const size_t taken = gain(best) >= kWorth ? best : 0;
    std::printf("  %s : %s  # x %.3f", of.condition, kCuts[taken], gain(taken));
    std::printf("%s\n", taken == best
                            ? ""
                            : fmt::format(", not x {:.3f} of {}", gain(best), kCuts[best]).c_str());
    std::fflush(stdout);
  }
  std::printf("  : %s\n", kCuts[0]);
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "avx2") == 0) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  piper::print_entry();
  return 0;
}
