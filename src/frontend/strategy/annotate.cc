// annotate: rules that give ops their tags.
#include <algorithm>

#include "expr_tree.h"
#include "members.h"

namespace piper {
namespace {

using fields::Fields;

Status check_tag_name(const SourceSpan& at, const std::string& name) {
  if (!expr::is_identifier(name)) {
    return fail(at, "a tag needs a name of letters, digits and '_', not {}", yaml::shown(name));
  }
  for (const char* own : {"mb", "pass", "kind", "chunk", "step"}) {
    if (name == own) return fail(at, "the tag '{}' is set by the compiler", own);
  }
  return ok_status();
}

Result<AnnotateRule> read_rule(const Fields& map, const Scope& scope) {
  AnnotateRule out;
  out.at = map["match"]->at;
  PIPER_ASSIGN(out.match, read_glob(*map["match"], scope));
  if (const yaml::Node* ops = map["ops"])
    PIPER_TRY(fields::read_value(fields::Field{.name = "ops"}, *ops, {scope}, out.ops));
  std::vector<std::string> captures{"call", "calls"};
  for (const std::string& name : out.match.capture_names()) {
    for (const std::string& own : {name, name + "s"})
      if (std::ranges::count(captures, own) > 0)
        return fail(map["match"]->at, "two variables of this pattern are called '{}'", own)
            .with_note(
                "{layer} is a name, 'layers' counts its values; 'call' and 'calls' are the "
                "number of the module's call and how many there are")
            .with_note("help: give the capture another name");
    captures.push_back(name);
    captures.push_back(name + "s");
  }
  const yaml::Node& tags = *map["tags"];
  if (!tags.is(yaml::Node::Kind::kMap)) return wrong_type(tags, "a map of tags");
  if (tags.entries.empty()) return fail(tags.at, "the rule sets no tag");
  for (const yaml::Entry& tag : tags.entries) {
    PIPER_TRY(check_tag_name(tag.key.at, tag.key.text));
    PIPER_ASSIGN(Expr value, or_else(read_expression(tag.value, scope, captures), Expr()));
    out.tags.emplace_back(tag.key.text, std::move(value));
  }
  return out;
}

// A cut by cost gives every op its tag: what a rule before it gives would be lost.
Status check_first(const BalanceRule& balance, const Annotate& before) {
  const auto lost = [&](const auto& rule) -> const SourceSpan* {
    if (const auto* other = std::get_if<BalanceRule>(&rule))
      return other->tag == balance.tag ? &other->at : nullptr;
    const auto& given = std::get<AnnotateRule>(rule);
    for (const auto& [tag, value] : given.tags)
      if (tag == balance.tag) return &given.at;
    return nullptr;
  };
  for (const auto& rule : before.rules)
    if (const SourceSpan* at = lost(rule))
      return fail(balance.at, "'balance' gives every op a '{}', and so undoes the rule at {}",
                  balance.tag, yaml::place(*at))
          .with_note("help: balance first; rules after it override it");
  return ok_status();
}

Status check_rule_keys(const Fields& map, const SourceSpan& at) {
  const bool balance = map["balance"] != nullptr;
  const bool match = map["match"] != nullptr && map["tags"] != nullptr;
  const bool mixed =
      balance && (map["match"] != nullptr || map["tags"] != nullptr || map["ops"] != nullptr);
  if (mixed || (!balance && !match)) {
    return fail(at, "a rule has either 'match' and 'tags', or 'balance'");
  }
  return ok_status();
}

Status read_rules(const yaml::Node& list, const Scope& scope, Annotate& out) {
  for (const yaml::Node& item : list.items) {
    PIPER_ASSIGN(const Fields map, fields::read(item, item.at, "rule"));
    const bool balance = map["balance"] != nullptr;
    PIPER_TRY(check_rule_keys(map, item.at));
    if (balance) {
      BalanceRule rule{.at = map.key_at("balance")};
      PIPER_TRY(
          fields::read_map(fields::object("balance"), *map["balance"], rule.at, {scope}, &rule));
      PIPER_TRY(check_first(rule, out));
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
    PIPER_ASSIGN(const bool value, read_bool(*strict, scope));
    out.strict = out.strict || value;
  }
  if (!map["rules"]->is(yaml::Node::Kind::kList)) return no_list(*map["rules"], "a list of rules");
  return read_rules(*map["rules"], scope, out);
}

// ---- Their keys ---------------------------------------------------------------------------------

namespace fields {
namespace {

Status check_balance(const Fields& map, const Reading&, BalanceRule& rule) {
  return check_tag_name(map["tag"]->at, rule.tag);
}

constexpr Word kBalanceBy[] = {word("time", BalanceRule::By::kTime),
                               word("memory", BalanceRule::By::kMemory),
                               word("weights", BalanceRule::By::kWeights)};
constexpr Field kBalance[] = {
    {"tag", kText, kRequired, "The tag to set.", member<&BalanceRule::tag>},
    {"into", kCount, kRequired, "Number of parts.", member<&BalanceRule::into>},
    {"by", one_of(kBalanceBy), kOptional,
     "What parts have alike: time, memory, or bytes of weights. Default time.",
     member<&BalanceRule::by>},
};
constexpr Field kRule[] = {
    {"match", kPaths, kOptional, "A pattern over scope paths; {name} captures an integer."},
    {"ops", kPaths, kOptional, "Names of ops. Default: all."},
    {"tags", kCounts, kOptional, "Tags and their values."},
    {"balance", one("balance"), kOptional, "A contiguous cut by cost, for any model."},
    kWhen,
};
constexpr Field kAnnotate[] = {
    {"strict", kBool, kOptional, "Ops that no rule matches are an error. Default false."},
    {"rules", many("rule"), kRequired, "The rules; later ones override earlier ones."},
};
constexpr Object kAnnotateObjects[] = {
    {"annotate", kAnnotate}, {"rule", kRule}, {"balance", kBalance, checked<check_balance>}};

}  // namespace

std::span<const Object> annotate_objects() { return kAnnotateObjects; }

}  // namespace fields
}  // namespace piper
