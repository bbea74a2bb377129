// Reads the directive `offload`, for the table in directives.h.
#include "directives.h"

namespace piper::fields {
namespace {

using What = OffloadRule::What;

Status check_offload(const Fields& map, const Reading&, OffloadRule& rule) {
  for (const char* key : {"match", "where", "min"})
    if (rule.what != What::kActivations && map[key])
      return fail(map.key_at(key), "'{}' chooses among activations", key)
          .with_note(fmt::format("{} go together", rule.what == What::kOptimizer
                                                       ? "the optimizer's states"
                                                       : "parameters"));
  return ok_status();
}

constexpr Word kWhat[] = {word("activations", What::kActivations),
                          word("optimizer", What::kOptimizer),
                          word("parameters", What::kParameters)};
constexpr Form kTasks = integer(0, 1 << 20);
constexpr Field kOffloadKeys[] = {
    {"what", one_of(kWhat), kRequired, "What is moved to host memory.", member<&OffloadRule::what>},
    {"match", kPaths, kOptional, "Activations by the scope path of the op that makes them.",
     member<&OffloadRule::match>},
    {"where", kWhere, kOptional, "Activations by the task that keeps them. Default: all.",
     member<&OffloadRule::where>},
    {"min", kBytes, kOptional, "Activations smaller than this stay. Default 0.",
     member<&OffloadRule::min_bytes>},
    {"distance", kTasks, kOptional,
     "How many compute tasks (for states: updates) before its use a value returns. Default 1.",
     member<&OffloadRule::distance>},
    {"in_flight", kTasks, kOptional,
     "How many compute tasks (for states: updates) may run while a value is copied to the host. "
     "Default 1.",
     member<&OffloadRule::in_flight>},
};

}  // namespace

const Directive kOffload =
    directive<&Strategy::offloads>({"offload", kOffloadKeys, checked<check_offload>},
                                   "Keep values in host memory while they are not needed.");

}  // namespace piper::fields
