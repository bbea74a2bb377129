// How many threads a rank computes with, and on which cores.
#pragma once

#include "piper/runtime/job.h"

namespace piper {

struct Cores {
  int threads = 1;
  std::vector<int> pinned;  // by thread; empty: the system places them
  bool helper = false;      // a thread that communicates, see RankSource::helper
  int helper_core = -1;     // where it is pinned
  int64_t place = 0;        // of the rank among those here
  int64_t ranks = 1;        // so many are here
  bool is_process = false;  // BackendOptions::is_process
};

// Of the rank with number `place` among `ranks_here` that share this process's cores. Threads are
// pinned where the ranks' threads are as many as the cores: otherwise others need room to move.
//
// Where the plans' streams have something to overlap (`can_overlap`), a rank has a helper if it is
// asked for, or if a core is left: one that --threads leaves, or one of at least four.
Cores cores_of(const JobOptions& options, bool can_overlap, int64_t place, int64_t ranks_here);
// Returns the cores of a rank that is this process. Unless it is bound to some, it shares them with
// the ranks that the launcher says it has started on this host. If the launcher says nothing, it
// shares them with all ranks and pins nothing, as others may be elsewhere.
Cores cores_of_process(const JobOptions& options, bool can_overlap, int64_t rank, int64_t world);
bool can_overlap(const PlanSet& set);

// "2 ranks with 1 thread each, pinned; cpu kernels for AVX3, table of products 1a2b3c4d, entry
// 'any AVX3'"; "2 ranks with 3 threads and a helper each".
std::string print_cores(const JobOptions& options, const PlanSet& set, bool is_process);

// Returns what two ranks must have in common for equal bits: the backend, the kernels it chose, and
// the table by which it cuts products. (Entries of one table may differ: no cut changes a bit.)
std::string kernels_of(const JobOptions& options);
// Sets what the backend's libraries read of the environment, and returns the values that it
// replaced, as NAME=VALUE. Requires that no other thread runs.
std::vector<std::string> begin_backend(const JobOptions& options, const PlanSet& set);

}  // namespace piper
