// Imports reductions and softmax of ONNX.
#include <algorithm>
#include <limits>

#include "rule.h"

namespace piper::onnx_import {
namespace {

struct Reduction {
  std::vector<int64_t> axes;  // normalised; empty: nothing is reduced
  bool keepdims = true;
  bool named = false;  // the axes, rather than all of them
  int64_t count = 1;   // elements of the input for one of the output
};

Result<Reduction> reduction(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  const Shape& shape = c.in(0).shape;
  PIPER_ASSIGN(auto named, c.integers_or_input("axes", 1));
  Reduction r;
  r.keepdims = c.integer("keepdims", 1) != 0;
  c.pass_over({"noop_with_empty_axes"});
  if (!named || named->empty()) {
    if (c.integer("noop_with_empty_axes", 0) != 0) return r;
    for (size_t d = 0; d < shape.size(); ++d) r.axes.push_back(static_cast<int64_t>(d));
  } else {
    r.named = true;
    PIPER_ASSIGN(r.axes, c.axes(*named, shape.size()));
  }
  for (const int64_t a : r.axes) r.count *= shape[static_cast<size_t>(a)];
  return r;
}

Result<Val> reduce(RuleContext& c, std::string_view op, const Val& x, const Reduction& r,
                   Attrs attrs = {}) {
  if (r.axes.empty()) return x;
  attrs.set("axes", r.axes);
  attrs.set("keepdims", int64_t{r.keepdims});
  return c.op(op, {x}, attrs);
}

// Returns whether the first of equal extremes takes the gradient, as in max(dim), which returns its
// index, and in pools; amax, and max over all, share it. One named axis without a call is taken for
// max(dim).
bool takes_first(RuleContext& c, const Reduction& r) {
  const std::string_view classes = find_metadata(c.node.metadata, "pkg.torch.onnx.class_hierarchy");
  if (classes.find("AdaptiveMaxPool") != classes.npos) return true;
  const std::string call = c.called();
  if (!call.empty()) return (call == "aten.max" || call == "aten.min") && r.named;
  const Node* maker = c.emit.maker(c.in(0).id);
  const bool is_norm = maker && maker->op == "Abs";  // the greatest magnitude
  return r.named && r.axes.size() == 1 && !is_norm;
}

Result<Vals> plain(RuleContext& c) {  // ReduceSum, ReduceProd
  PIPER_ASSIGN(const Reduction r, reduction(c));
  return single(reduce(c, c.node.op, c.in(0), r));
}

Result<Vals> extreme(RuleContext& c) {
  PIPER_ASSIGN(const Reduction r, reduction(c));
  if (c.in(0).dtype == DType::kBool) {  // of 0 and 1
    PIPER_ASSIGN(Val x, c.pointwise("Cast", {c.in(0)}, {{"to", std::string("i32")}}));
    PIPER_ASSIGN(x, reduce(c, c.node.op, x, r));
    // The extreme of nothing is the lowest or highest number, which stands for false or true.
    PIPER_ASSIGN(x, c.pointwise("Max", {x, number_val(0, DType::kI32)}));
    return single(c.pointwise("Cast", {x}, {{"to", std::string("bool")}}));
  }
  Attrs attrs;
  if (takes_first(c, r)) attrs.set("first", int64_t{1});
  return single(reduce(c, c.node.op, c.in(0), r, std::move(attrs)));
}

Result<Vals> reduce_mean(RuleContext& c) {
  PIPER_ASSIGN(const Reduction r, reduction(c));
  if (r.count == 1) return single(reduce(c, "ReduceSum", c.in(0), r));
  const DType dtype = c.in(0).dtype;
  if (!info(dtype).is_float) return c.error("a mean of {} is not supported", info(dtype).name);
  if (r.count == 0) return c.error("a mean of no elements");
  PIPER_ASSIGN(Val y, in_range_of_sums(c, c.in(0)));
  PIPER_ASSIGN(y, reduce(c, "ReduceSum", y, r));
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, c.number(1.0 / static_cast<double>(r.count), y)}));
  return single(c.cast(y, dtype));
}

// Sums before(x), then applies after(sum): "" for neither.
Result<Val> sum_of(RuleContext& c, std::string_view before, std::string_view after) {
  PIPER_ASSIGN(const Reduction r, reduction(c));
  PIPER_ASSIGN(Val x, in_range_of_sums(c, c.in(0)));
  if (before == "Square") {
    PIPER_ASSIGN(x, c.pointwise("Mul", {x, x}));
  } else if (!before.empty()) {
    PIPER_ASSIGN(x, c.pointwise(before, {x}));
  }
  PIPER_ASSIGN(Val sum, reduce(c, "ReduceSum", x, r));
  if (after == "Root") {
    if (!info(sum.dtype).is_float) return c.error("of {} is not supported", info(sum.dtype).name);
    PIPER_ASSIGN(sum, c.root(sum));
  } else if (!after.empty()) {
    PIPER_ASSIGN(sum, c.pointwise(after, {sum}));
  }
  return c.cast(sum, c.in(0).dtype);
}
Result<Vals> reduce_l1(RuleContext& c) { return single(sum_of(c, "Abs", "")); }
// The slope of the root at 0 is infinite; that of a norm is taken as 0 there, as PyTorch does.
Result<Vals> reduce_l2(RuleContext& c) { return single(sum_of(c, "Square", "Root")); }
Result<Vals> reduce_sum_square(RuleContext& c) { return single(sum_of(c, "Square", "")); }
Result<Vals> reduce_log_sum(RuleContext& c) { return single(sum_of(c, "", "Log")); }

// Returns the greatest element of each sum, or 0 where that is infinite.
Result<Val> greatest(RuleContext& c, const Reduction& kept) {
  PIPER_ASSIGN(Val top, reduce(c, "ReduceMax", c.in(0), kept));
  PIPER_ASSIGN(top, c.pointwise("Detach", {top}));  // it cancels
  // Infinity less itself is no number.
  PIPER_ASSIGN(const Val size, c.pointwise("Abs", {top}));
  const Val infinity = c.number(std::numeric_limits<double>::infinity(), top);
  PIPER_ASSIGN(const Val endless, c.pointwise("Equal", {size, infinity}));
  PIPER_ASSIGN(top, c.pointwise("Where", {endless, c.number(0, top), top}));
  return top;
}

Result<Vals> reduce_log_sum_exp(RuleContext& c) {  // max + log(sum(exp(x - max)))
  PIPER_ASSIGN(const Reduction r, reduction(c));
  Reduction kept = r;
  kept.keepdims = true;
  PIPER_ASSIGN(const Val top, greatest(c, kept));
  PIPER_ASSIGN(Val x, c.pointwise("Sub", {c.in(0), top}));
  PIPER_ASSIGN(x, c.pointwise("Exp", {x}));
  PIPER_ASSIGN(x, reduce(c, "ReduceSum", x, kept));
  PIPER_ASSIGN(x, c.pointwise("Log", {x}));
  PIPER_ASSIGN(x, c.pointwise("Add", {x, top}));
  if (r.keepdims) return Vals{x};
  Shape shape;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (!std::binary_search(r.axes.begin(), r.axes.end(), static_cast<int64_t>(d)))
      shape.push_back(x.shape[d]);
  }
  return single(c.reshape(x, shape));
}

Result<Val> softmax_of(RuleContext& c, const Val& x, size_t axis) {  // or LogSoftmax
  return c.op(c.node.op, {x}, {{"axis", static_cast<int64_t>(axis)}});
}
Result<Vals> softmax(RuleContext& c) {
  PIPER_ASSIGN(const Val y, along_axis(c, softmax_of));
  return single(with_attention_dropout(c, y));
}

constexpr ImportRule kReduceRules[] = {
    {"LogSoftmax", 1, kNewest, softmax},
    {"ReduceL1", 1, kNewest, reduce_l1},
    {"ReduceL2", 1, kNewest, reduce_l2},
    {"ReduceLogSum", 1, kNewest, reduce_log_sum},
    {"ReduceLogSumExp", 1, kNewest, reduce_log_sum_exp},
    {"ReduceMax", 1, kNewest, extreme},
    {"ReduceMean", 1, kNewest, reduce_mean},
    {"ReduceMin", 1, kNewest, extreme},
    {"ReduceProd", 1, kNewest, plain},
    {"ReduceSum", 1, kNewest, plain},
    {"ReduceSumSquare", 1, kNewest, reduce_sum_square},
    {"Softmax", 1, kNewest, softmax},
};

}  // namespace

std::span<const ImportRule> reduce_rules() { return kReduceRules; }

}  // namespace piper::onnx_import
