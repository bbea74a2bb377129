#include "dependencies.h"

#include <algorithm>

namespace piper {

bool is_ordered(const Task& task) {
  return task.kind == TaskKind::kCompute && task.pass != 'P' && task.pass != 'U';
}

TaskLists find_dependencies(const Dag& dag) {
  // The writers of an item, last first, as a list through all writes.
  struct Write {
    TaskId task;
    int32_t before = -1;
  };
  std::vector<Write> writes;
  std::vector<int32_t> last(dag.items.size(), -1);
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const auto note = [&](ItemId item) {
      writes.push_back({TaskId(t), last[item.index()]});
      last[item.index()] = static_cast<int32_t>(writes.size() - 1);
    };
    for (ItemId item : dag.tasks[t].writes) note(item);
    for (const Accumulate& a : dag.tasks[t].accumulates) note(a.into);
  }
  TaskLists deps;
  std::vector<TaskId> own;
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    own.clear();
    for (ItemId item : task.reads)
      for (int32_t w = last[item.index()]; w >= 0; w = writes[static_cast<size_t>(w)].before)
        if (writes[static_cast<size_t>(w)].task != TaskId(t))
          own.push_back(writes[static_cast<size_t>(w)].task);
    if (task.kind == TaskKind::kRecv) {
      // expand_tasks adds the send just before its receive.
      PIPER_CHECK(t > 0 && dag.tasks[t - 1].kind == TaskKind::kSend, "a receive without its send");
      own.push_back(TaskId(t - 1));
    }
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    deps.add(own);
  }
  return deps;
}

}  // namespace piper
