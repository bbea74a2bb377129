// Attributes of convolutions and pools: kernel, strides, dilations, padding.
#include "windows.h"

#include <algorithm>

namespace piper::onnx_import {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;

Result<std::vector<int64_t>> sizes(RuleContext& c, std::string_view name, size_t count,
                                   int64_t otherwise, int64_t least) {
  if (!c.has_attr(name)) return std::vector<int64_t>(count, otherwise);
  std::vector<int64_t> values = c.integers(name);
  bool fit = values.size() == count;
  for (const int64_t v : values) fit = fit && v >= least && v <= kMost;
  if (!fit) return c.error("{} {} do not fit {} spatial dims", name, to_string(values), count);
  return values;
}

// Pads so that each dim has ceil(size / stride) windows: an odd one goes after, or before.
void pad_same(Windows& w, const Shape& shape, bool odd_before) {
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    const int64_t size = shape[d + 2], span = (w.kernel[d] - 1) * w.dilations[d] + 1;
    const int64_t count = (size + w.strides[d] - 1) / w.strides[d];
    const int64_t all = std::max<int64_t>((count - 1) * w.strides[d] + span - size, 0);
    w.before[d] = odd_before ? all - all / 2 : all / 2;
    w.after[d] = all - w.before[d];
  }
}

Status read_pads(RuleContext& c, const Shape& shape, Windows& w) {
  const size_t dims = w.kernel.size();
  const std::string automatic = c.text("auto_pad", "NOTSET");
  c.pass_over({"pads"});
  w.before.assign(dims, 0);
  w.after.assign(dims, 0);
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    pad_same(w, shape, automatic == "SAME_LOWER");
  } else if (automatic == "NOTSET" || automatic.empty()) {
    PIPER_ASSIGN(const auto pads, sizes(c, "pads", 2 * dims, 0, 0));
    w.before.assign(pads.begin(), pads.begin() + static_cast<int64_t>(dims));
    w.after.assign(pads.begin() + static_cast<int64_t>(dims), pads.end());
  } else if (automatic != "VALID") {
    return c.error("auto_pad '{}' is not known", quote_control(automatic));
  }
  return ok_status();
}

}  // namespace

bool Windows::padded() const {
  auto any = [](const std::vector<int64_t>& list) {
    return std::any_of(list.begin(), list.end(), [](int64_t n) { return n != 0; });
  };
  return any(before) || any(after) || any(overhang);
}

Result<Windows> read_windows(RuleContext& c, const Val& x, std::vector<int64_t> kernel,
                             bool rounds) {
  const size_t dims = kernel.size();
  if (x.rank() < 3 || dims + 2 != x.rank())
    return c.error("a window {} does not fit {}", to_string(kernel), to_string(x.shape));
  Windows w;
  w.kernel = std::move(kernel);
  PIPER_ASSIGN(w.strides, sizes(c, "strides", dims, 1, 1));
  PIPER_ASSIGN(w.dilations, sizes(c, "dilations", dims, 1, 1));
  for (size_t d = 0; d < dims; ++d) {
    if (w.kernel[d] < 1 || w.kernel[d] > kMost || x.shape[d + 2] > kMost)
      return c.error("a window {} does not fit {}", to_string(w.kernel), to_string(x.shape));
  }
  PIPER_TRY(read_pads(c, x.shape, w));
  const bool up = rounds && c.integer("ceil_mode", 0) != 0;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t size = x.shape[d + 2] + w.before[d] + w.after[d];
    const int64_t span = (w.kernel[d] - 1) * w.dilations[d] + 1, room = size - span;
    if (room < 0)
      return c.error("a window {} does not fit {}", to_string(w.kernel), to_string(x.shape));
    int64_t count = room / w.strides[d] + 1;
    // One more where elements are left, unless it would start in the pads after.
    const bool more =
        up && room % w.strides[d] != 0 && count * w.strides[d] < x.shape[d + 2] + w.before[d];
    if (more) ++count;
    w.count.push_back(count);
    w.overhang.push_back(more ? (count - 1) * w.strides[d] + span - size : 0);
  }
  return w;
}

Status check_kernel(const RuleContext& c, const Val& weight) {
  const auto kernel = c.list<int64_t>("kernel_shape");
  if (kernel && *kernel != Shape(weight.shape.begin() + 2, weight.shape.end())) {
    return c.error("windows {} of weights {}", to_string(Shape(*kernel)), to_string(weight.shape));
  }
  return ok_status();
}

Result<Val> padded(RuleContext& c, const Val& x, const Windows& w, double value) {
  if (!w.padded()) return x;
  std::vector<int64_t> before{0, 0}, after{0, 0};
  Shape shape = x.shape;
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    before.push_back(w.before[d]);
    after.push_back(w.after[d] + w.overhang[d]);
    shape[d + 2] += before.back() + after.back();
  }
  PIPER_TRY(c.check_shape(shape));
  return c.op("Pad", {x}, {{"before", before}, {"after", after}, {"value", value}});
}

Result<Val> unfolded(RuleContext& c, const Val& x, const Windows& w) {
  Shape shape{x.shape[0], x.shape[1]};
  shape.insert(shape.end(), w.count.begin(), w.count.end());
  shape.insert(shape.end(), w.kernel.begin(), w.kernel.end());
  PIPER_TRY(c.check_shape(shape));
  return c.op("Unfold", {x},
              {{"kernel", w.kernel}, {"strides", w.strides}, {"dilations", w.dilations}});
}

}  // namespace piper::onnx_import
