// Whole training steps of a one-rank plan against the plan's matrix products alone: how far the
// rest of the step is from free.
//
//   step_bench PLANS DATA [STEPS]
//
// The products, those of attention included, are timed one shape at a time with oneDNN, OpenBLAS
// (where it is installed) and the backend's own kernel; steps and products alternate, and the least
// times are compared. One thread.
//
// The least time of a millisecond is free of the system's clock ticks and of cold caches, which a
// step of many has: so all products of a step, each with its best library, are timed in a row, too.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "dnnl.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
#include "piper/runtime/job.h"
#ifndef PIPER_HAS_OPENBLAS
#define PIPER_HAS_OPENBLAS 0
#endif
#if PIPER_HAS_OPENBLAS
#include <cblas.h>
extern "C" void openblas_set_num_threads(int);
#endif

namespace piper {
namespace {

struct Product {
  int64_t batches = 1, m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  auto operator<=>(const Product&) const = default;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Product product_of(const Program& program, const ProgramOp& op) {
  const Shape& a = program.values[static_cast<size_t>(op.inputs[0])].shape;
  const Shape& b = program.values[static_cast<size_t>(op.inputs[1])].shape;
  Product p;
  p.trans_a = op.attrs.integer("trans_a") != 0;
  p.trans_b = op.attrs.integer("trans_b") != 0;
  p.m = a[a.size() - (p.trans_a ? 1 : 2)];
  p.k = a[a.size() - (p.trans_a ? 2 : 1)];
  p.n = b[b.size() - (p.trans_b ? 2 : 1)];
  const int64_t lead = std::accumulate(a.begin(), a.end() - 2, int64_t{1}, std::multiplies<>());
  if (b.size() == 2 && !p.trans_a)
    p.m *= lead;
  else
    p.batches =
        std::max(lead, std::accumulate(b.begin(), b.end() - 2, int64_t{1}, std::multiplies<>()));
  return p;
}

// How often each product is in a step. A causal attention multiplies about half of the scores.
using Products = std::map<Product, double>;

void add_attention(const Program& program, const ProgramOp& op, Products& count) {
  const auto first = op.attrs.integers("tokens_first");
  const auto shape = [&](size_t i) {
    return program.values[static_cast<size_t>(op.inputs[i])].shape;
  };
  const Shape q = shape(0), k = shape(1), v = shape(2);
  const int64_t queries = q[first[0] ? 1 : 2], keys = k[first[1] ? 1 : 2];
  const int64_t heads = q[0] * q[first[0] ? 2 : 1];
  const double part = op.attrs.integer("causal") ? (1 + 1 / static_cast<double>(keys)) / 2 : 1;
  const Product scores{heads, queries, keys, q[3], false, true};
  const Product values{heads, queries, v[3], keys, false, false};
  count[scores] += part;
  if (op.op == "Attention") {
    count[values] += part;
    return;
  }
  count[{heads, queries, keys, v[3], false, true}] += part;   // the weights' gradients
  count[{heads, keys, v[3], queries, true, false}] += part;   // dv
  count[{heads, queries, q[3], keys, false, false}] += part;  // dq
  count[{heads, keys, q[3], queries, true, false}] += part;   // dk
}

Products products_of(const RoleProgram& role) {
  Products count;
  for (const Instruction& instruction : role.body) {
    if (instruction.kind != InstructionKind::kCompute) continue;
    const Program& program = role.programs[static_cast<size_t>(instruction.program)];
    for (const ProgramOp& op : program.ops) {
      if (op.op == "MatMul" || op.op == "Linear") count[product_of(program, op)] += 1;
      if (op.op == "Attention" || op.op == "AttentionGrad") add_attention(program, op, count);
    }
  }
  return count;
}

class Timer {
 public:
  explicit Timer(const Product& p)
      : p_(p),
        a_(static_cast<size_t>(p.batches * p.m * p.k), 0.5f),
        b_(static_cast<size_t>(p.batches * p.k * p.n), 0.25f),
        c_(static_cast<size_t>(p.batches * p.m * p.n)) {
    prepare_own();
  }

  // Seconds of one product with each library: {oneDNN, OpenBLAS, own}.
  std::vector<double> measure() {
    std::vector<double> seconds;
    for (size_t library = 0; library < 3; ++library)
      seconds.push_back(library == 1 && !PIPER_HAS_OPENBLAS ? INFINITY
                                                            : best([&] { run(library); }));
    return seconds;
  }
  void run(size_t library) {
    if (library == 0) return with_dnnl();
#if PIPER_HAS_OPENBLAS
    if (library == 1) return with_openblas();
#endif
    backend_->launch(binding_);
  }

 private:
  template <class F>
  double best(F f) {
    f();
    const double flops = 2.0 * static_cast<double>(p_.batches * p_.m * p_.n * p_.k);
    const int repeats = std::max(1, static_cast<int>(1e8 / flops));
    double least = INFINITY;
    for (int round = 0; round < 7; ++round) {
      const double start = now();
      for (int i = 0; i < repeats; ++i) f();
      least = std::min(least, (now() - start) / repeats);
    }
    return least;
  }
  void with_dnnl() {
    for (int64_t i = 0; i < p_.batches; ++i)
      dnnl_sgemm(p_.trans_a ? 'T' : 'N', p_.trans_b ? 'T' : 'N', p_.m, p_.n, p_.k, 1,
                 a_.data() + i * p_.m * p_.k, p_.trans_a ? p_.m : p_.k, b_.data() + i * p_.k * p_.n,
                 p_.trans_b ? p_.k : p_.n, 0, c_.data() + i * p_.m * p_.n, p_.n);
  }
#if PIPER_HAS_OPENBLAS
  void with_openblas() {
    for (int64_t i = 0; i < p_.batches; ++i)
      cblas_sgemm(CblasRowMajor, p_.trans_a ? CblasTrans : CblasNoTrans,
                  p_.trans_b ? CblasTrans : CblasNoTrans, static_cast<int>(p_.m),
                  static_cast<int>(p_.n), static_cast<int>(p_.k), 1, a_.data() + i * p_.m * p_.k,
                  static_cast<int>(p_.trans_a ? p_.m : p_.k), b_.data() + i * p_.k * p_.n,
                  static_cast<int>(p_.trans_b ? p_.k : p_.n), 0, c_.data() + i * p_.m * p_.n,
                  static_cast<int>(p_.n));
  }
#endif
  // Its program is known to be right: a failure leaves nothing to run.
  void prepare_own() {
    const auto shape = [&](int64_t rows, int64_t columns, bool swapped) {
      return Shape{p_.batches, swapped ? columns : rows, swapped ? rows : columns};
    };
    FusedProgram program;
    program.values = {{DType::kF32, shape(p_.m, p_.k, p_.trans_a)},
                      {DType::kF32, shape(p_.k, p_.n, p_.trans_b)},
                      {DType::kF32, shape(p_.m, p_.n, false)}};
    program.num_args = 3;
    program.arg_read = {true, true, false};
    program.arg_written = {false, false, true};
    Attrs attrs;
    attrs.set("trans_a", int64_t{p_.trans_a});
    attrs.set("trans_b", int64_t{p_.trans_b});
    program.ops = {{"MatMul", attrs, {0, 1}, {2}}};
    std::byte* args[] = {reinterpret_cast<std::byte*>(a_.data()),
                         reinterpret_cast<std::byte*>(b_.data()),
                         reinterpret_cast<std::byte*>(c_.data())};
    binding_ = *backend_->bind(*backend_->load(program), args, nullptr);
  }

  Product p_;
  std::vector<float> a_, b_, c_;
  std::unique_ptr<CpuBackend> backend_ = make_cpu_backend();
  int32_t binding_ = 0;
};

// Seconds of one op alone, on data of its own: halves, zeros for integers.
double time_op(const FusedProgram& program, const ProgramOp& op) {
  FusedProgram alone;
  std::map<int32_t, int32_t> id;
  std::vector<std::vector<std::byte>> data;
  ProgramOp copy{op.op, op.attrs, {}, {}};
  const auto value = [&](int32_t v) {
    if (v < 0) return v;
    const auto [it, is_new] = id.try_emplace(v, static_cast<int32_t>(alone.values.size()));
    if (!is_new) return it->second;
    const TensorType& type = program.values[static_cast<size_t>(v)];
    alone.values.push_back(type);
    std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()) + 64);
    if (type.dtype == DType::kF32)
      for (int64_t i = 0; i < num_elements(type.shape); ++i)
        reinterpret_cast<float*>(bytes.data())[i] = 0.5f + static_cast<float>(i % 7) / 8;
    data.push_back(std::move(bytes));
    return it->second;
  };
  for (int32_t v : op.inputs) copy.inputs.push_back(value(v));
  alone.arg_read.assign(alone.values.size(), true);
  alone.arg_written.assign(alone.values.size(), false);
  for (int32_t v : op.outputs) copy.outputs.push_back(value(v));
  alone.arg_read.resize(alone.values.size(), false);
  alone.arg_written.resize(alone.values.size(), true);
  for (int32_t o : copy.outputs) alone.arg_written[static_cast<size_t>(o)] = true;
  alone.num_args = static_cast<int32_t>(alone.values.size());
  alone.ops = {std::move(copy)};
  const auto backend = make_cpu_backend();
  const auto loaded = backend->load(alone);
  if (!loaded) return 0;
  std::vector<std::byte*> args;
  for (auto& bytes : data) args.push_back(bytes.data());
  const auto binding = backend->bind(*loaded, args, nullptr);
  if (!binding) return 0;
  double least = INFINITY;
  for (int round = 0; round < 5; ++round) {
    const double start = now();
    backend->launch(*binding);
    least = std::min(least, now() - start);
  }
  return least;
}

// What each op of the step, joined as the backend joins them, takes on its own, by name: where the
// time beside the products goes.
void print_ops(const RoleProgram& role) {
  std::map<std::string, double> by_op, known;
  FuseCounts counts;
  std::vector<FusedProgram> joined;
  for (const Program& program : role.programs) joined.push_back(fuse(program, counts));
  for (const Instruction& instruction : role.body) {
    if (instruction.kind != InstructionKind::kCompute) continue;
    const FusedProgram& program = joined[static_cast<size_t>(instruction.program)];
    for (const ProgramOp& op : program.ops) {
      std::string key = op.op + print_attrs(op.attrs);
      for (int32_t v : op.inputs)
        key += v < 0 ? " _" : " " + to_string(program.values[static_cast<size_t>(v)]);
      const auto [it, is_new] = known.try_emplace(key, 0);
      if (is_new) it->second = time_op(program, op);
      by_op[op.op] += it->second;
    }
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [op, seconds] : by_op) order.emplace_back(-seconds, op);
  std::sort(order.begin(), order.end());
  for (const auto& [seconds, op] : order)
    if (-seconds > 2e-4) std::printf("%8.2f ms  %s\n", -seconds * 1e3, op.c_str());
}

// Seconds of all products of a step, one after the other, each with the library that was fastest.
// What is missing to whole numbers of them is added by their least times.
double in_a_row(const Products& products, const std::map<Product, std::vector<double>>& least,
                std::map<Product, Timer>& timers) {
  double rest = 0;
  const double start = now();
  for (const auto& [product, count] : products) {
    const std::vector<double>& seconds = least.at(product);
    const auto best = std::min_element(seconds.begin(), seconds.end());
    Timer& timer = timers.at(product);
    for (int64_t i = 0; i < std::lround(count); ++i)
      timer.run(static_cast<size_t>(best - seconds.begin()));
    rest += (count - static_cast<double>(std::lround(count))) * *best;
  }
  return now() - start + rest;
}

int report(const Error& error) {
  std::fputs(print_error(error).c_str(), stderr);
  return 1;
}

int run(const std::string& plans, const std::string& source, int64_t steps) {
  auto set = read_plan_set(plans);
  if (!set) return report(set.error());
  if (const Status loaded = load_params(*set); !loaded) return report(loaded.error());
  const auto needs = data_needs(*set);
  if (!needs) return report(needs.error());
  DataOptions data_options;
  data_options.sources = {source};
  const auto data = open_data(data_options, *needs, set->roles[0].batch);
  if (!data) return report(data.error());
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  print_ops(set->roles[0]);
  // Others' work on the machine only ever adds time: the least of each is compared.
  double step_ms = INFINITY, row_ms = INFINITY;
  const auto products = products_of(set->roles[0]);
  std::map<Product, std::vector<double>> least;  // by library
  std::map<Product, Timer> timers;
  for (const auto& [product, count] : products) timers.try_emplace(product, product);
  for (int round = 0; round < 5; ++round) {
    const auto job = run_job(*set, data->get(), nullptr, nullptr, options);
    if (!job) return report(job.error());
    for (const StepMetrics& step : job->steps) step_ms = std::min(step_ms, step.step_ms);
    for (const auto& [product, count] : products) {
      std::vector<double>& known = least[product];
      const std::vector<double> seconds = timers.at(product).measure();
      known.resize(seconds.size(), INFINITY);
      for (size_t i = 0; i < seconds.size(); ++i) known[i] = std::min(known[i], seconds[i]);
    }
    for (int64_t i = 0; i < steps; ++i)
      row_ms = std::min(row_ms, in_a_row(products, least, timers) * 1e3);
  }
  double best_ms = 0, own_ms = 0;
  for (const auto& [product, count] : products) {
    const std::vector<double>& s = least[product];
    best_ms += count * *std::min_element(s.begin(), s.end()) * 1e3;
    own_ms += count * s.back() * 1e3;
    const double gflop =
        2e-9 * static_cast<double>(product.batches * product.m * product.n * product.k);
    std::printf(
        "%5.1f x %4ld x [%5ld x %5ld x %5ld]%s%s  GFLOP/s: oneDNN %6.1f  OpenBLAS %6.1f  own "
        "%6.1f\n",
        count, product.batches, product.m, product.n, product.k, product.trans_a ? " aT" : "   ",
        product.trans_b ? " bT" : "   ", gflop / s[0], gflop / s[1], gflop / s[2]);
  }
  std::printf(
      "step %.2f ms; its matrix products alone %.2f ms with the best library for each, %.2f "
      "ms with the backend's kernels, %.2f ms in a row with the best library for each; ratios "
      "%.3f, "
      "%.3f and %.3f (least of all rounds)\n",
      step_ms, best_ms, own_ms, row_ms, step_ms / best_ms, step_ms / own_ms, step_ms / row_ms);
  return 0;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: step_bench PLANS DATA [STEPS]\n");
    return 2;
  }
#if PIPER_HAS_OPENBLAS
  openblas_set_num_threads(1);
#endif
  return piper::run(argv[1], argv[2], argc > 3 ? std::atol(argv[3]) : 12);
}
