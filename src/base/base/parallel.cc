// Runs independent calls on as many threads as there are cores.
#include "piper/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace piper {

void in_parallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  const size_t threads = std::min<size_t>(std::thread::hardware_concurrency(), count);
  std::vector<std::jthread> others;
  try {
    for (size_t t = 1; t < threads; ++t) others.emplace_back(run);
  } catch (const std::system_error&) {
    // The system grants no more threads: those that run do all.
  }
  run();
}

}  // namespace piper
