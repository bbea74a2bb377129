#include "piper/cost.h"

#include <map>
#include <set>

#include "piper/ops.h"

namespace piper {
namespace {

double flops_of(const Graph& graph, const Chunk& chunk) {
  double flops = 0;
  for (NodeId id : chunk.nodes)
    if (const OpDef* def = find_op(graph.node(id).op); def && def->cost)
      flops += def->cost(use_of(graph, graph.node(id))).flops;
  return flops;
}

bool is_made_forward(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return value.kind == ValueKind::kNode && graph.node(value.producer).pass == Pass::kF;
}

}  // namespace

std::vector<ChunkCost> chunk_costs(const Dag& dag) {
  std::vector<ChunkCost> costs(dag.chunks.size());
  std::map<std::pair<std::vector<int32_t>, int32_t>, std::set<ValueId>> kept;  // region and cell
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    const Chunk& chunk = dag.chunks[c];
    costs[c].flops = flops_of(dag.graph, chunk);
    if (chunk.pass != 'B' && chunk.pass != 'I' && chunk.pass != 'W') continue;
    for (ValueId value : chunk.reads)
      if (is_made_forward(dag.graph, value)) kept[{chunk.tags, chunk.cell}].insert(value);
  }
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    if (dag.chunks[c].pass != 'F') continue;
    for (ValueId value : kept[{dag.chunks[c].tags, dag.chunks[c].cell}])
      costs[c].kept_bytes += dag.graph.value(value).type.bytes();
  }
  return costs;
}

}  // namespace piper
