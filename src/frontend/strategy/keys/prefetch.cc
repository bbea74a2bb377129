// Reads the directive `prefetch`.
#include <algorithm>

#include "directives.h"
#include "print.h"

namespace piper::fields {
namespace {

constexpr Word kDistances[] = {{"eager"}, {"lazy"}};

Status read_distance(const Field& field, const yaml::Entry& entry, const Reading& reading,
                     Prefetch& prefetch) {
  PIPER_ASSIGN(const yaml::Node node, with_texts(entry.value, reading.scope));
  if (node.text == "eager") return ok_status();
  if (node.text == "lazy") {
    prefetch.distance = Expr::constant(0);
    return ok_status();
  }
  const std::vector<std::string> free = variables_of(prefetch.where);
  std::vector<std::string> words{"eager", "lazy"};
  if (std::find(free.begin(), free.end(), node.text) == free.end())
    PIPER_TRY(check_word(node, reading.scope, words));
  PIPER_ASSIGN(prefetch.distance, read_expression(node, reading.scope, free));
  if (!prefetch.distance->names().empty()) return ok_status();
  PIPER_TRY(read_integer(node, reading.scope, field.form.integers));
  return ok_status();
}
std::string print_distance(const Field&, const Prefetch& prefetch) {
  return prefetch.distance ? print_expr(*prefetch.distance) : "eager";
}

constexpr Field kPrefetchKeys[] = {
    {"where", kWhereTask, kRequired, "Which receives or inputs.", member<&Prefetch::where>},
    {"distance", integer_or(kDistances, {0, 1 << 20}), kRequired,
     "eager, lazy, or how many compute tasks ahead of the first that reads it, over the variables "
     "of 'where'.",
     custom<read_distance, print_distance>},
};

}  // namespace

Directive prefetch_directive() {
  return directive<&Strategy::prefetches>({"prefetch", kPrefetchKeys},
                                          "Issue receives and inputs ahead of their use.");
}

}  // namespace piper::fields
