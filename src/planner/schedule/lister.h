// Simulates the cells and lets each take what can start first. Private to the schedule room.
#pragma once

#include <bit>
#include <limits>

#include "lines.h"

namespace piper {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// Says how closely a simulation follows a pattern: it takes the tasks in its order; or of those
// that can start first the one that is first in the pattern, within its limits.
enum class Follow { kNothing, kOrder, kLimits };

// Describes a way to fill a pipeline whose backwards are in halves (arXiv 2401.10241 has both
// choices).
struct Filling {
  // A weight half does not begin where another task can within this share of its time.
  double wait = 0;
  // By cell: forwards that may have run before their backwards; empty: any number.
  std::vector<int64_t> ahead;
};
// Holds a time by cell, and finds the least one: each inner node of a binary tree has the cell with
// the lesser time of the two below it.
class Earliest {
 public:
  explicit Earliest(size_t cells)
      : first_leaf_(std::bit_ceil(cells)), times_(first_leaf_, kNever), least_(first_leaf_) {
    for (size_t at = first_leaf_; at-- > 1;) least_[at] = below(2 * at);
  }
  int64_t time(size_t cell) const { return times_[cell]; }
  // Returns the first of the cells with the least time.
  size_t cell() const { return first_leaf_ > 1 ? least_[1] : 0; }
  void set(size_t cell, int64_t time) {
    times_[cell] = time;
    for (size_t at = (first_leaf_ + cell) / 2; at > 0; at /= 2) {
      const size_t a = below(2 * at), b = below(2 * at + 1);
      least_[at] = times_[b] < times_[a] ? b : a;
    }
  }

 private:
  size_t below(size_t at) const { return at < first_leaf_ ? least_[at] : at - first_leaf_; }

  const size_t first_leaf_;
  std::vector<int64_t> times_;  // by cell
  std::vector<size_t> least_;   // by inner node, from 1 on
};
class Lister {
 public:
  Lister(const Dag& dag, const ListPolicy& policy, const Lines& lines, const Sample& sample,
         Follow follow = Follow::kNothing, const Pattern* pattern = nullptr,
         const Filling* filling = nullptr, int64_t longest = kNever)
      : dag_(dag),
        policy_(policy),
        lines_(lines),
        micros_(sample.micros),
        follow_(follow),
        pattern_(pattern),
        filling_(filling),
        longest_(longest),
        left_(sample.work),
        finish_(lines.places.size(), kNever),
        next_(lines.all.size()),
        ready_(lines.all.size()),
        held_(lines.all.size()),
        clock_(dag.cells.size()),
        in_flight_(dag.cells.size()),
        bytes_(dag.cells.size()),
        ahead_(dag.cells.size()),
        first_(dag.cells.size(), kNever),
        choices_(dag.cells.size()),
        starts_(dag.cells.size()) {
    taken_.reserve(lines.places.size());
  }

  Result<std::vector<ComputeOrder>> run() {
    for (size_t l = 0; l < ready_.size(); ++l) find_ready(l);
    for (size_t cell = 0; cell < clock_.size(); ++cell) look_at(cell);
    for (;;) {
      const Choice best = next();
      if (best.start == kNever) return orders();
      const Line& line = lines_.all[best.line];
      if (blocked(best.line) && !policy_.limits_give_way) return too_tight(line.cell);
      take(best);
      if (least_length(line.cell) >= longest_) {
        is_given_up_ = true;
        return std::vector<ComputeOrder>();
      }
    }
  }
  // Returns what counts: when all have ended, or how long a cell is at work at most.
  int64_t length() const {
    if (is_given_up_) return kNever;
    int64_t most = 0;
    for (size_t cell = 0; cell < clock_.size(); ++cell) most = std::max(most, least_length(cell));
    return most;
  }
  const Used& used() const { return used_; }
  // Returns when the first task of a line has ended; kNever: it has none.
  int64_t first_end(size_t line) const {
    const Line& of = lines_.all[line];
    return of.first == of.end ? kNever : finish_[of.first];
  }

 private:
  struct Choice {
    size_t line = 0;
    int64_t start = kNever;  // that: nothing
  };

  // Returns how long it is at least, by what the cell has still to do.
  int64_t least_length(size_t cell) const {
    const int64_t begin = policy_.span ? std::min(first_[cell], clock_[cell]) : 0;
    return clock_[cell] + left_[cell] - begin;
  }
  // Returns the place of the next task.
  const LinePlace& place_of(size_t l) const {
    return lines_.places[lines_.all[l].first + next_[l]];
  }
  bool blocked(size_t l) const {
    const Line& line = lines_.all[l];
    if (line.pass != TaskPass::kF || line.slots == 0) return false;
    const int64_t chunks = in_flight_[line.cell], bytes = bytes_[line.cell];
    if (filling_ && !filling_->ahead.empty() && ahead_[line.cell] >= filling_->ahead[line.cell])
      return true;
    if (follow_ == Follow::kOrder) return false;  // the pattern's order fits
    if (follow_ == Follow::kLimits && held_[l] >= pattern_->limit[l]) return true;
    return chunks + line.room > policy_.in_flight[line.cell] ||
           (policy_.memory > 0 && bytes + line.bytes > policy_.memory);
  }

  // Returns what starts first; of several the first cell's.
  Choice next() {
    if (const size_t cell = starts_.cell(); starts_.time(cell) < kNever) return choices_[cell];
    for (size_t cell = 0; cell < clock_.size(); ++cell)
      if (const Choice best = best_in(cell, true); best.start < kNever) return best;
    return {};
  }
  void look_at(size_t cell) {
    choices_[cell] = best_in(cell, false);
    starts_.set(cell, choices_[cell].start);
  }
  Choice best_in(size_t cell, bool ignore_limits) const {
    Choice best, other;  // `other`: of those that are no weight halves
    for (size_t l : lines_.of_cell[cell]) {
      if (follow_ == Follow::kOrder) {
        if (is_done(l)) continue;
        if (best.start == kNever || time_in_pattern(l) < time_in_pattern(best.line)) best = {l, 0};
        continue;
      }
      const int64_t start = start_of(l, cell);
      if (start >= kNever || (!ignore_limits && blocked(l))) continue;
      const auto is_better = [&](const Choice& than) {
        return start < than.start || (start == than.start && before(l, than.line));
      };
      if (is_better(best)) best = {l, start};
      if (lines_.all[l].pass != TaskPass::kBW && is_better(other)) other = {l, start};
    }
    if (filling_ && other.start < kNever && best.line != other.line &&
        static_cast<double>(other.start - best.start) <
            filling_->wait * static_cast<double>(place_of(best.line).time))
      best = other;
    if (follow_ == Follow::kOrder && best.start < kNever) best.start = start_of(best.line, cell);
    return best;
  }
  bool is_done(size_t l) const {
    return lines_.all[l].first + next_[l] == lines_.all[l].end || next_[l] == micros_;
  }
  // Returns when it can start. kNever: something that it needs has no time yet, or it is done.
  int64_t start_of(size_t l, size_t cell) const { return std::max(clock_[cell], ready_[l]); }
  // Returns whether that changed.
  bool find_ready(size_t l) {
    int64_t start = is_done(l) ? kNever : 0;
    if (start == 0)
      for (const Need& need : lines_.needs[lines_.all[l].first + next_[l]])
        start = std::max(start,
                         std::min(kNever, finish_[static_cast<size_t>(need.place)] + need.delay));
    return std::exchange(ready_[l], start) != start;
  }
  int64_t time_in_pattern(size_t l) const {
    return pattern_->start[l] + static_cast<int64_t>(next_[l]) * pattern_->period;
  }
  bool before(size_t l, size_t m) const {
    if (follow_ != Follow::kNothing && time_in_pattern(l) != time_in_pattern(m))
      return time_in_pattern(l) < time_in_pattern(m);
    const Line &a = lines_.all[l], &b = lines_.all[m];
    if (a.rank != b.rank) return a.rank < b.rank;
    const int32_t micro_a = place_of(l).micro, micro_b = place_of(m).micro;
    return micro_a != micro_b ? micro_a < micro_b : a.chunk > b.chunk;
  }

  void take(const Choice& choice) {
    const Line& line = lines_.all[choice.line];
    const size_t n = next_[choice.line]++, place = line.first + n;
    finish_[place] = clock_[line.cell] = choice.start + lines_.places[place].time;
    left_[line.cell] -= lines_.places[place].time;
    first_[line.cell] = std::min(first_[line.cell], choice.start);
    if (line.slots > 0) {
      const int64_t sign = line.pass == TaskPass::kF ? 1 : -1;
      in_flight_[line.cell] += sign;
      held_[line.forward] += sign;
    }
    if (line.pass == TaskPass::kF) {
      const bool in_order = follow_ == Follow::kOrder;
      used_.note(in_flight_[line.cell] - line.slots + (in_order ? 1 : line.room),
                 bytes_[line.cell] + (in_order ? lines_.places[place].held : line.bytes));
      bytes_[line.cell] += lines_.places[place].held;
      ++ahead_[line.cell];
    } else {
      bytes_[line.cell] -= lines_.places[place].freed;
      if (line.pass != TaskPass::kBW) --ahead_[line.cell];
    }
    taken_.push_back(place);
    find_ready(choice.line);
    // A cell for which nothing changed has made its choice.
    for (size_t l : line.readers) {
      if (lines_.are_aligned && next_[l] != n) continue;
      if (find_ready(l) && lines_.all[l].cell != line.cell) look_at(lines_.all[l].cell);
    }
    look_at(line.cell);
  }

  std::vector<ComputeOrder> orders() const {
    std::vector<ComputeOrder> orders(clock_.size());
    for (const size_t place : taken_) {
      const LinePlace& what = lines_.places[place];
      orders[lines_.all[static_cast<size_t>(what.line)].cell].tasks.push_back(what.task);
    }
    return orders;
  }

  // Returns what one microbatch holds on a cell: chunks and bytes.
  std::pair<int64_t, int64_t> held_on(size_t cell) const {
    int64_t chunks = 0, bytes = 0;
    for (size_t l : lines_.of_cell[cell])
      if (const Line& line = lines_.all[l]; line.pass == TaskPass::kF) {
        chunks = std::max(chunks, line.room);
        bytes = std::max(bytes, line.bytes);
      }
    return {chunks, bytes};
  }
  // Says whether a limit lets no microbatch through the cell.
  bool is_too_low(size_t c) const {
    const auto [chunks, bytes] = held_on(c);
    return policy_.in_flight[c] < chunks || (policy_.memory > 0 && policy_.memory < bytes);
  }

  // `cell` has a task that may not run; it may wait for another one whose limit is too low.
  Error too_tight(size_t cell) const {
    for (size_t c = 0; c < clock_.size() && !is_too_low(cell); ++c)
      if (is_too_low(c)) cell = c;
    const auto [chunks, bytes] = held_on(cell);
    std::string where;
    for (size_t a = 0; a < dag_.mesh.size(); ++a)
      if (dag_.mesh[a].placed)
        where += fmt::format(" {}={}", dag_.mesh[a].name, dag_.cells[cell][a]);
    Error error = fail(policy_.at, "policy: the limits let no microbatch through on{}", where);
    const char* many = chunks == 1 ? "" : "s";
    if (policy_.in_flight[cell] < chunks)
      error.notes.push_back(
          fmt::format("one microbatch holds {} chunk{} there, and in_flight allows {}", chunks,
                      many, policy_.in_flight[cell]));
    if (policy_.memory > 0)
      error.notes.push_back(
          fmt::format("one microbatch's {} chunk{} there keep{} {} bytes, and memory is {}", chunks,
                      many, chunks == 1 ? "s" : "", bytes, policy_.memory));
    return error;
  }

  const Dag& dag_;
  const ListPolicy& policy_;
  const Lines& lines_;
  const size_t micros_;  // of each line at most so many tasks
  const Follow follow_;
  const Pattern* pattern_;
  const Filling* filling_;
  const int64_t longest_;
  bool is_given_up_ = false;
  Used used_;
  std::vector<int64_t> left_;  // by cell: the time of what it has still to do
  std::vector<int64_t> finish_;
  std::vector<size_t> next_;    // by line: how many of its tasks are taken
  std::vector<int64_t> ready_;  // by line: from when on what its next task needs is there
  std::vector<int64_t> held_;   // by line: chunks of activations of a forward's region
  std::vector<int64_t> clock_, in_flight_, bytes_;  // by cell
  std::vector<int64_t> ahead_, first_;  // by cell: forwards before their backwards; the first begin
  std::vector<Choice> choices_;         // by cell: what it can start first
  Earliest starts_;                     // of these
  std::vector<size_t> taken_;           // places, in order of their starts
};

}  // namespace piper
