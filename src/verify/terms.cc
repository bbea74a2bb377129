#include "terms.h"

namespace piper {
namespace {

constexpr int64_t kMostTimes = int64_t{1} << 30;

int64_t elements_of(const TensorType& type) { return num_elements(type.shape); }

Terms concatenated(std::span<const Terms* const> inputs) {
  Terms all;
  for (const Terms* input : inputs) {
    all.elements.insert(all.elements.end(), input->elements.begin(), input->elements.end());
    all.cut |= input->cut;
  }
  return all;
}

// Element `to` of the result is the one at `first + Σ index × stride` of the operand.
Terms picked(const Terms& from, const Shape& to, int64_t first,
             const std::vector<int64_t>& strides) {
  Terms result{{}, from.cut};
  const int64_t count = num_elements(to);
  for (int64_t e = 0; e < count; ++e) {
    int64_t at = first, rest = e;
    for (size_t d = to.size(); d-- > 0; rest /= to[d]) at += rest % to[d] * strides[d];
    if (at < 0 || at >= static_cast<int64_t>(from.elements.size()))
      result.elements.push_back({.target = Term::kOther});
    else
      result.elements.push_back(from.elements[static_cast<size_t>(at)]);
  }
  return result;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::optional<Terms> transposed(const ProgramOp& op, const Shape& from, const Shape& to,
                                const Terms& input) {
  const std::vector<int64_t> perm = op.attrs.integers("perm"), of_input = strides_of(from);
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
  for (size_t d = 0; d < from.size(); ++d) {
    const int64_t start = starts[d] < 0 ? starts[d] + from[d] : starts[d];
    first += std::clamp<int64_t>(start, 0, from[d]) * strides[d];
    if (!steps.empty()) strides[d] *= steps[d];
  }
  return picked(input, to, first, strides);
}

}  // namespace

uint64_t Terms::symbol() const {
  const auto both = [](int32_t a, int32_t b) {
    return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
  };
  uint64_t symbol = cut + 1;
  for (const Term& term : elements) {
    symbol = join_symbols(symbol, both(term.target, term.run));
    symbol = join_symbols(symbol, join_symbols(both(term.total, term.parts), term.times));
  }
  return symbol;
}

std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs) {
  if (inputs.empty() || op.outputs.size() != 1) return std::nullopt;
  for (const Terms* input : inputs)
    if (!input) return std::nullopt;
  if (op.op == "Concat") return concatenated(inputs);
  const Terms& input = *inputs[0];
  if (op.op == "Add" && inputs.size() == 2) {
    Terms sum = input;
    add(sum, *inputs[1]);
    return sum;
  }
  if (inputs.size() != 1 || op.inputs[0] < 0) return std::nullopt;
  const TensorType &from = program.values[static_cast<size_t>(op.inputs[0])],
                   &to = program.values[static_cast<size_t>(op.outputs[0])];
  if (op.op == "Reshape" || op.op == "Cast") return input;
  if (op.op == "Transpose") return transposed(op, from.shape, to.shape, input);
  if (op.op == "Slice") return sliced(op, from.shape, to.shape, input);
  if (op.op == "Expand" && input.elements.size() == 1)
    return Terms{std::vector<Term>(static_cast<size_t>(elements_of(to)), input.elements[0]),
                 input.cut};
  return std::nullopt;
}

void add(Terms& sum, const Terms& more) {
  sum.cut |= more.cut;
  for (size_t e = 0; e < sum.elements.size() && e < more.elements.size(); ++e) {
    Term& term = sum.elements[e];
    const Term& other = more.elements[e];
    if (other.is_zero()) continue;
    if (term.is_zero()) {
      term = other;
      continue;
    }
    const bool same = term.target == other.target && term.run == other.run &&
                      term.total == other.total && term.parts == other.parts;
    if (same)
      term.times = static_cast<int32_t>(std::min(int64_t{term.times} + other.times, kMostTimes));
    else
      term = {.target = Term::kOther};
  }
}

void repeat(Terms& terms, uint32_t axes, int64_t count) {
  for (Term& term : terms.elements) {
    if (term.is_zero()) continue;
    if ((terms.cut & axes) != 0 && term.parts > 0 && count > 1)
      term = {.target = Term::kOther};
    else
      term.times = static_cast<int32_t>(std::min(term.times * count, kMostTimes));
  }
}

}  // namespace piper
