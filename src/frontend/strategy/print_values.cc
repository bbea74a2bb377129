// Values as tables have them: members of structs -> YAML on one line.
#include <utility>

#include "members.h"
#include "piper/base/yaml.h"
#include "print.h"

namespace piper {
namespace {

std::string print_word(std::string_view text) {
  const bool plain = expr::is_identifier(text) && text != "true" && text != "false" &&
                     !yaml::yaml_surprise(text).has_value();
  return plain ? std::string(text) : yaml::in_quotes(text);
}

// Prints in the largest unit that leaves a whole number.
std::string print_bytes(int64_t value) {
  for (const auto& [unit, size] : {std::pair("GiB", 1 << 30), {"MiB", 1 << 20}, {"KiB", 1 << 10}})
    if (value % size == 0 && value != 0) return fmt::format("{}{}", value / size, unit);
  return fmt::format("{}B", value);
}

// A predicate that is a constant by now still has to be one when it is read back, not a value.
std::string print_predicate(const Condition& one) {
  const std::string text = one.low.spelled();
  const bool is_number = text.find_first_not_of("-0123456789") == std::string::npos;
  return is_number ? fmt::format("{0} {1} {0}", one.tag, text == "0" ? "!=" : "==") : text;
}

std::string print_condition(const Condition& one) {
  using Kind = Condition::Kind;
  if (one.tag == "value" && !one.words.empty()) return print_patterns(one.words.front());
  switch (one.kind) {
    case Kind::kAny:
      return "\"*\"";
    case Kind::kAbsent:
      return "absent";
    case Kind::kSet:
      if (!one.words.empty()) return print_one_or_list(one.words, print_text);
      return print_one_or_list(one.set, [&](const Condition::Values& values) {
        const std::string low = values.low.spelled();
        if (values.high)
          return yaml::in_quotes(
              fmt::format("{}{}..{}", one.but ? "!" : "", low, values.high->spelled()));
        return one.but ? yaml::in_quotes("!" + low) : print_expr(values.low);
      });
    case Kind::kHolds:
      return yaml::in_quotes(print_predicate(one));
    case Kind::kCompare:
      return yaml::in_quotes(one.compare + one.low.spelled());
    case Kind::kBind:
      return print_word(one.bind);
  }
  return "";
}

}  // namespace

std::string print_key(std::string_view text) {
  return expr::is_identifier(text) ? std::string(text) : yaml::in_quotes(text);
}

// Where params are inserted, a '$' is written twice.
std::string print_text(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '$' ? "$$" : std::string(1, c);
  return print_word(out);
}

std::string print_patterns(const std::string& joined) {
  std::vector<std::string> patterns;
  int depth = 0;
  std::string one;
  for (const char c : joined) {
    depth += (c == '{') - (c == '}');
    if (c == ',' && depth == 0) {
      patterns.push_back(std::exchange(one, ""));
    } else if (c != ' ' || !one.empty()) {
      one += c;
    }
  }
  patterns.push_back(one);
  return print_one_or_list(patterns, print_text);
}

std::string print_expr(const Expr& value) {
  const std::string text = value.spelled();
  const bool is_number = text.find_first_not_of("0123456789") == text.npos;
  return is_number ? text : print_word(text);
}

namespace fields {

// Returns a word where it says what no number does.
std::string print_value(const Field& field, int64_t value) {
  const IntegerRange& range = field.form.integers;
  const bool is_number = field.form.type != Type::kWord && value >= range.least;
  for (const Word& one : field.form.words)
    if (one.value == value && !is_number) return std::string(one.name);
  return field.form.type == Type::kBytes ? print_bytes(value) : std::to_string(value);
}
std::string print_value(const Field&, double value) { return fmt::format("{}", value); }
std::string print_value(const Field& field, bool value) {
  if (field.form.type == Type::kWord) return print_value(field, int64_t{value});
  return value ? "true" : "false";
}
std::string print_value(const Field& field, const std::string& value) {
  return field.form.type == Type::kPaths ? print_patterns(value) : print_text(value);
}
std::string print_value(const Field& field, const std::vector<std::string>& value) {
  if (field.form.type == Type::kAxes) return print_one_or_list(value, print_text);
  return print_list(value, print_text);
}
std::string print_value(const Field&, const std::vector<int64_t>& value) {
  return print_list(value, [](int64_t one) { return std::to_string(one); });
}
std::string print_value(const Field&, const Glob& value) { return print_patterns(value.pattern()); }
std::string print_value(const Field&, const NamesAt& value) {
  return print_list(value, [](const auto& name) { return print_text(name.first); });
}
std::string print_value(const Field&, const Where& where) {
  Map map;
  for (const Condition& one : where) map.add(one.tag, print_condition(one));
  return map.text();
}
std::string print_value(const Field&, const Expr& value) { return print_expr(value); }
std::string print_value(const Field&, const Expressions& value) {
  Map map;
  for (const auto& [name, expression] : value) map.add(name, print_expr(expression));
  return map.text();
}

std::string print_inside(const Field& field, const void* object) {
  const std::string text = print_map(fields::object(field.form.object), object);
  return text == "{}" && field.presence == kOptional ? "" : text;
}

std::string print_entries(const Object& object, const void* from) {
  std::vector<std::string> entries;
  for (const Field& field : object.fields) {
    const std::string text = field.member.print ? field.member.print(field, from) : "";
    if (!text.empty()) entries.push_back(fmt::format("{}: {}", field.name, text));
  }
  return join(entries, ", ");
}

std::string print_map(const Object& object, const void* from) {
  return fmt::format("{{{}}}", print_entries(object, from));
}

std::string print_block(const Object& object, const void* from, int indent) {
  std::string out;
  for (const Field& field : object.fields) {
    const std::string text = field.member.print ? field.member.print(field, from) : "";
    if (text.empty()) continue;
    out += fmt::format("\n{:{}}{}:{}{}", "", indent, field.name, text[0] == '\n' ? "" : " ", text);
  }
  return out;
}

}  // namespace fields
}  // namespace piper
