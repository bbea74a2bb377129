#include <algorithm>
#include <cmath>

#include "match.h"
#include "piper/ops.h"

namespace piper::patterns {
namespace {

// q, k or v as the composite takes it: [batch, tokens, heads, width] or [batch, heads, tokens,
// width].
struct Side {
  ValueId value;
  bool tokens_first = false;
  double factor = 1;  // what it was multiplied by on the way
  int64_t heads = 1;
};

// What stands between the products and the softmax.
struct Scores {
  ValueId product;  // of q and k
  double scale = 1, softcap = 0, masked = 0;
  bool causal = false;
  int64_t offset = 0;
  std::vector<ValueId> adds;
  ValueId keep;
  bool inverted = false;  // keep is true where a score goes
};

struct AttentionFound {
  size_t node = 0;  // the last one
  Side q, k, v;
  bool y_tokens_first = false;
  Scores scores;
};

constexpr double kVeryLow = -1e4;  // whose exponential is 0 beside that of any common score

// What a constant mask says, 1 or 0 (seen or not) by query and key.
struct ConstantMask {
  enum Kind { kNone, kCausal, kOther } kind = kOther;
  int64_t offset = 0;
};
ConstantMask read_mask(const std::vector<double>& mask, const Shape& shape, int64_t queries,
                       int64_t keys, double seen, double lowest) {
  const auto is_seen = [&](double x) { return x == seen; };
  if (std::all_of(mask.begin(), mask.end(), is_seen)) return {ConstantMask::kNone};
  if (shape.size() < 2 || static_cast<int64_t>(mask.size()) != queries * keys ||
      shape[shape.size() - 2] != queries || shape.back() != keys)
    return {};
  const auto first = std::find_if_not(mask.begin(), mask.begin() + keys, is_seen);
  const int64_t offset = first - mask.begin() - 1;
  if (offset < 0) return {};
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      const double x = mask[static_cast<size_t>(i * keys + j)];
      if (j <= i + offset ? x != seen : !(x <= lowest)) return {};
    }
  }
  return {ConstantMask::kCausal, offset};
}

class AttentionFinder {
 public:
  explicit AttentionFinder(const Graph& graph) : graph_(graph), match_(graph) {}

  std::optional<AttentionFound> find(size_t index) const {
    const Node& last = graph_.nodes[index];
    if (last.op != "MatMul" || last.attrs.integer("trans_a") != 0) return std::nullopt;
    const Node* softmax = weights(last.inputs[0]);
    const size_t rank = shape(last.outputs[0]).size();
    if (!softmax || (rank != 3 && rank != 4) ||
        softmax->attrs.integer("axis") != static_cast<int64_t>(rank) - 1)
      return std::nullopt;
    Scores scores;
    if (!read_scores(softmax->inputs[0], scores)) return std::nullopt;
    const Node& product = *match_.producer(scores.product);
    AttentionFound found{index};
    const auto q = side(product.inputs[0], product.attrs.integer("trans_a") != 0);
    const auto k = side(product.inputs[1], product.attrs.integer("trans_b") == 0);
    const auto v = side(last.inputs[1], last.attrs.integer("trans_b") != 0);
    if (!q || !k || !v || v->factor != 1 || !same_heads(*q, *k, *v, shape(scores.product)))
      return std::nullopt;
    found.q = *q, found.k = *k, found.v = *v;
    found.scores = std::move(scores);
    found.scores.scale *= q->factor * k->factor;
    if (found.scores.softcap > 0) found.scores.scale *= found.scores.softcap;
    if (!join_masks(found.scores)) return std::nullopt;
    if (rank == 4) take_transpose(found);
    return found;
  }

 private:
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }

  // The softmax that makes the weights, seen through a guard that makes NaN zero.
  const Node* weights(ValueId id) const {
    if (const Node* guard = match_.sole(id, "Where")) {
      const Node* test = match_.sole(guard->inputs[0], "IsNaN");
      const Node* softmax = match_.producer(guard->inputs[2]);
      const bool guards = test && test->inputs[0] == guard->inputs[2] &&
                          match_.scalar(guard->inputs[1]) == 0.0 && softmax &&
                          softmax->op == "Softmax" && match_.reader_count(guard->inputs[2]) == 2;
      return guards ? softmax : nullptr;
    }
    return match_.sole(id, "Softmax");
  }

  // ---- From the softmax down to the product of q and k ----

  bool read_scores(ValueId id, Scores& scores) const {
    const Node* node = match_.producer(id);
    if (!node || match_.reader_count(id) != 1) return false;
    if (node->op == "MatMul") {
      scores.product = id;
      return true;
    }
    if (node->op == "Add") return read_added(*node, scores);
    if (node->op == "Where") return read_replaced(*node, scores);
    if (node->op == "Tanh") {
      if (scores.softcap > 0 || !(scores.scale > 0)) return false;
      scores.softcap = scores.scale;
      scores.scale = 1;
      return read_scores(node->inputs[0], scores);
    }
    return read_scaled(*node, scores);
  }

  bool read_scaled(const Node& node, Scores& scores) const {
    for (const size_t side : {size_t{1}, size_t{0}}) {
      if (node.op != "Mul" && (node.op != "Div" || side == 0)) continue;
      const auto factor = match_.scalar(node.inputs[side]);
      if (!factor || *factor == 0) continue;
      scores.scale *= node.op == "Mul" ? *factor : 1 / *factor;
      return read_scores(node.inputs[1 - side], scores);
    }
    return false;
  }

  bool read_added(const Node& node, Scores& scores) const {
    if (scores.scale != 1 || scores.softcap != 0) return false;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      Scores with = scores;
      if (shape(node.inputs[side]) != shape(node.outputs[0])) continue;
      if (!add_mask(node.inputs[1 - side], shape(node.outputs[0]), with)) continue;
      if (!read_scores(node.inputs[side], with)) continue;
      scores = std::move(with);
      return true;
    }
    return false;
  }

  // Where a condition, a score or else a constant.
  bool read_replaced(const Node& node, Scores& scores) const {
    if (scores.scale != 1 || scores.softcap != 0) return false;
    const auto low = match_.scalar(node.inputs[2]), low_first = match_.scalar(node.inputs[1]);
    const ValueId score = node.inputs[low ? 1 : 2], condition = node.inputs[0];
    const double masked = low ? *low : low_first.value_or(0);
    if ((!low && !low_first) || shape(score) != shape(node.outputs[0])) return false;
    const Shape& all = shape(score);
    if (const auto mask = match_.elements(condition); mask && low && masked <= kVeryLow) {
      const auto read = read_mask(*mask, shape(condition), all[all.size() - 2], all.back(), 1, 0);
      if (read.kind != ConstantMask::kOther) {
        return set_causal(read, scores) && read_scores(score, scores);
      }
    }
    // A term added to a score that was replaced is lost on -∞ alone.
    if (scores.keep.valid() || (!scores.adds.empty() && !std::isinf(masked))) return false;
    scores.keep = condition;
    scores.inverted = !low;
    scores.masked = masked;
    return read_scores(score, scores);
  }

  bool set_causal(const ConstantMask& mask, Scores& scores) const {
    if (mask.kind != ConstantMask::kCausal) return true;
    scores.offset = scores.causal ? std::min(scores.offset, mask.offset) : mask.offset;
    scores.causal = true;
    return true;
  }

  bool add_mask(ValueId id, const Shape& all, Scores& scores) const {
    if (const auto mask = match_.elements(id)) {
      const auto read = read_mask(*mask, shape(id), all[all.size() - 2], all.back(), 0, kVeryLow);
      if (read.kind != ConstantMask::kOther) return set_causal(read, scores);
    }
    if (shape(id).size() > all.size()) return false;
    scores.adds.push_back(id);
    return true;
  }

  // One mask operand is left: a condition beside terms must become a term, -∞.
  bool join_masks(const Scores& scores) const {
    return !scores.keep.valid() || scores.adds.empty() || std::isinf(scores.masked);
  }

  // ---- q, k and v ----

  // Looks through factors, transpositions and repeated heads for the value in an order of dims
  // that the composite takes. `transposed`: width stands before tokens.
  std::optional<Side> side(ValueId id, bool transposed) const {
    if (shape(id).size() == 3 && !transposed) return Side{id};
    if (shape(id).size() != 4) return flat_side(id, transposed);
    std::string roles = transposed ? "bhdt" : "bhtd";
    double factor = 1;
    std::optional<Side> best;
    while (true) {
      if (roles == "bhtd" || roles == "bthd")
        best = Side{id, roles == "bthd", factor, shape(id)[roles == "bthd" ? 2 : 1]};
      if (const auto repeated = repeated_heads(id, roles)) {
        id = *repeated;
      } else if (const auto scaled = scaled_of(id, factor)) {
        id = *scaled;
      } else if (const Node* node = match_.producer(id); node && node->op == "Transpose") {
        const auto perm = node->attrs.integers("perm");
        std::string before = roles;
        for (size_t d = 0; d < 4; ++d) before[static_cast<size_t>(perm[d])] = roles[d];
        roles = before;
        id = node->inputs[0];
      } else if (const auto swapped = swapped_of(graph_, match_, id)) {
        std::swap(roles[2], roles[3]);
        id = *swapped;
      } else {
        return best;
      }
      if (shape(id).size() != 4) return best;
    }
  }

  // [batch, tokens, width] without heads.
  std::optional<Side> flat_side(ValueId id, bool transposed) const {
    double factor = 1;
    while (const auto scaled = scaled_of(id, factor)) id = *scaled;
    const auto swapped = transposed ? swapped_of(graph_, match_, id) : std::nullopt;
    if (!swapped || shape(id).size() != 3) return std::nullopt;
    return Side{*swapped, false, factor};
  }

  std::optional<ValueId> scaled_of(ValueId id, double& factor) const {
    const Node* node = match_.producer(id);
    if (!node || (node->op != "Mul" && node->op != "Div")) return std::nullopt;
    for (const size_t at : {size_t{1}, size_t{0}}) {
      const auto number = match_.scalar(node->inputs[at]);
      if (!number || *number == 0 || (node->op == "Div" && at == 0)) continue;
      if (shape(node->inputs[1 - at]) != shape(id)) continue;
      factor *= node->op == "Mul" ? *number : 1 / *number;
      return node->inputs[1 - at];
    }
    return std::nullopt;
  }

  // The fewer heads of which each was repeated: Reshape of Expand of Reshape.
  std::optional<ValueId> repeated_heads(ValueId id, const std::string& roles) const {
    if (roles != "bhtd" && roles != "bthd") return std::nullopt;
    const size_t heads = roles == "bhtd" ? 1 : 2;
    const Node* outer = match_.producer(id);
    if (!outer || outer->op != "Reshape") return std::nullopt;
    const Node* expand = match_.producer(outer->inputs[0]);
    if (!expand || expand->op != "Expand") return std::nullopt;
    const Node* inner = match_.producer(expand->inputs[0]);
    if (!inner || inner->op != "Reshape") return std::nullopt;
    const Shape& own = shape(inner->inputs[0]);
    const Shape &wide = shape(expand->outputs[0]), &one = shape(expand->inputs[0]);
    if (own.size() != 4 || wide.size() != 5 || one.size() != 5) return std::nullopt;
    Shape apart = own, all = own;
    apart.insert(apart.begin() + static_cast<int64_t>(heads) + 1, 1);
    if (one != apart) return std::nullopt;
    apart[heads + 1] = wide[heads + 1];
    all[heads] *= wide[heads + 1];
    if (wide != apart || shape(id) != all) return std::nullopt;
    return inner->inputs[0];
  }

  bool same_heads(const Side& q, const Side& k, const Side& v, const Shape& all) const {
    const auto batch = [&](const Side& s) { return shape(s.value)[0]; };
    const int64_t heads = all.size() == 4 ? all[1] : 1;
    return batch(q) == all[0] && batch(k) == all[0] && batch(v) == all[0] && q.heads == heads &&
           k.heads == v.heads && k.heads > 0 && heads % k.heads == 0;
  }

  // A transposition to [batch, tokens, heads, width] is part of the composite.
  void take_transpose(AttentionFound& found) const {
    const NodeId reader = match_.sole_reader(graph_.nodes[found.node].outputs[0]);
    if (!reader.valid() || graph_.node(reader).op != "Transpose") return;
    if (graph_.node(reader).attrs.integers("perm") != std::vector<int64_t>{0, 2, 1, 3}) return;
    found.node = reader.index();
    found.y_tokens_first = true;
  }

  const Graph& graph_;
  const Matcher match_;
};

class AttentionWriter {
 public:
  explicit AttentionWriter(Graph& graph) : graph_(graph), build_(graph) {}

  void write(const AttentionFound& found) {
    const Node last = graph_.nodes[found.node];
    build_.scope = last.scope;
    build_.tags = last.tags;
    build_.pass = last.pass;
    build_.name_prefix = last.name + "/";
    const bool flat = build_.shape(last.outputs[0]).size() == 3;
    std::vector<ValueId> inputs{with_heads(found.q.value), with_heads(found.k.value),
                                with_heads(found.v.value)};
    if (const ValueId mask = mask_of(found.scores); mask.valid()) inputs.push_back(mask);
    const std::vector<ValueId> made = build_.op("Attention", inputs, attributes(found));
    if (!flat) return become(graph_, found.node, made);
    Node& node = graph_.nodes[found.node];
    node.op = "Reshape";
    node.inputs = {made[0]};
    node.attrs = Attrs{{"shape", Shape(build_.shape(last.outputs[0]))}};
  }

 private:
  ValueId with_heads(ValueId id) {
    const Shape shape = build_.shape(id);
    return shape.size() == 4 ? id : build_.reshape(id, {shape[0], 1, shape[1], shape[2]});
  }

  Attrs attributes(const AttentionFound& found) const {
    Attrs attrs;
    const auto first = [](const Side& side) { return int64_t{side.tokens_first}; };
    attrs.set("tokens_first", std::vector<int64_t>{first(found.q), first(found.k), first(found.v),
                                                   int64_t{found.y_tokens_first}});
    attrs.set("scale", found.scores.scale);
    if (found.scores.softcap > 0) attrs.set("softcap", found.scores.softcap);
    if (found.scores.causal) {
      attrs.set("causal", int64_t{1});
      attrs.set("offset", found.scores.offset);
    }
    if (found.scores.keep.valid() && !std::isinf(found.scores.masked))
      attrs.set("masked_score", found.scores.masked);
    return attrs;
  }

  // One operand of four dims, or none.
  ValueId mask_of(const Scores& scores) {
    ValueId keep = scores.keep;
    if (keep.valid() && scores.inverted) keep = build_.op1("Not", {keep});
    if (scores.adds.empty()) return keep.valid() ? of_four(keep, scores) : ValueId();
    ValueId sum = of_four(scores.adds[0], scores);
    for (size_t i = 1; i < scores.adds.size(); ++i)
      sum = build_.add(sum, of_four(scores.adds[i], scores));
    if (!keep.valid()) return sum;
    const ValueId lowest = build_.scalar(scores.masked, build_.type(sum).dtype);
    return build_.op1("Where", {of_four(keep, scores), sum, lowest});
  }
  ValueId of_four(ValueId id, const Scores& scores) {
    Shape shape = build_.shape(id);
    const bool flat = build_.shape(scores.product).size() == 3;
    if (flat && shape.size() == 3) shape.insert(shape.begin() + 1, 1);
    while (shape.size() < 4) shape.insert(shape.begin(), 1);
    return build_.reshape(id, shape);
  }

  Graph& graph_;
  Builder build_;
};

}  // namespace

Count recognise_attention(Graph& graph) {
  const AttentionFinder finder(graph);
  std::vector<AttentionFound> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (auto attention = finder.find(i)) found.push_back(*std::move(attention));
  AttentionWriter writer(graph);
  for (const AttentionFound& attention : found) writer.write(attention);
  return static_cast<Count>(found.size());
}

}  // namespace piper::patterns
