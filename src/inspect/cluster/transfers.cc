// Messages and collectives by latency and bandwidth of the links that members share.
//
// All-reduces of a library go round a ring, or up and down two trees of which each moves a half
// (Sanders et al., 2009, Two-tree algorithms for full bandwidth broadcast, reduction and scan);
// what the executor does itself is an exchange of blocks between all members.
#include "transfers.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace piper::cluster {
namespace {

// A link that several levels name is one port of a device, which takes the bytes of all of them.
class Ports {
 public:
  explicit Ports(const Cluster& cluster) : cluster_(cluster), seconds_(cluster.links.size()) {}
  void add(int32_t link, double bytes) {
    if (bytes <= 0) return;
    seconds_[at(link)] += bytes / cluster_.links[at(link)].bandwidth;
    latency_ = std::max(latency_, cluster_.links[at(link)].latency);
  }
  // Returns the way of bytes that move over all links at one time: the slowest one decides.
  Way way() const {
    Way way{latency_, std::ranges::max(seconds_)};
    for (size_t l = 0; l < seconds_.size(); ++l)
      if (seconds_[l] > 0) way.links.push_back({static_cast<int32_t>(l), seconds_[l] / way.wire});
    return way;
  }

 private:
  const Cluster& cluster_;
  std::vector<double> seconds_;
  double latency_ = 0;
};

// Returns the way of an exchange: each member sends an equal part of `bytes` to each other member,
// over the node's link within a node, and over the link of a level to members of other units there.
Way exchange(const Cluster& cluster, const Spread& group, double bytes) {
  Ports ports(cluster);
  const auto members = static_cast<double>(group.members);
  int64_t below = 1;
  for (const Spread::Level& level : group.levels) {
    ports.add(level.link, bytes * static_cast<double>(level.most - below) / members);
    below = level.least;
  }
  return ports.way();
}

// Returns the way of a ring in which `bytes` pass each member. Where a unit has several members,
// there are as many rings, each of which leaves the unit by the port of another member.
Way ring(const Cluster& cluster, const Spread& group, double bytes, double rounds) {
  std::map<int32_t, double> seconds;  // by link; of one of several levels those of the slowest
  Way way;
  int64_t units = group.members, least = 1;
  for (const Spread::Level& level : group.levels) {
    if (units > level.units) {
      const ClusterLink& link = cluster.links[at(level.link)];
      const double wire = bytes / (static_cast<double>(least) * link.bandwidth);
      way.wire = std::max(way.wire, wire);
      seconds[level.link] = std::max(seconds[level.link], wire);
      way.latency += rounds * static_cast<double>(units - level.units) * link.latency;
    }
    units = level.units;
    least = level.least;
  }
  for (const auto& [link, wire] : seconds)
    if (wire > 0) way.links.push_back({link, wire / way.wire});
  return way;
}

// Returns the way up and down the trees: all of the bytes pass each member in both directions.
Way trees(const Cluster& cluster, const Spread& group, double bytes) {
  Way way = ring(cluster, group, 2 * bytes, 0);
  int64_t units = group.members;
  for (const Spread::Level& level : group.levels) {
    const double fan = static_cast<double>(units) / static_cast<double>(level.units);
    way.latency += 2 * std::ceil(std::log2(fan)) * cluster.links[at(level.link)].latency;
    units = level.units;
  }
  return way;
}

// Returns the way of a message from each member to the next one. It uses the port of one level, and
// the slowest pair of neighbours counts.
Way neighbours(const Cluster& cluster, const Spread& group, double bytes) {
  Way slowest;
  int64_t units = group.members;
  for (const Spread::Level& level : group.levels) {
    if (units > level.units) {
      Ports port(cluster);
      port.add(level.link, bytes);
      Way way = port.way();
      if (way.total() > slowest.total()) slowest = std::move(way);
    }
    units = level.units;
  }
  return slowest;
}

// Returns how long a sum takes that the library adds up itself.
Way fast_sum(const Cluster& cluster, const Spread& group, InstructionKind kind, double bytes) {
  const auto members = static_cast<double>(group.members);
  const double part = bytes * (members - 1) / members;
  if (kind == InstructionKind::kReduceScatter) return ring(cluster, group, part, 1);
  const Way a = ring(cluster, group, 2 * part, 2), b = trees(cluster, group, bytes);
  return a.total() <= b.total() ? a : b;
}

}  // namespace

Way message_way(const Cluster& cluster, const Spread& pair, double bytes) {
  return neighbours(cluster, pair, bytes);
}

double moved_bytes(InstructionKind kind, double bytes, double members) {
  const double others = (members - 1) / members;
  switch (kind) {
    case InstructionKind::kAllReduce:
      return 2 * others * bytes;
    case InstructionKind::kReduceScatter:
    case InstructionKind::kAllGather:
    case InstructionKind::kAllToAll:
      return others * bytes;
    case InstructionKind::kDispatch:  // of an equal part of all rows, those that others own
    case InstructionKind::kCombine:
      return others * bytes / members;
    default:
      return bytes;
  }
}

Way collective_way(const Cluster& cluster, const Spread& group, const ClusterDevice& device,
                   const Instruction& one, double bytes) {
  if (group.members == 1) return {};
  const InstructionKind kind = one.kind;
  if (one.fast && info(kind).adds) return fast_sum(cluster, group, kind, bytes);
  if (info(kind).args == ArgForm::kTurns) return neighbours(cluster, group, bytes);
  const auto members = static_cast<double>(group.members);
  const double others = (members - 1) / members;
  // Where a library adds up it gathers, too, by a ring as that of a reduce-scatter.
  if (kind == InstructionKind::kAllGather && device.has_library)
    return ring(cluster, group, moved_bytes(kind, bytes, members), 1);
  Way way = exchange(cluster, group, moved_bytes(kind, bytes, members) / others);
  if (kind == InstructionKind::kAllReduce) way.latency *= 2;
  // Sums read a part of each member and write one.
  if (info(kind).adds) way.sum = bytes * (1 + 1 / members) / (device.bandwidth * device.of_memory);
  return way;
}

double local_time(const ClusterDevice& device, const RoleProgram& role, const Instruction& one) {
  const auto bytes = static_cast<double>(bytes_through(role, one));
  const bool crosses = way_of(role, one).find(" to ") != std::string::npos;
  if (crosses && device.host_bandwidth > 0) return device.launch + bytes / device.host_bandwidth;
  return device.launch + 2 * bytes / (device.bandwidth * device.of_memory);
}

}  // namespace piper::cluster
