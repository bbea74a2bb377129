// Reads the directive `split`, for the table in directives.h.
#include <algorithm>

#include "directives.h"

namespace piper::fields {
namespace {

// The microbatch's name is beside tags, params and axes in expressions.
Status check_micro_name(const SourceSpan& at, const std::string& name, const Reading& reading) {
  const Scope& scope = reading.scope;
  const std::vector<std::string>& tags = reading.names.tags;
  const auto taken = [&](std::string_view by) {
    return fail(at, "the microbatch must not be called '{}', as {}", name, by)
        .with_note("help: leave 'as' out; it is called mb then");
  };
  if (name == "mb") return ok_status();
  for (const char* own : {"pass", "kind", "value", "chunk", "step", "r", "P", "M", "min", "max"})
    if (name == own) return taken("that has its own meaning");
  if (std::find(tags.begin(), tags.end(), name) != tags.end())
    return taken("a tag of 'annotate' is");
  if (scope.has_integer(name) || scope.text(name)) return taken("a param or mesh axis is");
  return ok_status();
}

Status check_split(const Fields& map, const Reading& reading, Split& split) {
  const auto& splits = reading.strategy.splits;
  if (!splits.empty())
    return fail(split.at, "the batch is split twice")
        .with_note(fmt::format("first at {}", yaml::place(splits[0].at)));
  return map["as"] ? check_micro_name(map["as"]->at, split.as, reading) : ok_status();
}

constexpr Word kDims[] = {{"batch"}};
constexpr Field kSplitKeys[] = {
    {"dim", one_of(kDims), kRequired, "What to cut.", only_word},
    {"into", kCount, kRequired, "Number of microbatches.", member<&Split::into>},
    {"as", kName, kStated, "Name of the microbatch coordinate. Default mb.", member<&Split::as>},
};

}  // namespace

const Directive kSplit = directive<&Strategy::splits>({"split", kSplitKeys, checked<check_split>},
                                                      "Cut the batch into microbatches.");

}  // namespace piper::fields
