// The state that the steps from the differentiated graph to plans share. Private to the compile
// room.
#pragma once

#include <map>
#include <set>

#include "piper/frontend/strategy.h"
#include "piper/planner/job_costs.h"
#include "piper/planner/lower.h"
#include "piper/planner/outer_steps.h"
#include "steps.h"
#include "sum_order.h"

namespace piper {

// Says which plan to make: the strategy's, or one of the reference plans (`oracles` in the code),
// which run on one device. kSingle runs the microbatches of all replicas one after the other,
// kUncut the batch as a whole. kFirst runs the first replica's microbatches only, which is enough
// to prove the strategy's plans by.
enum class Target { kStrategy, kSingle, kFirst, kUncut };

// Says how axes cut a parameter or buffer, and its dims with zeros at their ends; none: without.
struct CutOfState {
  std::vector<AxisLayout> over;
  Shape padded;
};

// Is passed through the steps from the differentiated graph to plans.
struct Making {
  Target target;
  const CompileOptions& options;
  const Strategy& strategy;
  Steps& steps;
  Compiled& compiled;
  const Variables& variables;
  const JobCosts& costs;
  Summing& summing;         // set by the strategy's plan, for the reference plans
  const Graph* evaluation;  // the step of the model as it is evaluated; null: none is asked for
  Summing& of_evaluation;   // as `summing`
  // How axes cut each parameter and buffer of the step; an evaluation cuts them alike.
  std::map<std::string, CutOfState>& lie;
  std::vector<int32_t>& cut_axes;  // that cut the step, the first one first; outer updates likewise
  // How the strategy's plan sends parameters and gradients in blocks; reference plans round so.
  InBlocksOf& in_blocks;
  std::span<const OuterGraph> outer = {};                       // the steps between local steps
  std::span<Summing> of_outer = {};                             // of each, as `summing`
  const std::map<std::string, TrainedPart>* trained = nullptr;  // by parameter
  const InputRanges* ranges = nullptr;                          // of a whole step's inputs
  TwinFold fold = {};                 // of the mesh, where the places of a stage are replicas
  std::set<std::string> copies = {};  // in 16 bits, that the step keeps of parameters
  bool is_outer = false;              // it makes that step, of one that is made already
  bool evaluates = false;    // it makes the forward pass alone, of a step that is made already
  Explanations unsaid = {};  // of reference plans: not shown

  bool is_oracle() const { return target != Target::kStrategy; }
  // The schedule is the strategy's: that of a forward pass is the list scheduler's.
  bool has_order() const { return !is_oracle() && !is_section(); }
  bool is_section() const { return evaluates || is_outer; }
  bool is_single() const { return target == Target::kSingle || target == Target::kFirst; }
  Explanations& explain() { return is_oracle() ? unsaid : compiled.explanations; }
};

// Gives an error of a step that knows tasks but not the strategy the place of the order directive,
// where it has none.
template <class T>
Result<T> located(Result<T> made, const Strategy& strategy) {
  if (!made && made.error().at.line == 0 && !strategy.orders.empty())
    made.error().at = strategy.orders.front().at;
  return made;
}

// Returns the tags that tell regions apart: all of the graph's that some place or order directive
// names.
Result<std::vector<std::string>> region_tags(const Strategy& strategy, const Graph& graph);
// Gives an error about regions the places of the rules that set their tags.
Error with_rules(Error error, const Strategy& strategy, const std::vector<std::string>& tags);
// Returns what the DAG of a step is made with.
Result<DagSpec> spec_of(const Graph& step, const Cut& cut, const Making& making);
// Returns the regions that are split into parts.
std::vector<std::string> part_names(const Strategy& strategy);
// Joins messages as far as the order allows it: those of a microbatch, then those of several.
Result<Dag> fused_messages(Dag dag, std::vector<ComputeOrder>& order, const Strategy& strategy,
                           const Variables& variables, Explanations& explain);
// These say what copies in 16 bits, and second versions, of parameters cost.
void explain_copies(const Dag& dag, Explanations& explain);
void explain_versions(const Dag& dag, const Strategy& strategy, Explanations& explain);
// Explains the plans of the strategy, and counts their instructions.
Status explain_plans(const Lowered& lowered, Making& making);

}  // namespace piper
