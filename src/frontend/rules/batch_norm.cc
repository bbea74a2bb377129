// Batch normalisation, and normalisations over other neighbours: channels, norms, all of a channel.
#include <algorithm>

#include "rule.h"

namespace piper::onnx_import {
namespace {

Result<Val> mean_over(RuleContext& c, const Val& x, const std::vector<int64_t>& axes) {
  double count = 1;
  for (const int64_t a : axes) count *= static_cast<double>(x.shape[static_cast<size_t>(a)]);
  PIPER_ASSIGN(Val y, in_range_of_sums(c, x));
  PIPER_ASSIGN(y, c.reduce_sum(y, axes, true));
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, c.number(1 / count, y)}));
  return c.cast(y, x.dtype);
}

Result<Val> mean_of_squares(RuleContext& c, const Val& x, const std::vector<int64_t>& axes) {
  PIPER_ASSIGN(Val y, in_range_of_sums(c, x));
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, y}));
  PIPER_ASSIGN(y, mean_over(c, y, axes));
  return c.cast(y, x.dtype);
}

Result<Val> over_root(RuleContext& c, const Val& x, const Val& variance, double epsilon) {
  PIPER_ASSIGN(Val root, c.pointwise("Add", {variance, c.number(epsilon, variance)}));
  PIPER_ASSIGN(root, c.pointwise("Sqrt", {root}));
  return c.pointwise("Div", {x, root});
}

// Returns all axes except the channels.
std::vector<int64_t> sample_axes(size_t rank) {
  std::vector<int64_t> axes{0};
  for (size_t d = 2; d < rank; ++d) axes.push_back(static_cast<int64_t>(d));
  return axes;
}

// Computes momentum · old + (1 - momentum) · new.
Result<Val> running(RuleContext& c, const Val& old, const Val& now) {
  const double momentum = c.real("momentum", 0.9);
  PIPER_ASSIGN(Val flat, c.reshape(now, old.shape));
  PIPER_ASSIGN(flat, c.cast(flat, old.dtype));
  PIPER_ASSIGN(const Val kept, c.pointwise("Mul", {old, c.number(momentum, old)}));
  PIPER_ASSIGN(const Val added, c.pointwise("Mul", {flat, c.number(1 - momentum, flat)}));
  return c.pointwise("Add", {kept, added});
}

// The running statistics take those of the batch: ONNX's variance is over its elements, PyTorch's
// over one less.
Status keep_running(RuleContext& c, const Val& mean, const Val& variance) {
  const double momentum = c.real("momentum", 0.9);
  const Val& x = c.in(0);
  PIPER_ASSIGN(Val now, c.reshape(mean, c.in(3).shape));
  PIPER_ASSIGN(now, c.cast(now, c.in(3).dtype));
  PIPER_TRY(c.emit.follow(c.in(3), now, momentum));
  PIPER_ASSIGN(Val spread, c.reshape(variance, c.in(4).shape));
  PIPER_ASSIGN(spread, c.cast(spread, c.in(4).dtype));
  const auto count = static_cast<double>(num_elements(x.shape) / x.shape[1]);
  if (c.emit.sample_variance && count > 1) {
    PIPER_ASSIGN(spread, c.pointwise("Mul", {spread, c.number(count / (count - 1), spread)}));
  }
  return c.emit.follow(c.in(4), spread, momentum);
}

// Imports a norm by the means and variances that the file holds, or (training_mode) by those of the
// batch, which couple its samples.
Result<Vals> batch_norm(RuleContext& c) {
  PIPER_TRY(c.need(5, 5));
  // It is computed in the widest of its types, which from opset 15 on may be three.
  DType wide = c.in(0).dtype;
  for (size_t i = 1; i < 5; ++i)
    if (info(c.in(i).dtype).bytes > info(wide).bytes) wide = c.in(i).dtype;
  PIPER_ASSIGN(const Val x, c.cast(c.in(0), wide));
  if (x.rank() < 2) return c.error("needs [batch, channels, …], got {}", to_string(x.shape));
  Shape channel(x.rank() - 1, 1);
  channel[0] = x.shape[1];
  for (size_t i = 1; i < 5; ++i) {
    if (c.in(i).shape != Shape{x.shape[1]})
      return c.error("input {} must have {} elements", i, x.shape[1]);
  }
  if (c.opset < 9 && c.integer("spatial", 1) == 0)
    return c.error("of each place of a channel (spatial=0) is not supported");
  constexpr int64_t kTrainingMode = 14;  // before that opset, further outputs meant it
  const auto is_read = [](const std::string& output) { return !output.empty(); };
  if (c.opset < kTrainingMode &&
      std::count_if(c.node.outputs.begin(), c.node.outputs.end(), is_read) > 1)
    return c.error(
        "is in training mode, which is read from opset 14 on: export at that or a later one");
  const bool training = c.integer("training_mode", 0) != 0;
  c.pass_over({"momentum", "is_test"});
  const auto of_channels = [&](size_t i) -> Result<Val> {
    PIPER_ASSIGN(const Val each, c.cast(c.in(i), wide));
    return c.reshape(each, channel);
  };
  PIPER_ASSIGN(Val mean, of_channels(3));
  PIPER_ASSIGN(Val variance, of_channels(4));
  if (training) {
    if (num_elements(x.shape) == 0) return c.error("of no samples");
    PIPER_ASSIGN(mean, mean_over(c, x, sample_axes(x.rank())));
  }
  PIPER_ASSIGN(Val y, c.pointwise("Sub", {x, mean}));
  if (training) {
    PIPER_ASSIGN(variance, mean_of_squares(c, y, sample_axes(x.rank())));
    PIPER_TRY(keep_running(c, mean, variance));
  }
  PIPER_ASSIGN(y, over_root(c, y, variance, c.real("epsilon", 1e-5)));
  PIPER_ASSIGN(const Val scale, of_channels(1));
  PIPER_ASSIGN(const Val bias, of_channels(2));
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, scale}));
  PIPER_ASSIGN(y, c.pointwise("Add", {y, bias}));
  PIPER_ASSIGN(y, c.cast(y, c.in(0).dtype));
  Vals out{y};
  if (training && c.node.outputs.size() > 1) {
    PIPER_ASSIGN(Val running_mean, running(c, c.in(3), mean));
    PIPER_ASSIGN(Val running_variance, running(c, c.in(4), variance));
    out.push_back(std::move(running_mean));
    out.push_back(std::move(running_variance));
  }
  return out;
}

// Returns for each channel the sum over `size` of them around it.
Result<Val> sums_of_channels(RuleContext& c, Val squares, int64_t size) {
  const Shape shape = squares.shape;
  std::vector<int64_t> before(shape.size(), 0), after(shape.size(), 0);
  before[1] = (size - 1) / 2;
  after[1] = size - 1 - before[1];
  PIPER_ASSIGN(squares,
               c.op("Pad", {squares}, {{"before", before}, {"after", after}, {"value", 0.0}}));
  Val sum;
  for (int64_t k = 0; k < size; ++k) {
    std::vector<int64_t> starts(shape.size(), 0);
    starts[1] = k;
    PIPER_ASSIGN(Val part, c.slice(squares, starts, std::vector<int64_t>(shape.size(), 1), shape));
    if (k == 0) {
      sum = std::move(part);
    } else {
      PIPER_ASSIGN(sum, c.pointwise("Add", {sum, part}));
    }
  }
  return sum;
}

// x / (bias + alpha/size · sum of squares of `size` channels around)^beta
Result<Vals> local_response(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  const int64_t size = c.integer("size", 0);
  if (x.rank() < 2 || size < 1 || size > 1024)
    return c.error("of {} channels of {}", size, to_string(x.shape));
  PIPER_ASSIGN(const Val wide, in_range_of_sums(c, x));
  PIPER_ASSIGN(Val squares, c.pointwise("Mul", {wide, wide}));
  PIPER_ASSIGN(Val sum, sums_of_channels(c, squares, size));
  const double factor = c.real("alpha", 1e-4) / static_cast<double>(size);
  PIPER_ASSIGN(sum, c.pointwise("Mul", {sum, c.number(factor, sum)}));
  PIPER_ASSIGN(sum, c.pointwise("Add", {sum, c.number(c.real("bias", 1), sum)}));
  PIPER_ASSIGN(sum, c.pointwise("Pow", {sum, c.number(c.real("beta", 0.75), sum)}));
  PIPER_ASSIGN(const Val y, c.pointwise("Div", {wide, sum}));
  return single(c.cast(y, x.dtype));
}

// Computes x / norm along the axis; zeros stay zeros.
Result<Vals> lp_norm(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  const int64_t p = c.integer("p", 2);
  if (p != 1 && p != 2) return c.error("p {} is not supported; 1 and 2 are", p);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank()));
  PIPER_ASSIGN(const Val wide, in_range_of_sums(c, x));
  PIPER_ASSIGN(Val norm, p == 1 ? c.pointwise("Abs", {wide}) : c.pointwise("Mul", {wide, wide}));
  PIPER_ASSIGN(norm, c.reduce_sum(norm, {static_cast<int64_t>(axis)}, true));
  if (p == 2) {
    PIPER_ASSIGN(norm, c.root(norm));
  }
  PIPER_ASSIGN(const Val none, c.pointwise("Equal", {norm, c.number(0, norm)}));
  PIPER_ASSIGN(norm, c.pointwise("Where", {none, c.number(1, norm), norm}));
  PIPER_ASSIGN(const Val y, c.pointwise("Div", {wide, norm}));
  return single(c.cast(y, x.dtype));
}

Result<Vals> mean_variance_norm(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  const std::vector<int64_t> named = c.has_attr("axes") ? c.integers("axes") : Shape{0, 2, 3};
  PIPER_ASSIGN(const auto axes, c.axes(named, x.rank()));
  if (num_elements(x.shape) == 0) return c.error("of no elements");
  PIPER_ASSIGN(const Val wide, in_range_of_sums(c, x));
  PIPER_ASSIGN(const Val mean, mean_over(c, wide, axes));
  PIPER_ASSIGN(const Val centred, c.pointwise("Sub", {wide, mean}));
  PIPER_ASSIGN(Val deviation, mean_of_squares(c, centred, axes));
  PIPER_ASSIGN(deviation, c.pointwise("Sqrt", {deviation}));
  PIPER_ASSIGN(deviation, c.pointwise("Add", {deviation, c.number(1e-9, deviation)}));
  PIPER_ASSIGN(const Val y, c.pointwise("Div", {centred, deviation}));
  return single(c.cast(y, x.dtype));
}

constexpr ImportRule kBatchNormRules[] = {
    {"BatchNormalization", 1, kNewest, batch_norm,
     "in training mode it couples the samples of a batch; its running statistics are saved with "
     "the parameters"},
    {"LRN", 1, kNewest, local_response},
    {"LpNormalization", 1, kNewest, lp_norm, "p 1 and 2"},
    {"MeanVarianceNormalization", 9, kNewest, mean_variance_norm},
};

}  // namespace

std::span<const ImportRule> batch_norm_rules() { return kBatchNormRules; }

}  // namespace piper::onnx_import
