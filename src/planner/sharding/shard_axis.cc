// Cuts a graph over one mesh axis: chooses a layout for each node and inserts collectives.
#include <algorithm>
#include <map>
#include <utility>

#include "axis_rewriter.h"
#include "pad.h"

namespace piper {
namespace {

using namespace axis;

// Returns by op whether it takes the chunk of an input, or the block over an axis before, in which
// this axis cuts: it takes that as it is.
std::vector<bool> takers_of(const Graph& graph, const AxisCut& cut) {
  std::vector<bool> takers(graph.nodes.size());
  for (const ShardSeed& seed : cut.seeds)
    if (graph.value(input_of(graph, seed.value)).kind == ValueKind::kInput)
      for (ValueId id = seed.value; graph.value(id).producer.valid();) {
        const NodeId taker = graph.value(id).producer;
        takers[taker.index()] = true;
        id = graph.node(taker).inputs[0];
      }
  return takers;
}

// Chooses how the op is cut and adds it; notes it in `gathered` if its operands had to be gathered.
Status visit(Rewriter& rewriter, NodeId id, const std::vector<bool>& takers,
             std::vector<NodeId>& gathered) {
  const State& state = rewriter.state();
  const Node& node = state.graph.node(id);
  const Loops& loops = state.loops(node);
  rewriter.begin(id);
  if (const AttentionCut* how = attention_of(state.cut, node))
    return lower_attention(rewriter, id, loops, *how);
  if (takers[id.index()])
    return rewriter.rewrite(id, loop_choice(state, node, loops, {})), ok_status();
  rewriter.prepare(node, loops);
  const Choice choice = choose(state, node, loops);
  if (gathers(state, node, loops, choice)) gathered.push_back(id);
  rewriter.rewrite(id, choice);
  return ok_status();
}

// Finds the ops whose operands would have to be gathered although others can work on parts; none
// where the axis cannot be cut so.
std::vector<NodeId> find_gathered(const Graph& graph, const AxisCut& cut) {
  const auto has_parts = [](const Node& node) {
    const OpDef* def = find_op(node.op);
    return def != nullptr && def->apart != nullptr;
  };
  const auto last = std::find_if(graph.nodes.rbegin(), graph.nodes.rend(), has_parts);
  if (last == graph.nodes.rend()) return {};
  Rewriter rewriter(graph, cut);
  const std::vector<bool> takers = takers_of(graph, cut);
  std::vector<NodeId> gathered;
  for (const ShardSeed& seed : cut.seeds)
    if (!rewriter.seed(seed)) return {};
  const auto count = static_cast<size_t>(graph.nodes.rend() - last);
  for (size_t i = 0; i < count; ++i)
    static_cast<void>(visit(rewriter, NodeId(i), takers, gathered));  // errors come again
  return gathered;
}

// Gradients will have the layouts of their parameters.
void hint_gradients(Rewriter& rewriter) {
  for (const Param& param : rewriter.state().graph.params)
    if (const Layout layout = rewriter.state().layout(param.value);
        param.gradient.valid() && layout.kind == kCut)
      rewriter.hint(param.gradient, layout);
}

// Returns what chunks of tokens take of an input, which one after the other are all of it; empty:
// it is in no chunks.
std::vector<ValueId> chunks_of(const Graph& graph, ValueId input, size_t dim) {
  const Shape& shape = graph.value(input).type.shape;
  std::map<int64_t, int64_t> ends;  // by start
  std::vector<ValueId> chunks;
  for (const Node& node : graph.nodes) {
    if (node.op != "Slice" || node.inputs[0] != input) continue;
    Shape own = graph.value(node.outputs[0]).type.shape;
    const int64_t start = node.attrs.integers("starts")[dim], end = start + own[dim];
    own[dim] = shape[dim];
    if (own != shape || ends.try_emplace(start, end).first->second != end) return {};
    chunks.push_back(node.outputs[0]);
  }
  int64_t end = 0;
  for (const auto& [first, last] : ends)
    if (std::exchange(end, last) != first) return {};
  return end == shape[dim] && ends.size() > 1 ? chunks : std::vector<ValueId>();
}

// Finds what this axis cuts of an input: each chunk of tokens by itself, and of that what a rank
// has over the axes before.
void find_blocks(const Graph& graph, ValueId of, int dim, std::vector<ValueId>& found) {
  std::vector<ValueId> taken = chunks_of(graph, of, static_cast<size_t>(dim));
  for (const Node& node : graph.nodes)
    if (node.op == "OwnBlock" && node.inputs[0] == of && node.attrs.integer("dim") == dim)
      taken.push_back(node.outputs[0]);
  for (const ValueId each : taken) find_blocks(graph, each, dim, found);
  if (taken.empty()) found.push_back(of);
}

// A rank loads its samples of an input whole, and takes its block of another dim over one axis
// after the other.
void cut_blocks(const Graph& graph, AxisCut& cut) {
  std::vector<ShardSeed> seeds;
  for (const ShardSeed& seed : cut.seeds) {
    const Value& value = graph.value(seed.value);
    std::vector<ValueId> found;
    if (value.kind == ValueKind::kInput && value.batch_dim != seed.dim && seed.dim >= 0)
      find_blocks(graph, seed.value, seed.dim, found);
    else
      found.push_back(seed.value);
    for (const ValueId each : found) {
      seeds.push_back(seed);
      seeds.back().value = each;
    }
  }
  cut.seeds = std::move(seeds);
}

}  // namespace

Result<ShardedGraph> shard_axis(Graph graph, const AxisCut& how) {
  AxisCut cut = how;
  cut_blocks(graph, cut);
  PIPER_ASSIGN(graph, pad(std::move(graph), cut));
  std::vector<NodeId> gathered = find_gathered(graph, cut);
  if (!gathered.empty()) graph = taken_apart(std::move(graph), gathered);
  const size_t count = graph.nodes.size();
  const std::vector<bool> takers = takers_of(graph, cut);
  Rewriter rewriter(std::move(graph), cut);
  for (const ShardSeed& seed : cut.seeds) PIPER_TRY(rewriter.seed(seed));
  bool backward = false;
  for (size_t i = 0; i < count; ++i) {
    if (!backward && is_backward(rewriter.state().graph.nodes[i])) {
      backward = true;
      hint_gradients(rewriter);
    }
    PIPER_TRY(visit(rewriter, NodeId(i), takers, gathered));
  }
  if (cut.capacity && rewriter.state().routes.empty())
    return fail(cut.capacity_at,
                "shard: 'capacity' over '{}', along which no rows are sent to what they look up",
                cut.name)
        .with_note(
            "help: it is for experts of which each token looks up the matrices; one-hot products "
            "have slots of the model's own, and samples that all ranks hold are not sent");
  return rewriter.finish();
}

}  // namespace piper
