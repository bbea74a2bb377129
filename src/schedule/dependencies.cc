#include "dependencies.h"

#include <algorithm>

namespace piper {

bool is_ordered(const Task& task) {
  return task.kind == TaskKind::kCompute && task.pass != 'P' && task.pass != 'U';
}

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

}  // namespace piper
