// The costs of ops, regions and messages on the devices that a strategy places them on.
#pragma once

#include "piper/devices/device_costs.h"
#include "piper/planner/directives.h"

namespace piper {

struct MessageTime {
  double latency = 0, of_byte = 0;  // seconds
};

class JobCosts {
 public:
  // No devices (null): nothing is known of them.
  JobCosts(const DeviceCosts* devices, const Strategy& strategy, const Cut& cut,
           const Variables& variables);

  const DeviceCosts* devices() const { return devices_; }
  const Strategy& strategy() const { return strategy_; }
  const Cut& cut() const { return cut_; }

  // Returns the coordinates that the strategy gives to ops with these tags, -1 where it gives none;
  // of an expression that cannot be evaluated, too: `place` says why.
  std::vector<int32_t> place_of(const Graph& graph, const std::vector<int32_t>& tags) const;
  // Returns the kinds of devices that have these coordinates, each once.
  std::vector<int32_t> kinds_at(const std::vector<int32_t>& coordinates) const;
  // Returns what a message takes from the first rank with these coordinates to the first with
  // those; nothing where it is the same one. Requires devices.
  MessageTime message(const std::vector<int32_t>& from, const std::vector<int32_t>& to) const;

  // Returns what an op takes, by itself, on the kind of device. Ops that only move elements take
  // nothing: others read these where they are. `products`: the type of floats in products that are
  // in f32; nothing: as they are.
  Result<double> seconds(const Graph& graph, const Node& node, int32_t kind,
                         std::optional<DType> products = {}) const;
  // Returns what the ops of its gradient take there, if all operands that can have one want it.
  // `is_read` says by value whether an op reads it; others have no adjoint.
  Result<double> seconds_of_gradient(const Graph& graph, const Node& node, int32_t kind,
                                     const std::vector<bool>& is_read,
                                     std::optional<DType> products = {}) const;
  // Returns what an op takes on the slowest of some kinds.
  Result<double> seconds(const Graph& graph, const Node& node,
                         const std::vector<int32_t>& kinds) const;

 private:
  int64_t first_rank(const std::vector<int32_t>& coordinates) const;

  const DeviceCosts* devices_;
  const Strategy& strategy_;
  const Cut cut_;
  const Variables variables_;
  const Mesh mesh_;
  std::vector<int32_t> kind_of_;  // by rank
  bool alike_ = true;             // all of them are
};

}  // namespace piper
