// Cuts a step into chunks of tokens in order, or into shares of samples: the axis in time over all
// ops, whose cells become tasks.
//
// With keys k_0 … k_p of the chunks so far, and t_p the terms of their gradients that chunk p
// makes:
//
//   forward of chunk p     y_p := Attention(q_p, k_0 … k_p), causal
//   backward, last first   d_p := t_p + what chunk p+1 handed on
//                          dk_p := the last block of d_p; the others are handed on to chunk p-1
//
// (Li et al., 2021; Sun et al., 2024.) Sums of the step, as gradients of weights and the loss, add
// the chunks up in the order in which they run.
#include <algorithm>
#include <map>
#include <set>

#include "axis_rewriter.h"
#include "parts.h"

namespace piper {
namespace {

using namespace axis;

class TokenCutter {
 public:
  TokenCutter(Graph graph, const PartCut& cut)
      : cut_(cut),
        axis_{kAxisInTime, cut.name, cut.ranks(), {}},
        rewriter_(std::move(graph), axis_) {}

  Result<Parts> run() {
    const State& state = rewriter_.state();
    for (size_t v = 0; v < state.graph.values.size(); ++v)
      if (state.graph.values[v].kind == ValueKind::kState)
        PIPER_TRY(rewriter_.seed({ValueId(v), -1, cut_.at}));
    for (const PartCut::Seed& seed : cut_.seeds)
      PIPER_TRY(rewriter_.seed({seed.value, seed.dim, cut_.at}));
    const size_t count = state.graph.nodes.size();
    for (size_t n = 0; n < count; ++n) PIPER_TRY(visit(NodeId(n)));
    ShardedGraph made = rewriter_.finish();
    PIPER_TRY(check(made.graph));
    Parts parts = unroll(std::move(made.graph), cut_, {});
    if (cut_.of_samples) {
      PIPER_ASSIGN(parts.graph, copied_into_shares(std::move(parts.graph)));
    }
    give_all_a_chunk(parts.graph);
    return parts;
  }

 private:
  Status visit(NodeId id) {
    const State& state = rewriter_.state();
    const Node& node = state.graph.node(id);
    rewriter_.begin(id);
    const Loops& loops = state.loops(node);
    if (node.op == "Attention" || node.op == "AttentionGrad")
      return lower_in_order(rewriter_, id, loops, cut_.at);
    rewriter_.prepare(node, loops);
    rewriter_.rewrite(id, choose(state, node, loops));
    return ok_status();
  }

  // Says how a value was put together of several chunks, and which op worked on it first.
  struct Mixed {
    const Node *how, *by;
  };

  // Refuses what a chunk would need of later ones in the forward, or of earlier ones in the
  // backward: only causal attention reads what several chunks make and works on one, within a pass.
  Status check(const Graph& graph) const {
    const auto all_readers = readers(graph);
    std::map<ValueId, Mixed> of_several[2];  // of the forward and of the backward
    for (const Node& node : graph.nodes) {
      auto& in_pass = of_several[is_backward(node)];
      if (!cut_.sizes.empty() && find_op(node.op)->draws >= 0 && works_on_chunk(graph, node))
        return draws_in_chunks(node);
      const bool ends = is_step_sum(node) || node.pass == Pass::kU,
                 in_order = reads_in_order(graph, node);
      for (size_t i = 0; i < node.inputs.size() && !ends; ++i) {
        const auto from = in_pass.find(node.inputs[i]);
        const bool is_keys = in_order && (i == 1 || i == 2);
        if (from == in_pass.end() || is_keys) continue;
        const bool moves = is_collective(node) || node.op == "Reshape" || node.op == "Transpose";
        const Node* by = from->second.by || moves ? from->second.by : &node;
        if (works_on_chunk(graph, node))
          return needs_all(graph, *from->second.how, by ? *by : node);
        for (ValueId output : node.outputs) in_pass.emplace(output, Mixed{from->second.how, by});
      }
      if (!is_collective(node) || node.op == "OwnBlock" || node.inputs.empty()) continue;
      const NodeId maker = graph.value(node.inputs[0]).producer;
      const bool of_keys = maker.valid() && reads_in_order(graph, graph.node(maker));
      if (node.op == "ReduceScatter" && of_keys) continue;
      in_pass.emplace(node.outputs[0], Mixed{&node, nullptr});
      if (const Node* other = reads_beside_keys(graph, all_readers[node.outputs[0].index()]))
        return needs_all(graph, node, *other);
    }
    return ok_status();
  }
  static bool is_collective(const Node& node) {
    return find_op(node.op)->collective && node.attrs.integer("over", 0) == kAxisInTime;
  }
  static bool works_on_chunk(const Graph& graph, const Node& node) {
    const auto differs = [&](ValueId id) { return differs_in_time(graph, id); };
    return std::ranges::any_of(node.inputs, differs) || std::ranges::any_of(node.outputs, differs);
  }
  // Returns a reader of what is not the same for all chunks, since it is keys, that needs the
  // whole.
  static const Node* reads_beside_keys(const Graph& graph, const std::vector<NodeId>& readers) {
    const Node* other = nullptr;
    bool any_keys = false;
    for (NodeId reader : readers) {
      const bool in_order = reads_in_order(graph, graph.node(reader));
      any_keys = any_keys || in_order;
      if (!in_order) other = &graph.node(reader);
    }
    return any_keys ? other : nullptr;
  }
  // Ops that work on no share, such as the cast of a weight, are copied into each share that reads
  // what they make, so that no share waits for another.
  Result<Graph> copied_into_shares(Graph graph) const {
    const int tag = graph.tag_index(cut_.name);
    const auto all_readers = readers(graph);
    const size_t count = graph.nodes.size();
    std::vector<bool> is_free(count);
    for (size_t n = 0; n < count; ++n) {
      const Node& node = graph.nodes[n];
      is_free[n] = node.pass != Pass::kU && !is_step_sum(node) && graph.tag(node, tag) == kNoTag &&
                   std::ranges::all_of(node.inputs, [&](ValueId input) {
                     const NodeId from = input.valid() ? graph.value(input).producer : NodeId();
                     return !from.valid() || is_step_sum(graph.node(from)) || is_free[from.index()];
                   });
    }
    std::vector<std::set<int32_t>> shares(count);  // by op: those that read what it makes
    for (size_t n = count; n-- > 0;)
      for (size_t o = 0; is_free[n] && o < graph.nodes[n].outputs.size(); ++o)
        for (NodeId reader : all_readers[graph.nodes[n].outputs[o].index()])
          if (const int32_t share = graph.tag(graph.node(reader), tag); share != kNoTag)
            shares[n].insert(share);
          else if (is_free[reader.index()])
            shares[n].insert(shares[reader.index()].begin(), shares[reader.index()].end());
    std::map<std::pair<ValueId, int32_t>, ValueId> copies;
    const auto put = [&](Node& node, int32_t share) {
      graph.set_tag(node, tag, share);
      for (ValueId& input : node.inputs)
        if (const auto copy = copies.find({input, share}); copy != copies.end())
          input = copy->second;
    };
    for (size_t n = 0; n < count; ++n) {
      const int32_t own = graph.tag(graph.nodes[n], tag);
      if (own != kNoTag) put(graph.nodes[n], own);
      const Node whole = graph.nodes[n];
      for (auto share = shares[n].rbegin(); share != shares[n].rend(); ++share) {
        if (*share == *shares[n].begin()) {
          put(graph.nodes[n], *share);
          continue;
        }
        Node copy = whole;
        put(copy, *share);
        const NodeId made = graph.add_copy(std::move(copy));
        for (size_t o = 0; o < whole.outputs.size(); ++o)
          copies[{whole.outputs[o], *share}] = graph.node(made).outputs[o];
      }
    }
    return in_topological_order(std::move(graph));
  }
  // What works on results of several chunks runs with the one that runs last, and what works on
  // none with the one that runs first.
  void give_all_a_chunk(Graph& graph) const {
    const int tag = graph.tag_index(cut_.name);
    const auto last = static_cast<int32_t>(cut_.into) - 1;
    for (Node& node : graph.nodes) {
      if (node.pass == Pass::kU || is_step_sum(node) || graph.tag(node, tag) != kNoTag) continue;
      const bool backward = is_backward(node);
      int32_t chunk = backward ? last : 0;
      for (ValueId input : node.inputs) {
        const NodeId from = input.valid() ? graph.value(input).producer : NodeId();
        if (!from.valid() || is_backward(graph.node(from)) != backward) continue;
        const int32_t of = graph.tag(graph.node(from), tag);
        if (of != kNoTag) chunk = backward ? std::min(chunk, of) : std::max(chunk, of);
      }
      graph.set_tag(node, tag, chunk);
    }
  }

  Error draws_in_chunks(const Node& node) const {
    const char* const what = cut_.of_samples ? "shares" : "chunks";
    return fail(cut_.at, "not supported: {} of different sizes, where {} '{}'{} draws numbers",
                what, node.op, quote_control(node.name),
                node.scope.empty() ? "" : fmt::format(" of {}", quote_control(node.scope)))
        .with_note(fmt::format("help: {} of one size", what));
  }
  Error needs_all(const Graph& graph, const Node& how, const Node& reader) const {
    const Value& value = graph.value(how.inputs[0]);
    const bool sums =
        how.op == "AllReduce" || how.op == "AllReduceMax" || how.op == "ReduceScatter";
    Error error =
        fail(cut_.at,
             "split: {} '{}'{} mixes {}: it needs all of '{}' ({}){}, of which a {} has {}",
             reader.op, quote_control(reader.name),
             reader.scope.empty() ? "" : fmt::format(" of {}", quote_control(reader.scope)),
             cut_.of_samples ? "samples" : "tokens", quote_control(value.name),
             to_string(graph.value(how.outputs[0]).type),
             is_backward(reader) ? ", a gradient or what is kept for it" : "",
             cut_.of_samples ? "share" : "chunk",
             sums ? std::string("one term of a sum")
                  : fmt::format("only some of dim {}", how.attrs.integer("dim")))
            .with_note(cut_.of_samples
                           ? "nothing but sums over the step may read what several shares make"
                       : sums ? "a statistic over all tokens is not one over a chunk of them"
                              : "only causal attention may read what other chunks make");
    const auto is_softmax = [&](const Node& node) {
      return node.op == "Softmax" && node.scope == reader.scope;
    };
    if (!cut_.of_samples && std::ranges::any_of(graph.nodes, is_softmax))
      error.notes.push_back(
          fmt::format("the softmax of products in {} is not recognised as an attention, as none "
                      "with dropout of "
                      "its weights is: `piperc MODEL --describe` says what does not fit",
                      quote_control(reader.scope)));
    return std::move(error).with_note(fmt::format(
        "help: `shard: {{input: \"*\", dim: {}, over: …}}` cuts {} over devices instead",
        cut_.of_samples ? 0 : 1, cut_.of_samples ? "samples" : "tokens"));
  }

  const PartCut& cut_;
  const AxisCut axis_;
  Rewriter rewriter_;
};

}  // namespace

bool differs_in_time(const Graph& graph, ValueId id) {
  return id.valid() && std::ranges::any_of(graph.value(id).over, [](const AxisLayout& over) {
           return over.axis == kAxisInTime;
         });
}

bool reads_in_order(const Graph& graph, const Node& node) {
  const bool is_attention = node.op == "Attention" || node.op == "AttentionGrad";
  return is_attention && node.attrs.integer("causal") != 0 &&
         differs_in_time(graph, node.inputs[0]);
}

Result<Parts> cut_chunks(Graph graph, const PartCut& cut) {
  return TokenCutter(std::move(graph), cut).run();
}

}  // namespace piper
