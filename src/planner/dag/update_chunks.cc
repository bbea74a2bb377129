// Divides the update of a cell into chunks, between which ranks exchange what optimizers make.
#include <algorithm>
#include <map>
#include <set>

#include "piper/ir/ops.h"
#include "update.h"

namespace piper {
namespace {

// Finds the nodes of a cell's update, in which order they run, and in which of its chunks.
class UpdateNodes {
 public:
  UpdateNodes(const Dag& dag, const UpdateIndex& index)
      : graph_(dag.graph),
        index_(index),
        needed_(graph_.nodes.size()),
        stage_(graph_.nodes.size()) {
    for (const Part& exchange : dag.exchanges) {
      const bool gathers = !graph_.value(exchange.param).producer.valid();
      from_.emplace(gathers ? exchange.param : exchange.value,
                    gathers ? exchange.value : exchange.param);
    }
  }

  void need(ValueId value) {
    if (const auto exchange = from_.find(value); exchange != from_.end()) value = exchange->second;
    const NodeId producer = graph_.value(value).producer;
    if (!producer.valid() || needed_[producer.index()]) return;
    const Node& node = graph_.node(producer);
    if (node.pass != Pass::kU || is_step_sum(node)) return;
    needed_[producer.index()] = true;
    for (ValueId input : node.inputs)
      if (input.valid()) need(input);
  }
  bool has(NodeId node) const { return node.valid() && needed_[node.index()]; }

  // Graph order with three exceptions: nodes added later may come before their readers, a node that
  // replaces state runs after all that read the old value, and what rounds a next value follows it.
  const std::vector<NodeId>& in_order() {
    seen_.assign(graph_.nodes.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) visit(NodeId(i));
    return order_;
  }
  size_t stage(NodeId node) const { return stage_[node.index()]; }

 private:
  size_t stage_of(ValueId value) const {
    if (const auto exchange = from_.find(value); exchange != from_.end())
      return stage_of(exchange->second) + 1;
    const NodeId producer = graph_.value(value).producer;
    return has(producer) ? stage_[producer.index()] : 0;
  }
  void visit(NodeId id) {
    if (!needed_[id.index()] || seen_[id.index()]) return;
    seen_[id.index()] = true;
    size_t& stage = stage_[id.index()];
    for (ValueId input : graph_.node(id).inputs) {
      if (!input.valid()) continue;
      const auto exchange = from_.find(input);
      const NodeId producer =
          graph_.value(exchange == from_.end() ? input : exchange->second).producer;
      if (producer.valid()) visit(producer);
      stage = std::max(stage, stage_of(input));
    }
    for (ValueId output : graph_.node(id).outputs)
      if (const ValueId state = index_.state_of[output.index()]; state.valid())
        for (NodeId reader : index_.readers[state.index()]) {
          visit(reader);
          if (needed_[reader.index()]) stage = std::max(stage, stage_[reader.index()]);
        }
    order_.push_back(id);
    for (ValueId output : graph_.node(id).outputs)
      for (NodeId reader : index_.readers[output.index()])
        if (index_.state_of[graph_.node(reader).outputs[0].index()].valid() &&
            graph_.node(reader).op == "Cast")
          visit(reader);
  }

  const Graph& graph_;
  const UpdateIndex& index_;
  std::map<ValueId, ValueId> from_;  // by the result of an exchange
  std::vector<bool> needed_, seen_;
  std::vector<size_t> stage_;  // by node: after so many exchanges, one after another
  std::vector<NodeId> order_;
};

}  // namespace

std::vector<Chunk> update_chunks(const Dag& dag, int32_t cell, const UpdateIndex& index,
                                 const Reports& reports) {
  const Graph& graph = dag.graph;
  UpdateNodes nodes(dag, index);
  std::set<ValueId> nexts, made;  // of states; of all that other chunks or ranks read
  for (size_t u = 0; u < graph.updates.size(); ++u) {
    const std::vector<ValueId>& params = index.params[u];
    if (!std::all_of(params.begin(), params.end(),
                     [&](ValueId param) { return index.held[param.index()].contains(cell); }))
      continue;
    nodes.need(graph.updates[u].next);
    nexts.insert(graph.updates[u].next);
  }
  made = nexts;
  for (const auto& [name, value] : reports) {
    nodes.need(value);
    if (nodes.has(graph.value(value).producer)) made.insert(value);
  }
  for (const Part& exchange : dag.exchanges) made.insert({exchange.value, exchange.param});

  std::vector<Chunk> chunks{end_chunk(dag, cell, "U")};
  for (NodeId id : nodes.in_order()) {
    while (chunks.size() <= nodes.stage(id))
      chunks.push_back(end_chunk(dag, cell, fmt::format("U part {}", chunks.size() + 1)));
    chunks[nodes.stage(id)].nodes.push_back(id);
  }
  for (Chunk& chunk : chunks) {
    chunk.reads = outside_reads(graph, chunk.nodes);
    made.insert(chunk.reads.begin(), chunk.reads.end());
  }
  for (Chunk& chunk : chunks) {
    for (NodeId id : chunk.nodes)
      for (ValueId output : graph.node(id).outputs)
        if (made.contains(output)) chunk.writes.push_back(output);
    if (&chunk == &chunks.back())
      for (ValueId next : nexts)
        if (!nodes.has(graph.value(next).producer)) chunk.writes.push_back(next);
    std::sort(chunk.writes.begin(), chunk.writes.end());
  }
  return chunks;
}

}  // namespace piper
