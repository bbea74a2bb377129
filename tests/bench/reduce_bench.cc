// An all-reduce between threads of one process beside the same between processes:
//   mpirun -n 2 build/tests/reduce_bench [MiB [apart]]     apart: as between hosts
// Rank 0's process takes both times, one after the other, again and again; the best of each count.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <thread>

#include "piper/runtime/transport.h"

namespace piper {
namespace {

constexpr int kRounds = 20;

// Milliseconds; negative: it failed.
double reduce_once(Transport& t, int32_t group, std::vector<float>& data) {
  const Piece piece{reinterpret_cast<std::byte*>(data.data()), DType::kF32,
                    static_cast<int64_t>(data.size())};
  if (!t.control().barrier()) return -1;
  const auto start = std::chrono::steady_clock::now();
  if (!t.fabric().run(group, {.kind = InstructionKind::kAllReduce, .pieces = std::span(&piece, 1)}))
    return -1;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  return took.count();
}

std::vector<int64_t> everyone(const Fabric& t) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < t.world(); ++i) ranks.push_back(i);
  return ranks;
}

// Of two to be added again and again: zeros stay what they are.
double best_of(Transport& t, std::vector<float>& data, int rounds) {
  const auto group = t.fabric().add_group(everyone(t.fabric()));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; group && i < rounds; ++i) best = std::min(best, reduce_once(t, *group, data));
  return best;
}

double between_threads(int64_t world, std::vector<std::vector<float>>& data, int rounds) {
  const auto job = make_inproc_world(world, {});
  std::vector<double> best(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < best.size(); ++r)
    threads.emplace_back(
        [&, r] { best[r] = best_of(job->rank(static_cast<int64_t>(r)), data[r], rounds); });
  for (std::thread& thread : threads) thread.join();
  return best[0];
}

int run(size_t mib, bool apart) {
  const auto mpi =
      make_mpi_transport({.shared_memory = !apart}, launched()->value_or(Launch{}).rank);
  const std::string plan = fmt::format("rank{}", mpi->control().rank());
  if (!mpi->control().agree({"bench", mpi->control().rank(), mpi->control().world(), plan}))
    return 1;
  std::vector<float> own(mib << 18);
  std::vector<std::vector<float>> all;
  if (mpi->control().rank() == 0)
    all.assign(static_cast<size_t>(mpi->control().world()), std::vector<float>(own.size()));
  double threads = std::numeric_limits<double>::infinity(), processes = threads;
  for (int round = 0; round < kRounds; ++round) {
    if (mpi->control().rank() == 0)
      threads = std::min(threads, between_threads(mpi->control().world(), all, 2));
    processes = std::min(processes, best_of(*mpi, own, 2));
  }
  if (mpi->control().rank() == 0)
    fmt::print("{} MiB between {} ranks: threads {:.1f} ms, processes {:.1f} ms, {:.2f} times\n",
               mib, mpi->control().world(), threads, processes, processes / threads);
  return 0;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  return piper::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64, argc > 2);
}
