// directives: replicate.
#include <algorithm>

#include "foreign_words.h"
#include "sections.h"

namespace piper {
namespace {

using fields::Fields;
using When = Replicate::When;

// Each kind of state is cut with those before it.
Status read_shard(const yaml::Node& node, const Scope& scope, Replicate& out) {
  const std::string kKinds[] = {"optimizer", "gradients", "parameters"};
  bool* const flags[] = {&out.shard_optimizer, &out.shard_gradients, &out.shard_parameters};
  out.shard_at = node.at;
  std::vector<const yaml::Node*> items;
  if (node.is(yaml::Node::Kind::kList))
    for (const yaml::Node& item : node.items) items.push_back(&item);
  else
    items.push_back(&node);
  for (const yaml::Node* item : items) {
    Result<size_t> word = read_word(*item, scope, kKinds, "what can be sharded");
    if (!word)
      return std::move(word).error().with_note(fmt::format("help: {}", foreign_word("zero")));
    const size_t kind = *word;
    if (*flags[kind]) return fail(item->at, "'{}' stands twice", kKinds[kind]);
    *flags[kind] = true;
  }
  for (size_t kind = 1; kind < std::size(kKinds); ++kind)
    if (*flags[kind] && !*flags[kind - 1])
      return fail(node.at, "to shard {} without {} is not supported", kKinds[kind],
                  kKinds[kind - 1])
          .with_note(fmt::format("help: add '{}'", kKinds[kind - 1]));
  return ok_status();
}

Status read_gather(const Fields& map, const Scope& scope, Replicate& out) {
  const std::string kWhen[] = {"per_pass", "per_microbatch", "per_step"};
  if (const yaml::Node* stream = map["stream"]) {
    PIPER_ASSIGN(out.gather_stream, read_name(*stream, scope));
    out.gather_stream_at = map.key_at("stream");
  }
  if (!out.shard_optimizer) return fail(map.at(), "'gather' without 'shard' gathers nothing");
  for (const char* key : {"prefetch", "when"})
    if (map[key] && !out.shard_parameters)
      return fail(map.key_at(key), "'{}' needs parameters that are sharded", key)
          .with_note("help: write 'shard: [optimizer, gradients, parameters]'");
  if (const yaml::Node* prefetch = map["prefetch"]) {
    PIPER_ASSIGN(out.prefetch, read_integer(*prefetch, scope, {0, 1024}));
  }
  if (const yaml::Node* when = map["when"]) {
    PIPER_ASSIGN(const size_t word, read_word(*when, scope, kWhen, "when to gather"));
    out.gather = static_cast<When>(word);
  }
  return ok_status();
}

Status read_reduce(const Fields& map, const Scope& scope, Replicate& out) {
  const std::string kWhen[] = {"per_step", "per_microbatch"};
  if (const yaml::Node* stream = map["stream"]) {
    PIPER_ASSIGN(out.stream, read_name(*stream, scope));
    out.stream_at = map.key_at("stream");
  }
  if (const yaml::Node* dtype = map["dtype"]) {
    const std::string kTypes[] = {"f32", "bf16", "f16"};
    PIPER_ASSIGN(const size_t word, read_word(*dtype, scope, kTypes, "a type to reduce in"));
    out.dtype = parse_dtype(kTypes[word]);
    out.dtype_at = dtype->at;
  }
  if (const yaml::Node* when = map["when"]) {
    PIPER_ASSIGN(const size_t word, read_word(*when, scope, kWhen, "when to reduce"));
    if (word == 1) out.reduce = When::kMicrobatch;
    if (word == 1 && !out.shard_gradients)
      return fail(when->at, "'per_microbatch' needs gradients that are sharded")
          .with_note("help: write 'shard: [optimizer, gradients]'");
  }
  return ok_status();
}

}  // namespace

Status read_replicate(const Fields& map, const Scope& scope, const Names& names, Strategy& out) {
  Replicate replicate;
  replicate.at = map.at();
  replicate.over_at = map["over"]->at;
  PIPER_ASSIGN(replicate.over, read_text(*map["over"], scope));
  PIPER_TRY(check_axis(replicate.over, replicate.over_at, names));
  for (const Replicate& other : out.replicates) {
    if (other.over != replicate.over) continue;
    return fail(replicate.over_at, "two directives replicate over '{}'", other.over)
        .with_note(fmt::format("first at {}", yaml::place(other.at)));
  }
  if (const yaml::Node* bucket = map["bucket"]) {
    PIPER_ASSIGN(replicate.bucket_bytes, read_bytes(*bucket, scope));
  }
  if (const yaml::Node* stream = map["stream"]) {
    PIPER_ASSIGN(replicate.stream, read_name(*stream, scope));
    replicate.stream_at = map.key_at("stream");
  }
  if (const yaml::Node* shard = map["shard"]) PIPER_TRY(read_shard(*shard, scope, replicate));
  if (const yaml::Node* persist = map["persist"]) {
    if (!replicate.shard_optimizer)
      return fail(persist->at, "'persist' without 'shard' changes nothing");
    PIPER_ASSIGN(replicate.persist_bytes, read_bytes(*persist, scope));
  }
  if (const yaml::Node* gather = map["gather"]) {
    PIPER_ASSIGN(const Fields keys, fields::read(*gather, map.key_at("gather"), "gather"));
    PIPER_TRY(read_gather(keys, scope, replicate));
  }
  if (const yaml::Node* reduce = map["reduce"]) {
    PIPER_ASSIGN(const Fields keys, fields::read(*reduce, map.key_at("reduce"), "reduce"));
    if (keys["stream"] && map["stream"])
      return fail(keys["stream"]->at, "the stream of the reductions is given twice")
          .with_note(fmt::format("first at {}", yaml::place(map["stream"]->at)));
    PIPER_TRY(read_reduce(keys, scope, replicate));
  }
  out.replicates.push_back(std::move(replicate));
  return ok_status();
}

}  // namespace piper
