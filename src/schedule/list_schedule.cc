// List scheduling: simulates the cells and lets each take what can start first.
#include <algorithm>
#include <limits>
#include <map>

#include "dependencies.h"
#include "piper/schedule.h"

namespace piper {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// An ordered task that another needs, and how long their messages take.
struct Need {
  TaskId task;
  int64_t delay = 0;
};

// Seen through communication and sums. `open` is for its own use.
void find_needs(const Dag& dag, const TaskLists& deps, TaskId id, double time_per_byte,
                std::vector<Need>& needs, std::vector<Need>& open) {
  needs.clear();
  open.push_back({id, 0});
  while (!open.empty()) {
    const Need at = open.back();
    open.pop_back();
    for (TaskId d : deps[at.task.index()]) {
      const Task& task = dag.tasks[d.index()];
      int64_t delay = at.delay;
      if (task.kind == TaskKind::kRecv) {
        const ValueId value = dag.items[task.writes[0].index()].value;
        delay += static_cast<int64_t>(time_per_byte *
                                      static_cast<double>(dag.graph.value(value).type.bytes()));
      }
      (is_ordered(task) ? needs : open).push_back({d, delay});
    }
  }
}

// The tasks of one chunk and pass on a cell, by microbatch: the next one is the only choice.
struct Line {
  std::vector<TaskId> tasks;
  size_t next = 0;
  size_t chunk = 0;
  char pass = 'F';
  int rank = 0;       // in `prefer`
  int64_t room = 1;   // forwards: chunks of activations that must fit, with those of later chunks
  int64_t bytes = 0;  // the same in bytes
  int64_t held = 0;   // bytes that a forward takes and the end of its backward gives back
  int64_t slots = 0;  // 1 where activations are taken or given back
};

class Lister {
 public:
  Lister(const Dag& dag, const ListPolicy& policy)
      : dag_(dag),
        policy_(policy),
        finish_(dag.tasks.size(), kNever),
        lines_(dag.cells.size()),
        clock_(dag.cells.size()),
        in_flight_(dag.cells.size()),
        bytes_(dag.cells.size()),
        best_(dag.cells.size()),
        stale_(dag.cells.size(), true),
        last_reader_(dag.tasks.size(), -1),
        order_(dag.cells.size()) {
    const auto deps = find_dependencies(dag);
    std::map<size_t, std::pair<size_t, size_t>> line_of_chunk;
    std::vector<Need> needs, open;
    for (size_t t = 0; t < dag.tasks.size(); ++t) {
      const Task& task = dag.tasks[t];
      needs.clear();
      if (is_ordered(task)) {
        find_needs(dag, deps, TaskId(t), policy.time_per_byte, needs, open);
        add_to_line(TaskId(t), line_of_chunk);
      }
      for (const Need& need : needs) {
        int32_t& last = last_reader_[need.task.index()];
        readers_.push_back({static_cast<size_t>(task.cell), last});
        last = static_cast<int32_t>(readers_.size() - 1);
      }
      needs_.add(needs);
    }
    for (auto& lines : lines_) measure(lines);
  }

  Result<std::vector<ComputeOrder>> run() {
    for (;;) {
      Choice best;
      for (size_t cell = 0; cell < lines_.size(); ++cell) {
        if (stale_[cell]) best_[cell] = best_in(cell, false);
        stale_[cell] = false;
        if (best_[cell].start < best.start) best = best_[cell];
      }
      for (size_t cell = 0; cell < lines_.size() && !best.line; ++cell) best = best_in(cell, true);
      if (!best.line) return std::move(order_);
      if (blocked(*best.line, best.cell) && !policy_.limits_give_way) return too_tight(best.cell);
      take(best);
    }
  }

 private:
  struct Choice {
    Line* line = nullptr;
    size_t cell = 0;
    int64_t start = kNever;
  };

  // A cell that waits for a task, and the reader of the same before.
  struct Reader {
    size_t cell = 0;
    int32_t before = -1;
  };

  void add_to_line(TaskId id, std::map<size_t, std::pair<size_t, size_t>>& line_of_chunk) {
    const Task& task = dag_.tasks[id.index()];
    auto& lines = lines_[static_cast<size_t>(task.cell)];
    const auto [at, is_new] =
        line_of_chunk.try_emplace(task.chunk.index(), static_cast<size_t>(task.cell), lines.size());
    if (is_new) {
      Line line;
      line.chunk = task.chunk.index();
      line.pass = task.pass;
      const auto rank = std::find(policy_.prefer.begin(), policy_.prefer.end(), task.pass);
      line.rank = static_cast<int>(rank - policy_.prefer.begin());
      lines.push_back(std::move(line));
    }
    lines[at->second.second].tasks.push_back(id);
  }

  // What forwards hold and what gives it back: the weight part, else the whole or the input part.
  void measure(std::vector<Line>& lines) const {
    std::map<std::vector<int32_t>, std::map<char, Line*>> regions;
    for (Line& line : lines) {
      std::sort(line.tasks.begin(), line.tasks.end(), [&](TaskId a, TaskId b) {
        return dag_.tasks[a.index()].micro < dag_.tasks[b.index()].micro;
      });
      regions[dag_.chunks[line.chunk].tags][line.pass] = &line;
    }
    std::vector<Line*> forwards;
    for (auto& [tags, passes] : regions) {
      Line* last = nullptr;
      for (const char pass : {'I', 'B', 'W'})
        if (passes.count(pass)) last = passes.at(pass);
      if (!last || !passes.count('F')) continue;
      Line* forward = passes.at('F');
      forward->slots = last->slots = 1;
      forward->held = last->held = policy_.held.empty() ? 0 : policy_.held[forward->chunk];
      forwards.push_back(forward);
    }
    std::sort(forwards.begin(), forwards.end(),
              [](const Line* a, const Line* b) { return a->chunk > b->chunk; });
    int64_t room = 0, bytes = 0;
    for (Line* forward : forwards) {
      forward->room = ++room;
      forward->bytes = bytes += forward->held;
    }
  }

  bool blocked(const Line& line, size_t cell) const {
    if (line.pass != 'F' || line.slots == 0) return false;
    if (in_flight_[cell] + line.room > policy_.in_flight[cell]) return true;
    return policy_.memory > 0 && bytes_[cell] + line.bytes > policy_.memory;
  }

  Choice best_in(size_t cell, bool ignore_limits) {
    Choice best;
    for (Line& line : lines_[cell]) {
      if (line.next == line.tasks.size()) continue;
      if (!ignore_limits && blocked(line, cell)) continue;
      const TaskId id = line.tasks[line.next];
      int64_t start = clock_[cell];
      for (const Need& need : needs_[id.index()])
        start = std::max(start, std::min(kNever, finish_[need.task.index()] + need.delay));
      if (start >= kNever) continue;
      if (!best.line || start < best.start || (start == best.start && before(line, *best.line)))
        best = {&line, cell, start};
    }
    return best;
  }
  bool before(const Line& a, const Line& b) const {
    const auto micro = [&](const Line& line) {
      return dag_.tasks[line.tasks[line.next].index()].micro;
    };
    if (a.rank != b.rank) return a.rank < b.rank;
    if (micro(a) != micro(b)) return micro(a) < micro(b);
    return a.chunk > b.chunk;
  }

  void take(const Choice& choice) {
    Line& line = *choice.line;
    const TaskId id = line.tasks[line.next++];
    finish_[id.index()] = clock_[choice.cell] = choice.start + policy_.time[line.chunk];
    const int64_t sign = line.pass == 'F' ? 1 : -1;
    in_flight_[choice.cell] += sign * line.slots;
    bytes_[choice.cell] += sign * line.held;
    order_[choice.cell].tasks.push_back(id);
    stale_[choice.cell] = true;
    for (int32_t r = last_reader_[id.index()]; r >= 0; r = readers_[static_cast<size_t>(r)].before)
      stale_[readers_[static_cast<size_t>(r)].cell] = true;
  }

  Error too_tight(size_t cell) const {
    int64_t chunks = 0, bytes = 0;
    for (const Line& line : lines_[cell])
      if (line.pass == 'F') {
        chunks = std::max(chunks, line.room);
        bytes = std::max(bytes, line.bytes);
      }
    std::string where;
    for (size_t a = 0; a < dag_.mesh.size(); ++a)
      if (dag_.mesh[a].placed)
        where += fmt::format(" {}={}", dag_.mesh[a].name, dag_.cells[cell][a]);
    Error error = fail(policy_.at, "policy: the limits let no microbatch through on{}", where)
                      .with_code(ExitCode::kRefused);
    error.notes.push_back(fmt::format("one microbatch holds {} chunks there, and in_flight is {}",
                                      chunks, policy_.in_flight[cell]));
    if (policy_.memory > 0)
      error.notes.push_back(
          fmt::format("they keep {} bytes, and memory is {}", bytes, policy_.memory));
    return error;
  }

  const Dag& dag_;
  const ListPolicy& policy_;
  std::vector<int64_t> finish_;
  ListsByTask<Need> needs_;
  std::vector<std::vector<Line>> lines_;  // by cell
  std::vector<int64_t> clock_, in_flight_, bytes_;
  std::vector<Choice> best_;
  std::vector<bool> stale_;  // by cell: best_ must be found again
  std::vector<Reader> readers_;
  std::vector<int32_t> last_reader_;  // by task, in readers_
  std::vector<ComputeOrder> order_;
};

}  // namespace

Result<std::vector<ComputeOrder>> list_schedule(const Dag& dag, const ListPolicy& policy) {
  return Lister(dag, policy).run();
}

ListPolicy default_policy(const Dag& dag) {
  ListPolicy policy;
  policy.prefer = {'B', 'I', 'F', 'W'};
  policy.limits_give_way = true;
  std::vector<int64_t> chunks(dag.cells.size());
  std::vector<size_t> cells;  // by first use
  for (const Chunk& chunk : dag.chunks) {
    policy.time.push_back(chunk.pass == 'B' ? 2 : 1);
    const auto cell = static_cast<size_t>(chunk.cell);
    if (chunk.pass == 'F') ++chunks[cell];
    const bool ordered = chunk.pass != 'P' && chunk.pass != 'U';
    if (ordered && std::find(cells.begin(), cells.end(), cell) == cells.end())
      cells.push_back(cell);
  }
  policy.in_flight.assign(dag.cells.size(), kNever);
  for (size_t i = 0; i < cells.size(); ++i)
    policy.in_flight[cells[i]] = chunks[cells[i]] * static_cast<int64_t>(cells.size() - i);
  return policy;
}

}  // namespace piper
