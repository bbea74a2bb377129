// Imports losses over class labels.
#include <charconv>
#include <numeric>

#include "piper/frontend/onnx.h"
#include "rule.h"

namespace piper::onnx_import {
namespace {

// [n, classes, …] -> [n, …, classes]
Result<Val> classes_last(RuleContext& c, const Val& x) {
  std::vector<int64_t> perm{0};
  for (size_t d = 2; d < x.rank(); ++d) perm.push_back(static_cast<int64_t>(d));
  perm.push_back(1);
  return c.transpose(x, perm);
}

Result<Val> sum_of_all(RuleContext& c, const Val& x) {
  std::vector<int64_t> axes(x.rank());
  std::iota(axes.begin(), axes.end(), 0);
  return c.reduce_sum(x, axes, false);
}

struct Loss {
  std::string reduction;
  bool ignores = false;
  int64_t ignore_index = -100;
  double smoothing = 0;  // of labels, over all classes
  bool soft = false;     // labels are a share of each class
  Val labels = {};       // i64, unless they are shares
};

// cross_entropy_loss(scores, labels, weight, reduction, ignore_index, label_smoothing): ONNX has no
// word for the last, and the exporter leaves it out; the call that it notes has it.
double smoothing_of(RuleContext& c) {
  const auto call = parse_call(find_metadata(c.node.metadata, "pkg.torch.onnx.fx_node"));
  double smoothing = 0;
  if (!call || call->function != "aten.cross_entropy_loss" || call->words.size() < 6) return 0;
  const std::string& word = call->words[5];
  std::from_chars(word.data(), word.data() + word.size(), smoothing);
  return smoothing > 0 && smoothing <= 1 ? smoothing : 0;
}

Status check_labels(RuleContext& c, bool soft) {
  const Val &scores = c.in(0), &labels = c.in(1);
  if (!soft && labels.dtype != DType::kI64 && labels.dtype != DType::kI32)
    return c.error("labels must be i64 or i32, not {}", info(labels.dtype).name);
  if (scores.rank() < 2 || (!soft && labels.rank() + 1 != scores.rank())) {
    return c.error("scores {} and labels {} do not fit", to_string(scores.shape),
                   to_string(labels.shape));
  }
  if (c.has(2) && c.in(2).shape != Shape{scores.shape[1]})
    return c.error("{} weights for {} classes", to_string(c.in(2).shape), scores.shape[1]);
  return ok_status();
}

Result<Loss> read_loss(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  Loss loss{c.text("reduction", "mean"), c.has_attr("ignore_index"),
            c.integer("ignore_index", -100)};
  if (loss.reduction != "mean" && loss.reduction != "sum" && loss.reduction != "none") {
    return c.error("reduction '{}' is not known; 'mean', 'sum' and 'none' are",
                   quote_control(loss.reduction));
  }
  const Val &scores = c.in(0), &labels = c.in(1);
  loss.soft = info(labels.dtype).is_float && labels.shape == scores.shape;
  PIPER_TRY(check_labels(c, loss.soft));
  loss.labels = labels;
  if (!loss.soft) {
    PIPER_ASSIGN(loss.labels, c.cast(labels, DType::kI64));
  }
  return loss;
}

// Makes the loss of logits, without weights: one op that reads them once.
Result<Val> fused(RuleContext& c, const Loss& loss) {
  PIPER_ASSIGN(const Val logits, classes_last(c, c.in(0)));
  const Attrs attrs{{"ignore_index", loss.ignore_index}};
  PIPER_ASSIGN(const Vals sum, c.ops("CrossEntropySum", {logits, loss.labels}, attrs));
  if (loss.reduction == "sum") return c.cast(sum[0], logits.dtype);
  PIPER_ASSIGN(Val count, c.op("LabelCount", {loss.labels}, attrs));
  PIPER_ASSIGN(count, c.cast(count, sum[0].dtype));
  PIPER_ASSIGN(const Val mean, c.pointwise("Div", {sum[0], count}));
  return c.cast(mean, logits.dtype);
}

Result<Val> is_ignored(RuleContext& c, const Loss& loss) {
  return c.pointwise(
      "Equal", {loss.labels, number_val(static_cast<double>(loss.ignore_index), DType::kI64)});
}
Result<Val> safe_labels(RuleContext& c, const Loss& loss) {
  if (!loss.ignores) return loss.labels;
  PIPER_ASSIGN(const Val ignored, is_ignored(c, loss));
  return c.pointwise("Where", {ignored, number_val(0, DType::kI64), loss.labels});
}

// Returns the weight of each label: that of its class, 0 where it is ignored. `safe`: 0 for ignored
// ones.
Result<Val> label_weights(RuleContext& c, const Loss& loss, const Val& safe, DType dtype) {
  Val weights;
  if (c.has(2)) {
    PIPER_ASSIGN(weights, c.op("Gather", {c.in(2), safe}, {{"axis", int64_t{0}}}));
  }
  if (!loss.ignores) return weights;
  PIPER_ASSIGN(const Val ignored, is_ignored(c, loss));
  return c.pointwise(
      "Where", {ignored, number_val(0, dtype), weights.present() ? weights : number_val(1, dtype)});
}

// Returns by sample, of its log-probabilities, the sum over classes, each with its weight; 0 where
// the label is ignored.
Result<Val> sums_over_classes(RuleContext& c, const Loss& loss, Val scores) {
  const auto last = static_cast<int64_t>(scores.rank()) - 1;
  if (c.has(2)) {
    PIPER_ASSIGN(scores, c.pointwise("Mul", {scores, c.in(2)}));
  }
  PIPER_ASSIGN(const Val sums, c.reduce_sum(scores, {last}, false));
  if (!loss.ignores) return sums;
  PIPER_ASSIGN(const Val ignored, is_ignored(c, loss));
  return c.pointwise("Where", {ignored, number_val(0, sums.dtype), sums});
}

// Of log-probabilities: -weight · the one of the label, reduced; a mean is over the weights. With
// smoothing ε it is 1 - ε of that, and ε / classes of what all classes give (Szegedy et al.,
// Rethinking the Inception Architecture, 2016, as PyTorch has it).
Result<Val> picked(RuleContext& c, const Loss& loss, const Val& log_probabilities) {
  PIPER_ASSIGN(const Val scores, classes_last(c, log_probabilities));
  PIPER_ASSIGN(const Val safe, safe_labels(c, loss));
  Shape one = safe.shape;
  one.push_back(1);
  PIPER_ASSIGN(const Val places, c.reshape(safe, one));
  PIPER_ASSIGN(Val y, c.op("GatherElements", {scores, places},
                           {{"axis", static_cast<int64_t>(scores.rank()) - 1}}));
  PIPER_ASSIGN(y, c.reshape(y, safe.shape));
  PIPER_ASSIGN(y, c.pointwise("Neg", {y}));
  PIPER_ASSIGN(const Val weights, label_weights(c, loss, safe, y.dtype));
  if (c.has(2)) {
    PIPER_ASSIGN(y, c.pointwise("Mul", {y, weights}));
  }
  if (loss.ignores) {  // class 0, taken in place of an ignored label, may have the probability 0
    PIPER_ASSIGN(const Val ignored, is_ignored(c, loss));
    PIPER_ASSIGN(y, c.pointwise("Where", {ignored, number_val(0, y.dtype), y}));
  }
  if (loss.smoothing > 0) {
    PIPER_ASSIGN(Val all, sums_over_classes(c, loss, scores));
    const auto classes = static_cast<double>(scores.shape.back());
    PIPER_ASSIGN(all, c.pointwise("Mul", {all, c.number(loss.smoothing / classes, all)}));
    PIPER_ASSIGN(y, c.pointwise("Mul", {y, c.number(1 - loss.smoothing, y)}));
    PIPER_ASSIGN(y, c.pointwise("Sub", {y, all}));
  }
  if (loss.reduction == "none") return y;
  PIPER_ASSIGN(const Val sum, sum_of_all(c, y));
  if (loss.reduction == "sum") return sum;
  const auto count = static_cast<double>(num_elements(safe.shape));
  if (!weights.present()) return c.pointwise("Mul", {sum, c.number(1 / count, sum)});
  PIPER_ASSIGN(const Val all, c.expand(weights, safe.shape));
  PIPER_ASSIGN(const Val total, sum_of_all(c, all));
  return c.pointwise("Div", {sum, total});
}

Result<Val> smoothed(RuleContext& c, Val shares, double smoothing) {
  if (smoothing <= 0) return shares;
  const double rest = smoothing / static_cast<double>(shares.shape.back());
  PIPER_ASSIGN(shares, c.pointwise("Mul", {shares, c.number(1 - smoothing, shares)}));
  PIPER_ASSIGN(shares, c.pointwise("Add", {shares, c.number(rest, shares)}));
  return shares;
}

// Of log-probabilities: minus the sum over classes, each by its share and weight; a mean is over
// the samples. ONNX knows labels only, but the exporter writes shares in their place.
Result<Val> by_shares(RuleContext& c, const Loss& loss, const Val& log_probabilities) {
  PIPER_ASSIGN(const Val scores, classes_last(c, log_probabilities));
  PIPER_ASSIGN(Val shares, classes_last(c, c.in(1)));
  PIPER_ASSIGN(shares, c.cast(shares, scores.dtype));
  PIPER_ASSIGN(shares, smoothed(c, shares, loss.smoothing));
  if (c.has(2)) {
    PIPER_ASSIGN(shares, c.pointwise("Mul", {shares, c.in(2)}));
  }
  PIPER_ASSIGN(Val y, c.pointwise("Mul", {scores, shares}));
  PIPER_ASSIGN(y, c.reduce_sum(y, {static_cast<int64_t>(y.rank()) - 1}, false));
  PIPER_ASSIGN(y, c.pointwise("Neg", {y}));
  if (loss.reduction == "none") return y;
  const auto count = static_cast<double>(num_elements(y.shape));
  PIPER_ASSIGN(y, sum_of_all(c, y));
  if (loss.reduction == "sum") return y;
  return c.pointwise("Mul", {y, c.number(1 / count, y)});
}

Result<Vals> cross_entropy(RuleContext& c) {
  PIPER_ASSIGN(Loss loss, read_loss(c));
  loss.smoothing = smoothing_of(c);
  const bool wants_scores = c.node.outputs.size() > 1 && !c.node.outputs[1].empty();
  const bool simple = !c.has(2) && loss.reduction != "none" && loss.smoothing == 0 && !loss.soft;
  Val log_probabilities;
  if (wants_scores || !simple) {
    PIPER_ASSIGN(log_probabilities, c.op("LogSoftmax", {c.in(0)}, {{"axis", int64_t{1}}}));
  }
  PIPER_ASSIGN(Val y, simple      ? fused(c, loss)
                      : loss.soft ? by_shares(c, loss, log_probabilities)
                                  : picked(c, loss, log_probabilities));
  Vals out{std::move(y)};
  if (wants_scores) out.push_back(std::move(log_probabilities));
  return out;
}

// Returns whether LogSoftmax made the scores over the classes: their log-sum-exp is zero, so the
// cross-entropy may take them as logits.
bool are_log_probabilities(RuleContext& c, const Val& scores) {
  const Node* maker = c.emit.maker(scores.id);
  return maker && maker->op == "LogSoftmax" && maker->attrs.integer("axis") == 1;
}

Result<Vals> negative_log_likelihood(RuleContext& c) {
  PIPER_ASSIGN(const Loss loss, read_loss(c));
  if (loss.soft) return c.error("needs labels, and not {}", to_string(c.in(1).shape));
  if (!c.has(2) && loss.reduction != "none" && are_log_probabilities(c, c.in(0)))
    return single(fused(c, loss));
  return single(picked(c, loss, c.in(0)));
}

constexpr ImportRule kLossRules[] = {
    {"NegativeLogLikelihoodLoss", 12, kNewest, negative_log_likelihood},
    {"SoftmaxCrossEntropyLoss", 12, kNewest, cross_entropy, "labels, or a share of each class"},
};

}  // namespace

std::span<const ImportRule> loss_rules() { return kLossRules; }

}  // namespace piper::onnx_import
