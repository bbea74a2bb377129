// Losses over class labels.
#include "rules.h"

namespace piper::onnx_import {
namespace {

// [n, classes, …] -> [n, …, classes]
Result<Val> classes_last(RuleContext& c, const Val& x) {
  std::vector<int64_t> perm{0};
  for (size_t d = 2; d < x.rank(); ++d) perm.push_back(static_cast<int64_t>(d));
  perm.push_back(1);
  return c.transpose(x, perm);
}

Result<Vals> cross_entropy(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  if (c.has(2)) return c.error("class weights are not supported");
  const std::string reduction = c.text("reduction", "mean");
  if (reduction != "mean" && reduction != "sum") {
    return c.error("reduction '{}' is not supported; 'mean' and 'sum' are",
                   quote_control(reduction));
  }
  const Val &scores = c.in(0), &labels = c.in(1);
  if (scores.rank() < 2 || labels.rank() + 1 != scores.rank()) {
    return c.error("scores {} and labels {} do not fit", to_string(scores.shape),
                   to_string(labels.shape));
  }
  PIPER_ASSIGN(const Val logits, classes_last(c, scores));
  const Attrs attrs{{"ignore_index", c.integer("ignore_index", -100)}};
  PIPER_ASSIGN(const Vals loss, c.ops("CrossEntropySum", {logits, labels}, attrs));
  Vals out{loss[0]};
  if (reduction == "mean") {
    PIPER_ASSIGN(Val count, c.op("LabelCount", {labels}, attrs));
    if (count.dtype != loss[0].dtype) {
      PIPER_ASSIGN(count,
                   c.pointwise("Cast", {count}, {{"to", std::string(info(loss[0].dtype).name)}}));
    }
    PIPER_ASSIGN(out[0], c.pointwise("Div", {loss[0], count}));
  }
  if (c.node.outputs.size() > 1 && !c.node.outputs[1].empty()) {
    PIPER_ASSIGN(Val log_probabilities, c.op("LogSoftmax", {scores}, {{"axis", int64_t{1}}}));
    out.push_back(std::move(log_probabilities));
  }
  return out;
}

// Of log-probabilities: their log-sum-exp is zero, so it is the cross-entropy with them as logits.
Result<Vals> negative_log_likelihood(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  const Val& scores = c.in(0);
  const Graph& graph = c.emit.graph();
  const bool made =
      scores.kind == Val::Kind::kGraph && graph.value(scores.id).kind == ValueKind::kNode;
  const Node* producer = made ? &graph.node(graph.value(scores.id).producer) : nullptr;
  if (!producer || producer->op != "LogSoftmax" || producer->attrs.integer("axis") != 1) {
    return c.error("is supported only directly behind a LogSoftmax over the classes");
  }
  return cross_entropy(c);
}

constexpr ImportRule kRules[] = {
    {"NegativeLogLikelihoodLoss", 12, kNewest, negative_log_likelihood},
    {"SoftmaxCrossEntropyLoss", 12, kNewest, cross_entropy},
};

}  // namespace

std::span<const ImportRule> loss_rules() { return kRules; }

}  // namespace piper::onnx_import
