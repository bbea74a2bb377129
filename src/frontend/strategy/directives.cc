// directives: the list of them all.
#include "directives.h"

#include "errors.h"

namespace piper {
namespace fields {

std::span<const Directive> directives() {
  static const std::vector<Directive> kAll = [] {
    std::vector<Directive> all = {
#define PIPER_FAMILY(name) name##_directive(),
#include "families.inc"
#undef PIPER_FAMILY
    };
    std::ranges::sort(all, {}, [](const Directive& one) { return one.list_in(kNothingYet); });
    return all;
  }();
  return kAll;
}

}  // namespace fields

namespace {

bool contains(const std::vector<std::string>& in, std::string_view name) {
  return std::find(in.begin(), in.end(), name) != in.end();
}

// Returns those that are maps of one known key; the others are errors.
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

Status read_directive(const yaml::Entry& entry, const fields::Reading& reading, Strategy& out) {
  for (const fields::Directive& directive : fields::directives())
    if (directive.keys.name == entry.key.text)
      return directive.read(directive.keys, entry, reading, out);
  PIPER_CHECK(false, "no directive {}", entry.key.text);
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

// Returns the tags that `place` entries give, wherever they are.
std::vector<std::string> placed_tags(const std::vector<const yaml::Entry*>& all) {
  std::vector<std::string> tags;
  for (const yaml::Entry* entry : all)
    if (const yaml::Entry* given = entry->key.text == "place" ? entry->value.find("tags") : nullptr)
      for (const yaml::Entry& tag : given->value.entries) tags.push_back(tag.key.text);
  return tags;
}

}  // namespace

Names names_of(const Strategy& read) {
  Names names;
  for (const MeshAxis& axis : read.mesh) names.axes.push_back(axis.name);
  names.tags = tags_of(read);
  return names;
}

Status read_directives(const std::vector<Sections::Item>& entries, const Scope& scope,
                       Strategy& out) {
  ErrorList errors;
  const std::vector<const yaml::Entry*> all = list_directives(entries, errors);
  // Splits first, wherever they are: they name a tag that the others may use.
  for (const bool splits : {true, false}) {
    Names names = names_of(out);
    names.placed = placed_tags(all);
    for (const yaml::Entry* entry : all) {
      if ((entry->key.text == "split") != splits) continue;
      Status read = read_directive(*entry, {scope, names, out}, out);
      const bool tag_is_unknown = splits && !read && entry->value.find("as") != nullptr;
      errors.add(std::move(read));
      if (tag_is_unknown) return errors.status();
    }
  }
  PIPER_TRY(errors.status());
  return share_precision(out);
}

}  // namespace piper
