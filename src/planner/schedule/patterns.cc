// Stable patterns: one microbatch's tasks are laid on a circle of time on which every cell has room
// for one microbatch, so that all others can follow at its length (modulo scheduling; for
// pipelines: Qi et al., Pipeline Parallelism with Controllable Memory, 2024).
#include <algorithm>
#include <optional>

#include "lines.h"

namespace piper {
namespace {

int64_t units(const Line& line) { return line.pass == TaskPass::kB ? 2 : 1; }

// Says how long a chain waits after a task of a cell that it comes back to, or will come back to.
struct Pauses {
  int64_t forward_again = 0;  // after forwards of the cell's later regions
  int64_t backward_last = 0;  // after backwards of its first one
};

class PatternMaker {
 public:
  PatternMaker(const Dag& dag, const Lines& lines, const std::vector<size_t>& order, Pauses pauses)
      : dag_(dag), lines_(lines), order_(order), pauses_(pauses) {}

  std::optional<Pattern> run() {
    std::vector<int64_t> work(lines_.of_cell.size());
    for (const Line& line : lines_.all) work[line.cell] += units(line);
    pattern_.period = *std::max_element(work.begin(), work.end());
    pattern_.start.assign(lines_.all.size(), 0);
    pattern_.limit.assign(lines_.all.size(), 0);
    taken_.assign(work.size(), std::vector<bool>(static_cast<size_t>(pattern_.period)));
    for (size_t l : order_)
      if (!put(l)) return std::nullopt;
    for (const auto& here : lines_.of_cell) limit(here), pattern_.used.push_back(used_by(here));
    return std::move(pattern_);
  }

 private:
  int64_t ready_at(size_t l) const {
    const Line& line = lines_.all[l];
    int64_t ready = 0;
    for (const Need& need : lines_.needs[line.first]) {
      const auto n = static_cast<size_t>(lines_.places[static_cast<size_t>(need.place)].line);
      const Line& before = lines_.all[n];
      int64_t pause = 0;
      if (before.pass == TaskPass::kF && line.pass == TaskPass::kF && !before.first_here)
        pause = pauses_.forward_again;
      if (before.pass != TaskPass::kF && line.pass == before.pass && before.first_here)
        pause = pauses_.backward_last;
      ready = std::max(ready, pattern_.start[n] + units(before) + pause);
    }
    return ready;
  }
  // Puts it at the first free time of the period.
  bool put(size_t l) {
    const Line& line = lines_.all[l];
    std::vector<bool>& taken = taken_[line.cell];
    const int64_t period = pattern_.period, ready = ready_at(l);
    for (int64_t at = ready; at < ready + period; ++at) {
      bool is_free = true;
      for (int64_t u = 0; u < units(line); ++u)
        is_free = is_free && !taken[static_cast<size_t>((at + u) % period)];
      if (!is_free) continue;
      for (int64_t u = 0; u < units(line); ++u)
        taken[static_cast<size_t>((at + u) % period)] = true;
      pattern_.start[l] = at;
      return true;
    }
    return false;
  }
  // Limits each region from its forward to the end of its backward.
  void limit(const std::vector<size_t>& here) {
    for (size_t f : here) {
      if (lines_.all[f].pass != TaskPass::kF) continue;
      int64_t end = pattern_.start[f] + 1;
      for (size_t l : here)
        if (dag_.chunks[lines_.all[l].chunk].tags == dag_.chunks[lines_.all[f].chunk].tags)
          end = std::max(end, pattern_.start[l] + units(lines_.all[l]));
      const int64_t life = end - pattern_.start[f];
      pattern_.limit[f] = (life + pattern_.period - 1) / pattern_.period;
    }
  }

  // Returns what a cell holds that runs its tasks in the order of their starts. Where microbatches
  // are alike, that repeats itself once all lines have begun.
  Used used_by(const std::vector<size_t>& here) const {
    std::vector<std::pair<int64_t, size_t>> next;  // start of a line's next task, and its place
    int64_t last = 0;
    for (const size_t l : here) {
      next.emplace_back(pattern_.start[l], lines_.all[l].first);
      last = std::max(last, pattern_.start[l] + pattern_.period);
    }
    Used used;
    int64_t chunks = 0, bytes = 0;
    for (;;) {
      size_t least = next.size();
      for (size_t i = 0; i < next.size(); ++i)
        if (next[i].second < lines_.all[here[i]].end &&
            (least == next.size() || next[i].first < next[least].first))
          least = i;
      if (least == next.size() || (lines_.are_alike && next[least].first > last)) return used;
      auto& [start, place] = next[least];
      const Line& line = lines_.all[here[least]];
      const LinePlace& what = lines_.places[place++];
      start += pattern_.period;
      chunks += line.pass == TaskPass::kF ? line.slots : -line.slots;
      bytes += line.pass == TaskPass::kF ? what.held : -what.freed;
      if (line.pass == TaskPass::kF && line.slots > 0) used.note(chunks, bytes);
    }
  }

  const Dag& dag_;
  const Lines& lines_;
  const std::vector<size_t>& order_;
  Pauses pauses_;
  Pattern pattern_;
  std::vector<std::vector<bool>> taken_;  // by cell and time on the circle
};

}  // namespace

bool Pattern::fits(const ListPolicy& limits) const {
  for (size_t cell = 0; cell < used.size(); ++cell)
    if (used[cell].chunks > limits.in_flight[cell] ||
        (limits.memory > 0 && used[cell].bytes > limits.memory))
      return false;
  return true;
}

std::vector<Pattern> find_patterns(const Dag& dag, const Lines& lines) {
  std::vector<Pattern> patterns;
  if (!dag.group_of.empty() || lines.all.empty()) return patterns;
  // Weight gradients, which nothing waits for, get what is left.
  std::vector<size_t> order(lines.all.size());
  for (size_t l = 0; l < order.size(); ++l) order[l] = l;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t l) {
      return std::pair(lines.all[l].pass == TaskPass::kBW, lines.places[lines.all[l].first].task);
    };
    return key(a) < key(b);
  });
  for (const int64_t forward : {0, 1})
    for (const int64_t backward : {0, 1})
      if (auto made = PatternMaker(dag, lines, order, {forward, backward}).run())
        patterns.push_back(*std::move(made));
  return patterns;
}

}  // namespace piper
