// What reports say of a cluster beside times: memory and peaks.
#include <algorithm>
#include <map>

#include "piper/inspect/cluster.h"

namespace piper {
namespace {

// Returns the type of most products: the one whose peak counts.
DType type_of_products(const PlanSet& set) {
  std::map<DType, int64_t> counts;
  for (const RoleProgram& role : set.roles)
    for (const Program& program : role.programs)
      for (const auto& [type, count] : program.work.products) counts[type] += count;
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? DType::kF32 : most->first;
}

}  // namespace

MachineFacts facts_of(const Cluster& cluster, const PlanSet& set) {
  MachineFacts facts;
  facts.name = cluster.path.substr(cluster.path.rfind('/') + 1);
  const DType type = type_of_products(set);
  for (int64_t rank = 0; rank < std::min(set.world(), cluster.size()); ++rank) {
    const ClusterDevice& device = cluster.device_of(rank);
    const double memory = device.memory - device.reserve;
    if (device.memory > 0) facts.memory = rank == 0 ? memory : std::min(facts.memory, memory);
    facts.peak_flops += device.flops[static_cast<size_t>(type)];
  }
  return facts;
}

}  // namespace piper
