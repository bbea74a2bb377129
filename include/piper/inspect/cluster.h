// What instructions take on a cluster that a file describes (formats/cluster.md), or as a profile
// has measured them: the machine of a simulation.
#pragma once

#include <array>
#include <map>
#include <memory>

#include "piper/devices/device_costs.h"
#include "piper/devices/work.h"
#include "piper/inspect/analysis.h"

namespace piper {

// Describes a kind of device. Rates are per second, times in seconds, sizes in bytes; a rate of 0
// is not stated.
struct ClusterDevice {
  std::string name;
  std::string target;                         // the kind of device of plans for it
  bool has_library = false;                   // of it: a library adds up and gathers
  std::array<double, kNumDTypes> flops = {};  // the most of products, by the type of operands
  double vector = 0;                          // FLOPs of all else; 0: only its bytes count
  double memory = 0, reserve = 0;             // what there is; of it what no plan may take
  double bandwidth = 0;                       // of memory, reading and writing together
  double cache = 0, cache_bandwidth = 0;      // what fits into it moves faster
  double host_bandwidth = 0;                  // copies between device and host
  double launch = 0;                          // of each pass
  double issue = 0;                           // of the host, for each instruction
  double between_steps = 0;
  double per_op = 0;  // of the host, where each op is a pass of its own; 0: ops share passes
  std::map<std::string, int64_t, std::less<>> composed;  // passes of ops that take several then
  // Products are cut into tiles of rows x columns, which so many processors work through in waves.
  // A tile has a share of a processor's rate, and begins and ends in the time of `ramp` terms.
  struct Tile {
    int64_t rows = 1, columns = 1;
    double share = 1;
  };
  std::vector<Tile> tiles = {{}};
  double processors = 1, ramp = 0;
  // Attentions: FLOPs that each score takes beside its products, and the keys in whose time a tile
  // of queries begins and ends.
  double score = 0, attention_ramp = 0;
  // Shares of `flops` and `bandwidth` that are reached at best.
  double of_products = 1, of_attention = 1, of_attention_grad = 1, of_memory = 1;
  double of_unaligned = 1;  // of `of_products`, where rows are no multiples of 16 bytes
  double slowed = 0;    // computations, while messages or collectives move
  double power = 0, power_limit = 0;  // at which `efficiency` is reached; that it may take; or 0
  bool helper = false;  // a thread of its own communicates
  // Says what a framework copies between tensors and the buffers of its collectives.
  struct Copies {
    bool gathered = false;  // parameters, behind all-gathers of their parts
    bool reduced = false;   // gradients, in front of reduce-scatters
    bool strided = false;   // values whose parts have several runs of memory
    bool any() const { return gathered || reduced || strided; }
  } copies;
  SourceSpan at;
};

struct ClusterLink {
  std::string name;
  double latency = 0, bandwidth = 0;  // of each device's own port, in one direction
  SourceSpan at;
};

// Describes devices in the order of ranks. Devices are grouped into nodes, nodes into greater
// levels, the greatest of which has all.
struct Cluster {
  std::string path;
  std::vector<ClusterDevice> devices;
  std::vector<ClusterLink> links;
  struct Nodes {
    int64_t count = 1, devices = 1;  // so many nodes of so many devices
    int32_t device = 0, link = 0;    // indices
  };
  std::vector<Nodes> nodes;
  struct Level {
    std::string name;
    int64_t nodes = 0;  // of each unit
    int32_t link = 0;
  };
  std::vector<Level> levels;  // above nodes, from the smallest
  SourceSpan at;              // of the nodes

  int64_t size() const;  // devices
  const ClusterDevice& device_of(int64_t rank) const;
};
// Reads a file, or, of a name such as "<h100x8>", one of the library. Errors are located.
Result<Cluster> read_cluster(const std::string& name, const std::vector<std::string>& folders = {});

// Holds what `piper-run --profile` has measured (formats/profile.md), in seconds.
struct MeasuredTimes {
  std::string path, target, device;
  std::vector<std::string> notes;  // what whoever reads it should know of how it was measured
  double step = 0;                 // the median
  std::optional<double> host;      // of each instruction; nothing: devices were behind all the time
  bool helper = false;
  // Says what ran; of programs `work` is as print_passes has it.
  struct Measured {
    std::string name;   // a digest, or the kind of instruction
    std::string where;  // the link, or between what
    double bytes = 0;
    std::vector<int64_t> ranks;  // of a group that communicated: the first one of those alike
    bool fast = false;
    double median = 0, least = 0;
    std::vector<PassWork> work;
    SourceSpan at;
  };
  std::vector<Measured> programs, communication, local;
};
Result<MeasuredTimes> read_profile(const std::string& path);

// Makes the machine of a plan set: ranks are on the cluster's devices in order. With a profile,
// what it has measured takes what it measured there, and its rates are those of all else.
// Errors: more ranks than devices; plans, or a profile, of another kind of device; FLOPs of a type
// that a device has no rate for.
Result<std::unique_ptr<Machine>> cluster_machine(const Cluster& cluster, const PlanSet& set,
                                                 const MeasuredTimes* profile = nullptr);
// Returns what single ops and messages take there, for steps of the compiler: by the same costs.
Result<std::shared_ptr<const DeviceCosts>> cluster_costs(const Cluster& cluster,
                                                         const MeasuredTimes* profile = nullptr);
// Returns what a report says of the devices that the ranks are on: the memory that plans may use of
// the smallest one, and the peaks of all for the type of most products; and whether programs of the
// profile run faster than these peaks allow.
MachineFacts facts_of(const Cluster& cluster, const PlanSet& set,
                      const MeasuredTimes* profile = nullptr);

}  // namespace piper
