// Answers what many steps of the planner ask of axes, tasks and values.
#include <algorithm>

#include "piper/planner/make_dag.h"

namespace piper {

Mesh mesh_of(const std::vector<DagAxis>& axes) {
  Mesh mesh;
  for (const DagAxis& axis : axes)
    mesh.emplace_back(axis.name, axis.twins && !axis.placed ? 1 : axis.size);
  return mesh;
}

TensorType uncut(const Dag& dag, const Value& value, TensorType held) {
  for (const AxisLayout& lies : value.over)
    if (lies.layout.kind == LayoutKind::kSharded)
      held.shape[static_cast<size_t>(lies.layout.dim)] *=
          dag.mesh[static_cast<size_t>(lies.axis)].size;
  for (size_t d = 0; d < value.unpadded.size(); ++d)
    if (value.unpadded[d] > 0) held.shape[d] = value.unpadded[d];
  return held;
}

bool gathers_parameters(const Dag& dag, const Task& task) {
  return task.kind == InstructionKind::kAllGather && !task.within.valid() &&
         dag.graph.value(dag.items[task.writes[0].index()].value).kind == ValueKind::kState;
}

std::string_view layer_of(std::string_view scope) {
  size_t begin = 0;
  while (begin < scope.size()) {
    const size_t end = std::min(scope.find('/', begin), scope.size());
    const std::string_view part = scope.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == part.npos)
      return scope.substr(0, end);
    begin = end + 1;
  }
  return scope;
}

int32_t stream_of(Dag& dag, const std::string& name) {
  const auto known = std::find_if(dag.streams.begin(), dag.streams.end(),
                                  [&](const TaskStream& stream) { return stream.name == name; });
  if (known != dag.streams.end()) return static_cast<int32_t>(known - dag.streams.begin());
  dag.streams.push_back({name});
  return static_cast<int32_t>(dag.streams.size() - 1);
}

std::vector<std::vector<TaskId>> writers(const Dag& dag) {
  std::vector<std::vector<TaskId>> result(dag.items.size());
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    for (ItemId item : dag.tasks[t].writes) result[item.index()].push_back(TaskId(t));
    for (const Accumulate& a : dag.tasks[t].accumulates)
      result[a.into.index()].push_back(TaskId(t));
  }
  return result;
}

}  // namespace piper
