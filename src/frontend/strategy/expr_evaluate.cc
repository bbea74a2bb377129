// Computes the values of integer expressions.
#include <algorithm>
#include <cmath>
#include <limits>

#include "expr_tree.h"

namespace piper::expr {
namespace {

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

class Evaluator {
 public:
  Evaluator(const Tree& tree, const Variables& variables, const Variables& bound)
      : tree_(tree), variables_(variables), bound_(bound) {}

  Result<int64_t> value(int32_t index) const {
    const Node& node = tree_.nodes[static_cast<size_t>(index)];
    switch (node.op) {
      case Op::kNumber:
        return node.value;
      case Op::kName:
        return variable(node);
      case Op::kAnd:
      case Op::kOr:
      case Op::kChoose:
        return lazy(node);
      default:
        return eager(node);
    }
  }

 private:
  const int64_t* find(const Variables& in, std::string_view name) const {
    auto it = std::find_if(in.rbegin(), in.rend(), [&](const auto& v) { return v.first == name; });
    return it == in.rend() ? nullptr : &it->second;
  }

  Result<int64_t> variable(const Node& node) const {
    const std::string_view name = tree_.name(node);
    if (const int64_t* value = find(variables_, name)) return *value;
    if (const int64_t* value = find(bound_, name)) return *value;
    std::vector<std::string> known;
    for (const auto* in : {&variables_, &bound_}) {
      for (const auto& [k, v] : *in) known.push_back(k);
    }
    return unknown_name(tree_.span(node.begin, node.end), name, known);
  }

  // Evaluates operators that leave an operand unread.
  Result<int64_t> lazy(const Node& node) const {
    PIPER_ASSIGN(const int64_t first, value(node.a));
    if (node.op == Op::kChoose) return value(first != 0 ? node.b : node.c);
    if ((node.op == Op::kOr) == (first != 0)) return int64_t{first != 0};
    PIPER_ASSIGN(const int64_t second, value(node.b));
    return int64_t{second != 0};
  }

  Result<int64_t> eager(const Node& node) const {
    PIPER_ASSIGN(const int64_t a, value(node.a));
    int64_t b = 0, out = 0;
    if (node.b >= 0) {
      PIPER_ASSIGN(b, value(node.b));
    }
    const SourceSpan at = tree_.span(node.begin, node.end);
    if ((node.op == Op::kDivide || node.op == Op::kRemainder) && b == 0) {
      return fail(at, "division by zero");
    }
    const bool lowest_by_minus_one = a == std::numeric_limits<int64_t>::min() && b == -1;
    bool overflow = false;
    switch (node.op) {
      case Op::kNegate:
        overflow = __builtin_sub_overflow(int64_t{0}, a, &out);
        break;
      case Op::kNot:
        out = a == 0;
        break;
      case Op::kAdd:
        overflow = __builtin_add_overflow(a, b, &out);
        break;
      case Op::kSubtract:
        overflow = __builtin_sub_overflow(a, b, &out);
        break;
      case Op::kMultiply:
        overflow = __builtin_mul_overflow(a, b, &out);
        break;
      case Op::kDivide:
        overflow = lowest_by_minus_one;
        out = overflow ? 0 : floor_divide(a, b);
        break;
      case Op::kRemainder:
        out = lowest_by_minus_one ? 0 : a - floor_divide(a, b) * b;
        break;
      case Op::kLess:
        out = a < b;
        break;
      case Op::kLessEqual:
        out = a <= b;
        break;
      case Op::kGreater:
        out = a > b;
        break;
      case Op::kGreaterEqual:
        out = a >= b;
        break;
      case Op::kEqual:
        out = a == b;
        break;
      case Op::kNotEqual:
        out = a != b;
        break;
      case Op::kMin:
        out = std::min(a, b);
        break;
      case Op::kMax:
        out = std::max(a, b);
        break;
      default:
        PIPER_CHECK(false, "not an eager operator");
    }
    if (overflow) return fail(at, "the result does not fit in 64 bits");
    return out;
  }

  const Tree& tree_;
  const Variables& variables_;
  const Variables& bound_;
};

}  // namespace

Result<int64_t> evaluate(const Tree& tree, const Variables& variables, const Variables& bound) {
  return Evaluator(tree, variables, bound).value(static_cast<int32_t>(tree.nodes.size()) - 1);
}

}  // namespace piper::expr
