// Comparisons and logic: results are booleans, or integers of which each bit is one; and Where,
// which chooses by one.
#include "rules.h"

namespace piper {
namespace {

TypesResult with_shape(const OpTypes& use, DType dtype) {
  Shape shape = use.inputs[0].shape;
  for (size_t i = 1; i < use.inputs.size(); ++i) {
    std::optional<Shape> wider = broadcast(shape, use.inputs[i].shape);
    if (!wider) return fail("the shapes of {} do not broadcast", operands(use));
    shape = *std::move(wider);
  }
  return std::vector<TensorType>{{dtype, std::move(shape)}};
}

TypesResult equal_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  if (use.inputs[0].dtype != use.inputs[1].dtype) {
    return fail("the operands must be of one type, but are {}", operands(use));
  }
  return with_shape(use, DType::kBool);
}

TypesResult order_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  if (use.inputs[0].dtype != use.inputs[1].dtype || use.inputs[0].dtype == DType::kBool) {
    return fail("the operands must be numbers of one type, but are {}", operands(use));
  }
  return with_shape(use, DType::kBool);
}

template <size_t kInputs>
TypesResult logic_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, kInputs, kInputs));
  for (size_t i = 0; i < kInputs; ++i) {
    if (use.inputs[i].dtype != DType::kBool) {
      return fail("the operands must be bool, but are {}", operands(use));
    }
  }
  return with_shape(use, DType::kBool);
}

TypesResult bits_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  const DType dtype = use.inputs[0].dtype;
  if (dtype != use.inputs[1].dtype || (dtype != DType::kI64 && dtype != DType::kI32)) {
    return fail("the operands must be integers of one type, but are {}", operands(use));
  }
  return with_shape(use, dtype);
}

TypesResult nan_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  return with_shape(use, DType::kBool);
}

TypesResult where_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  if (use.inputs[0].dtype != DType::kBool) {
    return fail("input 0 must be bool, but is {}", to_string(use.inputs[0]));
  }
  if (use.inputs[1].dtype != use.inputs[2].dtype) {
    return fail("inputs 1 and 2 must be of one type, but are {} and {}", to_string(use.inputs[1]),
                to_string(use.inputs[2]));
  }
  return with_shape(use, use.inputs[1].dtype);
}

Grads where_gradient(Builder& build, const GradientArgs& args) {
  const ValueId condition = args.inputs[0], dy = args.output_grads[0];
  const ValueId zero = build.scalar(0, build.type(dy).dtype);
  Grads grads(3);
  for (size_t i : {size_t{1}, size_t{2}}) {
    if (!args.wanted[i]) continue;
    std::vector<ValueId> choice{condition, dy, zero};
    if (i == 2) std::swap(choice[1], choice[2]);
    grads[i] = build.sum_to(build.op1("Where", choice), Shape(build.shape(args.inputs[i])));
  }
  return grads;
}

LoopRule boolean_loops(const OpTypes& use) { return pointwise_loops(use, {}); }
LoopRule where_loops(const OpTypes& use) { return pointwise_loops(use, {{1, 2}}); }

OpDef row(std::string_view name, TypesResult (*types)(const OpTypes&),
          std::vector<OpSample> samples) {
  OpDef def{.name = name, .types = types, .loops = boolean_loops};
  def.cost = element_cost<1>;
  for (int i = 0; i < static_cast<int>(samples[0].inputs.size()); ++i) {
    def.in_place.emplace_back(0, i);
  }
  def.pointwise = true;
  def.samples = std::move(samples);
  return def;
}

}  // namespace

std::vector<OpDef> compare_ops() {
  std::vector<OpDef> ops;
  const OpSample whole{.inputs = {i64({4, 3}), i64({2, 1, 3})}};
  const OpSample real{.inputs = {f64({4, 3}), f64({})}};
  ops.push_back(row("Equal", equal_types, {whole, {.inputs = {boolean({4}), boolean({3, 1})}}}));
  for (const char* name : {"Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
    ops.push_back(row(name, order_types, {whole, real}));
  }
  for (const char* name : {"And", "Or", "Xor"}) {
    ops.push_back(row(name, logic_types<2>, {{.inputs = {boolean({4, 3}), boolean({4, 1})}}}));
  }
  for (const char* name : {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}) {
    OpDef bits = row(name, bits_types, {whole});
    bits.samples[0].int_high = 1000;
    ops.push_back(std::move(bits));
  }
  ops.push_back(row("Not", logic_types<1>, {{.inputs = {boolean({4, 3})}}}));
  ops.push_back(row("IsNaN", nan_types, {{.inputs = {f64({4, 3})}}}));
  OpDef where = row("Where", where_types,
                    {{.inputs = {boolean({4, 3}), f64({4, 3}), f64({4, 3})}},
                     {.inputs = {boolean({4, 1}), f64({2, 4, 3}), f64({})}},
                     {.inputs = {boolean({2, 1, 1, 3}), f64({2, 3}), f64({4, 1, 1})}}});
  where.gradient = where_gradient;
  where.loops = where_loops;
  where.in_place = {{0, 1}, {0, 2}};
  ops.push_back(std::move(where));
  return ops;
}

}  // namespace piper
