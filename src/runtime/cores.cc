#include "cores.h"

#include <sched.h>

#include <algorithm>

#include "piper/backend.h"

namespace piper {
namespace {

std::vector<int> cores_here() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

}  // namespace

Cores cores_of(const JobOptions& options, int64_t place, int64_t ranks_here) {
  const std::vector<int> all = cores_here();
  const auto count = static_cast<int64_t>(all.size());
  Cores cores;
  cores.threads =
      options.threads > 0
          ? options.threads
          : static_cast<int>(std::max<int64_t>(1, count / std::max<int64_t>(ranks_here, 1)));
  if (count < 2 || ranks_here * cores.threads != count) return cores;
  const auto first = all.begin() + place * cores.threads;
  cores.pinned.assign(first, first + cores.threads);
  return cores;
}

std::string kernels_of(const JobOptions& options) {
  if (options.backend != "cpu") return fmt::format("backend {}", options.backend);
  return fmt::format("cpu kernels for {}, table of products {}", cpu_kernels(),
                     std::string_view(cpu_products().digest).substr(0, 8));
}

std::string print_cores(const JobOptions& options, int64_t ranks_here) {
  const Cores cores = cores_of(options, 0, ranks_here);
  const std::string cuts =
      options.backend == "cpu" ? fmt::format(", entry '{}'", cpu_products().entry) : "";
  return fmt::format("{} rank{} with {} thread{} each{}; {}{}", ranks_here,
                     ranks_here == 1 ? "" : "s", cores.threads, cores.threads == 1 ? "" : "s",
                     cores.pinned.empty() ? "" : ", pinned", kernels_of(options), cuts);
}

}  // namespace piper
