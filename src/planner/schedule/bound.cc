// How long an order takes by a policy's costs, and what no order can be below.
#include <algorithm>

#include "lines.h"

namespace piper {
namespace {

// Finds the longest chains of needs that lead to a task, and that follow it.
class Chains {
 public:
  explicit Chains(const Lines& lines)
      : lines_(lines), before(lines.places.size()), behind(lines.places.size()) {
    const std::vector<size_t> sorted = in_order();
    for (const size_t p : sorted)
      for (const Need& need : lines.needs[p]) {
        const auto n = static_cast<size_t>(need.place);
        before[p] = std::max(before[p], before[n] + lines.places[n].time + need.delay);
      }
    for (auto p = sorted.rbegin(); p != sorted.rend(); ++p)
      for (const Need& need : lines.needs[*p]) {
        const auto n = static_cast<size_t>(need.place);
        behind[n] = std::max(behind[n], behind[*p] + lines.places[*p].time + need.delay);
      }
  }

 private:
  // Lists places behind what they need.
  std::vector<size_t> in_order() const {
    std::vector<std::vector<size_t>> readers(lines_.places.size());
    std::vector<size_t> open(lines_.places.size()), sorted;
    for (size_t p = 0; p < open.size(); ++p)
      for (const Need& need : lines_.needs[p]) {
        readers[static_cast<size_t>(need.place)].push_back(p);
        ++open[p];
      }
    for (size_t p = 0; p < open.size(); ++p)
      if (open[p] == 0) sorted.push_back(p);
    for (size_t at = 0; at < sorted.size(); ++at)
      for (const size_t reader : readers[sorted[at]])
        if (--open[reader] == 0) sorted.push_back(reader);
    return sorted;
  }

  const Lines& lines_;

 public:
  std::vector<int64_t> before, behind;  // by place
};

// Whatever the order, a cell does nothing before its first task can begin, and when it has done its
// last one what needs that follows. The same holds without its weight halves, which nothing needs.
int64_t bound_of(const Lines& lines, const Chains& chains, const std::vector<size_t>& here,
                 bool weights, bool span) {
  int64_t work = 0, before = INT64_MAX, behind = INT64_MAX;
  for (const size_t l : here) {
    const Line& line = lines.all[l];
    if (!weights && line.pass == TaskPass::kBW) continue;
    for (size_t p = line.first; p < line.end; ++p) {
      work += lines.places[p].time;
      before = std::min(before, chains.before[p]);
      behind = std::min(behind, chains.behind[p]);
    }
  }
  return work == 0 || span ? work : before + work + behind;
}

// Returns when each cell begins and ends, if all begin what they do next as soon as it can.
std::vector<std::pair<int64_t, int64_t>> run_order(const Lines& lines,
                                                   const std::vector<ComputeOrder>& orders) {
  std::map<TaskId, size_t> place_of;
  for (size_t p = 0; p < lines.places.size(); ++p) place_of[lines.places[p].task] = p;
  std::vector<int64_t> end(lines.places.size(), -1);
  std::vector<size_t> next(orders.size());
  std::vector<std::pair<int64_t, int64_t>> cells(orders.size(), {-1, 0});
  const auto can_run = [&](size_t cell) {
    if (next[cell] == orders[cell].tasks.size()) return false;
    const size_t p = place_of.at(orders[cell].tasks[next[cell]]);
    auto& [first, clock] = cells[cell];
    int64_t start = clock;
    for (const Need& need : lines.needs[p]) {
      const int64_t there = end[static_cast<size_t>(need.place)];
      if (there < 0) return false;
      start = std::max(start, there + need.delay);
    }
    if (first < 0) first = start;
    clock = end[p] = start + lines.places[p].time;
    ++next[cell];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t cell = 0; cell < orders.size(); ++cell)
      while (can_run(cell)) moved = true;
  }
  return cells;
}

}  // namespace

OrderLength length_of(const Dag& dag, const TaskLists& deps, const ListPolicy& policy,
                      const std::vector<ComputeOrder>& orders) {
  const Lines lines(dag, deps, policy);
  const Chains chains(lines);
  OrderLength result;
  for (const auto& [first, end] : run_order(lines, orders))
    result.length = std::max(result.length, end - (policy.span ? std::max<int64_t>(first, 0) : 0));
  for (size_t cell = 0; cell < lines.of_cell.size(); ++cell)
    for (const bool weights : {true, false}) {
      const int64_t bound = bound_of(lines, chains, lines.of_cell[cell], weights, policy.span);
      if (bound <= result.bound) continue;
      result.bound = bound;
      result.cell = cell;
    }
  return result;
}

}  // namespace piper
