// List scheduling: simulates the cells and lets each take what can start first.
#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "lines.h"
#include "piper/base/parallel.h"

namespace piper {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// Says how closely a simulation follows a pattern: it takes the tasks in its order; or of those
// that can start first the one that is first in the pattern, within its limits.
enum class Follow { kNothing, kOrder, kLimits };

class Lister {
 public:
  Lister(const Dag& dag, const ListPolicy& policy, const Lines& lines, size_t micros,
         Follow follow = Follow::kNothing, const Pattern* pattern = nullptr)
      : dag_(dag),
        policy_(policy),
        lines_(lines),
        micros_(micros),
        follow_(follow),
        pattern_(pattern),
        finish_(lines.places.size(), kNever),
        next_(lines.all.size()),
        ready_(lines.all.size()),
        held_(lines.all.size()),
        clock_(dag.cells.size()),
        in_flight_(dag.cells.size()),
        bytes_(dag.cells.size()),
        version_(dag.cells.size()),
        order_(dag.cells.size()) {}

  Result<std::vector<ComputeOrder>> run() {
    for (size_t l = 0; l < ready_.size(); ++l) find_ready(l);
    for (size_t cell = 0; cell < clock_.size(); ++cell) look_at(cell);
    for (;;) {
      const Choice best = next();
      if (best.start == kNever) return std::move(order_);
      const Line& line = lines_.all[best.line];
      if (blocked(best.line) && !policy_.limits_give_way) return too_tight(line.cell);
      take(best);
    }
  }
  int64_t end() const { return *std::max_element(clock_.begin(), clock_.end()); }

 private:
  struct Choice {
    size_t line = 0;
    int64_t start = kNever;  // that: nothing
  };

  // Returns the place of the next task.
  const LinePlace& place_of(size_t l) const {
    return lines_.places[lines_.all[l].first + next_[l]];
  }
  bool blocked(size_t l) const {
    const Line& line = lines_.all[l];
    if (line.pass != TaskPass::kF || line.slots == 0) return false;
    const int64_t chunks = in_flight_[line.cell], bytes = bytes_[line.cell];
    if (follow_ == Follow::kOrder)
      return chunks + 1 > policy_.in_flight[line.cell] ||
             (policy_.memory > 0 && bytes + place_of(l).held > policy_.memory);
    if (follow_ == Follow::kLimits && held_[l] >= pattern_->limit[l]) return true;
    return chunks + line.room > policy_.in_flight[line.cell] ||
           (policy_.memory > 0 && bytes + line.bytes > policy_.memory);
  }

  // Returns what starts first; of several the first cell's.
  Choice next() {
    for (; !queue_.empty(); queue_.pop()) {
      const auto& [start, cell, version] = queue_.top();
      if (version == version_[cell]) return best_in(cell, false);
    }
    for (size_t cell = 0; cell < clock_.size(); ++cell)
      if (const Choice best = best_in(cell, true); best.start < kNever) return best;
    return {};
  }
  void look_at(size_t cell) {
    ++version_[cell];
    if (const Choice best = best_in(cell, false); best.start < kNever)
      queue_.push({best.start, cell, version_[cell]});
  }
  Choice best_in(size_t cell, bool ignore_limits) const {
    Choice best;
    for (size_t l : lines_.of_cell[cell]) {
      if (follow_ == Follow::kOrder) {
        if (is_done(l)) continue;
        if (best.start == kNever || time_in_pattern(l) < time_in_pattern(best.line)) best = {l, 0};
        continue;
      }
      const int64_t start = start_of(l, cell);
      if (start >= kNever || start > best.start) continue;
      if (start == best.start && !before(l, best.line)) continue;
      if (ignore_limits || !blocked(l)) best = {l, start};
    }
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
    if (line.slots > 0) {
      const int64_t sign = line.pass == TaskPass::kF ? 1 : -1;
      in_flight_[line.cell] += sign;
      held_[line.forward] += sign;
      bytes_[line.cell] += sign * lines_.places[lines_.all[line.forward].first + n].held;
    }
    order_[line.cell].tasks.push_back(lines_.places[place].task);
    find_ready(choice.line);
    // A cell for which nothing changed has its right place in the queue.
    for (size_t l : line.readers)
      if (find_ready(l) && lines_.all[l].cell != line.cell) look_at(lines_.all[l].cell);
    look_at(line.cell);
  }

  Error too_tight(size_t cell) const {
    int64_t chunks = 0, bytes = 0;
    for (size_t l : lines_.of_cell[cell])
      if (const Line& line = lines_.all[l]; line.pass == TaskPass::kF) {
        chunks = std::max(chunks, line.room);
        bytes = std::max(bytes, line.bytes);
      }
    std::string where;
    for (size_t a = 0; a < dag_.mesh.size(); ++a)
      if (dag_.mesh[a].placed)
        where += fmt::format(" {}={}", dag_.mesh[a].name, dag_.cells[cell][a]);
    Error error = fail(policy_.at, "policy: the limits let no microbatch through on{}", where)
                      .with_code(ExitCode::kRefused);
    const char* many = chunks == 1 ? "" : "s";
    if (policy_.in_flight[cell] < chunks)
      error.notes.push_back(
          fmt::format("one microbatch holds {} chunk{} there, and in_flight is {}", chunks, many,
                      policy_.in_flight[cell]));
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
  std::vector<int64_t> finish_;
  std::vector<size_t> next_;    // by line: how many of its tasks are taken
  std::vector<int64_t> ready_;  // by line: from when on what its next task needs is there
  std::vector<int64_t> held_;   // by line: chunks of activations of a forward's region
  std::vector<int64_t> clock_, in_flight_, bytes_;  // by cell
  // The first start of each cell; an entry whose version is not the cell's is out of date.
  using Entry = std::tuple<int64_t, size_t, int32_t>;  // start, cell, version
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::vector<int32_t> version_;
  std::vector<ComputeOrder> order_;
};

// Holds a simulation and its result.
struct Try {
  Follow follow = Follow::kNothing;
  const Pattern* pattern = nullptr;
  Result<std::vector<ComputeOrder>> order = std::vector<ComputeOrder>();
  int64_t end = 0;
};

}  // namespace

Result<std::vector<ComputeOrder>> list_schedule(const Dag& dag, const TaskLists& deps,
                                                const ListPolicy& policy) {
  const Lines lines(dag, deps, policy);
  const auto micros = static_cast<size_t>(dag.micros());
  const auto patterns = policy.limits_give_way ? std::vector<Pattern>() : find_patterns(dag, lines);
  // What starts, repeats and ends shows on few more microbatches than are in flight.
  size_t sample = patterns.empty() ? micros : 2;
  for (const Pattern& pattern : patterns)
    for (int64_t limit : pattern.limit)
      sample = std::max(sample, static_cast<size_t>(limit + limit / 2));
  std::vector<Try> tries(1);
  for (const Pattern& pattern : patterns)
    for (const Follow follow : {Follow::kOrder, Follow::kLimits}) {
      tries.emplace_back().follow = follow;
      tries.back().pattern = &pattern;
    }
  in_parallel(tries.size(), [&](size_t t) {
    Lister lister(dag, policy, lines, sample, tries[t].follow, tries[t].pattern);
    tries[t].order = lister.run();
    tries[t].end = lister.end();
  });
  size_t first = 0;
  for (size_t t = 1; t < tries.size(); ++t) {
    const bool holds_more = !tries[t].order || !tries[t - (t + 1) % 2].order;  // than the limits
    if (!holds_more && tries[0].order && tries[t].end < tries[first].end) first = t;
  }
  PIPER_ASSIGN(std::vector<ComputeOrder> best, std::move(tries[first].order));
  if (sample >= micros) return best;
  return Lister(dag, policy, lines, micros, tries[first].follow, tries[first].pattern).run();
}

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
  policy.in_flight.assign(dag.cells.size(), kNever);
  for (size_t i = 0; i < cells.size(); ++i)
    policy.in_flight[cells[i]] = chunks[cells[i]] * static_cast<int64_t>(cells.size() - i);
  return policy;
}

}  // namespace piper
