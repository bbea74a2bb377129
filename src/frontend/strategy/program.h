// Order programs: text -> statements. order.cc runs them.
#pragma once

#include <set>

#include "expr_tree.h"

namespace piper::program {

struct Item {
  std::string pass;
  std::vector<std::pair<std::string, expr::Tree>> tags;
  bool optional = false, paired = false, apart = false;  // apart: '&&'
  SourceSpan at, pair_at;                                // pair_at: the '&' behind it
};
struct Statement {
  enum class Kind { kItems, kRepeat, kFor, kIf, kLet };
  Kind kind = Kind::kItems;
  SourceSpan at;
  std::vector<Item> items;   // kItems
  expr::Tree first, second;  // kRepeat: count; kFor: first..second; kIf: condition; kLet: value
  std::string name;          // kFor, kLet
  SourceSpan name_at;
  std::vector<Statement> body, otherwise;  // otherwise: kIf
  bool chains = false;                     // otherwise is the kIf of an 'else if'
};
using Program = std::vector<Statement>;

Result<Program> parse(const Order& order);
void collect_names(const Program& program, std::set<std::string, std::less<>>& out);
// Every name is known where it is read, and none is made twice.
Status check_names(const Program& program, std::vector<std::string> known);

}  // namespace piper::program
