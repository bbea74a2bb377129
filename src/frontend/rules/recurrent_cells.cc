// The cells of RNN, GRU and LSTM: one time step of one direction.
#include <algorithm>
#include <cctype>

#include "recurrent.h"

namespace piper::onnx_import {
namespace {

// Cuts a dim into equal parts, by halves of halves: what the gradient of a slice pads to is then
// twice as much at most, and not all of it for each part.
Status cut_in_halves(RuleContext& c, const Val& x, size_t axis, int64_t count, Vals& out) {
  if (count == 1) {
    out.push_back(x);
    return ok_status();
  }
  const int64_t each = x.shape[axis] / count, half = count / 2;
  PIPER_ASSIGN(const Val first, c.part(x, axis, 0, half * each));
  PIPER_ASSIGN(const Val second, c.part(x, axis, half * each, (count - half) * each));
  PIPER_TRY(cut_in_halves(c, first, axis, half, out));
  return cut_in_halves(c, second, axis, count - half, out);
}

struct ActivationKind {
  std::string_view name;
  int numbers = 0;  // how many of alpha and beta it reads
  double alpha = 0, beta = 0;
};
constexpr ActivationKind kActivations[] = {
    {"Relu"},
    {"Tanh"},
    {"Sigmoid"},
    {"Softplus"},
    {"Softsign"},
    {"LeakyRelu", 1, 0.01},
    {"ThresholdedRelu", 1, 1},
    {"Elu", 1, 1},
    {"Affine", 2, 1, 0},
    {"ScaledTanh", 2, 1, 1},
    {"HardSigmoid", 2, 0.2, 0.5},
};

// alpha·x + beta
Result<Val> affine(RuleContext& c, const Activation& f, const Val& x) {
  PIPER_ASSIGN(const Val y, c.mul(x, c.number(f.alpha, x)));
  return c.add(y, c.number(f.beta, x));
}

Result<Val> where_above(RuleContext& c, const Val& x, double bound, const Val& above,
                        const Val& below) {
  PIPER_ASSIGN(const Val is_above, c.pointwise("Greater", {x, c.number(bound, x)}));
  return c.pointwise("Where", {is_above, above, below});
}

// Computes it of what is below alone, so that nothing overflows.
Result<Val> elu_of(RuleContext& c, const Activation& f, const Val& x) {
  PIPER_ASSIGN(Val y, c.pointwise("Min", {x, c.number(0, x)}));
  PIPER_ASSIGN(y, c.pointwise("Exp", {y}));
  PIPER_ASSIGN(y, c.pointwise("Sub", {y, c.number(1, x)}));
  PIPER_ASSIGN(y, c.mul(y, c.number(f.alpha, x)));
  return where_above(c, x, 0, x, y);
}

Result<Val> scaled_tanh(RuleContext& c, const Activation& f, const Val& x) {
  PIPER_ASSIGN(Val y, c.mul(x, c.number(f.beta, x)));
  PIPER_ASSIGN(y, c.pointwise("Tanh", {y}));
  return c.mul(y, c.number(f.alpha, x));
}

Result<Val> hard_sigmoid_of(RuleContext& c, const Activation& f, const Val& x) {
  PIPER_ASSIGN(Val y, affine(c, f, x));  // between 0 and 1
  PIPER_ASSIGN(y, where_above(c, y, 0, y, c.number(0, x)));
  PIPER_ASSIGN(const Val below, c.pointwise("Less", {y, c.number(1, x)}));
  return c.pointwise("Where", {below, y, c.number(1, x)});
}

Result<Val> activated(RuleContext& c, const Activation& f, const Val& x) {
  if (f.name == "Relu" || f.name == "Tanh" || f.name == "Sigmoid" || f.name == "Softplus")
    return c.pointwise(f.name, {x});
  if (f.name == "Affine") return affine(c, f, x);
  if (f.name == "ThresholdedRelu") return where_above(c, x, f.alpha, x, c.number(0, x));
  if (f.name == "LeakyRelu") {
    PIPER_ASSIGN(const Val below, c.mul(x, c.number(f.alpha, x)));
    return where_above(c, x, 0, x, below);
  }
  if (f.name == "Elu") return elu_of(c, f, x);
  if (f.name == "Softsign") {
    PIPER_ASSIGN(Val size, c.pointwise("Abs", {x}));
    PIPER_ASSIGN(size, c.add(size, c.number(1, x)));
    return c.pointwise("Div", {x, size});
  }
  if (f.name == "ScaledTanh") return scaled_tanh(c, f, x);
  return hard_sigmoid_of(c, f, x);
}

Result<Val> within_clip(RuleContext& c, const CellDirection& d, const Val& x) {
  if (!(d.clip > 0)) return x;
  PIPER_ASSIGN(const Val low, c.pointwise("Max", {x, c.number(-d.clip, x)}));
  return c.pointwise("Min", {low, c.number(d.clip, x)});
}
Result<Val> gate_of(RuleContext& c, const CellDirection& d, size_t activation, const Val& x) {
  PIPER_ASSIGN(const Val bounded, within_clip(c, d, x));
  return activated(c, d.activations[activation], bounded);
}

// Computes H·R', with the gates [first, first + count) of R.
Result<Val> recurrence(RuleContext& c, const CellDirection& d, const Val& h, int64_t first,
                       int64_t count) {
  PIPER_ASSIGN(const Val r, c.part(d.recurrent, 0, first * d.hidden, count * d.hidden));
  PIPER_ASSIGN(const Val turned, c.transpose(r, {1, 0}));
  return c.matmul(h, turned);
}

// ---- Cells: from the states before a step and its input those behind it -------------------------

Status rnn_cell(RuleContext& c, CellDirection& d, const Val& x) {
  PIPER_ASSIGN(Val sum, recurrence(c, d, d.h, 0, 1));
  PIPER_ASSIGN(sum, c.add(sum, x));
  PIPER_ASSIGN(d.h, gate_of(c, d, 0, sum));
  return ok_status();
}

// Computes n for the new state, from what the reset gate leaves of the old one.
Result<Val> gru_candidate(RuleContext& c, const CellDirection& d, const Val& reset, const Val& x) {
  Val sum;
  if (d.inner_bias.present()) {  // linear_before_reset
    PIPER_ASSIGN(sum, recurrence(c, d, d.h, 2, 1));
    PIPER_ASSIGN(const Val bias, c.part(d.inner_bias, 0, 2 * d.hidden, d.hidden));
    PIPER_ASSIGN(sum, c.add(sum, bias));
    PIPER_ASSIGN(sum, c.mul(reset, sum));
  } else {
    PIPER_ASSIGN(const Val left, c.mul(reset, d.h));
    PIPER_ASSIGN(sum, recurrence(c, d, left, 2, 1));
  }
  PIPER_ASSIGN(sum, c.add(sum, x));
  return gate_of(c, d, 1, sum);
}

// h becomes (1 - z)·n + z·h.
Status gru_cell(RuleContext& c, CellDirection& d, const Val& x) {
  PIPER_ASSIGN(const Vals inputs, equal_parts(c, x, 1, 3));
  PIPER_ASSIGN(const Val both, recurrence(c, d, d.h, 0, 2));
  PIPER_ASSIGN(Vals gates, equal_parts(c, both, 1, 2));
  for (size_t i = 0; i < 2; ++i) {
    Val bias;
    if (d.inner_bias.present()) {
      PIPER_ASSIGN(bias, c.part(d.inner_bias, 0, static_cast<int64_t>(i) * d.hidden, d.hidden));
      PIPER_ASSIGN(gates[i], c.add(gates[i], bias));
    }
    PIPER_ASSIGN(gates[i], c.add(gates[i], inputs[i]));
    PIPER_ASSIGN(gates[i], gate_of(c, d, 0, gates[i]));
  }
  PIPER_ASSIGN(const Val candidate, gru_candidate(c, d, gates[1], inputs[2]));
  PIPER_ASSIGN(const Val rest, c.pointwise("Sub", {c.number(1, gates[0]), gates[0]}));
  PIPER_ASSIGN(const Val fresh, c.mul(rest, candidate));
  PIPER_ASSIGN(const Val kept, c.mul(gates[0], d.h));
  PIPER_ASSIGN(d.h, c.add(fresh, kept));
  return ok_status();
}

// Returns a gate that also sees the cell's state, by its peephole.
Result<Val> seeing(RuleContext& c, const CellDirection& d, const Val& sum, int64_t which,
                   const Val& state) {
  if (!d.peepholes.present()) return sum;
  PIPER_ASSIGN(const Val hole, c.part(d.peepholes, 0, which * d.hidden, d.hidden));
  PIPER_ASSIGN(const Val seen, c.mul(state, hole));
  return c.add(sum, seen);
}

Result<Val> forget_gate(RuleContext& c, CellDirection& d, const Val& sum, const Val& input) {
  if (c.integer("input_forget", 0) != 0) return c.pointwise("Sub", {c.number(1, input), input});
  PIPER_ASSIGN(const Val seen, seeing(c, d, sum, 2, d.c));
  return gate_of(c, d, 0, seen);
}

// Computes the gates in the order of ONNX: input, output, forget, cell.
Status lstm_cell(RuleContext& c, CellDirection& d, const Val& x) {
  PIPER_ASSIGN(Val sum, recurrence(c, d, d.h, 0, 4));
  PIPER_ASSIGN(sum, c.add(sum, x));
  PIPER_ASSIGN(const Vals sums, equal_parts(c, sum, 1, 4));
  PIPER_ASSIGN(Val input, seeing(c, d, sums[0], 0, d.c));
  PIPER_ASSIGN(input, gate_of(c, d, 0, input));
  PIPER_ASSIGN(const Val forget, forget_gate(c, d, sums[2], input));
  PIPER_ASSIGN(const Val candidate, gate_of(c, d, 1, sums[3]));
  PIPER_ASSIGN(const Val kept, c.mul(forget, d.c));
  PIPER_ASSIGN(const Val fresh, c.mul(input, candidate));
  PIPER_ASSIGN(d.c, c.add(kept, fresh));
  PIPER_ASSIGN(Val output, seeing(c, d, sums[1], 1, d.c));
  PIPER_ASSIGN(output, gate_of(c, d, 0, output));
  PIPER_ASSIGN(const Val shown, activated(c, d.activations[2], d.c));
  PIPER_ASSIGN(d.h, c.mul(output, shown));
  return ok_status();
}

}  // namespace

Result<Vals> equal_parts(RuleContext& c, const Val& x, size_t axis, int64_t count) {
  Vals out;
  PIPER_TRY(cut_in_halves(c, x, axis, count, out));
  return out;
}

namespace {

bool is_alike(std::string_view a, std::string_view b) {  // names of activations have no case
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

double next_of(const std::optional<std::vector<double>>& list, size_t& at, double otherwise) {
  return list && at < list->size() ? (*list)[at++] : otherwise;
}

}  // namespace

Result<std::vector<Activation>> activations_of(RuleContext& c, const std::vector<std::string>& own,
                                               size_t count) {
  const auto names = c.list<std::string>("activations").value_or(own);
  if (names.size() != count) return c.error("has {} activations, not {}", names.size(), count);
  const auto alphas = c.list<double>("activation_alpha"), betas = c.list<double>("activation_beta");
  size_t alpha = 0, beta = 0;
  std::vector<Activation> out;
  for (const std::string& name : names) {
    const auto kind = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const ActivationKind& k) { return is_alike(k.name, name); });
    if (kind == std::end(kActivations))
      return c.error("the activation '{}' is not known", quote_control(name));
    Activation& made =
        out.emplace_back(Activation{std::string(kind->name), kind->alpha, kind->beta});
    if (kind->numbers > 0) made.alpha = next_of(alphas, alpha, kind->alpha);
    if (kind->numbers > 1) made.beta = next_of(betas, beta, kind->beta);
  }
  return out;
}

const CellKind& cell_kind_of(std::string_view op) {
  static const CellKind kKinds[] = {{"RNN", 1, {"Tanh"}, rnn_cell},
                                    {"GRU", 3, {"Sigmoid", "Tanh"}, gru_cell},
                                    {"LSTM", 4, {"Sigmoid", "Tanh", "Tanh"}, lstm_cell}};
  return *std::find_if(std::begin(kKinds), std::end(kKinds),
                       [&](const CellKind& kind) { return kind.op == op; });
}

}  // namespace piper::onnx_import
