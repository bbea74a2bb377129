// RNN, GRU and LSTM: their cells (recurrent_cells.cc) once for each time step, so that gradients
// are those of the ops.
#include "recurrent.h"

#include <algorithm>

namespace piper::onnx_import {
namespace {

constexpr int64_t kMostSteps = 4096;

Result<Val> joined_all(RuleContext& c, const Vals& items, int64_t axis) {
  if (items.size() == 1) return items[0];
  return c.op("Concat", items, {{"axis", axis}});
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

Result<Vals> joined_outputs(RuleContext& c, const CellSizes& s, const Vals& outputs, const Vals& h,
                            const Vals& states) {
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
  return joined_outputs(c, s, outputs, h, states);
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
