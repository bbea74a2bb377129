// Runs independent calls on as many threads as there are cores.
#include "piper/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace piper {
namespace {

thread_local bool is_one_of_several = false;

}  // namespace

void in_parallel(size_t count, const std::function<void(size_t)>& work, size_t most) {
  if (most == 0) most = std::max(1u, std::thread::hardware_concurrency());
  const size_t threads = is_one_of_several ? 1 : std::min(most, count);
  std::atomic<size_t> next{0};
  const auto run = [&] {
    const bool was = std::exchange(is_one_of_several, is_one_of_several || threads > 1);
    for (size_t i = next++; i < count; i = next++) work(i);
    is_one_of_several = was;
  };
  std::vector<std::jthread> others;
  try {
    for (size_t t = 1; t < threads; ++t) others.emplace_back(run);
  } catch (const std::system_error&) {
    // The system grants no more threads: those that run do all.
  }
  run();
}

void in_parallel_in_order(size_t count, const std::function<void(size_t)>& before,
                          const std::function<void(size_t)>& work,
                          const std::function<void(size_t)>& after, size_t most) {
  std::vector<bool> ended(count);
  size_t next = 0;   // of `after`
  std::mutex mutex;  // for `ended`, `next` and what `before` and `after` change
  const auto in_turn = [&](size_t i) {
    {
      const std::scoped_lock lock(mutex);
      before(i);
    }
    work(i);
    const std::scoped_lock lock(mutex);
    ended[i] = true;
    while (next < count && ended[next]) after(next++);
  };
  in_parallel(count, in_turn, most);
}

}  // namespace piper
