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
  static constexpr size_t kNobody = SIZE_MAX, kSeveral = SIZE_MAX - 1;

  UpdateNodes(const Dag& dag, const UpdateIndex& index)
      : graph_(dag.graph),
        index_(index),
        needed_(graph_.nodes.size()),
        who_(graph_.nodes.size(), kNobody),
        stage_(graph_.nodes.size()) {
    for (const Part& exchange : dag.exchanges)
      from_.emplace(gathers(exchange) ? exchange.param : exchange.value,
                    gathers(exchange) ? exchange.value : exchange.param);
  }

  // Marks what the value is made of as needed by `who`, a number that all nodes to run together
  // share.
  void need(ValueId value, size_t who) {
    const NodeId producer = graph_.value(source_of(value)).producer;
    if (!producer.valid()) return;
    size_t& known = who_[producer.index()];
    if (known == who || known == kSeveral) return;
    const Node& node = graph_.node(producer);
    if (node.pass != Pass::kU || is_step_sum(node) || index_.travels_for_sum(graph_, producer))
      return;
    known = needed_[producer.index()] ? kSeveral : who;
    needed_[producer.index()] = true;
    for (ValueId input : node.inputs)
      if (input.valid()) need(input, who);
  }
  // Returns who needs the node; kSeveral: more than one.
  size_t who(NodeId node) const { return who_[node.index()]; }
  // Returns the node that makes what another one reads, over exchanges.
  NodeId maker(ValueId input) const {
    const NodeId producer = graph_.value(source_of(input)).producer;
    return has(producer) ? producer : NodeId();
  }
  bool has(NodeId node) const { return node.valid() && needed_[node.index()]; }

  // Graph order with three exceptions: nodes added later may come before their readers, a node that
  // replaces state runs after all that read the old value, and what makes the next value of another
  // state of it alone, as a copy in 16 bits, follows it.
  const std::vector<NodeId>& in_order() {
    seen_.assign(graph_.nodes.size(), false);
    order_.clear();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) visit(NodeId(i));
    return order_;
  }
  size_t stage(NodeId node) const { return stage_[node.index()]; }

 private:
  bool reads_alone(NodeId reader, ValueId value) const {
    const std::vector<ValueId>& inputs = graph_.node(reader).inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](ValueId input) {
      return input == value || (input.valid() && graph_.value(input).kind == ValueKind::kConstant);
    });
  }
  // Returns what an exchange, or several one after another, bring.
  ValueId source_of(ValueId value) const {
    for (auto from = from_.find(value); from != from_.end(); from = from_.find(value))
      value = from->second;
    return value;
  }
  size_t stage_of(ValueId value) const {
    const ValueId source = source_of(value);
    const NodeId producer = graph_.value(source).producer;
    return (has(producer) ? stage_[producer.index()] : 0) + (source != value ? 1 : 0);
  }
  // Visits updates that read nothing else that is not known.
  void visit_updates(NodeId id) {
    for (ValueId output : graph_.node(id).outputs)
      for (NodeId reader : index_.readers[output.index()])
        if (index_.state_of[graph_.node(reader).outputs[0].index()].valid() &&
            reads_alone(reader, output))
          visit(reader);
  }

  void visit(NodeId id) {
    if (!needed_[id.index()] || seen_[id.index()]) return;
    seen_[id.index()] = true;
    size_t& stage = stage_[id.index()];
    for (ValueId input : graph_.node(id).inputs) {
      if (!input.valid()) continue;
      if (const NodeId producer = maker(input); producer.valid()) visit(producer);
      stage = std::max(stage, stage_of(input));
    }
    for (ValueId output : graph_.node(id).outputs)
      if (const ValueId state = index_.state_of[output.index()]; state.valid())
        for (NodeId reader : index_.readers[state.index()]) {
          visit(reader);
          if (needed_[reader.index()]) stage = std::max(stage, stage_[reader.index()]);
        }
    order_.push_back(id);
    visit_updates(id);
  }

  const Graph& graph_;
  const UpdateIndex& index_;
  std::map<ValueId, ValueId> from_;  // by the result of an exchange
  std::vector<bool> needed_, seen_;
  std::vector<size_t> who_;    // by node
  std::vector<size_t> stage_;  // by node: after so many exchanges, one after another
  std::vector<NodeId> order_;
};

bool replaces_state(const Node& node, const UpdateIndex& index) {
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId made) { return index.state_of[made.index()].valid(); });
}

// Says which nodes of an update run together: 0 what regions share, then each region's, then the
// rest, which closes the step.
std::vector<size_t> parts_of(const Graph& graph, UpdateNodes& nodes, const UpdateIndex& index,
                             const UpdateRegions& regions) {
  const size_t rest = regions.size() + 1;
  std::vector<size_t> parts(graph.nodes.size(), rest);
  if (regions.size() == 0) return parts;
  for (NodeId id : nodes.in_order()) {
    const Node& node = graph.node(id);
    size_t& part = parts[id.index()];
    part = nodes.who(id) == UpdateNodes::kSeveral ? 0 : nodes.who(id);
    if (const auto own = regions.of_reads(node); part == rest && own) part = *own + 1;
    if (part == 0 && replaces_state(node, index)) part = rest;
    for (ValueId input : node.inputs) {
      const NodeId maker = input.valid() ? nodes.maker(input) : NodeId();
      if (maker.valid() && parts[maker.index()] == rest) part = rest;
    }
  }
  return parts;
}

std::string part_name(const Dag& dag, const UpdateRegions& regions, size_t part) {
  if (regions.size() == 0 || part == regions.size() + 1) return "U";
  if (part == 0) return "U of all";
  std::string name = "U";
  for (size_t t = 0; t < dag.region_tags.size(); ++t)
    if (const int32_t tag = regions.tags(part - 1)[t]; tag != kNoTag)
      name += fmt::format(" {}={}", dag.region_tags[t], tag);
  return name;
}

// Puts the nodes into chunks: part after part, and within one stage after stage.
std::vector<Chunk> cut_update(const Dag& dag, int32_t cell, UpdateNodes& nodes,
                              const UpdateIndex& index, const UpdateRegions& regions) {
  const std::vector<size_t> part_of = parts_of(dag.graph, nodes, index, regions);
  std::vector<std::vector<Chunk>> parts(regions.size() + 2);
  parts.back().push_back(end_chunk(dag, cell, "U"));
  for (NodeId id : nodes.in_order()) {
    const size_t p = part_of[id.index()];
    while (parts[p].size() <= nodes.stage(id)) {
      const std::string name = part_name(dag, regions, p);
      parts[p].push_back(end_chunk(
          dag, cell,
          parts[p].empty() ? name : fmt::format("{} part {}", name, parts[p].size() + 1)));
      if (p > 0 && p <= regions.size()) parts[p].back().tags = regions.tags(p - 1);
    }
    parts[p][nodes.stage(id)].nodes.push_back(id);
  }
  std::vector<Chunk> chunks;
  for (auto& part : parts) std::move(part.begin(), part.end(), std::back_inserter(chunks));
  return chunks;
}

std::vector<ValueId> with_copies(const Dag& dag, ValueId param) {
  std::vector<ValueId> states{param};
  for (const Copy& copy : dag.copies)
    if (copy.master == param) states.push_back(copy.copy);
  return states;
}

bool adds_to_gradient(const Dag& dag, const Chunk& chunk, const Sum& gradient) {
  return std::ranges::any_of(gradient.uses, [&](ValueId use) {
    return std::ranges::count(chunk.nodes, dag.graph.value(use).producer) > 0;
  });
}

}  // namespace

UpdateRegions::UpdateRegions(const Dag& dag) {
  if (!dag.split_update) return;
  const auto join = [](Table& table, ValueId value, std::optional<size_t> region) {
    const auto [known, is_new] = table.try_emplace(value, region);
    if (!is_new && known->second != region) known->second.reset();
  };
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    const Chunk& chunk = dag.chunks[c];
    if (chunk.pass == TaskPass::kU) continue;
    const auto known = std::find(tags_.begin(), tags_.end(), chunk.tags);
    const auto region = static_cast<size_t>(known - tags_.begin());
    for (ValueId read : chunk.reads)
      if (dag.graph.value(read).kind == ValueKind::kState) {
        if (region == tags_.size()) tags_.push_back(chunk.tags), chunks_.emplace_back(c);
        join(of_param_, read, region);
      }
  }
  std::map<ValueId, const Sum*> sums;
  for (const Sum& sum : dag.sums) sums.emplace(sum.value, &sum);
  for (const Param& param : dag.graph.params)
    if (const auto sum = sums.find(param.gradient); sum != sums.end())
      settle_shared(dag, param.value, *sum->second);
  for (const Copy& copy : dag.copies)
    if (of_param_.contains(copy.copy)) join(of_param_, copy.master, of_param_.at(copy.copy));
  for (const Param& param : dag.graph.params) {
    const auto sum = sums.find(param.gradient);
    if (sum == sums.end()) continue;
    join(of_gradient_, sum->first, of_param(param.value));
    if (sum->second->part.valid()) join(of_gradient_, sum->second->part, of_param(param.value));
  }
}

// Several regions of one cell read a parameter: it belongs to that whose backward adds to its
// gradient last.
void UpdateRegions::settle_shared(const Dag& dag, ValueId param, const Sum& gradient) {
  std::vector<ValueId> states = with_copies(dag, param);  // as they are read
  std::erase_if(states, [&](ValueId state) { return !of_param_.contains(state); });
  const auto settled = [&](ValueId state) {
    return of_param_[state] && of_param_[state] == of_param_[states[0]];
  };
  if (std::ranges::all_of(states, settled)) return;
  std::set<int32_t> cells;
  std::optional<size_t> last;
  for (const Chunk& chunk : dag.chunks) {
    if (chunk.pass == TaskPass::kU) continue;
    const bool reads = std::ranges::any_of(
        states, [&](ValueId state) { return std::ranges::binary_search(chunk.reads, state); });
    const bool adds = adds_to_gradient(dag, chunk, gradient);
    if (reads || adds) cells.insert(chunk.cell);
    if (adds) last = static_cast<size_t>(std::ranges::find(tags_, chunk.tags) - tags_.begin());
  }
  if (cells.size() != 1 || !last || *last == tags_.size()) return;
  for (ValueId state : states) of_param_[state] = last;
}

std::optional<size_t> UpdateRegions::of_reads(const Node& node) const {
  std::optional<size_t> region;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const auto own = node.inputs[i].valid() ? of_gradient(node.inputs[i]) : std::nullopt;
    if (!own || (i > 0 && own != region)) return std::nullopt;
    region = own;
  }
  return region;
}

std::vector<Chunk> UpdateRegions::taken_apart(const Dag& dag, Chunk chunk) const {
  std::vector<Chunk> apart(size());
  std::vector<NodeId> left;
  for (NodeId id : chunk.nodes) {
    const auto region = of_reads(dag.graph.node(id));
    (region ? apart[*region].nodes : left).push_back(id);
  }
  chunk.nodes = std::move(left);
  chunk.reads = outside_reads(dag.graph, chunk.nodes);
  std::vector<Chunk> chunks;
  for (size_t r = 0; r < apart.size(); ++r) {
    if (apart[r].nodes.empty()) continue;
    Chunk own = end_chunk(dag, chunk.cell, part_name(dag, *this, r + 1) + " norm");
    own.tags = tags(r);
    own.nodes = std::move(apart[r].nodes);
    own.reads = outside_reads(dag.graph, own.nodes);
    for (NodeId id : own.nodes)
      own.writes.insert(own.writes.end(), dag.graph.node(id).outputs.begin(),
                        dag.graph.node(id).outputs.end());
    std::sort(own.writes.begin(), own.writes.end());
    chunks.push_back(std::move(own));
  }
  chunks.push_back(std::move(chunk));
  return chunks;
}

std::vector<Chunk> update_chunks(const Dag& dag, int32_t cell, const UpdateIndex& index,
                                 const UpdateRegions& regions, const Reports& reports) {
  const Graph& graph = dag.graph;
  UpdateNodes nodes(dag, index);
  const size_t rest = regions.size() + 1;
  std::set<ValueId> nexts, made;  // of states; of all that other chunks or ranks read
  for (size_t u = 0; u < graph.updates.size(); ++u) {
    const std::vector<ValueId>& params = index.params[u];
    if (!std::all_of(params.begin(), params.end(),
                     [&](ValueId param) { return index.held[param.index()].contains(cell); }))
      continue;
    const auto region = params.empty() ? std::nullopt : regions.of_param(params[0]);
    const bool of_one = std::all_of(params.begin(), params.end(), [&](ValueId param) {
      return regions.of_param(param) == region;
    });
    nodes.need(graph.updates[u].next, region && of_one ? *region + 1 : rest);
    nexts.insert(graph.updates[u].next);
  }
  made = nexts;
  for (const auto& [name, value] : reports) {
    nodes.need(value, rest);
    if (nodes.has(graph.value(value).producer)) made.insert(value);
  }
  for (const Part& exchange : dag.exchanges) made.insert({exchange.value, exchange.param});

  std::vector<Chunk> chunks = cut_update(dag, cell, nodes, index, regions);
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
