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
  if (strategy.weight_versions.empty() || dag.versions.empty()) return;
  std::map<ValueId, ValueId> master_of;                   // of copies
  std::map<ValueId, std::pair<ValueId, int64_t>> age_of;  // of older versions: their newest
  for (const Copy& copy : dag.copies) master_of[copy.copy] = copy.master;
  std::map<ValueId, std::pair<int64_t, int64_t>> kept;  // by parameter: the oldest, bytes
  for (auto version = dag.versions.rbegin(); version != dag.versions.rend(); ++version) {
    if (dag.graph.value(version->newest).type.dtype == DType::kI64) continue;  // of the step
    const auto newer = age_of.find(version->newest);
    const auto [newest, age] =
        newer == age_of.end() ? std::pair(version->newest, int64_t{0}) : newer->second;
    age_of[version->previous] = {newest, age + 1};
    auto& [oldest, bytes] = kept[master_of.try_emplace(newest, newest).first->second];
    oldest = std::max(oldest, age + 1);
    bytes += dag.graph.value(newest).type.bytes();
  }
  std::map<int64_t, std::pair<int64_t, int64_t>, std::greater<>> of_age;  // parameters, bytes
  for (const auto& [param, one] : kept)
    ++of_age[one.first].first, of_age[one.first].second += one.second;
  Explanation report{strategy.weight_versions[0].at, "weight_versions", {}};
  for (const auto& [oldest, all] : of_age)
    report.lines.push_back(fmt::format(
        "{} parameters are kept {}, {} more; gradients are taken at "
        "the weights before the last {}",
        all.first, oldest == 1 ? "twice" : fmt::format("{} times", oldest + 1),
        human_bytes(all.second), oldest == 1 ? "update" : fmt::format("{} updates", oldest)));
  explain.push_back(std::move(report));
}

Status explain_plans(const Lowered& lowered, Making& making) {
  if (making.is_oracle()) return ok_status();
  const Strategy& strategy = making.strategy;
  const bool delays = !strategy.weight_versions.empty();
  if (lowered.twice.values > 0)
    making.explain().push_back(
        {delays ? strategy.weight_versions[0].at : strategy.orders.front().at,
         delays ? "weight_versions" : "order",
         {lowered.roles[0].steps_ahead == 1
              ? fmt::format("{} values of a step have two buffers, {} more: the next step begins "
                            "them before this one has done with them",
                            lowered.twice.values, human_bytes(lowered.twice.bytes))
              : fmt::format("values of a step have {} buffers more, {}: later steps begin them "
                            "before this one has done with them",
                            lowered.twice.values, human_bytes(lowered.twice.bytes))}});
  const auto is_named = [](const std::string& stream, const std::string& name) {
    const size_t variable = name.find('{');
    return stream == name ||
           (variable != name.npos && stream.starts_with(name.substr(0, variable)));
  };
  for (const CreditCount& count : lowered.credits)
    for (const StreamRule& rule : making.strategy.streams)
      if (rule.credit && is_named(count.stream, rule.name))
        making.explain().push_back(
            {rule.credit_at,
             "stream",
             {fmt::format("'{}': {} sums over replicas, of which {} overtake one that was ready "
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
