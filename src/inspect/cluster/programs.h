// What programs take on a device: pass by pass, by peaks and bandwidths. Private to the room.
#pragma once

#include "piper/devices/registry.h"
#include "piper/inspect/cluster.h"

namespace piper::cluster {

// Holds times of a program by what they are spent on: a cluster file says what each is, and a
// profile by what factor it is off.
enum Part : uint8_t { kProducts, kAttentions, kCached, kMemory, kPasses };
inline constexpr size_t kParts = 5;
using Parts = std::array<double, kParts>;
struct ProgramTime {
  Parts parts = {};
  double least = 0;  // at full rates
  double total() const;
};
// Error: products of a type that the device has no rate for.
Result<ProgramTime> time_on(const ClusterDevice& device, std::span<const PassWork> passes,
                            std::string_view label);

// Returns what one product, or an attention, takes beside its launch.
Result<double> product_time(const ClusterDevice& device, const OpWork& work);

}  // namespace piper::cluster
