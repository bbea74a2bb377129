// Expressions and order programs in one spelling: bound names are their values, what is constant
// is one number, blanks and parentheses are as few as the meaning leaves.
#include <algorithm>

#include "print.h"

namespace piper {
namespace {

using expr::BinaryOp;
using expr::kComparison;
using expr::Op;

constexpr int kChoice = 0, kSum = 4, kUnary = 6, kWhole = 7;

struct Printed {
  std::string text;
  int level = kWhole;  // how tightly it binds
  std::optional<int64_t> value = {};
  Op call = Op::kNumber;  // kMin, kMax: what it is a call of
};

Printed number(int64_t value) {
  const bool lowest = value == std::numeric_limits<int64_t>::min();
  return {Expr::constant(value).text(), lowest ? kSum : value < 0 ? kUnary : kWhole, value};
}

class ExpressionPrinter {
 public:
  ExpressionPrinter(const expr::Tree& tree, const Variables& bound) : tree_(tree), bound_(bound) {}

  Printed operation(const expr::Node& node, const Printed& a, const Printed& b,
                    bool constant) const {
    const BinaryOp& op = *std::find_if(std::begin(expr::kBinaryOps), std::end(expr::kBinaryOps),
                                       [&](const BinaryOp& one) { return one.op == node.op; });
    const int left = op.level == kComparison ? op.level + 1 : op.level;
    return folded(
        {fmt::format("{} {} {}", within(a, left), op.text, within(b, op.level + 1)), op.level, {}},
        constant);
  }

  Printed print(int32_t index) const {
    const expr::Node& node = tree_.nodes[static_cast<size_t>(index)];
    if (node.op == Op::kNumber) return number(node.value);
    if (node.op == Op::kName) return name(node);
    if (node.op == Op::kChoose) return choice(node);
    const Printed a = print(node.a);
    if ((node.op == Op::kAnd || node.op == Op::kOr) && a.value &&
        (*a.value != 0) == (node.op == Op::kOr))
      return number(*a.value != 0);
    if (node.op == Op::kNegate || node.op == Op::kNot)
      return folded({(node.op == Op::kNegate ? "-" : "!") + within(a, kUnary), kUnary, {}},
                    a.value.has_value());
    const Printed b = print(node.b);
    const bool constant = a.value && b.value;
    if (node.op == Op::kMin || node.op == Op::kMax)
      return folded({call(node.op, a, b), kWhole, {}, node.op}, constant);
    return operation(node, a, b, constant);
  }

 private:
  static std::string within(const Printed& part, int level) {
    return part.level < level ? fmt::format("({})", part.text) : part.text;
  }
  // What cannot be evaluated, a division by zero, stays as it is written.
  static Printed folded(Printed made, bool constant) {
    if (!constant) return made;
    const auto tree = expr::parse(made.text, {});
    if (!tree) return made;
    const auto value = expr::evaluate(*tree, {}, {});
    return value ? number(*value) : made;
  }
  Printed name(const expr::Node& node) const {
    const std::string_view name = tree_.name(node);
    const auto known = std::find_if(bound_.rbegin(), bound_.rend(),
                                    [&](const auto& one) { return one.first == name; });
    if (known != bound_.rend()) return number(known->second);
    return {std::string(name), kWhole, {}};
  }
  Printed choice(const expr::Node& node) const {
    const Printed condition = print(node.a);
    if (condition.value) return print(*condition.value != 0 ? node.b : node.c);
    return {fmt::format("{} ? {} : {}", within(condition, kChoice + 1), print(node.b).text,
                        print(node.c).text),
            kChoice,
            {}};
  }
  // min(min(a, b), c) is min(a, b, c).
  static std::string call(Op op, const Printed& a, const Printed& b) {
    const std::string first = a.call == op ? a.text.substr(4, a.text.size() - 5) : a.text;
    return fmt::format("{}({}, {})", op == Op::kMin ? "min" : "max", first, b.text);
  }

  const expr::Tree& tree_;
  const Variables& bound_;
};

// ---- Order programs -----------------------------------------------------------------------------

class ProgramPrinter {
 public:
  explicit ProgramPrinter(const Variables& bound) : bound_(bound) {}

  std::string run(const program::Program& program) {
    block(program, 0);
    return std::move(text_);
  }

 private:
  using Statement = program::Statement;
  using Kind = Statement::Kind;

  std::string spelled(const expr::Tree& tree) const { return print_expression(tree, bound_); }

  void block(const program::Program& program, size_t indent) {
    for (size_t i = 0; i < program.size(); ++i) {
      text_ += std::string(indent, ' ');
      if (program[i].kind == Kind::kItems) {
        std::string line = items(program[i]);
        while (i + 1 < program.size() && program[i + 1].kind == Kind::kItems)
          line += " " + items(program[++i]);
        text_ += line + "\n";
      } else {
        statement(program[i], indent);
      }
    }
  }
  std::string items(const Statement& statement) const {
    std::string line;
    for (const program::Item& item : statement.items) {
      std::vector<std::string> tags;
      for (const auto& [tag, value] : item.tags)
        tags.push_back(fmt::format("{}={}", tag, spelled(value)));
      if (!line.empty()) line += ' ';
      line += item.pass + (tags.empty() ? "" : fmt::format("[{}]", join(tags, ", "))) +
              (item.optional ? "?" : "") +
              (item.apart    ? " &&"
               : item.paired ? " &"
                             : "");
    }
    return line;
  }
  void statement(const Statement& one, size_t indent) {
    switch (one.kind) {
      case Kind::kRepeat:
        text_ += fmt::format("repeat {}:", spelled(one.first));
        return body(one.body, indent);
      case Kind::kFor:
        text_ +=
            fmt::format("for {} in {}..{}:", one.name, spelled(one.first), spelled(one.second));
        return body(one.body, indent);
      case Kind::kLet:
        text_ += fmt::format("let {} = {}\n", one.name, spelled(one.first));
        return;
      default:
        return condition(one, indent);
    }
  }
  void condition(const Statement& one, size_t indent) {
    text_ += fmt::format("if {}:", spelled(one.first));
    body(one.body, indent);
    if (one.otherwise.empty()) return;
    text_ += std::string(indent, ' ') + "else";
    if (one.chains) {
      text_ += " ";
      return condition(one.otherwise.front(), indent);
    }
    text_ += ":";
    body(one.otherwise, indent);
  }
  void body(const program::Program& program, size_t indent) {
    const bool is_line = std::all_of(program.begin(), program.end(),
                                     [](const Statement& one) { return one.kind == Kind::kItems; });
    text_ += is_line ? " " : "\n";
    block(program, is_line ? 0 : indent + 2);
  }

  const Variables& bound_;
  std::string text_;
};

}  // namespace

std::string print_expression(const expr::Tree& tree, const Variables& bound) {
  return ExpressionPrinter(tree, bound).print(static_cast<int32_t>(tree.nodes.size()) - 1).text;
}

std::string print_program(const program::Program& program, const Variables& bound) {
  return ProgramPrinter(bound).run(program);
}

std::string Expr::spelled() const {
  PIPER_CHECK(tree_ != nullptr, "no expression to print");
  return print_expression(*tree_, bound_);
}

}  // namespace piper
