// QuantizeLinear and DequantizeLinear as fake quantisation: what would be integers stays floats, so
// that a gradient passes straight through the rounding where nothing is cut off (Jacob et al.,
// Quantization and Training of Neural Networks, 2018), and one of the scale follows (Esser et al.,
// Learned Step Size Quantization, 2020).
#include <algorithm>

#include "rule.h"

namespace piper::onnx_import {
namespace {

struct QuantizedRange {
  Narrow type;
  double low = 0, high = 255;
};

// Returns the range of the type of the zero point, or of `output_dtype`; 8 bits without a sign
// where neither is there.
Result<QuantizedRange> quantized_range(RuleContext& c) {
  Narrow type = kUint8;
  if (c.has(2)) type = c.in(2).narrow;
  if (!c.has(2) && c.integer("output_dtype", 0) != 0)
    type = narrow_of_code(c.integer("output_dtype", 0));
  if (type.bits == 0)
    return c.error("to {} is not supported: integers of 2, 4, 8 and 16 bits are",
                   c.has(2) ? info(c.in(2).dtype).name : type_name(c.integer("output_dtype", 0)));
  const auto count = static_cast<double>(int64_t{1} << type.bits);
  return type.is_signed ? QuantizedRange{type, -count / 2, count / 2 - 1}
                        : QuantizedRange{type, 0, count - 1};
}

// A scale or a zero point for each block along `axis`, of which the last may be shorter.
Result<Val> along_blocks(RuleContext& c, const Val& x, const Val& v, size_t axis, int64_t block) {
  Shape shape = x.shape;
  shape[axis] = (shape[axis] + block - 1) / block;
  if (v.shape != shape)
    return c.error("{} scales or zero points for blocks of {} along dim {} of {}, not {}",
                   to_string(v.shape), block, axis, to_string(x.shape), to_string(shape));
  Shape wide = shape, flat = shape;
  const auto behind = static_cast<std::ptrdiff_t>(axis) + 1;
  shape.insert(shape.begin() + behind, 1);
  wide.insert(wide.begin() + behind, block);
  flat[axis] *= block;
  PIPER_ASSIGN(Val y, c.reshape(v, shape));
  PIPER_ASSIGN(y, c.expand(y, wide));
  PIPER_ASSIGN(y, c.reshape(y, flat));
  return c.part(y, axis, 0, x.shape[axis]);
}

// A scale or a zero point for all of x, or one for each place or block along `axis`.
Result<Val> along_axis(RuleContext& c, const Val& x, const Val& v) {
  c.pass_over({"axis", "output_dtype"});
  const int64_t block = c.integer("block_size", 0);
  if (block < 0) return c.error("blocks of {} elements", block);
  if (num_elements(v.shape) == 1 && block == 0) return c.reshape(v, {});
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", 1), x.rank()));
  if (block > 0)
    return along_blocks(c, x, v, axis, std::min(block, std::max<int64_t>(x.shape[axis], 1)));
  if (v.shape != Shape{x.shape[axis]})
    return c.error("{} scales or zero points for dim {} of {}", to_string(v.shape), axis,
                   to_string(x.shape));
  Shape shape(x.rank() - axis, 1);
  shape[0] = v.shape[0];
  return c.reshape(v, shape);
}

Result<Val> zero_point(RuleContext& c, const Val& x, DType dtype) {
  if (!c.has(2)) return Val();
  PIPER_ASSIGN(const Val zero, along_axis(c, x, c.in(2)));
  return c.cast(zero, dtype);
}

// Returns what is rounded, with the slope of what is not.
Result<Val> rounded(RuleContext& c, const Val& y) {
  PIPER_ASSIGN(Val rest, c.pointwise("Round", {y}));
  PIPER_ASSIGN(rest, c.pointwise("Sub", {rest, y}));
  PIPER_ASSIGN(rest, c.pointwise("Detach", {rest}));
  return c.pointwise("Add", {y, rest});
}

// clamp(round(x / scale) + zero)
Result<Vals> quantize(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  PIPER_ASSIGN(const QuantizedRange range, quantized_range(c));
  PIPER_ASSIGN(const Val scale, along_axis(c, c.in(0), c.in(1)));
  PIPER_ASSIGN(const Val x, c.cast(c.in(0), scale.dtype));
  if (!info(x.dtype).is_float) return c.error("of {} is not supported", info(x.dtype).name);
  PIPER_ASSIGN(const Val zero, zero_point(c, x, x.dtype));
  PIPER_ASSIGN(Val y, c.pointwise("Div", {x, scale}));
  // Rounding needs a rest, which infinite numbers lack: they become finite, beyond all ranges.
  const double most = x.dtype == DType::kF16 ? 65504 : 0x1p20;
  PIPER_ASSIGN(y, bounded(c, y, c.number(-most, y), c.number(most, y), Bound::kPasses));
  PIPER_ASSIGN(y, rounded(c, y));
  if (zero.present()) {
    PIPER_ASSIGN(y, c.pointwise("Add", {y, zero}));
  }
  PIPER_ASSIGN(y, bounded(c, y, c.number(range.low, y), c.number(range.high, y), Bound::kPasses));
  y.narrow = range.type;
  return Vals{std::move(y)};
}

// (x - zero) · scale
Result<Vals> dequantize(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  PIPER_ASSIGN(const Val scale, along_axis(c, c.in(0), c.in(1)));
  PIPER_ASSIGN(Val y, c.cast(c.in(0), scale.dtype));
  PIPER_ASSIGN(const Val zero, zero_point(c, y, scale.dtype));
  if (zero.present()) {
    PIPER_ASSIGN(y, c.pointwise("Sub", {y, zero}));
  }
  PIPER_ASSIGN(y, c.pointwise("Mul", {y, scale}));
  const int64_t code = c.integer("output_dtype", 0);
  const std::optional<DType> dtype = code == 0 ? scale.dtype : dtype_of_code(code);
  if (!dtype || !info(*dtype).is_float) return c.error("to {} is not supported", type_name(code));
  return single(c.cast(y, *dtype));
}

constexpr ImportRule kQuantizeRules[] = {
    {"DequantizeLinear", 10, kNewest, dequantize, "of integers"},
    {"QuantizeLinear", 10, kNewest, quantize,
     "to integers of 2 to 16 bits; the gradient passes straight through"},
};

}  // namespace

std::span<const ImportRule> quantize_rules() { return kQuantizeRules; }

}  // namespace piper::onnx_import
