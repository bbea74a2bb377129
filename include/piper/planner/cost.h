// What chunks cost: the scheduler's measure of time and memory. Analytic; no device is asked.
#pragma once

#include "piper/planner/make_dag.h"

namespace piper {

// Returns the FLOPs of an op; 0: it has no cost, or the graph's ops do not know it.
double flops_of(const Graph& graph, const Node& node);

// Returns the FLOPs of the model in a step, of the graph of one device with the whole batch: of
// forwards, and twice as many for backwards (Chowdhery et al., PaLM, 2022, appendix B). What runs
// again for a backward is no part of it, nor what several ranks compute alike.
double model_flops(const Graph& step);

struct ChunkCost {
  double flops = 0;  // of one microbatch
  // Forward chunks: what their region's backward reads of the forward, a microbatch.
  int64_t kept_bytes = 0;
  // Input halves of backwards: what the weight half reads of the forward and of this, a microbatch.
  int64_t left_bytes = 0;
};
// Returns the costs by chunk. Requires make_dag.
std::vector<ChunkCost> chunk_costs(const Dag& dag);

// A byte that is sent takes as long as this many operations: what a fast link and a fast matrix
// unit have to each other.
inline constexpr double kFlopsPerSentByte = 50;

}  // namespace piper
