// What an import rule sees of its node: operands, constants, axes, and located errors.
#include <algorithm>

#include "piper/frontend/onnx.h"
#include "rule.h"

namespace piper::onnx_import {

const Val& RuleContext::in(size_t i) const {
  static const Val kNone;
  return i < inputs_.size() ? inputs_[i] : kNone;
}

Error RuleContext::located(std::string text) const {
  std::string where = node.label();
  if (!scope_.empty()) where += fmt::format(" in '{}'", quote_control(scope_));
  return fail("{}: {}", where, std::move(text));
}

// Of an op that the rule emits, whose name the user need not know.
Error RuleContext::located_op(std::string_view op, const Error& error) const {
  std::string text = error.message;
  const std::string prefix = fmt::format("{}: ", op);
  if (op != node.op && text.starts_with(prefix)) text.erase(0, prefix.size());
  return located(std::move(text));
}

Status RuleContext::need(size_t least, size_t most) const {
  if (num_inputs() > most)
    return error("has {} inputs; at most {} are possible", num_inputs(), most);
  for (size_t i = 0; i < std::max(least, num_inputs()); ++i) {
    if (i < least && !has(i)) return error("has no input {}; it needs {}", i, least);
    if (in(i).kind == Val::Kind::kSequence) return error("input {} is a sequence, not a tensor", i);
  }
  return ok_status();
}

void RuleContext::pass_over(std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names) {
    if (const OnnxAttr* attr = node.find(name))
      read_[static_cast<size_t>(attr - node.attrs.data())] = true;
  }
}

Status RuleContext::all_read() const {
  // What memory an op may write over, how floats of 8 bits are made, which outputs are wanted.
  constexpr std::string_view kHints[] = {"consumed_inputs", "saturate", "round_mode",
                                         "output_sequence"};
  // Types in which an op computes; float is what all have.
  constexpr std::string_view kTypes[] = {"stash_type", "softmax_precision", "precision"};
  const auto is_of = [](const auto& names, const std::string& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  for (size_t k = 0; k < read_.size(); ++k) {
    const OnnxAttr& attr = node.attrs[k];
    const auto* number = std::get_if<int64_t>(&attr.value);
    if (read_[k] || is_of(kHints, attr.name)) continue;
    if (is_of(kTypes, attr.name) && number && *number <= code_of_type("float")) continue;
    return error("its attribute '{}' is not supported", quote_control(attr.name));
  }
  return ok_status();
}

std::string RuleContext::called() const {
  const auto call = parse_call(find_metadata(node.metadata, "pkg.torch.onnx.fx_node"));
  return call ? call->function : "";
}

Result<std::vector<int64_t>> RuleContext::constant_integers(size_t i, std::string_view role) const {
  const Val& val = in(i);
  if (!val.is_constant()) {
    return error("its {} must be known when the model is compiled, but depends on the data", role);
  }
  if (info(val.dtype).is_float || val.rank() > 1)
    return error("its {} must be a list of integers", role);
  if (num_elements(val.shape) > (int64_t{1} << 20)) return error("its {} is too long", role);
  return read_integers(expand_bytes(val.data, val.stored, val.shape, val.dtype), val.dtype);
}

Result<std::optional<std::vector<int64_t>>> RuleContext::integers_or_input(std::string_view attr,
                                                                           size_t input) const {
  if (has_attr(attr)) return std::optional(integers(attr));
  if (!has(input)) return std::optional<std::vector<int64_t>>();
  PIPER_ASSIGN(std::vector<int64_t> values, constant_integers(input, attr));
  return std::optional(std::move(values));
}

Result<size_t> RuleContext::axis(int64_t value, size_t rank) const {
  const int64_t n = static_cast<int64_t>(rank);
  if (value < -n || value >= n) return error("axis {} is outside a value of {} dims", value, rank);
  return static_cast<size_t>(value < 0 ? value + n : value);
}

Result<std::vector<int64_t>> RuleContext::axes(std::vector<int64_t> values, size_t rank) const {
  for (int64_t& value : values) {
    PIPER_ASSIGN(const size_t a, axis(value, rank));
    value = static_cast<int64_t>(a);
  }
  std::sort(values.begin(), values.end());
  if (std::adjacent_find(values.begin(), values.end()) != values.end())
    return error("an axis is named twice");
  return values;
}

Status RuleContext::check_shape(const Shape& shape) const {
  if (shape.size() > 16) return error("a shape of {} dims; at most 16 are supported", shape.size());
  for (const int64_t d : shape) {
    if (d < 0) return error("a negative dim in the shape {}", to_string(shape));
  }
  if (!elements_of(shape)) return error("the shape {} is too large", to_string(shape));
  return ok_status();
}

Result<Val> RuleContext::exact(const Val& val) {
  Result<Val> out = emit.exact(val);
  if (!out) return located(out.error().message);
  return out;
}

Result<Vals> RuleContext::ops(std::string_view name, const Vals& inputs, const Attrs& attrs) {
  Vals held;
  for (const Val& v : inputs) {
    PIPER_ASSIGN(Val e, exact(v));
    held.push_back(std::move(e));
  }
  Result<Vals> out = emit.op(name, held, attrs);
  if (!out) return located_op(name, out.error());
  return out;
}

Result<Val> RuleContext::op(std::string_view name, const Vals& inputs, const Attrs& attrs) {
  PIPER_ASSIGN(Vals made, ops(name, inputs, attrs));
  return std::move(made[0]);
}

Result<Val> RuleContext::cast(const Val& x, DType dtype) {
  if (x.dtype == dtype) return x;
  return pointwise("Cast", {x}, {{"to", std::string(info(dtype).name)}});
}

Result<Val> RuleContext::pointwise(std::string_view name, const Vals& inputs, const Attrs& attrs) {
  Result<Val> out = emit.pointwise(name, inputs, attrs);
  if (!out) return located_op(name, out.error());
  return out;
}

Result<Val> RuleContext::root(const Val& x) { return power(x, 0.5); }

Result<Val> RuleContext::power(const Val& x, double exponent) {
  PIPER_ASSIGN(const Val none, pointwise("Equal", {x, number(0, x)}));
  PIPER_ASSIGN(Val y, pointwise("Where", {none, number(1, x), x}));
  PIPER_ASSIGN(
      y, exponent == 0.5 ? pointwise("Sqrt", {y}) : pointwise("Pow", {y, number(exponent, y)}));
  return pointwise("Where", {none, number(0, x), y});
}

Result<Val> RuleContext::expand(const Val& x, const Shape& shape) {
  if (broadcast_shapes(x.shape, shape) != shape)
    return error("{} cannot be expanded to {}", to_string(x.shape), to_string(shape));
  Shape same_rank(shape.size() - x.rank(), 1);
  same_rank.insert(same_rank.end(), x.shape.begin(), x.shape.end());
  PIPER_ASSIGN(Val out, reshape(x, same_rank));
  out.shape = shape;
  return out;
}

Result<Val> RuleContext::reshape(const Val& x, const Shape& shape) {
  if (shape == x.shape) return x;
  if (x.is_constant() && num_elements(x.stored) == 1 && num_elements(shape) > 0) {
    return Val{x.kind, x.dtype, shape, Shape(shape.size(), 1), {}, x.data, {}, x.narrow, x.exact};
  }
  // Where only ones come or go, what is broadcast stays so.
  auto no_ones = [](const Shape& s) {
    Shape out;
    std::copy_if(s.begin(), s.end(), std::back_inserter(out), [](int64_t d) { return d != 1; });
    return out;
  };
  Val from = x;
  Shape stored = shape;
  if (x.is_broadcast() && no_ones(x.shape) == no_ones(shape)) {
    size_t k = 0;
    for (int64_t& d : stored) {
      if (d == 1) continue;
      while (x.shape[k] == 1) ++k;
      d = x.stored[k++];
    }
  } else {
    PIPER_ASSIGN(from, exact(x));
  }
  Val out = from;
  out.shape = shape;
  out.stored = stored;
  if (from.is_constant()) {
    out = constant_val(x.dtype, stored, from.data);
    out.shape = shape;
    return out;
  }
  Result<Vals> made = emit.op("Reshape", {from}, {{"shape", stored}});
  if (!made) return located(made.error().message);
  out.id = (*made)[0].id;
  return out;
}

Result<Val> RuleContext::transpose(const Val& x, const std::vector<int64_t>& perm) {
  Val out = x;
  out.shape = permuted(x.shape, perm);
  out.stored = permuted(x.stored, perm);
  if (std::is_sorted(perm.begin(), perm.end())) return out;
  if (x.is_constant()) {
    out.data = permute_bytes(x.data, x.stored, perm, x.dtype);
    out.exact = {};
    return out;
  }
  Result<Vals> made = emit.op("Transpose", {x}, {{"perm", perm}});
  if (!made) return located(made.error().message);
  out.id = (*made)[0].id;
  return out;
}

Result<Val> RuleContext::slice(const Val& x, const std::vector<int64_t>& starts,
                               const std::vector<int64_t>& steps, const Shape& shape) {
  // Along a broadcast dim every slice is the same.
  std::vector<int64_t> begin = starts, end(x.rank()), step = steps;
  Shape stored = shape;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (x.stored[d] == 1 && x.shape[d] != 1 && shape[d] > 0) {
      begin[d] = 0;
      step[d] = 1;
      stored[d] = 1;
    }
    // The end is one beyond the last element taken.
    if (stored[d] > 0) end[d] = begin[d] + (stored[d] - 1) * step[d] + (step[d] > 0 ? 1 : -1);
    if (stored[d] == 0) end[d] = begin[d];
  }
  Val out = x;
  out.shape = shape;
  out.stored = stored;
  if (stored == x.stored && std::all_of(step.begin(), step.end(), [](int64_t s) { return s == 1; }))
    return out;
  if (x.is_constant()) {
    Val part =
        constant_val(x.dtype, stored, slice_bytes(x.data, x.stored, begin, step, stored, x.dtype));
    part.shape = shape;
    return part;
  }
  Result<Vals> made = emit.op("Slice", {x}, {{"starts", begin}, {"ends", end}, {"steps", step}});
  if (!made) return located(made.error().message);
  out.id = (*made)[0].id;
  return out;
}

Result<Val> RuleContext::part(const Val& x, size_t axis, int64_t start, int64_t count) {
  if (start < 0 || count < 0 || count > x.shape[axis] - start)
    return error("wants elements [{}, {}) of dim {} of {}", start, start + count, axis,
                 to_string(x.shape));
  Shape shape = x.shape;
  shape[axis] = count;
  std::vector<int64_t> starts(x.rank(), 0);
  starts[axis] = start;
  return slice(x, starts, std::vector<int64_t>(x.rank(), 1), shape);
}

Result<Val> second_operand(RuleContext& c) {
  const Val &a = c.in(0), &b = c.in(1);
  if (c.opset < 7) c.pass_over({"axis"});
  if (c.opset >= 7 || c.integer("broadcast", 0) == 0 || b.rank() > a.rank()) return b;
  const auto rest = static_cast<int64_t>(a.rank() - b.rank());
  const int64_t axis = c.integer("axis", rest);
  const int64_t at = axis < 0 ? axis + static_cast<int64_t>(a.rank()) : axis;
  if (at < 0 || at > rest)
    return c.error("{} does not fit {} from dim {} on", to_string(b.shape), to_string(a.shape),
                   axis);
  Shape shape = b.shape;
  shape.resize(a.rank() - static_cast<size_t>(at), 1);
  return c.reshape(b, shape);
}

namespace {

// Returns the first of the dims that are one row; it may be after the last dim.
Result<int64_t> axis_of_flattening(RuleContext& c, const Val& x) {
  const auto rank = static_cast<int64_t>(x.rank());
  const int64_t named = c.integer("axis", 1);
  const int64_t axis = named < 0 ? named + rank : named;
  if (axis < 0 || axis > rank)
    return c.error("axis {} is outside a value of {} dims", named, x.rank());
  return axis;
}

}  // namespace

Result<Val> along_axis(RuleContext& c, Result<Val> (*of)(RuleContext&, const Val&, size_t axis)) {
  constexpr int64_t kOneAxis = 13;  // the opset from which it is
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  if (c.opset >= kOneAxis) {
    PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), x.rank()));
    return of(c, x, axis);
  }
  // An axis after the last dim leaves a dim of one.
  PIPER_ASSIGN(const int64_t axis, axis_of_flattening(c, x));
  if (axis + 1 == static_cast<int64_t>(x.rank())) return of(c, x, static_cast<size_t>(axis));
  const Shape rest(x.shape.begin() + axis, x.shape.end());
  Shape flat(x.shape.begin(), x.shape.begin() + axis);
  flat.push_back(num_elements(rest));
  PIPER_ASSIGN(const Val rows, c.reshape(x, flat));
  PIPER_ASSIGN(const Val made, of(c, rows, static_cast<size_t>(axis)));
  return c.reshape(made, x.shape);
}

Result<Val> RuleContext::reduce_sum(const Val& x, const std::vector<int64_t>& axes, bool keepdims) {
  return op("ReduceSum", {x}, {{"axes", axes}, {"keepdims", int64_t{keepdims}}});
}

}  // namespace piper::onnx_import
