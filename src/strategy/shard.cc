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

}  // namespace

Status read_shard_directive(const fields::Fields& map, const Scope& scope, const Names& names,
                            Strategy& out) {
  ShardRule shard;
  shard.at = map.at();
  int given = 0;
  for (const char* key : {"match", "input", "scope"})
    if (map[key]) {
      shard.of_at = map[key]->at;
      if (++given > 1)
        return fail(map.key_at(key), "shard: '{}' beside another choice of tensors", key)
            .with_note("help: a directive for each");
    }
  if (given == 0)
    return fail(map.at(), "shard: no tensor is named")
        .with_note("help: 'match' names parameters, 'input' inputs, 'scope' what modules make");
  for (const auto& [key, globs] :
       {std::pair("match", &shard.match), {"input", &shard.input}, {"scope", &shard.scope}})
    if (const yaml::Node* patterns = map[key]) {
      PIPER_ASSIGN(*globs, read_globs(*patterns, scope));
    }
  PIPER_ASSIGN(const yaml::Node dim, with_texts(*map["dim"], scope));
  shard.dim_at = dim.at;
  if (dim.text != "none") {
    PIPER_TRY(check_word(dim, scope, {"none"}));
    PIPER_ASSIGN(shard.dim, read_integer(dim, scope, {-64, 63}));
  }
  shard.over_at = map["over"]->at;
  PIPER_ASSIGN(shard.over, read_text(*map["over"], scope));
  PIPER_TRY(check_axis(shard.over, shard.over_at, names));
  out.shards.push_back(std::move(shard));
  return ok_status();
}

}  // namespace piper
