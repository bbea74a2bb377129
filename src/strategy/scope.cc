#include "scope.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "expr_tree.h"

namespace piper {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The value that `$name` inserts.
Result<std::string> inserted(const yaml::Node& node, size_t offset, std::string_view name,
                             const Scope& scope) {
  if (const std::string* text = scope.text(name)) return *text;
  for (const auto& [key, value] : scope.integers) {
    if (key == name) return std::to_string(value);
  }
  std::vector<std::string> known = scope.integer_names();
  for (const auto& [key, value] : scope.texts) known.push_back(key);
  return expr::unknown_name(span_in(node, offset, name.size()), name, known);
}

Status check_expression(const expr::Tree& tree, const Scope& scope,
                        std::span<const std::string> free) {
  std::vector<std::string> known(free.begin(), free.end());
  for (const expr::Node& part : tree.nodes) {
    if (part.op != expr::Op::kName) continue;
    const std::string name(tree.name(part));
    const bool is_free = std::find(free.begin(), free.end(), name) != free.end();
    const std::string* text = scope.text(name);
    if (text != nullptr && !is_free) {
      return fail(tree.span(part.begin, part.end), "the param '{}' is the text {}, not an integer",
                  name, yaml::shown(*text));
    }
  }
  for (std::string& name : scope.integer_names()) known.push_back(std::move(name));
  return expr::check_names(tree, known);
}

}  // namespace

std::vector<std::string> Scope::integer_names() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : integers) {
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  return out;
}

const std::string* Scope::text(std::string_view name) const {
  for (const auto& [key, value] : texts) {
    if (key == name) return &value;
  }
  return nullptr;
}

Error wrong_type(const yaml::Node& node, std::string_view wanted) {
  return fail(node.at, "expected {}, found {}", wanted, yaml::found(node));
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
    i = end - 1 + brace;
  }
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

Result<Glob> read_glob(const yaml::Node& node, const Scope& scope) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "a pattern");
  PIPER_ASSIGN(const std::string text, read_text(node, scope));
  return Glob::parse(text, node.at);
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

Result<bool> read_bool(const yaml::Node& node) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "true or false");
  if (node.text == "true") return true;
  if (node.text == "false") return false;
  return wrong_type(node, "true or false");
}

Result<int64_t> read_bytes(const yaml::Node& node, const Scope& scope) {
  if (!node.is(yaml::Node::Kind::kScalar))
    return wrong_type(node, "a number of bytes such as 25MiB");
  struct Suffix {
    std::string_view text;
    int shift;
  };
  constexpr Suffix kSuffixes[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  for (const Suffix& suffix : kSuffixes) {
    if (!node.text.ends_with(suffix.text)) continue;
    std::string_view count = std::string_view(node.text).substr(0, node.text.size() - 3);
    while (count.ends_with(' ')) count.remove_suffix(1);
    PIPER_ASSIGN(const Expr expression, read_expression_part(node, 0, count, scope, {}));
    PIPER_ASSIGN(const int64_t value, expression.evaluate({}));
    if (value < 0 || value > (int64_t{1} << 50) >> suffix.shift) {
      return fail(node.at, "{} is not between 0 and 1048576 GiB", yaml::shown(node.text));
    }
    return value << suffix.shift;
  }
  const size_t letters = node.text.find_first_not_of("0123456789");
  if (letters != std::string::npos && letters > 0 &&
      expr::is_identifier(node.text.substr(letters))) {
    return fail(node.at, "unknown unit in {}", yaml::shown(node.text))
        .with_note("help: write bytes, or a number with KiB, MiB or GiB");
  }
  return read_integer(node, scope, {0, int64_t{1} << 50});
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
