// weight_versions: of how many versions parameters are kept.
#include "members.h"
#include "print.h"

namespace piper {

Status read_versions(const yaml::Entry& entry, const Scope& scope, Strategy& out) {
  const yaml::Node& value = entry.value;
  const auto read_one = [&](const yaml::Node& node, const SourceSpan& at) {
    WeightVersions& one = out.weight_versions.emplace_back();
    one.at = at;
    return fields::read_map(fields::object("weight_versions"), node, at,
                            {scope, names_of(out), out}, &one);
  };
  if (value.is(yaml::Node::Kind::kMap)) return read_one(value, entry.key.at);
  if (value.is(yaml::Node::Kind::kList)) {
    if (value.items.empty()) return fail(value.at, "'weight_versions' is a list without entries");
    for (const yaml::Node& item : value.items) PIPER_TRY(read_one(item, item.at));
    return ok_status();
  }
  PIPER_ASSIGN(const int64_t versions, read_integer(value, scope));
  if (versions < 1 || versions > WeightVersions::kMost)
    return fail(value.at, "'weight_versions' must be 1 to {}, not {}", WeightVersions::kMost,
                versions);
  if (versions > 1) out.weight_versions.push_back({{}, Expr::constant(versions), value.at});
  return ok_status();
}

namespace fields {
namespace {

Status check_versions(const Fields&, const Reading& reading, WeightVersions& one) {
  return check_where_of_ops(one.where, "weight_versions", {"pass", reading.strategy.micro_name()});
}

Status read_number(const Field&, const yaml::Entry& entry, const Reading& reading,
                   WeightVersions& one) {
  PIPER_ASSIGN(one.versions, read_expression(entry.value, reading.scope, variables_of(one.where)));
  return ok_status();
}

constexpr Field kVersions[] = {
    {"where", kWhere, kRequired, "Ops by their tags: of the parameters that they read.",
     member<&WeightVersions::where>},
    {"versions", integer(1, WeightVersions::kMost), kRequired,
     "How many versions, over the variables of 'where'.",
     custom<read_number, print_member<&WeightVersions::versions>>},
};
constexpr Object kVersionsObjects[] = {{"weight_versions", kVersions, checked<check_versions>}};

}  // namespace

std::span<const Object> versions_objects() { return kVersionsObjects; }

}  // namespace fields
}  // namespace piper
