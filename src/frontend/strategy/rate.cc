// Formulas of the learning rate, read as expressions and written in postfix; train.cc calls it.
#include "piper/ir/rate.h"

#include <algorithm>

#include "errors.h"
#include "expr_tree.h"
#include "scope.h"

namespace piper {
namespace {

using expr::Op;

constexpr std::string_view kPi = "3.141592653589793";

class RateReader {
 public:
  RateReader(const expr::Tree& tree, const Scope& scope, std::span<const std::string> free)
      : tree_(tree), scope_(scope), free_(free) {}

  Result<std::string> words(int32_t index) const {
    const expr::Node& node = tree_.nodes[static_cast<size_t>(index)];
    if (node.op == Op::kReal) return fmt::format("{}", node.real);
    if (node.op == Op::kName) return name(node);
    PIPER_ASSIGN(const std::string_view word, word_of(node));
    std::string out;
    for (const int32_t operand : {node.a, node.b, node.c}) {
      if (operand < 0) continue;
      PIPER_ASSIGN(const std::string part, words(operand));
      out += part + " ";
    }
    const bool is_literal = node.op == Op::kNegate && is_number(node.a);
    return is_literal ? "-" + out.substr(0, out.size() - 1) : out.append(word);
  }

 private:
  bool is_number(int32_t index) const {
    return tree_.nodes[static_cast<size_t>(index)].op == Op::kReal;
  }

  Result<std::string_view> word_of(const expr::Node& node) const {
    if (node.op == Op::kCall) return function(node);
    constexpr std::pair<Op, std::string_view> kOthers[] = {
        {Op::kNegate, "neg"}, {Op::kNot, "!"}, {Op::kChoose, "?"}, {Op::kMin, "min"},
        {Op::kMax, "max"}};
    for (const auto& [op, word] : kOthers)
      if (op == node.op) return word;
    for (const expr::BinaryOp& op : expr::kBinaryOps)
      if (op.op == node.op) return op.text;
    PIPER_CHECK(false, "an operator without a word");
  }

  Result<std::string_view> function(const expr::Node& node) const {
    const std::string_view name = tree_.name(node);
    const SourceSpan at = tree_.span(node.begin, node.end);
    const std::vector<std::string> known = rate_functions();
    const int wanted = rate_operands(name), given = node.b < 0 ? 1 : 2;
    if (wanted == 0)
      return fail(at, "unknown function '{}'{}", name, did_you_mean(name, known))
          .with_note("known here: " + join(known, ", "));
    if (wanted != given) return fail(at, "'{}' takes {} operands, not {}", name, wanted, given);
    return name;
  }

  // Returns the text of a name. After '$' it is a param, whatever else has that name.
  Result<std::string> name(const expr::Node& node) const {
    const std::string_view name = tree_.name(node);
    const bool is_param = node.begin > 0 && (tree_.text[static_cast<size_t>(node.begin) - 1] == '$' ||
                                             tree_.text[static_cast<size_t>(node.begin) - 1] == '{');
    if (!is_param && std::find(free_.begin(), free_.end(), name) != free_.end())
      return std::string(name);
    scope_.used.emplace(name);
    const Scope::Text* text = scope_.text(name);
    if (text && text->is_number) return text->value;
    for (const auto& [key, value] : scope_.integers)
      if (key == name) return std::to_string(value);
    if (scope_.has_integer(name)) return consequence();
    if (!is_param && name == "pi") return std::string(kPi);
    std::vector<std::string> known = scope_.integer_names();
    for (const Scope::Text& other : scope_.texts)
      if (other.is_number) known.push_back(other.name);
    known.insert(known.end(), free_.begin(), free_.end());
    known.push_back("pi");
    return expr::unknown_name(tree_.span(node.begin, node.end), name, known);
  }

  const expr::Tree& tree_;
  const Scope& scope_;
  std::span<const std::string> free_;
};

}  // namespace

Result<std::string> read_rate(const yaml::Node& node, const Scope& scope,
                              std::span<const std::string> free) {
  const SourceSpan at = span_in(node, 0, node.text.size());
  PIPER_ASSIGN(const expr::Tree tree, expr::parse(node.text, at, expr::Numbers::kReals));
  PIPER_ASSIGN(const std::string words,
               RateReader(tree, scope, free).words(static_cast<int32_t>(tree.nodes.size()) - 1));
  Result<Rate> rate = Rate::parse(words);
  if (!rate) return fail(at, "{}", rate.error().message);
  return rate->words();
}

}  // namespace piper
