// Folds transposes into products, and joins parts that were padded apart.
#include <algorithm>

#include "match.h"

namespace piper::patterns {
namespace {

// Returns whether perm swaps the last two dims and keeps the others.
bool swaps_last_two(const std::vector<int64_t>& perm) {
  const size_t n = perm.size();
  if (n < 2) return false;
  for (size_t i = 0; i + 2 < n; ++i)
    if (perm[i] != static_cast<int64_t>(i)) return false;
  return perm[n - 2] == static_cast<int64_t>(n - 1) && perm[n - 1] == static_cast<int64_t>(n - 2);
}

}  // namespace

std::optional<ValueId> swapped_of(const Graph& graph, const Matcher& match, ValueId id) {
  const Shape& shape = graph.value(id).type.shape;
  if (shape.size() < 2) return std::nullopt;
  const auto source = [&](const Node* node) -> std::optional<ValueId> {
    if (!node || node->op != "Transpose" || !swaps_last_two(node->attrs.integers("perm")))
      return std::nullopt;
    return node->inputs[0];
  };
  if (const auto direct = source(match.producer(id))) return direct;
  const Node* outer = match.producer(id);
  if (!outer || outer->op != "Reshape") return std::nullopt;
  const auto middle = source(match.producer(outer->inputs[0]));
  const Node* inner = middle ? match.producer(*middle) : nullptr;
  if (!inner || inner->op != "Reshape") return std::nullopt;
  const Shape &from = graph.value(inner->inputs[0]).type.shape,
              &between = graph.value(*middle).type.shape;
  const size_t n = shape.size();
  if (from.size() != n || between.size() < 2) return std::nullopt;
  for (size_t i = 0; i + 2 < n; ++i)
    if (from[i] != shape[i]) return std::nullopt;
  const bool rows_kept =
      from[n - 2] == between[between.size() - 2] && from[n - 1] == between[between.size() - 1];
  if (!rows_kept || shape[n - 2] != from[n - 1] || shape[n - 1] != from[n - 2]) return std::nullopt;
  return inner->inputs[0];
}

Count fold_transposes(Graph& graph) {
  Count folded = 0;
  const Matcher match(graph);
  const size_t count = graph.nodes.size();
  for (size_t i = 0; i < count; ++i) {
    if (graph.nodes[i].op != "MatMul") continue;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const ValueId operand = graph.nodes[i].inputs[side];
      ValueId source;
      if (const auto direct = swapped_of(graph, match, operand)) {
        source = *direct;
      } else if (const Node* scaled = match.sole(operand, "Mul");
                 scaled && match.scalar(scaled->inputs[1])) {
        // c · aᵀ = (c · a)ᵀ: the factor moves to the other side of the transposition.
        const auto inner = swapped_of(graph, match, scaled->inputs[0]);
        const auto rank = [&](ValueId id) { return graph.value(id).type.shape.size(); };
        if (!inner || rank(scaled->inputs[1]) > rank(*inner)) continue;  // it adds dims
        Node mul = *scaled;
        mul.inputs[0] = *inner;
        const TensorType type = graph.value(*inner).type;
        const NodeId id = graph.add_node(std::move(mul), std::span(&type, 1));
        source = graph.node(id).outputs[0];
      } else {
        continue;
      }
      Node& node = graph.nodes[i];
      const char* flag = side == 0 ? "trans_a" : "trans_b";
      node.attrs.set(flag, int64_t{1} - node.attrs.integer(flag));
      node.inputs[side] = source;
      ++folded;
    }
  }
  return folded;
}

Count join_padded_parts(Graph& graph) {
  const Matcher match(graph);
  Count joined = 0;
  std::vector<std::pair<size_t, std::pair<std::vector<ValueId>, int64_t>>> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op != "Add") continue;
    const ValueId out = graph.nodes[i].outputs[0];
    const std::vector<ValueId> terms = match.sum(out);
    std::vector<const Node*> pads;
    for (ValueId term : terms) {
      const Node* pad = match.sole(term, "Pad");
      const bool whole = graph.value(term).type.shape == graph.value(out).type.shape;
      if (!pad || !whole || pad->attrs.real("value") != 0) break;
      pads.push_back(pad);
    }
    if (pads.size() < 2 || pads.size() != terms.size()) continue;
    const size_t rank = graph.value(out).type.shape.size();
    std::vector<int64_t> axes;
    for (size_t d = 0; d < rank; ++d)
      if (std::any_of(pads.begin(), pads.end(), [&](const Node* pad) {
            return pad->attrs.integers("before")[d] != 0 || pad->attrs.integers("after")[d] != 0;
          }))
        axes.push_back(static_cast<int64_t>(d));
    if (axes.size() != 1) continue;
    const auto axis = static_cast<size_t>(axes[0]);
    std::sort(pads.begin(), pads.end(), [&](const Node* a, const Node* b) {
      return a->attrs.integers("before")[axis] < b->attrs.integers("before")[axis];
    });
    int64_t next = 0;
    std::vector<ValueId> parts;
    for (const Node* pad : pads) {
      if (pad->attrs.integers("before")[axis] != next) break;
      next += graph.value(pad->inputs[0]).type.shape[axis];
      parts.push_back(pad->inputs[0]);
    }
    if (parts.size() != pads.size() || next != graph.value(out).type.shape[axis]) continue;
    found.push_back({i, {std::move(parts), axes[0]}});
  }
  for (auto& [i, concat] : found) {
    Node& node = graph.nodes[i];
    node.op = "Concat";
    node.inputs = std::move(concat.first);
    node.attrs = Attrs();
    node.attrs.set("axis", concat.second);
    ++joined;
  }
  return joined;
}

}  // namespace piper::patterns
