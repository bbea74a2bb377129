// Attention, forward and backward, beside the matrix products of full attention alone, on one
// thread; the two alternate, and least times are compared.
//
//   attention_bench            the sample GPT's shape, longer contexts, grouped queries
//   attention_bench I ROUNDS   the shape I alone; behind the last one, a causal ring of 4 ranks,
//   its
//                              tokens in a row and in zigzag: in each turn all wait for the slowest
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "piper/devices/cpu.h"
#include "piper/devices/program.h"

namespace piper {
namespace {

struct Shape5 {
  int64_t batch, heads, kv_heads, tokens, width;
  bool causal;
};

// One op on buffers of its own.
class Runner {
 public:
  // `numbers`: behind an input that is absent.
  Runner(const std::string& op, Attrs attrs, const std::vector<Shape>& inputs,
         const std::vector<Shape>& outputs, const std::vector<std::vector<int64_t>>& numbers = {})
      : backend_(make_cpu_backend()) {
    FusedProgram program;
    program.label = op;
    ProgramOp use{op, std::move(attrs), {}, {}};
    std::vector<std::byte*> args;
    const auto add = [&](const Shape& shape, std::vector<int32_t>& ids) {
      ids.push_back(static_cast<int32_t>(program.values.size()));
      program.values.push_back({DType::kF32, shape});
      args.push_back(*backend_->allocate(program.values.back().bytes()));
      auto* f = reinterpret_cast<float*>(args.back());
      for (int64_t i = 0; i < num_elements(shape); ++i)
        f[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
    };
    for (const Shape& shape : inputs) add(shape, use.inputs);
    if (!numbers.empty()) use.inputs.push_back(-1);
    for (const std::vector<int64_t>& each : numbers) {
      use.inputs.push_back(static_cast<int32_t>(program.values.size()));
      program.values.push_back({DType::kI64, {std::ssize(each)}});
      args.push_back(*backend_->allocate(program.values.back().bytes()));
      std::copy(each.begin(), each.end(), reinterpret_cast<int64_t*>(args.back()));
    }
    for (const Shape& shape : outputs) add(shape, use.outputs);
    program.num_args = static_cast<int32_t>(program.values.size());
    program.ops = {use};
    auto loaded = backend_->load(program);
    PIPER_CHECK(loaded.ok(), "{}", loaded.error().message);
    binding_ = *backend_->bind(*loaded, args, nullptr);
  }
  void run() { backend_->launch(binding_); }

 private:
  std::unique_ptr<Backend> backend_;
  int32_t binding_ = 0;
};

double seconds(std::vector<Runner>& runners) {
  const auto start = std::chrono::steady_clock::now();
  for (Runner& runner : runners) runner.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Runner product(const Shape5& s, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
  const int64_t all = s.batch * s.heads;
  const Shape a = trans_a ? Shape{all, k, m} : Shape{all, m, k};
  const Shape b = trans_b ? Shape{all, n, k} : Shape{all, k, n};
  return {"MatMul",
          {{"trans_a", int64_t{trans_a}}, {"trans_b", int64_t{trans_b}}},
          {a, b},
          {{all, m, n}}};
}

double least(const std::vector<double>& x) { return *std::min_element(x.begin(), x.end()); }

void compare(const Shape5& s, int rounds) {
  const Shape q{s.batch, s.tokens, s.heads, s.width}, k{s.batch, s.tokens, s.kv_heads, s.width};
  const Shape lse{s.batch, s.heads, s.tokens};
  const Attrs attrs{{"tokens_first", std::vector<int64_t>{1, 1, 1, 1}},
                    {"scale", 1 / std::sqrt(static_cast<double>(s.width))},
                    {"causal", int64_t{s.causal}},
                    {"offset", int64_t{0}}};
  const int64_t t = s.tokens, w = s.width;
  std::vector<Runner> forward, backward, two, five;
  forward.emplace_back("Attention", attrs, std::vector{q, k, k}, std::vector{q, lse});
  backward.emplace_back("AttentionGrad", attrs, std::vector{q, k, k, q, lse, q},
                        std::vector{q, k, k});
  two.push_back(product(s, t, t, w, false, true));    // q · kᵀ
  two.push_back(product(s, t, w, t, false, false));   // weights · v
  five.push_back(product(s, t, t, w, false, true));   // the weights again
  five.push_back(product(s, t, t, w, false, true));   // dy · vᵀ
  five.push_back(product(s, t, w, t, true, false));   // dv
  five.push_back(product(s, t, w, t, false, false));  // dq
  five.push_back(product(s, t, w, t, true, false));   // dk
  std::vector<double> f, b, p2, p5;
  for (int i = 0; i < rounds; ++i) {
    f.push_back(seconds(forward)), p2.push_back(seconds(two));
    b.push_back(seconds(backward)), p5.push_back(seconds(five));
  }
  std::printf("%3lld %3lld/%-3lld %5lld %4lld %6s  %8.3f %8.3f %5.2f  %8.3f %8.3f %5.2f  %5.2f\n",
              (long long)s.batch, (long long)s.heads, (long long)s.kv_heads, (long long)t,
              (long long)w, s.causal ? "causal" : "full", least(f) * 1e3, least(p2) * 1e3,
              least(f) / least(p2), least(b) * 1e3, least(p5) * 1e3, least(b) / least(p5),
              (least(f) + least(b)) / (least(p2) + least(p5)));
}

// Milliseconds of the slowest rank in each turn, forward and backward, all turns together.
double ring(int64_t ranks, int64_t tokens, bool zigzag, int rounds) {
  const int64_t own = tokens / ranks;
  const Shape q{1, own, 4, 64}, lse{1, 4, own};
  const Attrs attrs{
      {"tokens_first", std::vector<int64_t>{1, 1, 1, 1}}, {"scale", 0.125}, {"causal", int64_t{1}}};
  const auto first = [&](int64_t r) {
    return zigzag ? std::vector{r * own / 2, (2 * ranks - 1 - r) * own / 2} : std::vector{r * own};
  };
  double all = 0;
  for (int64_t turn = 0; turn < ranks; ++turn) {
    double slowest = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const std::vector numbers{first(r), first((r + ranks - turn) % ranks)};
      std::vector<Runner> both;
      both.emplace_back("Attention", attrs, std::vector{q, q, q}, std::vector{q, lse}, numbers);
      both.emplace_back("AttentionGrad", attrs, std::vector{q, q, q, q, lse, q},
                        std::vector{q, q, q}, numbers);
      std::vector<double> times;
      for (int i = 0; i < rounds; ++i) times.push_back(seconds(both));
      slowest = std::max(slowest, least(times));
    }
    all += slowest;
  }
  return all * 1e3;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  const std::vector<piper::Shape5> shapes{{8, 4, 4, 128, 32, true},  {8, 4, 4, 128, 32, false},
                                          {4, 6, 6, 256, 64, true},  {1, 8, 8, 1024, 64, true},
                                          {1, 8, 2, 1024, 64, true}, {1, 8, 8, 1024, 64, false},
                                          {1, 4, 4, 512, 128, true}, {1, 2, 2, 4096, 64, true}};
  const int only = argc > 1 ? std::atoi(argv[1]) : -1, rounds = argc > 2 ? std::atoi(argv[2]) : 25;
  std::printf(
      "  B H/kv       T    D          forward products ratio  backward products ratio  both\n");
  for (size_t i = 0; i < shapes.size(); ++i)
    if (only < 0 || only == static_cast<int>(i)) piper::compare(shapes[i], rounds);
  if (only < 0 || only == static_cast<int>(shapes.size()))
    for (const bool zigzag : {false, true})
      std::printf("ring of 4, 4096 tokens, %s: %.3f\n", zigzag ? "in zigzag" : "in a row",
                  piper::ring(4, 4096, zigzag, rounds));
}
