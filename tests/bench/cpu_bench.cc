// Benchmarks of the CPU backend: matrix products beside oneDNN's, pointwise and row ops beside
// memcpy, and the ops of one training step of the sample GPT (4 layers, d 128, 4 heads, context
// 128, vocabulary 256, batch 8) beside its products alone.
//
//   cpu_bench --benchmark_filter='MatMul|Dnnl'     GFLOP/s of ours and oneDNN's
//   cpu_bench --benchmark_filter='Op|Memcpy'       GB/s, counted by the sizes of the operands
//   cpu_bench --benchmark_filter=Step              time of all ops and of the products; their ratio
//   is the aim
#include <benchmark/benchmark.h>

#include <cstring>

#include "dnnl.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"

extern "C" void omp_set_num_threads(int);

namespace piper {
namespace {

TensorType f32(Shape shape) { return {DType::kF32, std::move(shape)}; }

// One use of an op, run on buffers of its own.
struct Use {
  std::string label;
  ProgramOp op;
  std::vector<TensorType> values;
  int count = 1;  // in a step
};
Use use(std::string label, std::string op, Attrs attrs, std::vector<TensorType> inputs,
        std::vector<TensorType> outputs, int count = 1) {
  Use u{std::move(label), {std::move(op), std::move(attrs), {}, {}}, {}, count};
  auto add = [&](const std::vector<TensorType>& types, std::vector<int32_t>& ids) {
    for (const TensorType& type : types) {
      ids.push_back(static_cast<int32_t>(u.values.size()));
      u.values.push_back(type);
    }
  };
  add(inputs, u.op.inputs);
  add(outputs, u.op.outputs);
  return u;
}

class Runner {
 public:
  explicit Runner(const Use& u) : backend_(make_cpu_backend()) {
    FusedProgram program;
    program.label = u.label;
    program.values = u.values;
    program.num_args = static_cast<int32_t>(u.values.size());
    program.ops = {u.op};
    std::vector<std::byte*> args;
    for (const TensorType& type : u.values) {
      args.push_back(*backend_->allocate(type.bytes()));
      bytes_ += type.bytes();
      if (type.dtype != DType::kF32) continue;
      auto* f = reinterpret_cast<float*>(args.back());
      for (int64_t i = 0; i < num_elements(type.shape); ++i) {
        f[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
      }
    }
    auto loaded = backend_->load(program);
    PIPER_CHECK(loaded.ok(), "{}", loaded.error().message);
    binding_ = *backend_->bind(*loaded, args, nullptr);
  }
  void run() { backend_->launch(binding_); }
  int64_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<Backend> backend_;
  int32_t binding_ = 0;
  int64_t bytes_ = 0;
};

// ---- Matrix products -----------------------------------------------------------------

struct Product {
  int64_t batch, m, n, k;
  bool trans_a, trans_b;
  int count;  // in a step of the sample GPT
};
const Product kProducts[] = {
    {1, 1024, 384, 128, false, false, 4}, {1, 1024, 128, 128, false, false, 4},
    {1, 1024, 512, 128, false, false, 4}, {1, 1024, 128, 512, false, false, 4},
    {1, 1024, 256, 128, false, true, 1},  {32, 128, 128, 32, false, true, 8},
    {32, 128, 32, 128, false, false, 8},  {32, 128, 32, 128, true, false, 8},
    {1, 1024, 128, 384, false, true, 4},  {1, 1024, 128, 128, false, true, 4},
    {1, 1024, 128, 512, false, true, 4},  {1, 1024, 512, 128, false, true, 4},
    {1, 1024, 128, 256, false, false, 1}, {1, 128, 384, 1024, true, false, 4},
    {1, 128, 128, 1024, true, false, 4},  {1, 128, 512, 1024, true, false, 4},
    {1, 512, 128, 1024, true, false, 4},  {1, 256, 128, 1024, true, false, 1},
};
std::string label_of(const Product& p) {
  return fmt::format("{}x{}x{}x{}{}{}", p.batch, p.m, p.n, p.k, p.trans_a ? "/aT" : "",
                     p.trans_b ? "/bT" : "");
}
Use use_of(const Product& p) {
  return use("MatMul/" + label_of(p), "MatMul",
             {{"trans_a", int64_t{p.trans_a}}, {"trans_b", int64_t{p.trans_b}}},
             {f32(p.trans_a ? Shape{p.batch, p.k, p.m} : Shape{p.batch, p.m, p.k}),
              f32(p.trans_b ? Shape{p.batch, p.n, p.k} : Shape{p.batch, p.k, p.n})},
             {f32({p.batch, p.m, p.n})}, p.count);
}
void count_flops(benchmark::State& state, const Product& p) {
  const double flops = 2.0 * static_cast<double>(p.batch * p.m * p.n * p.k);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
void matmul(benchmark::State& state, const Product& p) {
  Runner runner(use_of(p));
  for (auto _ : state) runner.run();
  count_flops(state, p);
}
void dnnl(benchmark::State& state, const Product& p) {
  omp_set_num_threads(1);
  std::vector<float> a(p.batch * p.m * p.k, 0.5f), b(p.batch * p.k * p.n, 0.5f);
  std::vector<float> c(p.batch * p.m * p.n);
  for (auto _ : state) {
    for (int64_t i = 0; i < p.batch; ++i) {
      dnnl_sgemm(p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f,
                 a.data() + i * p.m * p.k, p.trans_a ? p.m : p.k, b.data() + i * p.k * p.n,
                 p.trans_b ? p.k : p.n, 0.0f, c.data() + i * p.m * p.n, p.n);
    }
  }
  count_flops(state, p);
}

// ---- The other ops -------------------------------------------------------------------

using List = std::vector<int64_t>;
const Shape kX{8, 128, 128}, kH{8, 128, 512}, kQkv{8, 128, 384}, kS{8, 4, 128, 128};
const Shape kHeads{8, 4, 128, 32}, kBthd{8, 128, 4, 32}, kLogits{8, 128, 256}, kRows{8, 128, 1};

// How often each stands in a step when nothing is fused; 0: not part of it, for comparison.
std::vector<Use> other_ops() {
  const TensorType labels{DType::kI64, {8, 128}}, real{DType::kF64, {}}, step{DType::kI64, {}};
  const TensorType params = f32({842000}), mask{DType::kBool, {1, 1, 128, 128}};
  const Attrs last{{"axis", int64_t{2}}}, inner{{"axis", int64_t{3}}}, rows{{"axes", List{0, 1}}};
  const Attrs slice{
      {"starts", List{0, 0, 128}}, {"ends", List{8, 128, 256}}, {"steps", List{1, 1, 1}}};
  const std::string gelu = "0 0 Mul 0 Mul 1 Mul 0 Add 2 Mul Tanh 3 Add 0 Mul 4 Mul";
  return {
      use("Op/Add/bias384", "Add", {}, {f32(kQkv), f32({384})}, {f32(kQkv)}, 4),
      use("Op/Add/bias128", "Add", {}, {f32(kX), f32({128})}, {f32(kX)}, 8),
      use("Op/Add/bias512", "Add", {}, {f32(kH), f32({512})}, {f32(kH)}, 4),
      use("Op/Add/residual", "Add", {}, {f32(kX), f32(kX)}, {f32(kX)}, 24),
      use("Op/Mul/hidden", "Mul", {}, {f32(kH), f32(kH)}, {f32(kH)}, 4 * (4 + 8)),
      use("Op/Mul/hidden_scalar", "Mul", {}, {f32(kH), f32({})}, {f32(kH)}, 4 * 4),
      use("Op/Tanh", "Tanh", {}, {f32(kH)}, {f32(kH)}, 4),
      use("Op/Exp", "Exp", {}, {f32(kH)}, {f32(kH)}, 0),
      use("Op/Erf", "Erf", {}, {f32(kH)}, {f32(kH)}, 0),
      use("Op/Fused/gelu", "Fused", {{"expr", gelu}}, {f32(kH), f32({}), f32({}), f32({}), f32({})},
          {f32(kH)}, 0),
      use("Op/Gelu/tanh", "Gelu", {{"approximate", std::string("tanh")}}, {f32(kH)}, {f32(kH)}, 0),
      use("Op/Gelu/none", "Gelu", {}, {f32(kH)}, {f32(kH)}, 0),
      use("Op/GeluGrad/tanh", "GeluGrad", {{"approximate", std::string("tanh")}},
          {f32(kH), f32(kH)}, {f32(kH)}, 0),
      use("Op/LayerNorm", "LayerNorm", last, {f32(kX), f32({128}), f32({128})},
          {f32(kX), f32(kRows), f32(kRows)}, 9),
      use("Op/LayerNormGradX", "LayerNormGradX", last,
          {f32(kX), f32(kX), f32({128}), f32(kRows), f32(kRows)}, {f32(kX)}, 9),
      use("Op/LayerNormGradParams", "LayerNormGradParams", last,
          {f32(kX), f32(kX), f32(kRows), f32(kRows)}, {f32({128}), f32({128})}, 9),
      use("Op/Mul/scores_scalar", "Mul", {}, {f32(kS), f32({})}, {f32(kS)}, 8),
      use("Op/Add/mask", "Add", {}, {f32(kS), f32({1, 1, 128, 128})}, {f32(kS)}, 4),
      use("Op/Where/mask", "Where", {}, {mask, f32(kS), f32({})}, {f32(kS)}, 0),
      use("Op/Softmax", "Softmax", inner, {f32(kS)}, {f32(kS)}, 4),
      use("Op/SoftmaxGrad", "SoftmaxGrad", inner, {f32(kS), f32(kS)}, {f32(kS)}, 4),
      use("Op/Slice/qkv", "Slice", slice, {f32(kQkv)}, {f32(kX)}, 12),
      use("Op/Transpose/heads", "Transpose", {{"perm", List{0, 2, 1, 3}}}, {f32(kBthd)},
          {f32(kHeads)}, 32),
      use("Op/Transpose/2d", "Transpose", {{"perm", List{1, 0}}}, {f32({512, 512})},
          {f32({512, 512})}, 0),
      use("Op/Concat/qkv", "Concat", last, {f32(kX), f32(kX), f32(kX)}, {f32(kQkv)}, 4),
      use("Op/ReduceSum/bias384", "ReduceSum", rows, {f32(kQkv)}, {f32({384})}, 4),
      use("Op/ReduceSum/bias128", "ReduceSum", rows, {f32(kX)}, {f32({128})}, 8),
      use("Op/ReduceSum/bias512", "ReduceSum", rows, {f32(kH)}, {f32({512})}, 4),
      use("Op/Gather", "Gather", {{"axis", int64_t{0}}}, {f32({256, 128}), labels}, {f32(kX)}),
      use("Op/GatherGrad", "GatherGrad", {{"axis", int64_t{0}}}, {f32(kX), labels},
          {f32({256, 128})}),
      use("Op/CrossEntropySum", "CrossEntropySum", {}, {f32(kLogits), labels},
          {f32({}), f32({8, 128})}),
      use("Op/CrossEntropyGrad", "CrossEntropyGrad", {},
          {f32(kLogits), labels, f32({8, 128}), f32({})}, {f32(kLogits)}),
      use("Op/SumSquares", "SumSquares", {}, {params}, {real}),
      use("Op/AdamW", "AdamW", {{"weight_decay", 0.1}},
          {params, params, params, params, real, real, step}, {params, params, params}),
  };
}

void op(benchmark::State& state, const Use& u) {
  Runner runner(u);
  for (auto _ : state) runner.run();
  state.SetBytesProcessed(state.iterations() * runner.bytes());
}
void memcpy_of(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<char> from(bytes, 1), to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0));
}
// All uses of a list as often as they stand in a step.
void step(benchmark::State& state, const std::vector<Use>& uses) {
  std::vector<std::pair<std::unique_ptr<Runner>, int>> runners;
  for (const Use& u : uses) {
    if (u.count > 0) runners.emplace_back(std::make_unique<Runner>(u), u.count);
  }
  for (auto _ : state) {
    for (const auto& [runner, count] : runners) {
      for (int i = 0; i < count; ++i) runner->run();
    }
  }
}

void register_all() {
  for (const Product& p : kProducts) {
    benchmark::RegisterBenchmark(("MatMul/" + label_of(p)).c_str(), matmul, p);
    benchmark::RegisterBenchmark(("Dnnl/" + label_of(p)).c_str(), dnnl, p);
  }
  std::vector<Use> products;
  for (const Product& p : kProducts) products.push_back(use_of(p));
  std::vector<Use> all = other_ops();
  for (const Use& u : all) benchmark::RegisterBenchmark(u.label.c_str(), op, u);
  benchmark::RegisterBenchmark("Memcpy", memcpy_of)->Arg(1 << 20)->Arg(1 << 26);
  all.insert(all.end(), products.begin(), products.end());
  benchmark::RegisterBenchmark("Step/products", step, products)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("Step/all", step, all)->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  piper::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
