// Norms that were written out.
#include <algorithm>

#include "match.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

// Describes a mean over the dims from `axis` on, kept as dims of 1.
struct Mean {
  ValueId of;
  int64_t axis = 0;
};

struct Norm {
  ValueId x, scale, bias;  // scale and bias may be absent
  int64_t axis = 0;
  double epsilon = 0;
  bool centred = false;
};

class NormFinder {
 public:
  explicit NormFinder(const Graph& graph) : graph_(graph), match_(graph) {}

  // Returns the norm whose last op `node` is, with its scale and its bias, if it has them.
  std::optional<Norm> find(const Node& node) const {
    if (node.op == "Add") {
      for (const size_t side : {size_t{0}, size_t{1}}) {
        auto norm = scaled(node.inputs[side], false);
        if (!norm || !norm->centred || !norm->scale.valid()) continue;
        if (shape(norm->x) != shape(node.outputs[0])) continue;  // a bias may enlarge the sum
        if (!is_param(node.inputs[1 - side], node.outputs[0], norm->axis)) continue;
        norm->bias = node.inputs[1 - side];
        return norm;
      }
      return std::nullopt;
    }
    if (node.op != "Mul" && node.op != "Div") return std::nullopt;
    return scaled(node.outputs[0], true);
  }

 private:
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }

  // Returns a value of the shape of the normalised dims, perhaps after dims of 1.
  bool is_param(ValueId id, ValueId y, int64_t axis) const {
    const Shape normal(shape(y).begin() + axis, shape(y).end());
    Shape own = shape(id);
    while (own.size() > normal.size() && own.front() == 1) own.erase(own.begin());
    return own == normal && graph_.value(id).type.dtype == graph_.value(y).type.dtype;
  }

  // Finds scale · (x · rstd), in any order of factors, or x · rstd without a scale.
  std::optional<Norm> scaled(ValueId id, bool root) const {
    const Node* node = match_.producer(id);
    if (!node || (!root && match_.reader_count(id) != 1)) return std::nullopt;
    if (const auto norm = normalised(*node)) return norm;
    if (node->op != "Mul") return std::nullopt;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const ValueId inner = node->inputs[side], scale = node->inputs[1 - side];
      const Node* factor = match_.producer(inner);
      if (!factor || match_.reader_count(inner) != 1 || shape(inner) != shape(id)) continue;
      auto norm = normalised(*factor);
      if (!norm || !is_param(scale, id, norm->axis)) continue;
      norm->scale = scale;
      return norm;
    }
    return std::nullopt;
  }

  // Finds x · Reciprocal(Sqrt(…)), x / Sqrt(…) or x · Pow(…, -1/2), of x or of x less its mean.
  std::optional<Norm> normalised(const Node& node) const {
    if (node.op != "Mul" && node.op != "Div") return std::nullopt;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      if (node.op == "Div" && side == 1) continue;
      const ValueId x = node.inputs[side];
      const auto square = node.op == "Div" ? under(node.inputs[1 - side], "Sqrt")
                                           : under_inverse_root(node.inputs[1 - side]);
      if (!square || shape(x) != shape(node.outputs[0])) continue;
      if (auto norm = of_variance(x, *square)) return norm;
    }
    return std::nullopt;
  }

  std::optional<ValueId> under(ValueId id, std::string_view op) const {
    const Node* node = match_.sole(id, op);
    return node ? std::optional(node->inputs[0]) : std::nullopt;
  }
  std::optional<ValueId> under_inverse_root(ValueId id) const {
    if (const auto root = under(id, "Reciprocal")) return under(*root, "Sqrt");
    if (const Node* div = match_.sole(id, "Div"); div && match_.scalar(div->inputs[0]) == 1.0)
      return under(div->inputs[1], "Sqrt");
    if (const Node* pow = match_.sole(id, "Pow"); pow && match_.scalar(pow->inputs[1]) == -0.5)
      return pow->inputs[0];
    return std::nullopt;
  }

  // Finds mean(d²) + epsilon, with d = x: of x itself, or of what x is less the mean of.
  std::optional<Norm> of_variance(ValueId x, ValueId variance) const {
    const Node* add = match_.sole(variance, "Add");
    if (!add) return std::nullopt;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const auto epsilon = match_.scalar(add->inputs[1 - side]);
      const auto mean = epsilon ? mean_of(add->inputs[side]) : std::nullopt;
      if (!mean || !is_square(mean->of, x)) continue;
      Norm norm{x, {}, {}, mean->axis, *epsilon, false};
      if (const auto middle = centred(x, mean->axis)) {
        norm.x = *middle;
        norm.centred = true;
      }
      return norm;
    }
    return std::nullopt;
  }

  bool is_square(ValueId id, ValueId x) const {
    if (const Node* mul = match_.sole(id, "Mul")) return mul->inputs[0] == x && mul->inputs[1] == x;
    const Node* pow = match_.sole(id, "Pow");
    return pow && pow->inputs[0] == x && match_.scalar(pow->inputs[1]) == 2.0;
  }

  // x = y - mean(y): y.
  std::optional<ValueId> centred(ValueId x, int64_t axis) const {
    const Node* sub = match_.producer(x);
    if (!sub || sub->op != "Sub") return std::nullopt;
    const auto mean = mean_of(sub->inputs[1]);
    if (!mean || mean->axis != axis || mean->of != sub->inputs[0]) return std::nullopt;
    return sub->inputs[0];
  }

  // Returns what a Cast takes from one type to the other, or the value itself.
  ValueId before_cast(ValueId id, DType from, DType to) const {
    const Node* cast = match_.producer(id);
    const bool is_cast = cast && cast->op == "Cast" && graph_.value(id).type.dtype == to &&
                         graph_.value(cast->inputs[0]).type.dtype == from;
    return is_cast ? cast->inputs[0] : id;
  }

  // Returns a sum of the last dims, divided by how many it sums: of f16, in f32.
  std::optional<Mean> mean_of(ValueId id) const {
    const Matcher::Product product = match_.product(before_cast(id, DType::kF32, DType::kF16));
    if (product.atoms.size() != 1) return std::nullopt;
    const Node* sum = match_.producer(product.atoms[0]);
    if (!sum || sum->op != "ReduceSum" || sum->attrs.integer("keepdims") == 0) return std::nullopt;
    const Shape& from = shape(sum->inputs[0]);
    std::vector<int64_t> axes = sum->attrs.integers("axes");
    std::sort(axes.begin(), axes.end());
    const auto rank = static_cast<int64_t>(from.size());
    const int64_t axis = rank - static_cast<int64_t>(axes.size());
    double count = 1;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] != axis + static_cast<int64_t>(i)) return std::nullopt;
      count *= static_cast<double>(from[static_cast<size_t>(axes[i])]);
    }
    if (axes.empty() || std::abs(product.factor * count - 1) > 1e-6) return std::nullopt;
    const bool is_half = graph_.value(id).type.dtype == DType::kF16;
    return Mean{is_half ? before_cast(sum->inputs[0], DType::kF16, DType::kF32) : sum->inputs[0],
                axis};
  }

  const Graph& graph_;
  const Matcher match_;
};

// A norm makes a node whose first output is that of the node at `index`; the statistics are new.
void make_norm(Graph& graph, size_t index, const Norm& norm) {
  Builder build(graph);
  const Node last = graph.nodes[index];
  build.scope = last.scope;
  build.tags = last.tags;
  build.pass = last.pass;
  build.name_prefix = last.name + "/";
  const TensorType x = graph.value(norm.x).type;
  const Shape normal(x.shape.begin() + norm.axis, x.shape.end());
  const auto param = [&](ValueId id) { return build.reshape(id, normal); };
  const ValueId scale =
      norm.scale.valid() ? param(norm.scale) : build.expand(build.scalar(1, x.dtype), normal);
  std::vector<ValueId> inputs{norm.x, scale};
  if (norm.bias.valid()) inputs.push_back(param(norm.bias));
  become(graph, index,
         build.op(norm.centred ? "LayerNorm" : "RmsNorm", inputs,
                  {{"axis", norm.axis}, {"epsilon", norm.epsilon}}));
}

// Marks what the node is made of, but for `x`.
void mark_inside(const Graph& graph, const Node& node, ValueId x, std::vector<bool>& inside) {
  for (ValueId input : node.inputs) {
    if (input == x) continue;
    inside[input.index()] = true;
    const NodeId producer = graph.value(input).producer;
    if (!producer.valid()) continue;
    for (ValueId deeper : graph.node(producer).inputs)
      if (deeper.valid() && deeper != x) inside[deeper.index()] = true;
  }
}

Count recognise_norms(Graph& graph, bool centred) {
  // The whole norm first: what is inside one is not found again.
  std::vector<std::pair<size_t, Norm>> found;
  const NormFinder finder(graph);
  std::vector<bool> inside(graph.values.size());
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (inside[node.outputs[0].index()]) continue;
    const auto norm = finder.find(node);
    if (!norm || norm->centred != centred) continue;
    mark_inside(graph, node, norm->x, inside);
    found.emplace_back(i, *norm);
  }
  for (const auto& [i, norm] : found) make_norm(graph, i, norm);
  return static_cast<Count>(found.size());
}

// PyTorch's GroupNorm before opset 21: an instance norm of the groups as channels, scaled by 1,
// then scale and bias of the true channels.
std::optional<std::array<ValueId, 3>> find_grouped(const Graph& graph, const Matcher& match,
                                                   const Node& add, int64_t& groups,
                                                   double& epsilon) {
  const auto shape = [&](ValueId id) -> const Shape& { return graph.value(id).type.shape; };
  if (add.op != "Add") return std::nullopt;
  const Node* mul = match.sole(add.inputs[0], "Mul");
  const Node* back = mul ? match.sole(mul->inputs[0], "Reshape") : nullptr;
  const Node* norm = back ? match.sole(back->inputs[0], "GroupNorm") : nullptr;
  const Node* in = norm ? match.sole(norm->inputs[0], "Reshape") : nullptr;
  if (!in || shape(in->inputs[0]) != shape(add.outputs[0])) return std::nullopt;
  const Shape &x = shape(in->inputs[0]), &folded = shape(in->outputs[0]);
  groups = norm->attrs.integer("groups");
  epsilon = norm->attrs.real("epsilon");
  const auto all = [&](ValueId id, double wanted) {
    const auto elements = match.elements(id);
    return elements &&
           std::all_of(elements->begin(), elements->end(), [&](double e) { return e == wanted; });
  };
  const auto per_channel = [&](ValueId id) {
    Shape wanted(x.size() - 1, 1);
    wanted[0] = x[1];
    Shape own = shape(id);
    while (own.size() > wanted.size() && own.front() == 1) own.erase(own.begin());
    return own == wanted;
  };
  if (x.size() < 2 || folded.size() < 2 || folded[0] != x[0] || folded[1] != groups ||
      x[1] % groups != 0 || !all(norm->inputs[1], 1) || !all(norm->inputs[2], 0) ||
      !per_channel(mul->inputs[1]) || !per_channel(add.inputs[1]))
    return std::nullopt;
  return std::array{in->inputs[0], mul->inputs[1], add.inputs[1]};
}

void make_group_norm(Graph& graph, size_t i, std::span<const ValueId> found, int64_t groups,
                     double epsilon) {
  Builder build(graph);
  const Node last = graph.nodes[i];
  build.scope = last.scope;
  build.tags = last.tags;
  build.name_prefix = last.name + "/";
  const Shape channels{build.shape(found[0])[1]};
  const ValueId scale = build.reshape(found[1], channels);
  const ValueId bias = build.reshape(found[2], channels);
  become(
      graph, i,
      build.op("GroupNorm", {found[0], scale, bias}, {{"groups", groups}, {"epsilon", epsilon}}));
}

}  // namespace

Count recognise_layer_norm(Graph& graph) { return recognise_norms(graph, true); }
Count recognise_rms_norm(Graph& graph) { return recognise_norms(graph, false); }

Count recognise_group_norm(Graph& graph) {
  Count count = 0;
  const size_t nodes = graph.nodes.size();
  const Matcher match(graph);
  for (size_t i = 0; i < nodes; ++i) {
    int64_t groups = 0;
    double epsilon = 0;
    const auto found = find_grouped(graph, match, graph.nodes[i], groups, epsilon);
    if (!found) continue;
    make_group_norm(graph, i, *found, groups, epsilon);
    ++count;
  }
  return count;
}

}  // namespace piper::patterns
