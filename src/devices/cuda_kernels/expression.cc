// Turns pointwise ops and chains of them into expressions of CUDA C++.
#include "expression.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace piper::cuda_kernels {
namespace {

struct Word {
  std::string_view name;  // of an op, with its option behind a colon
  size_t operands;
  std::string_view function;
  bool makes_bool = false;
};
constexpr std::array kWords = std::to_array<Word>({
    {"Abs", 1, "abs"},
    {"Acos", 1, "acos"},
    {"Acosh", 1, "acosh"},
    {"Add", 2, "add"},
    {"And", 2, "both", true},
    {"Asin", 1, "asin"},
    {"Asinh", 1, "asinh"},
    {"Atan", 1, "atan"},
    {"Atanh", 1, "atanh"},
    {"Cast", 1, "cast"},
    {"Ceil", 1, "ceil"},
    {"Cos", 1, "cos"},
    {"Cosh", 1, "cosh"},
    {"Detach", 1, "detach"},
    {"Div", 2, "div"},
    {"Equal", 2, "equal", true},
    {"Erf", 1, "erf"},
    {"Exp", 1, "exp"},
    {"Floor", 1, "floor"},
    {"Gelu", 1, "gelu"},
    {"Gelu:none", 1, "gelu"},
    {"Gelu:tanh", 1, "gelu_tanh"},
    {"GeluGrad", 2, "gelu_grad"},
    {"GeluGrad:none", 2, "gelu_grad"},
    {"GeluGrad:tanh", 2, "gelu_tanh_grad"},
    {"GeluSlope:none", 1, "gelu_slope"},
    {"GeluSlope:tanh", 1, "gelu_tanh_slope"},
    {"Greater", 2, "greater", true},
    {"GreaterOrEqual", 2, "greater_or_equal", true},
    {"IsNaN", 1, "is_nan", true},
    {"Less", 2, "less", true},
    {"LessOrEqual", 2, "less_or_equal", true},
    {"Log", 1, "log"},
    {"Max", 2, "max"},
    {"Min", 2, "min"},
    {"Mod", 2, "mod"},
    {"Mod:fmod", 2, "rem"},
    {"Mul", 2, "mul"},
    {"Neg", 1, "neg"},
    {"Not", 1, "negated", true},
    {"Or", 2, "either", true},
    {"Pow", 2, "pow"},
    {"Reciprocal", 1, "reciprocal"},
    {"Relu", 1, "relu"},
    {"Round", 1, "round"},
    {"Sigmoid", 1, "sigmoid"},
    {"Sign", 1, "sign"},
    {"Silu", 1, "silu"},
    {"SiluGrad", 2, "silu_grad"},
    {"Sin", 1, "sin"},
    {"Sinh", 1, "sinh"},
    {"Softplus", 1, "softplus"},
    {"Sqrt", 1, "sqrt"},
    {"Sub", 2, "sub"},
    {"SwiGlu", 2, "swiglu"},
    {"Tan", 1, "tan"},
    {"Tanh", 1, "tanh"},
    {"Where", 3, "where"},
    {"Xor", 2, "one_of", true},
});

const Word* find_word(std::string_view name) {
  const auto* word = std::find_if(kWords.begin(), kWords.end(),
                                  [&](const Word& each) { return each.name == name; });
  return word == kWords.end() ? nullptr : word;
}

// Returns the op itself, as an expression: its operands, then its word.
std::string text_of(const Use& use) {
  if (use.op == kFusedOp) return use.attrs.text("expr");
  const std::string how = use.attrs.text("approximate", "none");
  if (use.op == "GeluAndSlope") return fmt::format("0 Gelu:{} 0 GeluSlope:{}", how, how);
  std::string text;
  for (size_t i = 0; i < use.inputs.size(); ++i) text += fmt::format("{} ", i);
  text += use.op;
  if (use.op == "Cast") return text + ":" + use.attrs.text("to");
  if (use.op == "Gelu" || use.op == "GeluGrad") return text + ":" + how;
  return use.op == "Mod" && use.attrs.integer("fmod") != 0 ? text + ":fmod" : text;
}

// Reads the text from left to right; what is on the stack in the end are the outputs.
class Reader {
 public:
  explicit Reader(const Use& use) : use_(use) {}

  Result<Expression> read(std::string_view text) {
    for (const std::string& token : split_text(text, ' '))
      if (!token.empty() && !take(token)) return fail("not supported: '{}' in '{}'", token, text);
    for (const Entry& entry : stack_)
      made_.outputs.push_back(static_cast<size_t>(entry.source.step));
    return std::move(made_);
  }

 private:
  struct Entry {
    Source source;
    DType type = DType::kF32;
  };

  bool take(const std::string& token) {
    const bool is_name = token[0] == '=' || token[0] == '@';
    size_t number = 0;
    const char* const first = token.data() + (is_name ? 1 : 0);
    const char* const end = token.data() + token.size();
    if (std::from_chars(first, end, number).ptr != end || first == end) return take_word(token);
    if (token[0] == '=') {
      names_.resize(std::max(names_.size(), number + 1));
      names_[number] = stack_.back();
    } else if (token[0] == '@') {
      stack_.push_back(names_[number]);
    } else {
      stack_.push_back({{static_cast<int32_t>(number), -1}, use_.inputs[number].dtype});
    }
    return true;
  }

  bool take_word(const std::string& token) {
    const bool is_cast = token.starts_with("Cast:");
    const Word* word = find_word(is_cast ? "Cast" : std::string_view(token));
    if (!word || stack_.size() < word->operands) return false;
    ExpressionStep step{.function = fmt::format("word::{}", word->function), .operands = {}};
    step.type = word->makes_bool ? DType::kBool : stack_.back().type;
    if (is_cast) {
      const std::optional<DType> to = parse_dtype(token.substr(token.find(':') + 1));
      if (!to) return false;
      step.type = *to;
      step.function += fmt::format("<{}>", type_name(*to));
    }
    for (size_t i = stack_.size() - word->operands; i < stack_.size(); ++i)
      step.operands.push_back(stack_[i].source);
    stack_.resize(stack_.size() - word->operands);
    stack_.push_back({{-1, static_cast<int32_t>(made_.steps.size())}, step.type});
    made_.steps.push_back(std::move(step));
    return true;
  }

  const Use& use_;
  Expression made_;
  std::vector<Entry> stack_, names_;
};

}  // namespace

bool is_expression(std::string_view op) {
  return op == kFusedOp || op == "GeluAndSlope" || find_word(op) != nullptr;
}

Result<Expression> expression_of(const Use& use) { return Reader(use).read(text_of(use)); }

std::vector<std::string> expression_ops() {
  std::vector<std::string> names{"GeluAndSlope"};
  for (const Word& word : kWords)
    if (word.name.find(':') == std::string_view::npos) names.emplace_back(word.name);
  return names;
}

}  // namespace piper::cuda_kernels
