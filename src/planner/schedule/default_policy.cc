// The policy of strategies that give no order.
#include <algorithm>
#include <limits>

#include "piper/planner/schedule.h"

namespace piper {

ListPolicy default_policy(const Dag& dag) {
  ListPolicy policy;
  policy.prefer = {TaskPass::kB, TaskPass::kBI, TaskPass::kF, TaskPass::kBW};
  policy.limits_give_way = true;
  std::vector<int64_t> chunks(dag.cells.size());
  std::vector<size_t> cells;  // by first use
  for (const Chunk& chunk : dag.chunks) {
    policy.time.push_back(chunk.pass == TaskPass::kB ? 2 : 1);
    const auto cell = static_cast<size_t>(chunk.cell);
    if (chunk.pass == TaskPass::kF && (chunk.variants.empty() || chunk.variants.front() == 0))
      ++chunks[cell];
    const bool ordered = chunk.pass != TaskPass::kPrepare && chunk.pass != TaskPass::kU;
    if (ordered && std::find(cells.begin(), cells.end(), cell) == cells.end())
      cells.push_back(cell);
  }
  policy.in_flight.assign(dag.cells.size(), std::numeric_limits<int64_t>::max() / 4);
  for (size_t i = 0; i < cells.size(); ++i)
    policy.in_flight[cells[i]] = chunks[cells[i]] * static_cast<int64_t>(cells.size() - i);
  return policy;
}

}  // namespace piper
