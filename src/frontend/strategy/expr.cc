// Integer expressions: parser and tree.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "expr_tree.h"
#include "piper/base/yaml.h"

namespace piper::expr {
namespace {

constexpr size_t kMaxText = 4096;
constexpr int kMaxNesting = 100;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }

// Parses one line by recursive descent; nodes enter the tree in the order in which they are
// complete.
class Parser {
 public:
  Parser(std::string_view text, size_t begin, const SourceSpan& at,
         Numbers numbers = Numbers::kIntegers)
      : position_(begin), numbers_(numbers) {
    tree_.text = text;
    tree_.at = at;
  }

  Result<Prefix> parse() {
    PIPER_TRY(choice());
    skip();
    return Prefix{std::move(tree_), position_};
  }
  Error unexpected(std::string_view wanted) {
    skip();
    const std::string_view text = tree_.text;
    if (position_ >= text.size()) {
      Error error = fail(here(0), "expected {}, found the end of the expression", wanted);
      if (!text.ends_with('%')) return error;
      return std::move(error).with_note("'%' is the remainder of a division, not per cent");
    }
    if (text.substr(position_).starts_with("//")) {
      return fail(here(2), "write '/' for division; it rounds down");
    }
    if (text[position_] == '=') return fail(here(1), "write '==' to compare");
    size_t end = position_ + 1;
    while (is_word(text[position_]) && end < text.size() && is_word(text[end])) ++end;
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
    return fail(here(end - position_), "expected {}, found {}", wanted,
                yaml::shown(text.substr(position_, end - position_)));
  }
  Tree take() { return std::move(tree_); }

 private:
  void skip() {
    while (position_ < tree_.text.size() && tree_.text[position_] == ' ') ++position_;
  }
  bool take(std::string_view token) {
    skip();
    if (!std::string_view(tree_.text).substr(position_).starts_with(token)) return false;
    position_ += token.size();
    return true;
  }
  SourceSpan here(size_t length) const {
    return tree_.span(static_cast<int32_t>(position_), static_cast<int32_t>(position_ + length));
  }
  int32_t add(Node node, size_t begin) {
    node.begin = static_cast<int32_t>(begin);
    node.end = static_cast<int32_t>(position_);
    tree_.nodes.push_back(node);
    return static_cast<int32_t>(tree_.nodes.size()) - 1;
  }
  int32_t last() const { return static_cast<int32_t>(tree_.nodes.size()) - 1; }
  size_t start() {
    skip();
    return position_;
  }

  // Parses condition ? a : b.
  Status choice() {
    if (++nesting_ > kMaxNesting) {
      return fail(here(1), "the expression is nested more than {} deep", kMaxNesting);
    }
    const size_t begin = start();
    PIPER_TRY(binary(1));
    if (take("?")) {
      Node node{Op::kChoose};
      node.a = last();
      PIPER_TRY(choice());
      node.b = last();
      if (!take(":")) return unexpected("':' of 'a ? b : c'");
      PIPER_TRY(choice());
      node.c = last();
      add(node, begin);
    }
    --nesting_;
    return ok_status();
  }

  const BinaryOp* operator_at(int level) {
    skip();
    const std::string_view rest = std::string_view(tree_.text).substr(position_);
    if (rest.starts_with("//")) return nullptr;
    for (const BinaryOp& op : kBinaryOps) {
      if (rest.starts_with(op.text)) return op.level == level ? &op : nullptr;
    }
    return nullptr;
  }

  Status binary(int level) {
    if (level > kTightest) return unary();
    const size_t begin = start();
    PIPER_TRY(binary(level + 1));
    int count = 0;
    while (const BinaryOp* op = operator_at(level)) {
      if (level == kComparison && ++count > 1) {
        return fail(here(op->text.size()), "comparisons do not chain; write 'a < b && b < c'");
      }
      position_ += op->text.size();
      Node node{op->op};
      node.a = last();
      PIPER_TRY(binary(level + 1));
      node.b = last();
      add(node, begin);
    }
    return ok_status();
  }

  Status unary() {
    const size_t begin = start();
    const bool negate = take("-");
    if (!negate && !take("!")) return primary();
    if (++nesting_ > kMaxNesting) {
      return fail(here(1), "the expression is nested more than {} deep", kMaxNesting);
    }
    PIPER_TRY(unary());
    --nesting_;
    Node node{negate ? Op::kNegate : Op::kNot};
    node.a = last();
    add(node, begin);
    return ok_status();
  }

  Status primary() {
    const size_t begin = start();
    const char c = begin < tree_.text.size() ? tree_.text[begin] : '\0';
    if (is_digit(c)) return numbers_ == Numbers::kReals ? real() : number();
    if (is_letter(c) || c == '$') return name();
    if (!take("(")) return unexpected("a number, a name or '('");
    PIPER_TRY(choice());
    if (!take(")")) return unexpected("')'");
    return ok_status();
  }

  Status number() {
    const size_t begin = position_;
    const std::string_view text = tree_.text;
    auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
    while (is_word(at(position_)) || (at(position_) == '.' && is_digit(at(position_ + 1))))
      ++position_;
    const std::string_view digits = text.substr(begin, position_ - begin);
    const SourceSpan span =
        tree_.span(static_cast<int32_t>(begin), static_cast<int32_t>(position_));
    if (!std::all_of(digits.begin(), digits.end(), is_digit)) {
      return fail(span, "{} is not an integer in decimal digits", yaml::shown(digits));
    }
    if (digits.size() > 1 && digits[0] == '0') {
      return fail(span, "'{}' has a leading 0; write it without", digits);
    }
    Node node{Op::kNumber};
    for (char c : digits) {
      if (__builtin_mul_overflow(node.value, int64_t{10}, &node.value) ||
          __builtin_add_overflow(node.value, int64_t{c - '0'}, &node.value)) {
        return fail(span, "'{}' does not fit in 64 bits", digits);
      }
    }
    add(node, begin);
    return ok_status();
  }

  Status real() {
    const size_t begin = position_;
    Node node{Op::kReal};
    const std::string_view rest = std::string_view(tree_.text).substr(begin);
    const auto [end, problem] = std::from_chars(rest.data(), rest.data() + rest.size(), node.real);
    position_ += static_cast<size_t>(end - rest.data());
    size_t last = position_;
    while (last < tree_.text.size() && (is_word(tree_.text[last]) || tree_.text[last] == '.'))
      ++last;
    const std::string_view shown = rest.substr(0, last - begin);
    const SourceSpan span = tree_.span(static_cast<int32_t>(begin), static_cast<int32_t>(last));
    if (last != position_)
      return fail(span, "expected a number such as 0.1 or 3e-4, found {}", yaml::shown(shown));
    if (problem != std::errc{} || !std::isfinite(node.real))
      return fail(span, "the number {} is out of range", yaml::shown(shown));
    add(node, begin);
    return ok_status();
  }

  Status name() {
    const size_t begin = position_;
    const bool dollar = take("$");
    const bool brace = dollar && position_ < tree_.text.size() && tree_.text[position_] == '{';
    position_ += brace;
    const size_t first = position_;
    while (position_ < tree_.text.size() && is_word(tree_.text[position_])) ++position_;
    const std::string_view word = std::string_view(tree_.text).substr(first, position_ - first);
    if (!is_identifier(word)) return unexpected("a name");
    if (!dollar && (word == "min" || word == "max"))
      return call(word == "min" ? Op::kMin : Op::kMax, begin);
    const bool calls = !dollar && std::string_view(tree_.text).substr(position_).starts_with('(');
    if (calls && numbers_ == Numbers::kReals) return function(first);
    add(Node{Op::kName}, first);
    if (brace && !take("}")) return unexpected("'}'");
    return ok_status();
  }

  // Parses min(a, b, …) as min(min(a, b), …).
  Status call(Op op, size_t begin) {
    if (!take("(")) return unexpected(op == Op::kMin ? "'(' after 'min'" : "'(' after 'max'");
    PIPER_TRY(choice());
    int32_t so_far = last();
    while (take(",")) {
      Node node{op};
      node.a = so_far;
      PIPER_TRY(choice());
      node.b = last();
      so_far = add(node, begin);
    }
    if (!take(")")) return unexpected("',' or ')'");
    return ok_status();
  }

  // Parses f(a) or f(a, b), from the name's end on.
  Status function(size_t begin) {
    Node node{Op::kCall};
    const size_t end = position_;
    take("(");
    PIPER_TRY(choice());
    node.a = last();
    if (take(",")) {
      PIPER_TRY(choice());
      node.b = last();
    }
    if (!take(")")) return unexpected(node.b < 0 ? "',' or ')'" : "')'");
    const int32_t call = add(node, begin);
    tree_.nodes[static_cast<size_t>(call)].end = static_cast<int32_t>(end);
    return ok_status();
  }

  Tree tree_;
  size_t position_;
  Numbers numbers_;
  int nesting_ = 0;
};

}  // namespace

SourceSpan Tree::span(int32_t begin, int32_t end) const {
  if (at.length != yaml::count_columns(text)) return at;
  const std::string_view all = text;
  SourceSpan out = at;
  out.column += yaml::count_columns(all.substr(0, static_cast<size_t>(begin)));
  out.length = std::max(1, yaml::count_columns(all.substr(static_cast<size_t>(begin),
                                                          static_cast<size_t>(end - begin))));
  return out;
}

std::string_view Tree::name(const Node& node) const {
  return std::string_view(text).substr(static_cast<size_t>(node.begin),
                                       static_cast<size_t>(node.end - node.begin));
}

Result<Prefix> parse_prefix(std::string_view text, size_t begin, const SourceSpan& at) {
  if (text.size() > kMaxText) return fail(at, "the line is longer than {} characters", kMaxText);
  return Parser(text, begin, at).parse();
}

Result<Tree> parse(std::string_view text, const SourceSpan& at, Numbers numbers) {
  if (text.size() > kMaxText) return fail(at, "the line is longer than {} characters", kMaxText);
  PIPER_ASSIGN(Prefix prefix, Parser(text, 0, at, numbers).parse());
  if (prefix.end < text.size()) {
    return Parser(text, prefix.end, at).unexpected("an operator or the end of the expression");
  }
  return std::move(prefix.tree);
}

Error unknown_name(SourceSpan at, std::string_view name, std::span<const std::string> known) {
  Error error = fail(std::move(at), "unknown name '{}'{}", name, did_you_mean(name, known));
  if (known.empty() || nearest(name, known)) return error;
  std::vector<std::string> names(known.begin(), known.end());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  constexpr size_t kShown = 12;
  if (names.size() > kShown) {
    names.resize(kShown);
    names.push_back("…");
  }
  return std::move(error).with_note(fmt::format("known here: {}", join(names, ", ")));
}

Status check_names(const Tree& tree, std::span<const std::string> known) {
  for (const Node& node : tree.nodes) {
    if (node.op != Op::kName) continue;
    const std::string_view name = tree.name(node);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return unknown_name(tree.span(node.begin, node.end), name, known);
    }
  }
  return ok_status();
}

bool is_identifier(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), is_word);
}

}  // namespace piper::expr

namespace piper {

Result<Expr> Expr::parse(std::string_view text, SourceSpan at) {
  PIPER_ASSIGN(expr::Tree tree, expr::parse(text, at));
  Expr out;
  out.tree_ = std::make_shared<const expr::Tree>(std::move(tree));
  return out;
}

Expr Expr::constant(int64_t value) {
  // The lowest integer has no literal.
  const bool is_lowest = value == std::numeric_limits<int64_t>::min();
  return *parse(is_lowest ? "-9223372036854775807 - 1" : std::to_string(value), {});
}

const std::string& Expr::text() const {
  static const std::string kNone;
  return tree_ ? tree_->text : kNone;
}

const SourceSpan& Expr::at() const {
  static const SourceSpan kNowhere;
  return tree_ ? tree_->at : kNowhere;
}

Result<int64_t> Expr::evaluate(const Variables& variables) const {
  PIPER_CHECK(tree_ != nullptr, "no expression to evaluate");
  return expr::evaluate(*tree_, variables, bound_);
}

std::vector<std::string> Expr::names() const {
  std::vector<std::string> out;
  if (!tree_) return out;
  for (const expr::Node& node : tree_->nodes) {
    if (node.op != expr::Op::kName) continue;
    const std::string name(tree_->name(node));
    const bool is_bound =
        std::any_of(bound_.begin(), bound_.end(), [&](const auto& v) { return v.first == name; });
    if (!is_bound && std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  return out;
}

Expr Expr::with(Variables bound) const {
  Expr out = *this;
  out.bound_ = std::move(bound);
  return out;
}

}  // namespace piper
