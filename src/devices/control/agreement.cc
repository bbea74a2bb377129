// Compares at the start of a job what ranks say of their plans, and names the first conflict.
#include "agreement.h"

#include <fmt/format.h>

namespace piper {

std::optional<Conflict> check_own(const PlanIdentity& own, int64_t number, int64_t world) {
  const auto conflict = [](int rule, Error error) {
    return Conflict{rule, std::move(error).with_code(ExitCode::kPlan)};
  };
  if (own.failure) {
    const std::string file = own.failure->at.file.empty() ? "" : own.failure->at.file + ": ";
    Error error = fail("rank {} cannot take part: {}{}", number, file, own.failure->message);
    error.notes = own.failure->notes;
    return Conflict{-1, std::move(error).with_code(own.failure->code)};
  }
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

namespace {

std::optional<Conflict> check_flags(const PlanIdentity& first, const PlanIdentity& one) {
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

}  // namespace

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
  return check_flags(first, one);
}

}  // namespace piper
