#include "piper/schedule.h"

#include <algorithm>
#include <limits>

namespace piper {
namespace {

bool is_ordered(const Task& task) {
  return task.kind == TaskKind::kCompute && task.pass != 'P' && task.pass != 'U';
}

// Reductions between SPMD peers alone: all peers run the same program, so these may start as soon
// as they can.
bool is_peer_reduction(const Dag& dag, const Task& task) {
  if (task.kind != TaskKind::kAllReduce) return false;
  return std::none_of(task.group.begin(), task.group.end(),
                      [&](int32_t axis) { return dag.mesh[static_cast<size_t>(axis)].placed; });
}

// Tasks that must be issued before each task: writers of what it reads, and for receives the send.
std::vector<std::vector<TaskId>> find_dependencies(const Dag& dag) {
  const auto item_writers = writers(dag);
  std::vector<std::vector<TaskId>> deps(dag.tasks.size());
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    for (ItemId item : task.reads)
      for (TaskId w : item_writers[item.index()])
        if (w != TaskId(t)) deps[t].push_back(w);
    if (task.kind == TaskKind::kRecv) {
      // expand_tasks adds the send just before its receive.
      PIPER_CHECK(t > 0 && dag.tasks[t - 1].kind == TaskKind::kSend, "a receive without its send");
      deps[t].push_back(TaskId(t - 1));
    }
    std::sort(deps[t].begin(), deps[t].end());
    deps[t].erase(std::unique(deps[t].begin(), deps[t].end()), deps[t].end());
  }
  return deps;
}

class Issuer {
 public:
  Issuer(const Dag& dag, const std::vector<std::vector<TaskId>>& deps)
      : dag_(dag),
        deps_(deps),
        issued_(dag.tasks.size()),
        missing_(dag.tasks.size()),
        next_(dag.cells.size()) {
    schedule_.order.resize(dag.cells.size());
    waiters_.resize(dag.tasks.size());
    for (size_t t = 0; t < dag.tasks.size(); ++t) {
      const Task& task = dag.tasks[t];
      const bool eager = task.kind == TaskKind::kSend || is_peer_reduction(dag, task);
      if (!eager) continue;
      missing_[t] = static_cast<int32_t>(deps[t].size());
      for (TaskId d : deps[t]) waiters_[d.index()].push_back(TaskId(t));
    }
  }

  Result<Schedule> run(const std::vector<std::vector<TaskId>>& compute) {
    // What microbatches need of the whole step, on whichever cells it is made.
    const std::vector<bool> needed = needed_by_ordered();
    for (size_t t = 0; t < dag_.tasks.size(); ++t) {
      const Task& task = dag_.tasks[t];
      const bool early = task.pass == 'P' || (task.micro < 0 && task.kind != TaskKind::kInput);
      if (early && needed[t] && !issued_[t] && can_issue(TaskId(t))) issue_with_needs(TaskId(t));
    }
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t cell = 0; cell < compute.size(); ++cell)
        while (next_[cell] < compute[cell].size() && can_issue(compute[cell][next_[cell]])) {
          issue_with_needs(compute[cell][next_[cell]++]);
          progress = true;
        }
    }
    for (size_t cell = 0; cell < compute.size(); ++cell)
      if (next_[cell] < compute[cell].size()) return deadlock(compute);
    for (size_t t = 0; t < dag_.tasks.size(); ++t)
      if (!issued_[t]) issue(TaskId(t));
    return std::move(schedule_);
  }

 private:
  std::vector<bool> needed_by_ordered() const {
    std::vector<bool> needed(dag_.tasks.size());
    for (size_t t = dag_.tasks.size(); t-- > 0;)
      if (needed[t] || is_ordered(dag_.tasks[t]))
        for (TaskId d : deps_[t]) needed[d.index()] = true;
    return needed;
  }
  // Whether the task, and all that can be issued on demand before it, can be issued now.
  bool can_issue(TaskId id) const {
    const Task& task = dag_.tasks[id.index()];
    for (TaskId d : deps_[id.index()]) {
      if (issued_[d.index()]) continue;
      if (dag_.tasks[d.index()].cell != task.cell || is_ordered(dag_.tasks[d.index()]) ||
          !can_issue(d))
        return false;
    }
    return true;
  }
  void issue_with_needs(TaskId id) {
    for (TaskId d : deps_[id.index()])
      if (!issued_[d.index()]) issue_with_needs(d);
    if (!issued_[id.index()]) issue(id);
  }
  void issue(TaskId id) {
    issued_[id.index()] = true;
    schedule_.order[static_cast<size_t>(dag_.tasks[id.index()].cell)].push_back(id);
    for (TaskId w : waiters_[id.index()])
      if (--missing_[w.index()] == 0 && !issued_[w.index()]) issue(w);
  }

  // What keeps a task from being issued: the first task in another cell, or later in this cell's
  // order.
  TaskId blocker(TaskId id) const {
    const Task& task = dag_.tasks[id.index()];
    for (TaskId d : deps_[id.index()]) {
      if (issued_[d.index()]) continue;
      if (is_ordered(dag_.tasks[d.index()])) return d;
      if (dag_.tasks[d.index()].cell == task.cell && !can_issue(d)) return blocker(d);
      if (dag_.tasks[d.index()].cell != task.cell) return blocker(d);
    }
    return id;
  }
  std::string where(TaskId id) const {
    const Task& task = dag_.tasks[id.index()];
    std::string text = fmt::format("'{}'", task.label);
    if (dag_.cells.size() == 1) return text;
    text += " on";
    for (size_t a = 0; a < dag_.mesh.size(); ++a)
      if (dag_.mesh[a].placed)
        text +=
            fmt::format(" {}={}", dag_.mesh[a].name, dag_.cells[static_cast<size_t>(task.cell)][a]);
    return text;
  }
  Error deadlock(const std::vector<std::vector<TaskId>>& compute) const {
    Error error =
        fail("the order cannot run: its tasks wait for each other").with_code(ExitCode::kRefused);
    size_t cell = 0;
    while (next_[cell] >= compute[cell].size()) ++cell;
    std::vector<bool> seen(compute.size());
    while (!seen[cell]) {
      seen[cell] = true;
      const TaskId head = compute[cell][next_[cell]];
      const TaskId block = blocker(head);
      error.notes.push_back(
          fmt::format("{} comes next and waits for {}", where(head), where(block)));
      cell = static_cast<size_t>(dag_.tasks[block.index()].cell);
    }
    return error;
  }

  const Dag& dag_;
  const std::vector<std::vector<TaskId>>& deps_;
  std::vector<bool> issued_;
  std::vector<int32_t> missing_;              // eager tasks: dependencies not issued yet
  std::vector<std::vector<TaskId>> waiters_;  // eager tasks that a task holds back
  std::vector<size_t> next_;                  // by cell: position in its compute order
  Schedule schedule_;
};

// ---- The default order --------------------------------------------------------------------------

// Ordered tasks that each ordered task needs, seen through communication and sums.
std::vector<std::vector<TaskId>> ordered_dependencies(
    const Dag& dag, const std::vector<std::vector<TaskId>>& deps) {
  std::vector<std::vector<TaskId>> through(dag.tasks.size());
  for (size_t t = 0; t < dag.tasks.size(); ++t)
    for (TaskId d : deps[t]) {
      if (is_ordered(dag.tasks[d.index()]))
        through[t].push_back(d);
      else
        through[t].insert(through[t].end(), through[d.index()].begin(), through[d.index()].end());
    }
  return through;
}

// Unit costs: a fused backward does twice the work of a forward.
int64_t unit_cost(char pass) { return pass == 'B' ? 2 : 1; }
int priority(char pass) { return pass == 'B' || pass == 'I' ? 0 : pass == 'F' ? 1 : 2; }

class Greedy {
 public:
  Greedy(const Dag& dag, const std::vector<std::vector<TaskId>>& deps)
      : dag_(dag),
        needs_(ordered_dependencies(dag, deps)),
        finish_(dag.tasks.size(), kNever),
        clock_(dag.cells.size()),
        in_flight_(dag.cells.size()),
        limit_(dag.cells.size(), 0),
        order_(dag.cells.size()),
        waiting_(dag.cells.size()) {
    std::vector<int32_t> rank_of_cell(dag.cells.size(), -1);
    int32_t ranks = 0;
    for (size_t t = 0; t < dag.tasks.size(); ++t) {
      const Task& task = dag.tasks[t];
      if (!is_ordered(task)) continue;
      const auto cell = static_cast<size_t>(task.cell);
      waiting_[cell].push_back(TaskId(t));
      if (task.pass == 'F' && task.micro == 0) limit_[cell] += 1;
      if (rank_of_cell[cell] < 0) rank_of_cell[cell] = ranks++;
    }
    // A cell with n chunks keeps the microbatches of n × (cells from here to the end) chunks in
    // flight.
    for (size_t cell = 0; cell < dag.cells.size(); ++cell) {
      const bool has_backward =
          std::any_of(waiting_[cell].begin(), waiting_[cell].end(),
                      [&](TaskId t) { return priority(dag.tasks[t.index()].pass) == 0; });
      limit_[cell] =
          has_backward ? limit_[cell] * std::max<int64_t>(1, ranks - rank_of_cell[cell]) : kNever;
    }
  }

  std::vector<std::vector<TaskId>> run() {
    for (;;) {
      Choice best;
      for (size_t cell = 0; cell < waiting_.size(); ++cell) {
        const Choice choice = best_in(cell, false);
        if (choice.task.valid() && (!best.task.valid() || choice.start < best.start)) best = choice;
      }
      // Limits that are too tight for the graph give way rather than stop the schedule.
      for (size_t cell = 0; cell < waiting_.size() && !best.task.valid(); ++cell)
        best = best_in(cell, true);
      if (!best.task.valid()) return order_;
      take(best);
    }
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;
  struct Choice {
    TaskId task;
    int64_t start = kNever;
  };

  Choice best_in(size_t cell, bool ignore_limit) const {
    Choice best;
    for (TaskId id : waiting_[cell]) {
      const Task& task = dag_.tasks[id.index()];
      if (task.pass == 'F' && in_flight_[cell] >= limit_[cell] && !ignore_limit) continue;
      int64_t start = clock_[cell];
      for (TaskId need : needs_[id.index()]) start = std::max(start, finish_[need.index()]);
      if (start >= kNever) continue;
      const bool better = !best.task.valid() || start < best.start ||
                          (start == best.start &&
                           priority(task.pass) < priority(dag_.tasks[best.task.index()].pass));
      if (better) best = {id, start};
    }
    return best;
  }
  void take(const Choice& choice) {
    const Task& task = dag_.tasks[choice.task.index()];
    const auto cell = static_cast<size_t>(task.cell);
    finish_[choice.task.index()] = clock_[cell] = choice.start + unit_cost(task.pass);
    if (task.pass == 'F') ++in_flight_[cell];
    if (priority(task.pass) == 0) --in_flight_[cell];
    order_[cell].push_back(choice.task);
    waiting_[cell].erase(std::find(waiting_[cell].begin(), waiting_[cell].end(), choice.task));
  }

  const Dag& dag_;
  std::vector<std::vector<TaskId>> needs_;
  std::vector<int64_t> finish_, clock_, in_flight_, limit_;
  std::vector<std::vector<TaskId>> order_, waiting_;
};

}  // namespace

Result<Schedule> make_schedule(const Dag& dag, const std::vector<std::vector<TaskId>>& compute) {
  const auto deps = find_dependencies(dag);
  if (compute.empty()) return Issuer(dag, deps).run(Greedy(dag, deps).run());
  return Issuer(dag, deps).run(compute);
}

}  // namespace piper
