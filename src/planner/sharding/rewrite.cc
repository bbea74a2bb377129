// Helpers that rewrite a graph and check its types afterwards.
#include "rewrite.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "piper/base/parallel.h"

namespace piper {

int64_t stretches_of(const Shape& shape, int dim, int64_t outer) {
  for (int d = 0; d < dim; ++d) outer *= shape[static_cast<size_t>(d)];
  return outer;
}

Shape local_shape(Shape shape, const Layout& layout, int64_t shards) {
  if (layout.kind != LayoutKind::kSharded) return shape;
  int64_t& extent = shape[static_cast<size_t>(layout.dim)];
  PIPER_CHECK(extent % (layout.outer * shards) == 0);
  extent /= shards;
  return shape;
}

std::string blocks_of(const Value& constant, const Layout& layout, int64_t shards) {
  const int64_t outer = stretches_of(constant.type.shape, layout.dim, layout.outer);
  const Bytes data = constant.data.made();
  const size_t block = data.size / static_cast<size_t>(std::max<int64_t>(outer * shards, 1));
  std::string blocks;
  for (int64_t s = 0; s < shards; ++s)
    for (int64_t o = 0; o < outer; ++o)
      blocks += as_text(data.span().subspan(static_cast<size_t>(o * shards + s) * block, block));
  return blocks;
}

void append(Graph& graph, std::vector<Node>& nodes, Node node) {
  for (ValueId output : node.outputs) graph.value(output).producer = NodeId(nodes.size());
  nodes.push_back(std::move(node));
}

Graph taken_apart(Graph graph, const std::vector<NodeId>& which) {
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (std::find(which.begin(), which.end(), NodeId(i)) == which.end()) {
      append(graph, nodes, std::move(graph.nodes[i]));
      continue;
    }
    const Node whole = graph.nodes[i];
    const OpDef::Steps apart = find_op(whole.op)->apart(use_of(graph, whole));
    std::vector<std::vector<ValueId>> made;
    for (size_t s = 0; s < apart.steps.size(); ++s) {
      const OpDef::Step& step = apart.steps[s];
      Node node = whole;
      node.op = step.op, node.attrs = step.attrs;
      node.inputs.clear(), node.outputs.clear();
      for (const OpDef::Operand& from : step.inputs) {
        const auto at = static_cast<size_t>(from.index);
        node.inputs.push_back(from.step < 0 ? whole.inputs[at]
                                            : made[static_cast<size_t>(from.step)][at]);
      }
      const auto types = find_op(node.op)->types(use_of(graph, node));
      PIPER_CHECK(types.ok(), "{} of {}: {}", node.op, whole.op, types.error().message);
      for (size_t o = 0; o < types->size(); ++o) {
        const auto own =
            std::find_if(apart.outputs.begin(), apart.outputs.end(), [&](const auto& x) {
              return x.step == static_cast<int>(s) && x.index == static_cast<int>(o);
            });
        if (own != apart.outputs.end()) {
          node.outputs.push_back(whole.outputs[static_cast<size_t>(own - apart.outputs.begin())]);
        } else {
          node.outputs.push_back(graph.add_value(
              {.name = fmt::format("{}/{}", whole.name, node.op),
               .type = (*types)[o],
               .layout = graph.value(whole.outputs[0]).layout}));  // of the batch: as its rows
        }
        graph.value(node.outputs.back()).output_index = static_cast<int>(o);
      }
      made.push_back(node.outputs);
      append(graph, nodes, std::move(node));
    }
  }
  graph.nodes = std::move(nodes);
  return graph;
}

Graph without_repeats(Graph graph, size_t first) {
  std::map<std::tuple<std::string, std::string, std::vector<ValueId>>, NodeId> made;
  std::map<ValueId, ValueId> same;
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    for (ValueId& input : node.inputs)
      if (const auto known = same.find(input); known != same.end()) input = known->second;
    if (node.outputs[0].index() >= first) {
      const auto [known, is_new] =
          made.try_emplace({node.op, print_attrs(node.attrs), node.inputs}, NodeId(nodes.size()));
      if (!is_new && is_backward(node)) {
        for (size_t o = 0; o < node.outputs.size(); ++o) {
          same[node.outputs[o]] = nodes[known->second.index()].outputs[o];
          graph.value(node.outputs[o]).producer = known->second;  // nobody reads it
        }
        continue;
      }
    }
    append(graph, nodes, std::move(node));
  }
  graph.nodes = std::move(nodes);
  return graph;
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
