// RNN, GRU and LSTM: their cells once for each time step, so that gradients are those of the ops.
#include <algorithm>

#include "rule.h"

namespace piper::onnx_import {
namespace {

constexpr int64_t kMostSteps = 4096;

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
Result<Vals> equal_parts(RuleContext& c, const Val& x, size_t axis, int64_t count) {
  Vals out;
  PIPER_TRY(cut_in_halves(c, x, axis, count, out));
  return out;
}

Result<Val> joined_all(RuleContext& c, const Vals& items, int64_t axis) {
  if (items.size() == 1) return items[0];
  return c.op("Concat", items, {{"axis", axis}});
}

// ---- Activations of cells -----------------------------------------------------------------------

struct Activation {
  std::string name;
  double alpha = 0, beta = 0;
};
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

Result<Val> activated(RuleContext& c, const Activation& f, const Val& x) {
  if (f.name == "Relu" || f.name == "Tanh" || f.name == "Sigmoid" || f.name == "Softplus")
    return c.pointwise(f.name, {x});
  if (f.name == "Affine") return affine(c, f, x);
  if (f.name == "ThresholdedRelu") return where_above(c, x, f.alpha, x, c.number(0, x));
  if (f.name == "LeakyRelu") {
    PIPER_ASSIGN(const Val below, c.mul(x, c.number(f.alpha, x)));
    return where_above(c, x, 0, x, below);
  }
  if (f.name == "Elu") {  // of what is below alone, so that nothing overflows
    PIPER_ASSIGN(Val y, c.pointwise("Min", {x, c.number(0, x)}));
    PIPER_ASSIGN(y, c.pointwise("Exp", {y}));
    PIPER_ASSIGN(y, c.pointwise("Sub", {y, c.number(1, x)}));
    PIPER_ASSIGN(y, c.mul(y, c.number(f.alpha, x)));
    return where_above(c, x, 0, x, y);
  }
  if (f.name == "Softsign") {
    PIPER_ASSIGN(Val size, c.pointwise("Abs", {x}));
    PIPER_ASSIGN(size, c.add(size, c.number(1, x)));
    return c.pointwise("Div", {x, size});
  }
  if (f.name == "ScaledTanh") {
    PIPER_ASSIGN(Val y, c.mul(x, c.number(f.beta, x)));
    PIPER_ASSIGN(y, c.pointwise("Tanh", {y}));
    return c.mul(y, c.number(f.alpha, x));
  }
  PIPER_ASSIGN(Val y, affine(c, f, x));  // HardSigmoid, between 0 and 1
  PIPER_ASSIGN(y, where_above(c, y, 0, y, c.number(0, x)));
  PIPER_ASSIGN(const Val below, c.pointwise("Less", {y, c.number(1, x)}));
  return c.pointwise("Where", {below, y, c.number(1, x)});
}

// Reads `count` activations for each direction. Their numbers are in two lists, which only those
// that read numbers take from.
Result<std::vector<Activation>> activations_of(RuleContext& c, const std::vector<std::string>& own,
                                               size_t count) {
  const auto names = c.list<std::string>("activations").value_or(own);
  if (names.size() != count) return c.error("has {} activations, not {}", names.size(), count);
  const auto alphas = c.list<double>("activation_alpha"), betas = c.list<double>("activation_beta");
  size_t alpha = 0, beta = 0;
  const auto next = [](const auto& list, size_t& at, double otherwise) {
    return list && at < list->size() ? (*list)[at++] : otherwise;
  };
  std::vector<Activation> out;
  for (const std::string& name : names) {
    const auto kind = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const ActivationKind& k) { return k.name == name; });
    if (kind == std::end(kActivations))
      return c.error("the activation '{}' is not known", quote_control(name));
    Activation& made = out.emplace_back(Activation{name, kind->alpha, kind->beta});
    if (kind->numbers > 0) made.alpha = next(alphas, alpha, kind->alpha);
    if (kind->numbers > 1) made.beta = next(betas, beta, kind->beta);
  }
  return out;
}

// ---- Operands of a direction --------------------------------------------------------------------

// Holds what one direction has, of a batch of B, hidden states of H elements, and gates of the
// cell, G·H elements in all.
struct CellDirection {
  bool reversed = false;
  int64_t hidden = 0;
  std::vector<Activation> activations;
  Vals x;                     // by time step: what the input makes of the gates, [B, G·H]
  Val recurrent;              // R, [G·H, H]
  Val inner_bias, peepholes;  // [G·H], [3·H]; absent: none
  double clip = 0;            // of what goes into activations; 0: none
  Val h, c;                   // states, [B, H]; c is the LSTM's
};

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

// Computes the gates in the order of ONNX: input, output, forget, cell.
Status lstm_cell(RuleContext& c, CellDirection& d, const Val& x) {
  PIPER_ASSIGN(Val sum, recurrence(c, d, d.h, 0, 4));
  PIPER_ASSIGN(sum, c.add(sum, x));
  PIPER_ASSIGN(const Vals sums, equal_parts(c, sum, 1, 4));
  PIPER_ASSIGN(Val input, seeing(c, d, sums[0], 0, d.c));
  PIPER_ASSIGN(input, gate_of(c, d, 0, input));
  Val forget;
  if (c.integer("input_forget", 0) != 0) {
    PIPER_ASSIGN(forget, c.pointwise("Sub", {c.number(1, input), input}));
  } else {
    PIPER_ASSIGN(forget, seeing(c, d, sums[2], 2, d.c));
    PIPER_ASSIGN(forget, gate_of(c, d, 0, forget));
  }
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

struct CellKind {
  std::string_view op;
  int64_t gates;
  std::vector<std::string> activations;  // of one direction
  Status (*cell)(RuleContext&, CellDirection&, const Val&);
};
const CellKind& cell_kind_of(std::string_view op) {
  static const CellKind kKinds[] = {{"RNN", 1, {"Tanh"}, rnn_cell},
                                    {"GRU", 3, {"Sigmoid", "Tanh"}, gru_cell},
                                    {"LSTM", 4, {"Sigmoid", "Tanh", "Tanh"}, lstm_cell}};
  return *std::find_if(std::begin(kKinds), std::end(kKinds),
                       [&](const CellKind& kind) { return kind.op == op; });
}

// ---- All of it ----------------------------------------------------------------------------------

struct CellSizes {
  int64_t steps = 0, batch = 0, hidden = 0, directions = 1;
  bool batch_first = false;
};

// Checks that operand i has the shape that it must have.
Status check_cell_operand(RuleContext& c, size_t i, const char* name, const Shape& shape) {
  if (!c.has(i) || c.in(i).shape == shape) return ok_status();
  return c.error("its {} is {}, not {}", name, to_string(c.in(i).shape), to_string(shape));
}

Result<CellSizes> read_cell_sizes(RuleContext& c, const CellKind& kind) {
  PIPER_TRY(c.need(3, 8));
  const Val &x = c.in(0), &w = c.in(1), &r = c.in(2);
  if (x.rank() != 3 || w.rank() != 3 || r.rank() != 3)
    return c.error("its operands {}, {}, {} are not of 3 dims", to_string(x.shape),
                   to_string(w.shape), to_string(r.shape));
  CellSizes s;
  s.batch_first = c.integer("layout", 0) != 0;
  s.steps = x.shape[s.batch_first ? 1 : 0];
  s.batch = x.shape[s.batch_first ? 0 : 1];
  s.hidden = c.integer("hidden_size", r.shape[2]);
  const std::string direction = c.text("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    return c.error("direction '{}' is not known", quote_control(direction));
  s.directions = direction == "bidirectional" ? 2 : 1;
  if (s.steps < 1 || s.batch < 1 || s.hidden < 1)
    return c.error("has nothing to go over in {}", to_string(x.shape));
  if (s.steps > kMostSteps)
    return c.error("its {} steps are more than the {} that are written one by one", s.steps,
                   kMostSteps);
  const int64_t all = kind.gates * s.hidden;
  PIPER_TRY(check_cell_operand(c, 1, "W", {s.directions, all, x.shape[2]}));
  PIPER_TRY(check_cell_operand(c, 2, "R", {s.directions, all, s.hidden}));
  PIPER_TRY(check_cell_operand(c, 3, "B", {s.directions, 2 * all}));
  PIPER_TRY(check_cell_operand(c, 4, "sequence_lens", {s.batch}));
  const Shape state = s.batch_first ? Shape{s.batch, s.directions, s.hidden}
                                    : Shape{s.directions, s.batch, s.hidden};
  PIPER_TRY(check_cell_operand(c, 5, "initial_h", state));
  PIPER_TRY(check_cell_operand(c, 6, "initial_c", state));
  PIPER_TRY(check_cell_operand(c, 7, "P", {s.directions, 3 * s.hidden}));
  return s;
}

// Returns what an operand [directions, …] has for one of them.
Result<Val> of_direction(RuleContext& c, const Val& x, int64_t d, size_t axis = 0) {
  if (!x.present()) return x;
  PIPER_ASSIGN(const Val one, c.part(x, axis, d, 1));
  Shape shape = one.shape;
  shape.erase(shape.begin() + static_cast<int64_t>(axis));
  return c.reshape(one, shape);
}

Result<Val> first_state(RuleContext& c, const CellSizes& s, size_t input, int64_t d) {
  if (c.has(input)) return of_direction(c, c.in(input), d, s.batch_first ? 1 : 0);
  return c.expand(c.number(0, c.in(0)), {s.batch, s.hidden});
}

// The bias that joins the input's part; that of a GRU's recurrence stays apart if the product comes
// before the reset.
Result<Val> outer_bias(RuleContext& c, const CellKind& kind, const CellSizes& s, CellDirection& d,
                       const Val& both) {
  const int64_t all = kind.gates * s.hidden;
  PIPER_ASSIGN(const Val outer, c.part(both, 0, 0, all));
  PIPER_ASSIGN(const Val inner, c.part(both, 0, all, all));
  if (kind.op != "GRU" || c.integer("linear_before_reset", 0) == 0) return c.add(outer, inner);
  d.inner_bias = inner;
  return outer;
}

Result<CellDirection> read_direction(RuleContext& c, const CellKind& kind, const CellSizes& s,
                                     int64_t index, const Val& x,
                                     const std::vector<Activation>& activations) {
  CellDirection d;
  d.reversed = index == 1 || c.text("direction", "forward") == "reverse";
  d.hidden = s.hidden;
  d.clip = c.real("clip", 0);
  const auto count = static_cast<int64_t>(kind.activations.size());
  d.activations.assign(activations.begin() + index * count,
                       activations.begin() + (index + 1) * count);
  PIPER_ASSIGN(d.recurrent, of_direction(c, c.in(2), index));
  PIPER_ASSIGN(d.peepholes, of_direction(c, c.in(7), index));
  PIPER_ASSIGN(d.h, first_state(c, s, 5, index));
  if (kind.op == "LSTM") {
    PIPER_ASSIGN(d.c, first_state(c, s, 6, index));
  }
  PIPER_ASSIGN(Val w, of_direction(c, c.in(1), index));
  PIPER_ASSIGN(w, c.transpose(w, {1, 0}));
  PIPER_ASSIGN(Val all, c.matmul(x, w));
  if (c.has(3)) {
    PIPER_ASSIGN(const Val both, of_direction(c, c.in(3), index));
    PIPER_ASSIGN(const Val bias, outer_bias(c, kind, s, d, both));
    PIPER_ASSIGN(all, c.add(all, bias));
  } else if (kind.op == "GRU" && c.integer("linear_before_reset", 0) != 0) {
    PIPER_ASSIGN(d.inner_bias, c.expand(c.number(0, x), {kind.gates * s.hidden}));
  }
  PIPER_ASSIGN(d.x, equal_parts(c, all, 0, s.steps));
  for (Val& step : d.x) {
    PIPER_ASSIGN(step, c.reshape(step, {s.batch, kind.gates * s.hidden}));
  }
  return d;
}

// After the end of a sample's sequence states stay, and its output is 0.
Status run_step(RuleContext& c, const CellKind& kind, CellDirection& d, int64_t t, Val& output) {
  const Val h = d.h, state = d.c;
  PIPER_TRY(kind.cell(c, d, d.x[static_cast<size_t>(t)]));
  output = d.h;
  if (!c.has(4)) return ok_status();
  PIPER_ASSIGN(Val lasts, c.cast(c.in(4), DType::kI64));
  PIPER_ASSIGN(lasts, c.pointwise("Greater", {lasts, integer_val(t)}));
  PIPER_ASSIGN(lasts, c.reshape(lasts, {lasts.shape[0], 1}));
  PIPER_ASSIGN(output, c.pointwise("Where", {lasts, d.h, c.number(0, d.h)}));
  PIPER_ASSIGN(d.h, c.pointwise("Where", {lasts, d.h, h}));
  if (state.present()) {
    PIPER_ASSIGN(d.c, c.pointwise("Where", {lasts, d.c, state}));
  }
  return ok_status();
}

// Returns the outputs of all steps, [steps, 1, batch, hidden].
Result<Val> run_direction(RuleContext& c, const CellKind& kind, const CellSizes& s,
                          CellDirection& d) {
  Vals outputs(static_cast<size_t>(s.steps));
  for (int64_t k = 0; k < s.steps; ++k) {
    const int64_t t = d.reversed ? s.steps - 1 - k : k;
    Val& output = outputs[static_cast<size_t>(t)];
    PIPER_TRY(run_step(c, kind, d, t, output));
    PIPER_ASSIGN(output, c.reshape(output, {1, 1, s.batch, s.hidden}));
  }
  return joined_all(c, outputs, 0);
}

// Returns the last states of all directions, [directions, batch, hidden].
Result<Val> last_states(RuleContext& c, const CellSizes& s, const Vals& states) {
  Vals rows;
  for (const Val& state : states) {
    PIPER_ASSIGN(rows.emplace_back(), c.reshape(state, {1, s.batch, s.hidden}));
  }
  PIPER_ASSIGN(const Val all, joined_all(c, rows, 0));
  return s.batch_first ? c.transpose(all, {1, 0, 2}) : all;
}

Result<Vals> recurrent(RuleContext& c) {
  const CellKind& kind = cell_kind_of(c.node.op);
  PIPER_ASSIGN(const CellSizes s, read_cell_sizes(c, kind));
  std::vector<std::string> names;
  for (int64_t d = 0; d < s.directions; ++d)
    names.insert(names.end(), kind.activations.begin(), kind.activations.end());
  PIPER_ASSIGN(const auto activations, activations_of(c, names, names.size()));
  Val x = c.in(0);
  if (s.batch_first) {
    PIPER_ASSIGN(x, c.transpose(x, {1, 0, 2}));
  }
  Vals outputs, h, states;
  for (int64_t i = 0; i < s.directions; ++i) {
    PIPER_ASSIGN(CellDirection d, read_direction(c, kind, s, i, x, activations));
    PIPER_ASSIGN(outputs.emplace_back(), run_direction(c, kind, s, d));
    h.push_back(d.h);
    if (d.c.present()) states.push_back(d.c);
  }
  Vals out(states.empty() ? 2 : 3);
  PIPER_ASSIGN(out[0], joined_all(c, outputs, 1));
  if (s.batch_first) {
    PIPER_ASSIGN(out[0], c.transpose(out[0], {2, 0, 1, 3}));
  }
  PIPER_ASSIGN(out[1], last_states(c, s, h));
  if (!states.empty()) {
    PIPER_ASSIGN(out[2], last_states(c, s, states));
  }
  return out;
}

constexpr std::string_view kNote = "its steps one by one";
constexpr ImportRule kRecurrentRules[] = {
    {"GRU", 1, kNewest, recurrent, kNote},
    {"LSTM", 1, kNewest, recurrent, kNote},
    {"RNN", 1, kNewest, recurrent, kNote},
};

}  // namespace

std::span<const ImportRule> recurrent_rules() { return kRecurrentRules; }

}  // namespace piper::onnx_import
