// Reads the directive `stream`, for the table in directives.h.
#include "directives.h"

namespace piper::fields {
namespace {

Status check_stream(const Fields& map, const Reading& reading, StreamRule& rule) {
  if (rule.name == "overlap")
    return fail(rule.name_at, "the stream 'overlap' belongs to overlapped pairs of an order");
  if (!rule.where && !rule.priority && !rule.sms)
    return fail(map.at(), "'stream' changes nothing")
        .with_note("help: 'where' says which tasks run on it; 'priority' and 'sms' what it is");
  // Of two entries for one stream each property has one value.
  for (const StreamRule& other : reading.strategy.streams) {
    if (other.name != rule.name) continue;
    const auto twice = [&](const char* key) {
      return fail(map.key_at(key), "the {} of stream '{}' is given twice", key, rule.name)
          .with_note(fmt::format("first at {}", yaml::place(other.at)));
    };
    if (other.priority && rule.priority) return twice("priority");
    if (other.sms && rule.sms) return twice("sms");
  }
  return ok_status();
}

constexpr Word kPriorities[] = {{"low", -1}, {"high", 1}};
constexpr Field kStreamKeys[] = {
    {"where", kWhereTask, kOptional, "Which tasks. Default: none; the stream is there already.",
     member<&StreamRule::where>},
    {"name", kName, kRequired, "The stream.", located<&StreamRule::name, &StreamRule::name_at>},
    {"priority", integer_or(kPriorities, {-100, 100}), kOptional,
     "low, high or an integer; higher goes first. Default 0.", member<&StreamRule::priority>},
    {"sms", integer(1, 1024), kOptional, "Multiprocessors that its work takes at most.",
     member<&StreamRule::sms>},
};

}  // namespace

const Directive kStream = directive<&Strategy::streams>(
    {"stream", kStreamKeys, checked<check_stream>}, "Put tasks on a named stream.");

}  // namespace piper::fields
