// The names that values of a strategy may use, and what `$name` inserts.
#include "scope.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "errors.h"
#include "expr_tree.h"
#include "foreign_words.h"

namespace piper {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Params of an included file may be missing in the file that includes it.
Error with_includer(Error error, const Scope& scope) {
  const auto from = scope.included_at.find(error.at.file);
  if (from == scope.included_at.end()) return error;
  const std::string place = yaml::place(from->second);
  return std::move(error).with_note(fmt::format("the file is included at {}", place));
}

// Returns the value that `$name` inserts.
Result<std::string> inserted(const yaml::Node& node, size_t offset, std::string_view name,
                             const Scope& scope) {
  scope.used.emplace(name);
  if (const Scope::Text* text = scope.text(name)) return text->value;
  if (contains(scope.failed, name)) return consequence();
  for (const auto& [key, value] : scope.integers) {
    if (key == name) return std::to_string(value);
  }
  std::vector<std::string> known = scope.integer_names();
  for (const Scope::Text& text : scope.texts) known.push_back(text.name);
  return with_includer(expr::unknown_name(span_in(node, offset, name.size()), name, known), scope);
}

Error given_twice(const SourceSpan& at, std::string_view name) {
  return fail(at, "'{}' is a param or mesh axis, and a tag or a name that is given here", name)
      .with_note(
          "help: rename one of them; {x} in a pattern also makes 'xs', the number of "
          "values");
}

// Checks the names in an expression: params and axes, and `free`, of which none may be both.
Status check_expression(const expr::Tree& tree, const Scope& scope,
                        std::span<const std::string> free) {
  std::vector<std::string> known(free.begin(), free.end());
  for (std::string& name : scope.integer_names()) known.push_back(std::move(name));
  bool follows = false;
  for (const expr::Node& part : tree.nodes) {
    if (part.op != expr::Op::kName) continue;
    const std::string_view name = tree.name(part);
    const SourceSpan at = tree.span(part.begin, part.end);
    const Scope::Text* text = scope.text(name);
    if (contains(free, name) && (text || scope.has_integer(name))) return given_twice(at, name);
    if (!contains(free, name)) scope.used.emplace(name);
    if (text) return no_integer(*text, at, scope);
    follows = follows || contains(scope.failed, name);
  }
  if (Status names = expr::check_names(tree, known); !names)
    return with_includer(std::move(names).error(), scope);
  return follows ? Status(consequence()) : ok_status();
}

}  // namespace

std::vector<std::string> Scope::integer_names() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : integers) {
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  out.insert(out.end(), failed.begin(), failed.end());
  return out;
}

bool Scope::has_integer(std::string_view name) const { return contains(integer_names(), name); }

const Scope::Text* Scope::text(std::string_view name) const {
  const auto found =
      std::find_if(texts.begin(), texts.end(), [&](const Text& t) { return t.name == name; });
  return found == texts.end() ? nullptr : &*found;
}

Error wrong_type(const yaml::Node& node, std::string_view wanted) {
  return fail(node.at, "expected {}, found {}", wanted, yaml::found(node));
}

Error no_list(const yaml::Node& node, std::string_view wanted) {
  Error error = wrong_type(node, wanted);
  if (node.is(yaml::Node::Kind::kMap)) error.notes.push_back("help: begin each with '- '");
  return error;
}

Error no_integer(const Scope::Text& param, const SourceSpan& used_at, const Scope& scope) {
  Error error = fail(param.at, "the param '{}' is the {} {}, not an integer", param.name,
                     param.is_number ? "number" : "text",
                     param.is_number ? param.value : yaml::shown(param.value))
                    .with_note(fmt::format("an integer is wanted at {}", yaml::place(used_at)));
  if (scope.has_integer(param.value))
    error.notes.push_back(fmt::format("help: '${}' is the value of that param", param.value));
  return error;
}

SourceSpan span_in(const yaml::Node& node, size_t offset, size_t length) {
  if (node.inside.length != yaml::count_columns(node.text)) return node.at;
  SourceSpan at = node.inside;
  at.column += static_cast<int>(offset);
  at.length = std::max(1, static_cast<int>(length));
  return at;
}

Result<std::string> read_text(const yaml::Node& node, const Scope& scope) {
  if (!node.is(yaml::Node::Kind::kScalar) || node.style == yaml::Node::Style::kBlock) {
    return wrong_type(node, "a text");
  }
  return insert_params(node, scope);
}

// Params may insert others, each several times: what they make would have no bound.
constexpr int64_t kMostInserted = 1 << 20;

Result<std::string> insert_params(const yaml::Node& node, const Scope& scope) {
  std::string out;
  const std::string_view text = node.text;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$') {
      out += text[i];
      continue;
    }
    if (text.substr(i + 1).starts_with('$')) {
      out += text[i++];
      continue;
    }
    const bool brace = text.substr(i + 1).starts_with('{');
    const size_t begin = i + 1 + brace;
    size_t end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string_view name = text.substr(begin, end - begin);
    if (!expr::is_identifier(name) || (brace && !text.substr(end).starts_with('}'))) {
      return fail(span_in(node, i, 1), "expected the name of a param after '$'")
          .with_note("help: write '$$' for the character itself");
    }
    PIPER_ASSIGN(const std::string value, inserted(node, begin, name, scope));
    out += value;
    if (out.size() > kMostInserted)
      return fail(span_in(node, i, 1),
                  "a text is at most {} with its params, and '${}' exceeds that",
                  human_bytes(kMostInserted), name);
    i = end - 1 + brace;
  }
  return out;
}

std::vector<std::string_view> inserted_names(std::string_view text) {
  std::vector<std::string_view> names;
  for (size_t at = text.find('$'); at != text.npos; at = text.find('$', at)) {
    if (text.substr(++at).starts_with('$')) {
      ++at;
      continue;
    }
    const size_t begin = at + text.substr(at).starts_with('{');
    size_t end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end > begin) names.push_back(text.substr(begin, end - begin));
  }
  return names;
}

Result<yaml::Node> with_texts(const yaml::Node& node, const Scope& scope) {
  const auto is_text = [&](std::string_view name) {
    return scope.text(name) && !scope.text(name)->is_number;
  };
  const auto names = inserted_names(node.text);
  if (std::none_of(names.begin(), names.end(), is_text)) return node;
  yaml::Node out = node;
  PIPER_ASSIGN(out.text, insert_params(node, scope));
  out.inside.length = -1;  // columns are those of the text no more
  return out;
}

Result<std::string> read_name(const yaml::Node& node, const Scope& scope) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "a name");
  PIPER_ASSIGN(std::string text, read_text(node, scope));
  if (!expr::is_identifier(text)) {
    return fail(node.at, "expected a name of letters, digits and '_', found {}", yaml::shown(text));
  }
  return text;
}

Status check_word(const yaml::Node& node, const Scope& scope,
                  const std::vector<std::string>& words) {
  const std::string name = node.text.substr(node.text.starts_with('$') ? 1 : 0);
  if (!node.is(yaml::Node::Kind::kScalar) || !expr::is_identifier(name) ||
      scope.has_integer(name) || scope.text(name))
    return ok_status();
  return fail(node.at, "expected {} or an integer, found {}{}", join(words, ", "),
              yaml::shown(node.text), did_you_mean_value(node.text, words));
}

Result<Glob> read_glob(const yaml::Node& node, const Scope& scope) {
  if (node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a list of patterns");
  std::span<const yaml::Node> items(&node, 1);
  if (node.is(yaml::Node::Kind::kList)) items = node.items;
  if (items.empty()) return fail(node.at, "the list of patterns is empty");
  std::vector<std::string> patterns;
  for (const yaml::Node& item : items) {
    if (!item.is(yaml::Node::Kind::kScalar)) return wrong_type(item, "a pattern");
    PIPER_ASSIGN(const std::string text, read_text(item, scope));
    PIPER_ASSIGN(const Glob one, Glob::parse(text, item.at));
    patterns.push_back(one.pattern());
  }
  return Glob::parse(join(patterns, ", "), node.at);
}

Result<Expr> read_expression_part(const yaml::Node& node, size_t offset, std::string_view text,
                                  const Scope& scope, std::span<const std::string> free) {
  SourceSpan at = span_in(node, offset, text.size());
  auto tree = expr::parse(text, at);
  if (!tree) {
    const auto count = [&](char c) { return std::count(text.begin(), text.end(), c); };
    const bool cut_at_comma = node.style == yaml::Node::Style::kPlain && count('(') > count(')');
    if (!cut_at_comma) return std::move(tree).error();
    return std::move(tree).error().with_note(
        "help: inside {...} and [...], quote an expression that has a comma");
  }
  if (Status known = check_expression(*tree, scope, free); !known) {
    if (!expr::is_identifier(text)) return std::move(known).error();
    return std::move(known).error().with_note("an integer is expected here");
  }
  PIPER_ASSIGN(Expr expression, Expr::parse(text, std::move(at)));
  return expression.with(scope.integers);
}

Result<Expr> read_expression(const yaml::Node& node, const Scope& scope,
                             std::span<const std::string> free) {
  if (!node.is(yaml::Node::Kind::kScalar) || node.style == yaml::Node::Style::kBlock) {
    return wrong_type(node, "an integer");
  }
  if (node.text.empty()) return fail(node.at, "expected an integer, found an empty text");
  return read_expression_part(node, 0, node.text, scope, free);
}

Result<int64_t> read_integer(const yaml::Node& node, const Scope& scope, IntegerRange range) {
  PIPER_ASSIGN(const Expr expression, read_expression(node, scope, {}));
  PIPER_ASSIGN(const int64_t value, expression.evaluate({}));
  const bool is_literal = node.text == std::to_string(value);
  const std::string shown = is_literal ? node.text : fmt::format("{} = {}", node.text, value);
  if (value < range.least) {
    return fail(node.at, "{} is too small; the least here is {}", shown, range.least);
  }
  if (value > range.most) {
    return fail(node.at, "{} is too large; the most here is {}", shown, range.most);
  }
  return value;
}

Result<double> read_real(const yaml::Node& node, const Scope& scope) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "a number");
  PIPER_ASSIGN(const std::string text, read_text(node, scope));
  const bool plain = text.find_first_not_of("+-.0123456789eE") == std::string::npos;
  const char* first = text.data() + (text.starts_with('+') ? 1 : 0);
  double value = 0;
  const auto [end, problem] = std::from_chars(first, text.data() + text.size(), value);
  if (!plain || end != text.data() + text.size() || problem == std::errc::invalid_argument) {
    return fail(node.at, "expected a number such as 0.1 or 3e-4, found {}", yaml::shown(text));
  }
  if (problem != std::errc{} || !std::isfinite(value)) {
    return fail(node.at, "the number {} is out of range", yaml::shown(text));
  }
  return value;
}

Result<bool> read_bool(const yaml::Node& node, const Scope& scope, IntegerRange range) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "true or false");
  if (node.text == "true") return true;
  if (node.text == "false") return false;
  PIPER_ASSIGN(const int64_t value, read_integer(node, scope, range));
  return value != 0;
}

namespace {

// Returns what is before a unit; nothing where the text ends otherwise.
std::optional<std::string_view> count_of(std::string_view text, std::string_view unit) {
  if (!text.ends_with(unit) || expr::is_identifier(text)) return std::nullopt;
  text.remove_suffix(unit.size());
  if (unit == "B" && !text.empty() && std::isalpha(static_cast<unsigned char>(text.back())))
    return std::nullopt;  // another unit: 25MB
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool is_byte_count(std::string_view text) {
  const auto is_number = [&](std::string_view unit) {
    const auto count = count_of(text, unit);
    return count && !count->empty() && count->find_first_not_of("0123456789") == count->npos;
  };
  return is_number("KiB") || is_number("MiB") || is_number("GiB") || is_number("B");
}

namespace {

Error no_bytes(const yaml::Node& node) {
  const std::string_view unit = std::string_view(node.text).substr(
      std::min(node.text.find_first_not_of("0123456789. "), node.text.size()));
  return (unit == "%" ? fail(node.at, "expected bytes, found per cent: {}", yaml::shown(node.text))
                      : fail(node.at, "unknown unit in {}", yaml::shown(node.text)))
      .with_note("help: write a number with B, KiB, MiB or GiB");
}

}  // namespace

Result<int64_t> read_bytes(const yaml::Node& given, const Scope& scope) {
  constexpr int64_t kLeastPlain = 1024;
  if (!given.is(yaml::Node::Kind::kScalar))
    return wrong_type(given, "a number of bytes such as 25MiB");
  PIPER_ASSIGN(const yaml::Node node, with_texts(given, scope));
  constexpr std::pair<std::string_view, int> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"B", 0}};
  for (const auto& [unit, shift] : kUnits) {
    const auto count = count_of(node.text, unit);
    if (!count) continue;
    PIPER_ASSIGN(const Expr expression, read_expression_part(node, 0, *count, scope, {}));
    PIPER_ASSIGN(const int64_t value, expression.evaluate({}));
    if (value < 0 || value > (int64_t{1} << 50) >> shift)
      return fail(node.at, "{} is not between 0 and 1048576 GiB", yaml::shown(node.text));
    return value << shift;
  }
  const size_t end = std::min(node.text.find_first_not_of("0123456789. "), node.text.size());
  const std::string rest = node.text.substr(end);
  if (end > 0 && (rest == "%" || expr::is_identifier(rest))) return no_bytes(node);
  PIPER_ASSIGN(const int64_t value, read_integer(node, scope, {0, int64_t{1} << 50}));
  if (value == 0 || value >= kLeastPlain) return value;
  return fail(node.at, "{} bytes: less than 1 KiB is written with its unit", value)
      .with_note(fmt::format("help: write '{0}MiB', or '{0}B' where bytes are meant", value));
}

Status check_axis(std::string_view name, const SourceSpan& at, const Names& names) {
  if (contains(names.axes, name)) return ok_status();
  Error error =
      fail(at, "unknown mesh axis {}{}", yaml::shown(name), did_you_mean(name, names.axes));
  if (contains(names.tags, name)) error.notes.push_back(fmt::format("'{}' is a tag", name));
  if (names.axes.empty()) return std::move(error).with_note("help: name the axes under 'mesh'");
  return std::move(error).with_note(fmt::format("the axes are {}", join(names.axes, ", ")));
}

Status check_new_name(const yaml::Node& key, std::string_view what) {
  if (!expr::is_identifier(key.text)) {
    return fail(key.at, "{} needs a name of letters, digits and '_', not {}", what,
                yaml::shown(key.text));
  }
  for (const char* word : {"r", "P", "M", "min", "max"}) {
    if (key.text == word) {
      return fail(key.at, "{} must not be called '{}'", what, word)
          .with_note("r, P, M, min and max have their own meaning in expressions");
    }
  }
  return ok_status();
}

}  // namespace piper
