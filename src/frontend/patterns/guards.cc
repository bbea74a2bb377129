// Softmaxes of rows that may have no key, guarded as PyTorch's exporter writes it:
//
//   w = Softmax(x), Where(IsNaN(w), 0, w)
//
// In a row whose scores are all -∞ the weights are NaN and then 0; but the gradient of the softmax
// multiplies by w, and makes NaN of the zeros that the guard passes back. So the scores of such
// rows are replaced before the softmax, as PyTorch's own safe softmax does. A NaN among the scores,
// which the guard as written hides, stays one.
#include <limits>

#include "match.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

// Returns the Softmax whose weights, perhaps after a Dropout, the node guards.
const Node* guarded_softmax(const Matcher& match, const Node& guard) {
  const Node* test = guard.op == "Where" ? match.sole(guard.inputs[0], "IsNaN") : nullptr;
  if (!test || test->inputs[0] != guard.inputs[2] || match.number(guard.inputs[1]) != 0.0 ||
      match.reader_count(guard.inputs[2]) != 2)
    return nullptr;
  const Node* made = match.producer(guard.inputs[2]);
  if (made && made->op == "Dropout") return match.sole(made->inputs[0], "Softmax");
  return made && made->op == "Softmax" ? made : nullptr;
}

}  // namespace

void guard_before_softmax(Graph& graph) {
  const Matcher match(graph);
  std::vector<std::pair<size_t, size_t>> found;  // guards and their softmaxes
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (const Node* softmax = guarded_softmax(match, graph.nodes[n]))
      found.emplace_back(n, static_cast<size_t>(softmax - graph.nodes.data()));
  for (const auto& [guard, softmax] : found) {
    const Node made = graph.nodes[softmax];
    Builder build(graph);
    build.scope = made.scope;
    build.tags = made.tags;
    build.pass = made.pass;
    build.name_prefix = made.name + "/";
    const ValueId scores = made.inputs[0];
    const DType dtype = build.type(scores).dtype;
    const Attrs over_keys{{"axes", std::vector{made.attrs.integer("axis")}},
                          {"keepdims", int64_t{1}}};
    const ValueId none =
        build.op1("Equal", {build.op1("ReduceMax", {scores}, over_keys),
                            build.scalar(-std::numeric_limits<double>::infinity(), dtype)});
    const ValueId kept = build.op1("Where", {none, build.scalar(0, dtype), scores});
    graph.nodes[softmax].inputs[0] = kept;
    graph.nodes[guard].inputs[0] = none;
  }
}

}  // namespace piper::patterns
