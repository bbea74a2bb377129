// where: conditions on tags, pass, kind and value.
#include <algorithm>
#include <array>
#include <utility>

#include "expr_tree.h"
#include "foreign_words.h"
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
  static const Words kPasses = {"pass", "passes", {"F", "R", "B", "BI", "BW", "U"}};
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

// A whole backward has both halves.
bool overlaps(std::string_view a, std::string_view b) {
  return a == b || (a.starts_with('B') && b.starts_with('B') && (a == "B" || b == "B"));
}

Status add_word(const yaml::Node& node, const Words& words, const Scope& scope, Condition& out) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, fmt::format("a {}", words.one));
  PIPER_ASSIGN(std::string word, read_text(node, scope));
  if (out.but && word.starts_with('!')) word.erase(0, 1);
  if (!contains(words.words, word))
    return fail(node.at, "unknown {} {}{}", words.one, yaml::shown(word),
                did_you_mean_value(word, words.words))
        .with_note(fmt::format("the {} are {}", words.many, list_with_and(words.words)));
  out.words.push_back(std::move(word));
  return ok_status();
}

// Returns whether '!' is before all of the items; of one alone, "!=3" is a comparison.
Result<bool> takes_out(std::span<const yaml::Node> items) {
  const auto is_out = [](const yaml::Node& item) {
    return item.is(yaml::Node::Kind::kScalar) && item.text.starts_with('!') &&
           !item.text.starts_with("!=");
  };
  const auto odd = std::find_if(items.begin(), items.end(), [&](const yaml::Node& item) {
    return is_out(item) != is_out(items.front());
  });
  if (odd == items.end()) return is_out(items.front());
  return fail(odd->at, "'!' is before all that a set takes out, or before none")
      .with_note("help: [\"!1\", \"!3\"] is all but 1 and 3");
}

Result<std::span<const yaml::Node>> members_of(const yaml::Node& node, std::string_view what) {
  if (!node.is(yaml::Node::Kind::kList)) return std::span(&node, 1);
  if (node.items.empty()) return fail(node.at, "the set{} is empty", what);
  return std::span(node.items);
}

Status read_words(const yaml::Node& node, const Scope& scope, Condition& out) {
  const Words& words = words_of(out.tag);
  if (node.is(yaml::Node::Kind::kScalar) && node.text == "*") {
    out.kind = Kind::kAny;
    return ok_status();
  }
  PIPER_ASSIGN(const auto items, members_of(node, fmt::format(" of {}", words.many)));
  PIPER_ASSIGN(out.but, takes_out(items));
  for (const yaml::Node& item : items) PIPER_TRY(add_word(item, words, scope, out));
  if (!std::exchange(out.but, false)) return ok_status();
  std::vector<std::string> left;
  for (const std::string& word : words.words)
    if (std::none_of(out.words.begin(), out.words.end(),
                     [&](const std::string& not_this) { return overlaps(word, not_this); }))
      left.push_back(word);
  out.words = std::move(left);
  return ok_status();
}

// Reads patterns over names: one, or a list.
Status read_names(const yaml::Node& node, const Scope& scope, Condition& out) {
  PIPER_ASSIGN(const Glob names, read_glob(node, scope));
  PIPER_ASSIGN(const auto items, members_of(node, " of values"));
  if (std::all_of(items.begin(), items.end(),
                  [](const yaml::Node& item) { return item.text.starts_with('!'); }))
    return fail(node.at, "not supported: a 'value' that only takes out")
        .with_note("help: [\"model/**\", \"!model/wte/*\"] names what is left, too");
  out.words.push_back(names.pattern());
  return ok_status();
}

// Reads "3", "s + 1" or "0..4", and each of these after '!' where `but` says so.
Status add_values(const yaml::Node& node, const Scope& scope, std::span<const std::string> bound,
                  Condition& out) {
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong_type(node, "an integer or a..b");
  PIPER_ASSIGN(const yaml::Node texts, with_texts(node, scope));
  const std::string_view text = texts.text;
  const size_t begin = out.but ? 1 : 0, dots = text.find("..");
  Condition::Values values;
  if (dots == text.npos && !out.but) {
    PIPER_ASSIGN(values.low, read_expression(node, scope, bound));
    out.set.push_back(std::move(values));
    return ok_status();
  }
  const auto part = [&](size_t from, size_t end) {
    return read_expression_part(texts, from, text.substr(from, end - from), scope, bound);
  };
  PIPER_ASSIGN(values.low, part(begin, std::min(dots, text.size())));
  if (dots != text.npos) {
    PIPER_ASSIGN(values.high, part(dots + 2, text.size()));
  }
  out.set.push_back(std::move(values));
  return ok_status();
}

Status read_set(const yaml::Node& node, const Scope& scope, std::span<const std::string> bound,
                Condition& out) {
  PIPER_ASSIGN(const auto items, members_of(node, ""));
  PIPER_ASSIGN(out.but, takes_out(items));
  for (const yaml::Node& item : items) PIPER_TRY(add_values(item, scope, bound, out));
  return ok_status();
}

// Reads "mb % 2 == 0" of mb: what holds of the tag itself.
Result<bool> read_predicate(const yaml::Node& node, const Scope& scope,
                            std::span<const std::string> bound, Condition& out) {
  const auto tree = expr::parse(node.text, node.at);
  const bool names_tag =
      tree && std::any_of(tree->nodes.begin(), tree->nodes.end(), [&](auto& one) {
        return one.op == expr::Op::kName && tree->name(one) == out.tag;
      });
  if (!names_tag || contains(scope.integer_names(), out.tag)) return false;
  std::vector<std::string> names(bound.begin(), bound.end());
  names.push_back(out.tag);
  out.kind = Kind::kHolds;
  PIPER_ASSIGN(out.low, read_expression(node, scope, names));
  return true;
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
        .with_note(
            "help: a value, a variable, \"*\", absent, a..b, [a, b], \"!a\", \"<3\" or an "
            "expression over the tag");
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
  PIPER_ASSIGN(const bool holds, read_predicate(node, scope, bound, out));
  return holds ? ok_status() : read_set(node, scope, bound, out);
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
    if (condition.kind == Kind::kBind) {
      if (condition.bind != condition.tag && contains(names.tags, condition.bind))
        return fail(entry.value.at, "the variable '{}' has the name of another tag", condition.bind)
            .with_note(fmt::format("help: another name for the value of '{}'", condition.tag));
      bound.push_back(condition.bind);
    }
    out.push_back(std::move(condition));
  }
  return out;
}

std::vector<std::string> variables_of(const Where& where) {
  std::vector<std::string> names{"M"};
  for (const Condition& condition : where)
    if (condition.kind == Kind::kBind) names.push_back(condition.bind);
  return names;
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
