// Integer expressions as trees; Expr of the door is made of them, and the order programs.
#pragma once

#include "piper/frontend/strategy.h"

namespace piper::expr {

enum class Op : uint8_t {
  kNumber,
  kName,
  kNegate,
  kNot,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kRemainder,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  kAnd,
  kOr,
  kChoose,
  kMin,
  kMax,
  kReal,  // of formulas of the learning rate, as is kCall
  kCall,
};
// Says which numbers an expression may have; kReals adds 0.5 and 3e-4, and calls of functions.
enum class Numbers : uint8_t { kIntegers, kReals };
struct BinaryOp {
  std::string_view text;
  Op op;
  int level;
};
// Longer spellings first. Higher levels bind tighter; level 3 does not chain.
inline constexpr BinaryOp kBinaryOps[] = {
    {"||", Op::kOr, 1},           {"&&", Op::kAnd, 2},     {"<=", Op::kLessEqual, 3},
    {">=", Op::kGreaterEqual, 3}, {"==", Op::kEqual, 3},   {"!=", Op::kNotEqual, 3},
    {"<", Op::kLess, 3},          {">", Op::kGreater, 3},  {"+", Op::kAdd, 4},
    {"-", Op::kSubtract, 4},      {"*", Op::kMultiply, 5}, {"/", Op::kDivide, 5},
    {"%", Op::kRemainder, 5}};
inline constexpr int kComparison = 3, kTightest = 5;
struct Node {
  Op op = Op::kNumber;
  int64_t value = 0;               // kNumber
  double real = 0;                 // kReal
  int32_t a = -1, b = -1, c = -1;  // operands: indices into Tree::nodes, before their user
  int32_t begin = 0, end = 0;      // its characters; of a name or a call, exactly the name
};
struct Tree {
  std::string text;
  SourceSpan at;            // where text starts; columns are exact iff at.length is the text's
  std::vector<Node> nodes;  // the last one is the root
  SourceSpan span(int32_t begin, int32_t end) const;
  std::string_view name(const Node& node) const;
};

// Holds one expression from `begin` on; `end` is the first character that is not part of it (after
// spaces).
struct Prefix {
  Tree tree;
  size_t end = 0;
};
Result<Prefix> parse_prefix(std::string_view text, size_t begin, const SourceSpan& at);
// Parses the whole text.
Result<Tree> parse(std::string_view text, const SourceSpan& at,
                   Numbers numbers = Numbers::kIntegers);

// Names are looked up in `variables`, then in `bound`; the last entry of a name counts.
Result<int64_t> evaluate(const Tree& tree, const Variables& variables, const Variables& bound);
// Fails for the first name that `knows` does not hold.
Status check_names(const Tree& tree, std::span<const std::string> known);
Error unknown_name(SourceSpan at, std::string_view name, std::span<const std::string> known);
bool is_identifier(std::string_view text);

}  // namespace piper::expr
