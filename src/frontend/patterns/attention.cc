// Softmax of the products of queries and keys, times values: which values these are, seen through
// whatever views are before them.
#include "attention.h"

#include <algorithm>
#include <cmath>

#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

Shape leading(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }

ViewDims dims_of_product(const ViewDims& y, bool width_first, const Shape& made) {
  ViewDims rows{y[0], y[1], y[2], y[3]};
  if (width_first) std::swap(rows[2], rows[3]);
  std::optional<ViewDims> dims = cut(joined(rows), made);
  PIPER_CHECK(dims.has_value(), "a product is not of its own dims");
  return *std::move(dims);
}

}  // namespace

std::optional<AttentionFound> AttentionFinder::find(size_t index) {
  const Node& last = graph_.nodes[index];
  if (last.op != "MatMul") return std::nullopt;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const Weights weights = reader_.weights(last.inputs[side]);
    if (!weights.softmax) continue;
    reader_.forget();
    std::string& why = why_[weights.softmax->outputs[0]];
    std::vector<ScorePath> paths = reader_.paths(*weights.softmax);
    why = reader_.why();
    if (why.empty() && paths.empty()) why = "no product of queries and keys comes before it";
    for (size_t i = 0, count = paths.size(); i < count; ++i) {
      paths.push_back(paths[i]);
      paths.back().swapped = true;
    }
    for (const ScorePath& path : paths) {
      reason_.clear();
      reader_.forget();
      if (auto found = find_along(index, side, weights, path)) return found;
      if (why.empty()) why = reason_.empty() ? reader_.why() : reason_;
    }
  }
  return std::nullopt;
}

std::optional<AttentionFound> AttentionFinder::find_along(size_t index, size_t of_weights,
                                                          const Weights& weights,
                                                          const ScorePath& path) {
  const Node &last = graph_.nodes[index], &product = *path.product;
  AttentionFound found{index};
  if (!reader_.read(path, weights, found.scores)) return std::nullopt;
  const Shape all = shape(product.outputs[0]), lead = leading(all);
  if (lead.empty()) {
    reason_ = "its products have no dim for samples";
    return std::nullopt;
  }
  found.queries = all[all.size() - (path.swapped ? 1 : 2)];
  found.keys = all[all.size() - (path.swapped ? 2 : 1)];
  if (!reads_weights(last, of_weights, found.scores, found)) return std::nullopt;
  const size_t of_q = path.swapped ? 1 : 0;
  const auto is_transposed = [](const Node& node, size_t operand) {
    return (node.attrs.integer(operand == 0 ? "trans_a" : "trans_b") != 0) != (operand == 1);
  };
  const Operands q = operands(product.inputs[of_q], lead, is_transposed(product, of_q), true),
                 k = operands(product.inputs[1 - of_q], lead, is_transposed(product, 1 - of_q),
                              true);
  const size_t of_v = 1 - of_weights;
  const Operands v = operands(last.inputs[of_v], leading(shape(last.outputs[0])),
                              !is_transposed(last, of_v), false);
  if (!choose_heads(lead, q, k, v, found)) {
    reason_ =
        "its queries, keys and values do not divide into samples and heads alike, or keys "
        "and values are the same for all samples";
    return std::nullopt;
  }
  found.scores.scale *= found.q.factor * found.k.factor;
  if (found.scores.bent && !(found.scores.outer > 0)) {
    reason_ = "its cap is not above 0";
    return std::nullopt;
  }
  take_views(index, of_weights == 1, found);
  return found;
}

// Returns whether the second product sums over the keys, for each query of each head by itself.
bool AttentionFinder::reads_weights(const Node& last, size_t of_weights, const Scores& scores,
                                    const AttentionFound& found) {
  const size_t rank = scores.weights.size();
  const bool transposed = last.attrs.integer(of_weights == 0 ? "trans_a" : "trans_b") != 0;
  const bool keys_last = transposed == (of_weights == 1);
  const Modes &rows = scores.weights[rank - 2], &columns = scores.weights[rank - 1];
  const Modes lead = joined(ViewDims(scores.weights.begin(), scores.weights.end() - 2));
  const int64_t each = found.queries * found.keys;
  const Modes wanted = joined({{extent_of(lead), each}});
  const bool fits = joined(keys_last ? columns : rows) == joined({{found.keys, 1}}) &&
                    joined(keys_last ? rows : columns) == joined({{found.queries, found.keys}}) &&
                    lead == wanted &&
                    extent_of(lead) * each == num_elements(shape(last.inputs[of_weights])) &&
                    leading(shape(last.inputs[of_weights])) == leading(shape(last.outputs[0]));
  if (!fits)
    reason_ = fmt::format("'{}' does not sum its weights over the keys, head by head", last.name);
  return fits;
}

// ---- q, k and v ---------------------------------------------------------------------------------

std::optional<ValueId> AttentionFinder::scaled_of(ValueId id, double& factor) const {
  const Node* node = match_.producer(id);
  if (!node || (node->op != "Mul" && node->op != "Div")) return std::nullopt;
  for (const size_t at : {size_t{1}, size_t{0}}) {
    const auto number = reader_.number(node->inputs[at]);
    if (!number || *number == 0 || (node->op == "Div" && at == 0)) continue;
    if (shape(node->inputs[1 - at]) != shape(id)) continue;
    factor *= node->op == "Mul" ? *number : 1 / *number;
    return node->inputs[1 - at];
  }
  return std::nullopt;
}

// Returns an operand and what it is a view of, through factors, too, where it may be `scaled`.
Operands AttentionFinder::operands(ValueId id, const Shape& lead, bool tokens_last,
                                   bool scaled) const {
  constexpr size_t kMostViews = 64;
  Operands all;
  std::vector<const Node*> views;
  const Shape whole = shape(id);
  double factor = 1;
  while (views.size() < kMostViews) {
    std::optional<ViewDims> dims = dims_of(shape(id));
    for (size_t i = views.size(); i-- > 0 && dims;) dims = seen_through(graph_, *views[i], *dims);
    if (!dims) break;
    const Modes rows = (*dims)[whole.size() - 2], columns = (*dims)[whole.size() - 1];
    dims->resize(whole.size() - 2);
    all.push_back({id, joined(broadcast_to(*dims, lead)), tokens_last ? columns : rows,
                   tokens_last ? rows : columns, factor});
    const Node* node = match_.producer(id);
    if (node && is_view(graph_, *node)) {
      views.push_back(node);
      id = node->inputs[0];
    } else if (const auto of = scaled ? scaled_of(id, factor) : std::nullopt) {
      id = *of;
    } else {
      break;
    }
  }
  return all;
}

// Returns the value among them that costs least; of equal ones the farthest.
std::optional<Side> AttentionFinder::best_side(const Operands& all, const AttentionFound& found,
                                               int64_t group, bool of_keys) const {
  std::optional<Side> best;
  for (const Operand& operand : all) {
    const auto lead = cut(operand.lead, {found.batch, found.heads / group, group});
    if (!lead || !is_repeated((*lead)[2]) || (group == 1 && !(*lead)[2].empty())) continue;
    if (of_keys && has_repeats((*lead)[0])) continue;
    for (const bool tokens_first : {false, true}) {
      ViewDims dims{(*lead)[0], (*lead)[1], operand.tokens, operand.width};
      if (tokens_first) std::swap(dims[1], dims[2]);
      Side side{operand.base, std::move(dims), tokens_first, operand.factor};
      const ViewOps ops = ops_of(shape(side.base), side.dims);
      side.cost = 4 * int{ops.expands} + 2 * int{ops.transposes} + int{ops.reshapes};
      if (!best || side.cost < best->cost || (side.cost == best->cost && side.base != best->base))
        best = std::move(side);
    }
  }
  return best;
}

// Returns how many samples the leading dims may stand for: products of the first of them, of the
// scores or of what the queries come from.
std::vector<int64_t> AttentionFinder::batches(const Shape& lead, const Operands& q) const {
  std::vector<int64_t> all;
  const auto add = [&](int64_t batch) {
    if (std::find(all.begin(), all.end(), batch) == all.end()) all.push_back(batch);
  };
  int64_t batch = 1;
  for (size_t d = 0; d + 1 < lead.size(); ++d) add(batch *= lead[d]);
  for (const Operand& operand : q) {
    batch = 1;
    for (size_t m = 0; m + 1 < operand.lead.size(); ++m) add(batch *= operand.lead[m].extent);
  }
  if (lead.size() == 1 && graph_.batch > 0 && lead[0] % graph_.batch == 0) add(graph_.batch);
  add(num_elements(lead));
  return all;
}

// Returns how often heads of keys or values may be repeated.
std::set<int64_t> AttentionFinder::groups(const Operands& all, int64_t batch, int64_t heads) const {
  std::set<int64_t> found{1};
  for (const Operand& operand : all) {
    const auto lead = cut(operand.lead, {batch, heads});
    if (lead && !(*lead)[1].empty() && (*lead)[1].back().stride == 0)
      found.insert((*lead)[1].back().extent);
  }
  return found;
}

bool AttentionFinder::choose_heads(const Shape& lead, const Operands& q, const Operands& k,
                                   const Operands& v, AttentionFound& found) const {
  std::optional<AttentionFound> best;
  int least = 0;
  for (const int64_t batch : batches(lead, q)) {
    AttentionFound one = found;
    one.batch = batch;
    one.heads = num_elements(lead) / batch;
    const auto q_side = best_side(q, one, 1, false);
    if (!q_side || !masks_divide(one)) continue;
    const std::set<int64_t> of_v = groups(v, batch, one.heads);
    for (const int64_t group : groups(k, batch, one.heads)) {
      const auto k_side = best_side(k, one, group, true), v_side = best_side(v, one, group, true);
      if (!of_v.contains(group) || !k_side || !v_side) continue;
      const int of_copies = group == 1 ? 3 : 0;  // of heads, where there are any
      const int cost = q_side->cost + k_side->cost + v_side->cost + of_copies;
      if (best &&
          (cost > least || (cost == least && (batch != best->batch || group < best->group))))
        continue;
      one.q = *q_side, one.k = *k_side, one.v = *v_side, one.group = group;
      best = one;
      least = cost;
    }
  }
  if (best) found = *std::move(best);
  return best.has_value();
}

bool AttentionFinder::masks_divide(const AttentionFound& found) const {
  const Shape scores{found.batch, found.heads, found.queries, found.keys};
  const auto divides = [&](const MaskStep& step) { return cut(step.run, scores).has_value(); };
  const auto divides_rows = [&](const QueryFactor& factor) {
    return cut(factor.run, {found.batch, found.heads, found.queries}).has_value();
  };
  const Shape rows{found.batch, found.heads, found.queries};
  return (!found.scores.sink.valid() || cut(found.scores.sink_run, rows)) &&
         std::all_of(found.scores.masks.begin(), found.scores.masks.end(), divides) &&
         std::all_of(found.scores.on_q.begin(), found.scores.on_q.end(), divides_rows);
}

// ---- y ------------------------------------------------------------------------------------------

// Views after the second product that lead to [batch, tokens, heads, width] are part of the op.
void AttentionFinder::take_views(size_t index, bool width_first, AttentionFound& found) const {
  const Node& last = graph_.nodes[index];
  const int64_t width =
      shape(last.outputs[0])[shape(last.outputs[0]).size() - (width_first ? 2 : 1)];
  const ViewDims y = dims_of({found.batch, found.heads, found.queries, width});
  const Modes tokens_first = joined({y[0], y[2], y[1], y[3]});
  std::optional<ViewDims> dims = dims_of_product(y, width_first, shape(last.outputs[0]));
  found.y = *dims;
  for (size_t node = index; dims;) {
    if (joined(*dims) == tokens_first) {
      found.node = node;
      found.y_tokens_first = true;
      return;
    }
    const NodeId reader = match_.sole_reader(graph_.nodes[node].outputs[0]);
    if (!reader.valid() || !is_view(graph_, graph_.node(reader))) return;
    node = reader.index();
    dims = seen_through(graph_, graph_.nodes[node], *dims);
  }
}

Count recognise_attention(Graph& graph) {
  AttentionFinder finder(graph);
  std::vector<AttentionFound> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (auto attention = finder.find(i)) found.push_back(*std::move(attention));
  write_attention(graph, found);
  return static_cast<Count>(found.size());
}

}  // namespace piper::patterns
