// Chooses the layouts of an op's operands and results from those that are known.
#include "axis_choice.h"

#include <algorithm>
#include <set>

#include "parts.h"

namespace piper::axis {

bool gathers(const State& state, const Node& node, const Loops& loops, const Choice& choice) {
  bool any = false;
  for (size_t i = 0; loops.def->apart && i < node.inputs.size(); ++i)
    any = any || (node.inputs[i].valid() && state.layout(node.inputs[i]).kind == kCut &&
                  choice.needs[i].kind == kWhole);
  return any && !loops.def->apart(loops.types).steps.empty();
}

bool is_touched(const State& state, const Node& node) {
  return std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](ValueId id) { return id.valid() && state.layout(id).kind != kWhole; }) ||
         std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId id) { return state.hint(id).has_value(); });
}

namespace {

// Returns the state that a value is, or was rounded from; invalid: none.
ValueId state_of(const Graph& graph, ValueId id) {
  const Value* value = &graph.value(id);
  for (; value->kind == ValueKind::kNode; value = &graph.value(id)) {
    const Node& node = graph.node(value->producer);
    if (node.op != "Cast") return {};
    id = node.inputs[0];
  }
  return value->kind == ValueKind::kState ? id : ValueId();
}

// Returns whether a value is a state, or parts of a state put together, as a split by scope reads
// it.
bool is_of_states(const Graph& graph, ValueId id) {
  std::set<ValueId> seen;
  for (std::vector<ValueId> open{id}; !open.empty();) {
    const ValueId at = open.back();
    open.pop_back();
    if (!seen.insert(at).second || graph.value(at).kind == ValueKind::kState) continue;
    if (graph.value(at).kind != ValueKind::kNode) return false;
    const Node& node = graph.node(graph.value(at).producer);
    if (node.op != "Cast" && node.op != "Reshape" && node.op != "Concat") return false;
    open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  return true;
}

// A gradient has its parameter's layout, so that what updates one by the other converts nothing;
// terms of a whole one are summed up with the step.
std::optional<Choice> gradient_choice(const State& state, const Node& node) {
  if (!is_step_sum(node)) return std::nullopt;
  const auto is_own = [&](const Param& param) { return param.gradient == node.outputs[0]; };
  const auto& params = state.graph.params;
  const auto param = std::find_if(params.begin(), params.end(), is_own);
  if (param == params.end()) return std::nullopt;
  const Layout& layout = state.layout(param->value);
  const bool terms = layout.kind == kWhole &&
                     std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return state.layout(id).kind == kTerms; });
  return Choice{{}, std::vector(node.inputs.size(), terms ? Layout{kTerms} : layout), {layout}};
}

// Parts put together what they have of a statistic before it is summed over the step: the state has
// one sum, which every reader finds as a whole.
std::optional<Choice> statistic_choice(const State& state, const Node& node) {
  const auto is_cut = [&](ValueId id) { return state.layout(id).kind == kCut; };
  if (state.cut.axis != kAxisInTime || !is_step_sum(node) ||
      !std::ranges::any_of(node.inputs, is_cut))
    return std::nullopt;
  return Choice{{}, std::vector(node.inputs.size(), Layout{}), {Layout{}}};
}

// Returns whether an op casts a tensor to a wider type, for more than the sum over the step.
bool grows(const State& state, const Node& node) {
  const TensorType& from = state.type_of(node.inputs[0]);
  const TensorType& to = state.type_of(node.outputs[0]);
  return state.cut.axis != kAxisInTime && node.op == "Cast" && to.bytes() > from.bytes() &&
         num_elements(to.shape) > 1 && !state.adds_up(node.outputs[0]);
}

// Terms of a sum stay so where several become one, and where an op moves or scales one: it costs
// nothing later. (Where else an op is linear, its results would be sums as well, and more bytes.)
// Before a cast to a wider type ranks add them up, as messages of the wider type would be larger.
// A sum over the step ends them, unless its result is kept in blocks. Where a reader before has had
// one of several terms added up, as a norm has its residual, so are the others: the residual would
// stay as large as the whole on every rank, and be sent so beside what the norm reads.
std::optional<Choice> terms_choice(const State& state, const Node& node, const Loops& loops) {
  const bool ends = is_step_sum(node);
  if ((ends && state.is_hinted_cut(node.outputs[0])) || joins_parts(state.graph, node))
    return std::nullopt;
  std::vector<int> terms;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].valid() && state.layout(node.inputs[i]).kind == kTerms)
      terms.push_back(static_cast<int>(i));
  if (terms.empty() || !std::ranges::count(loops.rule.linear, terms)) return std::nullopt;
  const auto is_added_up = [&](int input) {
    const ValueId id = node.inputs[static_cast<size_t>(input)];
    return state.is_there(id, state.hint(id).value_or(Layout{}), state.visited);
  };
  if (terms.size() > 1 && std::ranges::any_of(terms, is_added_up)) return std::nullopt;
  const auto elements = [&](ValueId id) { return num_elements(state.type_of(id).shape); };
  const bool moves =
      node.outputs.size() == 1 &&
      elements(node.outputs[0]) <= elements(node.inputs[static_cast<size_t>(terms[0])]);
  if (terms.size() == 1 && (!moves || grows(state, node))) return std::nullopt;
  Choice choice;
  choice.makes.assign(node.outputs.size(), Layout{ends ? kWhole : kTerms});
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    const bool is_term = std::ranges::count(terms, static_cast<int>(i)) > 0;
    choice.needs.push_back(Layout{is_term ? kTerms : kWhole});
    if (!id.valid() || is_term) continue;
    const bool scales = elements(id) == 1 || loops.def->collective;
    if (!moves || !scales || state.layout(id).kind != kWhole) return std::nullopt;
  }
  return choice;
}

// Returns the loops that operands, or hints of results, cut.
std::vector<LoopCut> cuts_of(const State& state, const Node& node, const Loops& loops) {
  std::vector<LoopCut> cuts;
  const auto add = [&](const Operand& operand, const Layout& layout) {
    const std::optional<LoopCut> cut = legal_cut(loops, operand, layout, state.cut.ranks);
    if (cut && !std::ranges::count(cuts, *cut)) cuts.push_back(*cut);
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    if (!id.valid()) continue;
    const Layout& layout = state.layout(id);
    if (layout.kind == kCut) add(loops.input(i), layout);
    if (layout.kind == kRouted) add(loops.input(i), state.blocks_of_rows(id, layout));
    if (layout.kind == kTerms && state.hint(id)) add(loops.input(i), *state.hint(id));
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (const auto& hint = state.hint(node.outputs[o])) add(loops.output(o), *hint);
  return cuts;
}

}  // namespace

Choice loop_choice(const State& state, const Node& node, const Loops& loops,
                   const std::optional<LoopCut>& cut) {
  Choice choice{cut};
  const bool is_product = loops.is_product();
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    const auto layout = cut && id.valid() ? layout_of(loops.input(i), *cut) : std::nullopt;
    const Layout& need = choice.needs.emplace_back(layout.value_or(Layout{}));
    if (!id.valid()) continue;
    const double bytes = state.cost(id, need);
    choice.bytes += bytes;
    const ValueId of = state_of(state.graph, id);
    const bool cuts_whole = (is_product || node.pass == Pass::kU) && need.kind == kCut &&
                            state.layout(id).kind == kWhole;
    choice.against += of.valid() && state.at(of).is_seed && (bytes > 0 || cuts_whole);
    choice.against += state.cut.axis == kAxisInTime && bytes > 0 && state.layout(id).kind == kCut &&
                      is_of_states(state.graph, id);
  }
  const LayoutKind partial = loops.rule.reduces == LoopRule::kSum ? kTerms : kGreatest;
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const ValueId id = node.outputs[o];
    const auto layout = cut ? layout_of(loops.output(o), *cut) : std::optional(Layout{});
    const Layout& makes = choice.makes.emplace_back(layout.value_or(Layout{partial}));
    choice.against +=
        is_product && is_partial(makes) && state.adds_up(id) && state.is_hinted_cut(id);
    if ((state.hint(id) || is_partial(makes)) && !state.is_contribution(id))
      choice.bytes += state.cost_of(state.type_of(id), makes, state.hint(id).value_or(Layout{}));
  }
  return choice;
}

Choice choose(const State& state, const Node& node, const Loops& loops) {
  if (std::optional<Choice> gradient = gradient_choice(state, node)) return *std::move(gradient);
  if (!is_touched(state, node)) return loop_choice(state, node, loops, {});
  if (std::optional<Choice> statistic = statistic_choice(state, node)) return *std::move(statistic);
  if (std::optional<Choice> terms = terms_choice(state, node, loops)) return *std::move(terms);
  std::vector<Choice> choices;
  for (const LoopCut& cut : cuts_of(state, node, loops))
    choices.push_back(loop_choice(state, node, loops, cut));
  if (std::optional<Choice> rows = routed_choice(state, node, loops))
    choices.push_back(*std::move(rows));
  if (choices.empty() || !loops.is_product())  // a product is cut wherever it can be
    choices.push_back(loop_choice(state, node, loops, {}));
  return *std::min_element(choices.begin(), choices.end());
}

}  // namespace piper::axis
