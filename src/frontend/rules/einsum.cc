// Einsum: the operands are joined from left to right, each pair by one matrix product or one
// multiplication.
#include <algorithm>
#include <cctype>

#include "rule.h"

namespace piper::onnx_import {
namespace {

struct Term {
  Val val;
  std::string letters;  // one for each dim
};

bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

int64_t extent(const Term& t, char c) { return t.val.shape[t.letters.find(c)]; }

// Returns the letters of `from` for which `keep` holds, in their order.
template <class F>
std::string filter(const std::string& from, F keep) {
  std::string out;
  std::copy_if(from.begin(), from.end(), std::back_inserter(out), keep);
  return out;
}

Result<Term> sum_away(RuleContext& c, Term t, const std::string& needed) {
  std::vector<int64_t> axes;
  for (size_t d = 0; d < t.letters.size(); ++d) {
    if (!has(needed, t.letters[d])) axes.push_back(static_cast<int64_t>(d));
  }
  if (axes.empty()) return t;
  PIPER_ASSIGN(t.val, c.reduce_sum(t.val, axes, false));
  t.letters = filter(t.letters, [&](char l) { return has(needed, l); });
  return t;
}

Result<Term> arrange(RuleContext& c, const Term& t, const std::string& letters) {
  std::vector<int64_t> perm;
  for (const char l : letters) perm.push_back(static_cast<int64_t>(t.letters.find(l)));
  PIPER_ASSIGN(Val val, c.transpose(t.val, perm));
  return Term{std::move(val), letters};
}

// Returns the term as [batch…, rows, columns] where each of the two groups is one dim.
Result<Val> as_matrix(RuleContext& c, const Term& t, const std::string& batch,
                      const std::string& rows, const std::string& columns) {
  PIPER_ASSIGN(const Term ordered, arrange(c, t, batch + rows + columns));
  Shape shape;
  for (const char l : batch) shape.push_back(extent(t, l));
  for (const std::string* group : {&rows, &columns}) {
    int64_t size = 1;
    for (const char l : *group) size *= extent(t, l);
    shape.push_back(size);
  }
  return c.reshape(ordered.val, shape);
}

Result<Term> join_terms(RuleContext& c, const Term& a, const Term& b, const std::string& needed) {
  PIPER_ASSIGN(const Term x, sum_away(c, a, needed + b.letters));
  PIPER_ASSIGN(const Term y, sum_away(c, b, needed + a.letters));
  const auto shared = [&](char l) { return has(x.letters, l) && has(y.letters, l); };
  const std::string batch = filter(x.letters, [&](char l) { return shared(l) && has(needed, l); });
  const std::string inner = filter(x.letters, [&](char l) { return shared(l) && !has(needed, l); });
  const std::string rows = filter(x.letters, [&](char l) { return !shared(l); });
  const std::string columns = filter(y.letters, [&](char l) { return !shared(l); });
  Shape shape;
  for (const char l : batch + rows) shape.push_back(extent(x, l));
  for (const char l : columns) shape.push_back(extent(y, l));
  Val product;
  if (inner.empty()) {  // x·y by broadcasting
    PIPER_ASSIGN(Term left, arrange(c, x, batch + rows));
    PIPER_ASSIGN(Term right, arrange(c, y, batch + columns));
    Shape wide = left.val.shape, deep(batch.size(), 1);
    wide.insert(wide.end(), columns.size(), 1);
    deep.assign(right.val.shape.begin(),
                right.val.shape.begin() + static_cast<int64_t>(batch.size()));
    deep.insert(deep.end(), rows.size(), 1);
    deep.insert(deep.end(), right.val.shape.begin() + static_cast<int64_t>(batch.size()),
                right.val.shape.end());
    PIPER_ASSIGN(left.val, c.reshape(left.val, wide));
    PIPER_ASSIGN(right.val, c.reshape(right.val, deep));
    PIPER_ASSIGN(product, c.pointwise("Mul", {left.val, right.val}));
  } else {
    PIPER_ASSIGN(const Val left, as_matrix(c, x, batch, rows, inner));
    PIPER_ASSIGN(const Val right, as_matrix(c, y, batch, inner, columns));
    PIPER_ASSIGN(product, c.matmul(left, right));
    PIPER_ASSIGN(product, c.reshape(product, shape));
  }
  return Term{std::move(product), batch + rows + columns};
}

struct Equation {
  std::vector<std::string> inputs;
  std::string output;
};

// The dims of an ellipsis have these letters, the innermost the last one.
constexpr std::string_view kEllipsis = "0123456789:;<=>?";

// Spells out the ellipsis of `term` in `count` letters; one without any stays.
Result<std::string> spelt_out(const RuleContext& c, std::string term, size_t count,
                              const std::string& shown) {
  if (count > kEllipsis.size()) return c.error("'{}' is not an equation", shown);
  const size_t dots = term.find("...");
  if (dots != std::string::npos) {
    term.replace(dots, 3, kEllipsis.substr(kEllipsis.size() - count));
  }
  return term;
}

Result<Equation> parse_equation(const RuleContext& c) {
  std::string text = c.text("equation", "");
  std::erase(text, ' ');
  const std::string shown = quote_control(text.substr(0, 80));
  const size_t arrow = text.find("->");
  Equation out;
  out.inputs = split_text(text.substr(0, arrow), ',');
  std::string all;
  size_t most = 0;
  for (size_t i = 0; i < out.inputs.size(); ++i) {
    std::string& term = out.inputs[i];
    const size_t named = term.size() - (term.find("...") == std::string::npos ? 0 : 3);
    for (const char l : term) {
      if (l != '.' && !std::isalpha(static_cast<unsigned char>(l)))
        return c.error("'{}' is not an equation", shown);
    }
    const size_t rank = c.in(i).rank();
    const bool has_dots = named != term.size();
    if (has_dots ? rank < named : rank != named)
      return c.error("'{}' does not fit {}", quote_control(term), to_string(c.in(i).shape));
    if (has_dots) most = std::max(most, rank - named);
    PIPER_ASSIGN(term, spelt_out(c, term, rank - named, shown));
    if (has(term, '.')) return c.error("'{}' is not an equation", shown);
    all += term;
  }
  if (arrow != std::string::npos) {
    PIPER_ASSIGN(out.output, spelt_out(c, text.substr(arrow + 2), most, shown));
  } else {  // those of the ellipsis, then letters that appear once, by name
    out.output = filter(all, [&](char l) {
      return std::isalpha(static_cast<unsigned char>(l)) &&
             std::count(all.begin(), all.end(), l) == 1;
    });
    std::sort(out.output.begin(), out.output.end());
    out.output = std::string(kEllipsis.substr(kEllipsis.size() - most)) + out.output;
  }
  for (const char l : out.output) {
    if (!has(all, l) || std::count(out.output.begin(), out.output.end(), l) != 1) {
      return c.error("'{}' is not an equation", shown);
    }
  }
  return out;
}

// A letter that is twice takes the diagonal: both dims last, every (n + 1)-th of n·n elements.
Result<Term> without_diagonals(RuleContext& c, Term t) {
  for (;;) {
    size_t second = 0;
    while (second < t.letters.size() && t.letters.find(t.letters[second]) == second) ++second;
    if (second == t.letters.size()) return t;
    const char l = t.letters[second];
    const size_t first = t.letters.find(l);
    const int64_t n = t.val.shape[first];
    if (t.val.shape[second] != n)
      return c.error("'{}' has {} elements and {}", l, n, t.val.shape[second]);
    std::vector<int64_t> perm;
    Shape rest;
    std::string letters;
    for (size_t d = 0; d < t.letters.size(); ++d) {
      if (d == first || d == second) continue;
      perm.push_back(static_cast<int64_t>(d));
      rest.push_back(t.val.shape[d]);
      letters.push_back(t.letters[d]);
    }
    perm.push_back(static_cast<int64_t>(first));
    perm.push_back(static_cast<int64_t>(second));
    PIPER_ASSIGN(Val x, c.transpose(t.val, perm));
    rest.push_back(n * n);
    PIPER_ASSIGN(x, c.reshape(x, rest));
    rest.back() = n;
    std::vector<int64_t> steps(rest.size(), 1);
    steps.back() = n + 1;
    PIPER_ASSIGN(x, c.slice(x, Shape(rest.size(), 0), steps, rest));
    t = Term{std::move(x), letters + l};
  }
}

// Dims of one element, where another operand has more under the same letter, are left out: they are
// repeated.
Result<Term> without_repeated(RuleContext& c, Term t,
                              const std::vector<std::pair<char, int64_t>>& extents) {
  Shape shape;
  std::string letters;
  for (const char l : t.letters) {
    bool repeated = false;
    for (const auto& [letter, size] : extents) {
      repeated = repeated || (letter == l && size != 1 && extent(t, l) == 1);
      if (letter == l && size != extent(t, l) && size != 1 && extent(t, l) != 1)
        return c.error("'{}' has {} elements and {}", l, size, extent(t, l));
    }
    if (repeated) continue;
    shape.push_back(extent(t, l));
    letters.push_back(l);
  }
  PIPER_ASSIGN(Val val, c.reshape(t.val, shape));
  return Term{std::move(val), std::move(letters)};
}

Result<std::vector<Term>> read_terms(RuleContext& c, const Equation& equation) {
  if (equation.inputs.size() != c.num_inputs()) {
    return c.error("its equation has {} operands, but it has {} inputs", equation.inputs.size(),
                   c.num_inputs());
  }
  std::vector<Term> terms;
  std::vector<std::pair<char, int64_t>> extents;
  for (size_t i = 0; i < c.num_inputs(); ++i) {
    PIPER_ASSIGN(Term t, without_diagonals(c, {c.in(i), equation.inputs[i]}));
    for (const char l : t.letters) extents.emplace_back(l, extent(t, l));
    terms.push_back(std::move(t));
  }
  for (Term& t : terms) {
    PIPER_ASSIGN(t, without_repeated(c, std::move(t), extents));
  }
  return terms;
}

Result<Vals> einsum(RuleContext& c) {
  PIPER_TRY(c.need(1));
  PIPER_ASSIGN(const Equation equation, parse_equation(c));
  PIPER_ASSIGN(const std::vector<Term> terms, read_terms(c, equation));
  Term result = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    std::string needed = equation.output;
    for (size_t k = i + 1; k < terms.size(); ++k) needed += terms[k].letters;
    PIPER_ASSIGN(result, join_terms(c, result, terms[i], needed));
  }
  PIPER_ASSIGN(result, sum_away(c, result, equation.output));
  PIPER_ASSIGN(const Term ordered, arrange(c, result, equation.output));
  return Vals{ordered.val};
}

constexpr ImportRule kEinsumRules[] = {
    {"Einsum", 12, kNewest, einsum},
};

}  // namespace

std::span<const ImportRule> einsum_rules() { return kEinsumRules; }

}  // namespace piper::onnx_import
