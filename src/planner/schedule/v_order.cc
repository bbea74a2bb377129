// Orders of a pipeline that goes down its devices and back up again, so that each has two regions
// (Qi et al., 2023, arXiv 2401.10241, section 6): rounds of a backward and a forward on every
// device, and weight halves where these would wait.
#include <algorithm>

#include "lines.h"

namespace piper {
namespace {

// Returns the line of a pass and region on a cell.
std::optional<size_t> line_of(const Dag& dag, const Lines& lines, size_t forward, TaskPass pass) {
  const Line& of = lines.all[forward];
  for (const size_t l : lines.of_cell[of.cell])
    if (lines.all[l].pass == pass &&
        dag.chunks[lines.all[l].chunk].tags == dag.chunks[of.chunk].tags)
      return l;
  return std::nullopt;
}

}  // namespace

std::optional<VShape> find_v(const Dag& dag, const Lines& lines) {
  const std::vector<size_t> way = way_of(lines);
  const size_t cells = lines.of_cell.size();
  if (!dag.group_of.empty() || cells < 2 || way.size() != 2 * cells) return std::nullopt;
  VShape v;
  for (size_t at = 0; at < cells; ++at) {
    const size_t down = way[at], up = way[2 * cells - 1 - at];
    if (lines.all[down].cell != lines.all[up].cell) return std::nullopt;
    auto& here = v.lines.emplace_back();
    v.cells.push_back(lines.all[down].cell);
    // A backward goes the other way: first the region that came last.
    const auto put = [&](size_t pass, size_t turn, std::optional<size_t> line) {
      here[pass][turn] = line.value_or(VShape::kNoLine);
      return line.has_value();
    };
    put(0, 0, down), put(0, 1, up);
    if (!put(1, 0, line_of(dag, lines, up, TaskPass::kBI)) ||
        !put(1, 1, line_of(dag, lines, down, TaskPass::kBI)))
      return std::nullopt;
    put(2, 0, line_of(dag, lines, up, TaskPass::kBW));
    put(2, 1, line_of(dag, lines, down, TaskPass::kBW));
    const size_t count = lines.all[down].end - lines.all[down].first;
    for (const auto& pass : here)
      for (const size_t line : pass)
        if (line != VShape::kNoLine && lines.all[line].end - lines.all[line].first != count)
          return std::nullopt;
  }
  for (size_t at = 1; at < cells; ++at)
    if (std::count(v.cells.begin(), v.cells.begin() + static_cast<std::ptrdiff_t>(at),
                   v.cells[at]) > 0)
      return std::nullopt;
  return v;
}

namespace {

enum Pass : uint8_t { kForward, kInput, kWeights };

class VLister {
 public:
  VLister(const ListPolicy& policy, const Lines& lines, const VShape& v, const Sample& sample,
          const VRules& rules, std::vector<int64_t> idle_before, int64_t longest)
      : policy_(policy),
        lines_(lines),
        v_(v),
        micros_(sample.micros),
        rules_(rules),
        idle_before_(std::move(idle_before)),
        most_before_(
            idle_before_.empty() ? 0 : *std::max_element(idle_before_.begin(), idle_before_.end())),
        longest_(longest),
        work_(sample.work),
        end_(lines.places.size(), -1),
        real_end_(rules.are_equal ? lines.places.size() : 0),
        all_(v.cells.size()) {
    for (size_t at = 0; at < all_.size(); ++at) all_[at].order.reserve(6 * micros_);
  }

  // Returns false where the limits do not let it, or it becomes longer than another order.
  bool run() {
    if (!begin() || !follow()) return false;
    for (size_t round = 0; round < 2 * micros_; ++round)
      if (!backwards() || !forwards() || is_longer()) return false;
    for (size_t at = 0; at < all_.size(); ++at)
      while (has_weights(at)) put_weights(at);
    return true;
  }
  std::vector<int64_t> idle() const {
    std::vector<int64_t> idle;
    for (const Cell& cell : all_) idle.push_back(cell.planned.idle);
    return idle;
  }
  const Used& used() const { return used_; }
  int64_t length() const {
    int64_t most = 0;
    for (const Cell& cell : all_)
      most = std::max(most, cell.real.now - (policy_.span ? cell.real.first : 0));
    return most;
  }
  std::vector<ComputeOrder> orders() && {
    std::vector<ComputeOrder> orders(lines_.of_cell.size());
    for (size_t at = 0; at < all_.size(); ++at)
      orders[v_.cells[at]].tasks = std::move(all_[at].order);
    return orders;
  }

 private:
  struct Cell {
    std::array<std::array<size_t, 2>, 3> done{};  // tasks, by pass and turn
    struct Clock {
      int64_t now = 0, first = 0, idle = 0;
    };
    Clock planned, real;  // with the times that the rules take, and with those that tasks have
    int64_t bytes = 0, chunks = 0;
    std::vector<size_t> weights;  // turns of the weight halves that can run
    size_t next_weights = 0;      // in `weights`
    std::vector<TaskId> order;
  };

  // What a cell has idled stays.
  bool is_longer() const {
    for (size_t at = 0; at < all_.size(); ++at) {
      const int64_t before = policy_.span ? 0 : all_[at].real.first;
      if (before + all_[at].real.idle + work_[v_.cells[at]] >= longest_) return true;
    }
    return false;
  }
  size_t place(Pass pass, size_t turn, size_t at, size_t n) const {
    return lines_.all[v_.lines[at][pass][turn]].first + n;
  }
  size_t next_place(Pass pass, size_t turn, size_t at) const {
    return place(pass, turn, at, all_[at].done[pass][turn]);
  }
  bool is_done(Pass pass, size_t turn, size_t at) const {
    return all_[at].done[pass][turn] == micros_;
  }
  // Returns when what it needs is there; -1: it is not known yet.
  int64_t ready(size_t place) const {
    int64_t time = 0;
    for (const Need& need : lines_.needs[place]) {
      const int64_t end = end_[static_cast<size_t>(need.place)];
      if (end < 0) return -1;
      time = std::max(time, end + (rules_.are_equal ? 0 : need.delay));
    }
    return time;
  }
  // Returns when the next task can begin; -1: there is none, or it is not known yet.
  int64_t next_ready(Pass pass, size_t turn, size_t at) const {
    return is_done(pass, turn, at) ? -1 : ready(next_place(pass, turn, at));
  }
  bool fits(size_t at, int64_t more, int64_t bytes) {
    const int64_t chunks = all_[at].chunks + more, all_bytes = all_[at].bytes + bytes;
    if (chunks > policy_.in_flight[v_.cells[at]] ||
        (policy_.memory > 0 && all_bytes > policy_.memory))
      return false;
    used_.note(chunks, all_bytes);
    return true;
  }

  int64_t really_ready(size_t place) const {
    int64_t time = 0;
    for (const Need& need : lines_.needs[place])
      time = std::max(time, real_end_[static_cast<size_t>(need.place)] + need.delay);
    return time;
  }
  // Returns when it ends.
  static int64_t run_task(const Cell& cell, Cell::Clock& clock, int64_t there, int64_t time) {
    const int64_t start = std::max(clock.now, there);
    if (cell.order.empty())
      clock.first = start;
    else
      clock.idle += start - clock.now;
    return clock.now = start + time;
  }
  bool put(Pass pass, size_t turn, size_t at) {
    return put(pass, turn, at, next_ready(pass, turn, at));
  }
  // `there`: its next_ready.
  bool put(Pass pass, size_t turn, size_t at, int64_t there) {
    Cell& cell = all_[at];
    const size_t which = next_place(pass, turn, at);
    const LinePlace& what = lines_.places[which];
    if (there < 0 || (pass == kForward && !fits(at, 1, what.held))) return false;
    end_[which] = run_task(cell, cell.planned, there, time_of(what));
    if (rules_.are_equal)
      real_end_[which] = run_task(cell, cell.real, really_ready(which), what.time);
    else
      cell.real = cell.planned;
    most_ = std::max(most_, cell.planned.idle);
    const bool has_weights = v_.lines[at][kWeights][turn] != VShape::kNoLine;
    cell.bytes += pass == kForward ? what.held : -what.freed;
    cell.chunks += pass == kForward ? 1 : pass == kWeights || !has_weights ? -1 : 0;
    if (pass == kInput && has_weights) cell.weights.push_back(turn);
    ++cell.done[pass][turn];
    cell.order.push_back(what.task);
    return true;
  }
  int64_t time_of(const LinePlace& place) const { return rules_.are_equal ? 1 : place.time; }
  bool has_weights(size_t at) const { return all_[at].next_weights < all_[at].weights.size(); }
  void put_weights(size_t at) {
    Cell& cell = all_[at];
    put(kWeights, cell.weights[cell.next_weights++], at);
  }
  int64_t time_of_weights(size_t at) const {
    const Cell& cell = all_[at];
    return time_of(lines_.places[next_place(kWeights, cell.weights[cell.next_weights], at)]);
  }
  // Runs weight halves in the time until a task can begin; and, if it may, one that makes it wait
  // where the cell has idled less than others have, or did the last time.
  void fill(size_t at, int64_t there, bool may_wait) {
    Cell& cell = all_[at];
    while (has_weights(at) && there >= cell.planned.now + time_of_weights(at)) put_weights(at);
    const int64_t before = idle_before_.empty() ? 0 : most_before_ - idle_before_[at];
    if (may_wait && has_weights(at) &&
        there - cell.planned.now > std::max(most_, before) - cell.planned.idle)
      put_weights(at);
  }

  // The first microbatch goes down and up; meanwhile others go down as far as there is time and
  // room.
  bool begin() {
    for (size_t at = 0; at < all_.size(); ++at)
      if (!put(kForward, 0, at)) return false;
    for (size_t at = all_.size(); at-- > 0;) {
      const size_t up = next_place(kForward, 1, at);
      const auto more = static_cast<int64_t>(2 + 2 * at);
      for (;;) {
        if (at + 1 == all_.size() || is_done(kForward, 0, at)) break;
        const LinePlace& next = lines_.places[next_place(kForward, 0, at)];
        if (all_[at].planned.now + time_of(next) > ready(up) || !fits(at, more, more * next.held))
          break;
        for (size_t above = 0; above <= at; ++above)
          if (!put(kForward, 0, above)) return false;
      }
      if (!put(kForward, 1, at)) return false;
    }
    return true;
  }
  // Cells further down begin as many forwards as those above, in turn of both regions.
  bool follow() {
    size_t turn = 0;
    const auto done = [&](size_t at) {
      return all_[at].done[kForward][0] + all_[at].done[kForward][1];
    };
    for (size_t at = 1; at < all_.size(); ++at)
      while (done(at) < done(at - 1) ||
             (all_[at].done[kForward][1] <= all_[at - 1].done[kForward][1] &&
              !is_done(kForward, 1, at - 1))) {
        const size_t before = done(at);
        for (size_t below = all_.size(); below-- > at;)
          if (!is_done(kForward, turn, below) && !put(kForward, turn, below)) return false;
        if (done(at) == before && is_done(kForward, 1 - turn, at)) return false;
        turn = 1 - turn;
      }
    return true;
  }
  // Every cell runs an input half: of the region whose gradient comes up to it, if it has come.
  bool backwards() {
    std::vector<bool> comes_up(all_.size());
    for (size_t at = 0; at < all_.size(); ++at) {
      const auto& done = all_[at].done[kInput];
      if (done[1] >= done[0]) continue;
      comes_up[at] = at + 1 == all_.size() || done[0] == micros_ ||
                     end_[place(kInput, 1, at + 1, done[1])] >= 0;
    }
    const auto run = [&](size_t at, size_t turn) {
      const int64_t there = next_ready(kInput, turn, at);
      if (is_done(kInput, turn, at)) return false;
      fill(at, there, turn == 1 || rules_.backwards_wait);
      return put(kInput, turn, at, there);
    };
    for (size_t at = all_.size(); at-- > 0;)
      if (comes_up[at] && !run(at, 1)) return false;
    for (size_t at = 0; at < all_.size(); ++at)
      if (!comes_up[at] && !run(at, 0)) return false;
    return true;
  }
  bool forwards() {
    for (size_t at = 0; at < all_.size(); ++at) {
      const auto& done = all_[at].done[kForward];
      size_t turn = 1;
      int64_t there = done[1] < done[0] ? next_ready(kForward, 1, at) : -1;
      if (there < 0) there = next_ready(kForward, turn = 0, at);
      if (there < 0) continue;
      const int64_t held = lines_.places[next_place(kForward, turn, at)].held;
      while (!fits(at, 1, held) && has_weights(at)) put_weights(at);
      fill(at, there, rules_.forwards_wait);
      if (!put(kForward, turn, at, there)) return false;
    }
    return true;
  }

  const ListPolicy& policy_;
  const Lines& lines_;
  const VShape& v_;
  const size_t micros_;
  const VRules& rules_;
  const std::vector<int64_t> idle_before_;  // by cell: in the order that this one is to improve
  const int64_t most_before_;
  const int64_t longest_;
  const std::vector<int64_t>& work_;  // by cell
  std::vector<int64_t> end_;          // by place, as planned; -1: it has not run
  std::vector<int64_t> real_end_;     // the same as it is, where that differs
  std::vector<Cell> all_;             // from the top down
  int64_t most_ = 0;                  // idle time of a cell
  Used used_;
};

}  // namespace

std::optional<TimedOrder> order_v(const ListPolicy& policy, const Lines& lines, const VShape& v,
                                  const Sample& sample, const VRules& rules, Used& used) {
  std::optional<TimedOrder> best;
  used = {};
  // Cells that idle less than the worst one can let tasks wait: each turn lists again with that.
  for (std::vector<int64_t> idle;;) {
    VLister lister(policy, lines, v, sample, rules, idle, best ? best->length : INT64_MAX);
    const bool runs = lister.run();
    used.note(lister.used().chunks, lister.used().bytes);
    if (!runs || (best && lister.length() >= best->length)) return best;
    idle = lister.idle();
    const int64_t length = lister.length();
    best = {std::move(lister).orders(), length};
  }
}

}  // namespace piper
