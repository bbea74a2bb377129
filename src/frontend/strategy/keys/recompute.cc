// Reads the directive `recompute`.
#include "directives.h"

namespace piper::fields {
namespace {

Status check_recompute(const Fields& map, const Reading& reading, Recompute& recompute) {
  PIPER_TRY(check_where_of_ops(recompute.where, "recompute", {"pass"}));
  for (const char* key : {"match", "ops"})
    if (map["budget"] && map[key])
      return fail(map.key_at(key),
                  "recompute: '{}' cannot be combined with 'budget', which chooses the ops itself",
                  key);
  recompute.micro = reading.strategy.micro_name();
  return ok_status();
}

constexpr Field kRecomputeKeys[] = {
    {"match", kPaths, kOptional,
     "Ops by scope path; {name} captures make a group each. Default: all.",
     member<&Recompute::match>},
    {"where", kWhere, kOptional, "Ops by their tags. Default: all.", member<&Recompute::where>},
    {"ops", kPaths, kOptional, "Names of ops. Default: all.", member<&Recompute::ops>},
    {"budget", kBytes, kOptional,
     "Bytes that a microbatch may keep in each region; the compiler chooses the ops.",
     member<&Recompute::budget_bytes>},
};

}  // namespace

Directive recompute_directive() {
  return directive<&Strategy::recomputes>({"recompute", kRecomputeKeys, checked<check_recompute>},
                                          "Run forward ops again in the backward pass.");
}

}  // namespace piper::fields
