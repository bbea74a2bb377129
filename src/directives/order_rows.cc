// A compute order as cells, for lists and files.
#include <algorithm>
#include <map>

#include "piper/directives.h"

namespace piper {
namespace {

const char* type_of(char pass) {
  if (pass == 'I') return "BI";
  if (pass == 'W') return "BW";
  return pass == 'B' ? "B" : "F";
}

// An overlap has two cells: a whole backward of two tasks is one.
std::vector<OrderCell> cells_of(const Dag& dag, const ComputeOrder& order, size_t stage) {
  std::vector<OrderCell> row;
  size_t pair = order.body.empty() ? 0 : order.overlaps.size(), whole = 0;  // else of two steps
  for (int32_t i = 0; i < static_cast<int32_t>(order.tasks.size()); ++i) {
    const Task& task = dag.tasks[order.tasks[static_cast<size_t>(i)].index()];
    while (pair < order.overlaps.size() && order.overlaps[pair].second < i) ++pair;
    if (pair < order.overlaps.size() && order.overlaps[pair].second == i) row.back().paired = true;
    OrderCell cell;
    cell.type = type_of(task.pass);
    cell.stage = dag.chunks[task.chunk.index()].tags[stage];
    cell.micro = task.micro;
    while (whole < order.wholes.size() && order.wholes[whole] < i) ++whole;
    if (whole < order.wholes.size() && order.wholes[whole] == i) cell.type = "B", ++i;
    row.push_back(std::move(cell));
  }
  return row;
}

}  // namespace

Result<OrderRows> order_rows(const Dag& dag, const std::vector<ComputeOrder>& compute) {
  const auto stage = std::find(dag.region_tags.begin(), dag.region_tags.end(), "stage");
  if (stage == dag.region_tags.end())
    return fail("an order is written by stages, but no directive names a tag 'stage'");
  const auto placed = std::count_if(dag.mesh.begin(), dag.mesh.end(),
                                    [](const DagAxis& axis) { return axis.placed; });
  if (placed != 1)
    return fail("an order is written by the coordinates of one axis, but {} are placed", placed);
  std::map<int32_t, int32_t> cell_of;  // by stage
  for (const Chunk& chunk : dag.chunks) {
    if (chunk.pass != 'F') continue;
    const int32_t number = chunk.tags[static_cast<size_t>(stage - dag.region_tags.begin())];
    const auto [known, is_new] = cell_of.try_emplace(number, chunk.cell);
    if (!is_new && known->second != chunk.cell)
      return fail("not supported: an order file of stages that are on several devices")
          .with_note(fmt::format("in such files a stage has one device, but stage {} has at least "
                                 "two, by microbatch",
                                 number));
  }
  OrderRows rows;
  for (const ComputeOrder& order : compute)
    rows.push_back(cells_of(dag, order, static_cast<size_t>(stage - dag.region_tags.begin())));
  return rows;
}

}  // namespace piper
