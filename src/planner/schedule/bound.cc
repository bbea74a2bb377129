// How long an order takes by a policy's costs, and what no order can be below.
#include "bound.h"

#include <algorithm>

#include "lister.h"

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

// Returns how much a cell may have to do after its last forward, until the backward of that one can
// begin: of microbatches before it, as many backwards and weight halves as the limits let be open.
int64_t work_behind(const Trip& trip, int64_t in_flight, int64_t memory, int64_t micros) {
  const int64_t open = std::min(in_flight, micros) - 1;
  int64_t most = 0;
  for (int64_t whole = 0; whole <= open; ++whole) {
    int64_t halves = open - whole;  // that have only their weight half to do
    if (memory > 0) {
      const int64_t free = memory - (whole + 1) * trip.held;
      if (free < 0) break;
      if (trip.left > 0) halves = std::min(halves, free / trip.left);
    }
    most = std::max(most, whole * (trip.input + trip.weights) + halves * trip.weights);
  }
  return most;
}

}  // namespace

std::vector<Trip> find_trips(const Dag& dag, const ListPolicy& policy, const Lines& lines) {
  Lister alone(dag, policy, lines, Sample(lines, 1));
  if (!alone.run()) return {};
  std::vector<Trip> trips;
  for (const std::vector<size_t>& here : lines.of_cell) {
    Trip trip;
    int64_t begin = -1, end = -1;
    for (const size_t l : here) {
      const Line& line = lines.all[l];
      if (alone.first_end(l) >= kNever) continue;
      const LinePlace& place = lines.places[line.first];
      if (line.pass == TaskPass::kF) {
        if (begin >= 0) return {};
        begin = alone.first_end(l);
        trip.begin = begin - place.time;
        trip.forward = std::max<int64_t>(place.time, 1);
        trip.held = place.held;
      } else if (line.pass == TaskPass::kBI) {
        end = alone.first_end(l) - place.time;
        trip.input = place.time;
      } else if (line.pass == TaskPass::kBW) {
        trip.weights = place.time;
        trip.left = place.freed;
      }
    }
    if (begin < 0 || end < 0) return {};
    trip.time = end - begin;
    trips.push_back(trip);
  }
  return trips;
}

bool only_forwards_come_first(const Lines& lines) {
  return std::all_of(lines.all.begin(), lines.all.end(), [&](const Line& line) {
    const auto begin = lines.places.begin() + static_cast<std::ptrdiff_t>(line.first),
               end = lines.places.begin() + static_cast<std::ptrdiff_t>(line.end);
    const auto is_like_first = [&](const LinePlace& place) {
      return place.time == begin->time && place.held == begin->held;
    };
    return (line.pass == TaskPass::kF || line.pass == TaskPass::kBI ||
            line.pass == TaskPass::kBW) &&
           std::all_of(begin, end, is_like_first);
  });
}

CellBound bound_within(const ListPolicy& limits, const Sample& sample,
                       const std::vector<Trip>& trips) {
  const auto micros = static_cast<int64_t>(sample.micros);
  CellBound most;
  for (size_t cell = 0; cell < sample.work.size(); ++cell) {
    int64_t bound = sample.work[cell];
    if (!trips.empty() && bound > 0) {
      const Trip& trip = trips[cell];
      const int64_t in_flight = limits.in_flight[cell];
      int64_t forwards = std::min(in_flight, micros);
      if (limits.memory > 0 && trip.held > 0)
        forwards = std::min(forwards, limits.memory / trip.held);
      bound += std::max<int64_t>(trip.time - (forwards - 1) * trip.forward, 0);
      if (forwards < micros)
        bound +=
            std::max<int64_t>(trip.time - work_behind(trip, in_flight, limits.memory, micros), 0);
      if (!limits.span) bound += trip.begin;
    }
    if (bound > most.length) most = {bound, cell};
  }
  return most;
}

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
  if (policy.limits_give_way || !only_forwards_come_first(lines)) return result;
  const Sample all(lines, static_cast<size_t>(dag.micros()));
  const CellBound idle = bound_within(policy, all, find_trips(dag, policy, lines));
  if (idle.length <= result.bound) return result;
  return {result.length, idle.length, idle.cell, true};
}

}  // namespace piper
