// annotate: rules that give ops their tags.
#include <algorithm>

#include "expr_tree.h"
#include "sections.h"

namespace piper {
namespace {

using fields::Fields;

Status check_tag_name(const yaml::Node& key, const std::string& name) {
  if (!expr::is_identifier(name)) {
    return fail(key.at, "a tag needs a name of letters, digits and '_', not {}", yaml::shown(name));
  }
  for (const char* own : {"mb", "pass"}) {
    if (name == own) return fail(key.at, "the tag '{}' is set by the compiler", own);
  }
  return ok_status();
}

// A capture gives two names, its value and with an 's' how many values there are. Neither may hide
// a param.
Status check_captures(const std::vector<std::string>& names, const Expr& value,
                      const Scope& scope) {
  const std::vector<std::string> read = [&] {
    auto plain = Expr::parse(value.text(), value.at());
    return plain ? plain->names() : std::vector<std::string>{};
  }();
  for (const std::string& name : names) {
    const bool used = std::find(read.begin(), read.end(), name) != read.end();
    const std::vector<std::string> known = scope.integer_names();
    if (used && std::find(known.begin(), known.end(), name) != known.end()) {
      return fail(value.at(), "'{}' is a param or mesh axis, and a name that the pattern captures",
                  name)
          .with_note("help: capture under another name; {x} also makes 'xs', the number of values");
    }
  }
  return ok_status();
}

Result<AnnotateRule> read_rule(const Fields& map, const Scope& scope) {
  AnnotateRule out;
  out.at = map["match"]->at;
  PIPER_ASSIGN(out.match, read_glob(*map["match"], scope));
  std::vector<std::string> captures;
  for (const std::string& name : out.match.capture_names()) {
    captures.push_back(name);
    captures.push_back(name + "s");
  }
  const yaml::Node& tags = *map["tags"];
  if (!tags.is(yaml::Node::Kind::kMap)) return wrong_type(tags, "a map of tags");
  if (tags.entries.empty()) return fail(tags.at, "the rule sets no tag");
  for (const yaml::Entry& tag : tags.entries) {
    PIPER_TRY(check_tag_name(tag.key, tag.key.text));
    PIPER_ASSIGN(Expr value, read_expression(tag.value, scope, captures));
    PIPER_TRY(check_captures(captures, value, scope));
    out.tags.emplace_back(tag.key.text, std::move(value));
  }
  return out;
}

Result<BalanceRule> read_balance(const Fields& rule, const Scope& scope) {
  const SourceSpan& at = rule.key_at("balance");
  PIPER_ASSIGN(const Fields map, fields::read(*rule["balance"], at, "balance"));
  BalanceRule out;
  out.at = at;
  PIPER_ASSIGN(out.tag, read_text(*map["tag"], scope));
  PIPER_TRY(check_tag_name(*map["tag"], out.tag));
  PIPER_ASSIGN(out.into, read_integer(*map["into"], scope, {1, int64_t{1} << 20}));
  return out;
}

Status read_rules(const yaml::Node& list, const Scope& scope, Annotate& out) {
  for (const yaml::Node& item : list.items) {
    PIPER_ASSIGN(const Fields map, fields::read(item, item.at, "rule"));
    const bool balance = map["balance"] != nullptr;
    const bool match = map["match"] != nullptr && map["tags"] != nullptr;
    const bool mixed = balance && (map["match"] != nullptr || map["tags"] != nullptr);
    if (mixed || (!balance && !match)) {
      return fail(item.at, "a rule has either 'match' and 'tags', or 'balance'");
    }
    if (balance) {
      PIPER_ASSIGN(BalanceRule rule, read_balance(map, scope));
      out.rules.emplace_back(std::move(rule));
    } else {
      PIPER_ASSIGN(AnnotateRule rule, read_rule(map, scope));
      out.rules.emplace_back(std::move(rule));
    }
  }
  return ok_status();
}

}  // namespace

Status read_annotate(const yaml::Entry& entry, const Scope& scope, Annotate& out) {
  out.at = entry.key.at;
  if (entry.value.is(yaml::Node::Kind::kList)) return read_rules(entry.value, scope, out);
  if (!entry.value.is(yaml::Node::Kind::kMap)) {
    return wrong_type(entry.value, "a list of rules, or a map with 'strict' and 'rules'");
  }
  PIPER_ASSIGN(const Fields map, fields::read(entry.value, entry.key.at, "annotate"));
  if (const yaml::Node* strict = map["strict"]) {
    PIPER_ASSIGN(const bool value, read_bool(*strict));
    out.strict = out.strict || value;
  }
  if (!map["rules"]->is(yaml::Node::Kind::kList))
    return wrong_type(*map["rules"], "a list of rules");
  return read_rules(*map["rules"], scope, out);
}

}  // namespace piper
