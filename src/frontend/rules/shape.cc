// Shapes, constants, and ops that move elements without reading them.
#include <algorithm>
#include <cmath>

#include "rule.h"

namespace piper::onnx_import {
namespace {

// ---- Constants ----------------------------------------------------------------------------------

template <class T, class From>
Val list_val(DType dtype, const std::vector<From>& values) {
  std::vector<T> out(values.begin(), values.end());
  return constant_val(dtype, {static_cast<int64_t>(out.size())}, bytes_of(out));
}

Result<Vals> constant(RuleContext& c) {
  if (const auto t = c.read<OnnxTensor>("value")) {
    Val val = constant_val(t->type.dtype, t->type.shape, t->data);
    val.narrow = t->narrow;
    return Vals{std::move(val)};
  }
  if (const auto v = c.read<int64_t>("value_int")) return Vals{integer_val(*v)};
  if (const auto v = c.read<double>("value_float")) return Vals{number_val(*v, DType::kF32)};
  if (const auto v = c.list<int64_t>("value_ints")) return Vals{integers_val(*v)};
  if (const auto v = c.list<double>("value_floats")) return Vals{list_val<float>(DType::kF32, *v)};
  return c.error("has no value of a kind that is supported");
}

Result<Vals> constant_of_shape(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  PIPER_ASSIGN(const Shape shape, c.constant_integers(0, "shape"));
  PIPER_TRY(c.check_shape(shape));
  Val value = number_val(0, DType::kF32);
  if (const auto t = c.read<OnnxTensor>("value")) {
    if (num_elements(t->type.shape) != 1) return c.error("'value' must be a tensor of one element");
    value = Val{Val::Kind::kConstant, t->type.dtype, {}, {}, {}, t->data, {}, t->narrow};
  }
  return single(c.expand(value, shape));
}

Result<Vals> range(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  for (size_t i = 0; i < 3; ++i)
    if (!c.in(i).is_constant() || num_elements(c.in(i).shape) != 1)
      return c.error("its bounds must be known when the model is compiled, but depend on the data");
  const DType dtype = c.in(0).dtype;
  const double start = read_number(c.in(0).data, dtype, 0);
  const double limit = read_number(c.in(1).data, c.in(1).dtype, 0);
  const double delta = read_number(c.in(2).data, c.in(2).dtype, 0);
  const double count = delta == 0 ? -1 : std::max(0.0, std::ceil((limit - start) / delta));
  if (!(count >= 0 && count <= kMostListed)) return c.error("a range of {} elements", count);
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = start + static_cast<double>(i) * delta;
  if (dtype == DType::kI64) return Vals{list_val<int64_t>(dtype, values)};
  if (dtype == DType::kI32) return Vals{list_val<int32_t>(dtype, values)};
  if (dtype == DType::kF32) return Vals{list_val<float>(dtype, values)};
  if (dtype == DType::kF64) return Vals{list_val<double>(dtype, values)};
  return c.error("a range of {} is not supported", info(dtype).name);
}

Result<Vals> shape_of(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const int64_t rank = static_cast<int64_t>(c.in(0).rank());
  auto bound = [&](int64_t v) { return std::clamp(v < 0 ? v + rank : v, int64_t{0}, rank); };
  const int64_t start = bound(c.integer("start", 0)), end = bound(c.integer("end", rank));
  Shape dims;
  for (int64_t d = start; d < end; ++d) dims.push_back(c.in(0).shape[static_cast<size_t>(d)]);
  return Vals{integers_val(dims)};
}

Result<Vals> size_of(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  return Vals{integer_val(num_elements(c.in(0).shape))};
}

Result<Vals> pass_through(RuleContext& c) {  // Identity
  PIPER_TRY(c.need(1));
  return Vals{c.in(0)};
}

// ---- Other shapes of the same elements ----------------------------------------------------------

Result<Vals> reshape(RuleContext& c) {  // before opset 5 the shape is an attribute
  PIPER_TRY(c.need(c.opset < 5 ? 1 : 2, c.opset < 5 ? 1 : 2));
  const Val& x = c.in(0);
  Shape shape = c.integers("shape");
  c.pass_over({"allowzero"});
  if (c.opset >= 5) {
    PIPER_ASSIGN(shape, c.constant_integers(1, "shape"));
  }
  int64_t known = 1, open = -1;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0 && c.integer("allowzero", 0) == 0) {
      if (d >= x.rank())
        return c.error("the shape {} keeps a dim that {} has not", to_string(shape),
                       to_string(x.shape));
      shape[d] = x.shape[d];
    }
    if (shape[d] == -1) {
      if (open >= 0) return c.error("the shape {} leaves two dims open", to_string(shape));
      open = static_cast<int64_t>(d);
    } else if (shape[d] < 0) {
      return c.error("a negative dim in the shape {}", to_string(shape));
    } else if (__builtin_mul_overflow(known, shape[d], &known)) {
      return c.error("the shape {} is too large", to_string(shape));
    }
  }
  const int64_t elements = num_elements(x.shape);
  const Shape named = shape;
  if (open >= 0 && known > 0) shape[static_cast<size_t>(open)] = elements / known;
  if ((open >= 0 && known == 0) || num_elements(shape) != elements) {
    return c.error("{} has {} elements and cannot take the shape {}", to_string(x.shape), elements,
                   to_string(named));
  }
  PIPER_TRY(c.check_shape(shape));
  return single(c.reshape(x, shape));
}

Result<Vals> flatten(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Shape& shape = c.in(0).shape;
  const int64_t rank = static_cast<int64_t>(shape.size());
  int64_t axis = c.integer("axis", 1);
  if (axis < -rank || axis > rank)
    return c.error("axis {} is outside a value of {} dims", axis, rank);
  if (axis < 0) axis += rank;
  const Shape left(shape.begin(), shape.begin() + axis), right(shape.begin() + axis, shape.end());
  return single(c.reshape(c.in(0), {num_elements(left), num_elements(right)}));
}

Result<Vals> squeeze(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  const Shape& shape = c.in(0).shape;
  PIPER_ASSIGN(const auto named, c.integers_or_input("axes", 1));
  Shape out;
  if (!named) {
    std::copy_if(shape.begin(), shape.end(), std::back_inserter(out),
                 [](int64_t d) { return d != 1; });
    return single(c.reshape(c.in(0), out));
  }
  PIPER_ASSIGN(const auto axes, c.axes(*named, shape.size()));
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool cut = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d));
    // PyTorch leaves such a dim, and its newer exporter writes the node all the same.
    if (cut && shape[d] != 1 && c.called() != "aten.squeeze")
      return c.error("dim {} of {} is not 1", d, to_string(shape));
    if (!cut || shape[d] != 1) out.push_back(shape[d]);
  }
  return single(c.reshape(c.in(0), out));
}

Result<Vals> unsqueeze(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  PIPER_ASSIGN(const auto named, c.integers_or_input("axes", 1));
  if (!named) return c.error("names no axes");
  const size_t rank = c.in(0).rank() + named->size();
  if (rank > 16) return c.error("makes {} dims; at most 16 are supported", rank);
  PIPER_ASSIGN(const auto axes, c.axes(*named, rank));
  Shape out = c.in(0).shape;
  for (const int64_t a : axes) out.insert(out.begin() + a, 1);
  return single(c.reshape(c.in(0), out));
}

Result<Vals> transpose(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const size_t rank = c.in(0).rank();
  std::vector<int64_t> perm = c.integers("perm");
  if (!c.has_attr("perm")) {
    for (size_t d = rank; d-- > 0;) perm.push_back(static_cast<int64_t>(d));
  }
  if (perm.size() != rank) return c.error("perm has {} entries for {} dims", perm.size(), rank);
  for (const int64_t d : perm)
    if (d < 0) return c.error("perm has the entry {}", d);
  PIPER_TRY(c.axes(perm, rank));  // each once
  return single(c.transpose(c.in(0), perm));
}

Result<Val> expand_to(RuleContext& c, const Val& x, const Shape& shape) {
  PIPER_TRY(c.check_shape(shape));
  const std::optional<Shape> out = broadcast_shapes(x.shape, shape);
  if (!out) return c.error("{} cannot be expanded to {}", to_string(x.shape), to_string(shape));
  return c.expand(x, *out);
}

Result<Vals> expand(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  PIPER_ASSIGN(const Shape shape, c.constant_integers(1, "shape"));
  return single(expand_to(c, c.in(0), shape));
}

Result<Vals> tile(RuleContext& c) {  // [n·a] = reshape(expand([1,a], [n,a]))
  PIPER_TRY(c.need(c.opset < 6 ? 3 : 2, c.opset < 6 ? 3 : 2));
  const Val& x = c.in(0);
  PIPER_ASSIGN(Shape repeats, c.constant_integers(1, "repeats"));
  if (c.opset < 6) {  // of one axis
    PIPER_ASSIGN(const auto named, c.constant_integers(2, "axis"));
    if (repeats.size() != 1 || named.size() != 1) return c.error("repeats along more than an axis");
    PIPER_ASSIGN(const size_t axis, c.axis(named[0], x.rank()));
    const int64_t times = repeats[0];
    repeats.assign(x.rank(), 1);
    repeats[axis] = times;
  }
  if (repeats.size() != x.rank())
    return c.error("has {} repeats for {} dims", repeats.size(), x.rank());
  PIPER_TRY(c.check_shape(repeats));
  Shape split, full, out;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (repeats[d] != 1 && x.shape[d] != 1) {
      split.push_back(1);
      full.push_back(repeats[d]);
    }
    split.push_back(x.shape[d]);
    full.push_back(x.shape[d] == 1 ? repeats[d] : x.shape[d]);
    int64_t dim = 0;
    if (__builtin_mul_overflow(x.shape[d], repeats[d], &dim))
      return c.error("its result is too large");
    out.push_back(dim);
  }
  PIPER_TRY(c.check_shape(out));
  PIPER_ASSIGN(const Val parts, c.reshape(x, split));
  PIPER_ASSIGN(const Val repeated, expand_to(c, parts, full));
  return single(c.reshape(repeated, out));
}

// Makes ones on a diagonal, in the shape of the input.
Result<Vals> eye_like(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  if (x.rank() != 2) return c.error("needs a matrix, got {}", to_string(x.shape));
  if (num_elements(x.shape) > kMostListed) return c.error("its result is too large");
  const std::optional<DType> dtype =
      c.has_attr("dtype") ? dtype_of_code(c.integer("dtype", 0)) : std::optional(x.dtype);
  if (!dtype) return c.error("elements of {} are not supported", type_name(c.integer("dtype", 0)));
  const int64_t k = std::clamp(c.integer("k", 0), -x.shape[0], x.shape[1]);
  std::vector<int32_t> ones(static_cast<size_t>(num_elements(x.shape)));
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    if (i + k >= 0 && i + k < x.shape[1]) ones[static_cast<size_t>(i * x.shape[1] + i + k)] = 1;
  }
  const Val made = constant_val(DType::kI32, x.shape, bytes_of(ones));
  PIPER_ASSIGN(Val y, c.cast(made, *dtype));
  y.narrow = c.has_attr("dtype") ? narrow_of_code(c.integer("dtype", 0)) : x.narrow;
  return Vals{std::move(y)};
}

constexpr ImportRule kShapeRules[] = {
    {"Constant", 1, kNewest, constant},
    {"ConstantOfShape", 9, kNewest, constant_of_shape, "of a known shape"},
    {"EyeLike", 9, kNewest, eye_like},
    {"Expand", 8, kNewest, expand, "to a known shape"},
    {"Flatten", 1, kNewest, flatten},
    {"Identity", 1, kNewest, pass_through},
    {"Range", 11, kNewest, range, "of known bounds"},
    {"Reshape", 1, kNewest, reshape, "to a known shape"},
    {"Shape", 1, kNewest, shape_of},
    {"Size", 1, kNewest, size_of},
    {"Squeeze", 1, kNewest, squeeze},
    {"Tile", 1, kNewest, tile, "by known repeats"},
    {"Transpose", 1, kNewest, transpose},
    {"Unsqueeze", 1, kNewest, unsqueeze},
};

}  // namespace

std::span<const ImportRule> shape_rules() { return kShapeRules; }

}  // namespace piper::onnx_import
