// Matrix products of the shapes that training has, with the backend's kernel, oneDNN (primitives
// with a scratchpad of ours, and dnnl_sgemm) and OpenBLAS: GFLOP/s, and how many blocks of memory
// one call allocates. One thread; the ways alternate, and the least times count, of the processor:
// what other programs take of it does not.
//
//   product_bench [avx2]      tests/bench/products.txt holds what it printed
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

#include "dnnl.h"
#include "hwy/targets.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
#ifndef PIPER_HAS_OPENBLAS
#define PIPER_HAS_OPENBLAS 0
#endif
#if PIPER_HAS_OPENBLAS
#include <cblas.h>
extern "C" void openblas_set_num_threads(int);
#endif
extern "C" void omp_set_num_threads(int);

// Every allocation of the process goes through here.
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_memalign(size_t, size_t);
namespace {
std::atomic<int64_t> allocations{0};
}
extern "C" void* malloc(size_t size) {
  allocations.fetch_add(1);
  return __libc_malloc(size);
}
extern "C" int posix_memalign(void** to, size_t alignment, size_t size) {
  allocations.fetch_add(1);
  *to = __libc_memalign(alignment, size);
  return *to ? 0 : ENOMEM;
}

namespace piper {
namespace {

struct Product {
  int64_t m, n, k;
  bool trans_a, trans_b;
};

using Way = std::function<void()>;

class Operands {
 public:
  explicit Operands(const Product& p)
      : p_(p),
        backend_(make_cpu_backend()),
        a_(block(p.m, p.k)),
        b_(block(p.k, p.n)),
        c_(block(p.m, p.n)) {
    for (size_t i = 0; i < a_.size(); ++i) a_[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
    for (size_t i = 0; i < b_.size(); ++i) b_[i] = static_cast<float>(i * 104729 % 1000) / 500 - 1;
  }

  Way own() {
    const auto shape = [](int64_t r, int64_t c, bool t) { return t ? Shape{c, r} : Shape{r, c}; };
    FusedProgram program;
    program.values = {{DType::kF32, shape(p_.m, p_.k, p_.trans_a)},
                      {DType::kF32, shape(p_.k, p_.n, p_.trans_b)},
                      {DType::kF32, {p_.m, p_.n}}};
    program.num_args = 3;
    program.ops = {{"MatMul",
                    {{"trans_a", int64_t{p_.trans_a}}, {"trans_b", int64_t{p_.trans_b}}},
                    {0, 1},
                    {2}}};
    std::byte* args[] = {bytes(a_), bytes(b_), bytes(c_)};
    const int32_t bound = *backend_->bind(*backend_->load(program), args, nullptr);
    return [this, bound] { backend_->launch(bound); };
  }

  Way sgemm() {
    return [this] {
      dnnl_sgemm(p_.trans_a ? 'T' : 'N', p_.trans_b ? 'T' : 'N', p_.m, p_.n, p_.k, 1, a_.data(),
                 p_.trans_a ? p_.m : p_.k, b_.data(), p_.trans_b ? p_.k : p_.n, 0, c_.data(), p_.n);
    };
  }

  // The handles live as long as the process: a benchmark.
  Way primitive() {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_engine_create(&engine, dnnl_cpu, 0);
    dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    const dnnl_memory_desc_t a = desc(p_.m, p_.k, p_.trans_a), b = desc(p_.k, p_.n, p_.trans_b);
    const dnnl_memory_desc_t c = desc(p_.m, p_.n, false);
    dnnl_matmul_desc_t form;
    dnnl_matmul_desc_init(&form, &a, &b, nullptr, &c);
    dnnl_primitive_attr_t attr;
    dnnl_primitive_attr_create(&attr);
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    dnnl_primitive_desc_t made;
    dnnl_primitive_t primitive;
    dnnl_primitive_desc_create(&made, &form, attr, engine, nullptr);
    dnnl_primitive_create(&primitive, made);
    const dnnl_memory_desc_t* pad = dnnl_primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
    scratch_.resize(dnnl_memory_desc_get_size(pad) + 64);
    const auto memory = [&](const dnnl_memory_desc_t& type, void* data) {
      dnnl_memory_t handle;
      dnnl_memory_create(&handle, &type, engine, data);
      return handle;
    };
    const std::vector<dnnl_exec_arg_t> args = {
        {DNNL_ARG_SRC, memory(a, a_.data())},
        {DNNL_ARG_WEIGHTS, memory(b, b_.data())},
        {DNNL_ARG_DST, memory(c, c_.data())},
        {DNNL_ARG_SCRATCHPAD, memory(*pad, scratch_.data())}};
    return [=] { dnnl_primitive_execute(primitive, stream, 4, args.data()); };
  }

  Way openblas() {
#if PIPER_HAS_OPENBLAS
    return [this] {
      cblas_sgemm(CblasRowMajor, p_.trans_a ? CblasTrans : CblasNoTrans,
                  p_.trans_b ? CblasTrans : CblasNoTrans, static_cast<int>(p_.m),
                  static_cast<int>(p_.n), static_cast<int>(p_.k), 1, a_.data(),
                  static_cast<int>(p_.trans_a ? p_.m : p_.k), b_.data(),
                  static_cast<int>(p_.trans_b ? p_.k : p_.n), 0, c_.data(), static_cast<int>(p_.n));
    };
#else
    return [] {};
#endif
  }

 private:
  // Where buffers of a plan lie, too.
  std::span<float> block(int64_t rows, int64_t columns) {
    std::byte* memory = *backend_->allocate(rows * columns * static_cast<int64_t>(sizeof(float)));
    return {reinterpret_cast<float*>(memory), static_cast<size_t>(rows * columns)};
  }
  static std::byte* bytes(std::span<float> v) { return reinterpret_cast<std::byte*>(v.data()); }
  static dnnl_memory_desc_t desc(int64_t rows, int64_t columns, bool transposed) {
    const dnnl_dims_t dims = {rows, columns};
    dnnl_memory_desc_t type;
    dnnl_memory_desc_init_by_tag(&type, 2, dims, dnnl_f32, transposed ? dnnl_ba : dnnl_ab);
    return type;
  }

  Product p_;
  std::unique_ptr<Backend> backend_;
  std::span<float> a_, b_, c_;
  std::vector<char> scratch_;
};

// That this thread has had of the processor.
double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

double seconds_of(const Way& way, double flops) {
  const int repeats = std::max(1, static_cast<int>(2e7 / flops));
  const double start = thread_seconds();
  for (int i = 0; i < repeats; ++i) way();
  return (thread_seconds() - start) / repeats;
}

constexpr size_t kWays = PIPER_HAS_OPENBLAS ? 4 : 3;
constexpr const char* kNames[] = {"own", "primitive", "sgemm", "OpenBLAS"};

// The logarithms of the rates are added to `sums`.
void measure(const Product& p, double (&sums)[kWays]) {
  Operands operands(p);
  const Way ways[] = {operands.own(), operands.primitive(), operands.sgemm(), operands.openblas()};
  const double flops = 2.0 * static_cast<double>(p.m * p.n * p.k);
  double best[kWays];
  std::fill_n(best, kWays, INFINITY);
  int64_t blocks[kWays];
  for (int round = 0; round < 9; ++round)
    for (size_t w = 0; w < kWays; ++w) {
      best[w] = std::min(best[w], seconds_of(ways[w], flops));
      const int64_t before = allocations.load();
      ways[w]();
      blocks[w] = allocations.load() - before;
    }
  std::printf("%5ld x %5ld x %5ld %s%s", p.m, p.n, p.k, p.trans_a ? "aT" : "  ",
              p.trans_b ? "bT" : "  ");
  for (size_t w = 0; w < kWays; ++w) {
    std::printf("  %6.1f (%ld)", flops / best[w] / 1e9, blocks[w]);
    sums[w] += std::log(flops / best[w] / 1e9);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  using piper::Product;
  const bool avx2 = argc > 1 && std::strcmp(argv[1], "avx2") == 0;
  if (avx2) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  if (avx2) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
  omp_set_num_threads(1);
#if PIPER_HAS_OPENBLAS
  openblas_set_num_threads(1);
#endif
  // A linear layer forward, to its input, to its weight: the sample GPT's on a batch and on one
  // sample, 6 layers of 384, Llama- and BERT-like ones of 256 and 512, vocabulary heads.
  const int64_t layers[][3] = {{1024, 128, 384},  {1024, 128, 512}, {1024, 512, 128},
                               {128, 128, 128},   {128, 128, 512},  {1024, 384, 1152},
                               {1024, 384, 1536}, {512, 256, 688},  {512, 512, 2048},
                               {1024, 384, 8192}, {512, 256, 32000}};
  std::printf("%s, one thread: GFLOP/s (blocks of memory that a call allocates)\n",
              std::string(piper::cpu_kernels()).c_str());
  std::printf("    m x     n x     k     ");
  for (size_t w = 0; w < piper::kWays; ++w) std::printf("  %10s", piper::kNames[w]);
  std::printf("\n");
  double sums[piper::kWays] = {};
  int count = 0;
  for (const auto& [rows, in, out] : layers)
    for (const Product& p :
         {Product{rows, out, in, false, true}, Product{rows, in, out, false, false},
          Product{out, in, rows, true, false}}) {
      piper::measure(p, sums);
      ++count;
    }
  std::printf("geometric mean        ");
  for (double sum : sums) std::printf("  %10.1f", std::exp(sum / count));
  std::printf("\n");
  return 0;
}
