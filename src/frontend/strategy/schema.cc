// The JSON Schema of a strategy file, printed from the table of keys.
#include <algorithm>

#include "fields.h"

namespace piper {
namespace {

using fields::Field;
using fields::Object;
using fields::Presence;
using fields::Type;

constexpr std::string_view kInteger = R"("type": ["integer", "string"])";  // or an expression
constexpr std::string_view kCondition =
    R"("type": ["integer", "string", "array"], "items": {"type": ["integer", "string"]})";

std::string reference(std::string_view object) {
  return fmt::format(R"("$ref": "#/definitions/{}")", object);
}

std::string list_of(std::string_view item) {
  return fmt::format(R"("type": "array", "items": {{{}}})", item);
}

std::string map_to(std::string_view value) {
  return fmt::format(R"("type": "object", "additionalProperties": {{{}}})", value);
}

std::string either(std::string_view a, std::string_view b) {
  return fmt::format(R"("anyOf": [{{{}}}, {{{}}}])", a, b);
}

std::string quoted(std::string_view word) { return fmt::format("\"{}\"", word); }

template <class Words>
std::string enum_of(const Words& words) {
  std::vector<std::string> list;
  for (const auto& word : words) list.push_back(quoted(word));
  return fmt::format(R"("enum": [{}])", join(list, ", "));
}
std::string enum_of(const fields::Form& form) {
  std::vector<std::string_view> names;
  for (const fields::Word& word : form.words) names.push_back(word.name);
  return enum_of(names);
}

// Editors offer the words; a param may stand for one.
std::string word_of(const fields::Form& form) {
  return either(enum_of(form), R"("type": "string", "pattern": "\\$")");
}

// Tags have any names; pass and kind have their words.
std::string where() {
  const auto key = [](std::string_view name, std::string_view doc, const std::string& value) {
    return fmt::format(R"("{}": {{"description": "{}", {}}})", name, doc,
                       either(value, list_of(value)));
  };
  using Words = std::vector<std::string_view>;
  Words kinds(task_kinds().begin(), task_kinds().end());
  kinds.push_back("*");
  return fmt::format(
      R"("type": "object", "properties": {{{}, {}, {}}}, "additionalProperties": {{{}}})",
      key("pass",
          "F forward, B backward, BI its input part, BW its weight part, U update; one or a list.",
          enum_of(Words{"F", "R", "B", "BI", "BW", "U", "*"})),
      key("kind", "Kind of task: compute, input, send, recv or a collective; one or a list.",
          enum_of(kinds)),
      key("value",
          "Names of values or parameters that a task reads or writes; a pattern or a list.",
          R"("type": "string")"),
      kCondition);
}

std::string type_of(const fields::Form& form) {
  const std::string text = R"("type": "string")";
  switch (form.type) {
    case Type::kInteger:
    case Type::kBytes:
      return std::string(kInteger);
    case Type::kReal:
      return R"("type": ["number", "string"])";
    case Type::kBool:
      return R"("type": ["boolean", "integer", "string"])";
    case Type::kText:
    case Type::kName:
    case Type::kAxis:
    case Type::kProgram:
      return text;
    case Type::kIntegers:
      return list_of(kInteger);
    case Type::kReals:
      return list_of(R"("type": ["number", "string"])");
    case Type::kOne:
      return reference(form.object);
    case Type::kMany:
      return list_of(reference(form.object));
    case Type::kNamed:
      return map_to(reference(form.object));
    case Type::kCounts:
      return map_to(kInteger);
    case Type::kParams:
      return map_to(R"("type": ["number", "string"])");
    case Type::kTexts:
      return list_of(text);
    case Type::kPaths:
    case Type::kAxes:
      return either(text, list_of(text));
    case Type::kTextOrOne:
      return either(form.words.empty() ? text : word_of(form), reference(form.object));
    case Type::kTextOrMany:
      return either(text, list_of(reference(form.object)));
    case Type::kTextOneOrMany:
    case Type::kIntegerOneOrMany:
      return either(form.type == Type::kTextOneOrMany ? text : std::string(kInteger),
                    either(reference(form.object), list_of(reference(form.object))));
    case Type::kManyOrOne:
      return either(list_of(reference(form.object)), reference(form.other));
    case Type::kWhere:
    case Type::kWhereTask:
      return where();
    case Type::kWord:
      return word_of(form);
    case Type::kWords:
      return either(word_of(form), list_of(word_of(form)));
    case Type::kIntegerOrWord:
      return either(enum_of(form), std::string(kInteger));
  }
  return text;
}

bool is_shown(const Field& field) { return field.presence != Presence::kUnsupported; }
bool is_beside(const Field& field) { return field.presence == Presence::kBeside; }

// Asks for one of the keys, but for those beside.
std::string one_key(const Object& object, std::string_view indent) {
  std::vector<std::string> keys;
  for (const Field& field : object.fields)
    if (is_shown(field) && !is_beside(field))
      keys.push_back(fmt::format("{{\"required\": [\"{}\"]}}", field.name));
  if (std::none_of(object.fields.begin(), object.fields.end(), is_beside))
    return fmt::format("{}\"minProperties\": 1,\n{}\"maxProperties\": 1,\n", indent, indent);
  return fmt::format("{}\"oneOf\": [{}],\n", indent, join(keys, ", "));
}

// Returns the members of one object's schema, a key a line.
std::string members(const Object& object, std::string_view indent) {
  std::vector<std::string> properties, required;
  for (const Field& field : object.fields) {
    if (!is_shown(field)) continue;
    properties.push_back(fmt::format("{}  \"{}\": {{\"description\": \"{}\", {}}}", indent,
                                     field.name, field.doc, type_of(field.form)));
    if (field.presence == Presence::kRequired)
      required.push_back(fmt::format("\"{}\"", field.name));
  }
  std::string out =
      fmt::format("{}\"type\": \"object\",\n{}\"additionalProperties\": false,\n", indent, indent);
  if (!required.empty())
    out += fmt::format("{}\"required\": [{}],\n", indent, join(required, ", "));
  if (object.single) out += one_key(object, indent);
  return out +
         fmt::format("{}\"properties\": {{\n{}\n{}}}", indent, join(properties, ",\n"), indent);
}

}  // namespace

std::vector<std::pair<std::string_view, std::string_view>> known_directives() {
  std::vector<std::pair<std::string_view, std::string_view>> known;
  for (const Field& field : fields::object("directive").fields)
    if (is_shown(field) && !is_beside(field)) known.emplace_back(field.name, field.doc);
  return known;
}

std::string strategy_schema() {
  std::vector<std::string> definitions;
  for (const Object& object : fields::objects()) {
    if (object.name == "strategy") continue;
    definitions.push_back(
        fmt::format("    \"{}\": {{\n{}\n    }}", object.name, members(object, "      ")));
  }
  return fmt::format(
      "{{\n  \"$schema\": \"http://json-schema.org/draft-07/schema#\",\n"
      "  \"title\": \"Piper strategy\",\n{},\n  \"definitions\": {{\n{}\n  }}\n}}\n",
      members(fields::object("strategy"), "  "), join(definitions, ",\n"));
}

}  // namespace piper
