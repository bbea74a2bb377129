#include "dependencies.h"

#include <algorithm>

namespace piper {

bool is_ordered(const Task& task) {
  return task.kind == TaskKind::kCompute && task.pass != 'P' && task.pass != 'U';
}

bool is_peer_reduction(const Dag& dag, const Task& task) {
  if (task.kind != TaskKind::kAllReduce && task.kind != TaskKind::kReduceScatter) return false;
  return std::none_of(task.group.begin(), task.group.end(),
                      [&](int32_t axis) { return dag.mesh[static_cast<size_t>(axis)].placed; });
}

bool rounds_sums(const Dag& dag, const Task& task) {
  const auto bytes = [&](ItemId item) {
    return info(dag.graph.value(dag.items[item.index()].value).type.dtype).bytes;
  };
  return !task.combines.empty() &&
         std::all_of(task.combines.begin(), task.combines.end(), [&](const Combine& sum) {
           return sum.from.size() == 1 && bytes(sum.into) < bytes(sum.from[0]);
         });
}

bool runs_by_itself(const Dag& dag, const Task& task) {
  const bool joins = task.pass == 'U' && task.micro >= 0;  // what a reduction has left
  const bool with_send = task.kind == TaskKind::kRecv && task.distance == kEarliest;
  return task.kind == TaskKind::kSend || is_peer_reduction(dag, task) || joins || with_send ||
         adds_parts(task) || rounds_sums(dag, task);
}

bool adds_parts(const Task& task) {
  return task.pass == 'U' && task.micro < 0 &&
         std::any_of(task.combines.begin(), task.combines.end(),
                     [](const Combine& sum) { return sum.from.size() > 1; });
}

std::string print_place(const Dag& dag, TaskId id) {
  const Task& task = dag.tasks[id.index()];
  std::string text = fmt::format("'{}'", task.label);
  if (dag.cells.size() == 1) return text;
  text += " on";
  for (size_t a = 0; a < dag.mesh.size(); ++a)
    if (dag.mesh[a].placed)
      text += fmt::format(" {}={}", dag.mesh[a].name, dag.cells[static_cast<size_t>(task.cell)][a]);
  return text;
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
  std::vector<TaskId> own, added_to(dag.tasks.size());  // by task: the last that waits for it
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    own.clear();
    added_to[t] = TaskId(t);  // no task waits for itself
    for (ItemId item : task.reads)
      for (int32_t w = last[item.index()]; w >= 0; w = writes[static_cast<size_t>(w)].before) {
        const TaskId writer = writes[static_cast<size_t>(w)].task;
        if (added_to[writer.index()] == TaskId(t)) continue;
        added_to[writer.index()] = TaskId(t);
        own.push_back(writer);
      }
    if (task.kind == TaskKind::kRecv) {
      // expand_tasks adds the send just before its receive.
      PIPER_CHECK(t > 0 && dag.tasks[t - 1].kind == TaskKind::kSend, "a receive without its send");
      if (added_to[t - 1] != TaskId(t)) own.push_back(TaskId(t - 1));
    }
    std::sort(own.begin(), own.end());
    deps.add(own);
  }
  return deps;
}

}  // namespace piper
