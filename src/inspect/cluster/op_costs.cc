// Single ops and messages on a cluster, for the compiler: as programs and sends of plans take.
#include <algorithm>
#include <mutex>

#include "fit.h"

namespace piper {
namespace {

using namespace cluster;  // NOLINT: this room's own

class ClusterCosts : public DeviceCosts {
 public:
  ClusterCosts(const Cluster& cluster, const MeasuredTimes* profile)
      : cluster_(cluster),
        profile_(profile ? std::optional(*profile) : std::nullopt),
        topology_(cluster_, cluster_.size()),
        transfers_(cluster_, topology_, profile_ ? &*profile_ : nullptr) {}

  Status prepare() {
    for (const ClusterDevice& device : cluster_.devices) {
      PIPER_ASSIGN(programs_.emplace_back(),
                   ProgramTimes::make(device, profile_ ? &*profile_ : nullptr));
    }
    return ok_status();
  }

  Status check_world(int64_t ranks) const override { return has_devices(cluster_, ranks); }
  int32_t kind_of(int64_t rank) const override { return topology_.device_of(rank); }
  std::string name_of(int32_t kind) const override { return cluster_.devices[at(kind)].name; }
  double memory_of(int32_t kind) const override {
    const ClusterDevice& device = cluster_.devices[at(kind)];
    return std::max(0.0, device.memory - device.reserve);
  }

  Result<double> seconds_of(int32_t kind, const Program& op) const override {
    const std::pair<int32_t, std::string> key(kind, program_digest(op));
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = seconds_.find(key); known != seconds_.end()) return known->second;
    }
    FuseCounts counts;
    PIPER_ASSIGN(const KnownTime time, programs_[at(kind)].of(op, fuse(op, counts)));
    const std::lock_guard lock(mutex_);
    return seconds_[key] = time.seconds;
  }

  double message_seconds(int64_t from, int64_t to, double bytes) const override {
    Instruction send;
    send.kind = InstructionKind::kSend;
    return transfers_
        .of(topology_.spread_of(std::array{from, to}),
            cluster_.devices[at(topology_.device_of(from))], send, bytes)
        .way.total();
  }

 private:
  const Cluster cluster_;
  const std::optional<MeasuredTimes> profile_;
  const Topology topology_;
  const TransferTimes transfers_;
  std::vector<ProgramTimes> programs_;  // by kind of device
  mutable std::mutex mutex_;
  mutable std::map<std::pair<int32_t, std::string>, double> seconds_;  // by kind and digest
};

}  // namespace

Status cluster::has_devices(const Cluster& cluster, int64_t ranks) {
  if (ranks > cluster.size())
    return fail(cluster.at, "the cluster has {} devices, but the plans are for {} ranks",
                cluster.size(), ranks)
        .with_note(
            "help: more 'devices' in its nodes, or a larger 'count' of these; or name another "
            "cluster");
  return ok_status();
}

Result<std::shared_ptr<const DeviceCosts>> cluster_costs(const Cluster& cluster,
                                                         const MeasuredTimes* profile) {
  auto costs = std::make_shared<ClusterCosts>(cluster, profile);
  PIPER_TRY(costs->prepare());
  return std::shared_ptr<const DeviceCosts>(std::move(costs));
}

}  // namespace piper
