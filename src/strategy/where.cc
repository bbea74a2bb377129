// where: conditions on tags and pass.
#include <algorithm>
#include <array>

#include "expr_tree.h"
#include "sections.h"

namespace piper {
namespace {

using Kind = Condition::Kind;

bool contains(const std::vector<std::string>& in, std::string_view name) {
  return std::find(in.begin(), in.end(), name) != in.end();
}

Status add_pass(const yaml::Node& node, Condition& out) {
  static const std::vector<std::string> kPasses = {"F", "B", "BI", "BW", "U"};
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "a pass");
  if (!contains(kPasses, node.text)) {
    return fail(node.at, "unknown pass {}{}", yaml::shown(node.text),
                did_you_mean(node.text, kPasses))
        .with_note("the passes are F, B, BI, BW and U");
  }
  out.passes.push_back(node.text);
  return ok_status();
}

Status read_pass(const yaml::Node& node, Condition& out) {
  if (node.is(yaml::Node::Kind::kScalar) && node.text == "*") {
    out.kind = Kind::kAny;
    return ok_status();
  }
  out.kind = Kind::kSet;
  if (!node.is(yaml::Node::Kind::kList)) {
    out.kind = Kind::kEquals;
    return add_pass(node, out);
  }
  if (node.items.empty()) return fail(node.at, "the set of passes is empty");
  for (const yaml::Node& item : node.items) PIPER_TRY(add_pass(item, out));
  return ok_status();
}

Status read_set(const yaml::Node& node, const Scope& scope, std::span<const std::string> bound,
                Condition& out) {
  out.kind = Kind::kSet;
  if (node.items.empty()) return fail(node.at, "the set is empty");
  for (const yaml::Node& item : node.items) {
    PIPER_ASSIGN(Expr value, read_expression(item, scope, bound));
    out.set.push_back(std::move(value));
  }
  return ok_status();
}

Status read_range(const yaml::Node& node, size_t dots, const Scope& scope,
                  std::span<const std::string> bound, Condition& out) {
  out.kind = Kind::kRange;
  const std::string_view text = node.text;
  PIPER_ASSIGN(out.low, read_expression_part(node, 0, text.substr(0, dots), scope, bound));
  PIPER_ASSIGN(out.high, read_expression_part(node, dots + 2, text.substr(dots + 2), scope, bound));
  return ok_status();
}

// "<3", ">= s", "!=0"; false when it is no comparison.
Result<bool> read_comparison(const yaml::Node& node, const Scope& scope,
                             std::span<const std::string> bound, Condition& out) {
  constexpr std::array<std::string_view, 5> kComparisons = {"<=", ">=", "!=", "<", ">"};
  for (const std::string_view sign : kComparisons) {
    if (!node.text.starts_with(sign)) continue;
    out.kind = Kind::kCompare;
    out.compare = sign;
    PIPER_ASSIGN(out.low, read_expression_part(node, sign.size(),
                                               std::string_view(node.text).substr(sign.size()),
                                               scope, bound));
    return true;
  }
  return false;
}

Status read_scalar(const yaml::Node& node, const Scope& scope, std::span<const std::string> bound,
                   Condition& out) {
  if (!node.is(yaml::Node::Kind::kScalar) || node.style == yaml::Node::Style::kBlock) {
    return wrong_type(node, "a condition")
        .with_note("help: a value, a variable, \"*\", absent, a..b, [a, b] or \"<3\"");
  }
  if (node.text == "*" || node.text == "absent") {
    out.kind = node.text == "*" ? Kind::kAny : Kind::kAbsent;
    return ok_status();
  }
  PIPER_ASSIGN(const bool compared, read_comparison(node, scope, bound, out));
  if (compared) return ok_status();
  if (const size_t dots = node.text.find(".."); dots != std::string::npos) {
    return read_range(node, dots, scope, bound, out);
  }
  const std::vector<std::string> known = scope.integer_names();
  const bool is_new = expr::is_identifier(node.text) && !contains(known, node.text) &&
                      std::find(bound.begin(), bound.end(), node.text) == bound.end();
  if (is_new) {
    if (scope.text(node.text) == nullptr && node.text != "min" && node.text != "max") {
      out.kind = Kind::kBind;
      out.bind = node.text;
      return ok_status();
    }
  }
  out.kind = Kind::kEquals;
  PIPER_ASSIGN(out.low, read_expression(node, scope, bound));
  return ok_status();
}

Status check_tag(const yaml::Node& key, const Names& names) {
  if (key.text == "pass" || contains(names.tags, key.text)) return ok_status();
  if (key.text == "kind" || key.text == "chunk" || key.text == "dir") {
    return fail(key.at, "'{}' in 'where' is not supported", key.text);
  }
  std::vector<std::string> known = names.tags;
  known.push_back("pass");
  return fail(key.at, "unknown tag {}{}", yaml::shown(key.text), did_you_mean(key.text, known))
      .with_note(fmt::format("the tags are {}", join(known, ", ")));
}

}  // namespace

Result<Where> read_where(const yaml::Node& node, const Scope& scope, const Names& names) {
  if (!node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a map from tags to conditions");
  Where out;
  std::vector<std::string> bound;  // variables of the conditions before
  for (const yaml::Entry& entry : node.entries) {
    PIPER_TRY(check_tag(entry.key, names));
    Condition condition;
    condition.tag = entry.key.text;
    condition.at = entry.key.at;
    if (condition.tag == "pass") {
      PIPER_TRY(read_pass(entry.value, condition));
    } else if (entry.value.is(yaml::Node::Kind::kList)) {
      PIPER_TRY(read_set(entry.value, scope, bound, condition));
    } else {
      PIPER_TRY(read_scalar(entry.value, scope, bound, condition));
    }
    if (condition.kind == Kind::kBind) bound.push_back(condition.bind);
    out.push_back(std::move(condition));
  }
  return out;
}

}  // namespace piper
