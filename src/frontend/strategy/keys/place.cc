// Reads the directive `place`.
#include "directives.h"

namespace piper::fields {
namespace {

// Returns what expressions after `where` may name, and after `tags` those too.
std::vector<std::string> free_names(const Place& place, const Names& names) {
  std::vector<std::string> free = names.tags;
  free.emplace_back("M");
  for (const Condition& condition : place.where)
    if (condition.kind == Condition::Kind::kBind) free.push_back(condition.bind);
  for (const auto& [tag, value] : place.tags) free.push_back(tag);
  return free;
}

Status read_tags(const Field&, const yaml::Entry& entry, const Reading& reading, Place& place) {
  const yaml::Node& node = entry.value;
  if (!node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a map from tags to values");
  if (node.entries.empty()) return fail(node.at, "'tags' names no tag");
  for (const yaml::Entry& tag : node.entries) {
    const std::vector<std::string> free = free_names(place, reading.names);
    const std::string& name = tag.key.text;
    PIPER_TRY(check_new_name(tag.key, "a tag"));
    const bool taken = std::find(free.begin(), free.end(), name) != free.end();
    if (taken || name == "pass" || name == "chunk")
      return fail(tag.key.at, "the name {} is taken", yaml::shown(name));
    PIPER_ASSIGN(Expr value, read_expression(tag.value, reading.scope, free));
    place.tags.emplace_back(name, std::move(value));
  }
  return ok_status();
}

Status read_on(const Field&, const yaml::Entry& entry, const Reading& reading, Place& place) {
  const yaml::Node& on = entry.value;
  if (!on.is(yaml::Node::Kind::kMap)) return wrong_type(on, "a map from mesh axes to coordinates");
  if (on.entries.empty()) return fail(on.at, "'on' names no mesh axis");
  std::vector<std::string> free = free_names(place, reading.names);
  free.emplace_back("P");
  for (const yaml::Entry& axis : on.entries) {
    PIPER_TRY(check_axis(axis.key.text, axis.key.at, reading.names));
    PIPER_ASSIGN(Expr coordinate, read_expression(axis.value, reading.scope, free));
    place.on.emplace_back(axis.key.text, std::move(coordinate));
    place.on_at.push_back(axis.value.at);
  }
  return ok_status();
}

Status check_place(const Fields&, const Reading& reading, Place& place) {
  place.micro = reading.strategy.micro_name();
  return ok_status();
}

constexpr Field kPlaceKeys[] = {
    {"where", kWhere, kOptional, "Which tasks. Default: all.", member<&Place::where>},
    {"tags", kCounts, kOptional, "Tags that tasks get, by stage and microbatch: dir: mb >= M/2.",
     custom<read_tags, print_member<&Place::tags>>},
    {"on", kCounts, kRequired, "Mesh axes and the coordinate on each.",
     custom<read_on, print_member<&Place::on>>},
};

}  // namespace

Directive place_directive() {
  return directive<&Strategy::places>({"place", kPlaceKeys, checked<check_place>},
                                      "Put tasks on mesh coordinates.");
}

}  // namespace piper::fields
