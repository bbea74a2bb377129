// The rows of arXiv 2401.10241 (tables 5, 8 and 9) of whose orders a policy's are no longer.
#pragma once

#include <cmath>
#include <map>

#include "piper/planner/schedule.h"
#include "unit/chain.h"

namespace piper::published {

// Of a pipeline of p devices with so many chunks each, straight or as a V; the paper has rows for
// the memory of p whole stages, or twice that. Times of a chunk and of a message in microseconds.
struct OrderRow {
  int64_t p, m, chunks, f, b, w, c, h, a, memory;
  double papers;  // bubble of the paper's order

  // A forward of layers of 34h + 5a·1024 bytes keeps them; a weight half needs 32h of these.
  int64_t kept() const { return 34 * h + 5 * a * 1024; }
  int64_t left() const { return 32 * h; }
  double work() const { return static_cast<double>(m * chunks * (f + b + w)); }
  // As the paper has it: the share of the time that a device idles, to four decimals.
  double bubble(int64_t length) const {
    return std::round((1 - work() / static_cast<double>(length)) * 1e4) / 1e4;
  }
};

inline std::vector<OrderRow> order_rows() {
  return {
      {8, 24, 1, 18522, 18086, 9337, 601, 2304, 24, 1, .1585},
      {8, 24, 1, 29718, 29444, 19927, 527, 4096, 32, 1, .1323},
      {8, 32, 1, 29802, 29428, 19530, 577, 4096, 32, 1, .1045},
      {16, 48, 1, 11347, 11248, 8132, 377, 5120, 40, 1, .1397},
      {32, 96, 1, 10419, 10207, 7715, 408, 6144, 48, 1, .1421},
      {32, 128, 1, 10408, 10204, 7703, 408, 6144, 48, 1, .1106},
      {8, 24, 1, 18522, 18086, 9337, 601, 2304, 24, 2, .0433},
      {8, 24, 1, 29718, 29444, 19927, 527, 4096, 32, 2, .0029},
      {8, 32, 1, 29802, 29428, 19530, 577, 4096, 32, 2, .0022},
      {16, 48, 1, 11347, 11248, 8132, 377, 5120, 40, 2, .0066},
      {32, 96, 1, 10419, 10207, 7715, 408, 6144, 48, 2, .0038},
      {32, 128, 1, 10408, 10204, 7703, 408, 6144, 48, 2, .0029},
      {16, 48, 2, 14407, 14380, 9676, 1610, 4096, 32, 1, .0697},
      {16, 64, 2, 14412, 14393, 9688, 1621, 4096, 32, 1, .0533},
      {24, 72, 2, 6763, 6969, 5251, 755, 5120, 40, 1, .0638},
      {32, 96, 2, 9458, 9748, 7288, 879, 6144, 48, 1, .0593},
      {32, 128, 2, 9469, 9744, 7306, 892, 6144, 48, 1, .0451},
  };
}

inline Result<chain::Made> pipeline_of(const OrderRow& row) {
  return chain::library(row.chunks == 1 ? "zb-h1" : "zbv", row.p, row.chunks, row.m);
}

// What counts is the longest that a device is at work, within so many times the row's memory.
inline ListPolicy policy_of(const OrderRow& row, const Dag& dag, double times = 1) {
  ListPolicy policy;
  policy.prefer = {TaskPass::kBI, TaskPass::kF, TaskPass::kBW};
  policy.in_flight.assign(dag.cells.size(), 1 << 30);
  policy.span = true;
  policy.time_per_message = row.c;
  policy.memory = static_cast<int64_t>(
      times * static_cast<double>(row.memory * row.p * row.chunks * row.kept()));
  for (const Chunk& chunk : dag.chunks) {
    policy.time.push_back(chunk.pass == TaskPass::kF    ? row.f
                          : chunk.pass == TaskPass::kBI ? row.b
                          : chunk.pass == TaskPass::kBW ? row.w
                                                        : 0);
    policy.held.push_back(chunk.pass == TaskPass::kF ? row.kept() : 0);
    policy.left.push_back(chunk.pass == TaskPass::kBI ? row.left() : 0);
  }
  return policy;
}

// Returns the most bytes that a device holds in this order.
inline int64_t memory_of(const Dag& dag, const ListPolicy& policy, const ComputeOrder& order) {
  std::map<std::vector<int32_t>, std::pair<int64_t, int64_t>> regions;  // held, and left of that
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    auto& [held, left] = regions[dag.chunks[c].tags];
    if (dag.chunks[c].pass == TaskPass::kF) held = policy.held[c];
    if (dag.chunks[c].pass == TaskPass::kBI) left = policy.left[c];
  }
  int64_t most = 0, now = 0;
  for (const TaskId id : order.tasks) {
    const Task& task = dag.tasks[id.index()];
    const auto [held, left] = regions[dag.chunks[task.chunk.index()].tags];
    now += task.pass == TaskPass::kF    ? held
           : task.pass == TaskPass::kB  ? -held
           : task.pass == TaskPass::kBI ? left - held
           : task.pass == TaskPass::kBW ? -left
                                        : 0;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace piper::published
