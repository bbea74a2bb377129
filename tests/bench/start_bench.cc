// How long the processes of a job take to find each other over TCP, to compare their plans and to
// meet:
//   build/tests/start_bench [RANKS]
// All are there and wait for a word when the clock starts; the last one of them counts.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "piper/runtime/transport.h"
#include "shell.h"

namespace piper {
namespace {

constexpr int kBarriers = 10;

struct Times {  // seconds of the machine's steady clock
  double begun = 0, started = 0, agreed = 0, met = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Status run_rank(int64_t rank, int64_t world, const std::string& at, Times& times) {
  times.begun = now();
  PIPER_ASSIGN(const auto transport, make_tcp_transport({}, rank, world, at));
  times.started = now();
  Control& control = transport->control();
  PIPER_TRY(control.agree({"bench", rank, world, "plans", "cpu", {{"--steps", "1"}}}));
  times.agreed = now();
  for (int i = 0; i < kBarriers; ++i) PIPER_TRY(control.barrier());
  times.met = now();
  return ok_status();
}

// All forked processes, which begin when the pipe closes.
int run(int64_t world) {
  const size_t bytes = static_cast<size_t>(world) * sizeof(Times);
  void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const std::span times(static_cast<Times*>(shared), static_cast<size_t>(world));
  const std::string at = fmt::format("127.0.0.1:{}", free_port());
  int gate[2];
  if (shared == MAP_FAILED || pipe(gate) != 0) return 1;
  for (int64_t rank = 0; rank < world; ++rank) {
    if (fork() != 0) continue;
    close(gate[1]);
    char word = 0;
    if (read(gate[0], &word, 1) != 0) _exit(1);
    const Status done = run_rank(rank, world, at, times[static_cast<size_t>(rank)]);
    if (!done) fmt::print(stderr, "{}", print_error(done.error()));
    _exit(done ? 0 : 1);
  }
  sleep(1);  // until all wait
  const double start = now();
  close(gate[1]);
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += status != 0 ? 1 : 0;
  const auto last = [&](double Times::*what) {
    return std::ranges::max(times, {}, what).*what - start;
  };
  const double started = last(&Times::started), agreed = last(&Times::agreed);
  fmt::print(
      "{} processes: all have started after {:.0f} ms, agreed after {:.0f} ms; a barrier "
      "{:.1f} ms; {} failed\n",
      world, started * 1e3, agreed * 1e3, (last(&Times::met) - agreed) * 1e3 / kBarriers, failed);
  return failed;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  return piper::run(argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 256);
}
