// Finds the steady state of steps that overlap.
#include "steps.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "dependencies.h"
#include "post.h"

namespace piper {
namespace {

size_t at(int32_t id) { return static_cast<size_t>(id); }

// Every task goes with a computation of its cell: what that needs before it, what it sends after
// it. So a steady step is the computations in their order, each with its company.
class Steps {
 public:
  Steps(const Dag& dag, const TaskLists& deps, Schedule& schedule)
      : dag_(dag),
        deps_(deps),
        schedule_(schedule),
        company_(dag.tasks.size(), kNone),
        where_(dag.tasks.size()) {
    for (const ComputeOrder& compute : schedule.compute)
      if (!compute.ahead.empty()) most_ahead_ = std::max(most_ahead_, compute.ahead[0]);
  }

  Status run() {
    schedule_.body.resize(dag_.cells.size());
    schedule_.ahead.resize(dag_.cells.size());
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell) keep_company(cell);
    PIPER_TRY(meet_early());
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell) PIPER_TRY(arrange(cell));
    PIPER_TRY(run_steady_step());
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell) follow_pairs(cell);
    schedule_.nearer = post_ahead(dag_, sent_at_, ran_in_, schedule_.overlaps);
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell)
      schedule_.body[cell] = positions(ran_in_[cell], cell);
    return ok_status();
  }

 private:
  static constexpr int32_t kNone = INT32_MAX;
  // Messages of later steps come after the computations, then the rest of this step.
  int32_t early_messages(size_t cell, int32_t steps) const {
    return static_cast<int32_t>(schedule_.compute[cell].tasks.size()) + steps - 1;
  }
  int32_t rest(size_t cell) const { return early_messages(cell, most_ahead_ + 1); }

  int32_t steps_ahead(TaskId id) const {
    const auto cell = at(dag_.tasks[id.index()].cell);
    const int32_t with = company_[id.index()];
    const int32_t first = early_messages(cell, 1);
    if (with < first) return schedule_.compute[cell].ahead_of(with);
    return with < rest(cell) ? with - first + 1 : 0;
  }

  // Sends and reductions, and what is rounded for these or left of them, are with the last that
  // they need.
  void keep_company_of_sends(size_t cell) {
    const auto& order = schedule_.order[cell];
    for (TaskId id : order) {
      const Task& task = dag_.tasks[id.index()];
      if (task.kind == InstructionKind::kRecv || !runs_by_itself(dag_, task) || adds_parts(task))
        continue;
      company_[id.index()] = 0;
      for (TaskId d : deps_[id.index()])
        if (is_here(d, cell))
          company_[id.index()] = std::max(company_[id.index()], company_[d.index()]);
    }
  }

  void keep_company(size_t cell) {
    const auto& tasks = schedule_.compute[cell].tasks;
    const auto& order = schedule_.order[cell];
    for (size_t i = 0; i < tasks.size(); ++i) company_[tasks[i].index()] = static_cast<int32_t>(i);
    // A task joins the first one that needs it.
    for (size_t i = order.size(); i-- > 0;) {
      if (company_[order[i].index()] == kNone)
        company_[order[i].index()] = opens_step(order[i], cell) ? 0 : rest(cell);
      for (TaskId d : deps_[order[i].index()])
        if (is_here(d, cell) && !is_ordered(dag_.tasks[d.index()]))
          company_[d.index()] = std::min(company_[d.index()], company_[order[i].index()]);
    }
    keep_company_of_sends(cell);
  }
  // Returns whether a task sends what no ordered task of its cell makes, such as a count of labels:
  // others may need that before the first of theirs.
  bool opens_step(TaskId id, size_t cell) const {
    return dag_.tasks[id.index()].kind == InstructionKind::kSend && !waits(id, cell);
  }
  bool waits(TaskId id, size_t cell) const {
    return std::ranges::any_of(deps_[id.index()], [&](TaskId d) {
      const Task& task = dag_.tasks[d.index()];
      return !is_here(d, cell) || is_ordered(task) || task.kind == InstructionKind::kRecv ||
             waits(d, cell);
    });
  }
  bool is_here(TaskId id, size_t cell) const { return at(dag_.tasks[id.index()].cell) == cell; }

  // What is sent some steps ahead is received as many steps ahead.
  Status meet_early() {
    for (size_t t = 1; t < dag_.tasks.size(); ++t) {
      if (dag_.tasks[t].kind != InstructionKind::kRecv) continue;
      const TaskId send(t - 1), recv(t);
      const int32_t sent = steps_ahead(send), received = steps_ahead(recv);
      if (received > sent)
        return fail("the order cannot run: {} is a task of {} step, but {} is not yet",
                    print_place(dag_, recv), received == 1 ? "the next" : "a later",
                    print_place(dag_, send));
      if (sent > received) company_[t] = early_messages(at(dag_.tasks[t].cell), sent);
    }
    return ok_status();
  }

  // Returns when each task's messages are due in a steady step: what it receives, and the rest.
  // What both of a pair need comes before the first.
  std::vector<std::pair<int32_t, int32_t>> turns(const ComputeOrder& compute) const {
    std::vector<std::pair<int32_t, int32_t>> turn;
    for (int32_t t = 0; t <= static_cast<int32_t>(compute.tasks.size()) + most_ahead_; ++t)
      turn.emplace_back(t, t);
    for (int32_t i = 0; i < static_cast<int32_t>(compute.body.size()); ++i)
      turn[at(compute.body[at(i)])] = {i, i};
    for (const Overlap& pair : compute.overlaps)
      for (int32_t i = pair.second; i < pair.end && !compute.body.empty(); ++i)
        turn[at(compute.body[at(i)])].first = pair.first;
    return turn;
  }
  std::vector<int32_t> places_of_computes(size_t cell) const {
    const ComputeOrder& compute = schedule_.compute[cell];
    const auto& order = schedule_.order[cell];
    std::vector<int32_t> computes(compute.tasks.size());  // positions
    for (size_t i = 0; i < order.size(); ++i) {
      const auto with = at(company_[order[i].index()]);
      if (with < computes.size() && compute.tasks[with] == order[i])
        computes[with] = static_cast<int32_t>(i);
    }
    return computes;
  }

  Status arrange(size_t cell) {
    const ComputeOrder& compute = schedule_.compute[cell];
    const auto& order = schedule_.order[cell];
    const auto turn = turns(compute);
    const std::vector<int32_t> computes = places_of_computes(cell);
    const auto key = [&](int32_t i) {
      const auto with = at(company_[order[at(i)].index()]);
      const bool brings = with < computes.size() && i < computes[with];
      return std::pair(brings ? turn[with].first : turn[with].second, !brings);
    };
    std::vector<int32_t>& body = schedule_.body[cell];
    body.resize(order.size());
    std::iota(body.begin(), body.end(), 0);
    std::stable_sort(body.begin(), body.end(),
                     [&](int32_t a, int32_t b) { return key(a) < key(b); });
    for (TaskId id : order) schedule_.ahead[cell].push_back(steps_ahead(id));
    return pair_up(cell, computes);
  }
  // Pairs overlapping tasks, by position in the body: those of the computations, and of all tasks.
  Status pair_up(size_t cell, const std::vector<int32_t>& computes) {
    const ComputeOrder& compute = schedule_.compute[cell];
    if (compute.body.empty()) return ok_status();
    const std::vector<int32_t>& body = schedule_.body[cell];
    std::vector<int32_t> where(body.size());
    for (size_t i = 0; i < body.size(); ++i) where[at(body[i])] = static_cast<int32_t>(i);
    const auto place = [&](int32_t turn) {
      return where[at(computes[at(compute.body[at(turn)])])];
    };
    for (size_t p = 0; p < compute.overlaps.size(); ++p) {
      const Overlap& pair = compute.overlaps[p];
      const TaskId first = compute.tasks[at(compute.body[at(pair.first)])],
                   second = compute.tasks[at(compute.body[at(pair.second)])];
      if (needs(second, first))
        return no_pair(compute, p)
            .with_note(
                fmt::format("{} needs {}", print_place(dag_, second), print_place(dag_, first)));
      schedule_.overlaps[cell].push_back(
          {place(pair.first), place(pair.second), place(pair.end - 1) + 1});
    }
    return ok_status();
  }
  // Returns whether a task needs another, directly or by what is issued for it on its cell.
  bool needs(TaskId later, TaskId earlier) const {
    if (steps_ahead(later) != steps_ahead(earlier)) return false;
    for (TaskId d : deps_[later.index()]) {
      const Task& task = dag_.tasks[d.index()];
      if (d == earlier ||
          (task.cell == dag_.tasks[later.index()].cell && !is_ordered(task) && needs(d, earlier)))
        return true;
    }
    return false;
  }

  // ---- A steady step of all cells ---------------------------------------------------------------
  TaskId next(size_t cell) const {
    return schedule_.order[cell][at(schedule_.body[cell][done_[cell]])];
  }
  bool ended(size_t cell) const { return done_[cell] == schedule_.body[cell].size(); }
  bool joins_cells(TaskId id) const {
    const Task& task = dag_.tasks[id.index()];
    return task.kind == InstructionKind::kAllReduce && !is_peer_reduction(dag_, task);
  }
  // Returns what keeps the next task of a cell from running; nothing: it runs.
  TaskId blocker(size_t cell) const {
    const TaskId id = next(cell);
    if (dag_.tasks[id.index()].kind == InstructionKind::kRecv && !ran_[id.index() - 1])
      return TaskId(id.index() - 1);
    if (!joins_cells(id)) return {};
    for (size_t other = 0; other < dag_.cells.size(); ++other)
      if (!ended(other) && !joins_cells(next(other))) return next(other);
    return {};
  }
  // Runs the cell's next task, and those of all cells where they are joined.
  void run_with_joined(size_t cell) {
    if (joins_cells(next(cell))) {
      for (size_t other = 0; other < dag_.cells.size(); ++other)
        if (!ended(other)) run_next(other);
    } else {
      run_next(cell);
    }
  }

  // Runs the cells in turn, a computation or a pair each: about as they run at once. Receives that
  // are posted when their sends are issued are placed here, in one order of all cells.
  Status run_steady_step() {
    done_.assign(dag_.cells.size(), 0);
    next_pair_.assign(dag_.cells.size(), 0);
    ran_.assign(dag_.tasks.size(), false);
    sent_at_.assign(dag_.tasks.size(), 0);
    ran_in_.resize(dag_.cells.size());
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t cell = 0; cell < dag_.cells.size(); ++cell)
        for (bool turn = true; turn && !ended(cell) && !blocker(cell).valid();) {
          progress = true;
          turn = !ends_turn(cell);
          run_with_joined(cell);
        }
    }
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell)
      if (!ended(cell)) return deadlock();
    return ok_status();
  }
  bool ends_turn(size_t cell) {
    if (!is_ordered(dag_.tasks[next(cell).index()])) return false;
    const auto& pairs = schedule_.overlaps[cell];
    const auto position = static_cast<int32_t>(done_[cell]);
    size_t& pair = next_pair_[cell];
    while (pair < pairs.size() && pairs[pair].end <= position) ++pair;
    return pair == pairs.size() || position < pairs[pair].first || position + 1 == pairs[pair].end;
  }
  void run_next(size_t cell) {
    const TaskId id = next(cell);
    run(id);
    if (dag_.tasks[id.index()].kind == InstructionKind::kSend) {
      const TaskId recv(id.index() + 1);
      const Task& task = dag_.tasks[recv.index()];
      sent_at_[recv.index()] = static_cast<int32_t>(ran_in_[at(task.cell)].size());
      if (task.distance == kEarliest) run(recv);
    }
  }
  void run(TaskId id) {
    const auto cell = at(dag_.tasks[id.index()].cell);
    ran_[id.index()] = true;
    ran_in_[cell].push_back(id);
    while (!ended(cell) && ran_[next(cell).index()]) ++done_[cell];
  }
  Error deadlock() const {
    Error error = fail("the order cannot run: the tasks of two steps wait for each other");
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell)
      if (!ended(cell)) {
        const SourceSpan* named = place_in(schedule_.compute[cell], next(cell));
        if (named && error.at.line == 0) error.at = *named;
        error.notes.push_back(fmt::format(
            "{}{} comes next and waits for {}", print_place(dag_, next(cell)),
            named ? fmt::format(" (line {})", named->line) : "", print_place(dag_, blocker(cell))));
      }
    return error;
  }

  // Returns the positions of a cell's tasks in its order of one step.
  std::vector<int32_t> positions(std::span<const TaskId> tasks, size_t cell) {
    const auto& order = schedule_.order[cell];
    for (size_t i = 0; i < order.size(); ++i) where_[order[i].index()] = static_cast<int32_t>(i);
    std::vector<int32_t> found;
    for (TaskId id : tasks) found.push_back(where_[id.index()]);
    return found;
  }
  // Maps positions in the body to those in what ran.
  void follow_pairs(size_t cell) {
    const auto& order = schedule_.order[cell];
    const auto& ran = ran_in_[cell];
    for (size_t i = 0; i < ran.size(); ++i) where_[ran[i].index()] = static_cast<int32_t>(i);
    const auto now = [&](int32_t i) {
      return where_[order[at(schedule_.body[cell][at(i)])].index()];
    };
    for (Overlap& pair : schedule_.overlaps[cell])
      pair = {now(pair.first), now(pair.second), now(pair.end - 1) + 1};
  }

  const Dag& dag_;
  const TaskLists& deps_;
  Schedule& schedule_;
  int32_t most_ahead_ = 0;        // so many steps
  std::vector<int32_t> company_;  // by task: position in its cell's compute order
  std::vector<size_t> done_;      // by cell: how many of its body
  std::vector<size_t> next_pair_;
  std::vector<bool> ran_;                    // by task
  std::vector<int32_t> sent_at_;             // see post_ahead
  std::vector<int32_t> where_;               // by task: position in a list of its cell's
  std::vector<std::vector<TaskId>> ran_in_;  // by cell
};

}  // namespace

Status overlap_steps(const Dag& dag, const TaskLists& deps, Schedule& schedule) {
  const bool overlap =
      std::any_of(schedule.compute.begin(), schedule.compute.end(),
                  [](const ComputeOrder& compute) { return !compute.ahead.empty(); });
  return overlap ? Steps(dag, deps, schedule).run() : ok_status();
}

}  // namespace piper
