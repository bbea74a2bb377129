// Turns pointwise ops and chains of them into expressions of CUDA C++.
#include "expression.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "piper/ir/ops.h"

namespace piper::cuda_kernels {
namespace {

struct Word {
  std::string_view name;  // of an op, with its option behind a colon
  size_t operands;
  std::string_view function;
  bool makes_bool = false;
};
// Lists words whose function is not the op's name in small letters ("silu_grad"), or makes
// booleans.
constexpr std::array kWords = std::to_array<Word>({
    {"And", 2, "both", true},
    {"Cast", 1, "cast"},
    {"Equal", 2, "equal", true},
    {"Gelu:none", 1, "gelu"},
    {"Gelu:tanh", 1, "gelu_tanh"},
    {"GeluGrad:none", 2, "gelu_grad"},
    {"GeluGrad:tanh", 2, "gelu_tanh_grad"},
    {"GeluSlope:none", 1, "gelu_slope"},
    {"GeluSlope:tanh", 1, "gelu_tanh_slope"},
    {"Greater", 2, "greater", true},
    {"GreaterOrEqual", 2, "greater_or_equal", true},
    {"IsNaN", 1, "is_nan", true},
    {"Less", 2, "less", true},
    {"LessOrEqual", 2, "less_or_equal", true},
    {"Mod:fmod", 2, "rem"},
    {"Not", 1, "negated", true},
    {"Or", 2, "either", true},
    {"SwiGlu", 2, "swiglu"},
    {"Xor", 2, "one_of", true},
});

// Describes a call of a word's function.
struct WordCall {
  std::string function;
  size_t operands = 0;
  bool makes_bool = false;
};

// Returns the op's name in small letters, its words with _ between them.
std::string small_letters(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool is_capital = c >= 'A' && c <= 'Z';
    if (is_capital && !out.empty()) out += '_';
    out += static_cast<char>(is_capital ? c - 'A' + 'a' : c);
  }
  return out;
}

std::optional<WordCall> find_word(std::string_view name) {
  const auto* word = std::ranges::find(kWords, name, &Word::name);
  if (word != kWords.end())
    return WordCall{std::string(word->function), word->operands, word->makes_bool};
  const OpDef* def = find_op(name);
  if (!def || !def->pointwise) return std::nullopt;
  return WordCall{small_letters(name), def->samples.front().inputs.size()};
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
    const std::optional<WordCall> word = find_word(is_cast ? "Cast" : std::string_view(token));
    if (!word || stack_.size() < word->operands) return false;
    ExpressionStep step{.function = "word::" + word->function, .operands = {}};
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
  return op == kFusedOp || op == "GeluAndSlope" || find_word(op).has_value();
}

Result<Expression> expression_of(const Use& use) { return Reader(use).read(text_of(use)); }

std::vector<std::string> expression_ops() {
  std::vector<std::string> names{"GeluAndSlope"};
  for (const OpDef* def : all_ops())
    if (def->pointwise) names.emplace_back(def->name);
  return names;
}

}  // namespace piper::cuda_kernels
