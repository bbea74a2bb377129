// What messages, collectives and copies take by latencies and bandwidths. Private to the room.
#pragma once

#include "topology.h"

namespace piper::cluster {

// Holds how long bytes are under way, and on which links.
struct Way {
  double latency = 0, wire = 0;
  double sum = 0;  // what the device takes to add what has come
  std::vector<LinkShare> links;
  double total() const { return latency + wire + sum; }
};
Way message_way(const Cluster& cluster, const Spread& pair, double bytes);
// Returns how long a collective takes; `bytes` is what bytes_through returns. Sums that are not
// `fast` exchange blocks and add them.
Way collective_way(const Cluster& cluster, const Spread& group, const ClusterDevice& device,
                   const Instruction& one, double bytes);
// Returns the bytes that a member of the group sends or receives, whichever is more.
double moved_bytes(InstructionKind kind, double bytes, double members);
// Returns what a copy or another instruction without communication takes.
double local_time(const ClusterDevice& device, const RoleProgram& role, const Instruction& one);

}  // namespace piper::cluster
