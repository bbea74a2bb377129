// where: conditions on tags, pass, kind and value.
#include <algorithm>
#include <array>

#include "expr_tree.h"
#include "piper/plan/instruction.h"
#include "sections.h"

namespace piper {
namespace {

using Kind = Condition::Kind;

bool contains(const std::vector<std::string>& in, std::string_view name) {
  return std::find(in.begin(), in.end(), name) != in.end();
}

// Holds the names that a condition chooses from.
struct Words {
  const char *one, *many;
  std::vector<std::string> words;
};
const Words& words_of(std::string_view tag) {
  static const Words kPasses = {"pass", "passes", {"F", "B", "BI", "BW", "U"}};
  static const Words kKinds = {
      "kind", "kinds of tasks", [] {
        std::vector<std::string> words;
        for (const InstructionDef& def : kInstructions)
          if (def.kind != InstructionKind::kCopy && def.kind != InstructionKind::kPosition)
            words.emplace_back(def.word);
        return words;
      }()};
  return tag == "pass" ? kPasses : kKinds;
}

Status add_word(const yaml::Node& node, const Words& words, const Scope& scope, Condition& out) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, fmt::format("a {}", words.one));
  PIPER_ASSIGN(std::string word, read_text(node, scope));
  if (!contains(words.words, word))
    return fail(node.at, "unknown {} {}{}", words.one, yaml::shown(word),
                did_you_mean(word, words.words))
        .with_note(fmt::format("the {} are {}", words.many, list_with_and(words.words)));
  out.words.push_back(std::move(word));
  return ok_status();
}

Status read_words(const yaml::Node& node, const Scope& scope, Condition& out) {
  const Words& words = words_of(out.tag);
  if (node.is(yaml::Node::Kind::kScalar) && node.text == "*") {
    out.kind = Kind::kAny;
    return ok_status();
  }
  out.kind = Kind::kSet;
  if (!node.is(yaml::Node::Kind::kList)) {
    out.kind = Kind::kEquals;
    return add_word(node, words, scope, out);
  }
  if (node.items.empty()) return fail(node.at, "the set of {} is empty", words.many);
  for (const yaml::Node& item : node.items) PIPER_TRY(add_word(item, words, scope, out));
  return ok_status();
}

// Reads patterns over names: one, or a list.
Status read_names(const yaml::Node& node, const Scope& scope, Condition& out) {
  std::vector<const yaml::Node*> items{&node};
  if (node.is(yaml::Node::Kind::kList)) {
    if (node.items.empty()) return fail(node.at, "the set of values is empty");
    items.clear();
    for (const yaml::Node& item : node.items) items.push_back(&item);
  }
  out.kind = Kind::kSet;
  for (const yaml::Node* item : items) {
    if (!item->is(yaml::Node::Kind::kScalar)) return wrong_type(*item, "a pattern over names");
    PIPER_ASSIGN(std::string name, read_text(*item, scope));
    PIPER_TRY(Glob::parse(name, item->at));
    out.words.push_back(std::move(name));
  }
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

Status read_scalar(const yaml::Node& given, const Scope& scope, std::span<const std::string> bound,
                   Condition& out) {
  if (!given.is(yaml::Node::Kind::kScalar) || given.style == yaml::Node::Style::kBlock) {
    return wrong_type(given, "a condition")
        .with_note("help: a value, a variable, \"*\", absent, a..b, [a, b] or \"<3\"");
  }
  PIPER_ASSIGN(yaml::Node node, with_texts(given, scope));
  // A lone word of a param is no variable.
  if (expr::is_identifier(node.text) && node.text != "absent") node = given;
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
      if (node.text == "P" || node.text == "r")
        return fail(node.at, "a variable must not be called '{}'", node.text)
            .with_note("r, P, M, min and max have their own meaning in expressions");
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
  const bool of_tasks = key.text == "kind" || key.text == "value";
  if (of_tasks && names.kinds) return ok_status();
  if (of_tasks)
    return fail(key.at, "'{}' chooses among tasks, which are not there yet", key.text)
        .with_note("help: directives that take it are stream, prefetch and fuse");
  if (key.text == "chunk" || key.text == "dir") {
    return fail(key.at, "'{}' in 'where' is not supported", key.text);
  }
  std::vector<std::string> known = names.tags;
  known.push_back("pass");
  if (names.kinds) known.insert(known.end(), {"kind", "value"});
  return fail(key.at, "unknown tag {}{}", yaml::shown(key.text), did_you_mean(key.text, known))
      .with_note(fmt::format("the tags are {}", join(known, ", ")));
}

}  // namespace

std::span<const std::string> task_kinds() { return words_of("kind").words; }

Result<Where> read_where(const yaml::Node& node, const Scope& scope, const Names& names) {
  if (!node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a map from tags to conditions");
  Where out;
  std::vector<std::string> bound{"M"};  // and variables of the conditions before
  for (const yaml::Entry& entry : node.entries) {
    PIPER_TRY(check_tag(entry.key, names));
    Condition condition;
    condition.tag = entry.key.text;
    condition.at = entry.key.at;
    if (condition.tag == "pass" || condition.tag == "kind") {
      PIPER_TRY(read_words(entry.value, scope, condition));
    } else if (condition.tag == "value" && !contains(names.tags, "value")) {
      PIPER_TRY(read_names(entry.value, scope, condition));
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

Status check_where_of_ops(const Where& where, std::string_view directive,
                          std::initializer_list<std::string_view> not_by) {
  for (const Condition& condition : where)
    if (std::find(not_by.begin(), not_by.end(), condition.tag) != not_by.end())
      return fail(condition.at, "not supported: {} by {}", directive, condition.tag)
          .with_note(condition.tag == "pass" ? "help: it chooses forward ops"
                                             : "help: it chooses ops, for all microbatches alike");
  return ok_status();
}

}  // namespace piper
