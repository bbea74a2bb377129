// Values as tables have them: YAML nodes -> members of structs, by the form of their field.
#include <algorithm>

#include "errors.h"
#include "foreign_words.h"
#include "members.h"

namespace piper::fields {
namespace {

std::vector<std::string> names_of(std::span<const Word> words) {
  std::vector<std::string> names;
  for (const Word& one : words) names.emplace_back(one.name);
  return names;
}

const Word* find_word(const Field& field, std::string_view name) {
  const std::span<const Word> words = field.form.words;
  const auto found =
      std::find_if(words.begin(), words.end(), [&](const Word& one) { return one.name == name; });
  return found == words.end() ? nullptr : &*found;
}

// Returns the items of a list, or the one that is in place of it.
Result<std::span<const yaml::Node>> items_of(const yaml::Node& node, std::string_view what) {
  if (node.is(yaml::Node::Kind::kMap)) return wrong_type(node, fmt::format("a list of {}", what));
  if (!node.is(yaml::Node::Kind::kList)) return std::span(&node, 1);
  if (node.items.empty()) return fail(node.at, "the list of {} is empty", what);
  return std::span(node.items);
}

}  // namespace

Result<int64_t> read_word(const Field& field, const yaml::Node& node, const Reading& reading) {
  PIPER_ASSIGN(const std::string name, read_text(node, reading.scope));
  if (const Word* found = find_word(field, name)) return found->value;
  const std::vector<std::string> names = names_of(field.form.words);
  Error error = fail(node.at, "'{}' cannot be {}{}", field.name, yaml::shown(name),
                     did_you_mean_value(name, names));
  if (names.size() == 1)
    return std::move(error).with_note(fmt::format("help: write '{}: {}'", field.name, names[0]));
  if (field.name == "compute" && is_in_8_bits(name))
    error.notes.emplace_back(
        "products in 8 bits are not supported; 'gather' and 'reduce' of 'replicate' send what they "
        "move in 8 bits");
  return std::move(error)
      .with_note(fmt::format("the values of '{}' are {}", field.name, join(names, ", ")))
      .with_note(fmt::format("{}: {}", field.name, field.doc));
}

// What follows from an error that is reported already leaves the default.
Status read_value(const Field& field, const yaml::Node& given, const Reading& reading,
                  int64_t& out) {
  const Scope& scope = reading.scope;
  if (field.form.type == Type::kWord) {
    PIPER_ASSIGN(out, read_word(field, given, reading));
    return ok_status();
  }
  if (field.form.type == Type::kBytes) {
    PIPER_ASSIGN(out, read_bytes(given, scope));
    return ok_status();
  }
  PIPER_ASSIGN(const yaml::Node node,
               field.form.words.empty() ? Result<yaml::Node>(given) : with_texts(given, scope));
  if (const Word* found = find_word(field, node.text)) {
    out = found->value;
    return ok_status();
  }
  if (!field.form.words.empty()) PIPER_TRY(check_word(node, scope, names_of(field.form.words)));
  PIPER_ASSIGN(out, or_else(read_integer(node, scope, field.form.integers), int64_t{out}));
  return ok_status();
}

Status read_value(const Field& field, const yaml::Node& node, const Reading& reading, double& out) {
  const RealRange& range = field.form.reals;
  PIPER_ASSIGN(out, read_real(node, reading.scope));
  if (out < range.least || (range.open_least && out == range.least))
    return fail(node.at, "'{}' must be {} {}, not {}", field.name,
                range.open_least ? "above" : "at least", range.least, node.text);
  if (out > range.most || (range.open_most && out == range.most))
    return fail(node.at, "'{}' must be {} {}, not {}", field.name,
                range.open_most ? "below" : "at most", range.most, node.text);
  return ok_status();
}

Status read_value(const Field& field, const yaml::Node& node, const Reading& reading, bool& out) {
  if (field.form.type == Type::kWord) {
    PIPER_ASSIGN(const int64_t value, read_word(field, node, reading));
    out = value != 0;
    return ok_status();
  }
  PIPER_ASSIGN(out, read_bool(node, reading.scope));
  return ok_status();
}

Status read_value(const Field& field, const yaml::Node& node, const Reading& reading,
                  std::string& out) {
  const Type type = field.form.type;
  if (type == Type::kPaths) {
    PIPER_ASSIGN(const Glob glob, read_glob(node, reading.scope));
    out = glob.pattern();
    return ok_status();
  }
  if (type == Type::kAxis && node.is(yaml::Node::Kind::kList))
    return fail(node.at, "not supported: '{}' with several mesh axes, expected the name of one",
                field.name);
  PIPER_ASSIGN(
      out, type == Type::kName ? read_name(node, reading.scope) : read_text(node, reading.scope));
  return type == Type::kAxis ? check_axis(out, node.at, reading.names) : ok_status();
}

// Reads a list of words or axes, each of which may appear once.
Status read_value(const Field& field, const yaml::Node& node, const Reading& reading,
                  std::vector<std::string>& out) {
  const bool axes = field.form.type == Type::kAxes;
  PIPER_ASSIGN(const auto items, items_of(node, axes ? "mesh axes" : field.name));
  for (const yaml::Node& item : items) {
    if (!axes) PIPER_TRY(read_word(field, item, reading));
    PIPER_ASSIGN(std::string name, read_text(item, reading.scope));
    if (axes) PIPER_TRY(check_axis(name, item.at, reading.names));
    if (std::find(out.begin(), out.end(), name) != out.end())
      return fail(item.at, "'{}' is given twice", name);
    out.push_back(std::move(name));
  }
  return ok_status();
}

Status read_value(const Field&, const yaml::Node& node, const Reading& reading, Glob& out) {
  PIPER_ASSIGN(out, read_glob(node, reading.scope));
  return ok_status();
}

Status read_value(const Field& field, const yaml::Node& node, const Reading& reading,
                  NamesAt& out) {
  PIPER_ASSIGN(const auto items, items_of(node, field.name));
  for (const yaml::Node& item : items) {
    PIPER_ASSIGN(std::string name, read_text(item, reading.scope));
    out.emplace_back(std::move(name), item.at);
  }
  return ok_status();
}

Status read_value(const Field& field, const yaml::Node& node, const Reading& reading, Where& out) {
  Names names = reading.names;
  names.kinds = field.form.type == Type::kWhereTask;
  PIPER_ASSIGN(out, read_where(node, reading.scope, names));
  return ok_status();
}

// ---- Whole maps ---------------------------------------------------------------------------------

Status read_inside(const Field& field, const yaml::Entry& entry, const Reading& reading,
                   void* object) {
  return read_map(fields::object(field.form.object), entry.value, entry.key.at, reading, object,
                  field.name);
}

Status read_map(const Object& object, const yaml::Node& node, const SourceSpan& at,
                const Reading& reading, void* out, std::string_view key) {
  PIPER_ASSIGN(const Fields map, read(node, at, object.name, key));
  for (const Field& field : object.fields) {
    const yaml::Entry* entry = node.find(field.name);
    if (entry && field.member.read) PIPER_TRY(field.member.read(field, *entry, reading, out));
  }
  return object.check ? object.check(map, reading, out) : ok_status();
}

}  // namespace piper::fields
