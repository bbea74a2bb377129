// How long orders take by a policy's costs, and what no order can be below.
#include "bound.h"

#include <algorithm>
#include <functional>
#include <optional>

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

// Finds how long the chains of needs of one microbatch are, by its tasks, one a line.
class OneMicro {
 public:
  explicit OneMicro(const Lines& lines) : lines_(lines), needs_(lines.all.size()) {
    std::vector<std::vector<size_t>> readers(lines.all.size());
    std::vector<size_t> open(lines.all.size());
    for (size_t l = 0; l < lines.all.size(); ++l) {
      if (lines.all[l].first == lines.all[l].end) continue;
      for (const Need& need : lines.needs[lines.all[l].first]) {
        const auto n = static_cast<size_t>(lines.places[static_cast<size_t>(need.place)].line);
        needs_[l].push_back({n, need.delay});
        readers[n].push_back(l);
        ++open[l];
      }
    }
    for (size_t l = 0; l < open.size(); ++l)
      if (open[l] == 0) sorted_.push_back(l);
    for (size_t at = 0; at < sorted_.size(); ++at)
      for (const size_t reader : readers[sorted_[at]])
        if (--open[reader] == 0) sorted_.push_back(reader);
  }
  bool is_whole() const { return sorted_.size() == lines_.all.size(); }

  using Which = std::function<bool(size_t line)>;
  // Returns by line how long it is at least from the begin of any of these until its begin.
  std::vector<int64_t> since(const Which& which) const {
    std::vector<int64_t> time(lines_.all.size(), kNoWay);
    for (const size_t l : sorted_) {
      if (which(l)) time[l] = 0;
      for (const auto& [n, delay] : needs_[l])
        if (time[n] != kNoWay) time[l] = std::max(time[l], time[n] + time_of(n) + delay);
    }
    return time;
  }
  // Returns by line how long it is at least from its end until the end of one of these.
  std::vector<int64_t> until(const Which& which) const {
    std::vector<int64_t> time(lines_.all.size(), kNoWay);
    for (auto l = sorted_.rbegin(); l != sorted_.rend(); ++l) {
      if (which(*l)) time[*l] = std::max<int64_t>(time[*l], 0);
      if (time[*l] == kNoWay) continue;
      for (const auto& [n, delay] : needs_[*l])
        time[n] = std::max(time[n], time[*l] + time_of(*l) + delay);
    }
    return time;
  }
  int64_t time_of(size_t l) const {
    const Line& line = lines_.all[l];
    return line.first == line.end ? 0 : lines_.places[line.first].time;
  }

  static constexpr int64_t kNoWay = -1;

 private:
  const Lines& lines_;
  std::vector<std::vector<std::pair<size_t, int64_t>>> needs_;  // lines, and how long messages take
  std::vector<size_t> sorted_;                                  // behind what they need
};

// Returns what a microbatch does in the region of a forward, by how long it is from that to all
// other lines.
std::optional<Trip> find_trip(const Lines& lines, size_t forward, const OneMicro& micro,
                              const std::vector<int64_t>& since) {
  const Line& of = lines.all[forward];
  if (of.slots == 0 || of.first == of.end) return std::nullopt;
  Trip trip;
  trip.count = static_cast<int64_t>(of.end - of.first);
  const int64_t taken = micro.time_of(forward);
  trip.forward = taken;
  trip.held = lines.places[of.first].held;
  trip.time = INT64_MAX;
  for (const size_t l : lines.of_cell[of.cell]) {
    const Line& line = lines.all[l];
    if (line.pass == TaskPass::kF) {
      if (l != forward && since[l] != OneMicro::kNoWay) trip.is_last = false;
      continue;
    }
    if (line.forward != forward) continue;
    if (line.end - line.first != of.end - of.first || since[l] < taken) return std::nullopt;
    const int64_t end = since[l] + micro.time_of(l), freed = lines.places[line.first].freed;
    trip.time = std::min(trip.time, since[l] - taken);
    trip.bytes_for += static_cast<double>(freed) * static_cast<double>(end);
    if (line.slots > 0) trip.slot_for = end;
    if (line.pass == TaskPass::kBW) {
      trip.weights = micro.time_of(l);
      trip.left = freed;
    } else {
      trip.input = micro.time_of(l);
    }
  }
  return trip.time == INT64_MAX ? std::nullopt : std::optional(trip);
}

// Returns whether it is of a region that the cell runs forward and backward.
bool is_both_ways(const Line& line) {
  return line.forward != Line::kNone && (line.pass == TaskPass::kF || line.pass == TaskPass::kB ||
                                         line.pass == TaskPass::kBI || line.pass == TaskPass::kBW);
}

// Returns the least time of a cell's lines that are no weight halves; kNoWay: one has none.
int64_t least_of(const Lines& lines, size_t cell, const std::vector<int64_t>& time) {
  int64_t least = INT64_MAX;
  for (const size_t l : lines.of_cell[cell])
    if (lines.all[l].pass != TaskPass::kBW) least = std::min(least, time[l]);
  return least;
}

// Finds what the policy counts before and behind the tasks of each cell.
void go_around(const Lines& lines, const OneMicro& micro, bool span,
               std::vector<CellTrips>& cells) {
  const auto add = [&](const std::vector<int64_t>& since, const std::vector<int64_t>& until) {
    for (size_t cell = 0; cell < cells.size(); ++cell) {
      if (cells[cell].regions.empty()) continue;
      const int64_t before = least_of(lines, cell, since), behind = least_of(lines, cell, until);
      if (!span) cells[cell].before = std::max<int64_t>(before, 0);
      if (before == OneMicro::kNoWay || behind == OneMicro::kNoWay) continue;
      cells[cell].around = std::max(cells[cell].around, before + behind);
    }
  };
  const auto any = [](size_t) { return true; };
  if (!span) return add(micro.since(any), micro.until(any));
  for (size_t from = 0; from < cells.size(); ++from) {
    const auto is_here = [&](size_t l) { return lines.all[l].cell == from; };
    add(micro.since(is_here), micro.until(is_here));
  }
}

// Finds a cell's forwards, and when its first backward can begin.
bool find_regions(const Lines& lines, const OneMicro& micro, size_t cell, CellTrips& found) {
  const std::vector<size_t>& here = lines.of_cell[cell];
  std::vector<int64_t> waits(here.size());  // from the first forward of its microbatch
  for (const size_t l : here) {
    if (lines.all[l].pass != TaskPass::kF) continue;
    const auto since = micro.since([&](size_t line) { return line == l; });
    const auto trip = find_trip(lines, l, micro, since);
    if (!trip) return false;
    found.regions.push_back(*trip);
    for (size_t i = 0; i < here.size(); ++i) waits[i] = std::max(waits[i], since[here[i]]);
  }
  found.wait = INT64_MAX;
  for (size_t i = 0; i < here.size(); ++i)
    if (lines.all[here[i]].pass != TaskPass::kF) found.wait = std::min(found.wait, waits[i]);
  return true;
}

// Describes what a cell does at most, of all its regions, and within these limits.
struct CellLimits {
  CellLimits(const CellTrips& trips, int64_t in_flight, int64_t memory, int64_t micros)
      : memory(memory) {
    held = left = INT64_MAX;
    for (const Trip& trip : trips.regions) {
      chunks += std::min(trip.count, micros);
      held = std::min(held, trip.held);
      left = std::min(left, trip.left);
      input = std::max(input, trip.input);
      weights = std::max(weights, trip.weights);
    }
    open = std::min(in_flight, chunks);
    forwards = memory > 0 && held > 0 ? std::min(open, memory / held) : open;
  }
  // Returns how long forwards take before the first backward.
  int64_t time_of_forwards(const CellTrips& trips, int64_t micros) const {
    std::vector<std::pair<int64_t, int64_t>> all;  // time, count
    for (const Trip& trip : trips.regions)
      all.emplace_back(trip.forward, std::min(trip.count, micros));
    std::sort(all.rbegin(), all.rend());
    int64_t time = 0, more = forwards;
    for (const auto& [forward, count] : all) {
      time += forward * std::min(count, more);
      more -= std::min(count, more);
    }
    return time;
  }
  // Returns how much the cell may have to do after its last forward, until a backward of that one
  // can begin: of others, as many backwards and weight halves as may be open. `counts_weights`: not
  // only what is no weight half.
  int64_t work_behind(bool counts_weights) const {
    int64_t most = 0;
    const int64_t half = counts_weights ? weights : 0;
    for (int64_t whole = 0; whole < open; ++whole) {
      int64_t halves = open - 1 - whole;  // that have only their weight half to do
      if (memory > 0) {
        const int64_t free = memory - (whole + 1) * held;
        if (free < 0) break;
        if (left > 0) halves = std::min(halves, free / left);
      }
      most = std::max(most, whole * (input + half) + halves * half);
    }
    return most;
  }

  int64_t memory;
  int64_t chunks = 0, open = 0;  // in all, and in flight
  int64_t forwards = 0;          // in flight that fit into memory
  int64_t held = 0, left = 0, input = 0, weights = 0;
};

CellBound bound_of_cell(const ListPolicy& limits, const Sample& sample, const CellTrips& trips,
                        size_t cell) {
  const int64_t work = sample.work[cell];
  CellBound bound{work, cell};
  if (trips.regions.empty() || work == 0) return bound;
  const auto raise = [&](int64_t length, BoundBy by) {
    if (length > bound.length) bound = {length, cell, by};
  };
  const auto micros = static_cast<int64_t>(sample.micros);
  const CellLimits within(trips, limits.in_flight[cell], limits.memory, micros);
  const int64_t first = std::max<int64_t>(trips.wait - within.time_of_forwards(trips, micros), 0);
  int64_t idle[2] = {first, first};  // [1]: with weight halves
  int64_t time = INT64_MAX, without_weights = 0;
  double bytes_for = 0, slots_for = 0;
  for (const Trip& trip : trips.regions) {
    const auto count = std::min(trip.count, micros);
    if (trip.is_last) time = std::min(time, trip.time);
    without_weights += count * (trip.forward + trip.input);
    bytes_for += static_cast<double>(count) * trip.bytes_for;
    slots_for += static_cast<double>(count) * static_cast<double>(trip.slot_for);
  }
  for (const bool weights : {false, true})
    if (within.forwards < within.chunks)
      idle[weights ? 1 : 0] += std::max<int64_t>(time - within.work_behind(weights), 0);
  raise(work + trips.before + idle[1], idle[1] > 0 ? BoundBy::kWaits : BoundBy::kWork);
  raise(without_weights + trips.around + idle[0], BoundBy::kWay);
  const auto kept = [&](double all, int64_t limit) {
    raise(trips.before + static_cast<int64_t>(all / static_cast<double>(limit)), BoundBy::kLimits);
  };
  if (limits.memory > 0) kept(bytes_for, limits.memory);
  if (limits.in_flight[cell] > 0) kept(slots_for, limits.in_flight[cell]);
  return bound;
}

}  // namespace

std::optional<int64_t> time_of_orders(const Dag& dag, const Lines& lines, bool span,
                                      const std::vector<ComputeOrder>& orders) {
  std::vector<size_t> place_of(dag.tasks.size());
  for (size_t p = 0; p < lines.places.size(); ++p) place_of[lines.places[p].task.index()] = p;
  std::vector<int64_t> end(lines.places.size(), -1), first(orders.size(), -1), clock(orders.size());
  std::vector<size_t> next(orders.size());
  const auto can_run = [&](size_t cell) {
    if (next[cell] == orders[cell].tasks.size()) return false;
    const size_t p = place_of[orders[cell].tasks[next[cell]].index()];
    int64_t start = clock[cell];
    for (const Need& need : lines.needs[p]) {
      const int64_t there = end[static_cast<size_t>(need.place)];
      if (there < 0) return false;
      start = std::max(start, there + need.delay);
    }
    if (first[cell] < 0) first[cell] = start;
    clock[cell] = end[p] = start + lines.places[p].time;
    ++next[cell];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t cell = 0; cell < orders.size(); ++cell)
      while (can_run(cell)) moved = true;
  }
  int64_t length = 0;
  for (size_t cell = 0; cell < orders.size(); ++cell) {
    if (next[cell] < orders[cell].tasks.size()) return std::nullopt;
    length = std::max(length, clock[cell] - (span ? std::max<int64_t>(first[cell], 0) : 0));
  }
  return length;
}

bool Trips::are_straight() const {
  return !cells.empty() && std::all_of(cells.begin(), cells.end(), [](const CellTrips& cell) {
    return cell.regions.size() == 1 && cell.regions[0].weights > 0;
  });
}

Trips find_trips(const Lines& lines, const ListPolicy& policy) {
  const OneMicro micro(lines);
  if (!micro.is_whole() || !std::all_of(lines.all.begin(), lines.all.end(), is_both_ways))
    return {};
  Trips trips;
  trips.cells.resize(lines.of_cell.size());
  for (size_t cell = 0; cell < trips.cells.size(); ++cell)
    if (!find_regions(lines, micro, cell, trips.cells[cell])) return {};
  trips.are_alike = lines.are_alike;
  if (trips.are_alike) go_around(lines, micro, policy.span, trips.cells);
  return trips;
}

CellBound bound_within(const ListPolicy& limits, const Sample& sample, const Trips& trips) {
  const CellTrips none;
  CellBound most;
  for (size_t cell = 0; cell < sample.work.size(); ++cell) {
    const CellBound bound =
        bound_of_cell(limits, sample, trips.are_alike ? trips.cells[cell] : none, cell);
    if (bound.length > most.length) most = bound;
  }
  return most;
}

OrderLength length_of(const Dag& dag, const TaskLists& deps, const ListPolicy& policy,
                      const std::vector<ComputeOrder>& orders) {
  const Lines lines(dag, deps, policy);
  const Chains chains(lines);
  OrderLength result;
  result.length = time_of_orders(dag, lines, policy.span, orders).value_or(0);
  for (size_t cell = 0; cell < lines.of_cell.size(); ++cell)
    for (const bool weights : {true, false}) {
      const int64_t bound = bound_of(lines, chains, lines.of_cell[cell], weights, policy.span);
      if (bound <= result.bound) continue;
      result.bound = bound;
      result.cell = cell;
    }
  if (policy.limits_give_way) return result;
  const Sample all(lines, static_cast<size_t>(dag.micros()));
  const CellBound bound = bound_within(policy, all, find_trips(lines, policy));
  if (bound.length <= result.bound) return result;
  return {result.length, bound.length, bound.cell, bound.by};
}

}  // namespace piper
