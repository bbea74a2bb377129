// A compute order as cells, for lists and files.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "order_pool.h"

namespace piper {
namespace {

// Returns the regions whose backwards have both halves as tasks of their own.
std::set<std::vector<int32_t>> regions_in_halves(const Dag& dag) {
  std::set<std::vector<int32_t>> inputs, both;
  for (const Chunk& chunk : dag.chunks)
    if (chunk.pass == TaskPass::kBI) inputs.insert(chunk.tags);
  for (const Chunk& chunk : dag.chunks)
    if (chunk.pass == TaskPass::kBW && inputs.contains(chunk.tags)) both.insert(chunk.tags);
  return both;
}

// An overlap has two cells: a whole backward of two tasks is one, and so is a half that is all
// there is.
std::vector<OrderCell> cells_of(const Dag& dag, const ComputeOrder& order, size_t stage,
                                const std::set<std::vector<int32_t>>& in_halves) {
  std::vector<OrderCell> row;
  size_t pair = order.body.empty() ? 0 : order.overlaps.size(), whole = 0;  // else of two steps
  for (int32_t i = 0; i < static_cast<int32_t>(order.tasks.size()); ++i) {
    const Task& task = dag.tasks[order.tasks[static_cast<size_t>(i)].index()];
    while (pair < order.overlaps.size() && order.overlaps[pair].second < i) ++pair;
    if (pair < order.overlaps.size() && order.overlaps[pair].second == i) row.back().paired = true;
    const std::vector<int32_t>& tags = dag.chunks[task.chunk.index()].tags;
    OrderCell cell{
        .type = task.pass == TaskPass::kF || in_halves.contains(tags) ? name_of(task.pass) : "B",
        .stage = tags[stage],
        .micro = task.micro};
    while (whole < order.wholes.size() && order.wholes[whole] < i) ++whole;
    if (whole < order.wholes.size() && order.wholes[whole] == i) cell.type = "B", ++i;
    row.push_back(std::move(cell));
  }
  return row;
}

// Places backwards in a file, where each stage has one. A stage that only passes adjoints on has
// none here; in the file its backward comes as soon as the next stage has run its own.
class Backwards {
 public:
  explicit Backwards(const OrderRows& rows) : rows_(rows), out_(rows.size()), next_(rows.size()) {
    for (size_t r = 0; r < rows.size(); ++r)
      for (const OrderCell& cell : rows[r]) {
        last_ = std::max(last_, cell.stage);
        row_of_[cell.stage] = r;
        if (cell.type != "F") with_backward_.insert(cell.stage);
      }
  }
  OrderRows run() {
    if (with_backward_.size() == row_of_.size()) return rows_;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < rows_.size(); ++r)
        while (next_[r] < rows_[r].size() && can_run(r)) run_next(r), moved = true;
    }
    // What is no chain of stages stays as it is.
    for (size_t r = 0; r < rows_.size(); ++r)
      if (next_[r] < rows_[r].size()) return rows_;
    return std::move(out_);
  }

 private:
  size_t width(size_t r) const { return rows_[r][next_[r]].paired ? 2 : 1; }
  bool can_run(size_t r) const {
    for (size_t i = 0; i < width(r); ++i) {
      const OrderCell& cell = rows_[r][next_[r] + i];
      const auto has = [&](TaskPass pass, int64_t stage) {
        return done_.contains({pass, stage, cell.micro});
      };
      if (cell.type == "F" ? cell.stage > 0 && !has(TaskPass::kF, cell.stage - 1)
                           : !has(TaskPass::kF, cell.stage))
        return false;
      if ((cell.type == "B" || cell.type == "BI") && cell.stage < last_ &&
          !has(TaskPass::kB, cell.stage + 1))
        return false;
    }
    return true;
  }
  void run_next(size_t r) {
    const size_t first = next_[r], count = width(r);
    next_[r] += count;
    for (size_t i = first; i < first + count; ++i) out_[r].push_back(rows_[r][i]);
    for (size_t i = first; i < first + count; ++i) {
      const OrderCell& cell = rows_[r][i];
      if (cell.type == "BW") continue;
      done_.insert({cell.type == "F" ? TaskPass::kF : TaskPass::kB, cell.stage, cell.micro});
      const bool turns = cell.type == "F" && cell.stage == last_;
      if (turns || cell.type != "F") pass_on(cell.stage - (turns ? 0 : 1), cell.micro);
    }
  }
  // Passes on through the stages, from this one down, that have no backward.
  void pass_on(int64_t stage, int64_t micro) {
    for (; row_of_.contains(stage) && !with_backward_.contains(stage); --stage) {
      out_[row_of_.at(stage)].push_back({.type = "B", .stage = stage, .micro = micro});
      done_.insert({TaskPass::kB, stage, micro});
    }
  }

  const OrderRows& rows_;
  OrderRows out_;
  std::vector<size_t> next_;
  std::map<int64_t, size_t> row_of_;  // by stage
  std::set<int64_t> with_backward_;
  int64_t last_ = -1;
  std::set<std::tuple<TaskPass, int64_t, int64_t>> done_;  // pass, stage, microbatch
};

Status check_written_by_stages(const Dag& dag) {
  const auto placed = std::count_if(dag.mesh.begin(), dag.mesh.end(),
                                    [](const DagAxis& axis) { return axis.placed; });
  if (placed != 1)
    return fail("an order is written by the coordinates of one axis, but {} are placed", placed);
  if (std::any_of(dag.chunks.begin(), dag.chunks.end(),
                  [](const Chunk& chunk) { return chunk.pass == TaskPass::kR; }) ||
      dag.split_update || dag.split_sums)
    return fail("not supported: an order file of an order that names R, S or updates of stages")
        .with_note("such files have no words for these");
  return ok_status();
}

Status check_one_device(const Dag& dag, size_t tag) {
  std::map<int32_t, int32_t> cell_of;  // by stage
  for (const Chunk& chunk : dag.chunks) {
    if (chunk.pass != TaskPass::kF) continue;
    const int32_t number = chunk.tags[tag];
    const auto [known, is_new] = cell_of.try_emplace(number, chunk.cell);
    if (!is_new && known->second != chunk.cell)
      return fail("not supported: an order file of stages that are on several devices")
          .with_note(fmt::format("in such files a stage has one device, but stage {} has at least "
                                 "two, by microbatch",
                                 number));
  }
  return ok_status();
}

}  // namespace

Result<OrderRows> order_rows(const Dag& dag, const std::vector<ComputeOrder>& compute) {
  const auto stage = std::find(dag.region_tags.begin(), dag.region_tags.end(), "stage");
  if (stage == dag.region_tags.end())
    return fail("an order is written by stages, but no directive names a tag 'stage'");
  PIPER_TRY(check_written_by_stages(dag));
  const auto tag = static_cast<size_t>(stage - dag.region_tags.begin());
  PIPER_TRY(check_one_device(dag, tag));
  OrderRows rows;
  const auto in_halves = regions_in_halves(dag);
  for (const ComputeOrder& order : compute) rows.push_back(cells_of(dag, order, tag, in_halves));
  return Backwards(rows).run();
}

}  // namespace piper
