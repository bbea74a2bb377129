// Shares the cores of a machine among its ranks.
#include "cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "piper/devices/registry.h"
#include "piper/plan/lanes.h"

namespace piper {
namespace {

// Returns the cores on which a process may run; 0: this thread.
std::vector<int> allowed_cores(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(process, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

constexpr int64_t kManyCores = 4;  // of a rank: one less to compute with makes little difference

// Returns whether one of the rank's cores is for the helper.
bool has_helper(const JobOptions& options, bool can_overlap, int64_t share) {
  if (!can_overlap || options.helper == HelperThread::kOff) return false;
  if (options.helper == HelperThread::kOn) return true;
  return options.threads > 0 ? options.threads < share : share >= kManyCores;
}

}  // namespace

bool can_overlap(const PlanSet& set) {
  return set.world() > 1 && std::any_of(set.roles.begin(), set.roles.end(), [](const auto& role) {
           return TwoThreads(role).overlaps();
         });
}

Cores cores_of(const JobOptions& options, bool can_overlap, int64_t place, int64_t ranks_here) {
  const std::vector<int> all = allowed_cores(0);
  const auto count = static_cast<int64_t>(all.size());
  const int64_t share = count / std::max<int64_t>(ranks_here, 1);
  Cores cores;
  cores.place = place;
  cores.ranks = ranks_here;
  cores.helper = has_helper(options, can_overlap, share);
  cores.threads = options.threads > 0
                      ? options.threads
                      : static_cast<int>(std::max<int64_t>(1, share - (cores.helper ? 1 : 0)));
  const int64_t wanted = cores.threads + (cores.helper ? 1 : 0);
  if (count < 2 || ranks_here * wanted != count) return cores;
  const auto first = all.begin() + place * wanted;
  cores.pinned.assign(first, first + cores.threads);
  if (cores.helper) cores.helper_core = first[cores.threads];
  return cores;
}

// A launcher may bind each process to a part of the cores that it has itself: mpirun to one core or
// one socket. Parts are taken to be of one size, so as many ranks share one as do not fit beside
// it.
Cores cores_of_process(const JobOptions& options, bool can_overlap, int64_t rank, int64_t world) {
  const auto here = place_on_host();
  const bool is_counted = here && here->ranks > 0;
  const int64_t place = here ? here->place : rank, ranks = is_counted ? here->ranks : world;
  const auto own = std::ssize(allowed_cores(0));
  const auto all = std::max<int64_t>(own, std::ssize(allowed_cores(getppid())));
  const int64_t sharing = std::max<int64_t>(1, (own * ranks + all - 1) / std::max<int64_t>(all, 1));
  Cores cores =
      cores_of(options, can_overlap, own == all ? place : 0, own == all ? ranks : sharing);
  // Where others have these cores, too, it is not known which of them each takes.
  const bool is_known = own == all ? is_counted || world == 1 : sharing == 1;
  if (!is_known) cores.pinned.clear(), cores.helper_core = -1;
  cores.place = place, cores.ranks = ranks;
  cores.is_process = true;
  return cores;
}

std::string kernels_of(const JobOptions& options) {
  const auto kind = find_backend(options.backend);
  return kind ? (*kind)->kernels() : "";
}

std::vector<std::string> begin_backend(const JobOptions& options, const PlanSet& set) {
  const auto kind = find_backend(options.backend);
  if (!kind || !(*kind)->begin) return {};
  return (*kind)->begin(set.roles);
}

namespace {

// Plans are run whatever table they were made with: nothing but times and bits may differ.
std::string other_table(const BackendKind& kind, const RoleProgram& role) {
  const bool is_known = kind.table && role.target == kind.name && !role.table.empty();
  if (!is_known || role.table == kind.table()) return "";
  return fmt::format("; the plans were compiled with table {:.8}, not {:.8}",
                     quote_control(role.table), kind.table());
}

std::string other_sums(const BackendKind& kind, const PlanSet& set) {
  if (kind.sums_fast || !kind.computes) return "";
  return std::ranges::any_of(set.roles, has_fast_sums)
             ? "; sums that the plans call fast are formed in rank order"
             : "";
}

}  // namespace

std::string print_cores(const JobOptions& options, const PlanSet& set, bool is_process) {
  const int64_t ranks = set.world();
  const Cores cores = is_process ? cores_of_process(options, can_overlap(set), 0, ranks)
                                 : cores_of(options, can_overlap(set), 0, ranks);
  const auto kind = find_backend(options.backend);
  std::string more = kind && (*kind)->note ? ", " + (*kind)->note() : "";
  const std::string& target = set.roles[0].target;
  if (kind && (*kind)->needs && target != (*kind)->name)
    more += fmt::format("; plans for {}, which state its memory", quote_control(target));
  if (kind) more += other_table(**kind, set.roles[0]) + other_sums(**kind, set);
  return fmt::format("{} rank{} with {} thread{}{} each{}; {}{}", ranks, ranks == 1 ? "" : "s",
                     cores.threads, cores.threads == 1 ? "" : "s",
                     cores.helper ? " and a helper" : "", cores.pinned.empty() ? "" : ", pinned",
                     kernels_of(options), more);
}

}  // namespace piper
