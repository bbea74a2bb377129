// Nodes and levels of ranks, how groups are spread over them, and which ranks are placed alike.
#include "topology.h"

#include <algorithm>
#include <set>

namespace piper::cluster {
namespace {

// Numbers what differs, in the order in which it comes.
template <class Key>
class Numbers {
 public:
  int64_t of(Key key) {
    return known_.try_emplace(std::move(key), static_cast<int64_t>(known_.size())).first->second;
  }

 private:
  std::map<Key, int64_t> known_;
};

// Lists what the instructions of a role reach.
struct Reached {
  std::set<std::vector<int32_t>> groups;  // axes
  std::set<std::vector<int32_t>> peers;   // coordinates, -1: its own
};
Reached reached_by(const RoleProgram& role) {
  Reached reached;
  for (const Group& group : role.groups) reached.groups.insert(group.axes);
  for (const auto* section : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *section)
      if (!one.peer.empty()) reached.peers.insert(one.peer);
  return reached;
}

}  // namespace

Topology::Topology(const Cluster& cluster, int64_t world) : cluster_(cluster) {
  units_.resize(cluster.levels.size() + 1);
  int64_t node = 0;
  for (const Cluster::Nodes& range : cluster.nodes)
    for (int64_t n = 0; n < range.count; ++n, ++node)
      for (int64_t d = 0; d < range.devices; ++d) {
        if (std::ssize(devices_) == world) return;
        devices_.push_back(range.device);
        links_.push_back(range.link);
        units_[0].push_back(node);
        for (size_t l = 0; l < cluster.levels.size(); ++l)
          units_[l + 1].push_back(node / cluster.levels[l].nodes);
      }
}

Spread Topology::spread_of(std::span<const int64_t> ranks) const {
  Spread spread;
  spread.members = std::ssize(ranks);
  for (size_t l = 0; l < units_.size(); ++l) {
    std::map<int64_t, int64_t> members;  // by unit
    for (const int64_t rank : ranks) ++members[units_[l][at(rank)]];
    Spread::Level& level = spread.levels.emplace_back();
    level.units = std::ssize(members);
    level.least = level.most = members.begin()->second;
    for (const auto& [unit, count] : members) {
      level.least = std::min(level.least, count);
      level.most = std::max(level.most, count);
    }
    level.link = l == 0 ? links_[at(ranks[0])] : cluster_.levels[l - 1].link;
    for (const int64_t rank : ranks)
      if (l == 0 &&
          cluster_.links[at(links_[at(rank)])].bandwidth < cluster_.links[at(level.link)].bandwidth)
        level.link = links_[at(rank)];
    if (level.units == 1) break;
  }
  return spread;
}

std::vector<int64_t> Topology::places(const PlanSet& set) const {
  std::vector<Reached> reached;
  for (const RoleProgram& role : set.roles) reached.push_back(reached_by(role));
  Numbers<Spread> spreads;
  std::map<std::vector<int32_t>, std::vector<int64_t>> spread_at;  // by axes: by first member
  Numbers<std::vector<int64_t>> numbers;
  std::vector<int64_t> places;
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const int32_t number = set.role_of_rank[at(rank)];
    const RoleProgram& role = set.roles[at(number)];
    const std::vector<int64_t> own = coordinates_of(role.mesh, rank);
    std::vector<int64_t> key{device_of(rank)};
    for (const std::vector<int32_t>& axes : reached[at(number)].groups) {
      std::vector<int64_t> first = own;
      for (const int32_t axis : axes) first[at(axis)] = 0;
      std::vector<int64_t>& known = spread_at[axes];
      known.resize(at(set.world()), -1);
      int64_t& spread = known[at(rank_of(role.mesh, first))];
      if (spread < 0) spread = spreads.of(spread_of(group_ranks(role, {"", axes}, own)));
      key.push_back(spread);
    }
    for (const std::vector<int32_t>& peer : reached[at(number)].peers)
      key.push_back(spreads.of(spread_of(std::array{rank, peer_rank(role, peer, own)})));
    places.push_back(numbers.of(std::move(key)));
  }
  return places;
}

}  // namespace piper::cluster
