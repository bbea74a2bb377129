// Work on roles that know nothing of each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace piper {

// Calls work(i) once for each i below `count`, on as many threads as there are cores. The calls
// write to different places, so the result is the same whichever runs first.
template <class Work>
void in_parallel(size_t count, const Work& work) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others(std::min<size_t>(std::thread::hardware_concurrency(), count));
  for (size_t t = 1; t < others.size(); ++t) others[t] = std::jthread(run);
  run();
}

}  // namespace piper
