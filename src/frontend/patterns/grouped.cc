// Products of rows with matrices of a stack that are looked up for each, as experts of a mixture
// are exported: a copy of a matrix for each row.
//
//   MatMul(GatherND(w, index), x) with x[…, k, 1]  ->  GroupedMatMul{trans_b}(x, index, w)
//   MatMul(x, GatherND(w, index)) with x[…, 1, k]  ->  GroupedMatMul(x, index, w)
//
// and of Gather along the stack.
#include "match.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

struct Lookup {
  ValueId stack, index;
  Shape rows;       // the index's shape
  size_t side = 0;  // which operand of the product holds the matrices
};

// Returns the matrices that `id` holds, one for each row.
std::optional<Lookup> looked_up(const Graph& graph, const Matcher& match, ValueId id) {
  const Node* node = match.sole(id, "GatherND");
  const bool is_nd = node != nullptr;
  if (!node) node = match.sole(id, "Gather");
  if (!node || graph.value(node->inputs[0]).type.shape.size() != 3) return std::nullopt;
  if (node->inputs.size() != 2 || node->attrs.find("padding")) return std::nullopt;
  Lookup found{node->inputs[0], node->inputs[1], graph.value(node->inputs[1]).type.shape};
  if (is_nd && (node->attrs.integer("batch_dims") != 0 || found.rows.back() != 1))
    return std::nullopt;
  if (!is_nd && node->attrs.integer("axis") != 0) return std::nullopt;
  if (is_nd) found.rows.pop_back();
  return found;
}

// One operand of the product holds the matrices; the other one has one row, or column, for each.
std::optional<Lookup> matrices_of(const Graph& graph, const Matcher& match, const Node& node) {
  if (node.op != "MatMul" || node.inputs.size() != 2) return std::nullopt;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    auto found = looked_up(graph, match, node.inputs[side]);
    const Shape& other = graph.value(node.inputs[1 - side]).type.shape;
    if (!found || other.size() != found->rows.size() + 2) continue;
    const bool trans = node.attrs.integer(side == 0 ? "trans_b" : "trans_a");
    const size_t single = other.size() - ((side == 0) != trans ? 1 : 2);
    if (other[single] == 1 && std::equal(found->rows.begin(), found->rows.end(), other.begin())) {
      found->side = side;
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace

Count recognise_grouped(Graph& graph) {
  const Matcher match(graph);
  Count count = 0;
  const size_t nodes = graph.nodes.size();
  for (size_t i = 0; i < nodes; ++i) {
    const Node node = graph.nodes[i];
    const std::optional<Lookup> found = matrices_of(graph, match, node);
    if (!found) continue;
    const size_t side = found->side;
    Builder build(graph);
    build.scope = node.scope;
    build.tags = node.tags;
    build.pass = node.pass;
    build.name_prefix = node.name + "/";
    const ValueId other = node.inputs[1 - side];
    Shape x = found->rows;
    x.push_back(num_elements(graph.value(other).type.shape) /
                std::max<int64_t>(1, num_elements(x)));
    const bool trans = node.attrs.integer(side == 0 ? "trans_a" : "trans_b");
    const ValueId made =
        build.op1("GroupedMatMul",
                  {build.reshape(other, x), build.reshape(found->index, found->rows), found->stack},
                  {{"trans_b", int64_t{(side == 0) != trans}}});
    Node& now = graph.nodes[i];
    now.op = "Reshape";
    now.attrs = Attrs{{"shape", graph.value(node.outputs[0]).type.shape}};
    now.inputs = {made};
    ++count;
  }
  return count;
}

}  // namespace piper::patterns
