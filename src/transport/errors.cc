#include "errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace piper {

Error timed_out(int64_t rank, double seconds, const std::string& what,
                std::span<const int64_t> chain,
                const std::function<std::string(int64_t rank)>& activity) {
  Error error = fail("rank {} waited {:.3g} s {} rank {}", rank, seconds, what, chain.front());
  error.code = ExitCode::kPeer;
  for (int64_t next : chain.subspan(1))
    error.message += fmt::format(", which waits for rank {}", next);
  const int64_t last = chain.back();
  const bool twice = std::find(chain.begin(), chain.end() - 1, last) != chain.end() - 1;
  const bool ring = twice || last == rank;
  if (ring) error.notes.push_back("they wait for each other");
  const auto shown = ring ? chain.first(chain.size() - (twice ? 1 : 0)) : chain.last(1);
  for (int64_t one : shown)
    if (const std::string at = activity(one); !at.empty())
      error.notes.push_back(fmt::format("rank {} is at {}", one, at));
  return error;
}

Error stopped_by(int64_t rank, int64_t peer, std::string_view reason) {
  return fail("rank {} stopped because rank {} failed: {}", rank, peer, reason)
      .with_code(ExitCode::kPeer);
}

Error size_mismatch(int64_t rank, int64_t peer, const std::string& what, int64_t got,
                    int64_t wanted) {
  std::string brings = got < 0 ? "more" : std::to_string(got);
  return fail("rank {} expects {} bytes {} rank {}, which brings {}", rank, wanted, what, peer,
              brings)
      .with_code(ExitCode::kPlan);
}

std::optional<Conflict> check_own(const PlanIdentity& own, int64_t number, int64_t world) {
  const auto conflict = [](int rule, Error error) {
    return Conflict{rule, std::move(error).with_code(ExitCode::kPlan)};
  };
  if (own.world != world)
    return conflict(1, fail("the plan of rank {} ({}) is for {} ranks, but {} take part", own.rank,
                            own.source, own.world, world));
  if (own.rank < 0 || own.rank >= world)
    return conflict(4, fail("{} is for rank {} of {}", own.source, own.rank, world));
  if (own.rank != number)  // processes are numbered in order of their ranks
    return conflict(4, fail("two processes hold the plan of rank {}: numbers {} and {} ({})",
                            own.rank, own.rank, number, own.source));
  return std::nullopt;
}

std::optional<Conflict> check_pair(const PlanIdentity& first, const PlanIdentity& one) {
  if (one.set_id != first.set_id)
    return Conflict{
        0, fail("plans of two compilations: rank {} holds set {} ({}), rank {} holds set {} ({})",
                first.rank, first.set_id, first.source, one.rank, one.set_id, one.source)
               .with_code(ExitCode::kPlan)};
  if (one.kernels != first.kernels)
    return Conflict{2, fail("rank {} computes with {}, rank {} with {}: their bits would differ",
                            first.rank, first.kernels, one.rank, one.kernels)
                           .with_code(ExitCode::kUsage)};
  for (size_t i = 0; i < std::max(one.flags.size(), first.flags.size()); ++i) {
    const auto flag = [i](const PlanIdentity& of) {
      return i < of.flags.size() ? of.flags[i] : std::pair<std::string, std::string>("", "");
    };
    const auto [name, value] = flag(one);
    if (flag(one) == flag(first)) continue;
    return Conflict{3, fail("rank {} runs with {} {}, rank {} with {} {}", one.rank, name, value,
                            first.rank, flag(first).first, flag(first).second)
                           .with_note("help: give all ranks of a job the same flags")};
  }
  return std::nullopt;
}

Status check_peer(int64_t rank, int64_t world, int64_t peer) {
  if (peer >= 0 && peer < world && peer != rank) return ok_status();
  return fail("rank {} of {} has no peer of rank {}", rank, world, peer).with_code(ExitCode::kPlan);
}

Status check_group(int64_t rank, int64_t world, std::span<const int64_t> ranks) {
  bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  bool inside = !ranks.empty() && ranks.front() >= 0 && ranks.back() < world;
  if (ascending && inside && std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
    return ok_status();
  }
  return fail("rank {} of {} cannot join the group [{}]", rank, world, fmt::join(ranks, ","))
      .with_code(ExitCode::kPlan);
}

}  // namespace piper
