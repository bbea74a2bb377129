// Products of rows with the matrix that each names, beside a copy of a matrix for each row, as
// models write it, and beside one product of as many rows; and rows that go to the threads that own
// what they name, beside a gather of all.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
#include "piper/runtime/transport.h"

namespace piper {
namespace {

constexpr int kRounds = 15;
constexpr int64_t kRows = 1024, kWidth = 128, kHidden = 256, kExperts = 8;

int64_t expert_of(int64_t row) { return row * 7919 % 1000 % kExperts; }

// Ops one after the other, on one thread.
class Runner {
 public:
  explicit Runner(const std::vector<TensorType>& types, std::vector<ProgramOp> ops)
      : backend_(make_cpu_backend()) {
    FusedProgram program;
    program.values = types;
    program.ops = std::move(ops);
    program.num_args = static_cast<int32_t>(types.size());
    std::vector<std::byte*> args;
    for (const TensorType& type : types) {
      args.push_back(*backend_->allocate(type.bytes()));
      for (int64_t i = 0; i < num_elements(type.shape); ++i)
        if (type.dtype == DType::kI64)
          reinterpret_cast<int64_t*>(args.back())[i] = expert_of(i);
        else
          reinterpret_cast<float*>(args.back())[i] = static_cast<float>(i * 7919 % 1000) / 500 - 1;
    }
    const auto loaded = backend_->load(program);
    PIPER_CHECK(loaded.ok(), "{}", loaded.error().message);
    binding_ = *backend_->bind(*loaded, args, nullptr);
  }
  void run() { backend_->launch(binding_); }

 private:
  std::unique_ptr<Backend> backend_;
  int32_t binding_ = 0;
};

double milliseconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  return took.count();
}

TensorType f32(Shape shape) { return {DType::kF32, std::move(shape)}; }

void compare_products() {
  const TensorType index{DType::kI64, {kRows}}, w = f32({kExperts, kWidth, kHidden}),
                                                x = f32({kRows, kWidth}), y = f32({kRows, kHidden});
  Runner grouped({x, index, w, y}, {{"GroupedMatMul", {{"trans_b", int64_t{0}}}, {0, 1, 2}, {3}}});
  const Attrs plain{{"trans_a", int64_t{0}}, {"trans_b", int64_t{0}}};
  Runner written(
      {f32({kRows, 1, kWidth}), index, w, f32({kRows, kWidth, kHidden}), f32({kRows, 1, kHidden})},
      {{"Gather", {{"axis", int64_t{0}}}, {2, 1}, {3}}, {"MatMul", plain, {0, 3}, {4}}});
  Runner one({x, f32({kWidth, kHidden}), y}, {{"MatMul", plain, {0, 1}, {2}}});
  double best[3] = {1e30, 1e30, 1e30};
  for (int round = 0; round < kRounds; ++round) {
    Runner* const all[] = {&grouped, &written, &one};
    for (int k = 0; k < 3; ++k) best[k] = std::min(best[k], milliseconds([&] { all[k]->run(); }));
  }
  std::printf(
      "%ld rows of %ld by %ld matrices of %ld columns: %.2f ms, as written %.2f ms (%.1f "
      "times), one product %.2f ms\n",
      kRows, kWidth, kExperts, kHidden, best[0], best[1], best[1] / best[0], best[2]);
}

void compare_messages(int64_t world) {
  const auto job = make_inproc_world(world, {});
  std::vector<double> sent(static_cast<size_t>(world), 1e30), gathered = sent;
  const auto body = [&](size_t r) {
    Fabric& t = job->rank(static_cast<int64_t>(r)).fabric();
    std::vector<int64_t> ranks, index;
    for (int64_t k = 0; k < world; ++k) ranks.push_back(k);
    for (int64_t i = 0; i < kRows; ++i) index.push_back(expert_of(i));
    std::vector<float> whole(kRows * kWidth, 1), part(whole.size() / ranks.size(), 2);
    const auto group = t.add_group(ranks);
    const Rows rows{reinterpret_cast<std::byte*>(whole.data()),
                    reinterpret_cast<std::byte*>(part.data()),
                    reinterpret_cast<const std::byte*>(index.data()),
                    true,
                    kRows,
                    kWidth * 4,
                    1,
                    world,
                    kExperts / world};
    const Shard shard{rows.whole, rows.part, DType::kF32, kRows * kWidth, kRows * kWidth / world};
    for (int round = 0; round < kRounds; ++round) {
      sent[r] = std::min(
          sent[r], milliseconds([&] {
            PIPER_CHECK(
                t.run(*group, {.kind = InstructionKind::kDispatch, .rows = std::span(&rows, 1)}) &&
                    t.run(*group, {.kind = InstructionKind::kCombine, .rows = std::span(&rows, 1)}),
                "rows that do not go");
          }));
      gathered[r] = std::min(
          gathered[r], milliseconds([&] {
            PIPER_CHECK(
                t.run(*group, {.kind = InstructionKind::kAllGather, .shards = {&shard, 1}}) &&
                    t.run(*group, {.kind = InstructionKind::kReduceScatter, .shards = {&shard, 1}}),
                "rows that are not gathered");
          }));
    }
  };
  std::vector<std::thread> threads;
  for (size_t r = 0; r < sent.size(); ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
  std::printf("%ld rows of %ld to %ld threads and back: %.3f ms, gathered and summed %.3f ms\n",
              kRows, kWidth, world, sent[0], gathered[0]);
}

}  // namespace
}  // namespace piper

int main() {
  piper::compare_products();
  for (const int64_t world : {2, 4}) piper::compare_messages(world);
}
