// Explains what only the DAG or the plans tell: memory of copies and versions, values on the host.
#include <map>
#include <set>

#include "making.h"

namespace piper {

void explain_copies(const Dag& dag, Explanations& explain) {
  const auto last = std::find_if(explain.rbegin(), explain.rend(), [](const Explanation& each) {
    return each.directive == "precision";
  });
  if (dag.copies.empty() || last == explain.rend()) return;
  std::set<ValueId> masters;
  int64_t bytes = 0;
  for (const Copy& copy : dag.copies) {
    masters.insert(copy.master);
    bytes += dag.graph.value(copy.copy).type.bytes();
  }
  last->lines.push_back(fmt::format(
      "{} parameters are kept in 16 bits, too, {} more: the update rounds them, no pass",
      masters.size(), human_bytes(bytes)));
}

void explain_versions(const Dag& dag, const Strategy& strategy, Explanations& explain) {
  if (dag.versions.empty()) return;
  std::map<ValueId, ValueId> master_of;  // of copies and older versions
  for (const Copy& copy : dag.copies) master_of[copy.copy] = copy.master;
  std::set<ValueId> kept;
  int64_t bytes = 0;
  for (auto version = dag.versions.rbegin(); version != dag.versions.rend(); ++version)
    if (dag.graph.value(version->newest).type.dtype != DType::kI64) {  // no number of the step
      const ValueId master = master_of.try_emplace(version->newest, version->newest).first->second;
      master_of[version->previous] = master;
      kept.insert(master);
      bytes += dag.graph.value(version->newest).type.bytes();
    }
  const int64_t versions = strategy.weight_versions;
  explain.push_back(
      {strategy.weight_versions_at,
       "weight_versions",
       {fmt::format("{} parameters are kept {}, {} more; gradients are taken at "
                    "the weights before the last {}",
                    kept.size(), versions == 2 ? "twice" : fmt::format("{} times", versions),
                    human_bytes(bytes),
                    versions == 2 ? "update" : fmt::format("{} updates", versions - 1))}});
  if (versions > 2)
    explain.back().lines.push_back(
        "steps overlap by one at most: no order begins a step two or more ahead");
}

Status explain_plans(const Lowered& lowered, Making& making) {
  if (making.is_oracle()) return ok_status();
  const Strategy& strategy = making.strategy;
  const bool delays = strategy.weight_versions > 1;
  if (lowered.twice.values > 0)
    making.explain().push_back(
        {delays ? strategy.weight_versions_at : strategy.orders.front().at,
         delays ? "weight_versions" : "order",
         {fmt::format("{} values of a step have two buffers, {} more: the next step begins them "
                      "before this one has done with them",
                      lowered.twice.values, human_bytes(lowered.twice.bytes))}});
  for (const CreditCount& count : lowered.credits)
    for (const StreamRule& rule : making.strategy.streams)
      if (rule.credit && (rule.name == count.stream || rule.name.find('{') != rule.name.npos))
        making.explain().push_back(
            {rule.credit_at,
             "stream",
             {fmt::format(
                 "'{}': {} sums over replicas, {} of them before some whose terms are there "
                 "earlier",
                 count.stream, count.messages, count.early)}});
  for (size_t o = 0; o < lowered.offloads.size(); ++o) {
    const OffloadCount& count = lowered.offloads[o];
    PIPER_ASSIGN(Explanation report, explain_offload(making.strategy.offloads[o], count.values,
                                                     count.bytes, count.stay));
    making.explain().push_back(std::move(report));
  }
  for (const RoleProgram& role : lowered.roles)
    making.compiled.instructions += static_cast<int64_t>(role.body.size());
  return ok_status();
}

}  // namespace piper
