// Puts computations that no order names between those that one does. Called by what chooses orders.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "piper/planner/cost.h"
#include "piper/planner/schedule.h"

namespace piper {
namespace {

// Plays a step: each cell works through its order, and takes a task that is in none as soon as what
// it reads is there.
class Inserter {
 public:
  Inserter(const Dag& dag, const TaskLists& deps, const std::vector<ComputeOrder>& orders,
           const std::vector<std::vector<TaskId>>& others)
      : dag_(dag),
        orders_(orders),
        costs_(chunk_costs(dag)),
        waits_(dag.tasks.size()),
        ready_(dag.tasks.size()),
        role_(dag.tasks.size()),
        followers_(dag.tasks.size()),
        cells_(orders.size()) {
    for (const ComputeOrder& order : orders)
      for (const TaskId id : order.tasks) role_[id.index()] = Role::kOrdered;
    for (const auto& of_cell : others)
      for (const TaskId id : of_cell) role_[id.index()] = Role::kOther;
    for (size_t t = 0; t < waits_.size(); ++t) {
      waits_[t] = static_cast<int32_t>(deps[t].size());
      for (const TaskId before : deps[t]) followers_[before.index()].emplace_back(t);
    }
  }

  // Returns by cell the tasks in the order in which they began; less where orders wait for each
  // other.
  std::vector<std::vector<TaskId>> run() {
    std::vector<TaskId> first;
    for (size_t t = 0; t < waits_.size(); ++t)
      if (waits_[t] == 0) first.emplace_back(t);
    for (const TaskId id : first) arrive(id);
    while (begin_next()) {
    }
    std::vector<std::vector<TaskId>> begun;
    for (Cell& cell : cells_) begun.push_back(std::move(cell.begun));
    return begun;
  }

 private:
  enum class Role : uint8_t { kAlone, kOrdered, kOther };  // kAlone: runs beside computations
  struct Cell {
    double free_at = 0;
    size_t next = 0;                             // of its order
    std::set<std::pair<double, TaskId>> others;  // that could begin, by time
    std::vector<TaskId> begun;
  };

  double time_of(const Task& task) const {
    if (task.kind == InstructionKind::kCompute)
      return std::max(1.0, costs_[task.chunk.index()].flops);
    double bytes = 0;
    if (task.kind == InstructionKind::kRecv)
      for (const ItemId item : task.writes)
        bytes += static_cast<double>(dag_.graph.value(dag_.items[item.index()].value).type.bytes());
    return bytes * kFlopsPerSentByte;
  }

  // Notes that a task has all that it reads.
  void arrive(TaskId first) {
    std::vector<TaskId> open{first};
    while (!open.empty()) {
      const TaskId id = open.back();
      open.pop_back();
      const Task& task = dag_.tasks[id.index()];
      const double ready = ready_[id.index()];
      if (role_[id.index()] == Role::kOther)
        cells_[static_cast<size_t>(task.cell)].others.emplace(ready, id);
      else if (role_[id.index()] == Role::kAlone)
        end(id, ready + (task.within.valid() ? 0 : time_of(task)), open);
    }
  }
  void end(TaskId id, double time, std::vector<TaskId>& open) {
    for (const TaskId next : followers_[id.index()]) {
      ready_[next.index()] = std::max(ready_[next.index()], time);
      if (--waits_[next.index()] == 0) open.push_back(next);
    }
  }

  // Returns when a cell could begin its next task of the order; none: not yet.
  std::optional<double> next_of_order(size_t c) const {
    const std::vector<TaskId>& tasks = orders_[c].tasks;
    if (cells_[c].next == tasks.size()) return std::nullopt;
    const size_t task = tasks[cells_[c].next].index();
    if (waits_[task] > 0) return std::nullopt;
    return std::max(cells_[c].free_at, ready_[task]);
  }

  void begin_task(TaskId id, double first, Cell& cell) {
    cell.begun.push_back(id);
    cell.free_at = first + time_of(dag_.tasks[id.index()]);
    std::vector<TaskId> open;
    end(id, cell.free_at, open);
    for (const TaskId next : open) arrive(next);
  }

  // Begins the task that can begin first; of a cell's, one that is in no order.
  bool begin_next() {
    double first = 0;
    size_t at = cells_.size();
    bool is_other = false;
    for (size_t c = 0; c < cells_.size(); ++c) {
      const Cell& cell = cells_[c];
      const auto consider = [&](double time, bool other) {
        if (at < cells_.size() && time >= first) return;
        first = time, at = c, is_other = other;
      };
      if (!cell.others.empty()) consider(std::max(cell.free_at, cell.others.begin()->first), true);
      if (const auto time = next_of_order(c)) consider(*time, false);
    }
    if (at == cells_.size()) return false;
    Cell& cell = cells_[at];
    const TaskId id = is_other ? cell.others.begin()->second : orders_[at].tasks[cell.next++];
    if (is_other) cell.others.erase(cell.others.begin());
    begin_task(id, first, cell);
    return true;
  }

  const Dag& dag_;
  const std::vector<ComputeOrder>& orders_;
  const std::vector<ChunkCost> costs_;
  std::vector<int32_t> waits_;  // by task: for so many
  std::vector<double> ready_;
  std::vector<Role> role_;
  std::vector<std::vector<TaskId>> followers_;
  std::vector<Cell> cells_;
};

}  // namespace

std::vector<ComputeOrder> insert_tasks(const Dag& dag, const TaskLists& deps,
                                       std::vector<ComputeOrder> orders,
                                       const std::vector<std::vector<TaskId>>& others,
                                       const SourceSpan& at) {
  const auto begun = Inserter(dag, deps, orders, others).run();
  for (size_t c = 0; c < orders.size(); ++c) {
    ComputeOrder& order = orders[c];
    const ComputeOrder old = order;
    order.tasks = begun[c];
    std::map<TaskId, size_t> now;
    for (size_t t = 0; t < order.tasks.size(); ++t) now[order.tasks[t]] = t;
    for (const auto* list : {&old.tasks, &others[c]})  // what waits in a circle
      for (const TaskId id : *list)
        if (now.try_emplace(id, order.tasks.size()).second) order.tasks.push_back(id);
    order.named_at.assign(order.tasks.size(), static_cast<int32_t>(order.places.size()));
    order.places.push_back(at);
    for (size_t t = 0; t < old.tasks.size(); ++t)
      order.named_at[now[old.tasks[t]]] = old.named_at[t];
    std::erase_if(order.wholes, [&](int32_t& first) {
      const size_t half = now[old.tasks[static_cast<size_t>(first)]];
      const TaskId other = old.tasks[static_cast<size_t>(first) + 1];
      first = static_cast<int32_t>(half);
      return half + 1 >= order.tasks.size() || order.tasks[half + 1] != other;
    });
  }
  return orders;
}

}  // namespace piper
