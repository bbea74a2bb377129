// Recognises Gelu, exact and by tanh.
#include <cmath>

#include "match.h"

namespace piper::patterns {
namespace {

// Compares with a constant of the formula, as the model's type rounds it.
class Near {
 public:
  explicit Near(DType dtype)
      : bound_(dtype == DType::kBF16  ? 0x1p-8
               : dtype == DType::kF16 ? 0x1p-10
                                      : 1e-4) {}
  bool operator()(double a, double b) const { return std::abs(a - b) <= bound_ * std::abs(b); }

 private:
  double bound_;
};

// Returns the other one of two values, if one of them meets `is`.
template <class Is>
std::optional<ValueId> other(const std::vector<ValueId>& pair, Is is) {
  if (pair.size() != 2) return std::nullopt;
  if (is(pair[0])) return pair[1];
  if (is(pair[1])) return pair[0];
  return std::nullopt;
}

// x + 0.044715 x³
bool is_cubic(const Matcher& match, const Near& near, ValueId value, ValueId x) {
  const auto cube = other(match.sum(value), [&](ValueId term) { return term == x; });
  if (!cube) return false;
  const Matcher::Product product = match.product(*cube);
  return near(product.factor, 0.044715) && product.atoms == std::vector<ValueId>{x, x, x};
}

// Says which Gelu `node` closes, and of what.
struct GeluFound {
  ValueId x;
  const char* approximate = nullptr;
};
std::optional<GeluFound> find_gelu(const Graph& graph, const Matcher& match, const Node& node) {
  if (node.op != "Mul") return std::nullopt;
  const Matcher::Product product = match.product(node.outputs[0]);
  const Near near(graph.value(node.outputs[0]).type.dtype);
  if (!near(product.factor, 0.5) || product.atoms.size() != 2) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const ValueId x = product.atoms[1 - i];
    if (match.reader_count(product.atoms[i]) != 1) continue;
    const auto bent =
        other(match.sum(product.atoms[i]), [&](ValueId term) { return match.scalar(term) == 1.0; });
    if (!bent || graph.value(*bent).type != graph.value(x).type ||
        graph.value(node.outputs[0]).type != graph.value(x).type)
      continue;
    if (const Node* tanh = match.sole(*bent, "Tanh")) {
      const Matcher::Product inner = match.product(tanh->inputs[0]);
      if (near(inner.factor, std::sqrt(2 / M_PI)) && inner.atoms.size() == 1 &&
          is_cubic(match, near, inner.atoms[0], x))
        return GeluFound{x, "tanh"};
    }
    if (const Node* erf = match.sole(*bent, "Erf")) {
      const Matcher::Product inner = match.product(erf->inputs[0]);
      if (near(inner.factor, std::sqrt(0.5)) && inner.atoms == std::vector<ValueId>{x})
        return GeluFound{x, "none"};
    }
  }
  return std::nullopt;
}

}  // namespace

Count recognise_gelu(Graph& graph) {
  const Matcher match(graph);
  std::vector<std::pair<size_t, GeluFound>> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (const auto gelu = find_gelu(graph, match, graph.nodes[i])) found.emplace_back(i, *gelu);
  for (const auto& [i, gelu] : found) {
    Node& node = graph.nodes[i];
    node.op = "Gelu";
    node.inputs = {gelu.x};
    node.attrs = Attrs();
    node.attrs.set("approximate", std::string(gelu.approximate));
  }
  return static_cast<Count>(found.size());
}

}  // namespace piper::patterns
