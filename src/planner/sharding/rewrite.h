// What every cut does to the nodes of a graph.
#pragma once

#include "piper/ir/graph.h"
#include "piper/ir/ops.h"

namespace piper {

// Returns how often blocks of `dim`, of which there are `outer`, begin in the flat elements.
int64_t stretches_of(const Shape& shape, int dim, int64_t outer);

// Returns the shape of a shard's part.
Shape local_shape(Shape shape, const Layout& layout, int64_t shards);

// Returns the blocks of a constant, one shard's after the other's.
std::string blocks_of(const Value& constant, const Layout& layout, int64_t shards);

// Gives `node` the attributes that `whole` has where its results have other shapes:
// shape_of(value). Requires types as they were. What a cut has said before is kept.
template <class ShapeOf>
void localise(const Graph& graph, const Node& whole, Node& node, const ShapeOf& shape_of) {
  const OpDef* def = find_op(whole.op);
  if (!def || !def->localise) return;
  std::vector<Shape> shapes;
  bool changes = false;
  for (ValueId id : whole.outputs) {
    shapes.push_back(shape_of(id));
    changes = changes || shapes.back() != graph.value(id).type.shape;
  }
  if (!changes) return;
  Attrs local = def->localise(use_of(graph, whole), shapes);
  for (const char* key : {"whole", "cuts"})
    if (const auto* said = node.attrs.find(key)) local.set(key, *said);
  node.attrs = std::move(local);
}

// Returns an op of the same region, for the cut over an axis.
inline Node node_beside(const Node& near, std::string_view axis, std::string_view op,
                        std::vector<ValueId> inputs, Attrs attrs) {
  return {.op = std::string(op),
          .name = fmt::format("{}/{}.{}", near.name, axis, op),
          .scope = near.scope,
          .attrs = std::move(attrs),
          .inputs = std::move(inputs),
          .pass = near.pass,
          .tags = near.tags};
}

// Puts a node after others of the graph, whose nodes they will be.
void append(Graph& graph, std::vector<Node>& nodes, Node node);

// The ops that do the same in steps stand for the nodes.
Graph taken_apart(Graph graph, const std::vector<NodeId>& which);
// Lets the backward read what ops of the forward have made where an op of it would make the same of
// the same. Of ops that make values from number `first` on.
Graph without_repeats(Graph graph, size_t first);

// Every op must be legal on what it reads now; `cut` says what was done, for whoever breaks that.
void check_types(const Graph& graph, const std::string& cut);

}  // namespace piper
