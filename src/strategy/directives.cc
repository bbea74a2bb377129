// directives: split, place, recompute; and the list of them all.
#include <algorithm>

#include "errors.h"
#include "expr_tree.h"
#include "sections.h"

namespace piper {
namespace {

using fields::Fields;

bool contains(const std::vector<std::string>& in, std::string_view name) {
  return std::find(in.begin(), in.end(), name) != in.end();
}

// The microbatch's name stands beside tags, params and axes in expressions.
Status check_micro_name(const yaml::Node& as, const std::string& name, const Scope& scope,
                        const Names& names) {
  if (name == "mb") return ok_status();
  const auto taken = [&](std::string_view by) {
    return fail(as.at, "the microbatch must not be called '{}', as {}", name, by)
        .with_note("help: leave 'as' out; it is called mb then");
  };
  for (const char* own : {"pass", "kind", "value", "chunk", "step", "r", "P", "M", "min", "max"})
    if (name == own) return taken("that has its own meaning");
  if (contains(names.tags, name)) return taken("a tag of 'annotate' is");
  if (scope.has_integer(name) || scope.text(name)) return taken("a param or mesh axis is");
  return ok_status();
}

Status read_split(const Fields& map, const Scope& scope, const Names& names, Strategy& out) {
  PIPER_ASSIGN(const std::string dim, read_text(*map["dim"], scope));
  if (dim != "batch") {
    return fail(map["dim"]->at, "to split the dim {} is not supported", yaml::shown(dim))
        .with_note("help: write 'dim: batch'");
  }
  if (!out.splits.empty()) {
    return fail(map.at(), "the batch is split twice")
        .with_note(fmt::format("first at {}", yaml::place(out.splits[0].at)));
  }
  Split split;
  split.at = map.at();
  PIPER_ASSIGN(split.into,
               or_else(read_integer(*map["into"], scope, {1, int64_t{1} << 20}), int64_t{1}));
  if (const yaml::Node* as = map["as"]) {
    PIPER_ASSIGN(split.as, read_name(*as, scope));
    PIPER_TRY(check_micro_name(*as, split.as, scope, names));
  }
  out.splits.push_back(std::move(split));
  return ok_status();
}

// Tags that place gives; `free` takes them in: what stands behind may use them.
Status read_tags(const yaml::Node& node, const Scope& scope, std::vector<std::string>& free,
                 Place& place) {
  if (!node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a map from tags to values");
  if (node.entries.empty()) return fail(node.at, "'tags' names no tag");
  for (const yaml::Entry& tag : node.entries) {
    PIPER_TRY(check_new_name(tag.key, "a tag"));
    if (contains(free, tag.key.text) || tag.key.text == "pass" || tag.key.text == "chunk")
      return fail(tag.key.at, "the name {} is taken", yaml::shown(tag.key.text));
    PIPER_ASSIGN(Expr value, read_expression(tag.value, scope, free));
    place.tags.emplace_back(tag.key.text, std::move(value));
    free.push_back(tag.key.text);
  }
  return ok_status();
}

Status read_place(const Fields& map, const Scope& scope, const Names& names, Strategy& out) {
  Place place;
  place.at = map.at();
  if (!out.splits.empty()) place.micro = out.splits[0].as;
  std::vector<std::string> free = names.tags;
  free.push_back("M");
  if (const yaml::Node* where = map["where"]) {
    PIPER_ASSIGN(place.where, read_where(*where, scope, names));
    for (const Condition& condition : place.where) {
      if (condition.kind == Condition::Kind::kBind) free.push_back(condition.bind);
    }
  }
  if (const yaml::Node* tags = map["tags"]) {
    PIPER_TRY(read_tags(*tags, scope, free, place));
  }
  free.push_back("P");
  const yaml::Node& on = *map["on"];
  if (!on.is(yaml::Node::Kind::kMap)) return wrong_type(on, "a map from mesh axes to coordinates");
  if (on.entries.empty()) return fail(on.at, "'on' names no mesh axis");
  for (const yaml::Entry& axis : on.entries) {
    PIPER_TRY(check_axis(axis.key.text, axis.key.at, names));
    PIPER_ASSIGN(Expr coordinate, read_expression(axis.value, scope, free));
    place.on.emplace_back(axis.key.text, std::move(coordinate));
    place.on_at.push_back(axis.value.at);
  }
  out.places.push_back(std::move(place));
  return ok_status();
}

Status read_recompute(const Fields& map, const Scope& scope, const Names& names, Strategy& out) {
  Recompute recompute;
  recompute.at = map.at();
  if (const yaml::Node* match = map["match"]) {
    PIPER_ASSIGN(recompute.match, read_glob(*match, scope));
  }
  if (const yaml::Node* where = map["where"]) {
    PIPER_ASSIGN(recompute.where, read_where(*where, scope, names));
    PIPER_TRY(check_where_of_ops(recompute.where, "recompute", {"pass"}));
  }
  if (const yaml::Node* ops = map["ops"]) {
    PIPER_ASSIGN(recompute.ops, read_ops(*ops, scope));
  }
  if (const yaml::Node* budget = map["budget"]) {
    PIPER_ASSIGN(recompute.budget_bytes, read_bytes(*budget, scope));
    for (const char* key : {"match", "ops"})
      if (map[key])
        return fail(map.key_at(key),
                    "recompute: '{}' beside 'budget', which chooses the ops itself", key);
  }
  if (!out.splits.empty()) recompute.micro = out.splits.front().as;
  out.recomputes.push_back(std::move(recompute));
  return ok_status();
}

// Those that are maps of one known key.
std::vector<const yaml::Entry*> list_directives(const std::vector<Sections::Item>& items,
                                                ErrorList& errors) {
  std::vector<const yaml::Entry*> out;
  for (const auto& [file, item] : items) {
    auto map = fields::read(item, item.at, "directive");
    if (map)
      out.push_back(&map->only());
    else
      errors.add(std::move(map).error());
  }
  return out;
}

Status read_directive(const yaml::Entry& entry, const Scope& scope, const Names& names,
                      Strategy& out) {
  const std::string& kind = entry.key.text;
  PIPER_ASSIGN(const Fields map, fields::read(entry.value, entry.key.at, kind));
  if (kind == "split") return read_split(map, scope, names, out);
  if (kind == "place") return read_place(map, scope, names, out);
  if (kind == "replicate") return read_replicate(map, scope, names, out);
  if (kind == "shard") return read_shard_directive(map, scope, names, out);
  if (kind == "precision") return read_precision(map, scope, names, out);
  if (kind == "recompute") return read_recompute(map, scope, names, out);
  if (kind == "stream") return read_stream(map, scope, names, out);
  if (kind == "offload") return read_offload(map, scope, names, out);
  if (kind == "prefetch") return read_prefetch(map, scope, names, out);
  if (kind == "fuse") return read_fuse(map, scope, names, out);
  return read_order(map, scope, names, out);
}

std::vector<std::string> tags_of(const Strategy& strategy) {
  std::vector<std::string> tags = {"mb"};
  auto add = [&](const std::string& tag) {
    if (!contains(tags, tag)) tags.push_back(tag);
  };
  for (const auto& rule : strategy.annotate.rules) {
    if (const auto* balance = std::get_if<BalanceRule>(&rule)) {
      add(balance->tag);
    } else {
      for (const auto& [tag, value] : std::get<AnnotateRule>(rule).tags) add(tag);
    }
  }
  for (const Split& split : strategy.splits) add(split.as);
  return tags;
}

}  // namespace

Result<std::vector<std::pair<std::string, SourceSpan>>> read_ops(const yaml::Node& node,
                                                                 const Scope& scope) {
  std::vector<std::pair<std::string, SourceSpan>> ops;
  if (node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a list of ops");
  const bool is_list = node.is(yaml::Node::Kind::kList);
  if (is_list && node.items.empty()) return fail(node.at, "the list of ops is empty");
  for (const yaml::Node& item : is_list ? std::span(node.items) : std::span(&node, 1)) {
    PIPER_ASSIGN(std::string op, read_text(item, scope));
    ops.emplace_back(std::move(op), item.at);
  }
  return ops;
}

Status check_where_of_ops(const Where& where, std::string_view directive,
                          std::initializer_list<std::string_view> not_by) {
  for (const Condition& condition : where)
    if (std::find(not_by.begin(), not_by.end(), condition.tag) != not_by.end())
      return fail(condition.at, "not supported: {} by {}", directive, condition.tag)
          .with_note(condition.tag == "pass" ? "help: it chooses forward ops"
                                             : "help: it chooses ops, for all microbatches alike");
  return ok_status();
}

Status check_axis(std::string_view name, const SourceSpan& at, const Names& names) {
  if (contains(names.axes, name)) return ok_status();
  Error error =
      fail(at, "unknown mesh axis {}{}", yaml::shown(name), did_you_mean(name, names.axes));
  if (names.axes.empty()) return std::move(error).with_note("help: name the axes under 'mesh'");
  return std::move(error).with_note(fmt::format("the axes are {}", join(names.axes, ", ")));
}

Status read_directives(const std::vector<Sections::Item>& entries, const Scope& scope,
                       Strategy& out) {
  ErrorList errors;
  const std::vector<const yaml::Entry*> all = list_directives(entries, errors);
  // Splits first, wherever they stand: they name a tag that the others may use.
  for (const bool splits : {true, false}) {
    Names names;
    for (const MeshAxis& axis : out.mesh) names.axes.push_back(axis.name);
    names.tags = tags_of(out);
    for (const yaml::Entry* entry : all) {
      if ((entry->key.text == "split") != splits) continue;
      Status read = read_directive(*entry, scope, names, out);
      const bool tag_is_unknown = splits && !read && entry->value.find("as") != nullptr;
      errors.add(std::move(read));
      if (tag_is_unknown) return errors.status();
    }
  }
  PIPER_TRY(errors.status());
  PIPER_TRY(check_accumulate_types(out));
  return share_reduce_type(out);
}

}  // namespace piper
