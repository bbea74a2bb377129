// Terms of a sum: which symbol is added how often, in which rounding.
#include "terms.h"

#include <algorithm>

namespace piper {
namespace {

constexpr int64_t kMostTimes = int64_t{1} << 30;

// Returns a slice of neighbouring elements of a vector.
std::optional<Terms> sliced(const ProgramOp& op, const Shape& from, const Shape& to,
                            const Terms& input) {
  const std::vector<int64_t> starts = op.attrs.integers("starts"),
                             steps = op.attrs.integers("steps");
  if (from.size() != 1 || to.size() != 1 || starts.size() != 1) return std::nullopt;
  if (!steps.empty() && steps != std::vector<int64_t>{1}) return std::nullopt;
  const int64_t first = starts[0] < 0 ? starts[0] + from[0] : starts[0];
  if (first < 0 || first + to[0] > std::ssize(input)) return std::nullopt;
  return Terms(input.begin() + first, input.begin() + first + to[0]);
}

// Returns the terms after a cast. Nothing: the cast would change a number.
std::optional<Terms> rounded(const Terms& input, DType to) {
  const auto stays = [&](const Term& term) { return term.is_zero() || holds_all(to, term.exact); };
  return std::all_of(input.begin(), input.end(), stays) ? std::optional(input) : std::nullopt;
}

Term added(const Term& a, const Term& b) {
  if (a.is_zero() || b.is_zero()) return a.is_zero() ? b : a;
  if (a.target != b.target || a.runs != b.runs || a.cut != b.cut || a.followed != b.followed)
    return {.target = Term::kOther};
  Term both = a;
  both.exact = DType::kF64;  // the type in which such numbers are added
  both.times = std::min(a.times + b.times, kMostTimes);
  return both;
}

std::optional<Terms> joined_terms(std::span<const Terms* const> inputs, size_t most) {
  Terms all;
  for (const Terms* each : inputs)
    if (all.size() <= most) all.insert(all.end(), each->begin(), each->end());
  return all.size() > most ? std::nullopt : std::optional(std::move(all));
}

std::optional<Terms> expanded(const Shape& to, const Terms& input, size_t most) {
  const int64_t count = num_elements(to);
  if (input.size() != 1 || !input[0].is_zero() || count > static_cast<int64_t>(most))
    return std::nullopt;
  return Terms(static_cast<size_t>(count));
}

}  // namespace

uint64_t symbol_of(const Terms& terms) {
  uint64_t symbol = symbol_of("terms");
  for (const Term& term : terms)
    for (const int64_t number : {int64_t{term.target}, term.runs, int64_t{term.cut}, term.times})
      symbol = join_symbols(symbol, static_cast<uint64_t>(number));
  return symbol;
}

std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs, size_t most) {
  if (inputs.empty() || op.outputs.size() != 1) return std::nullopt;
  if (std::find(inputs.begin(), inputs.end(), nullptr) != inputs.end()) return std::nullopt;
  const Shape& to = program.values[static_cast<size_t>(op.outputs[0])].shape;
  const Terms& input = *inputs[0];
  if (op.op == "Concat") return joined_terms(inputs, most);
  if (op.op == "Add" && inputs.size() == 2 && input.size() == inputs[1]->size())
    return added(input, *inputs[1]);
  if (inputs.size() != 1 || op.inputs[0] < 0) return std::nullopt;
  if (op.op == "Reshape") return input;
  if (op.op == "Cast")
    return rounded(input, program.values[static_cast<size_t>(op.outputs[0])].dtype);
  if (op.op == "Slice")
    return sliced(op, program.values[static_cast<size_t>(op.inputs[0])].shape, to, input);
  return op.op == "Expand" ? expanded(to, input, most) : std::nullopt;
}

Terms added(Terms a, const Terms& b) {
  a.resize(std::min(a.size(), b.size()));
  for (size_t i = 0; i < a.size(); ++i) a[i] = added(a[i], b[i]);
  return a;
}

void sum_along(Terms& terms, int32_t axis, int64_t count) {
  for (Term& term : terms) {
    if (term.cut >> axis & 1)
      term.cut &= ~(uint32_t{1} << axis);
    else if (!term.is_zero())
      term.times = std::min(term.times * count, kMostTimes);
  }
}

Terms sum_of_runs(const std::vector<Terms>& by_coordinate, int32_t axis, int64_t count) {
  Terms sum = by_coordinate[0];
  for (size_t c = 1; c < by_coordinate.size(); ++c) sum = added(std::move(sum), by_coordinate[c]);
  for (size_t i = 0; i < sum.size(); ++i) {
    const Term first = by_coordinate[0][i];
    if ((first.cut >> axis & 1) == 0) continue;
    const bool alike = std::ranges::all_of(by_coordinate, [&](const Terms& terms) {
      return i < terms.size() && terms[i].target == first.target && terms[i].runs == first.runs &&
             terms[i].cut == first.cut && terms[i].followed == first.followed &&
             terms[i].times == first.times;
    });
    if (!alike || std::ssize(by_coordinate) != count) continue;  // it stays cut
    sum[i].times = first.times;
    sum[i].cut &= ~(uint32_t{1} << axis);
  }
  return sum;
}

}  // namespace piper
