// Reads the directive `local_steps`.
#include "chosen_optimizer.h"
#include "directives.h"
#include "sent.h"

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

Status check_beside(const LocalSteps& one, const LocalSteps& out) {
  const auto first = fmt::format("first at {}", yaml::place(one.at));
  if (one.over != out.over)
    return fail(out.over_at,
                "local_steps: 'over' is '{}', and that of another one is '{}'; sites are on one "
                "axis",
                out.over, one.over)
        .with_note(first);
  if (!one.match && !out.match)
    return fail(out.at, "two directives say how sites take local steps")
        .with_note(first)
        .with_note("help: 'match' says which parameters a directive joins");
  return ok_status();
}

Status check_local_steps(const Fields&, const Reading& reading, LocalSteps& out) {
  if (out.offset >= out.every)
    return fail(out.offset_at, "offset: expected less than 'every' ({}), got {}", out.every,
                out.offset);
  if (out.delay >= out.every)
    return fail(out.delay_at, "delay: expected less than 'every' ({}), got {}", out.every,
                out.delay);
  for (const LocalSteps& one : reading.strategy.local_steps) PIPER_TRY(check_beside(one, out));
  return ok_status();
}

Status check_outer_reduce(const Fields& map, const Reading&, LocalSteps& out) {
  return check_sent(map, out.in, out.lossy, out.dtype_at, "outer gradients");
}

constexpr Word kOuterTypes[] = {kGradientTypes[0], kInt8, kFloat8};
constexpr Field kOuterReduce[] = {
    {"dtype", one_of(kOuterTypes), kRequired,
     "Type in which sites send their distances, and the gradient that is made of them; f32: as "
     "they "
     "are.",
     kSentIn<&LocalSteps::dtype, &LocalSteps::in, &LocalSteps::dtype_at>},
    {"lossy", kBool, kOptional, "Allow rounding to it. Default false.", member<&LocalSteps::lossy>},
    {"block", kInteger, kOptional,
     "With int8 and float8: so many elements have one scale. Default 256.",
     kBlocksOf<&LocalSteps::in>},
};
constexpr Object kLocalStepsParts[] = {{"outer_reduce", kOuterReduce, checked<check_outer_reduce>}};

constexpr Field kLocalStepsKeys[] = {
    {"over", kAxis, kRequired, "The mesh axis whose coordinates are the sites.",
     located<&LocalSteps::over, &LocalSteps::over_at>},
    {"match", kPaths, kOptional, "Paths of the parameters that it joins. Default: all others.",
     located<&LocalSteps::match, &LocalSteps::match_at>},
    {"every", integer(1, 1 << 30), kRequired, "Steps of each site between two outer updates.",
     member<&LocalSteps::every>},
    {"offset", integer(0, 1 << 30), kOptional,
     "How many steps after each multiple of `every` the outer updates come. Default 0.",
     located<&LocalSteps::offset, &LocalSteps::offset_at>},
    {"delay", integer(0, 1 << 30), kOptional,
     "How many steps sites go on before an outer update is applied. Default 0.",
     located<&LocalSteps::delay, &LocalSteps::delay_at>},
    {"mix", real({0, 1, false, true}), kOptional,
     "The share of its own parameters in those that a site goes on with. Default 0.",
     member<&LocalSteps::mix>},
    {"outer", one("optimizer"), kRequired,
     "The optimizer of the outer parameters; the gradient is their distance from the mean of the "
     "sites.",
     custom<read_outer, print_outer>},
    {"reduce", one("outer_reduce"), kOptional, "In which type sites send what an update joins.",
     inside},
};

}  // namespace

Directive local_steps_directive() {
  return directive<&Strategy::local_steps>(
      {"local_steps", kLocalStepsKeys, checked<check_local_steps>},
      "Sites train by themselves; an outer optimizer joins them every few steps (DiLoCo).",
      kLocalStepsParts);
}

}  // namespace piper::fields
