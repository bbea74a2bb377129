// Reads the directive `stream`.
#include <algorithm>

#include "directives.h"
#include "expr_tree.h"

namespace piper::fields {
namespace {

// Reads a name in which variables of `where` stand in braces.
Status read_stream_name(const Field&, const yaml::Entry& entry, const Reading& reading,
                        StreamRule& rule) {
  rule.name_at = entry.value.at;
  PIPER_ASSIGN(rule.name, read_text(entry.value, reading.scope));
  const std::vector<std::string> known = variables_of(rule.where.value_or(Where{}));
  std::string plain = rule.name;
  for (size_t open = plain.find('{'); open != plain.npos; open = plain.find('{')) {
    const size_t close = plain.find('}', open);
    const std::string name = close == plain.npos ? "" : plain.substr(open + 1, close - open - 1);
    if (std::find(known.begin() + 1, known.end(), name) == known.end())
      return fail(rule.name_at, "'where' binds no variable '{}'{}", quote_control(name),
                  did_you_mean(name, known))
          .with_note("help: {where: {stage: s}, name: \"tp{s}\"} has a stream for each stage");
    plain.replace(open, close + 1 - open, "_");
  }
  if (expr::is_identifier(plain)) return ok_status();
  return fail(rule.name_at, "expected a name of letters, digits and '_', found {}",
              yaml::shown(rule.name));
}

Status check_given_once(const Fields& map, const StreamRule& rule, const StreamRule& other) {
  const auto twice = [&](const char* key) {
    return fail(map.key_at(key), "the {} of stream '{}' is given twice", key, rule.name)
        .with_note(fmt::format("first at {}", yaml::place(other.at)));
  };
  if (other.priority && rule.priority) return twice("priority");
  if (other.sms && rule.sms) return twice("sms");
  if (other.credit && rule.credit) return twice("credit");
  return ok_status();
}

Status check_stream(const Fields& map, const Reading& reading, StreamRule& rule) {
  if (rule.name == "overlap")
    return fail(rule.name_at, "the stream 'overlap' belongs to overlapped pairs of an order");
  if (!rule.where && !rule.priority && !rule.sms && !rule.credit)
    return fail(map.at(), "'stream' changes nothing")
        .with_note(
            "help: 'where' says which tasks run on it; 'priority', 'sms' and 'credit' what it is");
  if (rule.credit) rule.credit_at = map.key_at("credit");
  if (rule.credit && *rule.credit < 1)
    return fail(rule.credit_at, "'credit' must be at least one byte, not {}", *rule.credit);
  // Of two entries for one stream each property has one value.
  for (const StreamRule& other : reading.strategy.streams) {
    if (other.name != rule.name) continue;
    PIPER_TRY(check_given_once(map, rule, other));
  }
  return ok_status();
}

constexpr Word kPriorities[] = {{"low", -1}, {"high", 1}};
constexpr Field kStreamKeys[] = {
    {"where", kWhereTask, kOptional,
     "Which tasks. Default: none; the entry only sets properties of a stream.",
     member<&StreamRule::where>},
    {"name", kName, kRequired, "The stream; {s} stands for the variable s of 'where'.",
     custom<read_stream_name, print_member<&StreamRule::name>>},
    {"priority", integer_or(kPriorities, {-100, 100}), kOptional,
     "low, high or an integer; higher goes first. Default 0.", member<&StreamRule::priority>},
    {"sms", integer(1, 1024), kOptional, "Limit on the multiprocessors that its work uses.",
     member<&StreamRule::sms>},
    {"credit", kBytes, kOptional,
     "The compiler orders the stream's sums of gradients: of those that are ready the next "
     "forward's "
     "first comes next, while at most so many bytes are under way. Default: as they are ready.",
     member<&StreamRule::credit>},
};

}  // namespace

Directive stream_directive() {
  return directive<&Strategy::streams>({"stream", kStreamKeys, checked<check_stream>},
                                       "Put tasks on a named stream.");
}

}  // namespace piper::fields
