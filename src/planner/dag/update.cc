// Sums the squares of a gradient norm over ranks, where gradients are cut.
#include "update.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "piper/ir/ops.h"

namespace piper {
namespace {

Builder update_builder(Graph& graph, const std::string& prefix) {
  Builder build(graph);
  build.pass = Pass::kU;
  build.name_prefix = prefix;
  return build;
}

// Describes the norms of a step: of all gradients, and of some of them.
struct Norms {
  std::vector<ValueId> made;     // the norms
  std::vector<ValueId> squares;  // what they add, each once
  std::vector<NodeId> nodes;     // that make these
  std::map<ValueId, size_t> at;  // by number of `squares`: where it stands
};

// Finds the nodes that make the numbers of a norm.
class SquaresOf {
 public:
  explicit SquaresOf(const Graph& graph) : graph_(graph) {}
  // Numbers that are summed over axes are so as one vector: Slice(AllReduce(Concat(…))).
  NodeId operator()(ValueId number) {
    int64_t position = 0;
    for (;;) {
      const NodeId producer = graph_.value(number).producer;
      const Node& node = graph_.node(producer);
      if (node.op == "SumSquares") return producer;
      size_t from = 0;
      if (node.op == "Slice") position = node.attrs.integers("starts")[0];
      if (node.op == "Concat") {
        const std::vector<int64_t>& ends = ends_of(producer);
        from = static_cast<size_t>(std::ranges::upper_bound(ends, position) - ends.begin());
        position -= from == 0 ? 0 : ends[from - 1];
      }
      number = node.inputs[from];
    }
  }

 private:
  const std::vector<int64_t>& ends_of(NodeId concat) {
    std::vector<int64_t>& ends = ends_[concat];
    if (ends.empty())
      for (const ValueId input : graph_.node(concat).inputs)
        ends.push_back((ends.empty() ? 0 : ends.back()) +
                       num_elements(graph_.value(input).type.shape));
    return ends;
  }
  const Graph& graph_;
  std::map<NodeId, std::vector<int64_t>> ends_;  // of the operands of a Concat
};

Norms norms_of(const Graph& graph) {
  Norms norms;
  SquaresOf node_of(graph);
  for (const Node& node : graph.nodes) {
    if (node.op != "GlobalNorm") continue;
    norms.made.push_back(node.outputs[0]);
    for (const ValueId number : node.inputs) {
      if (!norms.at.try_emplace(number, norms.squares.size()).second) continue;
      norms.squares.push_back(number);
      norms.nodes.push_back(node_of(number));
    }
  }
  return norms;
}

// Returns what was gathered from its blocks, as few elements are before they are squared.
ValueId put_together_of(const Graph& graph, ValueId value) {
  while (graph.node(graph.value(value).producer).op == "AllGather")
    value = graph.node(graph.value(value).producer).inputs[0];
  return value;
}

// Returns into how many runs the first rounds of a sum cut it, or would: the first one, and those
// after it that do.
int64_t runs_of(const Dag& dag, const Sum& sum, size_t rounds) {
  int64_t runs = 1;
  for (size_t r = 0; r < rounds; ++r) {
    const SumRound& round = dag.rounds[static_cast<size_t>(sum.rounds[r])];
    if (r > 0 && !round.cuts) break;
    runs *= round.size;
  }
  return runs;
}

// Returns the mesh axes that cut a value, whose ranks run one program, ascending.
std::vector<int32_t> cut_over(const Dag& dag, const Value& value) {
  std::vector<int32_t> axes;
  for (const AxisLayout& lies : value.over)
    if (lies.layout.kind == LayoutKind::kSharded && !dag.mesh[static_cast<size_t>(lies.axis)].twins)
      axes.push_back(lies.axis);
  std::ranges::sort(axes);
  return axes;
}

// Returns the sums that loss and weight are, or are made of: those of the loss first.
std::vector<ValueId> shown_sums(const Graph& graph) {
  std::vector<ValueId> sums;
  std::set<NodeId> seen;
  const auto visit = [&](ValueId value, const auto& self) -> void {
    if (!value.valid()) return;
    const NodeId producer = graph.value(value).producer;
    if (!producer.valid() || !seen.insert(producer).second) return;
    if (!is_step_sum(graph.node(producer)))
      for (const ValueId input : graph.node(producer).inputs) self(input, self);
    else
      sums.push_back(value);
  };
  visit(graph.loss, visit);
  visit(graph.weight, visit);
  return sums;
}

ValueId element(Builder& build, ValueId vector, size_t at) {
  const auto begin = static_cast<int64_t>(at);
  return build.op1("Slice", {vector},
                   {{"starts", std::vector<int64_t>{begin}},
                    {"ends", std::vector<int64_t>{begin + 1}},
                    {"steps", std::vector<int64_t>{1}}});
}

// Squares of what is over the same axes are summed over these together: where the axes cut in their
// order in the mesh, run by run as one device does it. What no axis cuts stays.
// Those of the places of a stage are summed with the numbers of all cells.
void sum_over_axes(Builder& build, const Dag& dag, const std::vector<ValueId>& sources,
                   std::vector<ValueId>& squares) {
  const Graph& graph = dag.graph;
  std::map<std::vector<int32_t>, std::vector<size_t>> groups;
  for (size_t i = 0; i < squares.size(); ++i)
    if (squares[i].valid()) groups[cut_over(dag, graph.value(sources[i]))].push_back(i);
  for (const auto& [over, members] : groups) {
    if (over.empty()) continue;
    std::vector<ValueId> parts;
    for (size_t i : members) parts.push_back(build.reshape(squares[i], {1}));
    ValueId all = build.op1("Concat", parts, {{"axis", int64_t{0}}});
    Attrs along{{"over", int64_t{over[0]}}};
    if (over.size() > 1) along.set("then", std::vector<int64_t>(over.begin() + 1, over.end()));
    all = build.op1("AllReduce", {all}, std::move(along));
    for (size_t k = 0; k < members.size(); ++k) squares[members[k]] = element(build, all, k);
  }
}

}  // namespace

std::vector<ValueId> outside_reads(const Graph& graph, const std::vector<NodeId>& nodes) {
  const std::set<NodeId> inside(nodes.begin(), nodes.end());
  std::vector<ValueId> reads;
  for (NodeId id : nodes)
    for (ValueId input : graph.node(id).inputs)
      if (input.valid() && !inside.contains(graph.value(input).producer)) reads.push_back(input);
  std::sort(reads.begin(), reads.end());
  reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
  return reads;
}

Chunk end_chunk(const Dag& dag, int32_t cell, std::string name) {
  return {.pass = TaskPass::kU,
          .tags = std::vector<int32_t>(dag.region_tags.size(), kNoTag),
          .cell = cell,
          .name = std::move(name)};
}

Chunk chunk_of_new_nodes(const Dag& dag, size_t first, int32_t cell, std::string name) {
  Chunk chunk = end_chunk(dag, cell, std::move(name));
  for (size_t i = first; i < dag.graph.nodes.size(); ++i) chunk.nodes.emplace_back(i);
  chunk.reads = outside_reads(dag.graph, chunk.nodes);
  chunk.writes = dag.graph.nodes.back().outputs;
  return chunk;
}

void square_by_runs(Dag& dag) {
  Graph& graph = dag.graph;
  const Norms norms = norms_of(graph);
  if (norms.made.empty()) return;
  std::map<ValueId, const Sum*> sums;
  for (const Sum& sum : dag.sums) sums.emplace(sum.value, &sum);
  std::vector<ValueId> squares, sources;
  const auto sum_of = [&](NodeId id) -> const Sum& {
    return *sums.at(put_together_of(graph, graph.node(id).inputs[0]));
  };
  int64_t runs = 1;  // of each gradient, so that all are added up alike
  for (const NodeId id : norms.nodes)
    runs = std::lcm(runs, runs_of(dag, sum_of(id), sum_of(id).rounds.size()));
  for (const NodeId id : norms.nodes) {
    const Sum& sum = sum_of(id);
    Node& node = graph.node(id);
    node.inputs[0] = sum.part.valid() ? sum.part : sum.value;
    const int64_t own = runs / runs_of(dag, sum, sum.cut_rounds());
    if (own > 1) node.attrs.set("parts", own);
    sources.push_back(node.inputs[0]);
    squares.push_back(node.outputs[0]);
  }
  Builder build = update_builder(graph, "squares/");
  sum_over_axes(build, dag, sources, squares);
  for (Node& node : graph.nodes)
    if (node.op == "GlobalNorm")
      for (ValueId& number : node.inputs) number = squares[norms.at.at(number)];
}

ScalarVector scalar_vector(Dag& dag) {
  Graph& graph = dag.graph;
  ScalarVector scalars;
  const Norms norms = norms_of(graph);
  for (const NodeId id : norms.nodes) {
    const Node& node = graph.node(id);
    scalars.sources.push_back(node.inputs[0]);
    scalars.squares.push_back(node.attrs);
  }
  const auto squares = static_cast<int64_t>(scalars.sources.size());
  const std::vector<ValueId> shown = shown_sums(graph);
  scalars.sources.insert(scalars.sources.end(), shown.begin(), shown.end());
  const int64_t count = std::ssize(scalars.sources);
  scalars.shared = graph.add_value({.name = "step_scalars", .type = {DType::kF64, {count}}});

  Builder build = update_builder(graph, "step_scalars/");
  for (const ValueId made : norms.made) {
    const std::vector<ValueId> inputs = graph.node(graph.value(made).producer).inputs;
    const auto first = static_cast<int64_t>(norms.at.at(inputs[0])), count = std::ssize(inputs);
    PIPER_CHECK(norms.at.at(inputs.back()) == static_cast<size_t>(first + count - 1),
                "a norm is of gradients that stand apart");
    const ValueId all = build.op1("Slice", {scalars.shared},
                                  {{"starts", std::vector<int64_t>{first}},
                                   {"ends", std::vector<int64_t>{first + count}},
                                   {"steps", std::vector<int64_t>{1}}});
    const ValueId norm = build.op1("GlobalNorm", {all});
    for (Node& node : graph.nodes)
      if (node.pass == Pass::kU) std::replace(node.inputs.begin(), node.inputs.end(), made, norm);
    if (graph.grad_norm == made) graph.grad_norm = norm;
  }
  for (size_t i = 0; i < shown.size(); ++i) {
    const auto at = static_cast<size_t>(squares) + i;
    const ValueId sum = build.reshape(element(build, scalars.shared, at), {});
    for (Node& node : graph.nodes)
      if (node.pass == Pass::kU && !is_step_sum(node))
        std::replace(node.inputs.begin(), node.inputs.end(), shown[i], sum);
    for (ValueId* of : {&graph.loss, &graph.weight})
      if (*of == shown[i]) *of = sum;
  }
  return scalars;
}

Chunk scalar_chunk(Dag& dag, const ScalarVector& scalars, const std::vector<bool>& here,
                   int32_t cell) {
  Graph& graph = dag.graph;
  Builder build = update_builder(graph, fmt::format("step_scalars/{}/", cell));
  const size_t first = graph.nodes.size(), gradients = scalars.squares.size();
  std::vector<ValueId> squares(gradients), parts;
  for (size_t i = 0; i < gradients; ++i)
    if (here[i]) squares[i] = build.op1("SumSquares", {scalars.sources[i]}, scalars.squares[i]);
  sum_over_axes(build, dag, scalars.sources, squares);
  int64_t zeros = 0;  // of sources elsewhere, one after another
  const auto add_zeros = [&] {
    if (zeros > 0)
      parts.push_back(build.expand(build.reshape(build.scalar(0, DType::kF64), {1}), {zeros}));
    zeros = 0;
  };
  for (size_t i = 0; i < scalars.sources.size(); ++i) {
    if (!here[i]) {
      ++zeros;
      continue;
    }
    add_zeros();
    ValueId number = i < gradients ? squares[i] : scalars.sources[i];
    if (build.type(number).dtype != DType::kF64) number = build.cast(number, DType::kF64);
    parts.push_back(build.reshape(number, {1}));
  }
  add_zeros();
  build.op1("Concat", parts, {{"axis", int64_t{0}}});
  return chunk_of_new_nodes(dag, first, cell, "U step scalars");
}

Chunk sum_chunk(Dag& dag, ValueId a, ValueId b, const std::string& name) {
  Builder build = update_builder(dag.graph, "step_scalars/sum/");
  const size_t first = dag.graph.nodes.size();
  build.op1("Add", {a, b});
  return chunk_of_new_nodes(dag, first, 0, name);
}

Reports report_values(const Dag& dag) {
  const Graph& graph = dag.graph;
  Reports reports;
  if (graph.loss.valid()) reports.emplace_back("loss", graph.loss);
  if (graph.grad_norm.valid()) reports.emplace_back("grad_norm", graph.grad_norm);
  if (graph.weight.valid()) reports.emplace_back("weight", graph.weight);
  const auto report = [&](const char* name, const auto& is_it) {
    const auto node = std::find_if(graph.nodes.begin(), graph.nodes.end(), is_it);
    if (node != graph.nodes.end()) reports.emplace_back(name, node->outputs[0]);
  };
  if (!graph.loss.valid()) return reports;  // an outer update
  report("learning_rate", [](const Node& node) { return node.op == "LearningRate"; });
  report("skipped", [](const Node& node) { return node.op == "NotFinite"; });
  report("loss_scale", [](const Node& node) { return node.op == "LossScale"; });
  return reports;
}

namespace {

// Lists what the nodes of an update read, back to the first parameters and sums on each way.
struct UpdateReads {
  std::vector<ValueId> params;
  std::vector<NodeId> sums;
};

UpdateReads reads_of(const Graph& graph, ValueId next, const std::vector<ValueId>& param_of) {
  UpdateReads reads;
  std::set<NodeId> seen;
  const auto visit = [&](NodeId id, const auto& self) -> void {
    if (!seen.insert(id).second) return;
    const Node& node = graph.node(id);
    const size_t before = reads.params.size();
    for (ValueId input : node.inputs)
      if (input.valid() && param_of[input.index()].valid())
        reads.params.push_back(param_of[input.index()]);
    if (is_step_sum(node)) reads.sums.push_back(id);
    if (reads.params.size() > before || is_step_sum(node) || node.pass != Pass::kU) return;
    for (ValueId input : node.inputs)
      if (input.valid() && graph.value(input).producer.valid())
        self(graph.value(input).producer, self);
  };
  visit(graph.value(next).producer, visit);
  return reads;
}

// Returns where contributions to the sums are made.
std::set<int32_t> cells_of(const Dag& dag, const std::vector<NodeId>& sums) {
  std::set<NodeId> makers;
  for (NodeId sum : sums)
    for (ValueId use : dag.graph.node(sum).inputs) makers.insert(dag.graph.value(use).producer);
  std::set<int32_t> cells;
  for (const Chunk& chunk : dag.chunks)
    for (NodeId node : chunk.nodes)
      if (makers.contains(node)) cells.insert(chunk.cell);
  return cells;
}

}  // namespace

UpdateIndex::UpdateIndex(const Dag& dag)
    : param_of(dag.graph.values.size()),
      state_of(dag.graph.values.size()),
      readers(piper::readers(dag.graph)),
      held(dag.graph.values.size()) {
  for (const Param& param : dag.graph.params) param_of[param.value.index()] = param.value;
  for (const Part& part : dag.parts) param_of[part.value.index()] = part.param;
  for (const StateUpdate& update : dag.graph.updates) state_of[update.next.index()] = update.state;
  for (const Chunk& chunk : dag.chunks)
    for (ValueId value : chunk.reads)
      if (dag.graph.value(value).kind == ValueKind::kState) held[value.index()].insert(chunk.cell);
  for (const Part& part : dag.parts)  // in a section chunks may read the own part
    if (part.param.valid())
      held[part.param.index()].insert(held[part.value.index()].begin(),
                                      held[part.value.index()].end());
  for (const Version& version : dag.versions)
    held[version.newest.index()].insert(held[version.previous.index()].begin(),
                                        held[version.previous.index()].end());
  std::set<ValueId> copies;
  for (const Copy& copy : dag.copies) {
    param_of[copy.copy.index()] = copy.copy;
    copies.insert(copy.copy);
    held[copy.master.index()].insert(held[copy.copy.index()].begin(),
                                     held[copy.copy.index()].end());
  }
  for (const StateUpdate& update : dag.graph.updates) {
    // A copy is made beside its parameter, wherever microbatches read it.
    if (const ValueId copy = param_of[update.state.index()]; copies.contains(copy)) {
      params.push_back({copy});
      continue;
    }
    UpdateReads reads = reads_of(dag.graph, update.next, param_of);
    // What a model keeps, and replaces by what does not depend on it, stays where it is.
    if (const ValueId own = param_of[update.state.index()]; own.valid() && reads.params.empty())
      reads.params.push_back(own);
    params.push_back(update.beside.valid() ? std::vector<ValueId>{update.beside} : reads.params);
    for (ValueId param : params.back())
      if (held[param.index()].empty()) held[param.index()] = cells_of(dag, reads.sums);
  }
}

bool UpdateIndex::travels_for_sum(const Graph& graph, NodeId node) const {
  const std::vector<ValueId>& inputs = graph.node(node).inputs;
  if (inputs.size() != 1 || !inputs[0].valid()) return false;
  const Value &sum = graph.value(inputs[0]), &made = graph.value(graph.node(node).outputs[0]);
  return sum.producer.valid() && is_step_sum(graph.node(sum.producer)) &&
         readers[inputs[0].index()].size() == 1 && made.type.bytes() < sum.type.bytes() &&
         made.type.shape.size() > 0;
}

}  // namespace piper
