// Adds ops to the graph for import rules, and computes those whose operands are constant.
#include <algorithm>
#include <numeric>
#include <utility>

#include "piper/devices/cpu.h"
#include "rule.h"

namespace piper::onnx_import {
namespace {

// Far beyond any memory: rows of experts that are looked up for each token of a large batch are in
// the file, but recognised as an op that does without them.
constexpr int64_t kMaxElements = int64_t{1} << 53;
constexpr size_t kLarge = size_t{1} << 16;  // to be read each time that it is used

bool all_constant(const Vals& inputs) {
  return std::all_of(inputs.begin(), inputs.end(),
                     [](const Val& v) { return !v.present() || v.is_constant(); });
}

std::string content_key(const TensorType& type, const Bytes& data) {
  const std::string_view bytes = as_text(data.span());
  return to_string(type) + (bytes.size() <= 64 ? std::string(bytes) : digest(bytes));
}

OpTypes use_of_vals(const Vals& inputs, const Attrs& attrs) {
  OpTypes use;
  use.attrs = attrs;
  for (const Val& v : inputs) {
    use.present.push_back(v.present());
    use.inputs.push_back(v.present() ? TensorType{v.dtype, v.stored} : TensorType{});
  }
  return use;
}

// Pads a shape with leading ones: what broadcasting does.
Shape padded(const Shape& shape, size_t rank) {
  Shape out(rank - shape.size(), 1);
  out.insert(out.end(), shape.begin(), shape.end());
  return out;
}

void set_update(std::vector<StateUpdate>& updates, ValueId state, ValueId next) {
  const auto known = std::ranges::find(updates, state, &StateUpdate::state);
  if (known == updates.end()) {
    updates.push_back({state, next});
  } else {
    known->next = next;
  }
}

}  // namespace

Val graph_val(const Graph& graph, ValueId id) {
  const TensorType& type = graph.value(id).type;
  return {Val::Kind::kGraph, type.dtype, type.shape, type.shape, id, {}, {}};
}
Val constant_val(DType dtype, Shape shape, Bytes data) {
  auto [stored, bytes] = compress(data, shape, dtype);
  return {Val::Kind::kConstant, dtype, std::move(shape), std::move(stored), {},
          std::move(bytes),     {}};
}

Val integers_val(const std::vector<int64_t>& values) {
  return constant_val(DType::kI64, {static_cast<int64_t>(values.size())}, bytes_of(values));
}

Val number_val(double value, DType dtype) { return numbers_val({value}, {}, dtype); }

Val numbers_val(const std::vector<double>& values, const Shape& shape, DType dtype) {
  Val out = constant_val(DType::kF64, shape, bytes_of(values));
  if (dtype == DType::kF64) return out;
  const Bytes wide = std::exchange(out.data, {});
  std::string data;
  bool rounds = false;
  for (size_t i = 0; i < wide.size / sizeof(double); ++i) {
    const double value = read_number(wide, DType::kF64, i);
    const Bytes one = number_bytes(value, dtype);
    data += as_text(one.span());
    rounds = rounds || read_number(one, dtype, 0) != value;
  }
  out.dtype = dtype;
  out.data = Bytes::copy_of(data.data(), data.size());
  if (rounds && info(dtype).is_float) out.exact = wide;
  return out;
}

Val integer_val(int64_t value) {
  return {Val::Kind::kConstant, DType::kI64, {}, {}, {}, bytes_of<int64_t>({value}), {}};
}

std::optional<int64_t> elements_of(const Shape& shape) {
  int64_t out = 1;
  for (const int64_t d : shape) {
    if (__builtin_mul_overflow(out, d, &out) || out > kMaxElements) return {};
  }
  return out;
}

const Node* Emitter::maker(ValueId id) {
  const NodeId maker = id.valid() ? graph().value(id).producer : NodeId();
  return maker.valid() ? &graph().node(maker) : nullptr;
}

ValueId Emitter::id_of(const Val& val) {
  if (!val.present()) return {};
  if (!val.is_constant()) return val.id;
  const TensorType type{val.dtype, val.stored};
  const std::tuple place(val.data.data, val.exact.data, type.dtype, type.shape);
  if (const auto known = large_.find(place); known != large_.end()) return known->second;
  std::string key = content_key(type, val.data);
  key += as_text(val.exact.span());
  const auto at =
      std::lower_bound(constants_.begin(), constants_.end(), key,
                       [](const auto& entry, const std::string& k) { return entry.first < k; });
  if (at != constants_.end() && at->first == key) return at->second;
  const ValueId id = graph().add_constant("constant", type, val.data);
  graph().value(id).exact = val.exact;
  constants_.insert(at, {std::move(key), id});
  if (val.data.data != nullptr && val.data.size >= kLarge) large_.emplace(place, id);
  return id;
}

Result<Val> Emitter::exact(const Val& val) {
  if (!val.is_broadcast()) return val;
  std::vector<size_t> dims(val.rank());
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = d;
  return exact_dims(val, dims);
}

Result<Val> Emitter::exact_dims(const Val& val, std::span<const size_t> dims) {
  Shape shape = val.stored;
  for (const size_t d : dims) shape[d] = val.shape[d];
  if (shape == val.stored) return val;
  Val out = val;
  out.stored = shape;
  if (!val.is_constant()) {
    PIPER_ASSIGN(Vals made, op("Expand", {val}, {{"shape", shape}}));
    out.id = made[0].id;
    return out;
  }
  const TensorType type{val.dtype, shape};
  PIPER_TRY(take_room(type));
  out.data = expand_bytes(val.data, val.stored, shape, val.dtype);
  out.exact = {};
  return out;
}

Status Emitter::take_room(const TensorType& type) {
  const int64_t bytes = type.bytes();
  if (bytes > largest_) {
    return fail("needs a constant of {}; at most {} are made for a model of this size",
                human_bytes(bytes), human_bytes(largest_));
  }
  left_ -= bytes;
  if (left_ >= 0) return ok_status();
  return fail("needs a constant of {}, and too many are made already", human_bytes(bytes));
}

Result<Val> Emitter::count_to(int64_t n) {
  PIPER_TRY(take_room({DType::kI64, {n}}));
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return integers_val(numbers);
}

Emitter::Draw Emitter::draw(std::optional<uint64_t> own_seed) {
  const uint64_t number = draws_++;
  const PhiloxWords words =
      philox({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32)},
             own_seed.value_or(seed_));
  const uint64_t key = words[0] | static_cast<uint64_t>(words[1]) << 32;
  if (!graph().step.valid()) {
    Value step;
    step.name = "step";
    step.type = {DType::kI64, {}};
    step.kind = ValueKind::kState;
    graph().step = graph().add_value(std::move(step));
  }
  return {integer_val(static_cast<int64_t>(key)), graph_val(graph(), graph().step)};
}

Status Emitter::follow(const Val& state, const Val& now, double momentum) {
  const auto kept = state.kind == Val::Kind::kGraph ? kept_.find(state.id) : kept_.end();
  if (kept == kept_.end()) return ok_status();
  if (now.kind != Val::Kind::kGraph || now.dtype != state.dtype || now.stored != state.stored)
    return fail("cannot update '{}'", quote_control(kept->second.name));
  ValueId& next = kept->second.next;
  const ValueId old = next.valid() ? next : state.id;
  const Pass pass = std::exchange(build_.pass, Pass::kU);
  // Under the name by which the verifier knows what may update the state.
  const ValueId sum = build_.op1("StepSum", {now.id});
  if (!next.valid()) graph().value(sum).name = kept->second.name + ".batch";
  const auto scaled = [&](ValueId value, double factor) {
    return build_.mul(value, build_.scalar(factor, state.dtype));
  };
  if (momentum == 0) {
    next = scaled(sum, 1);  // an infinite state would stay in the sum, as 0 · inf
  } else {
    const ValueId first = scaled(old, momentum), second = scaled(sum, 1 - momentum);
    next = build_.add(first, second);
  }
  set_update(graph().updates, state.id, next);
  build_.pass = pass;
  return ok_status();
}

Result<Vals> Emitter::fold(std::string_view name, const Vals& inputs, const Attrs& attrs) {
  const OpTypes use = use_of_vals(inputs, attrs);
  PIPER_ASSIGN(const std::vector<TensorType> types, find_op(name)->types(use));
  for (const TensorType& type : types) PIPER_TRY(take_room(type));
  std::vector<Bytes> data;
  for (const Val& v : inputs) data.push_back(v.data);
  PIPER_ASSIGN(std::vector<Bytes> results, evaluate_op(name, attrs, use.inputs, data, types));
  Vals out;
  for (size_t i = 0; i < types.size(); ++i) {
    out.push_back(constant_val(types[i].dtype, types[i].shape, std::move(results[i])));
  }
  return out;
}

Result<Vals> Emitter::op(std::string_view name, const Vals& inputs, const Attrs& attrs) {
  PIPER_CHECK(find_op(name) != nullptr, "no op '{}'", name);
  if (!inputs.empty() && all_constant(inputs)) return fold(name, inputs, attrs);
  std::vector<ValueId> ids;
  for (const Val& v : inputs) ids.push_back(id_of(v));
  PIPER_ASSIGN(const std::vector<ValueId> made, build_.try_op(name, std::move(ids), attrs, {}));
  Vals out;
  for (const ValueId id : made) out.push_back(graph_val(graph(), id));
  return out;
}

Result<Val> Emitter::pointwise(std::string_view name, const Vals& inputs, const Attrs& attrs) {
  Shape shape;
  for (const Val& v : inputs) {
    std::optional<Shape> both = broadcast_shapes(shape, v.shape);
    if (!both)
      return fail("the shapes {} and {} do not broadcast", to_string(shape), to_string(v.shape));
    shape = *std::move(both);
  }
  PIPER_ASSIGN(Vals made, op(name, inputs, attrs));
  Val out = std::move(made[0]);
  out.stored = padded(out.stored, shape.size());
  PIPER_CHECK(out.is_constant() || out.stored.size() == build_.shape(out.id).size());
  out.shape = std::move(shape);
  return out;
}

}  // namespace piper::onnx_import
