// Finds the sums of a step, and the rounds in which their terms are added up over ranks.
#include <algorithm>
#include <map>

#include "piper/ir/ops.h"
#include "rounds.h"

namespace piper {
namespace {

// All contributions to a sum are terms over the same axes.
std::vector<int32_t> axes_of(const Graph& graph, const Node& sum) {
  const auto axes_of_use = [&](ValueId use) {
    std::vector<int32_t> axes;
    for (const AxisLayout& lies : graph.value(use).over)
      if (lies.layout.kind == LayoutKind::kPartial) axes.push_back(lies.axis);
    std::sort(axes.begin(), axes.end());
    return axes;
  };
  std::vector<int32_t> axes = axes_of_use(sum.inputs[0]);
  for (ValueId use : sum.inputs)
    PIPER_CHECK(axes_of_use(use) == axes, "contributions to '{}' lie differently", sum.name);
  return axes;
}

// Returns the rounds of all replicas, the last one also over further axes of which contributions
// are terms. Coupled replicas have terms of some sums and the whole of others.
std::vector<SumRound> rounds_of(const Dag& dag, const std::vector<SumRound>& of_replicas,
                                std::vector<int32_t> terms) {
  std::vector<SumRound> rounds;
  for (SumRound round : of_replicas) {
    std::erase_if(round.axes, [&](int32_t axis) {
      return dag.mesh[static_cast<size_t>(axis)].is_coupled() &&
             !std::binary_search(terms.begin(), terms.end(), axis);
    });
    for (int32_t axis : round.axes) std::erase(terms, axis);
    if (round.size > 1 || !round.axes.empty()) rounds.push_back(std::move(round));
  }
  if (terms.empty()) return rounds;
  if (rounds.empty()) rounds.emplace_back();
  add_axes(rounds.back(), terms);
  return rounds;
}

// One device has the terms of replicas, and no others that it could round as ranks do. Those of
// further axes are added up before the terms of the first round, as cut_states() says.
bool rounds_replicas(const Dag& dag, const SumRound& round, size_t number) {
  if (number == 0) return round.size > 1;
  return std::ranges::none_of(
      round.axes, [&](int32_t axis) { return dag.mesh[static_cast<size_t>(axis)].is_coupled(); });
}

}  // namespace

// Only gradients are rounded, or added up in another order than that of ranks.
void add_sums(Dag& dag, const DagSpec& spec) {
  std::map<ValueId, const std::vector<SumRound>*> gradients;
  std::map<ValueId, std::map<int32_t, int32_t>> in_blocks;  // by gradient and line
  for (const Param& param : dag.graph.params) {
    const auto own = spec.rounds_of.find(param.name);
    gradients[param.gradient] = own == spec.rounds_of.end() ? &spec.rounds : &own->second;
    const auto rounded = spec.in_blocks.reduced.find(param.name);
    if (rounded == spec.in_blocks.reduced.end()) continue;
    for (const auto& [line, how] : rounded->second) {
      in_blocks[param.gradient][line] = static_cast<int32_t>(dag.in_blocks.size());
      dag.in_blocks.push_back(how);
    }
  }
  for (const Node& node : dag.graph.nodes) {
    if (!is_step_sum(node)) continue;
    const ValueId value = node.outputs[0];
    const DType own = dag.graph.value(value).type.dtype;
    const auto own_rounds = gradients.find(value);
    const std::vector<int32_t> terms = axes_of(dag.graph, node);
    std::vector<SumRound> rounds =
        rounds_of(dag, own_rounds == gradients.end() ? spec.rounds : *own_rounds->second, terms);
    for (size_t r = 0; r < rounds.size(); ++r) {
      SumRound& round = rounds[r];
      if (round.dtype == own || !gradients.contains(value)) round.dtype.reset();
      if (!gradients.contains(value) || !rounds_replicas(dag, round, r))
        round.scaled = Scaled::kNone, round.block = 0;
      round.fast = round.fast && gradients.contains(value);
    }
    Sum& sum = dag.sums.emplace_back(value, node.inputs, dag.graph.value(value).name);
    if (const auto known = in_blocks.find(value); known != in_blocks.end())
      for (const SumRound& round : rounds) {
        const auto how = known->second.find(round.line);
        sum.in_blocks.push_back(how == known->second.end() ? -1 : how->second);
      }
    for (const int64_t use : node.attrs.integers("into"))
      sum.into.push_back(static_cast<int32_t>(use));
    for (SumRound& round : rounds) sum.rounds.push_back(round_of(dag, std::move(round)));
    sum.each_micro = spec.each_micro.contains(sum.name);
    const auto twin = spec.twin_of.find(sum.name);
    if (twin != spec.twin_of.end()) sum.twin = twin->second;
    if (sum.twin.empty() && spec.mesh.empty()) leave_twins(dag, sum);  // else find_twins does
  }
}

bool rounds_in_micros(const Dag& dag, const Sum& sum) {
  if (!sum.each_micro) return false;
  const SumRound& first = dag.rounds[static_cast<size_t>(sum.rounds[0])];
  const DType own = dag.graph.value(sum.value).type.dtype;
  return first.scaled != Scaled::kNone || info(own).bytes < 4 ||
         info(first.dtype.value_or(own)).bytes < 4;
}

}  // namespace piper
