// Images: other sizes by interpolation along each dim, and channels against places.
#include <algorithm>
#include <cmath>

#include "rule.h"

namespace piper::onnx_import {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr double kMaxTaps = 64;
constexpr int64_t kByMode = 11;  // the opset from which a Resize says how it maps places

// Says what a dim of the result is made of: out[o] = sum over taps t of weights[t][o] ·
// x[places[t][o]].
struct Taps {
  std::vector<std::vector<int64_t>> places;
  std::vector<std::vector<double>> weights;  // empty: one tap of weight 1
  bool outside = false;                      // some o lie outside of x: `inside` says which do not
  std::vector<bool> inside;
};

struct ResizeDim {
  int64_t size = 0, out = 0;
  double scale = 1;
  double roi_start = 0, roi_end = 1;
  bool exact = false;  // the scale is out / size, which need not be a double
  // Of nearest elements a rounding decides which: it is that of f32, in which PyTorch multiplies
  // and all others divide. Quotients of sizes are exact.
  enum Rounding { kNone, kQuotients, kProducts } rounding = kNone;
  double unscaled(double x) const {
    const auto whole = static_cast<double>(size), made = static_cast<double>(out);
    const auto place = static_cast<float>(x);
    if (rounding == kProducts) return place * static_cast<float>(exact ? whole / made : 1 / scale);
    if (exact) return x * whole / made;
    return rounding == kQuotients ? place / static_cast<float>(scale) : x / scale;
  }
};

struct Modes {
  std::string mode, coordinates, nearest;
  double cubic = -0.75, extrapolation = 0;
  bool antialias = false, exclude_outside = false;
};

// Returns the place in x, as a real number, of element o of the result.
double place_of(const ResizeDim& d, const Modes& m, int64_t o) {
  const auto x = static_cast<double>(o), out = static_cast<double>(d.out);
  const auto size = static_cast<double>(d.size);
  if (m.coordinates == "asymmetric") return d.unscaled(x);
  if (m.coordinates == "tf_half_pixel_for_nn") return d.unscaled(x + 0.5);
  if (m.coordinates == "align_corners") return d.out == 1 ? 0 : x * (size - 1) / (out - 1);
  if (m.coordinates == "pytorch_half_pixel") return d.out > 1 ? d.unscaled(x + 0.5) - 0.5 : 0;
  if (m.coordinates == "half_pixel_symmetric") {
    const double adjustment = out / (d.scale * size), centre = size / 2;
    return centre * (1 - adjustment) + d.unscaled(x + 0.5) - 0.5;
  }
  if (m.coordinates == "tf_crop_and_resize") {
    if (d.out == 1) return 0.5 * (d.roi_start + d.roi_end) * (size - 1);
    return d.roi_start * (size - 1) + x * (d.roi_end - d.roi_start) * (size - 1) / (out - 1);
  }
  return d.unscaled(x + 0.5) - 0.5;  // half_pixel
}

int64_t nearest(const Modes& m, double x) {
  const double down = std::floor(x), up = std::ceil(x);
  if (m.nearest == "floor") return static_cast<int64_t>(down);
  if (m.nearest == "ceil") return static_cast<int64_t>(up);
  if (m.nearest == "round_prefer_ceil") return static_cast<int64_t>(x - down >= 0.5 ? up : down);
  return static_cast<int64_t>(x - down > 0.5 ? up : down);
}

// Returns the weight of a neighbour at a distance: a tent, or Keys's cubic.
double kernel(const Modes& m, double distance) {
  const double x = std::fabs(distance);
  if (m.mode == "linear") return std::max(0.0, 1 - x);
  const double a = m.cubic;
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// Returns the neighbours of one place and their weights, those beyond the edge at the edge.
std::vector<std::pair<int64_t, double>> neighbours(const ResizeDim& d, const Modes& m, double x) {
  const double reach = (m.mode == "linear" ? 1 : 2);
  const double shrink = m.antialias ? std::min(d.scale, 1.0) : 1;
  const auto first = static_cast<int64_t>(std::floor(x - reach / shrink)) + 1;
  const auto last = static_cast<int64_t>(std::ceil(x + reach / shrink)) - 1;
  std::vector<std::pair<int64_t, double>> out;
  double sum = 0;
  for (int64_t i = first; i <= std::max(first, last); ++i) {
    double weight = kernel(m, (static_cast<double>(i) - x) * shrink);
    if (m.exclude_outside && (i < 0 || i >= d.size)) weight = 0;
    sum += weight;
    out.emplace_back(std::clamp<int64_t>(i, 0, d.size - 1), weight);
  }
  if (sum != 0 && (m.antialias || m.exclude_outside)) {
    for (auto& [place, weight] : out) weight /= sum;
  }
  return out;
}

// Adds the taps of an output; other outputs may have more or fewer.
void add_taps(Taps& t, const std::vector<std::pair<int64_t, double>>& all, int64_t o) {
  if (all.size() > t.places.size()) {
    t.places.resize(all.size(), std::vector<int64_t>(static_cast<size_t>(o), 0));
    t.weights.resize(all.size(), std::vector<double>(static_cast<size_t>(o), 0));
  }
  for (size_t k = 0; k < t.places.size(); ++k) {
    t.places[k].push_back(k < all.size() ? all[k].first : 0);
    t.weights[k].push_back(k < all.size() ? all[k].second : 0);
  }
}

Taps taps_of(const ResizeDim& d, const Modes& m) {
  Taps t;
  for (int64_t o = 0; o < d.out; ++o) {
    const double x = place_of(d, m, o);
    const bool inside =
        m.coordinates != "tf_crop_and_resize" || (x >= 0 && x <= static_cast<double>(d.size - 1));
    t.inside.push_back(inside);
    t.outside = t.outside || !inside;
    std::vector<std::pair<int64_t, double>> all;
    if (m.mode == "nearest") {
      all.emplace_back(std::clamp<int64_t>(nearest(m, x), 0, d.size - 1), 1);
    } else {
      all = neighbours(d, m, x);
    }
    add_taps(t, all, o);
  }
  if (m.mode == "nearest") t.weights.clear();
  return t;
}

// Returns numbers along dim `d` of a value of `rank` dims.
Val along(const std::vector<double>& numbers, size_t d, const Val& like) {
  Shape shape(like.rank(), 1);
  shape[d] = static_cast<int64_t>(numbers.size());
  return numbers_val(numbers, shape, like.dtype);
}

// Says how places are rounded: by PyTorch where the file notes that it is its function, which has
// them in f64 for elements of f64.
ResizeDim::Rounding rounding_of(const RuleContext& c, const std::string& mode) {
  if (mode != "nearest") return ResizeDim::kNone;
  const bool is_product =
      c.called().starts_with("aten.upsample_nearest") && c.in(0).dtype != DType::kF64;
  return is_product ? ResizeDim::kProducts : ResizeDim::kQuotients;
}

Status check_taps(RuleContext& c, const ResizeDim& d, const Modes& m) {
  const double shrink = m.antialias ? std::min(d.scale, 1.0) : 1;
  const double taps = m.mode == "nearest" ? 1 : 2 * (m.mode == "linear" ? 1 : 2) / shrink + 1;
  if (!(taps <= kMaxTaps && taps * static_cast<double>(d.out) <= kMostListed && d.out >= 1))
    return c.error("makes {} elements of {}, which is too many or each of too many", d.out, d.size);
  return ok_status();
}

Result<Val> tap_of(RuleContext& c, const Val& x, size_t d, const Taps& taps, size_t k) {
  PIPER_ASSIGN(Val part, c.op("Gather", {x, integers_val(taps.places[k])},
                              {{"axis", static_cast<int64_t>(d)}}));
  if (!taps.weights.empty()) {
    const Val weight = along(taps.weights[k], d, x);
    PIPER_ASSIGN(part, c.pointwise("Mul", {part, weight}));
  }
  return part;
}

Result<Val> resize_dim(RuleContext& c, const Val& x, size_t d, const Taps& taps,
                       double extrapolation) {
  Val sum;
  for (size_t k = 0; k < taps.places.size(); ++k) {
    PIPER_ASSIGN(Val part, tap_of(c, x, d, taps, k));
    if (!sum.present()) {
      sum = std::move(part);
    } else {
      PIPER_ASSIGN(sum, c.pointwise("Add", {sum, part}));
    }
  }
  if (!taps.outside) return sum;
  std::vector<double> inside(taps.inside.begin(), taps.inside.end());
  const Val mask = along(inside, d, x);
  PIPER_ASSIGN(const Val kept, c.pointwise("Greater", {mask, c.number(0.5, mask)}));
  return c.pointwise("Where", {kept, sum, c.number(extrapolation, x)});
}

Result<std::vector<double>> known_numbers(RuleContext& c, size_t i, std::string_view role) {
  const Val& v = c.in(i);
  if (!v.is_constant())
    return c.error("its {} must be known when the model is compiled, but depends on the data",
                   role);
  if (v.rank() > 1 || num_elements(v.shape) > 32) return c.error("its {} are not a list", role);
  const Bytes data = expand_bytes(v.data, v.stored, v.shape, v.dtype);
  std::vector<double> out(static_cast<size_t>(num_elements(v.shape)));
  for (size_t k = 0; k < out.size(); ++k) out[k] = read_number(data, v.dtype, k);
  return out;
}

// Reads by how much each dim grows; before opset 11 input 1 says so.
Result<std::vector<double>> read_scales(RuleContext& c) {
  const size_t input = c.opset < kByMode ? 1 : 2;
  if (!c.has(input)) return c.error("names neither scales nor sizes");
  return known_numbers(c, input, "scales");
}

// Returns how many elements there are afterwards. Scales are f32, and the product is rounded to it,
// too: 10 · 0.7 is 7.
double scaled_size(int64_t size, double scale) {
  return std::floor(static_cast<float>(size) * static_cast<float>(scale));
}

Status check_modes(RuleContext& c, const Modes& m) {
  auto known = [](const std::string& text, std::initializer_list<std::string_view> list) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  if (!known(m.mode, {"nearest", "linear", "cubic"}))
    return c.error("mode '{}' is not known", quote_control(m.mode));
  if (!known(m.coordinates,
             {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
              "asymmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn"}))
    return c.error("coordinate_transformation_mode '{}' is not supported",
                   quote_control(m.coordinates));
  if (!known(m.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}))
    return c.error("nearest_mode '{}' is not known", quote_control(m.nearest));
  return ok_status();
}

Result<Modes> read_modes(RuleContext& c) {
  Modes m{c.text("mode", "nearest"),
          c.text("coordinate_transformation_mode", "half_pixel"),
          c.text("nearest_mode", "round_prefer_floor"),
          c.real("cubic_coeff_a", -0.75),
          c.real("extrapolation_value", 0),
          c.integer("antialias", 0) != 0,
          c.integer("exclude_outside", 0) != 0};
  if (c.opset < kByMode) {  // there was one way
    m.coordinates = "asymmetric";
    m.nearest = "floor";
  }
  PIPER_TRY(check_modes(c, m));
  return m;
}

// Keeps one scale for all the dims that `sizes` names, so that the image keeps its proportions.
Status keep_proportions(RuleContext& c, std::vector<ResizeDim>& dims,
                        const std::vector<int64_t>& axes) {
  const std::string policy = c.text("keep_aspect_ratio_policy", "stretch");
  if (policy == "stretch" || axes.empty()) return ok_status();
  if (policy != "not_larger" && policy != "not_smaller")
    return c.error("keep_aspect_ratio_policy '{}' is not known", quote_control(policy));
  double scale = dims[static_cast<size_t>(axes[0])].scale;
  for (const int64_t a : axes) {
    const double other = dims[static_cast<size_t>(a)].scale;
    scale = policy == "not_larger" ? std::min(scale, other) : std::max(scale, other);
  }
  for (const int64_t a : axes) {
    ResizeDim& dim = dims[static_cast<size_t>(a)];
    dim.scale = scale;
    dim.exact = false;
    dim.out = static_cast<int64_t>(std::floor(scale * static_cast<double>(dim.size) + 0.5));
  }
  return ok_status();
}

Result<std::vector<ResizeDim>> read_dims(RuleContext& c, const Modes& m) {
  const Val& x = c.in(0);
  std::vector<ResizeDim> dims(x.rank());
  for (size_t d = 0; d < dims.size(); ++d) dims[d].size = dims[d].out = x.shape[d];
  c.pass_over({"keep_aspect_ratio_policy"});
  std::vector<int64_t> axes = c.integers("axes");
  if (!c.has_attr("axes")) {
    for (size_t d = 0; d < dims.size(); ++d) axes.push_back(static_cast<int64_t>(d));
  }
  for (int64_t& a : axes) {
    PIPER_ASSIGN(const size_t d, c.axis(a, x.rank()));
    a = static_cast<int64_t>(d);
  }
  for (const int64_t size : x.shape) {
    if (size > kMaxSize) return c.error("of {} is too large", to_string(x.shape));
  }
  const bool by_size = c.has(3) && num_elements(c.in(3).shape) > 0;
  PIPER_ASSIGN(const auto numbers, by_size ? known_numbers(c, 3, "sizes") : read_scales(c));
  std::vector<double> roi;
  if (m.coordinates == "tf_crop_and_resize") {
    PIPER_ASSIGN(roi, known_numbers(c, 1, "region"));
    if (roi.size() != 2 * axes.size()) return c.error("its region does not fit its axes");
    for (const double r : roi) {
      if (!(std::fabs(r) <= 1e6)) return c.error("an impossible region");
    }
  }
  if (numbers.size() != axes.size())
    return c.error("has {} {} for {} axes", numbers.size(), by_size ? "sizes" : "scales",
                   axes.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    ResizeDim& dim = dims[static_cast<size_t>(axes[i])];
    const auto size = static_cast<double>(dim.size);
    const double out = by_size ? numbers[i] : scaled_size(dim.size, numbers[i]);
    if (!(out >= 1 && out <= kMaxSize) || dim.size < 1)
      return c.error("makes {} elements of {}", out, dim.size);
    dim.out = static_cast<int64_t>(out);
    dim.scale = by_size ? out / size : numbers[i];
    dim.exact = by_size;
    if (!roi.empty()) {
      dim.roi_start = roi[i];
      dim.roi_end = roi[axes.size() + i];
    }
  }
  if (by_size) PIPER_TRY(keep_proportions(c, dims, axes));
  return dims;
}

Result<Vals> resized(RuleContext& c, const Modes& modes, std::vector<ResizeDim> dims) {
  for (ResizeDim& dim : dims) dim.rounding = rounding_of(c, modes.mode);
  Val x = c.in(0);
  if (modes.mode != "nearest" && !info(x.dtype).is_float)
    return c.error("interpolates {}", info(x.dtype).name);
  for (size_t d = 0; d < dims.size(); ++d) {
    const bool same = dims[d].out == dims[d].size && dims[d].scale == 1 && dims[d].roi_start == 0 &&
                      dims[d].roi_end == 1;
    if (same) continue;
    PIPER_TRY(check_taps(c, dims[d], modes));
    PIPER_ASSIGN(x, resize_dim(c, x, d, taps_of(dims[d], modes), modes.extrapolation));
  }
  return Vals{x};
}

Result<Vals> resize(RuleContext& c) {
  PIPER_TRY(c.need(1, 4));
  PIPER_ASSIGN(const Modes modes, read_modes(c));
  PIPER_ASSIGN(std::vector<ResizeDim> dims, read_dims(c, modes));
  return resized(c, modes, std::move(dims));
}

Status scale_dims(RuleContext& c, const std::vector<double>& scales, std::vector<ResizeDim>& dims) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t size = c.in(0).shape[d];
    const double out = scaled_size(size, scales[d]);
    if (!(out >= 1 && out <= kMaxSize) || size < 1)
      return c.error("makes {} elements of {}", out, size);
    dims[d].size = size;
    dims[d].out = static_cast<int64_t>(out);
    dims[d].scale = scales[d];
  }
  return ok_status();
}

// Returns what Resize replaced in opset 10: by scales only, an attribute at first, from the first
// element.
Result<Vals> upsample(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  Modes modes{c.text("mode", "nearest"), "asymmetric", "floor"};
  if (modes.mode == "bilinear") modes.mode = "linear";
  if (modes.mode != "nearest" && modes.mode != "linear")
    return c.error("mode '{}' is not known", quote_control(modes.mode));
  std::vector<double> scales = c.list<double>("scales").value_or(std::vector<double>());
  if (c.has(1)) {
    PIPER_ASSIGN(scales, known_numbers(c, 1, "scales"));
  }
  std::vector<ResizeDim> dims(c.in(0).rank());
  if (scales.size() != dims.size())
    return c.error("has {} scales for {} dims", scales.size(), dims.size());
  PIPER_TRY(scale_dims(c, scales, dims));
  return resized(c, modes, std::move(dims));
}

// ---- Channels against places ------------------------------------------------------------------

Result<int64_t> block_size(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const int64_t b = c.integer("blocksize", 0);
  if (c.in(0).rank() != 4 || b < 1 || b > kMaxSize)
    return c.error("cannot regroup {} by blocks of {}", to_string(c.in(0).shape), b);
  return b;
}

Result<Vals> depth_to_space(RuleContext& c) {
  PIPER_ASSIGN(const int64_t b, block_size(c));
  const Shape& s = c.in(0).shape;
  if (s[1] % (b * b) != 0) return c.error("cannot regroup {} by blocks of {}", to_string(s), b);
  const int64_t depth = s[1] / (b * b);
  const bool columns = c.text("mode", "DCR") == "CRD";
  PIPER_ASSIGN(Val x, c.reshape(c.in(0), columns ? Shape{s[0], depth, b, b, s[2], s[3]}
                                                 : Shape{s[0], b, b, depth, s[2], s[3]}));
  PIPER_ASSIGN(x, c.transpose(x, columns ? Shape{0, 1, 4, 2, 5, 3} : Shape{0, 3, 4, 1, 5, 2}));
  return single(c.reshape(x, {s[0], depth, s[2] * b, s[3] * b}));
}

Result<Vals> space_to_depth(RuleContext& c) {
  PIPER_ASSIGN(const int64_t b, block_size(c));
  const Shape& s = c.in(0).shape;
  if (s[2] % b != 0 || s[3] % b != 0)
    return c.error("cannot regroup {} by blocks of {}", to_string(s), b);
  PIPER_ASSIGN(Val x, c.reshape(c.in(0), {s[0], s[1], s[2] / b, b, s[3] / b, b}));
  PIPER_ASSIGN(x, c.transpose(x, {0, 3, 5, 1, 2, 4}));
  return single(c.reshape(x, {s[0], s[1] * b * b, s[2] / b, s[3] / b}));
}

constexpr ImportRule kResizeRules[] = {
    {"DepthToSpace", 1, kNewest, depth_to_space},
    {"Resize", 10, kNewest, resize, "to known sizes or by known scales"},
    {"SpaceToDepth", 1, kNewest, space_to_depth},
    {"Upsample", 7, 9, upsample, "by known scales"},
};

}  // namespace

std::span<const ImportRule> resize_rules() { return kResizeRules; }

}  // namespace piper::onnx_import
