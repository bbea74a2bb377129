// Checks the keys of objects against the schema's rows, with the nearest names and other systems'
// words.
#include "fields.h"

#include <algorithm>

#include "errors.h"
#include "foreign_words.h"

namespace piper::fields {
namespace {

bool is_known(const Field& field) { return field.presence != Presence::kUnsupported; }

std::vector<std::string> known_keys(const Object& object) {
  std::vector<std::string> keys;
  for (const Field& field : object.fields)
    if (is_known(field)) keys.emplace_back(field.name);
  return keys;
}

// A single object has one of its keys, and perhaps others beside it.
Status check_single(const yaml::Node& node, const SourceSpan& at, const Object& object) {
  const auto is_beside = [&](std::string_view key) {
    return find_field(object, key)->presence == Presence::kBeside;
  };
  std::vector<std::string> keys;
  for (const Field& field : object.fields)
    if (is_known(field) && !is_beside(field.name)) keys.emplace_back(field.name);
  std::vector<SourceSpan> given;
  for (const yaml::Entry& entry : node.entries)
    if (!is_beside(entry.key.text)) given.push_back(entry.key.at);
  if (given.size() == 1) return ok_status();
  return fail(given.empty() ? at : given[1], "'{}' has exactly one of the keys {}", object.name,
              join(keys, ", "));
}

// Returns whether such maps are the items of a list.
bool is_item(const Object& object) {
  for (const Object& other : objects())
    for (const Field& field : other.fields)
      if (field.form.object == object.name &&
          (field.form.type == Type::kMany || field.form.type == Type::kManyOrOne))
        return true;
  return false;
}

std::string foreign_help(std::string_view word, std::string_view value = {}) {
  const std::string help = foreign_word(word, value);
  if (help.empty()) return "";
  return fmt::format("help: {}{}", help.starts_with('\'') ? "write " : "", help);
}

// Returns the objects whose keys may be under the field.
std::vector<const Object*> children(const Field& field) {
  std::vector<const Object*> out;
  for (const Object& object : objects())
    if (object.name == field.form.object || object.name == field.form.other) out.push_back(&object);
  return out;
}

// Returns how the key is written from `from` on: "optimizer: {sgd: {momentum: …}}" of train.
std::vector<std::string> places_below(const Object& from, std::string_view key) {
  std::vector<std::string> places;
  if (const Field* field = find_field(from, key); field && is_known(*field))
    places.push_back(fmt::format("{}: …", key));
  for (const Field& field : from.fields)
    for (const Object* child : children(field))
      for (const std::string& inner : places_below(*child, key)) {
        const bool item = is_item(*child);
        places.push_back(item ? fmt::format("{}: [{{{}}}]", field.name, inner)
                              : fmt::format("{}: {{{}}}", field.name, inner));
      }
  return places;
}

// Returns what is known of a key of other programs; empty: nothing.
std::string help_of_key(std::string_view key, std::string_view value, const Object& object) {
  const bool is_optimizer = find_field(fields::object("optimizer"), object.name) != nullptr;
  const std::string own = foreign_help(fmt::format("{}.{}", object.name, key), value);
  const std::string help = own.empty() ? foreign_help(key, value) : own;
  return is_optimizer && help.find("optimizer: {") != help.npos ? "" : help;
}

// Says where a key that does not belong to `object` is written, if there is one place.
std::optional<std::string> home_of(std::string_view key, std::string_view value,
                                   const Object& object) {
  const Object& whole = fields::object("strategy");
  if (find_field(whole, key))
    return fmt::format("help: '{}' begins at the left margin, as 'piper' does", key);
  if (std::string help = help_of_key(key, value, object); !help.empty()) return help;
  const auto below = places_below(object, key);
  // Of several optimizers that have the key the first one shows where it is written.
  if (below.size() == 1 || (!below.empty() && below[0].starts_with("optimizer: {")))
    return fmt::format("help: write '{}'", below[0]);
  const Object& directive = fields::object("directive");
  const Field* field = find_field(directive, key);
  if (field && field->presence == Presence::kBeside) {
    if (!find_field(directive, object.name)) return std::nullopt;
    return fmt::format("help: write '- {{{}: {{…}}, {}: …}}'", object.name, key);
  }
  for (const char* parent : {"directive", "train"})
    if (find_field(fields::object(parent), key))
      return fmt::format("help: its place is '{}'", places_below(whole, key)[0]);
  return std::nullopt;
}

Error unknown_key(const yaml::Node& key, const yaml::Node& value, const Object& object) {
  const std::vector<std::string> keys = known_keys(object);
  auto home = home_of(key.text, value.text, object);
  if (const auto chosen = nearest(value.text, keys); object.single && chosen)  // name: adamw
    home = fmt::format("help: write '{}: {{…}}'", *chosen);
  Error error = fail(key.at, "unknown key {} in '{}'{}", yaml::shown(key.text), object.name,
                     home ? "" : did_you_mean(key.text, keys));
  if (home) return std::move(error).with_note(*home);
  return std::move(error).with_note(fmt::format("the keys here are {}", join(keys, ", ")));
}

Status check_key(const yaml::Entry& entry, const Object& object) {
  const Field* field = find_field(object, entry.key.text);
  if (!field) return unknown_key(entry.key, entry.value, object);
  if (!is_known(*field))
    return fail(entry.key.at, "'{}' in '{}' is not supported", field->name, object.name);
  return ok_status();
}

// Returns the keys after an entry without a value that belong under it: they are not indented.
std::vector<std::string> not_indented(const yaml::Node& map, const Field& field,
                                      const Object& object) {
  std::vector<std::string> out;
  for (const yaml::Entry& entry : map.entries)
    for (const Object* child : children(field))
      if (find_field(*child, entry.key.text) && !find_field(object, entry.key.text))
        out.push_back(entry.key.text);
  return out;
}

Status check_keys(const yaml::Node& map, const Object& object) {
  ErrorList errors;
  std::vector<std::string> explained;
  for (const yaml::Entry& entry : map.entries) {
    const Field* field = find_field(object, entry.key.text);
    if (!field || !entry.value.is(yaml::Node::Kind::kNull)) continue;
    Error error = fail(entry.key.at, "'{}' has no value", entry.key.text);
    for (const std::string& key : not_indented(map, *field, object)) explained.push_back(key);
    if (!explained.empty())
      error.notes.push_back(
          fmt::format("help: indent what belongs to it by two more: {}", join(explained, ", ")));
    errors.add(std::move(error));
  }
  for (const yaml::Entry& entry : map.entries)
    if (std::find(explained.begin(), explained.end(), entry.key.text) == explained.end())
      errors.add(check_key(entry, object));
  return errors.status();
}

// Returns the error where something else is than a map with the keys of `object`.
Error no_map(const yaml::Node& node, std::string_view name, const Object& object) {
  const std::vector<std::string> keys = known_keys(object);
  Error error = wrong_type(node, fmt::format("a map for '{}'", name));
  std::vector<const Field*> required;
  for (const Field& field : object.fields)
    if (field.presence == Presence::kRequired) required.push_back(&field);
  const bool word = node.is(yaml::Node::Kind::kScalar);
  const auto near = word ? nearest(node.text, keys) : std::nullopt;
  const std::string foreign = word ? foreign_help(node.text) : "";
  // One key is not all of these.
  const bool of_order = name == "order" || name == "policy" || name == "strategy";
  if (object.single && near)
    error.notes.push_back(is_item(object)
                              ? fmt::format("help: write '- {}: …'", *near)
                              : fmt::format("help: write '{}: {{{}: {{}}}}'", name, *near));
  else if (word && required.size() == 1 && !of_order)
    error.notes.push_back(
        fmt::format("help: write '{}: {{{}: {}}}'", name, required[0]->name, node.text));
  else if (!foreign.empty())
    error.notes.push_back(foreign);
  else if (node.text == "true" && required.empty())
    error.notes.push_back(fmt::format("help: write '{}: {{}}'", name));
  else
    error.notes.push_back(fmt::format("its keys are {}", join(keys, ", ")));
  return error;
}

}  // namespace

const yaml::Node* Fields::operator[](std::string_view name) const {
  const yaml::Entry* entry = node_->find(name);
  return entry != nullptr ? &entry->value : nullptr;
}

const SourceSpan& Fields::key_at(std::string_view name) const {
  const yaml::Entry* entry = node_->find(name);
  PIPER_CHECK(entry != nullptr, "no key {}", name);
  return entry->key.at;
}

Result<Fields> read(const yaml::Node& node, const SourceSpan& at, std::string_view name,
                    std::string_view key) {
  const Object& kind = object(name);
  if (!node.is(yaml::Node::Kind::kMap)) return no_map(node, key.empty() ? name : key, kind);
  PIPER_TRY(check_keys(node, kind));  // a key that is missing may be one of them
  ErrorList errors;
  for (const Field& field : kind.fields)
    if (field.presence == Presence::kRequired && node.find(field.name) == nullptr)
      errors.add(fail(at, "'{}' needs the key '{}'", key.empty() ? name : key, field.name));
  PIPER_TRY(errors.status());
  if (kind.single) PIPER_TRY(check_single(node, at, kind));
  return Fields(node, at);
}

Status check(const yaml::Node& node, const SourceSpan& at, std::string_view name) {
  PIPER_TRY(read(node, at, name));
  for (const yaml::Entry& entry : node.entries) {
    const Field& field = *find_field(object(name), entry.key.text);
    for (const Object* child : children(field)) {
      if (entry.value.is(yaml::Node::Kind::kMap))
        PIPER_TRY(check(entry.value, entry.key.at, child->name));
      for (const yaml::Node& item : entry.value.items) PIPER_TRY(check(item, item.at, child->name));
    }
  }
  return ok_status();
}

}  // namespace piper::fields
