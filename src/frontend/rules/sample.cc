// Values of images at places that are computed: GridSample, DeformConv. Each is a few elements of
// the image, gathered and weighed, so that places have gradients through the weights.
#include <algorithm>
#include <cmath>

#include "windows.h"

namespace piper::onnx_import {
namespace {

Result<Val> plus_number(RuleContext& c, const Val& x, double number) {
  return number == 0 ? x : c.pointwise("Add", {x, c.number(number, x)});
}
Result<Val> times_number(RuleContext& c, const Val& x, double number) {
  return number == 1 ? x : c.pointwise("Mul", {x, c.number(number, x)});
}

// Keeps places from 0 to `high`. One on the bound has no gradient, as in PyTorch's grid_sample.
Result<Val> kept_up_to(RuleContext& c, const Val& x, double high) {
  return bounded(c, x, c.number(0, x), c.number(high, x), Bound::kStops);
}

enum class SamplePadding { kZeros, kBorder, kReflection };
struct SampleMode {
  SamplePadding padding = SamplePadding::kZeros;
  bool align_corners = false;  // reflection: at centres of elements, not at edges
};

// Reflects back and forth between the ends of a dim.
Result<Val> reflected(RuleContext& c, const Val& x, int64_t size, bool align_corners) {
  const double low = align_corners ? 0 : -0.5;
  const double span = static_cast<double>(size) - (align_corners ? 1 : 0);
  if (span == 0) return times_number(c, x, 0);
  PIPER_ASSIGN(Val distance, plus_number(c, x, -low));
  PIPER_ASSIGN(distance, c.pointwise("Abs", {distance}));
  PIPER_ASSIGN(Val turns, c.pointwise("Div", {distance, c.number(span, x)}));
  PIPER_ASSIGN(turns, c.pointwise("Floor", {turns}));
  PIPER_ASSIGN(Val done, times_number(c, turns, span));
  PIPER_ASSIGN(const Val rest, c.pointwise("Sub", {distance, done}));
  PIPER_ASSIGN(Val pairs, times_number(c, turns, 0.5));
  PIPER_ASSIGN(pairs, c.pointwise("Floor", {pairs}));
  PIPER_ASSIGN(pairs, times_number(c, pairs, 2));
  PIPER_ASSIGN(const Val forth, c.pointwise("Equal", {turns, pairs}));
  PIPER_ASSIGN(const Val back, c.pointwise("Sub", {c.number(span, x), rest}));
  PIPER_ASSIGN(const Val y, c.pointwise("Where", {forth, rest, back}));
  return plus_number(c, y, low);
}

// A place that zeros are not read for is in the image.
Result<Val> kept_inside(RuleContext& c, const SampleMode& how, Val x, int64_t size) {
  if (how.padding == SamplePadding::kZeros) return x;
  if (how.padding == SamplePadding::kReflection) {
    PIPER_ASSIGN(x, reflected(c, x, size, how.align_corners));
  }
  return kept_up_to(c, x, static_cast<double>(size) - 1);
}

// Describes a tap of one dim: where, how much it weighs (absent: 1), and where it is inside
// (absent: always).
struct Tap {
  Val at, weight, inside;
};

Result<Tap> tap_at(RuleContext& c, const SampleMode& how, const Val& x, int64_t size, Val weight) {
  Tap tap{x, std::move(weight), {}};
  const auto last = static_cast<double>(size) - 1;
  if (how.padding == SamplePadding::kZeros) {
    PIPER_ASSIGN(const Val after, c.pointwise("GreaterOrEqual", {x, c.number(0, x)}));
    PIPER_ASSIGN(const Val before, c.pointwise("LessOrEqual", {x, c.number(last, x)}));
    PIPER_ASSIGN(tap.inside, c.pointwise("And", {after, before}));
    PIPER_ASSIGN(tap.at, kept_up_to(c, x, last));
  }
  return tap;
}

// Returns two taps with the distance from each other's place as weight.
Result<std::vector<Tap>> linear_taps(RuleContext& c, const SampleMode& how, Val x, int64_t size) {
  PIPER_ASSIGN(x, kept_inside(c, how, x, size));
  PIPER_ASSIGN(const Val low, c.pointwise("Floor", {x}));
  PIPER_ASSIGN(const Val high, plus_number(c, low, 1));
  PIPER_ASSIGN(const Val second, c.pointwise("Sub", {x, low}));
  PIPER_ASSIGN(const Val first, c.pointwise("Sub", {c.number(1, x), second}));
  std::vector<Tap> taps(2);
  PIPER_ASSIGN(taps[0], tap_at(c, how, low, size, first));
  // This is the place of the last element, after which the weight is 0.
  PIPER_ASSIGN(const Val safe, how.padding == SamplePadding::kZeros
                                   ? Result<Val>(high)
                                   : kept_up_to(c, high, static_cast<double>(size) - 1));
  PIPER_ASSIGN(taps[1], tap_at(c, how, safe, size, second));
  return taps;
}

Result<std::vector<Tap>> nearest_tap(RuleContext& c, const SampleMode& how, Val x, int64_t size) {
  PIPER_ASSIGN(x, kept_inside(c, how, x, size));
  PIPER_ASSIGN(x, c.pointwise("Round", {x}));
  std::vector<Tap> taps(1);
  PIPER_ASSIGN(taps[0], tap_at(c, how, x, size, Val()));
  return taps;
}

// ((p·d + q)·d + r)·d + s
Result<Val> polynomial(RuleContext& c, const Val& d, double p, double q, double r, double s) {
  PIPER_ASSIGN(Val y, times_number(c, d, p));
  for (const double next : {q, r}) {
    PIPER_ASSIGN(y, plus_number(c, y, next));
    PIPER_ASSIGN(y, c.mul(y, d));
  }
  return plus_number(c, y, s);
}

// Returns |x - tap|, where x is `past` after the tap of number 1.
Result<Val> distance_to(RuleContext& c, const Val& past, int k) {
  if (k == 1) return past;
  return k == 0 ? plus_number(c, past, 1) : c.pointwise("Sub", {c.number(k - 1, past), past});
}

// Four taps (Keys, Cubic convolution interpolation, 1981, with a = -0.75).
Result<std::vector<Tap>> cubic_taps(RuleContext& c, const SampleMode& how, const Val& x,
                                    int64_t size) {
  constexpr double a = -0.75;
  PIPER_ASSIGN(const Val low, c.pointwise("Floor", {x}));
  PIPER_ASSIGN(const Val past, c.pointwise("Sub", {x, low}));
  std::vector<Tap> taps(4);
  for (int k = 0; k < 4; ++k) {
    PIPER_ASSIGN(Val at, plus_number(c, low, k - 1));
    PIPER_ASSIGN(at, kept_inside(c, how, at, size));
    PIPER_ASSIGN(at, c.pointwise("Round", {at}));
    PIPER_ASSIGN(const Val distance, distance_to(c, past, k));
    PIPER_ASSIGN(const Val weight, k == 1 || k == 2
                                       ? polynomial(c, distance, a + 2, -a - 3, 0, 1)
                                       : polynomial(c, distance, a, -5 * a, 8 * a, -4 * a));
    PIPER_ASSIGN(taps[static_cast<size_t>(k)], tap_at(c, how, at, size, weight));
  }
  return taps;
}

// ---- Sums over the taps of all dims -------------------------------------------------------------

// Returns the image [n, c, elements] at one tap of each dim, weighed.
Result<Val> at_taps(RuleContext& c, const Val& image, const Shape& sizes,
                    const std::vector<Tap>& taps) {
  Val place, weight, inside;
  for (size_t d = 0; d < taps.size(); ++d) {
    const Tap& tap = taps[d];
    if (place.present()) {
      PIPER_ASSIGN(place, times_number(c, place, static_cast<double>(sizes[d])));
      PIPER_ASSIGN(place, c.add(place, tap.at));
    } else {
      place = tap.at;
    }
    if (tap.weight.present() && weight.present()) {
      PIPER_ASSIGN(weight, c.mul(weight, tap.weight));
    } else if (tap.weight.present()) {
      weight = tap.weight;
    }
    if (tap.inside.present() && inside.present()) {
      PIPER_ASSIGN(inside, c.pointwise("And", {inside, tap.inside}));
    } else if (tap.inside.present()) {
      inside = tap.inside;
    }
  }
  PIPER_ASSIGN(Val index, c.cast(place, DType::kI64));
  PIPER_ASSIGN(index, c.expand(index, {image.shape[0], image.shape[1], index.shape[2]}));
  PIPER_ASSIGN(Val y, c.op("GatherElements", {image, index}, {{"axis", int64_t{2}}}));
  if (inside.present()) {
    PIPER_ASSIGN(y, c.pointwise("Where", {inside, y, c.number(0, y)}));
  }
  return weight.present() ? c.mul(y, weight) : Result<Val>(y);
}

using MakeTaps = Result<std::vector<Tap>> (*)(RuleContext&, const SampleMode&, Val, int64_t);
// Samples x [n, c, sizes…] at places [n, 1, p] of each dim: [n, c, p].
Result<Val> sampled(RuleContext& c, const SampleMode& how, const Val& x, const Vals& places,
                    MakeTaps make) {
  const Shape sizes(x.shape.begin() + 2, x.shape.end());
  // Places in the image are whole numbers of the places' type, which must be exact.
  const int64_t exact = places[0].dtype == DType::kF64 ? int64_t{1} << 53 : int64_t{1} << 24;
  const bool wide = info(places[0].dtype).bytes == 2;
  if (num_elements(sizes) > exact || num_elements(sizes) < 1)
    return c.error("an image {} is not supported", to_string(x.shape));
  std::vector<std::vector<Tap>> taps;
  for (size_t d = 0; d < sizes.size(); ++d) {
    PIPER_ASSIGN(const Val place, wide ? c.cast(places[d], DType::kF32) : Result<Val>(places[d]));
    PIPER_ASSIGN(taps.emplace_back(), make(c, how, place, sizes[d]));
  }
  PIPER_ASSIGN(Val image, c.reshape(x, {x.shape[0], x.shape[1], num_elements(sizes)}));
  PIPER_ASSIGN(image, wide ? c.cast(image, DType::kF32) : Result<Val>(image));
  Val sum;
  for (size_t combination = 0;; ++combination) {
    std::vector<Tap> chosen;
    size_t rest = combination;
    for (const std::vector<Tap>& each : taps) {
      chosen.push_back(each[rest % each.size()]);
      rest /= each.size();
    }
    if (rest > 0) break;
    PIPER_ASSIGN(const Val term, at_taps(c, image, sizes, chosen));
    PIPER_ASSIGN(sum, sum.present() ? c.add(sum, term) : Result<Val>(term));
  }
  return c.cast(sum, x.dtype);
}

// ---- GridSample ---------------------------------------------------------------------------------

Result<MakeTaps> taps_of_mode(RuleContext& c, size_t dims) {
  const std::string mode = c.text("mode", "linear");
  if (mode == "linear" || mode == "bilinear") return MakeTaps(linear_taps);
  if (mode == "nearest") return MakeTaps(nearest_tap);
  if ((mode == "cubic" || mode == "bicubic") && dims == 2)
    return MakeTaps([](RuleContext& rule, const SampleMode& how, Val x, int64_t size) {
      return cubic_taps(rule, how, x, size);
    });
  return c.error("mode '{}' is not supported for images of {} dims", quote_control(mode), dims);
}

Result<SamplePadding> padding_of(RuleContext& c) {
  const std::string mode = c.text("padding_mode", "zeros");
  if (mode == "zeros") return SamplePadding::kZeros;
  if (mode == "border") return SamplePadding::kBorder;
  if (mode == "reflection") return SamplePadding::kReflection;
  return c.error("padding_mode '{}' is not known", quote_control(mode));
}

// Maps [-1, 1] to elements of a dim: -1 and 1 are centres of the first and last element, or edges.
Result<Val> place_in(RuleContext& c, const Val& x, int64_t size, bool align_corners) {
  const auto n = static_cast<double>(size);
  PIPER_ASSIGN(Val y, plus_number(c, x, 1));
  PIPER_ASSIGN(y, times_number(c, y, (align_corners ? n - 1 : n) / 2));
  return plus_number(c, y, align_corners ? 0 : -0.5);
}

Status check_grid(RuleContext& c, const Val& x, const Val& grid) {
  if (x.rank() < 3 || x.rank() > 5 || grid.rank() != x.rank() || grid.shape[0] != x.shape[0] ||
      grid.shape.back() != static_cast<int64_t>(x.rank()) - 2 || !info(x.dtype).is_float)
    return c.error("cannot sample {} at {}", to_string(x.shape), to_string(grid.shape));
  return ok_status();
}

Result<Vals> grid_sample(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val &x = c.in(0), &grid = c.in(1);
  PIPER_TRY(check_grid(c, x, grid));
  const size_t dims = x.rank() - 2;
  PIPER_ASSIGN(const MakeTaps make, taps_of_mode(c, dims));
  PIPER_ASSIGN(const SamplePadding padding, padding_of(c));
  const SampleMode how{padding, c.integer("align_corners", 0) != 0};
  Shape out(grid.shape.begin(), grid.shape.end() - 1);
  Vals places;  // the last dim of x is the first of the grid
  for (size_t d = 0; d < dims; ++d) {
    PIPER_ASSIGN(Val one, c.part(grid, dims + 1, static_cast<int64_t>(dims - 1 - d), 1));
    PIPER_ASSIGN(one, c.reshape(one, {x.shape[0], 1, num_elements(out) / out[0]}));
    PIPER_ASSIGN(places.emplace_back(), place_in(c, one, x.shape[d + 2], how.align_corners));
  }
  PIPER_ASSIGN(const Val y, sampled(c, how, x, places, make));
  out.insert(out.begin() + 1, x.shape[1]);
  return single(c.reshape(y, out));
}

// ---- DeformConv ---------------------------------------------------------------------------------

// Returns where the elements of all windows are in dim d without offsets, [1, 1, k, o…].
Result<Val> regular_places(RuleContext& c, const Windows& w, size_t d, DType dtype) {
  Shape shape{1, 1, num_elements(w.kernel)};
  shape.insert(shape.end(), w.count.begin(), w.count.end());
  PIPER_TRY(c.emit.take_room({DType::kF64, shape}));
  int64_t inner_k = 1, inner_o = 1;
  for (size_t e = d + 1; e < w.kernel.size(); ++e) {
    inner_k *= w.kernel[e];
    inner_o *= w.count[e];
  }
  std::vector<double> places;
  for (int64_t k = 0; k < shape[2]; ++k)
    for (int64_t o = 0; o < w.places(); ++o)
      places.push_back(static_cast<double>(o / inner_o % w.count[d] * w.strides[d] - w.before[d] +
                                           k / inner_k % w.kernel[d] * w.dilations[d]));
  return c.cast(constant_val(DType::kF64, shape, bytes_of(places)), dtype);
}

struct Deformed {
  Windows w;
  int64_t groups = 1, offset_groups = 1;
};

Status check_groups(RuleContext& c, const Deformed& d) {
  const Val &x = c.in(0), &weight = c.in(1);
  if (d.groups < 1 || d.offset_groups < 1 || x.shape[1] % d.groups != 0 ||
      x.shape[1] % d.offset_groups != 0 || weight.shape[0] % d.groups != 0 ||
      weight.shape[1] != x.shape[1] / d.groups)
    return c.error("convolves {} with {} in {} and {} groups", to_string(x.shape),
                   to_string(weight.shape), d.groups, d.offset_groups);
  return ok_status();
}

Result<Deformed> read_deformed(RuleContext& c) {
  PIPER_TRY(c.need(3, 5));
  const Val &x = c.in(0), &weight = c.in(1);
  if (x.rank() != 4 || weight.rank() != 4)
    return c.error("convolves {} with {}; images of two dims are supported", to_string(x.shape),
                   to_string(weight.shape));
  Deformed d{.groups = c.integer("group", 1), .offset_groups = c.integer("offset_group", 1)};
  PIPER_TRY(check_groups(c, d));
  PIPER_TRY(check_kernel(c, weight));
  PIPER_ASSIGN(d.w, read_windows(c, x, {weight.shape[2], weight.shape[3]}, false));
  const int64_t points = d.offset_groups * num_elements(d.w.kernel);
  const Shape offsets{x.shape[0], 2 * points, d.w.count[0], d.w.count[1]};
  const Shape masks{x.shape[0], points, d.w.count[0], d.w.count[1]};
  if (c.in(2).shape != offsets)
    return c.error("has offsets {}, not {}", to_string(c.in(2).shape), to_string(offsets));
  if (c.has(4) && c.in(4).shape != masks)
    return c.error("has a mask {}, not {}", to_string(c.in(4).shape), to_string(masks));
  return d;
}

Result<Val> deformed_places(RuleContext& c, const Deformed& d, const Val& offsets, size_t dim) {
  const int64_t n = offsets.shape[0], k = offsets.shape[1], o = d.w.places();
  PIPER_ASSIGN(Val offset, c.part(offsets, 2, static_cast<int64_t>(dim), 1));
  PIPER_ASSIGN(offset, c.reshape(offset, {n, 1, k, d.w.count[0], d.w.count[1]}));
  PIPER_ASSIGN(const Val regular, regular_places(c, d.w, dim, offset.dtype));
  PIPER_ASSIGN(const Val place, c.add(regular, offset));
  return c.reshape(place, {n, 1, k * o});
}

// Returns the elements of all windows for the channels of one offset group, [n, c, k·o].
Result<Val> deformed_group(RuleContext& c, const Deformed& d, int64_t group) {
  const Val& x = c.in(0);
  const int64_t n = x.shape[0], k = num_elements(d.w.kernel), o = d.w.places();
  const int64_t channels = x.shape[1] / d.offset_groups;
  PIPER_ASSIGN(const Val image, c.part(x, 1, group * channels, channels));
  PIPER_ASSIGN(Val offsets, c.part(c.in(2), 1, group * 2 * k, 2 * k));
  PIPER_ASSIGN(offsets, c.reshape(offsets, {n, k, 2, d.w.count[0], d.w.count[1]}));
  Vals places;
  for (size_t dim = 0; dim < 2; ++dim) {
    PIPER_ASSIGN(places.emplace_back(), deformed_places(c, d, offsets, dim));
  }
  PIPER_ASSIGN(const Val y, sampled(c, {}, image, places, linear_taps));
  if (!c.has(4)) return y;
  PIPER_ASSIGN(Val mask, c.part(c.in(4), 1, group * k, k));
  PIPER_ASSIGN(mask, c.reshape(mask, {n, 1, k * o}));
  return c.mul(y, mask);
}

Result<Val> deformed_columns(RuleContext& c, const Deformed& d) {
  Vals groups;
  for (int64_t g = 0; g < d.offset_groups; ++g) {
    PIPER_ASSIGN(groups.emplace_back(), deformed_group(c, d, g));
  }
  Val columns = groups[0];
  if (groups.size() > 1) {
    PIPER_ASSIGN(columns, c.op("Concat", groups, {{"axis", int64_t{1}}}));
  }
  return columns;
}

Result<Vals> deform_conv(RuleContext& c) {
  PIPER_ASSIGN(const Deformed d, read_deformed(c));
  const Val &x = c.in(0), &weight = c.in(1);
  const int64_t n = x.shape[0], k = num_elements(d.w.kernel), o = d.w.places();
  const int64_t outputs = weight.shape[0], depth = weight.shape[1] * k;
  PIPER_ASSIGN(Val columns, deformed_columns(c, d));
  PIPER_ASSIGN(columns, c.reshape(columns, {n, d.groups, depth, o}));
  PIPER_ASSIGN(const Val rows, c.reshape(weight, {d.groups, outputs / d.groups, depth}));
  PIPER_ASSIGN(Val y, c.matmul(rows, columns));
  PIPER_ASSIGN(y, c.reshape(y, {n, outputs, d.w.count[0], d.w.count[1]}));
  if (!c.has(3)) return Vals{y};
  PIPER_ASSIGN(const Val bias, c.reshape(c.in(3), {outputs, 1, 1}));
  return single(c.add(y, bias));
}

// ---- RoiAlign -----------------------------------------------------------------------------------

// Describes how boxes [r, 4] are cut into `bins` along a dim, with `samples` places in each.
struct Bins {
  int64_t size = 0, bins = 0, samples = 0;
  double scale = 1;
  bool half = false;  // the first pixel's middle is at 1/2, and boxes may be narrower than a pixel
};

// Returns what of the places of a dim each bin is made of, [r, bins, size]. `first`: the column of
// the boxes that says where they begin.
Result<Val> shares_of_bins(RuleContext& c, const Val& boxes, int64_t first, const Bins& b) {
  const int64_t r = boxes.shape[0], places = b.bins * b.samples;
  const double offset = b.half ? 0.5 : 0;
  PIPER_TRY(c.check_shape({r, places, b.size}));
  PIPER_ASSIGN(Val begin, c.part(boxes, 1, first, 1));
  PIPER_ASSIGN(Val end, c.part(boxes, 1, first + 2, 1));
  PIPER_ASSIGN(begin, times_number(c, begin, b.scale));
  PIPER_ASSIGN(begin, plus_number(c, begin, -offset));
  PIPER_ASSIGN(end, times_number(c, end, b.scale));
  PIPER_ASSIGN(end, plus_number(c, end, -offset));
  PIPER_ASSIGN(Val extent, c.pointwise("Sub", {end, begin}));
  if (!b.half) {
    PIPER_ASSIGN(extent, c.pointwise("Max", {extent, c.number(1, extent)}));
  }
  std::vector<double> turns, indices;
  for (int64_t k = 0; k < places; ++k)
    turns.push_back((static_cast<double>(k) + 0.5) / static_cast<double>(places));
  for (int64_t k = 0; k < b.size; ++k) indices.push_back(static_cast<double>(k));
  PIPER_ASSIGN(Val at, c.mul(extent, numbers_val(turns, {1, places}, boxes.dtype)));
  PIPER_ASSIGN(at, c.add(at, begin));
  PIPER_ASSIGN(at, c.reshape(at, {r, places, 1}));
  // What lies more than a pixel outside is nothing; what lies nearer is on the border.
  const auto last = static_cast<double>(b.size - 1);
  PIPER_ASSIGN(const Val after, c.pointwise("GreaterOrEqual", {at, c.number(-1, at)}));
  PIPER_ASSIGN(const Val before, c.pointwise("LessOrEqual", {at, c.number(last + 1, at)}));
  PIPER_ASSIGN(const Val inside, c.pointwise("And", {after, before}));
  PIPER_ASSIGN(at, bounded(c, at, c.number(0, at), c.number(last, at), Bound::kStops));
  PIPER_ASSIGN(Val share,
               c.pointwise("Sub", {at, numbers_val(indices, {1, 1, b.size}, boxes.dtype)}));
  PIPER_ASSIGN(share, c.pointwise("Abs", {share}));
  PIPER_ASSIGN(share, c.pointwise("Sub", {c.number(1, share), share}));
  PIPER_ASSIGN(share, c.pointwise("Max", {share, c.number(0, share)}));
  PIPER_ASSIGN(share, c.pointwise("Where", {inside, share, c.number(0, share)}));
  PIPER_ASSIGN(share, c.reshape(share, {r, b.bins, b.samples, b.size}));
  PIPER_ASSIGN(share, c.reduce_sum(share, {2}, false));
  return times_number(c, share, 1 / static_cast<double>(b.samples));
}

// Imports means over bins of boxes as two products, one for each dim. The boxes get no gradient, as
// in torchvision.
Result<Vals> roi_align(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  const Val &x = c.in(0), &rows = c.in(2);
  if (x.rank() != 4 || c.in(1).rank() != 2 || c.in(1).shape[1] != 4 || rows.rank() != 1 ||
      rows.shape[0] != c.in(1).shape[0] || x.dtype != c.in(1).dtype)
    return c.error("cannot take boxes {} of {}", to_string(c.in(1).shape), to_string(x.shape));
  if (c.text("mode", "avg") != "avg") return c.error("with mode 'max' is not supported");
  const std::string middle =
      c.text("coordinate_transformation_mode", c.opset < 16 ? "output_half_pixel" : "half_pixel");
  const int64_t samples = c.integer("sampling_ratio", 0);
  if (samples < 1)
    return c.error("with a sampling_ratio of {} is not supported: boxes decide how often", samples);
  Bins b{.samples = samples, .scale = c.real("spatial_scale", 1), .half = middle == "half_pixel"};
  const Shape out{c.integer("output_height", 1), c.integer("output_width", 1)};
  PIPER_TRY(c.check_shape({out[0], out[1], samples, samples}));
  PIPER_ASSIGN(const Val boxes, c.pointwise("Detach", {c.in(1)}));
  Vals shares;
  for (const size_t d : {0, 1}) {
    b.size = x.shape[d + 2];
    b.bins = out[d];
    PIPER_ASSIGN(Val share, shares_of_bins(c, boxes, d == 0 ? 1 : 0, b));
    PIPER_ASSIGN(shares.emplace_back(), c.reshape(share, {boxes.shape[0], 1, b.bins, b.size}));
  }
  PIPER_ASSIGN(const Val across, c.transpose(shares[1], {0, 1, 3, 2}));
  PIPER_ASSIGN(Val y, c.op("Gather", {x, rows}, {{"axis", int64_t{0}}}));
  PIPER_ASSIGN(y, c.matmul(shares[0], y));
  return single(c.matmul(y, across));
}

constexpr ImportRule kSampleRules[] = {
    {"DeformConv", 19, kNewest, deform_conv, "of images of two dims"},
    {"GridSample", 16, kNewest, grid_sample},
    {"RoiAlign", 10, kNewest, roi_align, "of means, with a known `sampling_ratio`"},
};

}  // namespace

std::span<const ImportRule> sample_rules() { return kSampleRules; }

}  // namespace piper::onnx_import
