// How a tensor of the file is derived from a parameter, and the inverse of that.
#include "derivation.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "piper/frontend/rules.h"

namespace piper::onnx_import {
namespace {

constexpr int64_t kOpset = 24;

OnnxTensor integers(const std::vector<int64_t>& values) {
  return {"", {DType::kI64, {static_cast<int64_t>(values.size())}}, bytes_of(values)};
}

Step make_step(std::string op, const Shape& from, std::vector<OnnxTensor> operands = {}) {
  Step step{.node = {.op = std::move(op), .outputs = {""}}, .operands = std::move(operands)};
  step.node.inputs.resize(1 + step.operands.size());
  step.from = from;
  return step;
}

// Undoes y = f(x), where y tells x.
struct Inverse {
  std::string_view op;
  double (*x)(double y);
};
constexpr Inverse kInverses[] = {
    {"Neg", [](double y) { return -y; }},
    {"Exp", [](double y) { return std::log(y); }},
    {"Log", [](double y) { return std::exp(y); }},
    {"Sigmoid", [](double y) { return std::log(y) - std::log1p(-y); }},
    {"Tanh", [](double y) { return std::atanh(y); }},
    {"Softplus", [](double y) { return y > 40 ? y : std::log(std::expm1(y)); }},
    {"Reciprocal", [](double y) { return 1 / y; }},
    {"Sqrt", [](double y) { return y * y; }},
};

// Undoes value + c, value - c, c - value, value · c and value / c.
std::optional<double> undo_literal(const Step& step, double y) {
  const OnnxTensor& literal = step.operands[0];
  const double c = read_number(literal.data, literal.type.dtype, 0);
  const std::string& op = step.node.op;
  if (op == "Add") return y - c;
  if (op == "Sub") return step.last ? c - y : y + c;
  if (op == "Mul") return y / c;
  if (op == "Div") return step.last ? c / y : y * c;
  return {};
}

std::optional<double> undo(const Step& step, double y) {
  if (step.operands.size() == 1) return undo_literal(step, y);
  for (const Inverse& inverse : kInverses)
    if (inverse.op == step.node.op) return inverse.x(y);
  return {};
}

bool is_layout_step(const Step& step) {
  const std::string& op = step.node.op;
  return op == "Transpose" || op == "Reshape" || op == "Expand";
}

OnnxTensor undo_layout_step(const Step& step, const OnnxTensor& value) {
  TensorType type{value.type.dtype, step.from};
  if (step.node.op == "Reshape") return {"", type, value.data};
  if (step.node.op == "Expand") {
    const size_t rank = value.type.shape.size();
    Shape padded(rank - step.from.size(), 1);
    padded.insert(padded.end(), step.from.begin(), step.from.end());
    const std::vector<int64_t> starts(rank, 0), steps(rank, 1);
    return {"", type, slice_bytes(value.data, value.type.shape, starts, steps, padded, type.dtype)};
  }
  const auto& perm = std::get<std::vector<int64_t>>(step.node.attrs[0].value);
  std::vector<int64_t> back(perm.size());
  for (size_t d = 0; d < perm.size(); ++d)
    back[static_cast<size_t>(perm[d])] = static_cast<int64_t>(d);
  return {"", type, permute_bytes(value.data, value.type.shape, back, value.type.dtype)};
}

OnnxTensor cast_tensor(const OnnxTensor& tensor, DType dtype) {
  OnnxTensor out{tensor.name, {dtype, tensor.type.shape}, {}};
  const auto count = static_cast<size_t>(num_elements(tensor.type.shape));
  std::string bytes;
  for (size_t i = 0; i < count; ++i)
    bytes += as_text(number_bytes(read_number(tensor.data, tensor.type.dtype, i), dtype).span());
  out.data = Bytes::copy_of(bytes.data(), bytes.size());
  return out;
}

Derivation in_double(Derivation derivation) {
  for (Step& step : derivation)
    for (OnnxTensor& operand : step.operands)
      if (info(operand.type.dtype).is_float) operand = cast_tensor(operand, DType::kF64);
  return derivation;
}

double unit(DType dtype) {
  return dtype == DType::kF64   ? std::ldexp(1, -52)
         : dtype == DType::kF32 ? std::ldexp(1, -23)
         : dtype == DType::kF16 ? std::ldexp(1, -10)
                                : std::ldexp(1, -7);
}

// Undoes the steps in f64, from the last one to the first.
Result<OnnxTensor> undo_exactly(const Derivation& derivation, OnnxTensor value) {
  for (size_t s = derivation.size(); s-- > 0;) {
    const Step& step = derivation[s];
    if (is_layout_step(step)) {
      value = undo_layout_step(step, value);
      continue;
    }
    std::vector<double> numbers(static_cast<size_t>(num_elements(value.type.shape)));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const std::optional<double> x = undo(step, read_number(value.data, DType::kF64, i));
      if (!x || value.type.shape != step.from) return fail("{} has no inverse", step.node.op);
      if (!std::isfinite(*x)) return fail("{} was saturated", step.node.op);
      numbers[i] = *x;
    }
    value.data = bytes_of(numbers);
  }
  return value;
}

// Where the function is flat, one value of the file stands for many of the parameter.
Status check_told(const Derivation& derivation, const OnnxTensor& value, const OnnxTensor& exact) {
  constexpr double kMost = 1e-5;
  const OnnxTensor wide = cast_tensor(value, DType::kF64);
  std::vector<double> moved(static_cast<size_t>(num_elements(value.type.shape)));
  for (size_t i = 0; i < moved.size(); ++i)
    moved[i] = read_number(wide.data, DType::kF64, i) * (1 - unit(value.type.dtype) / 2);
  PIPER_ASSIGN(const OnnxTensor other, undo_exactly(derivation, {"", wide.type, bytes_of(moved)}));
  for (size_t i = 0; i < static_cast<size_t>(num_elements(exact.type.shape)); ++i) {
    const double a = read_number(exact.data, DType::kF64, i);
    const double off = std::fabs(a - read_number(other.data, DType::kF64, i));
    if (off > std::max(kMost, unit(value.type.dtype)) * std::max(1.0, std::fabs(a)))
      return fail("{} maps several values to this one", derivation.back().node.op);
  }
  return ok_status();
}

const RuleTable& rule_table() {
  static const RuleTable table;
  return table;
}

std::string step_name(const Step& step) {
  std::string name = step.node.op;
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  return name.starts_with("reduce") ? name.substr(6) : name;
}

std::string with_step(std::string text, const Step& step) {
  if (is_layout_step(step)) return text;
  if (step.operands.size() != 1) return fmt::format("{}({})", step_name(step), text);
  constexpr std::pair<std::string_view, char> kSigns[] = {
      {"Add", '+'}, {"Sub", '-'}, {"Mul", '*'}, {"Div", '/'}, {"Pow", '^'}};
  const OnnxTensor& literal = step.operands[0];
  const double c = read_number(literal.data, literal.type.dtype, 0);
  for (const auto& [op, sign] : kSigns)
    if (op == step.node.op)
      return step.last || op == "Add" || op == "Mul" ? fmt::format("{} {} {}", c, sign, text)
                                                     : fmt::format("{} {} {}", text, sign, c);
  return fmt::format("{}({})", step_name(step), text);
}

}  // namespace

// ---- Steps --------------------------------------------------------------------------------------

Step permute_step(const Shape& from, std::vector<int64_t> perm) {
  Step step = make_step("Transpose", from);
  step.node.attrs.push_back({"perm", std::move(perm)});
  return step;
}
Step reshape_step(const Shape& from, const Shape& to) {
  return make_step("Reshape", from, {integers(to)});
}
Step expand_step(const Shape& from, const Shape& to) {
  return make_step("Expand", from, {integers(to)});
}
Step slice_step(const Shape& from, int64_t axis, int64_t start, int64_t end) {
  return make_step("Slice", from, {integers({start}), integers({end}), integers({axis})});
}
Step tile_step(const Shape& from, const std::vector<int64_t>& times) {
  return make_step("Tile", from, {integers(times)});
}
Step gather_step(const Shape& from, OnnxTensor rows) {
  return make_step("Gather", from, {std::move(rows)});
}
Step sum_step(const Shape& from, const std::vector<int64_t>& axes, bool keepdims) {
  Step step = make_step("ReduceSum", from, {integers(axes)});
  step.node.attrs.push_back({"keepdims", int64_t{keepdims}});
  return step;
}
Step function_step(std::string op, const Shape& from) { return make_step(std::move(op), from); }
Step literal_step(std::string op, const Shape& from, OnnxTensor literal, bool last) {
  Step step = make_step(std::move(op), from, {std::move(literal)});
  step.last = last;
  return step;
}
Derivation transposition(const Shape& from) { return {permute_step(from, {1, 0})}; }
OnnxTensor scalar_literal(double value, DType dtype) {
  return {"", {dtype, {}}, number_bytes(value, dtype)};
}

// ---- What they say ------------------------------------------------------------------------------

bool is_layout(const Derivation& derivation) {
  return std::all_of(derivation.begin(), derivation.end(), is_layout_step);
}

bool is_transpose(const Derivation& derivation) {
  return derivation.size() == 1 && derivation[0].node.op == "Transpose";
}

std::string describe(const Derivation& derivation) {
  if (is_transpose(derivation)) return "transposed";
  if (is_layout(derivation)) return derivation.empty() ? "" : "reshaped";
  std::string text = "w";
  for (const Step& step : derivation) text = with_step(std::move(text), step);
  return text;
}

bool nearly_equal(const OnnxTensor& a, const OnnxTensor& b, double ulps) {
  if (a.type.shape != b.type.shape) return false;
  const auto count = static_cast<size_t>(num_elements(a.type.shape));
  const double rate = ulps * std::max(unit(a.type.dtype), unit(b.type.dtype));
  for (size_t i = 0; i < count; ++i) {
    const double x = read_number(a.data, a.type.dtype, i), y = read_number(b.data, b.type.dtype, i);
    if (!(std::fabs(x - y) <= rate * std::max(std::fabs(x), std::fabs(y)) + 1e-38)) return false;
  }
  return true;
}

// ---- What they do -------------------------------------------------------------------------------

Result<Val> derive(Emitter& emit, const Derivation& derivation, Val parameter) {
  for (const Step& step : derivation) {
    Vals inputs{std::move(parameter)};
    for (const OnnxTensor& t : step.operands)
      inputs.push_back(constant_val(t.type.dtype, t.type.shape, t.data));
    if (step.last) std::rotate(inputs.begin(), inputs.begin() + 1, inputs.end());
    const ImportRule* rule = rule_table().find(step.node, kOpset);
    PIPER_CHECK(rule, "no rule for '{}'", step.node.op);
    RuleContext context(step.node, std::move(inputs), kOpset, "", emit);
    PIPER_ASSIGN(Vals made, rule->rule(context));
    parameter = std::move(made[0]);
  }
  return parameter;
}

Result<OnnxTensor> value_of(const Derivation& derivation, const OnnxTensor& parameter) {
  Graph graph;
  Emitter emit(graph, parameter.type.bytes(), 0, false);
  const TensorType& type = parameter.type;
  PIPER_ASSIGN(Val made,
               derive(emit, derivation, constant_val(type.dtype, type.shape, parameter.data)));
  PIPER_ASSIGN(made, emit.exact(made));
  return OnnxTensor{"", {made.dtype, made.shape}, made.data};
}

Bytes undo_layout(const Derivation& derivation, const OnnxTensor& value) {
  OnnxTensor at = value;
  for (size_t s = derivation.size(); s-- > 0;) at = undo_layout_step(derivation[s], at);
  return at.data;
}

Result<OnnxTensor> parameter_of(const Derivation& derivation, const OnnxTensor& value) {
  const DType dtype = value.type.dtype;
  const Shape& shape = derivation.empty() ? value.type.shape : derivation[0].from;
  if (is_layout(derivation)) return OnnxTensor{"", {dtype, shape}, undo_layout(derivation, value)};
  PIPER_ASSIGN(const OnnxTensor exact, undo_exactly(derivation, cast_tensor(value, DType::kF64)));
  PIPER_TRY(check_told(derivation, value, exact));
  OnnxTensor parameter = cast_tensor(exact, dtype);
  PIPER_ASSIGN(const OnnxTensor again,
               value_of(in_double(derivation), cast_tensor(parameter, DType::kF64)));
  if (!nearly_equal(cast_tensor(again, dtype), value, 2))
    return fail("{} of the value that its inverse gives is another value", describe(derivation));
  return parameter;
}

}  // namespace piper::onnx_import
