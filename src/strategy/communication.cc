// directives: stream, prefetch, fuse, offload.
#include <algorithm>

#include "expr_tree.h"
#include "sections.h"

namespace piper {
namespace {

using fields::Fields;

constexpr int64_t kMostPriority = 100, kMostSms = 1024, kMostDistance = 1 << 20;

Status read_priority(const yaml::Node& given, const Scope& scope, StreamRule& out) {
  PIPER_ASSIGN(const yaml::Node node, with_texts(given, scope));
  if (node.text == "low" || node.text == "high") {
    out.priority = node.text == "low" ? -1 : 1;
    return ok_status();
  }
  PIPER_TRY(check_word(node, scope, {"low", "high"}));
  PIPER_ASSIGN(const int64_t value, read_integer(node, scope, {-kMostPriority, kMostPriority}));
  out.priority = static_cast<int32_t>(value);
  return ok_status();
}

// Of two entries for one stream each property has one value.
Status check_properties(const StreamRule& rule, const Fields& map, const Strategy& strategy) {
  for (const StreamRule& other : strategy.streams) {
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

}  // namespace

Status read_stream(const Fields& map, const Scope& scope, Names names, Strategy& out) {
  names.kinds = true;
  StreamRule rule;
  rule.at = map.at();
  rule.name_at = map["name"]->at;
  PIPER_ASSIGN(rule.name, read_name(*map["name"], scope));
  if (rule.name == "overlap")
    return fail(rule.name_at, "the stream 'overlap' belongs to overlapped pairs of an order");
  if (const yaml::Node* where = map["where"]) {
    PIPER_ASSIGN(rule.where, read_where(*where, scope, names));
  }
  if (const yaml::Node* priority = map["priority"]) {
    PIPER_TRY(read_priority(*priority, scope, rule));
  }
  if (const yaml::Node* sms = map["sms"]) {
    PIPER_ASSIGN(rule.sms, read_integer(*sms, scope, {1, kMostSms}));
  }
  if (!rule.where && !rule.priority && !rule.sms)
    return fail(map.at(), "'stream' changes nothing")
        .with_note("help: 'where' says which tasks run on it; 'priority' and 'sms' what it is");
  PIPER_TRY(check_properties(rule, map, out));
  out.streams.push_back(std::move(rule));
  return ok_status();
}

Status read_offload(const Fields& map, const Scope& scope, const Names& names, Strategy& out) {
  OffloadRule rule;
  rule.at = map.at();
  const yaml::Node& what = *map["what"];
  PIPER_ASSIGN(const std::string word, read_text(what, scope));
  const std::vector<std::string> kinds = {"activations", "optimizer"};
  if (word != kinds[0] && word != kinds[1])
    return fail(what.at, "{} is not what can be offloaded{}", yaml::shown(word),
                did_you_mean(word, kinds))
        .with_note("there are activations, optimizer");
  rule.optimizer = word == kinds[1];
  for (const char* key : {"match", "where", "min"})
    if (rule.optimizer && map[key])
      return fail(map.key_at(key), "'{}' chooses among activations", key)
          .with_note("the optimizer's states go together");
  if (const yaml::Node* match = map["match"]) {
    PIPER_ASSIGN(rule.match, read_glob(*match, scope));
  }
  if (const yaml::Node* where = map["where"]) {
    PIPER_ASSIGN(rule.where, read_where(*where, scope, names));
  }
  if (const yaml::Node* min = map["min"]) {
    PIPER_ASSIGN(rule.min_bytes, read_bytes(*min, scope));
  }
  if (const yaml::Node* distance = map["distance"]) {
    PIPER_ASSIGN(const int64_t tasks, read_integer(*distance, scope, {0, kMostDistance}));
    rule.distance = static_cast<int32_t>(tasks);
  }
  if (const yaml::Node* in_flight = map["in_flight"]) {
    PIPER_ASSIGN(const int64_t tasks, read_integer(*in_flight, scope, {0, kMostDistance}));
    rule.in_flight = static_cast<int32_t>(tasks);
  }
  out.offloads.push_back(std::move(rule));
  return ok_status();
}

Status read_prefetch(const Fields& map, const Scope& scope, Names names, Strategy& out) {
  names.kinds = true;
  Prefetch prefetch;
  prefetch.at = map.at();
  PIPER_ASSIGN(const yaml::Node distance, with_texts(*map["distance"], scope));
  PIPER_ASSIGN(prefetch.where, read_where(*map["where"], scope, names));
  prefetch.eager = distance.text == "eager";
  if (!prefetch.eager && distance.text != "lazy") {
    PIPER_TRY(check_word(distance, scope, {"eager", "lazy"}));
    PIPER_ASSIGN(const int64_t tasks, read_integer(distance, scope, {0, kMostDistance}));
    prefetch.distance = static_cast<int32_t>(tasks);
  }
  out.prefetches.push_back(std::move(prefetch));
  return ok_status();
}

Status read_fuse(const Fields& map, const Scope& scope, Names names, Strategy& out) {
  names.kinds = true;
  FuseRule rule;
  rule.at = map.at();
  PIPER_ASSIGN(rule.where, read_where(*map["where"], scope, names));
  if (const yaml::Node* bucket = map["bucket"]) {
    PIPER_ASSIGN(rule.bucket_bytes, read_bytes(*bucket, scope));
  }
  if (const yaml::Node* microbatches = map["microbatches"]) {
    PIPER_ASSIGN(rule.microbatches, read_integer(*microbatches, scope, {1, int64_t{1} << 20}));
  }
  out.fuses.push_back(std::move(rule));
  return ok_status();
}

}  // namespace piper
