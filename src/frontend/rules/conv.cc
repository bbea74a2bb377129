// Convolutions as matrix products: of the windows' elements and the weights; a transposed one adds
// up the windows that the product makes.
#include <algorithm>

#include "windows.h"

namespace piper::onnx_import {
namespace {

// Multiplies rows of `depth` elements of each group by its matrix: [n, rows, groups·depth] and
// [groups·m, depth] or (not `by_rows`) [groups·depth, m] -> [n, rows, groups·m].
Result<Val> grouped_product(RuleContext& c, Val rows, Val weight, int64_t groups, bool by_rows) {
  const int64_t n = rows.shape[0], places = rows.shape[1], depth = rows.shape[2] / groups;
  if (groups == 1) {
    if (by_rows) {
      PIPER_ASSIGN(weight, c.transpose(weight, {1, 0}));
    }
    return c.matmul(rows, weight);
  }
  const int64_t outputs = by_rows ? weight.shape[0] / groups : weight.shape[1];
  PIPER_ASSIGN(rows, c.reshape(rows, {n, places, groups, depth}));
  PIPER_ASSIGN(rows, c.transpose(rows, {0, 2, 1, 3}));
  PIPER_ASSIGN(weight, c.reshape(weight, by_rows ? Shape{groups, outputs, depth}
                                                 : Shape{groups, depth, outputs}));
  if (by_rows) {
    PIPER_ASSIGN(weight, c.transpose(weight, {0, 2, 1}));
  }
  PIPER_ASSIGN(Val y, c.matmul(rows, weight));
  PIPER_ASSIGN(y, c.transpose(y, {0, 2, 1, 3}));
  return c.reshape(y, {n, places, groups * outputs});
}

// Windows that touch but do not overlap (patches) need no copy of their elements:
// [n, c, h·p, w·q] -> [n, h, w, c, p, q]
Result<Val> patches(RuleContext& c, const Val& x, const Windows& w) {
  Shape split{x.shape[0], x.shape[1]}, cut = x.shape;
  std::vector<int64_t> perm{0};
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    split.insert(split.end(), {w.count[d], w.kernel[d]});
    cut[d + 2] = w.count[d] * w.kernel[d];
    perm.push_back(static_cast<int64_t>(2 + 2 * d));
  }
  perm.push_back(1);
  for (size_t d = 0; d < w.kernel.size(); ++d) perm.push_back(static_cast<int64_t>(3 + 2 * d));
  PIPER_ASSIGN(Val rows, c.slice(x, Shape(x.rank(), 0), Shape(x.rank(), 1), cut));
  PIPER_ASSIGN(rows, c.reshape(rows, split));
  return c.transpose(rows, perm);
}

// The bias is absent where there is none, for which the newer exporter writes zeros of a wrong
// shape in conv3d.
Result<Val> bias_of(RuleContext& c, int64_t channels) {
  const Val& bias = c.in(2);
  if (!bias.present() || bias.shape == Shape{channels}) return bias;
  const bool zeros = bias.is_constant() && num_elements(bias.stored) == 1 &&
                     read_number(bias.data, bias.dtype, 0) == 0;
  if (zeros && c.called() == "aten.conv3d") return Val();
  return c.error("a bias {} for {} channels", to_string(bias.shape), channels);
}

Result<Val> with_bias(RuleContext& c, const Val& y) {  // channels last
  PIPER_ASSIGN(const Val bias, bias_of(c, y.shape.back()));
  return bias.present() ? c.pointwise("Add", {y, bias}) : Result<Val>(y);
}

Result<Vals> conv(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  const Val &x = c.in(0), &w = c.in(1);
  const int64_t groups = c.integer("group", 1);
  if (x.rank() < 3 || w.rank() != x.rank() || groups < 1 || groups > (1 << 20) ||
      x.shape[1] != w.shape[1] * groups || w.shape[0] % groups != 0) {
    return c.error("convolves {} with {} in {} group{}", to_string(x.shape), to_string(w.shape),
                   groups, groups == 1 ? "" : "s");
  }
  PIPER_TRY(check_kernel(c, w));
  PIPER_ASSIGN(const Windows windows,
               read_windows(c, x, Shape(w.shape.begin() + 2, w.shape.end()), false));
  const bool apart = windows.strides == windows.kernel && !windows.padded() &&
                     std::count(windows.dilations.begin(), windows.dilations.end(), 1) ==
                         static_cast<int64_t>(windows.dilations.size());
  Val rows;
  if (apart) {
    PIPER_ASSIGN(rows, patches(c, x, windows));
  } else {
    PIPER_ASSIGN(const Val around, padded(c, x, windows, 0));
    PIPER_ASSIGN(rows, unfolded(c, around, windows));
  }
  const int64_t depth = w.shape[1] * num_elements(windows.kernel);
  PIPER_ASSIGN(rows, c.reshape(rows, {x.shape[0], windows.places(), groups * depth}));
  PIPER_ASSIGN(const Val weight, c.reshape(w, {w.shape[0], depth}));
  PIPER_ASSIGN(Val y, grouped_product(c, rows, weight, groups, true));
  PIPER_ASSIGN(y, with_bias(c, y));
  PIPER_ASSIGN(y, c.transpose(y, {0, 2, 1}));
  Shape shape{x.shape[0], w.shape[0]};
  shape.insert(shape.end(), windows.count.begin(), windows.count.end());
  return single(c.reshape(y, shape));
}

// ---- Transposed -------------------------------------------------------------------------------

struct Spread {
  Windows w;                  // before and after: cut off, where positive
  std::vector<int64_t> size;  // of what Fold makes
  std::vector<int64_t> out;   // of the result
};

// Reads sizes as ONNX defines them: out = stride·(s-1) + output_padding + (k-1)·dilation + 1 -
// pads.
Result<Spread> read_spread(RuleContext& c, const Val& x, const Val& weight) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const size_t dims = x.rank() - 2;
  auto list = [&](std::string_view name, size_t count, int64_t otherwise) {
    return c.has_attr(name) ? c.integers(name) : std::vector<int64_t>(count, otherwise);
  };
  PIPER_TRY(check_kernel(c, weight));
  Spread s;
  s.w.kernel.assign(weight.shape.begin() + 2, weight.shape.end());
  s.w.strides = list("strides", dims, 1);
  s.w.dilations = list("dilations", dims, 1);
  const std::vector<int64_t> pads = list("pads", 2 * dims, 0);
  const std::vector<int64_t> extra = list("output_padding", dims, 0);
  const std::vector<int64_t> wanted = list("output_shape", dims, -1);
  const std::string automatic = c.text("auto_pad", "NOTSET");
  if (s.w.strides.size() != dims || s.w.dilations.size() != dims || pads.size() != 2 * dims ||
      extra.size() != dims || wanted.size() != dims)
    return c.error("its attributes do not fit {} spatial dims", dims);
  for (const auto& list : {pads, wanted})
    for (const int64_t n : list)
      if (n < -kMost || n > kMost) return c.error("impossible pads or output shape");
  for (size_t d = 0; d < dims; ++d) {
    for (const int64_t n : {s.w.strides[d], s.w.dilations[d], s.w.kernel[d], x.shape[d + 2]}) {
      if (n < 1 || n > kMost) return c.error("impossible strides, dilations or sizes");
    }
    if (extra[d] < 0 || extra[d] > kMost) return c.error("impossible output_padding");
    s.size.push_back(s.w.strides[d] * (x.shape[d + 2] - 1) +
                     (s.w.kernel[d] - 1) * s.w.dilations[d] + 1);
    int64_t before = pads[d], all = pads[d] + pads[dims + d], out = 0;
    const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
    if (c.has_attr("output_shape") || same) {
      out = c.has_attr("output_shape") ? wanted[d] : s.w.strides[d] * x.shape[d + 2];
      all = std::max<int64_t>(s.size[d] + extra[d] - out, 0);
      before = automatic == "SAME_UPPER" ? all / 2 : all - all / 2;
    } else {
      out = s.size[d] + extra[d] - all;
    }
    if (out < 1 || out > kMost || before < -kMost || before > kMost)
      return c.error("impossible pads or output shape");
    s.w.before.push_back(before);
    s.w.after.push_back(s.size[d] - before - out);
    s.out.push_back(out);
    s.w.count.push_back(x.shape[d + 2]);
  }
  return s;
}

Result<Vals> conv_transpose(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  const Val &x = c.in(0), &w = c.in(1);
  const int64_t groups = c.integer("group", 1);
  if (x.rank() < 3 || w.rank() != x.rank() || groups < 1 || groups > (1 << 20) ||
      x.shape[1] != w.shape[0] || x.shape[1] % groups != 0) {
    return c.error("convolves {} with {} in {} group{}", to_string(x.shape), to_string(w.shape),
                   groups, groups == 1 ? "" : "s");
  }
  PIPER_ASSIGN(const Spread s, read_spread(c, x, w));
  const int64_t n = x.shape[0], channels = x.shape[1], outputs = w.shape[1] * groups;
  const int64_t places = s.w.places(), elements = num_elements(s.w.kernel);
  PIPER_ASSIGN(Val rows, c.reshape(x, {n, channels, places}));
  PIPER_ASSIGN(rows, c.transpose(rows, {0, 2, 1}));
  PIPER_ASSIGN(const Val weight, c.reshape(w, {channels, w.shape[1] * elements}));
  PIPER_ASSIGN(Val y, grouped_product(c, rows, weight, groups, false));
  Shape shape{n};
  shape.insert(shape.end(), s.w.count.begin(), s.w.count.end());
  shape.push_back(outputs);
  shape.insert(shape.end(), s.w.kernel.begin(), s.w.kernel.end());
  PIPER_ASSIGN(y, c.reshape(y, shape));
  Shape full{n, outputs};
  full.insert(full.end(), s.size.begin(), s.size.end());
  PIPER_TRY(c.check_shape(full));
  PIPER_ASSIGN(y, c.op("Fold", {y},
                       {{"size", s.size}, {"strides", s.w.strides}, {"dilations", s.w.dilations}}));
  std::vector<int64_t> before{0, 0}, after{0, 0};
  for (size_t d = 0; d < s.size.size(); ++d) {
    before.push_back(-s.w.before[d]);
    after.push_back(-s.w.after[d]);
  }
  if (s.out != s.size || s.w.padded()) {
    PIPER_ASSIGN(y, c.op("Pad", {y}, {{"before", before}, {"after", after}, {"value", 0.0}}));
  }
  PIPER_ASSIGN(Val bias, bias_of(c, outputs));
  if (!bias.present()) return Vals{y};
  Shape channel(x.rank() - 1, 1);
  channel[0] = outputs;
  PIPER_ASSIGN(bias, c.reshape(bias, channel));
  return single(c.pointwise("Add", {y, bias}));
}

// Sums overlapping blocks, [n, channels·block, places] -> [n, channels, image…].
Result<Vals> col2im(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const auto image, c.constant_integers(1, "image_shape"));
  PIPER_ASSIGN(const auto block, c.constant_integers(2, "block_shape"));
  if (x.rank() != 3 || image.size() != block.size() || image.empty())
    return c.error("cannot lay {} out in {} by blocks of {}", to_string(x.shape), to_string(image),
                   to_string(block));
  Shape whole{x.shape[0], 1};
  whole.insert(whole.end(), image.begin(), image.end());
  PIPER_TRY(c.check_shape(whole));
  PIPER_TRY(c.check_shape(block));
  const Val like{x.kind, x.dtype, whole, whole, {}, {}, {}};  // whose windows the blocks are
  PIPER_ASSIGN(const Windows w, read_windows(c, like, block, false));
  const int64_t elements = num_elements(block), channels = x.shape[1] / elements;
  if (x.shape[1] != channels * elements || x.shape[2] != w.places())
    return c.error("cannot lay {} out in {} places of blocks of {}", to_string(x.shape), w.places(),
                   to_string(block));
  PIPER_ASSIGN(Val y, c.transpose(x, {0, 2, 1}));
  Shape shape{x.shape[0]}, size;
  shape.insert(shape.end(), w.count.begin(), w.count.end());
  shape.push_back(channels);
  shape.insert(shape.end(), block.begin(), block.end());
  PIPER_ASSIGN(y, c.reshape(y, shape));
  std::vector<int64_t> before{0, 0}, after{0, 0};
  for (size_t d = 0; d < image.size(); ++d) {
    size.push_back(image[d] + w.before[d] + w.after[d]);
    before.push_back(-w.before[d]);
    after.push_back(-w.after[d]);
  }
  PIPER_ASSIGN(
      y, c.op("Fold", {y}, {{"size", size}, {"strides", w.strides}, {"dilations", w.dilations}}));
  if (!w.padded()) return Vals{y};
  return single(c.op("Pad", {y}, {{"before", before}, {"after", after}, {"value", 0.0}}));
}

constexpr ImportRule kConvRules[] = {
    {"Col2Im", 18, kNewest, col2im, "of known shapes"},
    {"Conv", 1, kNewest, conv},
    {"ConvTranspose", 1, kNewest, conv_transpose},
};

}  // namespace

std::span<const ImportRule> conv_rules() { return kConvRules; }

}  // namespace piper::onnx_import
