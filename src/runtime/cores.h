// How many threads a rank computes with, and on which cores.
#pragma once

#include "piper/runtime.h"

namespace piper {

struct Cores {
  int threads = 1;
  std::vector<int> pinned;  // by thread; empty: the system places them
};

// Of the rank with number `place` among `ranks_here` that share this process's cores. Threads are
// pinned where the ranks' threads are as many as the cores: otherwise others need room to move.
Cores cores_of(const JobOptions& options, int64_t place, int64_t ranks_here);

// "2 ranks with 1 thread each, pinned; cpu kernels for AVX3, table of products 1a2b3c4d, entry
// 'any AVX3'"
std::string print_cores(const JobOptions& options, int64_t ranks_here);

// What two ranks must have in common for equal bits: the backend, the kernels it chose, and the
// table by which it cuts products. (Entries of one table may differ: no cut changes a bit.)
std::string kernels_of(const JobOptions& options);

}  // namespace piper
