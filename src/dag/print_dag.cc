#include "piper/dag.h"

namespace piper {
namespace {

std::string item_list(const Dag& dag, const std::vector<ItemId>& items) {
  std::string text;
  for (ItemId id : items) text += (text.empty() ? "%" : ", %") + print_item(dag, id);
  return text;
}

std::string print_task(const Dag& dag, const Task& task) {
  std::string text = fmt::format("cell={} ", task.cell);
  const std::string writes = item_list(dag, task.writes);
  if (!writes.empty()) text += writes + " = ";
  text += fmt::format("{}", kTaskKindNames[static_cast<size_t>(task.kind)]);
  if (task.chunk.valid()) text += fmt::format(" [{}]", dag.chunks[task.chunk.index()].name);
  if (task.peer >= 0) text += fmt::format(" peer={}", task.peer);
  for (int32_t axis : task.group) text += fmt::format(" over={}", dag.mesh[static_cast<size_t>(axis)].name);
  if (task.micro >= 0) text += fmt::format(" mb={}", task.micro);
  if (task.stream > 0) text += fmt::format(" stream={}", dag.streams[static_cast<size_t>(task.stream)]);
  text += fmt::format("({})", item_list(dag, task.reads));
  for (const Accumulate& a : task.accumulates)
    text += fmt::format(" %{} += %{}", print_item(dag, a.into), dag.graph.value(a.contribution).name);
  return text + "\n";
}

}  // namespace

std::string print_dag(const Dag& dag) {
  std::string text = "mesh";
  for (const DagAxis& axis : dag.mesh)
    text += fmt::format(" {}={}{}{}", axis.name, axis.size, axis.placed ? " placed" : "",
                        axis.replicated ? " replicated" : "");
  text += fmt::format("\nbatch replicas={}{} microbatches={}\n", dag.replicas,
                      dag.sequential_replicas ? " sequential" : "", dag.microbatches);
  for (size_t c = 0; c < dag.cells.size(); ++c) {
    text += fmt::format("cell {}:", c);
    for (size_t a = 0; a < dag.mesh.size(); ++a)
      if (dag.cells[c][a] >= 0) text += fmt::format(" {}={}", dag.mesh[a].name, dag.cells[c][a]);
    text += "\n";
  }
  for (const Chunk& chunk : dag.chunks)
    text += fmt::format("chunk [{}] cell={} nodes={} reads={} writes={}\n", chunk.name, chunk.cell,
                        chunk.nodes.size(), chunk.reads.size(), chunk.writes.size());
  for (const Task& task : dag.tasks) text += print_task(dag, task);
  return text;
}

}  // namespace piper
