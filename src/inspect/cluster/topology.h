// Where ranks are: which nodes and levels members of a group share. Private to the room.
#pragma once

#include <map>

#include "piper/inspect/cluster.h"

namespace piper::cluster {

inline size_t at(int64_t index) { return static_cast<size_t>(index); }

// Says how the members of a group are spread, by level: nodes, then what the file calls levels.
struct Spread {
  int64_t members = 1;
  struct Level {
    int64_t units = 1;            // that have members
    int64_t least = 1, most = 1;  // members of one of them
    int32_t link = -1;            // within the units; of several the slowest
    auto operator<=>(const Level&) const = default;
  };
  std::vector<Level> levels;  // up to the first that has all of them in one unit
  auto operator<=>(const Spread&) const = default;
};

// Error: the cluster has fewer devices.
Status has_devices(const Cluster& cluster, int64_t ranks);

class Topology {
 public:
  // Requires: the cluster has so many devices.
  Topology(const Cluster& cluster, int64_t world);

  int64_t ranks() const { return std::ssize(devices_); }
  int32_t device_of(int64_t rank) const { return devices_[static_cast<size_t>(rank)]; }
  Spread spread_of(std::span<const int64_t> ranks) const;
  // Returns by rank a number, which ranks of one role share if they have one kind of device, groups
  // that are spread alike, and peers behind the same links.
  std::vector<int64_t> places(const PlanSet& set) const;

 private:
  const Cluster& cluster_;
  std::vector<int32_t> devices_, links_;     // by rank: its kind, and the link of its node
  std::vector<std::vector<int64_t>> units_;  // by level and rank
};

}  // namespace piper::cluster
