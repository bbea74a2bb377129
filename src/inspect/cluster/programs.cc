// Programs by peaks: a pass takes as long as its products or its bytes, whichever is longer
// (Williams et al., 2009, Roofline), and its launch.
//
// A product is cut into tiles, which processors work through in waves: the last wave may be short
// of tiles, and tiles reach past the edges. A thin product has few tiles; its terms may be cut as
// well, whose sums are then added (NVIDIA, 2023, Matrix Multiplication Background User's Guide).
#include "programs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace piper::cluster {
namespace {

// Processors take power as the cube of their clock: voltage rises with it (Weiser et al., 1994,
// Scheduling for Reduced CPU Energy).
double clock_of(const ClusterDevice& device) {
  return device.power_limit > 0 ? std::cbrt(device.power_limit / device.power) : 1;
}

double tiles_of(double extent, int64_t side) {
  return std::ceil(extent / static_cast<double>(side));
}

double matrices_time(const ClusterDevice& device, const OpWork& work, double peak) {
  constexpr double kMostParts = 32, kSumBytes = 8;  // of a partial sum: written and read
  const double rate = peak * device.of_products / device.processors;
  const double bandwidth = device.bandwidth * device.of_memory;
  double best = std::numeric_limits<double>::infinity();
  for (const ClusterDevice::Tile& tile : device.tiles) {
    const double tiles = work.count * tiles_of(work.m, tile.rows) * tiles_of(work.n, tile.columns);
    const double of_tile = 2.0 * static_cast<double>(tile.rows * tile.columns) / tile.share;
    for (double parts = 1; parts <= kMostParts; parts *= 2) {
      if (parts > 1 && (work.k < 2 * parts * device.ramp || tiles > device.processors)) break;
      const double waves = std::ceil(tiles * parts / device.processors);
      const double sums =
          parts > 1 ? parts * kSumBytes * work.count * work.m * work.n / bandwidth : 0;
      best = std::min(best, waves * of_tile * (work.k / parts + device.ramp) / rate + sums);
    }
  }
  return best;
}

// Returns the time of an attention, whose processors each take a tile of queries over all keys.
double attention_time(const ClusterDevice& device, const OpWork& work, double peak) {
  constexpr int64_t kQueries = 128;
  const double busy = std::min(1.0, work.count * tiles_of(work.m, kQueries) / device.processors);
  const bool grad = work.kind == OpWork::kAttentionGrad;
  const double share = grad ? device.of_attention_grad : device.of_attention;
  const double scores = work.count * work.m * work.n;
  const double ramp = 1 + device.attention_ramp / std::max(work.n, 1.0);
  return (work.flops + scores * device.score * (grad ? 2.5 : 1)) * ramp / (peak * share * busy);
}

}  // namespace

double ProgramTime::total() const {
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

Result<double> product_time(const ClusterDevice& device, const OpWork& work) {
  const double peak = device.flops[static_cast<size_t>(work.dtype)];
  if (peak <= 0) {
    const std::string type = info(work.dtype).name;
    return fail(device.at, "the device '{}' has no FLOPS of {}", device.name, type)
        .with_note(fmt::format("help: add '{}' to its 'flops': the plans multiply matrices of that "
                               "type",
                               type));
  }
  const double rate = peak * clock_of(device);
  return work.kind == OpWork::kProduct ? matrices_time(device, work, rate)
                                       : attention_time(device, work, rate);
}

Result<ProgramTime> time_on(const ClusterDevice& device, std::span<const PassWork> passes,
                            std::string_view label) {
  ProgramTime time;
  for (const PassWork& pass : passes) {
    const bool cached = device.cache > 0 && pass.bytes <= device.cache;
    const double fastest = cached ? device.cache_bandwidth : device.bandwidth;
    double multiplies = 0, flops = 0;
    Part part = kProducts;
    for (const OpWork& work : pass.products) {
      auto one = product_time(device, work);
      if (!one)
        return std::move(one).error().with_note(
            fmt::format("in the program '{}'", quote_control(label)));
      multiplies += pass.aligned ? *one : *one / device.of_unaligned;
      flops += work.flops / device.flops[static_cast<size_t>(work.dtype)];
      if (work.kind != OpWork::kProduct) part = kAttentions;
    }
    const double vector = device.vector > 0 ? pass.flops / device.vector : 0;
    const double moves = pass.bytes / fastest;
    if (multiplies + vector >= moves / device.of_memory && multiplies > 0)
      time.parts[part] += multiplies + vector;
    else
      time.parts[cached ? kCached : kMemory] += std::max(moves / device.of_memory, vector);
    time.parts[kPasses] += device.launch;
    time.least += std::max(flops, moves);
  }
  return time;
}

}  // namespace piper::cluster
