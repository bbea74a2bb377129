// Learning rates as formulas of the step. The op LearningRate of a plan holds one in postfix, words
// apart by one blank: "lr step 1 + 2000 / 1 min *" is lr * min((step + 1) / 2000, 1). All numbers
// are f64, and each word rounds once. formats/plan.md lists the words.
//
// Words: numbers; lr, step; + - * / % (remainder of floor division), neg, comparisons, && || !
// (1 or 0), ? (of three: the second where the first is not 0, else the third), min max pow, abs cos
// exp floor log sqrt. `tokens`, those of the steps before, is only in formulas of strategies.
#pragma once

#include "piper/base/base.h"

namespace piper {

class Rate {
 public:
  // Error: a word that is unknown, operands too few or left over, more than 4096 characters or 64
  // operands at a time.
  static Result<Rate> parse(std::string_view words);

  double at(double lr, int64_t step) const;  // requires a formula without `tokens`
  std::string words() const;
  std::string spelled() const;  // infix, as strategies write it
  std::string code() const;     // an expression of C over the doubles lr and step
  // Returns the numbers that it compares the step with, ascending.
  std::vector<int64_t> borders() const;
  bool counts_tokens() const;
  // Returns the formula where each step has `tokens` tokens.
  Rate with_tokens(int64_t tokens) const;
  // Returns the largest number in it, at least 1: after it not much changes.
  double longest() const;

  struct Word;  // of the table
  struct Term {
    const Word* word = nullptr;  // null: a number
    double number = 0;
  };

 private:
  std::vector<Term> terms_;
};

// Returns the number of operands of a function that formulas may call, and 0 for other names.
int rate_operands(std::string_view function);
std::vector<std::string> rate_functions();

}  // namespace piper
