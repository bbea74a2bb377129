// directives: shard.
#include "sections.h"

namespace piper {
namespace {

// One pattern, or a list of them.
Result<std::vector<Glob>> read_globs(const yaml::Node& node, const Scope& scope) {
  const bool is_list = node.is(yaml::Node::Kind::kList);
  if (is_list && node.items.empty()) return fail(node.at, "the list of patterns is empty");
  std::vector<Glob> globs;
  for (const yaml::Node& item : is_list ? std::span(node.items) : std::span(&node, 1)) {
    PIPER_ASSIGN(Glob glob, read_glob(item, scope));
    globs.push_back(std::move(glob));
  }
  return globs;
}

// What stages send has flat parts, attention what its inputs have, all else blocks of a dim.
Status read_dim(const fields::Fields& map, const Scope& scope, ShardRule& shard) {
  if (!map["dim"])
    return shard.has_dim() ? fail(map.at(), "'shard' needs the key 'dim'") : ok_status();
  PIPER_ASSIGN(const yaml::Node dim, with_texts(*map["dim"], scope));
  shard.dim_at = dim.at;
  if (!shard.attention.empty())
    return fail(dim.at,
                "shard: 'dim' beside 'attention', which has the tokens that inputs give it");
  if (!shard.sends.empty())
    return fail(dim.at, "shard: 'dim' beside 'sends', whose parts are runs of the elements");
  if (dim.text == "none") return ok_status();
  PIPER_TRY(check_word(dim, scope, {"none"}));
  PIPER_ASSIGN(shard.dim, read_integer(dim, scope, {-64, 63}));
  return ok_status();
}

Status read_by(const fields::Fields& map, const Scope& scope, ShardRule& shard) {
  const yaml::Node* by = map["by"];
  if (!by && shard.attention.empty()) return ok_status();
  if (!by) return fail(map.at(), "'shard' of attention needs the key 'by'");
  if (shard.attention.empty()) return fail(map.key_at("by"), "shard: 'by' is for attention");
  const std::string kWays[] = {"gather", "heads", "ring"};
  PIPER_ASSIGN(const size_t way, read_word(*by, scope, kWays, "a way of attention"));
  shard.by = kWays[way];
  return ok_status();
}

}  // namespace

Status read_shard_directive(const fields::Fields& map, const Scope& scope, const Names& names,
                            Strategy& out) {
  ShardRule shard;
  shard.at = map.at();
  bool given = false;
  for (const auto& [key, globs] : {std::pair("match", &shard.match),
                                   {"input", &shard.input},
                                   {"scope", &shard.scope},
                                   {"sends", &shard.sends},
                                   {"attention", &shard.attention}}) {
    const yaml::Node* patterns = map[key];
    if (!patterns) continue;
    if (std::exchange(given, true))
      return fail(map.key_at(key), "shard: '{}' beside another choice of tensors", key)
          .with_note("help: a directive for each");
    shard.of_at = patterns->at;
    PIPER_ASSIGN(*globs, read_globs(*patterns, scope));
  }
  if (!given)
    return fail(map.at(), "shard: no tensor is named")
        .with_note(
            "help: 'match' names parameters, 'input' inputs, 'scope' what modules make, "
            "'sends' what stages send, 'attention' how tokens in blocks meet");
  PIPER_TRY(read_dim(map, scope, shard));
  PIPER_TRY(read_by(map, scope, shard));
  if (const yaml::Node* pad = map["pad"]) {
    PIPER_ASSIGN(shard.pad, read_bool(*pad, scope));
    if (shard.pad && (!shard.dim || shard.match.empty()))
      return fail(map.key_at("pad"), "shard: 'pad' is for dims of parameters");
  }
  shard.over_at = map["over"]->at;
  PIPER_ASSIGN(shard.over, read_text(*map["over"], scope));
  PIPER_TRY(check_axis(shard.over, shard.over_at, names));
  out.shards.push_back(std::move(shard));
  return ok_status();
}

}  // namespace piper
