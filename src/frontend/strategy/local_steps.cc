// Reads the directive `local_steps`, for the table in directives.h.
#include "chosen_optimizer.h"
#include "directives.h"

namespace piper::fields {
namespace {

Status read_outer(const Field&, const yaml::Entry& entry, const Reading& reading, LocalSteps& out) {
  PIPER_ASSIGN(const Chosen chosen, read_chosen(entry, reading));
  out.outer.optimizer = chosen.spec;
  out.outer.groups = {chosen.group};
  out.outer_at = entry.key.at;
  return ok_status();
}
std::string print_outer(const Field&, const LocalSteps& from) {
  return print_chosen({from.outer.optimizer, from.outer.groups.back()});
}

Status check_local_steps(const Fields&, const Reading& reading, LocalSteps& out) {
  if (reading.strategy.local_steps.empty()) return ok_status();
  return fail(out.at, "two directives say how sites take local steps")
      .with_note(fmt::format("first at {}", yaml::place(reading.strategy.local_steps[0].at)));
}

constexpr Field kLocalStepsKeys[] = {
    {"over", kAxis, kRequired, "The mesh axis whose coordinates are the sites.",
     located<&LocalSteps::over, &LocalSteps::over_at>},
    {"every", integer(1, 1 << 30), kRequired, "Steps of each site between two outer updates.",
     member<&LocalSteps::every>},
    {"outer", one("optimizer"), kRequired,
     "The optimizer of the outer parameters; the gradient is their distance from the mean of the "
     "sites.",
     custom<read_outer, print_outer>},
};

}  // namespace

const Directive kLocalSteps = directive<&Strategy::local_steps>(
    {"local_steps", kLocalStepsKeys, checked<check_local_steps>},
    "Sites train by themselves; an outer optimizer joins them every few steps (DiLoCo).");

}  // namespace piper::fields
