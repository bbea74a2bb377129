// Rule update: how the numbers of a step (norm, loss scale, learning rate) are computed and used.
#include "scalars.h"

#include <algorithm>
#include <array>
#include <set>

#include "piper/ir/ops.h"
#include "piper/ir/optimizers.h"
#include "piper/plan/cuts.h"

namespace piper {
namespace {

using enum NumberKind;

// Says which number an op of the update computes from which.
struct Rule {
  std::string_view op;
  std::vector<NumberKind> inputs;
  NumberKind makes;
};
const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"NotFinite", {kNorm}, kSkip},
      {"LossScale", {kState}, kScale},
      {"Div", {kNorm, kScale}, kUnscaledNorm},
      {"Div", {kClip, kScale}, kFactor},
      {"Reciprocal", {kScale}, kFactor},
      {"ClipFactor", {kNorm}, kClip},
      {"ClipFactor", {kUnscaledNorm}, kClip},
      {"LearningRate", {kState}, kRate},
      {"NextStep", {kState}, kState},
      {"NextStep", {kState, kSkip}, kState},
      {"NextLossScale", {kState, kState, kSkip}, kState},
  };
  return kRules;
}
// Returns whether the op is used only for numbers of a step.
bool is_of_step(std::string_view op) {
  return op != "Div" && op != "Reciprocal" &&
         std::any_of(rules().begin(), rules().end(),
                     [&](const Rule& rule) { return rule.op == op; });
}

bool scales_loss(const RoleProgram& role) {
  return std::ranges::any_of(role.programs, [](const Program& program) {
    return std::ranges::any_of(program.ops,
                               [](const ProgramOp& op) { return op.op == "LossScale"; });
  });
}

// Returns the runs of a term, if those of axes that rule layout follows count, too.
int64_t runs_along(const Model& model, const Term& term, uint32_t axes) {
  int64_t runs = term.runs;
  for (size_t axis = 0; axis < model.mesh.size(); ++axis)
    if ((term.followed & axes) >> axis & 1) runs *= model.mesh[axis].second;
  return runs;
}

}  // namespace

StepScalars::StepScalars(const Model& model, const Section& section, Findings& findings,
                         KnownOf known_of)
    : BufferWalk(section), model_(model), findings_(findings), known_of_(std::move(known_of)) {
  for (const Cell& cell : model.cells) {
    scales_ |= scales_loss(*cell.role);
    Held& held = held_.emplace_back();
    auto& kinds = kinds_.emplace_back(cell.facts->buffers.size());
    for (const int32_t b : cell.facts->kept) {
      kinds[b] = kind_of_kept(cell.facts->buffers[b], cell.role->tensor(b));
      if (kinds[b] == kNone) continue;
      held[b] = {.kind = kinds[b], .symbol = symbol_of(cell.role->tensor(b).name)};
      states_.try_emplace(held[b].symbol, &cell.role->tensor(b));
    }
  }
}

// Notes a parameter. Returns what else is kept between steps: a count or a state of the optimizer.
NumberKind StepScalars::kind_of_kept(const BufferFacts& facts, const Tensor& tensor) {
  const bool scalar = tensor.type.shape.empty();
  // An older version of a parameter is neither; that of a count is the count of its step.
  const bool is_version = tensor.previous_of >= 0 && info(tensor.type.dtype).is_float;
  if (facts.param >= 0 && facts.kind == BufferKind::kState && tensor.copy_of < 0 &&
      params_.try_emplace(facts.param, &tensor).second)
    trained_.emplace(model_.gradient_of[facts.param], &tensor);
  if (facts.param >= 0 || is_version) return kNone;
  if (!scalar && facts.kind != BufferKind::kState) return kNone;
  return scalar ? kState : kMoment;
}

// Holds the values of a program.
class StepScalars::Values {
 public:
  Values(StepScalars& of, Spot place, const Instruction& one)
      : of_(of),
        place_(place),
        one_(one),
        program_(of.role(place).programs[one.program]),
        values_(program_.values.size()) {
    for (const auto& [value, bytes] : program_.literals) {
      const TensorType& type = program_.values[value];
      const bool zeros = std::all_of(bytes.begin(), bytes.end(), [](char b) { return b == 0; });
      if (zeros && type.dtype == DType::kF64)
        values_[value] = {.kind = kTerms, .terms = Terms(bytes.size() / sizeof(double))};
      else  // a number that never changes
        values_[value] = {.kind = kState, .symbol = symbol_of(bytes)};
    }
    for (size_t a = 0; a < one.args.size(); ++a)
      if (program_.arg_read[a]) values_[a] = bound(a);
  }

  // Requires that parameters and states are not written after their update.
  void check_writes(const ProgramOp& op) {
    for (const int32_t output : op.outputs) {
      const int32_t arg = argument(output);
      if (arg >= 0 && updated_.contains(arg))
        add("{} writes '{}' after its update", buffer_name(arg));
      written_.insert(arg);
    }
  }

  void run() {
    for (const ProgramOp& op : program_.ops) {
      std::vector<const Number*> inputs;
      for (const int32_t input : op.inputs) inputs.push_back(input < 0 ? nullptr : &values_[input]);
      if (const OpDef* def = find_op(op.op); def && def->states >= 0) {
        update(op, count_states(*def, op.attrs), inputs);
        continue;
      }
      check_writes(op);
      std::vector<Number> made;
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        made.push_back(result(op, inputs, i));
        made.back().step = of_.section_.training_step(place_);
      }
      for (size_t i = 0; i < op.outputs.size(); ++i) values_[op.outputs[i]] = std::move(made[i]);
    }
    for (size_t a = 0; a < one_.args.size(); ++a)
      if (program_.arg_written[a]) of_.put(place_, one_.args[a], values_[a]);
  }

 private:
  void update_states(const ProgramOp& op, size_t states, int32_t id, const std::string& shown,
                     std::span<const Number* const> inputs) {
    size_t made = 1;  // outputs, of the states that are there
    for (size_t i = 0; i < states && 2 + i < op.inputs.size(); ++i) {
      if (op.inputs[2 + i] < 0) continue;
      const int32_t state = argument(op.inputs[2 + i]);
      if (state < 0 || op.outputs.size() <= made || argument(op.outputs[made++]) != state)
        return add("{} updates '{}' with a state that it does not write", shown);
      of_.check_state(place_, op, shown, id, i, buffer_name(state), *inputs[2 + i]);
      ++values_[state].version;
    }
  }

  // Follows an optimizer's op: it reads a parameter, its gradient and its states, and writes the
  // parameter and the states.
  void update(const ProgramOp& op, size_t states, std::span<const Number* const> inputs) {
    const int32_t param = argument(op.outputs[0]);
    if (param < 0) return;
    const std::string shown = buffer_name(param);
    const int32_t id = of_.known_of_(place_, one_.args[param]).param;
    of_.check_update(place_, shown, id, states, inputs);
    if (id < 0) return add("{} updates '{}', which is no parameter", shown);
    if (!written_.insert(param).second) return add("{} writes '{}' twice", shown);
    updated_.insert(param);
    if (argument(op.inputs[0]) != param) return add("{} updates '{}' from something else", shown);
    const Number* gradient = op.inputs.size() > 1 ? inputs[1] : nullptr;
    const NumberKind wanted = find_op(op.op)->directed ? kDirection : kGradient;
    if (!gradient || gradient->kind != wanted || !gradient->rows.empty() ||
        gradient->target != of_.model_.gradient_of[id])
      return add("{} updates '{}' with something else than its gradient", shown);
    update_states(op, states, id, shown, inputs);
  }
  int32_t argument(int32_t value) const { return value < program_.num_args ? value : -1; }
  std::string buffer_name(int32_t arg) const {
    return quote_control(of_.role(place_).name(one_.args[arg]));
  }
  void add(fmt::format_string<std::string, const std::string&> text, const std::string& shown) {
    of_.findings_.add("update", text, of_.name(place_), shown);
  }

  Number bound(size_t arg) const {
    for (const SumRead& read : one_.sum_reads) {
      if (static_cast<size_t>(read.arg) != arg) continue;
      const int32_t target = of_.model_.cells[place_.cell].facts->targets[read.target];
      Number number;
      number.target = target;
      number.cut = of_.known_of_(place_, one_.args[arg]).cut;
      number.kind = of_.model_.is_gradient[target] ? kGradient : kTerms;
      number.exact = program_.values[arg].dtype;
      if (number.kind == kTerms) {
        if (num_elements(program_.values[arg].shape) != 1) return {};
        number.terms = {{.target = target, .exact = number.exact}};
      }
      return number;
    }
    return of_.number_in(place_.cell, one_.args[arg]);
  }
  static bool is_mean(const ProgramOp& op, std::span<const Terms* const> terms) {
    return op.op == "Div" && terms.size() == 2 && terms[0] && terms[1] && terms[0]->size() == 1 &&
           terms[1]->size() == 1;
  }

  // Returns what an op of a gradient alone makes of it, where that is known.
  std::optional<Number> of_gradient(const ProgramOp& op, const Number& gradient) const {
    if (op.op == "SumSquares") return of_.squares_of(op, gradient);
    Number same = gradient;
    // In blocks it travels to where it is read: rule sum compares how they round it.
    const bool travels = op.op == "ToBlocks" || op.op == "FromBlocks";
    if (travels) same.in_blocks = op.op == "ToBlocks";
    const DType to = program_.values[op.outputs[0]].dtype;
    const bool is_same =
        travels || op.op == "Reshape" || (op.op == "Cast" && holds_all(to, gradient.exact));
    return is_same ? std::optional(std::move(same)) : std::nullopt;
  }

  Number result(const ProgramOp& op, std::span<const Number* const> inputs, size_t output) const {
    if (inputs.size() == 1 && inputs[0] && inputs[0]->kind == kGradient)
      if (auto made = of_gradient(op, *inputs[0])) return *std::move(made);
    if (op.op == "GlobalNorm") return of_.norm_of(place_, inputs);
    std::vector<const Terms*> terms;
    for (const Number* input : inputs)
      terms.push_back(input && input->kind == kTerms ? &input->terms : nullptr);
    // A vector has no more elements than there are sums.
    const size_t most = of_.model_.targets.size();
    if (auto known = moved(op, program_, terms, most))
      return {.kind = kTerms, .terms = *std::move(known)};
    if (is_mean(op, terms)) return {.kind = kMean, .terms = {terms[0]->front(), terms[1]->front()}};
    Number made = of_.made_by(place_, op, inputs, output);
    if (made.kind == kNone) made = row(op, inputs);
    return made.kind == kNone ? direction(inputs) : made;
  }
  // Returns what puts together a row of each of several gradients; nothing: operands are others.
  Number joined_rows(const ProgramOp& op, std::span<const Number* const> inputs) const {
    Number made{.kind = kDirection};
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Number* input = inputs[i];
      const Shape& shape = program_.values[op.inputs[i]].shape;
      if (!input || (input->kind != kGradient && input->kind != kDirection) ||
          !input->rows.empty() || shape.empty() || shape[0] != 1)
        return {};
      made.rows.push_back(input->target);
    }
    return made.rows.size() > 1 ? made : Number{};
  }

  // Returns what an op puts together of a row of each of several gradients, or the row that it
  // takes of such; nothing: it does neither.
  Number row(const ProgramOp& op, std::span<const Number* const> inputs) const {
    const auto shape = [&](int32_t value) { return program_.values[value].shape; };
    if (op.op == "Concat" && op.attrs.integer("axis") == 0) return joined_rows(op, inputs);
    const std::vector<int64_t> starts = op.attrs.integers("starts");
    if (op.op != "Slice" || inputs.size() != 1 || !inputs[0] || inputs[0]->rows.empty() ||
        starts.empty())
      return {};
    const std::vector<int32_t>& rows = inputs[0]->rows;
    if (shape(op.inputs[0])[0] != std::ssize(rows) || shape(op.outputs[0])[0] != 1 ||
        starts[0] < 0 || starts[0] >= std::ssize(rows))
      return {};
    Number made{.kind = kDirection};
    made.target = rows[static_cast<size_t>(starts[0])];
    return made;
  }
  // Returns what an op makes of one gradient; nothing where it reads none, or several.
  static Number direction(std::span<const Number* const> inputs) {
    Number made;
    for (const Number* input : inputs) {
      if (!input || (input->kind != kGradient && input->kind != kDirection)) continue;
      if (made.kind != kNone && (made.target != input->target || made.rows != input->rows))
        return {};
      made.kind = kDirection, made.target = input->target, made.rows = input->rows;
    }
    return made;
  }

  StepScalars& of_;
  const Spot place_;
  const Instruction& one_;
  const Program& program_;
  std::vector<Number> values_;           // by value
  std::set<int32_t> written_, updated_;  // arguments; of these, those that an optimizer writes
};

// Returns whether the instruction may compute numbers of the step, or update parameters. Programs
// of forward and backward passes do neither.
bool StepScalars::concerns(Spot place, const Instruction& one) {
  const Program& program = role(place).programs[one.program];
  const auto [known, is_new] = concerned_.try_emplace(&program);
  if (is_new) {
    known->second = std::any_of(program.ops.begin(), program.ops.end(), [](const ProgramOp& op) {
      const OpDef* def = find_op(op.op);
      return (def && def->states >= 0) || op.op == "SumSquares" || op.op == "GlobalNorm" ||
             is_of_step(op.op);
    });
    // Squares of other ranks are added to zeros.
    for (size_t a = 0; a < one.args.size(); ++a)
      known->second =
          known->second || (program.arg_written[a] && program.values[a].dtype == DType::kF64 &&
                            program.values[a].shape.size() == 1);
  }
  if (known->second || !one.sum_reads.empty()) return true;
  return std::any_of(one.args.begin(), one.args.end(), [&](int32_t arg) {
    const NumberKind kind = kinds_[place.cell][arg];
    return kind != kNone && kind != kState && kind != kMoment;
  });
}

void StepScalars::compute(Spot place) {
  const Instruction& one = section_.at(place);
  if (concerns(place, one)) return Values(*this, place, one).run();
  for (const int32_t arg : model_.cells[place.cell].facts->programs[one.program].written)
    put(place, one.args[arg], {});
}

// By their names checkpoints tell states apart. A model with an optimizer of its own names them.
bool StepScalars::is_called_as_another(const ProgramOp& op, int32_t param, size_t number,
                                       const Tensor& state) const {
  if (!state.init.empty()) return false;
  const std::string_view name = state.name;
  for (size_t dot = name.rfind('.'); dot != name.npos && dot > 0; dot = name.rfind('.', dot - 1)) {
    const int32_t owner = model_.params.find(name.substr(0, dot));
    if (owner < 0) continue;
    if (owner != param) return true;
    const std::string_view rest = name.substr(dot + 1), average = kAverage.substr(1);
    const auto def = std::ranges::find_if(
        optimizers(), [&](const OptimizerDef& one) { return one.op == op.op && !one.direction; });
    const auto own = static_cast<size_t>(find_op(op.op)->states);
    if (number >= own) return rest != average;
    if (def == optimizers().end() || number >= def->states.size()) return rest == average;
    return rest != def->states[number] &&
           (rest == average || std::ranges::find(def->states, rest) != def->states.end());
  }
  return false;
}

void StepScalars::check_state(Spot place, const ProgramOp& op, const std::string& shown,
                              int32_t param, size_t number, const std::string& state,
                              const Number& held) {
  const auto say = [&](const char* what) {
    findings_.add("update", "{} updates '{}' with '{}', {}", name(place), shown, state, what);
  };
  // If the parameter is a scalar, its states look like scalar states.
  if (held.kind != kMoment && held.kind != kState) return say("which is no state of an optimizer");
  const auto [known, is_new] = state_of_.try_emplace(held.symbol, param, number);
  if (known->second.first != param) return say("which is a state of another parameter");
  if (known->second.second != number) say("which is another state of the parameter on other ranks");
  if (const auto tensor = states_.find(held.symbol); tensor != states_.end()) {
    if (is_called_as_another(op, param, number, *tensor->second))
      say("which is called as another state is: checkpoints would mix them up");
    if (const std::string how = otherwise_kept(param, *tensor->second); !how.empty())
      say(how.c_str());
  }
  if (held.version != section_.training_step(place))
    say("which is not in the version that the step before wrote");
}

namespace {

// Lists the cuts after which a dim may have padding, and those into parts that are trained by
// themselves, with the extent that each cuts.
std::vector<std::array<int64_t, 4>> cuts_that_pad(const Model& model, const Tensor& tensor) {
  std::vector<std::array<int64_t, 4>> all;
  Shape left = tensor.whole_type().shape;
  for (const TensorCut& cut : tensor.cuts) {
    int64_t& extent = left[static_cast<size_t>(cut.dim)];
    if (cut.axis < 0)  // of which there are as many, whatever their size
      all.push_back({-1, cut.outer, 0, extent / cut.block});
    else if (cut.block > 0)
      all.push_back({cut.axis, cut.outer, cut.block, extent});
    extent = cut.axis < 0
                 ? cut.block
                 : cut_extent(extent, cut, model.mesh[static_cast<size_t>(cut.axis)].second);
  }
  return all;
}

}  // namespace

std::string StepScalars::otherwise_kept(int32_t param, const Tensor& state) const {
  const auto found = params_.find(param);
  if (found == params_.end()) return "";
  const Shape &own = state.whole_type().shape, &its = found->second->whole_type().shape;
  if (own != its)
    return fmt::format("which is of a whole {}, the parameter of {}", to_string(own),
                       to_string(its));
  return state.cuts == found->second->cuts ? "" : "which is cut otherwise than the parameter";
}

// Returns whether the state has padding only where its parameter has.
bool StepScalars::is_padded_as(const Tensor& state, const Tensor& param) const {
  if (state.part_of >= 0)
    return state.whole == param.whole_type().shape && state.cuts == param.cuts;
  const auto its = cuts_that_pad(model_, param);
  return std::ranges::all_of(cuts_that_pad(model_, state),
                             [&](const auto& cut) { return std::ranges::count(its, cut) > 0; });
}

void StepScalars::check_kept_direction(Spot place, int32_t buffer, const Number& number) {
  const Tensor& state = role(place).tensor(buffer);
  const BufferFacts& facts = model_.cells[place.cell].facts->buffers[buffer];
  if (number.kind != kDirection || !number.rows.empty() || facts.kind != BufferKind::kState ||
      facts.param >= 0 || state.is_whole())
    return;
  const auto fits = [&](const auto& trained) { return is_padded_as(state, *trained.second); };
  const auto [from, to] = trained_.equal_range(number.target);
  if (from != to && std::none_of(from, to, fits))
    findings_.add("update",
                  "{} makes a direction from '{}', which is padded otherwise than its "
                  "parameter",
                  name(place), quote_control(state.name));
}

// Returns the sum of squares of a gradient: of the rank's own run if it is sharded, else of as many
// runs as the attribute `parts` says.
Number StepScalars::squares_of(const ProgramOp& op, const Number& gradient) const {
  Term term{.target = gradient.target, .runs = std::max<int64_t>(op.attrs.integer("parts"), 1)};
  term.cut = gradient.cut & ~model_.followed;
  term.followed = gradient.cut & model_.followed;
  for (size_t axis = 0; axis < model_.mesh.size(); ++axis)
    if (term.cut >> axis & 1) term.runs *= model_.mesh[axis].second;
  return {.kind = kTerms, .terms = {term}};
}

Number StepScalars::norm_of(Spot place, std::span<const Number* const> inputs) {
  Terms all;
  for (const Number* input : inputs) {
    if (!input || input->kind != kTerms) {
      findings_.add("update", "{} takes a norm of something else than squares of gradients",
                    name(place));
      return {};
    }
    all.insert(all.end(), input->terms.begin(), input->terms.end());
  }
  count_followed(all);
  const int32_t site = site_of(all);
  if (const std::string wrong = wrong_squares(all, site); !wrong.empty()) {
    findings_.add("update", "{} takes a norm in which {}", name(place), wrong);
    return {};
  }
  Number norm{.kind = kNorm, .symbol = join_symbols(symbol_of("GlobalNorm"), symbol_of(all))};
  norm.site = site;
  return norm;
}

// Returns of which site all of the squares are; -1: of several, or of gradients without sites.
int32_t StepScalars::site_of(const Terms& terms) const {
  int32_t site = -1;
  for (const Term& term : terms) {
    if (term.is_zero()) continue;
    const int32_t own = term.target < 0 ? -1 : model_.site_of[term.target];
    if (own < 0 || (site >= 0 && own != site)) return -1;
    site = own;
  }
  return site;
}

// Counts runs along axes that rule layout follows, too, if only then all gradients are in equally
// many: such an axis may be one of replicas, along which something else is cut into runs as well.
void StepScalars::count_followed(Terms& terms) const {
  uint32_t all = 0;
  for (const Term& term : terms) all |= term.followed;
  const auto runs_with = [&](const Term& term, uint32_t axes) {
    return runs_along(model_, term, axes);
  };
  for (uint32_t axes = 0;; axes = (axes - all) & all) {  // subsets, from none to all
    int64_t runs = 0;
    const bool alike = std::ranges::all_of(terms, [&](const Term& term) {
      if (term.is_zero()) return true;
      runs = runs == 0 ? runs_with(term, axes) : runs;
      return runs_with(term, axes) == runs;
    });
    if (alike)
      for (Term& term : terms) term.runs = runs_with(term, axes);
    if (alike || axes == all) return;
  }
}

// `site`: only gradients of this one are meant; -1: all.
std::string StepScalars::wrong_squares(const Terms& terms, int32_t site) const {
  const auto shown = [&](int32_t target) { return quote_control(model_.targets[target]); };
  std::vector<int64_t> times(model_.targets.size());
  std::vector<size_t> place(model_.targets.size());  // by sum: the position of its last squares
  int64_t runs = 0;  // equal for all gradients, so that all plans give the same bits
  for (const Term& term : terms) {
    if (term.is_zero()) continue;
    if (term.target < 0) return "squares of different gradients are added to one another";
    if (!model_.is_gradient[term.target])
      return fmt::format("the sum '{}' is included, which is no gradient", shown(term.target));
    if (term.cut != 0)
      return fmt::format("only the rank's own part of '{}' is included", shown(term.target));
    runs = runs == 0 ? term.runs : runs;
    if (term.runs != runs)
      return fmt::format("'{}' is squared in {} runs, others in {}", shown(term.target), term.runs,
                         runs);
    if (model_.norm_runs > 0 && runs != model_.norm_runs)
      return fmt::format("'{}' is squared in {} runs, in {} on one device", shown(term.target),
                         runs, model_.norm_runs);
    place[term.target] = static_cast<size_t>(&term - terms.data());
    times[term.target] += term.times;
  }
  for (int32_t t = 0; t < static_cast<int32_t>(times.size()); ++t) {
    const bool is_meant = site < 0 || model_.site_of[t] == site;
    if (!model_.is_gradient[t] || times[t] == (is_meant ? 1 : 0)) continue;
    if (times[t] == 0) return fmt::format("'{}' is missing", shown(t));
    return fmt::format("'{}' is included {} times", shown(t), times[t]);
  }
  for (size_t i = 1; i < model_.norm_order.size(); ++i) {
    const int32_t before = model_.norm_order[i - 1], t = model_.norm_order[i];
    if (times[t] > 0 && place[t] < place[before])
      return fmt::format("'{}' comes before '{}', unlike on one device", shown(t), shown(before));
  }
  return "";
}

Number StepScalars::made_by(Spot place, const ProgramOp& op, std::span<const Number* const> inputs,
                            size_t output) {
  const auto fits = [&](const Rule& rule) {
    return rule.op == op.op && std::equal(rule.inputs.begin(), rule.inputs.end(), inputs.begin(),
                                          inputs.end(), [](NumberKind kind, const Number* input) {
                                            return input && input->kind == kind;
                                          });
  };
  const auto rule = std::find_if(rules().begin(), rules().end(), fits);
  if (rule == rules().end()) {
    if (output == 0 && is_of_step(op.op))
      findings_.add("update", "{} computes {} from other operands than it needs", name(place),
                    op.op);
    return {};
  }
  for (const Number* input : inputs)
    if (input->kind == kState) of_step_.insert(input->symbol);
  Number made{.kind = rule->makes,
              .symbol = join_symbols(symbol_of(op.op), symbol_of(print_attrs(op.attrs)))};
  for (const Number* input : inputs) {
    made.symbol = join_symbols(made.symbol, input->symbol);
    made.site = std::max(made.site, input->site);
    made.clips = made.clips || input->clips;
  }
  made.symbol = join_symbols(made.symbol, output);
  made.of = inputs[0]->symbol;
  if (made.kind == kSkip && made.site >= 0)
    findings_.add("update", "{} lets all sites skip a step by the norm of one", name(place));
  if (made.kind == kClip) {
    made.clips = true;
    clipped_.emplace(std::pair(section_.training_step(place), made.site), inputs[0]->symbol);
  }
  return made;
}

void StepScalars::check_update(Spot place, const std::string& shown, int32_t param, size_t states,
                               std::span<const Number* const> inputs) {
  const size_t at = 2 + states;
  const auto kind = [&](size_t i) {
    return i < inputs.size() && inputs[i] ? inputs[i]->kind : kNone;
  };
  const auto given = [&](size_t i) { return i < inputs.size() && inputs[i]; };
  const bool skips = given(at + 3);
  const bool wrong_rate =
      kind(at) != kRate || kind(at + 2) != kState || inputs[at]->of != inputs[at + 2]->symbol;
  const bool wrong_factor =
      scales_ ? kind(at + 1) != kFactor : given(at + 1) && kind(at + 1) != kClip;
  const bool wrong_skip = (skips || scales_) && kind(at + 3) != kSkip;
  if (wrong_rate || wrong_factor || wrong_skip)
    return findings_.add("update", "{} updates '{}' with something else for the {}", name(place),
                         shown,
                         wrong_rate     ? "learning rate"
                         : wrong_factor ? "factor of the gradients"
                                        : "word whether the step is skipped");
  const int32_t gradient = param < 0 ? -1 : model_.gradient_of[param],
                site = gradient < 0 ? -1 : model_.site_of[gradient];
  const std::string here = fmt::format("'{}' on {}", shown, model_.who(place.cell));
  const bool clips = given(at + 1) && inputs[at + 1]->clips;
  if (clips && inputs[at + 1]->site != site)
    return findings_.add("update", "{} clips '{}' by the norm of another site", name(place), shown);
  const std::pair<std::string_view, size_t> common[] = {
      {"factor of the gradients", at + 1},
      {"count of updates", at + 2},
      {"word whether the step is skipped", at + 3}};
  for (const auto& [what, i] : common) {
    const uint64_t symbol = given(i) ? inputs[i]->symbol : 0;
    const std::tuple key(section_.training_step(place), what, i == at + 1 ? site : -1);
    const auto& [first, known] = factors_.try_emplace(key, here, symbol).first->second;
    if (known != symbol)
      return findings_.add("update", "{} updates '{}' with another {} than that of {}", name(place),
                           shown, what, first);
  }
  if (!clips) unclipped_.try_emplace(section_.training_step(place), here);
}

int64_t runs_of_norm(const RoleProgram& role) {
  for (const Program& program : role.programs)
    for (const ProgramOp& op : program.ops)
      if (op.op == "SumSquares") return std::max<int64_t>(op.attrs.integer("parts"), 1);
  return 0;
}

}  // namespace piper
