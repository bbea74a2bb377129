#include "terms.h"

namespace piper {
namespace {

constexpr int64_t kMostTimes = int64_t{1} << 30;

Term cut_from(Term span, int64_t count) {
  span.count = count;
  return span;
}

// Neighbours of a vector.
std::optional<Terms> sliced(const ProgramOp& op, const Shape& from, const Shape& to,
                            const Terms& input) {
  const std::vector<int64_t> starts = op.attrs.integers("starts"),
                             steps = op.attrs.integers("steps");
  if (from.size() != 1 || to.size() != 1 || starts.size() != 1) return std::nullopt;
  if (!steps.empty() && steps != std::vector<int64_t>{1}) return std::nullopt;
  const int64_t first = starts[0] < 0 ? starts[0] + from[0] : starts[0];
  if (first < 0 || first + to[0] > input.size()) return std::nullopt;
  return input.part(first, to[0]);
}

}  // namespace

int64_t Terms::size() const {
  int64_t elements = 0;
  for (const Term& span : spans) elements += span.count;
  return elements;
}

void Terms::append(const Term& span) {
  if (span.count == 0) return;
  if (span.target < 0 && !spans.empty() && spans.back().target == span.target)
    spans.back().count += span.count;
  else
    spans.push_back(span);
}

Terms Terms::part(int64_t first, int64_t count) const {
  Terms result;
  for (const Term& span : spans) {
    const int64_t from = std::clamp<int64_t>(first, 0, span.count),
                  to = std::clamp<int64_t>(first + count, 0, span.count);
    if (from < to) result.append(cut_from(span, to - from));
    first -= span.count;
    if (first + count <= 0) break;
  }
  return result;
}

uint64_t Terms::symbol() const {
  uint64_t symbol = symbol_of("terms");
  for (const Term& span : spans)
    for (const int64_t number :
         {int64_t{span.target}, span.count, span.runs, int64_t{span.cut}, span.times})
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
    for (const Terms* input : inputs)
      for (const Term& span : input->spans) all.append(span);
    return all;
  }
  const Terms& input = *inputs[0];
  if (op.op == "Add" && inputs.size() == 2) return added(input, *inputs[1]);
  if (inputs.size() != 1 || op.inputs[0] < 0) return std::nullopt;
  const TensorType &from = program.values[static_cast<size_t>(op.inputs[0])],
                   &to = program.values[static_cast<size_t>(op.outputs[0])];
  if (op.op == "Reshape" || op.op == "Cast") return input;
  if (op.op == "Slice") return sliced(op, from.shape, to.shape, input);
  if (op.op == "Expand" && input.size() == 1 && input.spans[0].is_zero())
    return Terms{{{.count = num_elements(to.shape)}}};
  return std::nullopt;
}

Terms added(const Terms& a, const Terms& b) {
  Terms sum;
  size_t i = 0, j = 0;
  int64_t of_a = 0, of_b = 0;  // elements of the spans at hand that are done
  while (i < a.spans.size() && j < b.spans.size()) {
    const Term &one = a.spans[i], &other = b.spans[j];
    const int64_t count = std::min(one.count - of_a, other.count - of_b);
    Term both = one.is_zero() ? other : one;
    if (!one.is_zero() && !other.is_zero()) {
      const bool same =
          one.target == other.target && one.runs == other.runs && one.cut == other.cut;
      both.times = std::min(one.times + other.times, kMostTimes);
      if (!same) both = {.target = Term::kOther};
    }
    sum.append(cut_from(both, count));
    of_a += count, of_b += count;
    if (of_a == one.count) ++i, of_a = 0;
    if (of_b == other.count) ++j, of_b = 0;
  }
  return sum;
}

void sum_along(Terms& terms, int32_t axis, int64_t count) {
  for (Term& span : terms.spans) {
    if (span.cut >> axis & 1)
      span.cut &= ~(uint32_t{1} << axis);
    else if (!span.is_zero())
      span.times = std::min(span.times * count, kMostTimes);
  }
}

}  // namespace piper
