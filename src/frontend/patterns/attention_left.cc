// Softmaxes of products of which no attention was made, and why.
#include <algorithm>

#include "attention.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

constexpr size_t kFarthest = 256;  // nodes between a softmax and its products

bool keeps_scores(std::string_view op) {
  constexpr std::string_view kOps[] = {
      "Add",       "Sub",    "Mul",     "Div",   "Neg", "Tanh",   "Where", "Cast",    "Reshape",
      "Transpose", "Expand", "Dropout", "Slice", "Pad", "Concat", "Exp",   "Sigmoid", "Softmax"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

class Left {
 public:
  explicit Left(const Graph& graph)
      : graph_(graph), match_(graph), finder_(graph), readers_(readers(graph)) {}

  std::vector<LeftAttention> run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) finder_.find(i);
    std::vector<LeftAttention> left;
    for (const Node& node : graph_.nodes) {
      if (node.op != "Softmax" || !has_product_above(node) || !has_product_below(node)) continue;
      const auto why = finder_.why().find(node.outputs[0]);
      const bool is_known = why != finder_.why().end() && !why->second.empty();
      left.push_back({node.name, node.scope, is_known ? why->second : what_stands_below(node),
                      graph_.value(node.outputs[0]).type.bytes()});
    }
    return left;
  }

 private:
  // A product with a matrix of parameters is a layer: it makes no scores of queries and keys.
  bool is_of_scores(const Node& product) const {
    return std::none_of(product.inputs.begin(), product.inputs.end(), [&](ValueId id) {
      const Value& value = graph_.value(id);
      return value.kind != ValueKind::kNode && value.type.shape.size() == 2;
    });
  }

  bool has_product_above(const Node& softmax) const {
    std::vector<ValueId> open{softmax.inputs[0]};
    for (size_t at = 0; at < open.size() && at < kFarthest; ++at) {
      const Node* node = match_.producer(open[at]);
      if (node && node->op == "MatMul" && is_of_scores(*node)) return true;
      if (node && keeps_scores(node->op))
        for (const ValueId id : node->inputs)
          if (id.valid()) open.push_back(id);
    }
    return false;
  }

  bool has_product_below(const Node& softmax) const {
    std::vector<ValueId> open{softmax.outputs[0]};
    for (size_t at = 0; at < open.size() && at < kFarthest; ++at) {
      for (const NodeId id : readers_[open[at].index()]) {
        const Node& node = graph_.node(id);
        if (node.op == "MatMul") return true;
        if (keeps_scores(node.op)) open.push_back(node.outputs[0]);
      }
    }
    return false;
  }

  std::string what_stands_below(const Node& softmax) const {
    ValueId id = softmax.outputs[0];
    for (size_t opened = 0; opened < kFarthest; ++opened) {
      const auto& all = readers_[id.index()];
      if (match_.reader_count(id) != 1 || all.empty())
        return fmt::format("its weights '{}' are read by others, too", graph_.value(id).name);
      const Node& node = graph_.node(all[0]);
      if (node.op == "Dropout")
        return fmt::format("its weights are dropped out by '{}'", node.name);
      if (node.op != "Cast" && !is_view(graph_, node))
        return fmt::format("its weights go through '{}' ({})", node.name, node.op);
      id = node.outputs[0];
    }
    return "its values are too far away";
  }

  const Graph& graph_;
  const Matcher match_;
  AttentionFinder finder_;
  std::vector<std::vector<NodeId>> readers_;
};

// Returns the text without the names in quotes: the same for all layers of a model.
std::string kind_of(const LeftAttention& left) {
  std::string kind;
  bool quoted = false;
  for (const char c : left.why) {
    if (c == '\'') quoted = !quoted;
    if (!quoted) kind += c;
  }
  return kind;
}

}  // namespace

std::vector<LeftAttention> left_attentions(const Graph& graph) {
  const bool any = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                               [](const Node& node) { return node.op == "Softmax"; });
  return any ? Left(graph).run() : std::vector<LeftAttention>();
}

}  // namespace piper::patterns

namespace piper {

std::vector<std::string> lines_of(const std::vector<LeftAttention>& left) {
  std::vector<std::string> kinds, lines;
  for (const LeftAttention& one : left) {
    const std::string kind = patterns::kind_of(one);
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    kinds.push_back(kind);
    int64_t count = 0, bytes = 0;
    for (const LeftAttention& other : left)
      if (patterns::kind_of(other) == kind) ++count, bytes += other.bytes;
    const std::string others = count > 1 ? fmt::format(" and {} more", count - 1) : "";
    const std::string scope = one.scope.empty() ? "" : fmt::format(" in {}", one.scope);
    lines.push_back(fmt::format("softmax '{}'{}{}: {}; {} a step for each matrix of scores",
                                one.node, scope, others, one.why, human_bytes(bytes)));
  }
  return lines;
}

}  // namespace piper
