// weight_versions: how many versions of each parameter are kept.
#include <algorithm>
#include <set>

#include "match.h"

namespace piper {
namespace {

// Gives the ops that the entry matches its number; fails if another entry has done so.
Status give_versions(const Graph& step, const WeightVersions& entry, const Variables& variables,
                     std::vector<const WeightVersions*>& claimed_by,
                     std::vector<int64_t>& versions) {
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
  return ok_status();
}

// Returns by node how many versions entries say of what it reads; 0: none speaks of it.
Result<std::vector<int64_t>> versions_by_node(const Graph& step,
                                              const std::vector<WeightVersions>& entries,
                                              const Variables& variables) {
  std::vector<int64_t> versions(step.nodes.size());
  std::vector<const WeightVersions*> claimed_by(step.nodes.size());
  for (const WeightVersions& entry : entries) {
    PIPER_TRY(give_versions(step, entry, variables, claimed_by, versions));
  }
  return versions;
}

}  // namespace

Result<std::map<std::string, int64_t>> versions_of(const Graph& step,
                                                   const std::vector<WeightVersions>& entries,
                                                   const Variables& variables, Explanations& out) {
  std::map<std::string, int64_t> result;
  if (entries.empty()) return result;
  PIPER_ASSIGN(const std::vector<int64_t> by_node, versions_by_node(step, entries, variables));
  int64_t least = 1;  // of all, whoever reads them
  for (const WeightVersions& entry : entries)
    if (entry.where.empty()) {
      PIPER_ASSIGN(least, entry.versions.evaluate(variables));
    }
  Explanation report{entries[0].at, "weight_versions", {}};
  const std::vector<std::vector<NodeId>> all = readers(step);
  for (const Param& param : step.params) {
    if (!param.gradient.valid()) continue;
    std::set<int64_t> said;
    for (const NodeId reader : all[param.value.index()])
      if (step.node(reader).pass == Pass::kF)
        said.insert(std::max(by_node[reader.index()], int64_t{1}));
    const int64_t most = said.empty() ? least : *said.rbegin();
    if (most > 1) result.emplace(param.name, most);
    if (said.size() > 1)
      report.lines.push_back(fmt::format(
          "'{}' has {} versions on all devices, though some of its readers ask for {} only",
          param.name, most, *said.begin()));
  }
  if (!report.lines.empty()) out.push_back(std::move(report));
  return result;
}

}  // namespace piper
