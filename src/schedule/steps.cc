#include "steps.h"

#include <algorithm>
#include <numeric>

#include "dependencies.h"

namespace piper {
namespace {

size_t at(int32_t id) { return static_cast<size_t>(id); }

// Every task goes with a computation of its cell: what that needs before it, what it sends behind
// it. So a steady step is the computations in their order, each with its company.
class Steps {
 public:
  Steps(const Dag& dag, const TaskLists& deps, Schedule& schedule)
      : dag_(dag), deps_(deps), schedule_(schedule), company_(dag.tasks.size(), kNone) {}

  Status run() {
    schedule_.body.resize(dag_.cells.size());
    schedule_.ahead.resize(dag_.cells.size());
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell) keep_company(cell);
    PIPER_TRY(meet_early());
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell) arrange(cell);
    return check_waits();
  }

 private:
  static constexpr int32_t kNone = INT32_MAX;
  // Behind the computations: messages of the next step, then the rest of the own one.
  int32_t early_messages(size_t cell) const {
    return static_cast<int32_t>(schedule_.compute[cell].tasks.size());
  }
  int32_t rest(size_t cell) const { return early_messages(cell) + 1; }

  bool is_ahead(TaskId id) const {
    const auto cell = at(dag_.tasks[id.index()].cell);
    const int32_t with = company_[id.index()];
    return with < schedule_.compute[cell].ahead || with == early_messages(cell);
  }

  void keep_company(size_t cell) {
    const auto& tasks = schedule_.compute[cell].tasks;
    const auto& order = schedule_.order[cell];
    for (size_t i = 0; i < tasks.size(); ++i) company_[tasks[i].index()] = static_cast<int32_t>(i);
    // With the first that needs it.
    for (size_t i = order.size(); i-- > 0;) {
      if (company_[order[i].index()] == kNone) company_[order[i].index()] = rest(cell);
      for (TaskId d : deps_[order[i].index()])
        if (is_here(d, cell) && !is_ordered(dag_.tasks[d.index()]))
          company_[d.index()] = std::min(company_[d.index()], company_[order[i].index()]);
    }
    // Sends and reductions with the last that they need.
    for (TaskId id : order) {
      const Task& task = dag_.tasks[id.index()];
      if (task.kind != TaskKind::kSend && !is_peer_reduction(dag_, task)) continue;
      company_[id.index()] = 0;
      for (TaskId d : deps_[id.index()])
        if (is_here(d, cell))
          company_[id.index()] = std::max(company_[id.index()], company_[d.index()]);
    }
  }
  bool is_here(TaskId id, size_t cell) const { return at(dag_.tasks[id.index()].cell) == cell; }

  // What is sent a step ahead is received a step ahead.
  Status meet_early() {
    for (size_t t = 1; t < dag_.tasks.size(); ++t) {
      if (dag_.tasks[t].kind != TaskKind::kRecv) continue;
      const TaskId send(t - 1), recv(t);
      const bool sent = is_ahead(send), received = is_ahead(recv);
      if (received && !sent)
        return fail("the order cannot run: {} is a task of the next step, but {} is not yet",
                    print_place(dag_, recv), print_place(dag_, send))
            .with_code(ExitCode::kRefused);
      if (sent && !received) company_[t] = early_messages(at(dag_.tasks[t].cell));
    }
    return ok_status();
  }

  void arrange(size_t cell) {
    const ComputeOrder& compute = schedule_.compute[cell];
    const auto& order = schedule_.order[cell];
    std::vector<int32_t> turn(compute.tasks.size() + 2);  // of each company, in a steady step
    std::iota(turn.begin(), turn.end(), 0);
    for (size_t i = 0; i < compute.body.size(); ++i)
      turn[at(compute.body[i])] = static_cast<int32_t>(i);
    std::vector<int32_t>& body = schedule_.body[cell];
    body.resize(order.size());
    std::iota(body.begin(), body.end(), 0);
    std::stable_sort(body.begin(), body.end(), [&](int32_t a, int32_t b) {
      return turn[at(company_[order[at(a)].index()])] < turn[at(company_[order[at(b)].index()])];
    });
    for (TaskId id : order) schedule_.ahead[cell].push_back(is_ahead(id));
  }

  // ---- A steady step of all cells ---------------------------------------------------------------
  TaskId next(size_t cell) const {
    return schedule_.order[cell][at(schedule_.body[cell][done_[cell]])];
  }
  bool ended(size_t cell) const { return done_[cell] == schedule_.body[cell].size(); }
  bool joins_cells(TaskId id) const {
    const Task& task = dag_.tasks[id.index()];
    return task.kind == TaskKind::kAllReduce && !is_peer_reduction(dag_, task);
  }
  // What keeps the next task of a cell from running; nothing: it runs.
  TaskId blocker(size_t cell) const {
    const TaskId id = next(cell);
    if (dag_.tasks[id.index()].kind == TaskKind::kRecv && !ran_[id.index() - 1])
      return TaskId(id.index() - 1);
    if (!joins_cells(id)) return {};
    for (size_t other = 0; other < dag_.cells.size(); ++other)
      if (!ended(other) && !joins_cells(next(other))) return next(other);
    return {};
  }
  Status check_waits() {
    done_.assign(dag_.cells.size(), 0);
    ran_.assign(dag_.tasks.size(), false);
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t cell = 0; cell < dag_.cells.size(); ++cell)
        while (!ended(cell) && !blocker(cell).valid()) {
          progress = true;
          if (joins_cells(next(cell))) {
            for (size_t other = 0; other < dag_.cells.size(); ++other)
              if (!ended(other)) run(other);
          } else {
            run(cell);
          }
        }
    }
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell)
      if (!ended(cell)) return deadlock();
    return ok_status();
  }
  void run(size_t cell) {
    ran_[next(cell).index()] = true;
    ++done_[cell];
  }
  Error deadlock() const {
    Error error = fail("the order cannot run: the tasks of two steps wait for each other")
                      .with_code(ExitCode::kRefused);
    for (size_t cell = 0; cell < dag_.cells.size(); ++cell)
      if (!ended(cell))
        error.notes.push_back(fmt::format("{} comes next and waits for {}",
                                          print_place(dag_, next(cell)),
                                          print_place(dag_, blocker(cell))));
    return error;
  }

  const Dag& dag_;
  const TaskLists& deps_;
  Schedule& schedule_;
  std::vector<int32_t> company_;  // by task: position in its cell's compute order
  std::vector<size_t> done_;      // by cell: how many of its body
  std::vector<bool> ran_;         // by task
};

}  // namespace

Status overlap_steps(const Dag& dag, const TaskLists& deps, Schedule& schedule) {
  const bool overlap = std::any_of(schedule.compute.begin(), schedule.compute.end(),
                                   [](const ComputeOrder& compute) { return compute.ahead > 0; });
  return overlap ? Steps(dag, deps, schedule).run() : ok_status();
}

}  // namespace piper
