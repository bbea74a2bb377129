// Pooling: reductions over the elements of windows.
#include <algorithm>
#include <limits>
#include <numeric>

#include "windows.h"

namespace piper::onnx_import {
namespace {

// [n, o…, c] -> [n, c, o…]
Result<Val> channels_second(RuleContext& c, const Val& y) {
  std::vector<int64_t> perm{0, static_cast<int64_t>(y.rank()) - 1};
  for (size_t d = 1; d + 1 < y.rank(); ++d) perm.push_back(static_cast<int64_t>(d));
  return c.transpose(y, perm);
}

bool apart(const Windows& w) {  // they touch, and nothing lies between
  return w.strides == w.kernel && !w.padded() &&
         std::all_of(w.dilations.begin(), w.dilations.end(), [](int64_t d) { return d == 1; });
}

// Returns the elements of windows that do not meet, without a copy: [n, c, h, p, w, q]; `axes`:
// where those of a window are.
Result<Val> windows_apart(RuleContext& c, const Val& x, const Windows& w,
                          std::vector<int64_t>& axes) {
  Shape cut = x.shape, split{x.shape[0], x.shape[1]};
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    cut[d + 2] = w.count[d] * w.kernel[d];
    axes.push_back(static_cast<int64_t>(split.size()) + 1);
    split.insert(split.end(), {w.count[d], w.kernel[d]});
  }
  PIPER_ASSIGN(Val parts, c.slice(x, Shape(x.rank(), 0), Shape(x.rank(), 1), cut));
  PIPER_ASSIGN(parts, c.reshape(parts, split));
  return parts;
}

// Returns the reduction `op` of each window of x, [n, c, o…]; `value` is in the pads. The first
// of equal largest elements takes the gradient.
Result<Val> over_windows(RuleContext& c, std::string_view op, const Val& x, const Windows& w,
                         double value) {
  const size_t dims = w.kernel.size();
  std::vector<int64_t> axes;
  const auto reduced = [&](const Val& parts) {
    Attrs attrs{{"axes", axes}, {"keepdims", int64_t{0}}};
    if (op == "ReduceMax") attrs.set("first", int64_t{1});
    return c.op(op, {parts}, attrs);
  };
  if (apart(w)) {
    PIPER_ASSIGN(const Val parts, windows_apart(c, x, w, axes));
    return reduced(parts);
  }
  PIPER_ASSIGN(const Val around, padded(c, x, w, value));
  PIPER_ASSIGN(const Val parts, unfolded(c, around, w));
  for (size_t d = 0; d < dims; ++d) axes.push_back(static_cast<int64_t>(dims + 2 + d));
  PIPER_ASSIGN(const Val y, reduced(parts));
  return channels_second(c, y);
}

Result<Windows> windows(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return read_windows(c, c.in(0), c.integers("kernel_shape"), true);
}

// Returns how many elements a window has along a dim that are from `low` to `high`.
int64_t elements_in(const Windows& w, size_t d, int64_t window, int64_t low, int64_t high) {
  const int64_t at = window * w.strides[d] - w.before[d], step = w.dilations[d];
  const int64_t skipped = std::max<int64_t>((low - at + step - 1) / step, 0);
  const int64_t reached = at < high ? (high - 1 - at) / step + 1 : 0;
  return std::max<int64_t>(std::min(reached, w.kernel[d]) - skipped, 0);
}

// Returns one divided by how many elements count of each window along each dim, multiplied: [o…].
Result<Val> shares(RuleContext& c, const Windows& w, const Val& x, bool pads_count) {
  PIPER_TRY(c.check_shape(w.count));
  if (w.places() > kMostListed) return c.error("has too many windows");
  std::vector<double> product{1};
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    const int64_t low = pads_count ? -w.before[d] : 0;
    const int64_t high = x.shape[d + 2] + (pads_count ? w.after[d] : 0);
    std::vector<double> next;
    for (const double p : product) {
      for (int64_t o = 0; o < w.count[d]; ++o) {
        next.push_back(p * static_cast<double>(elements_in(w, d, o, low, high)));
      }
    }
    product = std::move(next);
  }
  for (double& p : product) p = 1 / std::max(p, 1.0);
  return numbers_val(product, w.count, x.dtype);
}

Result<Vals> average_pool(RuleContext& c) {
  PIPER_ASSIGN(const Windows w, windows(c));
  PIPER_ASSIGN(const Val x, in_range_of_sums(c, c.in(0)));
  const bool pads_count = c.integer("count_include_pad", 0) != 0;  // says nothing without pads
  PIPER_ASSIGN(const Val sum, over_windows(c, "ReduceSum", x, w, 0));
  Val share = c.number(1 / static_cast<double>(num_elements(w.kernel)), sum);
  if (w.padded()) {
    PIPER_ASSIGN(share, shares(c, w, x, pads_count));
  }
  PIPER_ASSIGN(const Val y, c.pointwise("Mul", {sum, share}));
  return single(c.cast(y, c.in(0).dtype));
}

// Returns the elements of each window in a row, [n, o…, c, k], of an x that is padded.
Result<Val> rows_of_windows(RuleContext& c, const Val& x, const Windows& w) {
  PIPER_ASSIGN(const Val parts, unfolded(c, x, w));
  Shape rows(parts.shape.begin(), parts.shape.begin() + static_cast<int64_t>(x.rank()));
  rows.push_back(num_elements(w.kernel));
  return c.reshape(parts, rows);
}

// Returns the number of each element in its channel, rows first, or columns first (storage_order
// 1).
Result<Val> numbers_in_channel(RuleContext& c, const Shape& shape, bool columns_first) {
  const Shape plane(shape.begin() + 2, shape.end());
  PIPER_ASSIGN(Val numbers, c.emit.count_to(num_elements(plane)));
  Shape order = plane;
  if (columns_first) std::reverse(order.begin(), order.end());
  PIPER_ASSIGN(numbers, c.reshape(numbers, order));
  std::vector<int64_t> perm(order.size());
  std::iota(perm.begin(), perm.end(), int64_t{0});
  if (columns_first) std::reverse(perm.begin(), perm.end());
  PIPER_ASSIGN(numbers, c.transpose(numbers, perm));
  Shape with_channel{1, 1};
  with_channel.insert(with_channel.end(), plane.begin(), plane.end());
  return c.reshape(numbers, with_channel);
}

// Returns where in all of x each channel of each sample begins.
Result<Val> first_of_channels(RuleContext& c, const Val& x) {
  const int64_t channels = x.shape[0] * x.shape[1];
  PIPER_ASSIGN(Val first, c.emit.count_to(channels));
  const int64_t plane = channels == 0 ? 0 : num_elements(x.shape) / channels;
  PIPER_ASSIGN(first, c.pointwise("Mul", {first, integer_val(plane)}));
  Shape own(x.rank(), 1);
  own[0] = x.shape[0];
  own[1] = x.shape[1];
  PIPER_ASSIGN(first, c.reshape(first, own));
  return first;
}

// Returns where in all of x the largest element of each window is, the first of equal ones.
Result<Val> places_of_greatest(RuleContext& c, const Windows& w, double lowest) {
  const Val& x = c.in(0);
  const auto row = static_cast<int64_t>(x.rank());
  PIPER_ASSIGN(const Val around, padded(c, x, w, lowest));
  PIPER_ASSIGN(const Val rows, rows_of_windows(c, around, w));
  PIPER_ASSIGN(const Vals top,
               c.ops("TopK", {rows}, {{"axis", row}, {"k", int64_t{1}}, {"largest", int64_t{1}}}));
  PIPER_ASSIGN(Val numbers, numbers_in_channel(c, x.shape, c.integer("storage_order", 0) != 0));
  PIPER_ASSIGN(numbers, padded(c, numbers, w, 0));
  PIPER_ASSIGN(numbers, rows_of_windows(c, numbers, w));
  PIPER_ASSIGN(numbers, c.expand(numbers, rows.shape));
  PIPER_ASSIGN(Val places, c.op("GatherElements", {numbers, top[1]}, {{"axis", row}}));
  PIPER_ASSIGN(places, c.reshape(places, Shape(places.shape.begin(), places.shape.end() - 1)));
  PIPER_ASSIGN(places, channels_second(c, places));
  PIPER_ASSIGN(const Val first, first_of_channels(c, x));
  return c.pointwise("Add", {places, first});
}

Result<Vals> max_pool(RuleContext& c) {
  c.pass_over({"storage_order"});
  PIPER_ASSIGN(const Windows w, windows(c));
  const double lowest = info(c.in(0).dtype).is_float ? -std::numeric_limits<double>::infinity() : 0;
  if (lowest == 0 && w.padded()) return c.error("pads around integers are not supported");
  PIPER_ASSIGN(Val y, over_windows(c, "ReduceMax", c.in(0), w, lowest));
  if (c.node.outputs.size() < 2 || c.node.outputs[1].empty()) return Vals{std::move(y)};
  PIPER_ASSIGN(Val places, places_of_greatest(c, w, lowest));
  return Vals{std::move(y), std::move(places)};
}

// Returns the p-th root of a sum of p-th powers; before opset 2 p is a float.
double power_of(const RuleContext& c) {
  return c.opset < 2 ? c.real("p", 2) : static_cast<double>(c.integer("p", 2));
}
Result<Val> powers(RuleContext& c, double p) {
  PIPER_ASSIGN(const Val x, in_range_of_sums(c, c.in(0)));
  PIPER_ASSIGN(const Val size, c.pointwise("Abs", {x}));
  if (p == 1) return size;
  if (p == 2) return c.pointwise("Mul", {x, x});
  return c.pointwise("Pow", {size, c.number(p, x)});
}
Result<Val> root(RuleContext& c, const Val& x, double p) {
  if (p == 1) return c.cast(x, c.in(0).dtype);
  PIPER_ASSIGN(const Val y, c.power(x, 1 / p));  // without a slope where all of a window is 0
  return c.cast(y, c.in(0).dtype);
}
Result<Vals> lp_pool(RuleContext& c) {
  PIPER_ASSIGN(const Windows w, windows(c));
  const double p = power_of(c);
  if (p < 1) return c.error("p {} is not supported", p);
  PIPER_ASSIGN(const Val x, powers(c, p));
  PIPER_ASSIGN(const Val sum, over_windows(c, "ReduceSum", x, w, 0));
  return single(root(c, sum, p));
}

// ---- Over all of each channel -----------------------------------------------------------------

Result<std::vector<int64_t>> spatial_axes(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  if (x.rank() < 3) return c.error("needs [batch, channels, …], got {}", to_string(x.shape));
  std::vector<int64_t> axes(x.rank() - 2);
  std::iota(axes.begin(), axes.end(), 2);
  return axes;
}

Result<Vals> global_average_pool(RuleContext& c) {
  PIPER_ASSIGN(const auto axes, spatial_axes(c));
  double count = 1;
  for (const int64_t a : axes) count *= static_cast<double>(c.in(0).shape[static_cast<size_t>(a)]);
  PIPER_ASSIGN(Val y, in_range_of_sums(c, c.in(0)));
  PIPER_ASSIGN(y, c.reduce_sum(y, axes, true));
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, c.number(1 / count, y)}));
  return single(c.cast(y, c.in(0).dtype));
}

Result<Vals> global_max_pool(RuleContext& c) {
  PIPER_ASSIGN(const auto axes, spatial_axes(c));
  return single(c.op("ReduceMax", {c.in(0)},
                     {{"axes", axes}, {"keepdims", int64_t{1}}, {"first", int64_t{1}}}));
}

Result<Vals> global_lp_pool(RuleContext& c) {
  PIPER_ASSIGN(const auto axes, spatial_axes(c));
  const double p = power_of(c);
  if (p < 1) return c.error("p {} is not supported", p);
  PIPER_ASSIGN(const Val x, powers(c, p));
  PIPER_ASSIGN(const Val sum, c.reduce_sum(x, axes, true));
  return single(root(c, sum, p));
}

constexpr ImportRule kPoolRules[] = {
    {"AveragePool", 1, kNewest, average_pool},
    {"GlobalAveragePool", 1, kNewest, global_average_pool},
    {"GlobalLpPool", 1, kNewest, global_lp_pool},
    {"GlobalMaxPool", 1, kNewest, global_max_pool},
    {"LpPool", 1, kNewest, lp_pool},
    {"MaxPool", 1, kNewest, max_pool},
};

}  // namespace

std::span<const ImportRule> pool_rules() { return kPoolRules; }

}  // namespace piper::onnx_import
