// Pooling over windows that touch but do not overlap: a reshape and a reduction.
#include "rules.h"

namespace piper::onnx_import {
namespace {

struct Windows {
  Val split;                  // [n, c, h, p, w, q]
  std::vector<int64_t> axes;  // those of p, q
  double elements = 1;        // of a window
};

Result<Windows> windows(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  const std::vector<int64_t> kernel = c.integers("kernel_shape");
  const std::vector<int64_t> strides =
      c.has_attr("strides") ? c.integers("strides") : Shape(kernel.size(), 1);
  if (x.rank() < 3 || kernel.size() + 2 != x.rank())
    return c.error("a window {} does not fit {}", to_string(kernel), to_string(x.shape));
  bool apart = strides == kernel && c.text("auto_pad", "NOTSET") == "NOTSET" &&
               c.integer("ceil_mode", 0) == 0;
  for (const int64_t p : c.integers("pads")) apart = apart && p == 0;
  for (const int64_t d : c.integers("dilations")) apart = apart && d == 1;
  if (!apart)
    return c.error("is supported only where strides equal the window, without pads or dilations");
  Windows out;
  Shape cut = x.shape, split{x.shape[0], x.shape[1]};
  for (size_t d = 0; d < kernel.size(); ++d) {
    const int64_t count = kernel[d] > 0 ? x.shape[d + 2] / kernel[d] : 0;
    if (count < 1)
      return c.error("a window {} does not fit {}", to_string(kernel), to_string(x.shape));
    cut[d + 2] = count * kernel[d];
    out.axes.push_back(static_cast<int64_t>(split.size()) + 1);
    split.insert(split.end(), {count, kernel[d]});
    out.elements *= static_cast<double>(kernel[d]);
  }
  PIPER_ASSIGN(out.split, c.slice(x, Shape(x.rank(), 0), Shape(x.rank(), 1), cut));
  PIPER_ASSIGN(out.split, c.reshape(out.split, split));
  return out;
}

Result<Vals> average_pool(RuleContext& c) {
  PIPER_ASSIGN(const Windows w, windows(c));
  PIPER_ASSIGN(const Val sum, c.reduce_sum(w.split, w.axes, false));
  return single(c.pointwise("Mul", {sum, c.number(1 / w.elements, sum)}));
}

Result<Vals> max_pool(RuleContext& c) {
  if (c.node.outputs.size() > 1 && !c.node.outputs[1].empty())
    return c.error("its indices are not supported");
  PIPER_ASSIGN(const Windows w, windows(c));
  return single(c.op("ReduceMax", {w.split}, {{"axes", w.axes}, {"keepdims", int64_t{0}}}));
}

Result<Vals> global_average_pool(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  if (x.rank() < 3) return c.error("needs [batch, channels, …], got {}", to_string(x.shape));
  std::vector<int64_t> axes;
  double count = 1;
  for (size_t d = 2; d < x.rank(); ++d) {
    axes.push_back(static_cast<int64_t>(d));
    count *= static_cast<double>(x.shape[d]);
  }
  PIPER_ASSIGN(const Val sum, c.reduce_sum(x, axes, true));
  return single(c.pointwise("Mul", {sum, c.number(1 / count, sum)}));
}

constexpr ImportRule kRules[] = {
    {"AveragePool", 7, kNewest, average_pool},
    {"GlobalAveragePool", 1, kNewest, global_average_pool},
    {"MaxPool", 8, kNewest, max_pool},
};

}  // namespace

std::span<const ImportRule> pool_rules() { return kRules; }

}  // namespace piper::onnx_import
