// FLOPs and kept bytes of each chunk.
#include "piper/planner/cost.h"

#include <map>
#include <set>
#include <tuple>

#include "piper/ir/ops.h"

namespace piper {

double flops_of(const Graph& graph, const Node& node) {
  const OpDef* def = find_op(node.op);
  return def && def->cost ? def->cost(use_of(graph, node)).flops : 0;
}

double model_flops(const Graph& step) {
  double forward = 0;
  for (const Node& node : step.nodes)
    if (node.pass == Pass::kF) forward += flops_of(step, node);
  return 3 * forward;
}

namespace {

double flops_of(const Graph& graph, const Chunk& chunk) {
  double flops = 0;
  for (NodeId id : chunk.nodes) flops += flops_of(graph, graph.node(id));
  return flops;
}

bool is_made_forward(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return value.kind == ValueKind::kNode && graph.node(value.producer).pass == Pass::kF;
}

// Sums up what weight halves read that a forward or an input half has made.
void find_left(const Dag& dag, std::vector<ChunkCost>& costs) {
  std::map<std::tuple<std::vector<int32_t>, int32_t>, int64_t> left;  // by region and cell
  const auto key = [](const Chunk& chunk) { return std::tuple(chunk.tags, chunk.cell); };
  for (const Chunk& chunk : dag.chunks) {
    if (chunk.pass != TaskPass::kBW) continue;
    const std::set<ValueId> reads(chunk.reads.begin(), chunk.reads.end());
    int64_t bytes = 0;
    for (const ValueId id : reads)
      if (const Value& value = dag.graph.value(id); value.kind == ValueKind::kNode)
        bytes += value.type.bytes();
    left[key(chunk)] = std::max(left[key(chunk)], bytes);
  }
  for (size_t c = 0; c < costs.size(); ++c)
    if (dag.chunks[c].pass == TaskPass::kBI) costs[c].left_bytes = left[key(dag.chunks[c])];
}

}  // namespace

std::vector<ChunkCost> chunk_costs(const Dag& dag) {
  std::vector<ChunkCost> costs(dag.chunks.size());
  // By region, cell and variant.
  std::map<std::tuple<std::vector<int32_t>, int32_t, int32_t>, std::set<ValueId>> kept;
  const auto each_variant = [&](const Chunk& chunk, auto visit) {
    for (int32_t v = 0; v < dag.variants.count(); ++v)
      if (chunk.variants.empty() ||
          std::binary_search(chunk.variants.begin(), chunk.variants.end(), v))
        visit(v, kept[{chunk.tags, chunk.cell, v}]);
  };
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    const Chunk& chunk = dag.chunks[c];
    costs[c].flops = flops_of(dag.graph, chunk);
    if (!is_backward(chunk.pass)) continue;
    each_variant(chunk, [&](int32_t v, std::set<ValueId>& values) {
      for (ValueId read : chunk.reads)
        if (const ValueId value = dag.variants.read(read, v); is_made_forward(dag.graph, value))
          values.insert(value);
    });
  }
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    if (dag.chunks[c].pass != TaskPass::kF) continue;
    each_variant(dag.chunks[c], [&](int32_t, const std::set<ValueId>& values) {
      int64_t bytes = 0;
      for (ValueId value : values) bytes += dag.graph.value(value).type.bytes();
      costs[c].kept_bytes = std::max(costs[c].kept_bytes, bytes);
    });
  }
  find_left(dag, costs);
  return costs;
}

}  // namespace piper
