// Answers what many steps of the planner ask of axes, tasks and values.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

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

std::vector<int32_t> mesh_axes_of(const Node& collective) {
  std::vector<int32_t> axes{static_cast<int32_t>(collective.attrs.integer("over"))};
  for (const int64_t axis : collective.attrs.integers("then"))
    axes.push_back(static_cast<int32_t>(axis));
  return axes;
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

std::vector<int32_t> chunks_before(const Dag& dag) {
  std::vector<int32_t> before(dag.chunks.size(), -1);
  if (dag.tokens < 0) return before;
  const auto tokens = static_cast<size_t>(dag.tokens);
  const auto key_of = [&](const Chunk& chunk) {
    std::vector<int32_t> tags = chunk.tags;
    tags.erase(tags.begin() + dag.tokens);
    return std::tuple(chunk.pass, chunk.cell, std::move(tags), chunk.groups, chunk.variants);
  };
  std::map<decltype(key_of(Chunk())), std::map<int32_t, int32_t>> runs;  // chunk by its tokens
  for (size_t c = 0; c < before.size(); ++c) {
    const Chunk& chunk = dag.chunks[c];
    const bool has_order = chunk.pass == TaskPass::kF || chunk.pass == TaskPass::kB ||
                           chunk.pass == TaskPass::kBI || chunk.pass == TaskPass::kBW;
    if (has_order && chunk.tags[tokens] != kNoTag)
      runs[key_of(chunk)].emplace(chunk.tags[tokens], static_cast<int32_t>(c));
  }
  for (const auto& [key, run] : runs) {
    int32_t last = -1;
    const auto take = [&](const std::pair<const int32_t, int32_t>& one) {
      before[static_cast<size_t>(one.second)] = std::exchange(last, one.second);
    };
    if (std::get<0>(key) == TaskPass::kF)
      std::for_each(run.begin(), run.end(), take);
    else
      std::for_each(run.rbegin(), run.rend(), take);
  }
  return before;
}

}  // namespace piper
