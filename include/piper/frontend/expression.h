// Expressions and conditions of a strategy file. Expressions over tags and captures are evaluated
// by the directives, per match.
#pragma once

#include "piper/base/base.h"

namespace piper {

// ---- Integer expressions ------------------------------------------------------------------------
// + - * / % (floor division and its remainder) unary -, comparisons, && || !, c ? a : b, min(…),
// max(…), parentheses, integer literals, names. Overflow, division by zero and unknown names are
// errors at the span.
using Variables = std::vector<std::pair<std::string, int64_t>>;
namespace expr {
struct Tree;
}
class Expr {
 public:
  static Result<Expr> parse(std::string_view text, SourceSpan at);
  static Expr constant(int64_t value);
  Result<int64_t> evaluate(const Variables& variables) const;
  std::vector<std::string> names() const;  // variables it reads, without those it is bound to
  // Returns the same expression with values for some of its names; evaluate's own variables come
  // first. Every Expr of a Strategy is bound to params and mesh sizes, so that evaluate wants only
  // tags, captures and bound variables.
  Expr with(Variables bound) const;
  const std::string& text() const;
  // Returns the expression in one spelling: bound names are their values, what is constant is one
  // number.
  std::string spelled() const;
  const SourceSpan& at() const;

 private:
  std::shared_ptr<const expr::Tree> tree_;  // as it was parsed; null: no expression
  Variables bound_;
};

// ---- where: a conjunction over tags, pass and kind ----------------------------------------------
struct Condition {
  std::string tag;  // a tag name, "mb", "pass" or "kind"
  enum class Kind { kAny, kAbsent, kSet, kCompare, kBind, kHolds } kind = Kind::kSet;
  struct Values {
    Expr low;
    std::optional<Expr> high;  // low..high, high excluded; nothing: low alone
  };
  std::vector<Values> set;  // kSet
  bool but = false;         // kSet: all values but these
  Expr low;                 // kCompare: with what; kHolds: is not 0, over the tag itself
  std::string compare;      // "<" "<=" ">" ">=" "!="
  // tag == "pass": "F", "R", "B", "BI", "BW", "U"; tag == "kind": of task_kinds(); tag == "value":
  // one pattern.
  std::vector<std::string> words;
  std::string bind;  // kBind: `stage: s` binds s
  SourceSpan at;
};
using Where = std::vector<Condition>;
// Returns what a task can be, as conditions on `kind` write it: "compute", "send", "all_reduce", …
std::span<const std::string> task_kinds();

}  // namespace piper
