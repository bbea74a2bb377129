// Emits nodes whose types are inferred by the table.

#include "piper/base/float16.h"
#include "rules.h"

namespace piper {

namespace {

template <class T>
Bytes one(T number) {
  return Bytes::copy_of(&number, sizeof number);
}

uint16_t half_of(double number, DType dtype) {
  const auto wide = static_cast<float>(number);
  uint16_t half = 0;
  round_to_halves(dtype, &wide, reinterpret_cast<std::byte*>(&half), 1);
  return half;
}

Bytes bytes_of(double number, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return one(static_cast<float>(number));
    case DType::kF64:
      return one(number);
    case DType::kBF16:
    case DType::kF16:
      return one(half_of(number, dtype));
    case DType::kI64:
      return one(static_cast<int64_t>(number));
    case DType::kI32:
      return one(static_cast<int32_t>(number));
    case DType::kBool:
      return one(static_cast<uint8_t>(number != 0));
  }
  return {};
}

}  // namespace

Result<std::vector<ValueId>> Builder::try_op(std::string_view op, std::vector<ValueId> inputs,
                                             Attrs attrs, const SourceSpan& at) {
  const OpDef* def = find_op(op);
  PIPER_CHECK(def != nullptr, "there is no op '{}'", op);
  OpTypes use;
  for (ValueId id : inputs) {
    use.inputs.push_back(id.valid() ? graph_.value(id).type : TensorType{});
    use.present.push_back(id.valid());
  }
  use.attrs = std::move(attrs);
  Result<std::vector<TensorType>> types = def->types(use);
  if (!types) return fail(at, "{}: {}", op, types.error().message);
  constexpr size_t kMostDims = 16;  // as many as loops have letters for
  for (const TensorType& type : *types) {
    if (type.shape.size() > kMostDims) {
      return fail(at, "{}: more than {} dims are not supported", op, kMostDims);
    }
  }
  Node node;
  node.op = op;
  node.name = fmt::format("{}{}_{}", name_prefix, op, graph_.nodes.size());
  node.scope = scope;
  node.attrs = std::move(use.attrs);
  node.inputs = std::move(inputs);
  node.pass = pass;
  node.tags = tags;
  return graph_.node(graph_.add_node(std::move(node), *types)).outputs;
}

std::vector<ValueId> Builder::op(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
  Result<std::vector<ValueId>> made = try_op(op, std::move(inputs), std::move(attrs), {});
  PIPER_CHECK(made.ok(), "{}", made.error().message);
  return *std::move(made);
}

ValueId Builder::op1(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
  return this->op(op, std::move(inputs), std::move(attrs))[0];
}

ValueId Builder::scalar(double value, DType dtype) {
  const Bytes data = bytes_of(value, dtype);
  for (ValueId id : scalars_) {
    const Value& known = graph_.value(id);
    if (known.type.dtype == dtype && as_text(known.data.span()) == as_text(data.span())) return id;
  }
  const std::string name = fmt::format("{}_{}", info(dtype).name, value);
  ValueId id = graph_.find_value(name);  // of an earlier Builder
  const bool fits = id.valid() && graph_.value(id).kind == ValueKind::kConstant &&
                    graph_.value(id).type == TensorType{dtype, {}} &&
                    as_text(graph_.value(id).data.span()) == as_text(data.span());
  if (!fits) id = graph_.add_constant(name, {dtype, {}}, data);
  scalars_.push_back(id);
  return id;
}

ValueId Builder::constant(TensorType type, Bytes data) {
  return graph_.add_constant(name_prefix + "constant", std::move(type), std::move(data));
}

ValueId Builder::matmul(ValueId a, ValueId b, bool trans_a, bool trans_b) {
  Attrs attrs;
  if (trans_a) attrs.set("trans_a", int64_t{1});
  if (trans_b) attrs.set("trans_b", int64_t{1});
  return op1("MatMul", {a, b}, std::move(attrs));
}

ValueId Builder::transpose(ValueId a, std::vector<int64_t> perm) {
  return op1("Transpose", {a}, {{"perm", std::move(perm)}});
}

ValueId Builder::reshape(ValueId a, Shape to) {
  if (shape(a) == to) return a;
  return op1("Reshape", {a}, {{"shape", std::move(to)}});
}

ValueId Builder::expand(ValueId a, Shape to) {
  if (shape(a) == to) return a;
  return op1("Expand", {a}, {{"shape", std::move(to)}});
}

ValueId Builder::reduce_sum(ValueId a, std::vector<int64_t> axes, bool keepdims) {
  if (axes.empty()) return a;
  return op1("ReduceSum", {a}, {{"axes", std::move(axes)}, {"keepdims", int64_t{keepdims}}});
}

ValueId Builder::sum_to(ValueId a, const Shape& to) {
  const Shape from = shape(a);
  if (from == to) return a;
  PIPER_CHECK(from.size() >= to.size(), "sum of {} to {}", to_string(from), to_string(to));
  const size_t lead = from.size() - to.size();
  std::vector<int64_t> axes;
  for (size_t d = 0; d < from.size(); ++d) {
    if (d < lead || (to[d - lead] == 1 && from[d] != 1)) axes.push_back(static_cast<int64_t>(d));
  }
  return reshape(reduce_sum(a, std::move(axes), false), to);
}

}  // namespace piper
