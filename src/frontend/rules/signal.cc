// Fourier transforms: products with the matrices of their cosines and sines.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "rule.h"

namespace piper::onnx_import {
namespace {

// Describes a transform of n elements, cut or filled with zeros to `length`, into `bins`.
// Backwards, the elements may be one half: the other has their conjugates, so that the result is
// real.
struct FourierTransform {
  int64_t n = 0, length = 0, bins = 0;
  bool inverse = false, mirrored = false;
  int64_t count() const { return std::min(n, mirrored ? length / 2 + 1 : length); }
  bool is_twice(int64_t element) const { return mirrored && element > 0 && 2 * element != length; }
};

// Computes cos or sin of 2π·j·k / length for the elements j and the bins k, [n, bins]; 0 past the
// length.
Result<Val> waves(RuleContext& c, const FourierTransform& t, bool sine, DType dtype) {
  PIPER_TRY(c.emit.take_room({DType::kF64, {t.n, t.bins}}));
  std::vector<double> values(static_cast<size_t>(t.n * t.bins));
  for (int64_t j = 0; j < t.count(); ++j)
    for (int64_t k = 0; k < t.bins; ++k) {
      const auto turn = static_cast<double>(j * k % t.length);
      const double angle = 2 * std::numbers::pi * turn / static_cast<double>(t.length);
      const double wave = sine ? std::sin(angle) : std::cos(angle);
      values[static_cast<size_t>(j * t.bins + k)] = t.is_twice(j) ? 2 * wave : wave;
    }
  if (t.inverse)
    for (double& value : values) value /= static_cast<double>(t.length);
  return c.cast(constant_val(DType::kF64, {t.n, t.bins}, bytes_of(values)), dtype);
}

struct Complex {
  Val real, imaginary;  // absent: 0
};

// Transforms the last dim: exp(∓i·angle) = cos ∓ i·sin, minus where it goes forth.
Result<Complex> transformed(RuleContext& c, const Complex& x, const FourierTransform& t) {
  PIPER_ASSIGN(const Val cos, waves(c, t, false, x.real.dtype));
  PIPER_ASSIGN(const Val sin, waves(c, t, true, x.real.dtype));
  Complex y;
  PIPER_ASSIGN(y.real, c.matmul(x.real, cos));
  PIPER_ASSIGN(y.imaginary, c.matmul(x.real, sin));
  if (!t.inverse) {
    PIPER_ASSIGN(y.imaginary, c.pointwise("Neg", {y.imaginary}));
  }
  if (!x.imaginary.present()) return y;
  PIPER_ASSIGN(const Val across, c.matmul(x.imaginary, sin));
  PIPER_ASSIGN(const Val along, c.matmul(x.imaginary, cos));
  PIPER_ASSIGN(y.real, c.pointwise(t.inverse ? "Sub" : "Add", {y.real, across}));
  PIPER_ASSIGN(y.imaginary, c.pointwise("Add", {y.imaginary, along}));
  return y;
}

// Splits x [..., 1 or 2] into its parts, without that dim.
Result<Complex> complex_parts(RuleContext& c, const Val& x) {
  const size_t last = x.rank() - 1;
  const Shape shape(x.shape.begin(), x.shape.end() - 1);
  Complex out;
  PIPER_ASSIGN(const Val real, c.part(x, last, 0, 1));
  PIPER_ASSIGN(out.real, c.reshape(real, shape));
  if (x.shape[last] == 1) return out;
  PIPER_ASSIGN(const Val imaginary, c.part(x, last, 1, 1));
  PIPER_ASSIGN(out.imaginary, c.reshape(imaginary, shape));
  return out;
}
Result<Val> with_parts(RuleContext& c, const Complex& y) {
  Shape shape = y.real.shape;
  shape.push_back(1);
  PIPER_ASSIGN(const Val real, c.reshape(y.real, shape));
  PIPER_ASSIGN(const Val imaginary, c.reshape(y.imaginary, shape));
  return c.op("Concat", {real, imaginary}, {{"axis", static_cast<int64_t>(shape.size()) - 1}});
}

Result<std::optional<int64_t>> one_known_integer(RuleContext& c, size_t input,
                                                 std::string_view role) {
  if (!c.has(input)) return std::optional<int64_t>();
  PIPER_ASSIGN(const auto values, c.constant_integers(input, role));
  if (values.size() != 1) return c.error("has {} numbers as its {}", values.size(), role);
  return std::optional(values[0]);
}

constexpr int64_t kMostLength = int64_t{1} << 20;

// Swaps dim `axis` and the one before the last: what is transformed is then followed by its parts
// only, and products act on it.
Result<Val> with_dims_swapped(RuleContext& c, const Val& x, size_t axis, size_t to) {
  std::vector<int64_t> perm;
  for (size_t d = 0; d < x.rank(); ++d) perm.push_back(static_cast<int64_t>(d));
  std::swap(perm[axis], perm[to]);
  return c.transpose(x, perm);
}

Result<Vals> dft(RuleContext& c) {
  PIPER_TRY(c.need(1, 3));
  Val x = c.in(0);
  const auto parts = x.rank() > 0 ? x.shape.back() : 0;
  if (x.rank() < 2 || (parts != 1 && parts != 2) || !info(x.dtype).is_float)
    return c.error("transforms no {}: the last dim is 1, or 2 for real and imaginary parts",
                   to_string(x.shape));
  // The axis is an attribute before opset 20, and counts all dims; then an input.
  PIPER_ASSIGN(const auto given, one_known_integer(c, 2, "axis"));
  const int64_t otherwise = c.opset < 20 ? c.integer("axis", 1) : -2;
  PIPER_ASSIGN(const size_t axis, c.axis(given.value_or(otherwise), x.rank()));
  if (axis + 1 == x.rank()) return c.error("cannot transform its parts, dim {}", axis);
  PIPER_ASSIGN(const auto length, one_known_integer(c, 1, "length"));
  const bool half = c.integer("onesided", 0) != 0, inverse = c.integer("inverse", 0) != 0;
  const int64_t n = x.shape[axis];
  FourierTransform t{.n = n,
                     .length = length.value_or(half && inverse ? 2 * (n - 1) : n),
                     .inverse = inverse,
                     .mirrored = half && inverse};
  if (t.length < 1 || t.length > kMostLength || t.n < 1)
    return c.error("cannot transform {} elements as {}", t.n, t.length);
  t.bins = half && !inverse ? t.length / 2 + 1 : t.length;
  const size_t last = x.rank() - 2;
  PIPER_ASSIGN(x, with_dims_swapped(c, x, axis, last));
  PIPER_ASSIGN(Complex y, complex_parts(c, x));
  // Products need rows.
  const bool flat = y.real.rank() == 1;
  for (Val* one : {&y.real, &y.imaginary}) {
    if (!flat || !one->present()) continue;
    PIPER_ASSIGN(*one, c.reshape(*one, {1, one->shape[0]}));
  }
  PIPER_ASSIGN(y, transformed(c, y, t));
  PIPER_ASSIGN(Val out, with_parts(c, y));
  if (t.mirrored) {
    PIPER_ASSIGN(out, c.part(out, out.rank() - 1, 0, 1));
  }
  if (flat) {
    PIPER_ASSIGN(out, c.reshape(out, {t.bins, t.mirrored ? 1 : 2}));
  }
  return single(with_dims_swapped(c, out, axis, last));
}

// ---- STFT: transforms of windows along a signal -------------------------------------------------

struct SignalFrames {
  int64_t step = 0, length = 0, count = 0;
};
Result<SignalFrames> read_frames(RuleContext& c, const Val& signal) {
  PIPER_ASSIGN(const auto step, one_known_integer(c, 1, "step"));
  PIPER_ASSIGN(const auto length, one_known_integer(c, 3, "length of frames"));
  SignalFrames f{.step = step.value_or(0),
                 .length = length.value_or(c.has(2) ? num_elements(c.in(2).shape) : 0)};
  if (f.step < 1 || f.length < 1 || f.length > signal.shape[1] || f.length > kMostLength)
    return c.error("cannot take frames of {} each {} from {}", f.length, f.step,
                   to_string(signal.shape));
  if (c.has(2) && c.in(2).shape != Shape{f.length})
    return c.error("a window {} does not fit frames of {}", to_string(c.in(2).shape), f.length);
  f.count = (signal.shape[1] - f.length) / f.step + 1;
  return f;
}

// Cuts [batch, signal] into [batch, frames, length].
Result<Val> frames_of(RuleContext& c, const Val& x, const SignalFrames& f) {
  PIPER_ASSIGN(const Val image, c.reshape(x, {x.shape[0], 1, x.shape[1]}));
  PIPER_ASSIGN(const Val y, c.op("Unfold", {image},
                                 {{"kernel", std::vector{f.length}},
                                  {"strides", std::vector{f.step}},
                                  {"dilations", std::vector{int64_t{1}}}}));
  PIPER_ASSIGN(const Val frames, c.reshape(y, {x.shape[0], f.count, f.length}));
  if (!c.has(2)) return frames;
  return c.pointwise("Mul", {frames, c.in(2)});
}

Result<Vals> stft(RuleContext& c) {
  PIPER_TRY(c.need(2, 4));
  Val x = c.in(0);
  if (x.rank() == 2) {
    PIPER_ASSIGN(x, c.reshape(x, {x.shape[0], x.shape[1], 1}));
  }
  if (x.rank() != 3 || (x.shape[2] != 1 && x.shape[2] != 2) || !info(x.dtype).is_float)
    return c.error("needs [batch, signal, 1 or 2], got {}", to_string(x.shape));
  PIPER_ASSIGN(const SignalFrames f, read_frames(c, x));
  PIPER_ASSIGN(Complex y, complex_parts(c, x));
  for (Val* one : {&y.real, &y.imaginary}) {
    if (!one->present()) continue;
    PIPER_ASSIGN(*one, frames_of(c, *one, f));
  }
  const bool half = c.integer("onesided", 1) != 0;
  const int64_t bins = half ? f.length / 2 + 1 : f.length;
  PIPER_ASSIGN(y, transformed(c, y, {.n = f.length, .length = f.length, .bins = bins}));
  return single(with_parts(c, y));
}

// Makes a window as a sum of cosines, of which the first is 1.
Result<Vals> window(RuleContext& c, double first, double second, double third) {
  PIPER_TRY(c.need(1, 1));
  PIPER_ASSIGN(const auto size, one_known_integer(c, 0, "size"));
  if (!size || *size < 0 || *size > kMostListed) return c.error("an impossible size");
  const int64_t code = c.integer("output_datatype", code_of_type("float"));
  const std::optional<DType> dtype = dtype_of_code(code);
  if (!dtype) return c.error("elements of {} are not supported", type_name(code));
  const bool periodic = c.integer("periodic", 1) != 0;
  const auto turn = static_cast<double>(std::max<int64_t>(periodic ? *size : *size - 1, 1));
  std::vector<double> values;
  for (int64_t k = 0; k < *size; ++k) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(k) / turn;
    values.push_back(first - second * std::cos(angle) + third * std::cos(2 * angle));
  }
  return single(c.cast(constant_val(DType::kF64, {*size}, bytes_of(values)), *dtype));
}
Result<Vals> blackman_window(RuleContext& c) { return window(c, 0.42, 0.5, 0.08); }
Result<Vals> hamming_window(RuleContext& c) { return window(c, 25.0 / 46, 21.0 / 46, 0); }
Result<Vals> hann_window(RuleContext& c) { return window(c, 0.5, 0.5, 0); }

constexpr ImportRule kSignalRules[] = {
    {"BlackmanWindow", 17, kNewest, blackman_window, "of a known size"},
    {"DFT", 17, kNewest, dft, "of known lengths"},
    {"HammingWindow", 17, kNewest, hamming_window, "of a known size"},
    {"HannWindow", 17, kNewest, hann_window, "of a known size"},
    {"STFT", 17, kNewest, stft, "of known frames"},
};

}  // namespace

std::span<const ImportRule> signal_rules() { return kSignalRules; }

}  // namespace piper::onnx_import
