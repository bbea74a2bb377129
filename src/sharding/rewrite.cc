#include "rewrite.h"

#include <algorithm>

#include "piper/parallel.h"

namespace piper {

int64_t stretches_of(const Shape& shape, int dim, int64_t outer) {
  for (int d = 0; d < dim; ++d) outer *= shape[static_cast<size_t>(d)];
  return outer;
}

void append(Graph& graph, std::vector<Node>& nodes, Node node) {
  for (ValueId output : node.outputs) graph.value(output).producer = NodeId(nodes.size());
  nodes.push_back(std::move(node));
}

namespace {

void check_node(const Graph& graph, const Node& node, const std::string& cut) {
  const OpDef* def = find_op(node.op);
  if (def == nullptr || def->types == nullptr) return;
  OpTypes use = use_of(graph, node);
  const std::vector<TensorType> expected = std::exchange(use.outputs, {});
  const auto types = def->types(use);
  PIPER_CHECK(types.ok(), "{} '{}' cut over {}: {}", node.op, node.name, cut,
              types.error().message);
  for (size_t i = 0; i < expected.size(); ++i)
    PIPER_CHECK((*types)[i] == expected[i], "{} '{}' cut over {} makes {}, not {}", node.op,
                node.name, cut, to_string((*types)[i]), to_string(expected[i]));
}

}  // namespace

void check_types(const Graph& graph, const std::string& cut) {
  constexpr size_t kBlock = 256;
  in_parallel((graph.nodes.size() + kBlock - 1) / kBlock, [&](size_t b) {
    for (size_t n = b * kBlock; n < std::min((b + 1) * kBlock, graph.nodes.size()); ++n)
      check_node(graph, graph.nodes[n], cut);
  });
}

}  // namespace piper
