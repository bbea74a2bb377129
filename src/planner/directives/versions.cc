// weight_versions: how many versions of each parameter are kept.
#include <algorithm>

#include "match.h"

namespace piper {
namespace {

// Returns by node how many versions entries say of what it reads; 0: none speaks of it.
Result<std::vector<int64_t>> versions_by_node(const Graph& step,
                                              const std::vector<WeightVersions>& entries,
                                              const Variables& variables) {
  std::vector<int64_t> versions(step.nodes.size());
  std::vector<const WeightVersions*> claimed_by(step.nodes.size());
  for (const WeightVersions& entry : entries) {
    bool found = false;
    for (size_t i = 0; i < step.nodes.size(); ++i) {
      if (step.nodes[i].pass != Pass::kF) continue;
      PIPER_ASSIGN(const auto bound, match_node(step, step.nodes[i], entry.where, variables));
      if (!bound) continue;
      found = true;
      if (const WeightVersions* other = std::exchange(claimed_by[i], &entry))
        return fail(entry.at, "weight_versions: op '{}' has a number already", step.nodes[i].name)
            .with_note("from " + place_of(other->at));
      PIPER_ASSIGN(versions[i], entry.versions.evaluate(*bound));
      if (versions[i] < 1 || versions[i] > WeightVersions::kMost)
        return fail(entry.versions.at(), "'weight_versions' must be 1 to {}, not {}",
                    WeightVersions::kMost, versions[i]);
    }
    if (!found)
      return no_ops(step, "weight_versions: matches no op", entry.at, std::nullopt, entry.where);
  }
  return versions;
}

}  // namespace

Result<std::map<std::string, int64_t>> versions_of(const Graph& step,
                                                   const std::vector<WeightVersions>& entries,
                                                   const Variables& variables) {
  std::map<std::string, int64_t> result;
  if (entries.empty()) return result;
  PIPER_ASSIGN(const std::vector<int64_t> by_node, versions_by_node(step, entries, variables));
  int64_t least = 1;  // of all, whoever reads them
  for (const WeightVersions& entry : entries)
    if (entry.where.empty()) {
      PIPER_ASSIGN(least, entry.versions.evaluate(variables));
    }
  const std::vector<std::vector<NodeId>> all = readers(step);
  for (const Param& param : step.params) {
    if (!param.gradient.valid()) continue;
    int64_t most = least;
    for (const NodeId reader : all[param.value.index()])
      if (step.node(reader).pass == Pass::kF) most = std::max(most, by_node[reader.index()]);
    if (most > 1) result.emplace(param.name, most);
  }
  return result;
}

}  // namespace piper
