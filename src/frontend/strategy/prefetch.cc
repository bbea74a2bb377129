// Reads the directive `prefetch`, for the table in directives.h.
#include "directives.h"

namespace piper::fields {
namespace {

constexpr Word kDistances[] = {{"eager", Prefetch::kEager}, {"lazy", 0}};
constexpr Field kPrefetchKeys[] = {
    {"where", kWhereTask, kRequired, "Which receives or inputs.", member<&Prefetch::where>},
    {"distance", integer_or(kDistances, {0, 1 << 20}), kRequired,
     "eager, lazy, or how many compute tasks ahead of the first that reads it.",
     member<&Prefetch::distance>},
};

}  // namespace

const Directive kPrefetch = directive<&Strategy::prefetches>(
    {"prefetch", kPrefetchKeys}, "Issue receives and inputs ahead of their use.");

}  // namespace piper::fields
