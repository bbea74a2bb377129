// Reads the directive `split`.
#include <algorithm>

#include "directives.h"

namespace piper::fields {
namespace {

// ---- dim: the batch, tokens, samples, or one of the dims of what a region reads -----------------

constexpr Word kNamedDims[] = {{"batch"}, {"tokens"}, {"samples"}};

Status read_split_dim(const Field& field, const yaml::Entry& entry, const Reading& reading,
                      Split& split) {
  PIPER_ASSIGN(const yaml::Node dim, with_texts(entry.value, reading.scope));
  split.of_tokens = dim.text == kNamedDims[1].name;
  split.of_samples = dim.text == kNamedDims[2].name;
  split.dim_at = dim.at;
  return split.of_chunks() ? ok_status()
                           : read_dim_or<kNamedDims, Split>(field, entry, reading, split);
}

std::string_view named_dim(const Split& split) {
  return kNamedDims[split.of_tokens ? 1 : split.of_samples ? 2 : 0].name;
}
std::string print_split_dim(const Field& field, const Split& split) {
  return split.dim ? print_value(field, *split.dim) : std::string(named_dim(split));
}

// ---- sizes --------------------------------------------------------------------------------------

Status read_sizes(const Field&, const yaml::Entry& entry, const Reading& reading, Split& split) {
  split.sizes_at = entry.value.at;
  if (!entry.value.is(yaml::Node::Kind::kList))
    return wrong_type(entry.value, "a list of integers");
  for (const yaml::Node& size : entry.value.items) {
    PIPER_ASSIGN(split.sizes.emplace_back(), read_integer(size, reading.scope, kCount.integers));
  }
  return ok_status();
}
std::string print_sizes(const Field&, const Split& split) {
  std::string text;
  for (const int64_t size : split.sizes)
    text += fmt::format("{}{}", text.empty() ? "[" : ", ", size);
  return text.empty() ? "" : text + "]";
}
constexpr Word kEqual[] = {word("tokens", Split::By::kTokens), word("cost", Split::By::kCost)};

// ---- Checks -------------------------------------------------------------------------------------

struct Named {
  const char *what, *as;
};
// Returns what a split makes, and what it is called by default.
Named made_by(const Split& split) {
  if (split.of_tokens) return {"chunk of tokens", "seq"};
  if (split.of_samples) return {"share of samples", "share"};
  return split.of_batch() ? Named{"microbatch", "mb"} : Named{"part", "part"};
}

// The name of what a split makes is beside tags, params and axes in expressions.
Status check_part_name(const SourceSpan& at, const Split& split, const Reading& reading) {
  const Scope& scope = reading.scope;
  const std::vector<std::string>& tags = reading.names.tags;
  const std::string& name = split.as;
  const auto taken = [&](std::string_view by) {
    return fail(at, "the {} must not be called '{}', as {}", made_by(split).what, name, by)
        .with_note(fmt::format("help: leave 'as' out; it is called {} then", made_by(split).as));
  };
  if (name == "mb" && split.of_batch()) return ok_status();
  for (const char* own : {"pass", "kind", "value", "chunk", "step", "r", "P", "M", "min", "max"})
    if (name == own) return taken("that has its own meaning");
  if (std::find(tags.begin(), tags.end(), name) != tags.end())
    return taken(name == "mb" ? "the microbatch is" : "a tag of 'annotate' is");
  if (scope.has_integer(name) || scope.text(name)) return taken("a param or mesh axis is");
  for (const Split& other : reading.strategy.splits)
    if (other.as == name && (!other.of_region() || !split.of_region()))
      return fail(at, "'{}' is the name of another split", name)
          .with_note(fmt::format("at {}", yaml::place(other.at)));
  return ok_status();
}

Error split_twice(const Split& split, const Split& other) {
  const bool alike = other.of_tokens == split.of_tokens;
  const char* const what = split.of_tokens    ? "tokens are"
                           : split.of_samples ? "samples are"
                                              : "the batch is";
  return (alike ? fail(split.at, "{} split twice", what)
                : fail(split.at, "not supported: chunks of tokens beside shares of samples"))
      .with_note(fmt::format("{} at {}", alike ? "first" : "the other", yaml::place(other.at)));
}

// Checks an entry that splits the batch or tokens, and so has no keys of regions.
Status check_of_samples(const Fields& map, const Reading& reading, const Split& split) {
  for (const char* key : {"tensor", "within"})
    if (map[key])
      return fail(map.key_at(key), "split: '{}' without 'scope', the ops that are cut", key)
          .with_note("help: 'scope' names a region of ops, 'tensor' what of its operands is cut");
  if (split.dim)
    return fail(split.dim_at,
                "split: dim {} needs a scope, as a number is a dim of what its ops read",
                *split.dim)
        .with_note(
            "help: `scope: \"h/{layer}/mlp/**\"` names its ops; `dim: batch` makes "
            "microbatches");
  if (const Split* other =
          split.of_chunks() ? reading.strategy.chunk_split() : reading.strategy.batch_split()) {
    return split_twice(split, *other);
  }
  return ok_status();
}

Status check_sizes(const Fields& map, const Split& split) {
  if (map["by"] && !split.of_tokens)
    return fail(map.key_at("by"), "split: 'by' is for chunks of tokens")
        .with_note("help: `dim: tokens`");
  if (map["sizes"] && !split.of_chunks())
    return fail(map.key_at("sizes"), "split: 'sizes' is for chunks of tokens and shares of samples")
        .with_note("help: `dim: tokens`, or `dim: samples`");
  if (map["sizes"] && map["by"])
    return fail(map.key_at("by"),
                "split: 'by' cannot be combined with 'sizes', which say how many tokens each has");
  if (map["sizes"] && std::ssize(split.sizes) != split.into)
    return fail(split.sizes_at, "split: {} sizes of {} {}", split.sizes.size(), split.into,
                split.of_tokens ? "chunks" : "shares");
  return ok_status();
}

Status check_split(const Fields& map, const Reading& reading, Split& split) {
  PIPER_TRY(check_sizes(map, split));
  if (!map["as"]) split.as = made_by(split).as;
  if (!split.of_region()) {
    PIPER_TRY(check_of_samples(map, reading, split));
  } else {
    split.scope_at = map["scope"]->at;
    if (map["tensor"]) split.tensor_at = map["tensor"]->at;
    if (!split.dim)
      return fail(split.dim_at, "split: 'dim: {}' cannot be combined with 'scope'",
                  named_dim(split))
          .with_note(
              "help: 'dim' is the number of a dim there: of most values samples are dim 0, and "
              "tokens dim 1");
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
    {"dim", integer_or(kNamedDims, {-64, 63}), kRequired,
     "What to cut: batch; tokens, of each sample; samples, of each microbatch; or, of a region, a "
     "dim, from the end if negative.",
     custom<read_split_dim, print_split_dim>},
    {"into", kCount, kRequired,
     "Number of microbatches, chunks of tokens, shares of samples, or parts.",
     member<&Split::into>},
    {"sizes", kIntegers, kOptional,
     "Number of tokens of each chunk, or of samples of each share. Default: all equal, or as 'by' "
     "says.",
     custom<read_sizes, print_sizes>},
    {"by", one_of(kEqual), kOptional,
     "What chunks of tokens have in common: tokens, the same number; cost, the same time, so that "
     "later chunks are shorter. Default tokens.",
     member<&Split::by>},
    {"within", kAxes, kOptional,
     "A mesh axis, or several, that also cut the dim: a part has its share of each rank's block.",
     located<&Split::within, &Split::within_at>},
    {"as", kName, kStated,
     "Name of the microbatch coordinate, default mb; of the tag that chunks of tokens have, "
     "default seq; of that of shares, default share; or of that of parts, default part.",
     member<&Split::as>},
};

}  // namespace

Directive split_directive() {
  return directive<&Strategy::splits>({"split", kSplitKeys, checked<check_split>},
                                      "Cut the batch into microbatches, tokens into chunks, "
                                      "samples into shares, or ops into parts.");
}

}  // namespace piper::fields
