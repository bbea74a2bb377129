// Reads the directive `offload`.
#include "directives.h"

namespace piper::fields {
namespace {

using What = OffloadRule::What;

// States and parameters are of the whole step.
Status check_offload(const Fields&, const Reading& reading, OffloadRule& rule) {
  if (rule.what == What::kActivations) return ok_status();
  return check_where_of_ops(rule.where, "offload", {"pass", reading.strategy.micro_name()});
}

constexpr Word kWhat[] = {word("activations", What::kActivations),
                          word("optimizer", What::kOptimizer),
                          word("parameters", What::kParameters)};
constexpr Form kTasks = integer(0, 1 << 20);
constexpr Field kOffloadKeys[] = {
    {"what", one_of(kWhat), kRequired, "What is moved to host memory.", member<&OffloadRule::what>},
    {"match", kPaths, kOptional,
     "Activations by the scope path of the op that makes them; parameters, or those that states "
     "are of, by their paths. Default: all others.",
     member<&OffloadRule::match>},
    {"where", kWhere, kOptional,
     "Activations by the task that keeps them; parameters by the tags of the ops that read them. "
     "Default: all.",
     member<&OffloadRule::where>},
    {"min", kBytes, kOptional,
     "Activations, or parameters and their states, smaller than this stay. Default 0.",
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

Directive offload_directive() {
  return directive<&Strategy::offloads>({"offload", kOffloadKeys, checked<check_offload>},
                                        "Keep values in host memory while they are not needed.");
}

}  // namespace piper::fields
