// What the executor itself costs: steps of synthetic role programs on the null backend, in
// nanoseconds per instruction.
#include <benchmark/benchmark.h>

#include <thread>

#include "piper/devices/null.h"
#include "unit/runtime_plans.h"

namespace piper {
namespace {

constexpr int32_t kInstructions = 10000;

// One rank, one program launched again and again.
PlanSet chain() {
  RoleProgram role;
  for (const char* name : {"a", "b"}) plans::add_buffer(role, name, {1});
  role.programs = {plans::add_program({1}, true)};
  for (int32_t i = 0; i < kInstructions; ++i) {
    role.body.push_back(plans::compute(0, {i % 2, 1 - i % 2}, "chunk", TaskPass::kF, 0, i));
  }
  role.batch = 1;
  return plans::finish({role}, {0});
}

void report_per_instruction(benchmark::State& state, int64_t instructions) {
  state.counters["per_instruction"] = benchmark::Counter(
      static_cast<double>(instructions),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// trace: with the times of every instruction kept, as --trace does.
void compute_chain(benchmark::State& state) {
  PlanSet set = chain();
  auto world = make_inproc_world(1, {});
  auto backend = make_null_backend();
  RankSource source;
  source.set = &set;
  source.trace_steps = state.range(0);
  auto executor =
      Executor::load(source, *backend, world->rank(0).control(), world->rank(0).fabric());
  if (!executor) return state.SkipWithError(executor.error().message.c_str());
  int64_t step = 0;
  for (auto _ : state) {
    if (Status status = (*executor)->run_step(step++); !status) {
      return state.SkipWithError(status.error().message.c_str());
    }
  }
  report_per_instruction(state, kInstructions);
}
BENCHMARK(compute_chain)->ArgName("trace")->Arg(0)->Arg(1);

// Two ranks in a pipeline of 1,000 microbatches: input, compute and send on one, receive and
// compute on the other.
void pipeline(benchmark::State& state) {
  constexpr int32_t kMicrobatches = 1000;
  PlanSet set = plans::pipeline(kMicrobatches);
  plans::Numbers data({1});
  auto world = make_inproc_world(2, {});
  std::unique_ptr<Backend> backends[] = {make_null_backend(), make_null_backend()};
  std::unique_ptr<Executor> executors[2];
  for (int64_t rank = 0; rank < 2; ++rank) {
    RankSource source;
    source.set = &set;
    source.rank = rank;
    source.data = &data;
    auto executor = Executor::load(source, *backends[rank], world->rank(rank).control(),
                                   world->rank(rank).fabric());
    if (!executor) return state.SkipWithError(executor.error().message.c_str());
    executors[rank] = *std::move(executor);
  }
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (int64_t step = 0;; ++step) {
      if (!world->rank(1).control().barrier() || stop.load()) return;
      if (!executors[1]->run_step(step)) return;
    }
  });
  int64_t step = 0;
  for (auto _ : state) {
    bool done = world->rank(0).control().barrier().ok() && executors[0]->run_step(step++).ok();
    if (!done) {
      state.SkipWithError("a rank failed");
      break;
    }
  }
  stop.store(true);
  (void)world->rank(0).control().barrier();
  other.join();
  report_per_instruction(state, static_cast<int64_t>(set.roles[0].body.size()));
}
BENCHMARK(pipeline)->UseRealTime();

// Four ranks add gradients of this many bytes.
void all_reduce(benchmark::State& state) {
  constexpr int64_t kRanks = 4;
  int64_t count = state.range(0) / 4;
  auto world = make_inproc_world(kRanks, {});
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(static_cast<size_t>(count), 1));
  const int64_t all[] = {0, 1, 2, 3};
  std::atomic<bool> stop{false};
  // Rank 0 decides, and all learn it from the first barrier of a round.
  auto round = [&](int64_t rank, int32_t group) {
    Transport& transport = world->rank(rank);
    if (!transport.control().barrier() || stop.load()) return false;
    const Piece pieces[] = {
        {reinterpret_cast<std::byte*>(data[static_cast<size_t>(rank)].data()), DType::kF32, count}};
    return transport.fabric()
        .run(group, {.kind = InstructionKind::kAllReduce, .pieces = pieces})
        .ok();
  };
  std::vector<std::thread> others;
  for (int64_t rank = 1; rank < kRanks; ++rank) {
    others.emplace_back([&, rank] {
      auto group = world->rank(rank).fabric().add_group(all);
      while (round(rank, *group)) {
      }
    });
  }
  auto group = world->rank(0).fabric().add_group(all);
  for (auto _ : state) round(0, *group);
  stop.store(true);
  (void)world->rank(0).control().barrier();
  for (std::thread& thread : others) thread.join();
  state.SetBytesProcessed(state.iterations() * count * 4);
}
BENCHMARK(all_reduce)->Arg(64)->Arg(1 << 20)->Arg(16 << 20)->UseRealTime();

}  // namespace
}  // namespace piper

BENCHMARK_MAIN();
