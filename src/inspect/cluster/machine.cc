// The machine of a cluster: costs of a rank's instructions, by what its device and links take.
#include <algorithm>
#include <set>

#include "fit.h"
#include "flat_copies.h"
#include "piper/base/parallel.h"

namespace piper {
namespace {

using namespace cluster;  // NOLINT: this room's own

class ClusterMachine : public Machine {
 public:
  // Requires: the cluster has a device for each rank.
  ClusterMachine(const Cluster& cluster, const PlanSet& set, const MeasuredTimes* profile)
      : cluster_(cluster),
        profile_(profile ? std::optional(*profile) : std::nullopt),
        topology_(cluster_, std::max(set.world(), std::min(cluster.size(), kMostOfProfile))),
        transfers_(cluster_, topology_, profile_ ? &*profile_ : nullptr),
        places_(topology_.places(set)) {}

  Status prepare(const PlanSet& set) {
    for (const ClusterDevice& device : cluster_.devices) {
      PIPER_ASSIGN(programs_.emplace_back(),
                   ProgramTimes::make(device, profile_ ? &*profile_ : nullptr));
    }
    PIPER_ASSIGN(const BackendKind* target,
                 find_target(cluster_.devices[at(topology_.device_of(0))].target));
    for (int64_t rank = 0; rank < set.world(); ++rank) {
      used_.insert({set.role_of_rank[at(rank)], topology_.device_of(rank)});
    }
    sends_wait = streams_ = target->ranks_streams;
    return time_programs(set);
  }

  int64_t place_of(const PlanSet&, int64_t rank) const override { return places_[at(rank)]; }

  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    const int32_t number = set.role_of_rank[at(rank)];
    const auto known = roles_.find({number, topology_.device_of(rank)});
    PIPER_CHECK(known != roles_.end(), "the machine is that of another plan set");
    const Rank of{set.roles[at(number)], known->second,
                  cluster_.devices[at(topology_.device_of(rank))], rank,
                  coordinates_of(set.roles[at(number)].mesh, rank)};
    RankCosts costs;
    costs.lanes = lanes_of(of.device);
    costs.prologue = costs_in(of, of.role.prologue);
    costs.body = costs_in(of, of.role.body);
    costs.epilogue = costs_in(of, of.role.epilogue);
    costs.slowed = of.device.slowed;
    costs.between_steps = of.device.between_steps;
    if (!costs.body.empty()) {
      StepCost& first = costs.body.front();
      (of.role.body.front().kind == InstructionKind::kCompute ? first.device : first.lane) +=
          of.timed.before;
    }
    return costs;
  }

 private:
  struct TimedRole {
    std::vector<KnownTime> programs;
    double before = 0;  // what the backend does in front of a body
  };
  struct Rank {
    const RoleProgram& role;
    const TimedRole& timed;
    const ClusterDevice& device;
    int64_t rank = 0;
    std::vector<int64_t> own;  // coordinates
    mutable std::map<std::pair<int32_t, std::vector<int32_t>>, Spread> spreads = {};
  };

  // ---- Programs ----
  Status time_programs(const PlanSet& set) {
    const std::vector<std::pair<int32_t, int32_t>> pairs(used_.begin(), used_.end());
    std::vector<Result<TimedRole>> timed(pairs.size(), TimedRole{});
    in_parallel(pairs.size(), [&](size_t p) {
      timed[p] = time_role(set.roles[at(pairs[p].first)], pairs[p].second);
    });
    for (size_t p = 0; p < pairs.size(); ++p) {
      PIPER_ASSIGN(roles_[pairs[p]], std::move(timed[p]));
    }
    return ok_status();
  }
  Result<TimedRole> time_role(const RoleProgram& role, int32_t device) const {
    const TargetRole runs = for_its_target(role);
    TimedRole timed;
    for (size_t p = 0; p < role.programs.size(); ++p) {
      PIPER_ASSIGN(timed.programs.emplace_back(),
                   programs_[at(device)].of(role.programs[p], runs.programs[p]));
    }
    const size_t added = runs.role.body.size() - role.body.size();
    for (size_t i = 0; i < added; ++i) {
      const Tensor& made = runs.role.tensor(runs.role.body[i].args.back());
      timed.before +=
          transfers_.prepared(cluster_.devices[at(device)], static_cast<double>(made.type.bytes()))
              .seconds;
    }
    return timed;
  }

  // ---- Instructions ----
  RankLanes lanes_of(const ClusterDevice& device) const {
    if (streams_) return RankLanes::kStreams;
    return (profile_ ? profile_->helper : device.helper) ? RankLanes::kTwoThreads
                                                         : RankLanes::kThread;
  }
  std::vector<StepCost> costs_in(const Rank& of, const std::vector<Instruction>& section) const {
    std::vector<StepCost> costs;
    const double host = profile_ && profile_->host ? *profile_->host : of.device.issue;
    const std::vector<double> copies = copy_times(of.device, of.role, section);
    for (const Instruction& one : section) {
      StepCost& cost = costs.emplace_back(cost_of(of, one));
      (one.kind == InstructionKind::kCompute ? cost.device : cost.lane) += copies[costs.size() - 1];
      if (streams_)
        cost.host = host;
      else
        (one.kind == InstructionKind::kCompute ? cost.device : cost.lane) += host;
    }
    return costs;
  }
  StepCost cost_of(const Rank& of, const Instruction& one) const {
    StepCost cost;
    if (one.kind == InstructionKind::kCompute) {
      const KnownTime& known = of.timed.programs[at(one.program)];
      cost.device = known.seconds;
      cost.origin = known.origin;
      return cost;
    }
    const bool is_message =
        one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv;
    if (!is_message && !is_collective(one.kind)) {
      const KnownTime known = transfers_.local(of.device, of.role, one);
      cost.lane = known.seconds;
      cost.origin = known.origin;
      return cost;
    }
    const auto bytes = static_cast<double>(bytes_through(of.role, one));
    const Spread& spread = spread_of(of, one);
    const TransferTimes::Time time = transfers_.of(spread, of.device, one, bytes);
    cost.origin = time.origin;
    if (is_message && !streams_ && spread.levels.size() == 1)
      return copied_message(cost, one, time.way, bytes);
    cost.lane = time.way.sum;
    cost.latency = time.way.latency;
    cost.wire = time.way.wire;
    cost.links = time.way.links;
    return cost;
  }
  // Returns the members of its group, or the two ends of a message.
  const Spread& spread_of(const Rank& of, const Instruction& one) const {
    const auto [known, is_new] = of.spreads.try_emplace({one.group, one.peer});
    if (is_new)
      known->second =
          one.group < 0
              ? topology_.spread_of(std::array{of.rank, peer_rank(of.role, one.peer, of.own)})
              : topology_.spread_of(group_ranks(of.role, of.role.groups[at(one.group)], of.own));
    return known->second;
  }
  // Returns the cost of a message between threads of one machine: the receiver copies it when both
  // are there.
  StepCost copied_message(StepCost cost, const Instruction& one, const Way& way,
                          double bytes) const {
    if (one.kind == InstructionKind::kRecv) {
      cost.lane = way.total();
      return cost;
    }
    const KnownTime known = transfers_.send(bytes);
    cost.lane = known.seconds;
    cost.origin = known.origin;
    return cost;
  }

  static constexpr int64_t kMostOfProfile = 4096;  // ranks that a profile may be of
  const Cluster cluster_;
  const std::optional<MeasuredTimes> profile_;
  const Topology topology_;
  const TransferTimes transfers_;
  const std::vector<int64_t> places_;
  bool streams_ = false;                        // of all devices, as they have one target
  std::vector<ProgramTimes> programs_;          // by kind of device
  std::set<std::pair<int32_t, int32_t>> used_;  // roles on kinds of devices
  std::map<std::pair<int32_t, int32_t>, TimedRole> roles_;
};

Status check_target(const Cluster& cluster, const PlanSet& set, const MeasuredTimes* profile) {
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const ClusterDevice& device = cluster.device_of(rank);
    const std::string& target = set.roles[at(set.role_of_rank[at(rank)])].target;
    if (device.target != target)
      return fail(device.at, "the device '{}' runs plans for {}, but these are for {}", device.name,
                  device.target, quote_control(target))
          .with_note(fmt::format("help: compile with --target {}, or name another cluster",
                                 device.target));
  }
  for (const ClusterDevice& device : cluster.devices)
    if (profile && device.per_op > 0)
      return fail(device.at,
                  "the device '{}' runs op by op ('per_op'), but the profile is of programs whose "
                  "ops share passes",
                  device.name)
          .with_note("help: leave out the profile, or 'per_op'");
  for (const ClusterDevice& device : cluster.devices)
    if (profile && device.copies.any())
      return fail(device.at,
                  "the device '{}' copies as a framework does ('copies'), but the profile is of "
                  "programs that do not",
                  device.name)
          .with_note("help: leave out the profile, or 'copies'");
  const std::string& target = set.roles[at(set.role_of_rank[0])].target;
  if (profile && profile->target != target)
    return fail(SourceSpan{profile->path}, "the profile is of plans for {}, but these are for {}",
                quote_control(profile->target), quote_control(target));
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Machine>> cluster_machine(const Cluster& cluster, const PlanSet& set,
                                                 const MeasuredTimes* profile) {
  PIPER_TRY(has_devices(cluster, set.world()));
  PIPER_TRY(check_target(cluster, set, profile));
  auto machine = std::make_unique<ClusterMachine>(cluster, set, profile);
  PIPER_TRY(machine->prepare(set));
  return std::unique_ptr<Machine>(std::move(machine));
}

}  // namespace piper
