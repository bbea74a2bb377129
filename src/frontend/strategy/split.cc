// Reads the directive `split`, for the table in directives.h.
#include <algorithm>

#include "directives.h"

namespace piper::fields {
namespace {

// ---- dim: the batch, or one of the dims of what a region reads ----------------------------------

constexpr Word kBatch[] = {{"batch"}};

std::string print_split_dim(const Field& field, const Split& split) {
  return split.dim ? print_value(field, *split.dim) : "batch";
}

// ---- Checks -------------------------------------------------------------------------------------

// The name of a microbatch or part is beside tags, params and axes in expressions.
Status check_part_name(const SourceSpan& at, const Split& split, const Reading& reading) {
  const Scope& scope = reading.scope;
  const std::vector<std::string>& tags = reading.names.tags;
  const std::string& name = split.as;
  const auto taken = [&](std::string_view by) {
    return fail(at, "the {} must not be called '{}', as {}",
                split.of_batch() ? "microbatch" : "part", name, by)
        .with_note(fmt::format("help: leave 'as' out; it is called {} then",
                               split.of_batch() ? "mb" : "part"));
  };
  if (name == "mb" && split.of_batch()) return ok_status();
  for (const char* own : {"pass", "kind", "value", "chunk", "step", "r", "P", "M", "min", "max"})
    if (name == own) return taken("that has its own meaning");
  if (std::find(tags.begin(), tags.end(), name) != tags.end())
    return taken(name == "mb" ? "the microbatch is" : "a tag of 'annotate' is");
  if (scope.has_integer(name) || scope.text(name)) return taken("a param or mesh axis is");
  for (const Split& other : reading.strategy.splits)
    if (other.as == name && other.of_batch() != split.of_batch())
      return fail(at, "'{}' is the name of another split", name)
          .with_note(fmt::format("at {}", yaml::place(other.at)));
  return ok_status();
}

Status check_of_batch(const Fields& map, const Reading& reading, const Split& split) {
  for (const char* key : {"tensor", "within"})
    if (map[key])
      return fail(map.key_at(key), "split: '{}' without 'scope', the ops that are cut", key)
          .with_note("help: 'scope' names a region of ops, 'tensor' what of its operands is cut");
  if (split.dim)
    return fail(split.dim_at, "split: dim {} of what? A number is a dim of what a region reads",
                *split.dim)
        .with_note(
            "help: `scope: \"h/{layer}/mlp/**\"` names its ops; `dim: batch` makes "
            "microbatches");
  if (const Split* other = reading.strategy.batch_split())
    return fail(split.at, "the batch is split twice")
        .with_note(fmt::format("first at {}", yaml::place(other->at)));
  return ok_status();
}

Status check_split(const Fields& map, const Reading& reading, Split& split) {
  if (split.of_batch()) {
    PIPER_TRY(check_of_batch(map, reading, split));
  } else {
    split.scope_at = map["scope"]->at;
    if (map["tensor"]) split.tensor_at = map["tensor"]->at;
    if (!map["as"]) split.as = "part";
    if (!split.dim)
      return fail(split.dim_at, "split: 'dim: batch' beside 'scope'")
          .with_note("help: 'dim' is the number of a dim there: samples are dim 0 of most values");
  }
  return map["as"] || !split.of_batch()
             ? check_part_name(map["as"] ? map["as"]->at : split.at, split, reading)
             : ok_status();
}

constexpr Field kSplitKeys[] = {
    {"scope", kPaths, kOptional,
     "Ops that run in parts, one part after the other: patterns over scope paths; {name} captures "
     "make a region each. Default: the batch is cut.",
     member<&Split::scope>},
    {"tensor", kPaths, kOptional,
     "Parameters of the region that are cut: patterns over their paths. Default: what the region "
     "reads first is.",
     member<&Split::tensor>},
    {"dim", integer_or(kBatch, {-64, 63}), kRequired,
     "What to cut: batch, or, of a region, a dim, from the end if negative.",
     custom<read_dim_or<kBatch, Split>, print_split_dim>},
    {"into", kCount, kRequired, "Number of microbatches, or parts.", member<&Split::into>},
    {"within", kAxis, kOptional,
     "A mesh axis that cuts the dim, too: a part has its share of each rank's block.",
     located<&Split::within, &Split::within_at>},
    {"as", kName, kStated,
     "Name of the microbatch coordinate, default mb; or of the tag that parts have, default part.",
     member<&Split::as>},
};

}  // namespace

const Directive kSplit =
    directive<&Strategy::splits>({"split", kSplitKeys, checked<check_split>},
                                 "Cut the batch into microbatches, or ops into parts.");

}  // namespace piper::fields
