// Formulas of learning rates: the table of their words, and what reads, evaluates and prints them.
#include "piper/ir/rate.h"

#include <fmt/args.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace piper {

// Says how a word is computed and written. `level` says how tightly it binds in infix.
struct Rate::Word {
  std::string_view name;
  int operands, level;
  std::string_view infix, code;
  double (*at)(double a, double b, double c);
};

namespace {

using Word = Rate::Word;
constexpr int kChoice = 0, kOr = 1, kAnd = 2, kComparison = 3, kSum = 4, kProduct = 5, kUnary = 6,
              kWhole = 7;

double truth(bool value) { return value ? 1 : 0; }

const Word kWords[] = {
    {"lr", 0, kWhole, "lr", "lr", nullptr},
    {"step", 0, kWhole, "step", "step", nullptr},
    {"tokens", 0, kWhole, "tokens", "", nullptr},
    {"+", 2, kSum, "{} + {}", "({} + {})", [](double a, double b, double) { return a + b; }},
    {"-", 2, kSum, "{} - {}", "({} - {})", [](double a, double b, double) { return a - b; }},
    {"*", 2, kProduct, "{} * {}", "({} * {})", [](double a, double b, double) { return a * b; }},
    {"/", 2, kProduct, "{} / {}", "({} / {})", [](double a, double b, double) { return a / b; }},
    {"%", 2, kProduct, "{} % {}", "floor_remainder({}, {})",
     [](double a, double b, double) { return a - b * std::floor(a / b); }},
    {"neg", 1, kUnary, "-{}", "(-{})", [](double a, double, double) { return -a; }},
    {"<", 2, kComparison, "{} < {}", "double({} < {})",
     [](double a, double b, double) { return truth(a < b); }},
    {"<=", 2, kComparison, "{} <= {}", "double({} <= {})",
     [](double a, double b, double) { return truth(a <= b); }},
    {">", 2, kComparison, "{} > {}", "double({} > {})",
     [](double a, double b, double) { return truth(a > b); }},
    {">=", 2, kComparison, "{} >= {}", "double({} >= {})",
     [](double a, double b, double) { return truth(a >= b); }},
    {"==", 2, kComparison, "{} == {}", "double({} == {})",
     [](double a, double b, double) { return truth(a == b); }},
    {"!=", 2, kComparison, "{} != {}", "double({} != {})",
     [](double a, double b, double) { return truth(a != b); }},
    {"&&", 2, kAnd, "{} && {}", "double({} != 0 && {} != 0)",
     [](double a, double b, double) { return truth(a != 0 && b != 0); }},
    {"||", 2, kOr, "{} || {}", "double({} != 0 || {} != 0)",
     [](double a, double b, double) { return truth(a != 0 || b != 0); }},
    {"!", 1, kUnary, "!{}", "double({} == 0)",
     [](double a, double, double) { return truth(a == 0); }},
    {"?", 3, kChoice, "{} ? {} : {}", "({} != 0 ? {} : {})",
     [](double a, double b, double c) { return a != 0 ? b : c; }},
    {"min", 2, kWhole, "min({}, {})", "fmin({}, {})",
     [](double a, double b, double) { return std::fmin(a, b); }},
    {"max", 2, kWhole, "max({}, {})", "fmax({}, {})",
     [](double a, double b, double) { return std::fmax(a, b); }},
    {"pow", 2, kWhole, "pow({}, {})", "pow({}, {})",
     [](double a, double b, double) { return std::pow(a, b); }},
    {"abs", 1, kWhole, "abs({})", "fabs({})",
     [](double a, double, double) { return std::fabs(a); }},
    {"cos", 1, kWhole, "cos({})", "cos({})", [](double a, double, double) { return std::cos(a); }},
    {"exp", 1, kWhole, "exp({})", "exp({})", [](double a, double, double) { return std::exp(a); }},
    {"floor", 1, kWhole, "floor({})", "floor({})",
     [](double a, double, double) { return std::floor(a); }},
    {"log", 1, kWhole, "log({})", "log({})", [](double a, double, double) { return std::log(a); }},
    {"sqrt", 1, kWhole, "sqrt({})", "sqrt({})",
     [](double a, double, double) { return std::sqrt(a); }},
};
constexpr size_t kMostDepth = 64, kMostText = 4096;

const Word* find_word(std::string_view name) {
  const auto known = std::find_if(std::begin(kWords), std::end(kWords),
                                  [&](const Word& word) { return word.name == name; });
  return known == std::end(kWords) ? nullptr : known;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::string filled(std::string_view form, const std::vector<std::string>& operands) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const std::string& operand : operands) store.push_back(operand);
  return fmt::vformat(form, store);
}

// Holds a part of a formula in infix.
struct Printed {
  std::string text;
  int level = kWhole;
};

// Writes a word with its operands. Operators bind from the left, and comparisons do not chain.
Printed print(const Word& word, std::span<const Printed> operands) {
  std::vector<std::string> texts;
  for (const Printed& operand : operands) {
    const bool first = texts.empty();
    int least = word.level + (first ? 0 : 1);
    if (word.level == kComparison) least = kSum;
    if (word.level == kChoice) least = first ? kOr : kChoice;
    if (word.level == kWhole) least = kChoice;
    texts.push_back(operand.level < least ? fmt::format("({})", operand.text) : operand.text);
  }
  return {filled(word.infix, texts), word.level};
}

// Folds the terms over a stack: `number` makes a value of a number, `apply` of a word and operands.
template <class Value, class Number, class Apply>
Value fold(std::span<const Rate::Term> terms, const Number& number, const Apply& apply) {
  std::vector<Value> stack;
  for (const Rate::Term& term : terms) {
    if (!term.word) {
      stack.push_back(number(term.number));
      continue;
    }
    const size_t first = stack.size() - static_cast<size_t>(term.word->operands);
    Value made = apply(*term.word, std::span<const Value>(stack).subspan(first));
    stack.resize(first);
    stack.push_back(std::move(made));
  }
  return std::move(stack.back());
}

}  // namespace

Result<Rate> Rate::parse(std::string_view words) {
  if (words.size() > kMostText)
    return fail("a formula of {} characters, the most are {}", words.size(), kMostText);
  Rate rate;
  size_t depth = 0;
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    const std::string_view text = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    const Word* word = find_word(text);
    const std::optional<double> number = word ? std::nullopt : number_of(text);
    if (!word && !number) return fail("a formula has no word '{}'", quote_control(text));
    const size_t operands = word ? static_cast<size_t>(word->operands) : 0;
    if (depth < operands) return fail("'{}' of a formula lacks operands", text);
    depth += 1 - operands;
    if (depth > kMostDepth) return fail("a formula with more than {} open operands", kMostDepth);
    rate.terms_.push_back({word, number.value_or(0)});
  }
  if (depth != 1) return fail("a formula makes {} numbers, not one", depth);
  return rate;
}

double Rate::at(double lr, int64_t step) const {
  double stack[kMostDepth];
  size_t depth = 0;
  for (const auto& [word, number] : terms_) {
    if (!word || !word->at) {
      stack[depth++] = !word ? number : word->name == "lr" ? lr : static_cast<double>(step);
      continue;
    }
    depth -= static_cast<size_t>(word->operands);
    double* const in = stack + depth++;
    *in = word->at(in[0], word->operands > 1 ? in[1] : 0, word->operands > 2 ? in[2] : 0);
  }
  return stack[0];
}

std::string Rate::words() const {
  std::string out;
  for (const Term& term : terms_) {
    if (!out.empty()) out += ' ';
    out += term.word ? std::string(term.word->name) : fmt::format("{}", term.number);
  }
  return out;
}

std::string Rate::spelled() const {
  const auto number = [](double value) {
    return Printed{fmt::format("{}", value), value < 0 ? kUnary : kWhole};
  };
  return fold<Printed>(terms_, number, print).text;
}

std::string Rate::code() const {
  const auto number = [](double value) { return fmt::format("double({})", value); };
  return fold<std::string>(
      terms_, number, [](const Word& word, std::span<const std::string> in) {
        return filled(word.code, {in.begin(), in.end()});
      });
}

std::vector<int64_t> Rate::borders() const {
  std::vector<int64_t> out;
  for (size_t i = 2; i < terms_.size(); ++i) {
    const Word* compares = terms_[i].word;
    const Word* step = terms_[i - 2].word;
    if (!compares || compares->level != kComparison || !step || step->name != "step") continue;
    if (!terms_[i - 1].word && std::fabs(terms_[i - 1].number) < 0x1p53)
      out.push_back(static_cast<int64_t>(std::ceil(terms_[i - 1].number)));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

bool Rate::counts_tokens() const {
  return std::any_of(terms_.begin(), terms_.end(), [](const Term& term) {
    return term.word && term.word->name == "tokens";
  });
}

Rate Rate::with_tokens(int64_t tokens) const {
  Rate out;
  for (const Term& term : terms_) {
    if (!term.word || term.word->name != "tokens") {
      out.terms_.push_back(term);
      continue;
    }
    out.terms_.push_back({find_word("step")});
    out.terms_.push_back({nullptr, static_cast<double>(tokens)});
    out.terms_.push_back({find_word("*")});
  }
  return out;
}

double Rate::longest() const {
  double most = 1;
  for (const Term& term : terms_)
    if (!term.word) most = std::max(most, term.number);
  return most;
}

int rate_operands(std::string_view function) {
  const Word* word = find_word(function);
  return word && word->level == kWhole ? word->operands : 0;
}

std::vector<std::string> rate_functions() {
  std::vector<std::string> out;
  for (const Word& word : kWords)
    if (word.level == kWhole && word.operands > 0) out.emplace_back(word.name);
  return out;
}

}  // namespace piper
