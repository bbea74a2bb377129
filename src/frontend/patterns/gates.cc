// SiLU and its gate, and losses of logarithms of softmax.
#include <numeric>

#include "match.h"

namespace piper::patterns {

namespace {

// Returns the x of which the node makes x · sigmoid(x).
std::optional<ValueId> gated(const Matcher& match, const Node* node) {
  if (!node || node->op != "Mul") return std::nullopt;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const Node* sigmoid = match.sole(node->inputs[side], "Sigmoid");
    if (sigmoid && sigmoid->inputs[0] == node->inputs[1 - side]) return sigmoid->inputs[0];
  }
  return std::nullopt;
}

}  // namespace

// x · sigmoid(x) · y
Count recognise_swiglu(Graph& graph) {
  const Matcher match(graph);
  Count count = 0;
  for (Node& node : graph.nodes) {
    if (node.op != "Mul") continue;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const auto x = gated(match, match.sole(node.inputs[side], "Mul"));
      const ValueId other = node.inputs[1 - side];
      if (!x || graph.value(other).type != graph.value(*x).type) continue;
      node.op = "SwiGlu";
      node.inputs = {*x, other};
      ++count;
      break;
    }
  }
  return count;
}

// x · sigmoid(x)
Count recognise_silu(Graph& graph) {
  const Matcher match(graph);
  Count count = 0;
  for (Node& node : graph.nodes) {
    const auto x = gated(match, &node);
    if (!x) continue;
    node.op = "Silu";
    node.inputs = {*x};
    ++count;
  }
  return count;
}

namespace {

// Reads `id` through a transposition; where each of its dims is in what is below.
ValueId below_transpose(const Graph& graph, const Matcher& match, ValueId id,
                        std::vector<int64_t>& perm) {
  perm.resize(graph.value(id).type.shape.size());
  std::iota(perm.begin(), perm.end(), 0);
  const Node* transpose = match.sole(id, "Transpose");
  if (!transpose) return id;
  perm = transpose->attrs.integers("perm");
  return transpose->inputs[0];
}

}  // namespace

// Cross-entropy of log-probabilities over the classes is that of the logits: log-softmax twice is
// log-softmax.
Count recognise_cross_entropy(Graph& graph) {
  const Matcher match(graph);
  Count count = 0;
  const size_t nodes = graph.nodes.size();
  for (size_t i = 0; i < nodes; ++i) {
    if (graph.nodes[i].op != "CrossEntropySum") continue;
    const ValueId scores = graph.nodes[i].inputs[0];
    std::vector<int64_t> perm;
    const ValueId inner = below_transpose(graph, match, scores, perm);
    const Node* log = match.producer(inner);
    if (!log || log->op != "LogSoftmax" || log->attrs.integer("axis") != perm.back()) continue;
    if (inner == scores) {
      graph.nodes[i].inputs[0] = log->inputs[0];
    } else {
      graph.node(graph.value(scores).producer).inputs[0] = log->inputs[0];
    }
    ++count;
  }
  return count;
}

}  // namespace piper::patterns
