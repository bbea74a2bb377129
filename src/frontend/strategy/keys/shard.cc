// Reads the directive `shard`.
#include "directives.h"

namespace piper::fields {
namespace {

// ---- dim: an integer, or that there is none -----------------------------------------------------

constexpr Word kNone[] = {{"none"}};

std::string print_dim(const Field& field, const ShardRule& shard) {
  if (!shard.has_dim()) return "";
  return shard.dim ? print_value(field, *shard.dim) : "none";
}

// ---- Checks -------------------------------------------------------------------------------------

// One key names the tensors.
Status check_choice(const Fields& map, ShardRule& shard) {
  bool given = false;
  for (const char* key : {"match", "input", "scope", "sends", "attention"}) {
    if (!map[key]) continue;
    if (std::exchange(given, true))
      return fail(map.key_at(key), "shard: '{}' cannot be combined with another choice of tensors",
                  key)
          .with_note("help: a directive for each");
    shard.of_at = map[key]->at;
  }
  if (given) return ok_status();
  return fail(map.at(), "shard: no tensor is named")
      .with_note(
          "help: 'match' names parameters, 'input' inputs, 'scope' what modules make, "
          "'sends' what stages send, 'attention' how tokens in blocks meet");
}

// Checks the form of a rule: sends between stages have flat parts, attention is cut as its inputs
// are, everything else in blocks of a dim.
Status check_shard(const Fields& map, const Reading&, ShardRule& shard) {
  PIPER_TRY(check_choice(map, shard));
  PIPER_TRY(check_where_of_ops(shard.where, "shard", {"pass"}));
  if (map["where"] && !shard.match && !shard.scope)
    return fail(map.key_at("where"), "shard: 'where' is for 'match' and 'scope'")
        .with_note("help: it chooses by the tags of ops that read a parameter, or make a result");
  if (!map["dim"] && shard.has_dim()) return fail(map.at(), "'shard' needs the key 'dim'");
  if (map["dim"] && shard.attention)
    return fail(shard.dim_at,
                "shard: 'dim' cannot be combined with 'attention', which has the tokens that "
                "inputs give it");
  if (map["dim"] && shard.sends)
    return fail(
        shard.dim_at,
        "shard: 'dim' cannot be combined with 'sends', whose parts are runs of the elements");
  if (!shard.by && shard.attention)
    return fail(map.at(), "'shard' of attention needs the key 'by'");
  if (shard.by && !shard.attention) return fail(map.key_at("by"), "shard: 'by' is for attention");
  if (shard.pad && (!shard.dim || !shard.match))
    return fail(map.key_at("pad"), "shard: 'pad' is for dims of parameters");
  if (shard.capacity && (!shard.dim || !shard.match))
    return fail(map.key_at("capacity"), "shard: 'capacity' is for parameters that rows look up")
        .with_note(
            "help: it is said where experts are cut: `{match: \"**/experts/*\", dim: 0, over: "
            "ep, capacity: 2}`");
  if (shard.zigzag && (!shard.dim || !shard.input))
    return fail(map.key_at("order"), "shard: 'order' is for dims of inputs")
        .with_note("help: what is made of these has their layout");
  return ok_status();
}

constexpr Word kWays[] = {word("gather", ShardRule::By::kGather),
                          word("heads", ShardRule::By::kHeads), word("ring", ShardRule::By::kRing)};

constexpr Word kOrders[] = {word("contiguous", false), word("zigzag", true)};

constexpr double kMostRoom = 1e6;

constexpr Field kShardKeys[] = {
    {"match", kPaths, kOptional, "Parameters: patterns over their paths.",
     member<&ShardRule::match>},
    {"input", kPaths, kOptional, "Instead of match: data inputs, by patterns over their names.",
     member<&ShardRule::input>},
    {"scope", kPaths, kOptional,
     "Instead of match: outputs of modules, by patterns over scope paths.",
     member<&ShardRule::scope>},
    {"sends", kPaths, kOptional,
     "Instead of match: what stages send to each other, in parts that are gathered on arrival; "
     "patterns over scope paths.",
     member<&ShardRule::sends>},
    {"where", kWhere, kOptional,
     "Of the parameters or results, by the tags of all ops that read or make them. Default: all.",
     member<&ShardRule::where>},
    {"attention", kPaths, kOptional,
     "Instead of match: attention whose tokens are cut over the axis; patterns over scope paths.",
     member<&ShardRule::attention>},
    {"by", one_of(kWays), kOptional,
     "gather: gather the keys and values of all tokens; heads: exchange tokens for heads; ring: "
     "pass keys and values from rank to rank.",
     member<&ShardRule::by>},
    {"dim", integer_or(kNone, {-64, 63}), kOptional,
     "The dim to cut, counted from the end if negative; none: every rank holds the whole tensor.",
     custom<read_dim_or<kNone, ShardRule>, print_dim>},
    {"pad", kBool, kOptional,
     "Pad the dim with zeros if the axis does not divide it; they never count. Default false.",
     member<&ShardRule::pad>},
    {"capacity", real({1, kMostRoom}), kOptional,
     "Of experts that tokens look up: each rank has room for so many times as many rows of every "
     "other rank as an even load has. A step with more is not finite. Default: room for all rows.",
     located<&ShardRule::capacity, &ShardRule::capacity_at>},
    {"order", one_of(kOrders), kOptional,
     "How an input's dim is cut: contiguous, one block a rank; zigzag, two blocks a rank, one from "
     "each end, so that causal attention is equal work on all ranks. Default contiguous.",
     member<&ShardRule::zigzag>},
    {"over", kAxes, kRequired, "A mesh axis, or several as one.",
     located<&ShardRule::over, &ShardRule::over_at>},
};

}  // namespace

Directive shard_directive() {
  return directive<&Strategy::shards>({"shard", kShardKeys, checked<check_shard>},
                                      "Cut tensors over a mesh axis.");
}

}  // namespace piper::fields
