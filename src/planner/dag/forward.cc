// Keeps the forward pass of a step.
#include <algorithm>
#include <set>

#include "piper/ir/ops.h"
#include "piper/planner/make_dag.h"

namespace piper {
namespace {

// Returns by node whether one of the values is made by it, or of what it makes; `stops` says where
// that ends.
template <class Stops>
std::vector<bool> needed_for(const Graph& graph, std::vector<ValueId> open, Stops stops) {
  std::vector<bool> needed(graph.nodes.size());
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    const NodeId producer = value.valid() ? graph.value(value).producer : NodeId();
    if (!producer.valid() || needed[producer.index()] || stops(producer)) continue;
    needed[producer.index()] = true;
    const std::vector<ValueId>& inputs = graph.node(producer).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return needed;
}

// An early chunk has copies of what its sums need: those that nothing reads any more need nothing.
void drop_unused(const Graph& graph, const std::vector<bool>& needed, Chunk& chunk) {
  std::erase_if(chunk.nodes, [&](NodeId node) { return !needed[node.index()]; });
  if (chunk.pass != TaskPass::kPrepare) return;
  const std::set<NodeId> own(chunk.nodes.begin(), chunk.nodes.end());
  std::vector<ValueId> summed;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (needed[n] && is_step_sum(graph.nodes[n]))
      summed.insert(summed.end(), graph.nodes[n].inputs.begin(), graph.nodes[n].inputs.end());
  const std::vector<bool> used =
      needed_for(graph, summed, [&](NodeId node) { return !own.contains(node); });
  std::erase_if(chunk.nodes, [&](NodeId node) { return !used[node.index()]; });
}

// Drops nodes. Their values stay, though nothing makes or reads them.
void drop_nodes(Dag& dag, const std::vector<bool>& needed) {
  Graph& graph = dag.graph;
  std::vector<NodeId> number(graph.nodes.size());
  std::vector<Node> kept;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!needed[n]) continue;
    number[n] = NodeId(kept.size());
    kept.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(kept);
  for (Value& value : graph.values)
    if (value.producer.valid()) value.producer = number[value.producer.index()];
  for (Chunk& chunk : dag.chunks)
    for (NodeId& node : chunk.nodes) node = number[node.index()];
}

// `readers`: by value, those in chunks of the forward pass itself.
void connect(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, Chunk& chunk) {
  const std::set<NodeId> own(chunk.nodes.begin(), chunk.nodes.end());
  const auto is_elsewhere = [&](NodeId node) { return !own.contains(node); };
  std::set<ValueId> reads, writes;
  for (NodeId id : chunk.nodes) {
    for (ValueId input : graph.node(id).inputs)
      if (input.valid() && is_elsewhere(graph.value(input).producer)) reads.insert(input);
    for (ValueId output : graph.node(id).outputs)
      if (std::any_of(readers[output.index()].begin(), readers[output.index()].end(), is_elsewhere))
        writes.insert(output);
  }
  chunk.reads.assign(reads.begin(), reads.end());
  chunk.writes.clear();
  if (chunk.pass != TaskPass::kPrepare) chunk.writes.assign(writes.begin(), writes.end());
}

void connect_all(Dag& dag) {
  std::vector<bool> is_main(dag.graph.nodes.size());
  for (const Chunk& chunk : dag.chunks)
    for (NodeId node : chunk.nodes)
      if (chunk.pass != TaskPass::kPrepare) is_main[node.index()] = true;
  auto main_readers = readers(dag.graph);
  for (auto& nodes : main_readers)
    std::erase_if(nodes, [&](NodeId node) { return !is_main[node.index()]; });
  for (Chunk& chunk : dag.chunks) connect(dag.graph, main_readers, chunk);
}

}  // namespace

Dag forward_only(Dag dag) {
  PIPER_CHECK(dag.versions.empty() && dag.tasks.empty(), "a forward pass is taken from chunks");
  Graph& graph = dag.graph;
  const std::vector<bool> needed =
      needed_for(graph, {graph.loss, graph.weight}, [](NodeId) { return false; });
  graph.updates.clear(), dag.exchanges.clear();
  graph.grad_norm = {};
  for (Param& param : graph.params) param.gradient = {};
  for (Chunk& chunk : dag.chunks) drop_unused(graph, needed, chunk);
  std::erase_if(dag.chunks, [](const Chunk& chunk) { return chunk.nodes.empty(); });
  drop_nodes(dag, needed);
  std::erase_if(dag.sums, [&](const Sum& sum) { return !graph.value(sum.value).producer.valid(); });
  // Parameters that are whole between steps have no parts, and the optimizer's states are not read.
  std::erase_if(dag.parts, [](const Part& part) {
    return !part.param.valid() || part.gather == Gather::kUpdate;
  });
  connect_all(dag);
  return dag;
}

}  // namespace piper
