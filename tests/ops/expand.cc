// Writes composites in primitive ops again.
#include "ops/expand.h"

#include <algorithm>
#include <cmath>

namespace piper {
namespace patterns {
namespace {

ValueId number(Builder& b, double value, ValueId like) {
  return b.scalar(value, b.type(like).dtype);
}
ValueId scaled(Builder& b, ValueId x, double factor) { return b.mul(x, number(b, factor, x)); }
ValueId plus(Builder& b, ValueId x, double term) { return b.add(x, number(b, term, x)); }

// ---- Pointwise ----

using ExpandValues = std::vector<ValueId>;

bool is_tanh(const Node& node) { return node.attrs.text("approximate") == "tanh"; }
const double kSlope = std::sqrt(2 / M_PI), kCube = 0.044715;

// Returns ½(1 + erf(x/√2)) or ½(1 + tanh(√(2/π)·(x + 0.044715·x³))).
ValueId gelu_share(Builder& b, ValueId x, bool tanh) {
  ValueId bent;
  if (tanh) {
    const ValueId cubic = scaled(b, b.mul(b.mul(x, x), x), kCube);
    bent = b.op1("Tanh", {scaled(b, b.add(x, cubic), kSlope)});
  } else {
    bent = b.op1("Erf", {scaled(b, x, std::sqrt(0.5))});
  }
  return scaled(b, plus(b, bent, 1), 0.5);
}

ExpandValues gelu(Builder& b, const Node& node) {
  const ValueId x = node.inputs[0];
  return {b.mul(x, gelu_share(b, x, is_tanh(node)))};
}

ExpandValues gelu_grad(Builder& b, const Node& node) {
  const ValueId x = node.inputs[0], dy = node.inputs[1];
  const ValueId share = gelu_share(b, x, is_tanh(node)), square = b.mul(x, x);
  ValueId slope;  // of the share
  if (is_tanh(node)) {
    const ValueId inner = scaled(b, plus(b, scaled(b, square, 3 * kCube), 1), 2 * kSlope);
    slope = b.mul(b.mul(share, b.sub(number(b, 1, x), share)), inner);
  } else {
    slope = scaled(b, b.op1("Exp", {scaled(b, square, -0.5)}), 1 / std::sqrt(2 * M_PI));
  }
  return {b.mul(dy, b.add(share, b.mul(x, slope)))};
}

ExpandValues silu(Builder& b, const Node& node) {
  return {b.mul(node.inputs[0], b.op1("Sigmoid", {node.inputs[0]}))};
}
ExpandValues silu_grad(Builder& b, const Node& node) {
  const ValueId x = node.inputs[0], s = b.op1("Sigmoid", {x});
  const ValueId rest = b.sub(number(b, 1, x), s);
  return {b.mul(node.inputs[1], b.mul(s, plus(b, b.mul(x, rest), 1)))};
}
ExpandValues swiglu(Builder& b, const Node& node) {
  return {b.mul(silu(b, node)[0], node.inputs[1])};
}

// ---- Norms ----

std::vector<int64_t> axes_from(int64_t axis, size_t rank) {
  std::vector<int64_t> axes;
  for (int64_t d = axis; d < static_cast<int64_t>(rank); ++d) axes.push_back(d);
  return axes;
}
ValueId mean(Builder& b, ValueId x, const std::vector<int64_t>& axes) {
  double count = 1;
  for (int64_t axis : axes) count *= static_cast<double>(b.shape(x)[static_cast<size_t>(axis)]);
  return scaled(b, b.reduce_sum(x, axes, true), 1 / count);
}
ValueId inverse_root(Builder& b, ValueId variance, double epsilon) {
  return b.op1("Reciprocal", {b.op1("Sqrt", {plus(b, variance, epsilon)})});
}
std::vector<int64_t> axes_of(Builder& b, const Node& node, size_t x) {
  return axes_from(node.attrs.integer("axis"), b.shape(node.inputs[x]).size());
}
// Returns rstd · (g - normal · mean(g · normal) [- mean(g)]).
ValueId norm_grad(Builder& b, ValueId g, ValueId normal, ValueId rstd,
                  const std::vector<int64_t>& axes, bool centred) {
  ValueId rest = b.sub(g, b.mul(normal, mean(b, b.mul(g, normal), axes)));
  if (centred) rest = b.sub(rest, mean(b, g, axes));
  return b.mul(rstd, rest);
}

ExpandValues layer_norm(Builder& b, const Node& node) {
  const ValueId x = node.inputs[0];
  const auto axes = axes_of(b, node, 0);
  const ValueId middle = mean(b, x, axes), distance = b.sub(x, middle);
  const ValueId variance = mean(b, b.mul(distance, distance), axes);
  const ValueId rstd = inverse_root(b, variance, node.attrs.real("epsilon"));
  ValueId y = b.mul(b.mul(distance, rstd), node.inputs[1]);
  if (node.inputs.size() > 2 && node.inputs[2].valid()) y = b.add(y, node.inputs[2]);
  return {y, middle, rstd};
}
ExpandValues layer_norm_grad_x(Builder& b, const Node& node) {
  const ValueId rstd = node.inputs[4];
  const ValueId normal = b.mul(b.sub(node.inputs[1], node.inputs[3]), rstd);
  return {
      norm_grad(b, b.mul(node.inputs[0], node.inputs[2]), normal, rstd, axes_of(b, node, 1), true)};
}
ExpandValues layer_norm_grad_params(Builder& b, const Node& node) {
  const ValueId dy = node.inputs[0];
  const ValueId normal = b.mul(b.sub(node.inputs[1], node.inputs[2]), node.inputs[3]);
  const Shape params = b.shape(node.outputs[0]);
  return {b.sum_to(b.mul(dy, normal), params), b.sum_to(dy, params)};
}

ExpandValues rms_norm(Builder& b, const Node& node) {
  const ValueId x = node.inputs[0];
  const ValueId square = mean(b, b.mul(x, x), axes_of(b, node, 0));
  const ValueId rstd = inverse_root(b, square, node.attrs.real("epsilon"));
  return {b.mul(b.mul(x, rstd), node.inputs[1]), rstd};
}
ExpandValues rms_norm_grad_x(Builder& b, const Node& node) {
  const ValueId rstd = node.inputs[3];
  return {norm_grad(b, b.mul(node.inputs[0], node.inputs[2]), b.mul(node.inputs[1], rstd), rstd,
                    axes_of(b, node, 1), false)};
}
ExpandValues rms_norm_grad_scale(Builder& b, const Node& node) {
  const ValueId normal = b.mul(node.inputs[1], node.inputs[2]);
  return {b.sum_to(b.mul(node.inputs[0], normal), b.shape(node.outputs[0]))};
}

// Views [N, C, …] as [N, groups, C / groups, what follows], and what is per channel or per group
// beside it.
struct Grouped {
  Shape whole, x;
  explicit Grouped(const Shape& shape, int64_t groups)
      : whole(shape), x{shape[0], groups, shape[1] / groups, 1} {
    for (size_t d = 2; d < shape.size(); ++d) x[3] *= shape[d];
  }
  ValueId values(Builder& b, ValueId id) const { return b.reshape(id, x); }
  ValueId params(Builder& b, ValueId id) const { return b.reshape(id, {x[1], x[2], 1}); }
  ValueId statistics(Builder& b, ValueId id) const { return b.reshape(id, {x[0], x[1], 1, 1}); }
};
const std::vector<int64_t> kOfGroup{2, 3};

ExpandValues group_norm(Builder& b, const Node& node) {
  const Grouped g(b.shape(node.inputs[0]), node.attrs.integer("groups"));
  const ValueId x = g.values(b, node.inputs[0]);
  const ValueId middle = mean(b, x, kOfGroup), distance = b.sub(x, middle);
  const ValueId variance = mean(b, b.mul(distance, distance), kOfGroup);
  const ValueId rstd = inverse_root(b, variance, node.attrs.real("epsilon"));
  const ValueId y =
      b.add(b.mul(b.mul(distance, rstd), g.params(b, node.inputs[1])), g.params(b, node.inputs[2]));
  const Shape statistics{g.x[0], g.x[1]};
  return {b.reshape(y, g.whole), b.reshape(middle, statistics), b.reshape(rstd, statistics)};
}
ExpandValues group_norm_grad_x(Builder& b, const Node& node) {
  const Grouped g(b.shape(node.inputs[1]), node.attrs.integer("groups"));
  const ValueId rstd = g.statistics(b, node.inputs[4]);
  const ValueId normal =
      b.mul(b.sub(g.values(b, node.inputs[1]), g.statistics(b, node.inputs[3])), rstd);
  const ValueId dy = b.mul(g.values(b, node.inputs[0]), g.params(b, node.inputs[2]));
  return {b.reshape(norm_grad(b, dy, normal, rstd, kOfGroup, true), g.whole)};
}
ExpandValues group_norm_grad_params(Builder& b, const Node& node) {
  const Grouped g(b.shape(node.inputs[1]), node.attrs.integer("groups"));
  const ValueId dy = g.values(b, node.inputs[0]);
  const ValueId distance = b.sub(g.values(b, node.inputs[1]), g.statistics(b, node.inputs[2]));
  const ValueId normal = b.mul(distance, g.statistics(b, node.inputs[3]));
  const auto sum = [&](ValueId id) {
    return b.reshape(b.reduce_sum(id, {0, 3}, false), {g.whole[1]});
  };
  return {sum(b.mul(dy, normal)), sum(dy)};
}

// ---- Experts ----

// Views x as a matrix of one row for each of its rows.
ValueId as_matrices(Builder& b, ValueId x, bool column) {
  Shape shape = b.shape(x);
  shape.insert(shape.end() - (column ? 0 : 1), 1);
  return b.reshape(x, std::move(shape));
}
ExpandValues grouped_matmul(Builder& b, const Node& node) {
  const bool trans = node.attrs.integer("trans_b") != 0;
  const ValueId w = b.op1("Gather", {node.inputs[2], node.inputs[1]}, {{"axis", int64_t{0}}});
  const ValueId y = b.matmul(as_matrices(b, node.inputs[0], false), w, false, trans);
  return {b.reshape(y, b.shape(node.outputs[0]))};
}
ExpandValues grouped_matmul_grad(Builder& b, const Node& node) {
  const bool trans = node.attrs.integer("trans_b") != 0;
  const ValueId x = node.inputs[trans ? 2 : 0], dy = node.inputs[trans ? 0 : 2];
  const ValueId each = b.matmul(as_matrices(b, x, true), as_matrices(b, dy, false), false, false);
  return {b.op1("GatherGrad", {each, node.inputs[1]},
                {{"axis", int64_t{0}}, {"size", node.attrs.integer("groups")}})};
}

// ---- Products with a bias ----

ExpandValues linear(Builder& b, const Node& node) {
  const ValueId product =
      b.matmul(node.inputs[0], node.inputs[1], false, node.attrs.integer("trans_b") != 0);
  const ValueId sum = b.add(product, node.inputs[2]);
  if (node.outputs.size() == 1) return {sum};
  const bool tanh = node.attrs.text("activation") == "gelu_tanh";
  return {b.mul(sum, gelu_share(b, sum, tanh)), sum};
}

// ---- Rotary positions ----

ValueId part(Builder& b, ValueId x, int64_t start, int64_t step) {
  const Shape shape = b.shape(x);
  std::vector<int64_t> starts(shape.size(), 0), ends = shape, steps(shape.size(), 1);
  starts.back() = start;
  if (step == 1) ends.back() = start + shape.back() / 2;
  steps.back() = step;
  return b.op1("Slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
}

ExpandValues rotary(Builder& b, const Node& node) {
  const ValueId x = node.inputs[0], cos = node.inputs[1];
  const bool pairs = node.attrs.integer("interleaved") != 0;
  const ValueId sin =
      node.attrs.integer("inverse") != 0 ? b.neg(node.inputs[2]) : ValueId(node.inputs[2]);
  const Shape shape = b.shape(x);
  const ValueId first = part(b, x, 0, pairs ? 2 : 1);
  const ValueId second = part(b, x, pairs ? 1 : shape.back() / 2, pairs ? 2 : 1);
  ValueId a = b.sub(b.mul(first, cos), b.mul(second, sin));
  ValueId c = b.add(b.mul(second, cos), b.mul(first, sin));
  auto axis = static_cast<int64_t>(shape.size()) - 1;
  if (pairs) {
    Shape apart = b.shape(a);
    apart.push_back(1);
    a = b.reshape(a, apart);
    c = b.reshape(c, apart);
    ++axis;
  }
  return {b.reshape(b.op1("Concat", {a, c}, {{"axis", axis}}), shape)};
}

// ---- Cross-entropy ----

// Returns whether class c of a row is its label, [rows…, classes]; whether a row counts, [rows…].
ValueId is_label(Builder& b, ValueId labels, int64_t classes) {
  std::vector<int64_t> range(static_cast<size_t>(classes));
  for (size_t i = 0; i < range.size(); ++i) range[i] = static_cast<int64_t>(i);
  const ValueId all = b.constant({DType::kI64, {classes}},
                                 Bytes::copy_of(range.data(), range.size() * sizeof(int64_t)));
  Shape column = b.shape(labels);
  column.push_back(1);
  return b.op1("Equal", {b.reshape(labels, column), all});
}
ValueId counts(Builder& b, ValueId labels, const Node& node) {
  const auto ignored = static_cast<double>(node.attrs.integer("ignore_index", -100));
  return b.op1("Not", {b.op1("Equal", {labels, b.scalar(ignored, DType::kI64)})});
}

ValueId greatest_of(Builder& b, ValueId logits) {
  const auto last = static_cast<int64_t>(b.shape(logits).size()) - 1;
  return b.op1("ReduceMax", {logits},
               {{"axes", std::vector<int64_t>{last}}, {"keepdims", int64_t{1}}});
}
ExpandValues cross_entropy_sum(Builder& b, const Node& node) {
  const ValueId logits = node.inputs[0], labels = node.inputs[1];
  const auto last = static_cast<int64_t>(b.shape(logits).size()) - 1;
  const Shape rows = b.shape(labels);
  const ValueId top = greatest_of(b, logits);
  const ValueId sum = b.reduce_sum(b.op1("Exp", {b.sub(logits, top)}), {last}, false);
  const ValueId lse = b.add(b.op1("Log", {sum}), b.reshape(top, rows));
  const ValueId share = b.op1("Reciprocal", {sum});
  const ValueId zero = number(b, 0, logits);
  const ValueId chosen = b.reduce_sum(
      b.op1("Where", {is_label(b, labels, b.shape(logits).back()), logits, zero}), {last}, false);
  const ValueId terms = b.op1("Where", {counts(b, labels, node), b.sub(lse, chosen), zero});
  return {b.reduce_sum(terms, axes_from(0, rows.size()), false), share};
}
ExpandValues cross_entropy_grad(Builder& b, const Node& node) {
  const ValueId logits = node.inputs[0], labels = node.inputs[1];
  Shape column = b.shape(labels);
  column.push_back(1);
  const ValueId above = b.op1("Exp", {b.sub(logits, greatest_of(b, logits))});
  const ValueId p = b.mul(above, b.reshape(node.inputs[2], column));
  const ValueId one = number(b, 1, logits), zero = number(b, 0, logits);
  const ValueId chosen = b.op1("Where", {is_label(b, labels, b.shape(logits).back()), one, zero});
  const ValueId counted = b.reshape(counts(b, labels, node), column);
  return {b.op1("Where", {counted, b.mul(b.sub(p, chosen), node.inputs[3]), zero})};
}

struct ExpandExpansion {
  std::string_view op;
  ExpandValues (*expand)(Builder& build, const Node& node);
};
constexpr ExpandExpansion kExpansions[] = {
    {"Attention", expand_attention},
    {"AttentionGrad", expand_attention_grad},
    {"CrossEntropyGrad", cross_entropy_grad},
    {"CrossEntropySum", cross_entropy_sum},
    {"Gelu", gelu},
    {"GeluGrad", gelu_grad},
    {"GroupNorm", group_norm},
    {"GroupNormGradParams", group_norm_grad_params},
    {"GroupNormGradX", group_norm_grad_x},
    {"GroupedMatMul", grouped_matmul},
    {"GroupedMatMulGrad", grouped_matmul_grad},
    {"LayerNorm", layer_norm},
    {"LayerNormGradParams", layer_norm_grad_params},
    {"LayerNormGradX", layer_norm_grad_x},
    {"Linear", linear},
    {"RmsNorm", rms_norm},
    {"RmsNormGradScale", rms_norm_grad_scale},
    {"RmsNormGradX", rms_norm_grad_x},
    {"Rotary", rotary},
    {"Silu", silu},
    {"SiluGrad", silu_grad},
    {"SwiGlu", swiglu},
};

}  // namespace
}  // namespace patterns

std::vector<std::string_view> expandable_ops() {
  std::vector<std::string_view> ops;
  for (const patterns::ExpandExpansion& expansion : patterns::kExpansions)
    ops.push_back(expansion.op);
  return ops;
}

Result<Graph> expand_composites(Graph graph,
                                const std::function<bool(std::string_view op)>& wanted) {
  const size_t count = graph.nodes.size();
  for (size_t i = 0; i < count; ++i) {
    const Node node = graph.nodes[i];  // a copy: the graph grows
    const auto* known =
        std::find_if(std::begin(patterns::kExpansions), std::end(patterns::kExpansions),
                     [&](const patterns::ExpandExpansion& e) { return e.op == node.op; });
    if (known == std::end(patterns::kExpansions) || !wanted(node.op)) continue;
    Builder build(graph);
    build.scope = node.scope;
    build.tags = node.tags;
    build.pass = node.pass;
    build.name_prefix = node.name + "/";
    const std::vector<ValueId> made = known->expand(build, node);
    PIPER_CHECK(made.size() == node.outputs.size(), "{} made {} values", node.op, made.size());
    // The node keeps its first output, as a Reshape to its own shape; further ones get one each.
    for (size_t o = 0; o < made.size(); ++o) {
      const TensorType type = graph.value(node.outputs[o]).type;
      PIPER_CHECK(graph.value(made[o]).type == type, "{} output {} is {}, not {}", node.op, o,
                  to_string(graph.value(made[o]).type), to_string(type));
      Node same = node;
      same.op = "Reshape";
      same.attrs = Attrs{{"shape", type.shape}};
      same.inputs = {made[o]};
      same.outputs = {node.outputs[o]};
      NodeId id(i);
      if (o == 0) {
        graph.nodes[i] = std::move(same);
      } else {
        id = NodeId(graph.nodes.size());
        graph.nodes.push_back(std::move(same));
      }
      graph.value(node.outputs[o]).producer = id;
      graph.value(node.outputs[o]).output_index = 0;
    }
  }
  PIPER_ASSIGN(graph, in_topological_order(std::move(graph)));
  graph = without_dead_nodes(std::move(graph), true);
  PIPER_TRY(check_graph(graph));
  return graph;
}

}  // namespace piper
