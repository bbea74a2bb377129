// The cells of a picture: what a simulation says that each row computes, task by task.
#include <algorithm>
#include <set>
#include <tuple>

#include "piper/inspect/picture.h"

namespace piper {
namespace {

// Updates are together whatever they are of.
bool continues(const PictureCell& cell, const TimedStep& step) {
  const Instruction& one = *step.one;
  const bool touches = step.start - (cell.start + cell.length) <= 1e-9 * step.start;
  if (cell.pass == TaskPass::kU) return touches && shown_pass(one) == TaskPass::kU;
  return touches && cell.pass == one.pass && cell.stage == one.stage && cell.micro == one.micro &&
         cell.step == step.number + one.ahead && cell.task == one.label;
}

std::vector<PictureCell> cells_of(const TimedRow& row) {
  std::vector<PictureCell> cells;
  std::map<int32_t, size_t> open;  // by stream: the cell that its next computation may lengthen
  for (const TimedStep& step : row.steps) {
    if (step.cost.device <= 0) continue;
    const Instruction& one = *step.one;
    const auto last = open.find(one.stream);
    if (last == open.end() || !continues(cells[last->second], step)) {
      open[one.stream] = cells.size();
      cells.push_back({step.start,
                       0,
                       0,
                       shown_pass(one),
                       one.stage,
                       one.micro,
                       step.number + one.ahead,
                       step.paired,
                       step.paired && step.second,
                       one.label,
                       {}});
    }
    PictureCell& cell = cells[open[one.stream]];
    cell.length = step.end - cell.start;
    cell.work += step.cost.device;
  }
  std::stable_sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) {
    return std::tie(a.start, a.second) < std::tie(b.start, b.second);
  });
  return cells;
}

void label_cells(PictureRow& row) {
  std::set<int32_t> stages;
  for (const PictureCell& cell : row.cells)
    if (cell.pass != TaskPass::kU) stages.insert(cell.stage);
  for (PictureCell& cell : row.cells) {
    cell.label = static_cast<char>(cell.pass);
    if (cell.pass == TaskPass::kU) continue;
    if (cell.micro >= 0) cell.label += std::to_string(cell.micro);
    if (stages.size() > 1)
      cell.label +=
          static_cast<char>('a' + std::distance(stages.begin(), stages.find(cell.stage)) % 26);
    cell.label += std::string(static_cast<size_t>(std::max(cell.step, 0)), '\'');
  }
}

// The part of a steady step in which rows are idle.
Result<double> steady_idle(const PlanSet& set, const Machine& machine) {
  constexpr int32_t kBodies = 3;  // the first may still wait for the pipeline to fill
  PIPER_ASSIGN(const Timeline timeline, simulate(set, machine, kBodies));
  double busy = 0, period = 0;
  for (const TimedRow& row : timeline.rows) {
    for (const PictureCell& cell : cells_of(row)) busy += cell.step == 1 ? cell.work : 0;
    const auto last = static_cast<size_t>(kBodies - 1 + row.role->steps_ahead);
    period = std::max(period, row.sections[last].computed - row.sections[last - 1].computed);
  }
  return period > 0 ? 1 - busy / (period * static_cast<double>(timeline.rows.size())) : 0;
}

}  // namespace

Result<Picture> make_picture(const PlanSet& set, const Machine& machine, PictureCosts costs) {
  PIPER_ASSIGN(const Timeline timeline, simulate(set, machine, 1));
  Picture picture{.costs = costs};
  for (const TimedRow& timed : timeline.rows) {
    PictureRow& row = picture.rows.emplace_back();
    row.ranks = timed.ranks;
    row.cells = cells_of(timed);
    label_cells(row);
    for (const PictureCell& cell : row.cells)
      picture.length = std::max(picture.length, cell.start + cell.length);
  }
  for (PictureRow& row : picture.rows) {
    double busy = 0;
    for (const PictureCell& cell : row.cells) busy += cell.work;
    row.idle = picture.length > 0 ? 1 - busy / picture.length : 0;
    picture.idle += row.idle / static_cast<double>(picture.rows.size());
  }
  if (set.roles[static_cast<size_t>(set.role_of_rank[0])].steps_ahead > 0) {
    PIPER_ASSIGN(picture.steady_idle, steady_idle(set, machine));
  }
  return picture;
}

Result<Picture> make_picture(const PlanSet& set, PictureCosts costs) {
  const auto machine = costs == PictureCosts::kUnits ? stated_machine({}) : flops_machine();
  return make_picture(set, *machine, costs);
}

}  // namespace piper
