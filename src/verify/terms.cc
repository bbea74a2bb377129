#include "terms.h"

namespace piper {
namespace {

constexpr int64_t kMostTimes = int64_t{1} << 30;
// More spans than gradients on all ranks: what would have more is not known, so that no program
// costs more than its ops.
constexpr int64_t kMostSpans = int64_t{1} << 22;

Terms unknown(int64_t count, uint32_t cut) {
  return {{{.target = Term::kOther, .count = count}}, 1, cut};
}

Term cut_from(const Term& span, int64_t first, int64_t count) {
  Term part = span;
  if (!span.is_zero()) part.run += first;
  part.count = count;
  return part;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Element e of the result, with these indices in `to`, is the one at `first + Σ index × stride`.
Terms picked(const Terms& from, const Shape& to, int64_t first,
             const std::vector<int64_t>& strides) {
  const Terms plain = from.plain();
  std::vector<int64_t> begins;  // of spans
  int64_t end = 0;
  for (const Term& span : plain.spans) begins.push_back(std::exchange(end, end + span.count));
  Terms result{{}, 1, from.cut};
  if (num_elements(to) > kMostSpans) return unknown(num_elements(to), from.cut);
  for (int64_t e = 0; e < num_elements(to); ++e) {
    int64_t at = first, rest = e;
    for (size_t d = to.size(); d-- > 0; rest /= to[d]) at += rest % to[d] * strides[d];
    if (at < 0 || at >= end) {
      result.append({.target = Term::kOther});
      continue;
    }
    const auto k = std::upper_bound(begins.begin(), begins.end(), at) - begins.begin() - 1;
    result.append(
        cut_from(plain.spans[static_cast<size_t>(k)], at - begins[static_cast<size_t>(k)], 1));
  }
  return result;
}

std::optional<Terms> transposed(const ProgramOp& op, const Shape& from, const Shape& to,
                                const Terms& input) {
  const std::vector<int64_t> perm = op.attrs.integers("perm"), of_input = strides_of(from);
  // What was gathered, [ranks, sums, runs], with the runs of each sum behind each other.
  const auto in_order = [&](const Term& span) {
    return span.count == from[2] && span.parts == span.count;
  };
  if (perm == std::vector<int64_t>{1, 0, 2} && from.size() == 3 && input.repeats == from[0] &&
      static_cast<int64_t>(input.spans.size()) == from[1] &&
      std::all_of(input.spans.begin(), input.spans.end(), in_order)) {
    Terms result{{}, 1, input.cut};
    for (Term span : input.spans) {
      span.count *= input.repeats;
      result.append(span);
    }
    return result;
  }
  std::vector<int64_t> strides;
  for (int64_t d : perm) {
    if (d < 0 || d >= static_cast<int64_t>(from.size())) return std::nullopt;
    strides.push_back(of_input[static_cast<size_t>(d)]);
  }
  if (strides.size() != to.size()) return std::nullopt;
  return picked(input, to, 0, strides);
}

std::optional<Terms> sliced(const ProgramOp& op, const Shape& from, const Shape& to,
                            const Terms& input) {
  const std::vector<int64_t> starts = op.attrs.integers("starts"),
                             steps = op.attrs.integers("steps");
  std::vector<int64_t> strides = strides_of(from);
  if (starts.size() != from.size() || to.size() != from.size() ||
      (!steps.empty() && steps.size() != from.size()))
    return std::nullopt;
  int64_t first = 0;
  bool one_run = true;  // behind the first dim that is cut all are whole
  for (size_t d = 0; d < from.size(); ++d) {
    const int64_t start = starts[d] < 0 ? starts[d] + from[d] : starts[d];
    first += std::clamp<int64_t>(start, 0, from[d]) * strides[d];
    if (!steps.empty()) strides[d] *= steps[d];
    one_run = one_run && (steps.empty() || steps[d] == 1) && (d == 0 || to[d] == from[d]);
  }
  const int64_t count = num_elements(to);
  if (one_run && first >= 0 && first + count <= input.size()) return input.part(first, count);
  return picked(input, to, first, strides);
}

}  // namespace

int64_t Terms::size() const {
  int64_t elements = 0;
  for (const Term& span : spans) elements += span.count;
  return elements * repeats;
}

void Terms::append(const Term& span) {
  if (span.count == 0) return;
  if (static_cast<int64_t>(spans.size()) == kMostSpans) {
    spans.back() = {.target = Term::kOther, .count = spans.back().count + span.count};
    return;
  }
  if (!spans.empty()) {
    Term& last = spans.back();
    const bool same = last.target == span.target && last.total == span.total &&
                      last.parts == span.parts && last.times == span.times;
    if (same && (span.target < 0 || last.run + last.count == span.run)) {
      last.count += span.count;
      return;
    }
  }
  spans.push_back(span);
}

Terms Terms::part(int64_t first, int64_t count) const {
  if (repeats > 1) return plain().part(first, count);
  Terms result{{}, 1, cut};
  for (const Term& span : spans) {
    const int64_t from = std::clamp<int64_t>(first, 0, span.count),
                  to = std::clamp<int64_t>(first + count, 0, span.count);
    if (from < to) result.append(cut_from(span, from, to - from));
    first -= span.count;
    if (first + count <= 0) break;
  }
  return result;
}

Terms Terms::plain() const {
  if (repeats == 1) return *this;
  if (repeats > kMostSpans / std::max<int64_t>(static_cast<int64_t>(spans.size()), 1))
    return unknown(size(), cut);
  Terms result{{}, 1, cut};
  for (int64_t rank = 0; rank < repeats; ++rank)
    for (Term span : spans) {
      span.run += rank * span.parts;
      result.append(span);
    }
  return result;
}

uint64_t Terms::symbol() const {
  uint64_t symbol = join_symbols(cut, static_cast<uint64_t>(repeats));
  for (const Term& span : spans)
    for (const int64_t number :
         {int64_t{span.target}, span.run, span.count, span.total, span.parts, span.times})
      symbol = join_symbols(symbol, static_cast<uint64_t>(number));
  return symbol;
}

std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs) {
  if (inputs.empty() || op.outputs.size() != 1) return std::nullopt;
  for (const Terms* input : inputs)
    if (!input) return std::nullopt;
  if (op.op == "Concat") {
    Terms all;
    for (const Terms* input : inputs) {
      all.cut |= input->cut;
      for (const Term& span : input->plain().spans) all.append(span);
    }
    return all;
  }
  const Terms& input = *inputs[0];
  if (op.op == "Add" && inputs.size() == 2) return added(input, *inputs[1]);
  if (inputs.size() != 1 || op.inputs[0] < 0) return std::nullopt;
  const TensorType &from = program.values[static_cast<size_t>(op.inputs[0])],
                   &to = program.values[static_cast<size_t>(op.outputs[0])];
  if (op.op == "Reshape" || op.op == "Cast") return input;
  if (op.op == "Transpose") return transposed(op, from.shape, to.shape, input);
  if (op.op == "Slice") return sliced(op, from.shape, to.shape, input);
  if (op.op == "Expand" && input.size() == 1 && input.spans[0].is_zero())
    return Terms{{{.count = num_elements(to.shape)}}, 1, input.cut};
  if (op.op == "Expand" && input.size() == 1)
    return picked(input, to.shape, 0, std::vector<int64_t>(to.shape.size()));
  return std::nullopt;
}

Terms added(const Terms& a, const Terms& b) {
  if (a.repeats > 1 || b.repeats > 1) return added(a.plain(), b.plain());
  Terms sum{{}, 1, a.cut | b.cut};
  size_t i = 0, j = 0;
  int64_t of_a = 0, of_b = 0;  // elements of the spans at hand that are done
  while (i < a.spans.size() && j < b.spans.size()) {
    const Term &one = a.spans[i], &other = b.spans[j];
    const int64_t count = std::min(one.count - of_a, other.count - of_b);
    const Term left = cut_from(one, of_a, count), right = cut_from(other, of_b, count);
    Term both = left.is_zero() ? right : left;
    if (!left.is_zero() && !right.is_zero()) {
      const bool same = left.target == right.target && left.run == right.run &&
                        left.total == right.total && left.parts == right.parts;
      both.times = std::min(left.times + right.times, kMostTimes);
      if (!same) both = {.target = Term::kOther, .count = count};
    }
    sum.append(both);
    of_a += count, of_b += count;
    if (of_a == one.count) ++i, of_a = 0;
    if (of_b == other.count) ++j, of_b = 0;
  }
  return sum;
}

void repeat(Terms& terms, uint32_t axes, int64_t count) {
  Terms result{{}, terms.repeats, terms.cut};
  for (Term span : terms.spans) {
    if (!span.is_zero()) {
      if ((terms.cut & axes) != 0 && span.parts > 0 && count > 1)
        span = {.target = Term::kOther, .count = span.count};
      else
        span.times = std::min(span.times * count, kMostTimes);
    }
    result.append(span);
  }
  terms = std::move(result);
}

}  // namespace piper
