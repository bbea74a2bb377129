// Windows that slide over the spatial dims of [n, c, s…]: Unfold{kernel, strides, dilations} lays
// out the elements of each, [n, o…, c, k…], without padding; Fold{size, strides, dilations} adds
// them back, [n, o…, c, k…] -> [n, c, size…]. Each is the other's gradient, and a convolution is a
// matrix product of what Unfold makes.
//
//   Unfold of [1,1,4], kernel [2], strides [1]:   a b c d  ->  ab / bc / cd   of shape [1,3,1,2]
#include <algorithm>

#include "rules.h"

namespace piper {
namespace {

struct Windows {
  std::vector<int64_t> kernel, size, strides, dilations, count;  // by spatial dim
};

// `windows.kernel` and `windows.size` are there; how many windows fit.
Status count_windows(const Attrs& attrs, Windows& w) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const size_t dims = w.kernel.size();
  PIPER_ASSIGN(w.strides, check_list(attrs, "strides", dims));
  PIPER_ASSIGN(w.dilations, check_list(attrs, "dilations", dims));
  for (size_t d = 0; d < dims; ++d) {
    const auto [least, most] = std::minmax({w.kernel[d], w.strides[d], w.dilations[d]});
    if (least < 1 || most > kMost)
      return fail("a window {} with strides {} and dilations {} is impossible", to_string(w.kernel),
                  to_string(w.strides), to_string(w.dilations));
    const int64_t span = (w.kernel[d] - 1) * w.dilations[d] + 1;
    if (span > w.size[d] || w.size[d] > kMost) {
      return fail("a window {} with dilations {} does not fit into {}", to_string(w.kernel),
                  to_string(w.dilations), to_string(w.size));
    }
    w.count.push_back((w.size[d] - span) / w.strides[d] + 1);
  }
  return ok_status();
}

Result<Windows> unfold_windows(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  const Shape& x = use.inputs[0].shape;
  if (x.size() < 3) return fail("needs [n, c, s…], but has {}", operands(use));
  Windows w;
  PIPER_ASSIGN(w.kernel, check_list(use.attrs, "kernel", x.size() - 2));
  w.size.assign(x.begin() + 2, x.end());
  PIPER_TRY(count_windows(use.attrs, w));
  return w;
}

TypesResult unfold_types(const OpTypes& use) {
  PIPER_ASSIGN(const Windows w, unfold_windows(use));
  Shape shape{use.inputs[0].shape[0]};
  shape.insert(shape.end(), w.count.begin(), w.count.end());
  shape.push_back(use.inputs[0].shape[1]);
  shape.insert(shape.end(), w.kernel.begin(), w.kernel.end());
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

TypesResult fold_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  const Shape& y = use.inputs[0].shape;
  if (y.size() < 4 || y.size() % 2 != 0) return fail("{} are not windows", operands(use));
  const auto dims = static_cast<int64_t>(y.size() / 2 - 1);
  Windows w;
  PIPER_ASSIGN(w.size, check_list(use.attrs, "size", static_cast<size_t>(dims)));
  w.kernel.assign(y.end() - dims, y.end());
  PIPER_TRY(count_windows(use.attrs, w));
  if (Shape(y.begin() + 1, y.begin() + 1 + dims) != w.count) {
    return fail("{} are not the {} windows of {}", operands(use), to_string(w.count),
                to_string(w.size));
  }
  Shape shape{y[0], y[static_cast<size_t>(dims) + 1]};
  shape.insert(shape.end(), w.size.begin(), w.size.end());
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

Attrs steps_of(const Attrs& attrs) {
  return {{"strides", attrs.integers("strides")}, {"dilations", attrs.integers("dilations")}};
}

Grads unfold_gradient(Builder& build, const GradientArgs& args) {
  const Shape& x = build.shape(args.inputs[0]);
  Attrs attrs = steps_of(args.attrs);
  attrs.set("size", Shape(x.begin() + 2, x.end()));
  return {build.op1("Fold", {args.output_grads[0]}, std::move(attrs))};
}

Grads fold_gradient(Builder& build, const GradientArgs& args) {
  const Shape& y = build.shape(args.inputs[0]);
  Attrs attrs = steps_of(args.attrs);
  attrs.set("kernel", Shape(y.begin() + static_cast<int64_t>(y.size() / 2 + 1), y.end()));
  return {build.op1("Unfold", {args.output_grads[0]}, std::move(attrs))};
}

// Samples and channels pass through; all spatial dims are whole.
LoopRule window_rule(const Shape& image, const Shape& windows, bool unfold) {
  LoopBuilder build;
  const char n = build.letter(image[0]), c = build.letter(image[1]);
  Dims of_image{{n}, {c}}, of_windows{{n}};
  for (size_t d = 2; d < image.size(); ++d) of_image.push_back({build.whole(image[d])});
  for (size_t d = 1; d < windows.size(); ++d) {
    const bool channel = d == windows.size() / 2;
    of_windows.push_back({channel ? c : build.whole(windows[d])});
  }
  build.rule.inputs = {unfold ? of_image : of_windows};
  build.rule.outputs = {unfold ? of_windows : of_image};
  build.rule.linear = {{0}};
  return build.rule;
}
LoopRule unfold_rule(const OpTypes& use) {
  return window_rule(use.inputs[0].shape, use.outputs[0].shape, true);
}
LoopRule fold_rule(const OpTypes& use) {
  return window_rule(use.outputs[0].shape, use.inputs[0].shape, false);
}

OpSample window_sample(Shape shape, std::string_view name, std::vector<int64_t> kernel_or_size,
                       std::vector<int64_t> strides, std::vector<int64_t> dilations) {
  return {.inputs = {f64(std::move(shape))},
          .attrs = {
              {std::string(name), kernel_or_size}, {"strides", strides}, {"dilations", dilations}}};
}

}  // namespace

std::vector<OpDef> window_ops() {
  OpDef unfold{.name = "Unfold",
               .types = unfold_types,
               .gradient = unfold_gradient,
               .loops = unfold_rule,
               .cost = moves};
  unfold.samples = {window_sample({2, 3, 7}, "kernel", {3}, {1}, {1}),
                    window_sample({2, 3, 5, 6}, "kernel", {2, 3}, {2, 1}, {1, 2}),
                    window_sample({2, 2, 3, 4, 3}, "kernel", {1, 2, 2}, {1, 2, 1}, {1, 1, 1})};
  OpDef fold{.name = "Fold",
             .types = fold_types,
             .gradient = fold_gradient,
             .loops = fold_rule,
             .cost = element_cost<1>};
  fold.samples = {window_sample({2, 5, 3, 3}, "size", {7}, {1}, {1}),
                  window_sample({2, 2, 2, 3, 2, 3}, "size", {5, 6}, {2, 1}, {1, 2})};
  unfold.attributes = {{"kernel", kIntegers}, {"strides", kIntegers}, {"dilations", kIntegers}};
  fold.attributes = {{"size", kIntegers}, {"strides", kIntegers}, {"dilations", kIntegers}};
  return {unfold, fold};
}

}  // namespace piper
