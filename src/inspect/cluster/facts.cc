// What reports say of a cluster beside times: memory and peaks.
#include <algorithm>

#include "piper/inspect/cluster.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

// Returns the time that the program's products take at the device's peaks.
double least_time(const ClusterDevice& device, const MeasuredTimes::Measured& program) {
  double time = 0;
  for (const PassWork& pass : program.work)
    for (const OpWork& product : pass.products)
      if (const double peak = device.flops[static_cast<size_t>(product.dtype)]; peak > 0)
        time += product.flops / peak;
  return time;
}

std::optional<std::string> faster_than_peak(const ClusterDevice& device,
                                            const MeasuredTimes& profile) {
  constexpr double kClock = 1.02;  // what times may be off by
  int64_t count = 0;
  double most = 0;
  for (const MeasuredTimes::Measured& program : profile.programs) {
    const double least = least_time(device, program);
    if (program.median <= 0 || least <= kClock * program.median) continue;
    ++count;
    most = std::max(most, least / program.median);
  }
  if (count == 0) return std::nullopt;
  return fmt::format(
      "{} of {} measured programs run faster than the peak of the device '{}' allows, one {:.1f} "
      "times: its 'flops' are too low, or the profile is of another device",
      count, profile.programs.size(), device.name, most);
}

}  // namespace

MachineFacts facts_of(const Cluster& cluster, const PlanSet& set, const MeasuredTimes* profile) {
  MachineFacts facts;
  facts.name = cluster.path.substr(cluster.path.rfind('/') + 1);
  std::vector<DType> types;
  for (const RoleProgram& role : set.roles) {
    const Result<DType> type = type_of_products(role);
    types.push_back(type ? *type : DType::kF32);
  }
  for (int64_t rank = 0; rank < std::min(set.world(), cluster.size()); ++rank) {
    const ClusterDevice& device = cluster.device_of(rank);
    const double memory = device.memory - device.reserve;
    const auto role = static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)]);
    const auto peak = static_cast<double>(set.roles[role].peak_bytes());
    if (rank == 0 || memory - peak < facts.memory - facts.peak_bytes)
      facts.memory = memory, facts.peak_bytes = peak;
    facts.peak_flops += device.flops[static_cast<size_t>(types[role])];
  }
  if (profile) {
    facts.notes = profile->notes;
    if (auto note = faster_than_peak(cluster.device_of(0), *profile))
      facts.notes.push_back(*std::move(note));
  }
  return facts;
}

}  // namespace piper
