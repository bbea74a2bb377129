// How long devices wait, by a simulation of what they are given to do.
#include <algorithm>
#include <map>

#include "dependencies.h"

namespace piper {
namespace {

class Simulation {
 public:
  Simulation(const Dag& dag, const TaskLists& deps, Queue queue)
      : dag_(dag), deps_(deps), queue_(queue), finish_(dag.tasks.size(), -1) {}

  double idle(const Schedule& schedule) {
    std::vector<size_t> next(schedule.order.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t cell = 0; cell < next.size(); ++cell)
        for (; next[cell] < schedule.order[cell].size(); ++next[cell], moved = true)
          if (!run(schedule.order[cell][next[cell]])) break;
    }
    const int64_t end = *std::max_element(finish_.begin(), finish_.end());
    if (end <= 0) return 0;
    return 1 -
           static_cast<double>(busy_) / static_cast<double>(end) / static_cast<double>(next.size());
  }

 private:
  static int64_t cost(const Task& task) {
    return !is_ordered(task) ? 0 : task.pass == TaskPass::kB ? 2 : 1;
  }
  // Runs the task. False: something that it needs has not run.
  bool run(TaskId id) {
    const Task& task = dag_.tasks[id.index()];
    int64_t& clock = clock_[{task.cell, queue_ == Queue::kStream ? task.stream : 0}];
    int64_t start = clock;
    for (TaskId d : deps_[id.index()]) {
      if (finish_[d.index()] < 0) return false;
      start = std::max(start, finish_[d.index()]);
    }
    busy_ += cost(task);
    clock = finish_[id.index()] = start + cost(task);
    return true;
  }

  const Dag& dag_;
  const TaskLists& deps_;
  const Queue queue_;
  std::vector<int64_t> finish_;                           // by task; -1: it has not run
  std::map<std::pair<int32_t, int32_t>, int64_t> clock_;  // by cell and stream
  int64_t busy_ = 0;
};

}  // namespace

double idle_share(const Dag& dag, const TaskLists& deps, const Schedule& schedule, Queue queue) {
  return Simulation(dag, deps, queue).idle(schedule);
}

}  // namespace piper
