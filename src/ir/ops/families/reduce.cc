// ReduceSum, ReduceMax, ReduceMin, ReduceProd{axes, keepdims}: axes ascending. Equal extremes share
// the adjoint, or the first of them takes it where `first` is 1.
// ReduceExtremeGrad{axes, first}(dy, x, y): dx of ReduceMax and ReduceMin, dy and y with the
// reduced dims kept. ReduceProdGrad{axes}(dy, x): dy times the product of all the others, dy with
// the reduced dims kept.
#include <cmath>

#include "rules.h"

namespace piper {
namespace {

// Returns by dim whether it is reduced.
Result<std::vector<bool>> reduced_dims(const OpTypes& use) {
  const size_t rank = use.inputs[0].shape.size();
  std::vector<bool> reduced(rank);
  const std::vector<int64_t> axes = use.attrs.integers("axes");
  int64_t last = -1;
  for (int64_t axis : axes) {
    if (axis <= last || axis >= static_cast<int64_t>(rank)) {
      return fail("axes {} are not ascending dims of {}", to_string(axes), operands(use));
    }
    reduced[static_cast<size_t>(axis)] = true;
    last = axis;
  }
  return reduced;
}

TypesResult reduce_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  if (use.inputs[0].dtype == DType::kBool) return fail("input 0 must be a number, but is bool");
  PIPER_ASSIGN(const std::vector<bool> reduced, reduced_dims(use));
  const bool keep = use.attrs.integer("keepdims");
  Shape shape;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (!reduced[d]) shape.push_back(use.inputs[0].shape[d]);
    if (reduced[d] && keep) shape.push_back(1);
  }
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

// Returns a result with its reduced dims back, as 1.
ValueId with_kept_dims(Builder& build, const GradientArgs& args, ValueId id) {
  Shape shape = build.shape(args.inputs[0]);
  for (int64_t axis : args.attrs.integers("axes")) shape[static_cast<size_t>(axis)] = 1;
  return build.reshape(id, std::move(shape));
}

Grads reduce_sum_gradient(Builder& build, const GradientArgs& args) {
  const ValueId dy = with_kept_dims(build, args, args.output_grads[0]);
  return {build.expand(dy, Shape(build.shape(args.inputs[0])))};
}

Grads extreme_gradient(Builder& build, const GradientArgs& args) {
  const ValueId y = with_kept_dims(build, args, args.outputs[0]);
  const ValueId dy = with_kept_dims(build, args, args.output_grads[0]);
  Attrs attrs{{"axes", args.attrs.integers("axes")}};
  if (args.attrs.integer("first") != 0) attrs.set("first", int64_t{1});
  return {build.op1("ReduceExtremeGrad", {dy, args.inputs[0], y}, std::move(attrs))};
}

Grads product_gradient(Builder& build, const GradientArgs& args) {
  const ValueId dy = with_kept_dims(build, args, args.output_grads[0]);
  return {
      build.op1("ReduceProdGrad", {dy, args.inputs[0]}, {{"axes", args.attrs.integers("axes")}})};
}

// Checks inputs that have the type of x, input 1, except that the reduced dims are 1.
TypesResult reduce_grad_types(const OpTypes& use, std::initializer_list<size_t> kept_inputs) {
  PIPER_TRY(check_arity(use, kept_inputs.size() + 1, kept_inputs.size() + 1));
  PIPER_TRY(check_float(use, 1));
  TensorType kept = use.inputs[1];
  int64_t last = -1;
  for (int64_t axis : use.attrs.integers("axes")) {
    if (axis <= last || axis >= static_cast<int64_t>(kept.shape.size())) {
      return fail("axes {} are not ascending dims of {}", to_string(use.attrs.integers("axes")),
                  to_string(use.inputs[1]));
    }
    kept.shape[static_cast<size_t>(axis)] = 1;
    last = axis;
  }
  for (const size_t input : kept_inputs)
    PIPER_TRY(check_type(use, input, input == 0 ? "dy" : "y", kept));
  return std::vector<TensorType>{use.inputs[1]};
}
TypesResult product_grad_types(const OpTypes& use) { return reduce_grad_types(use, {0}); }
TypesResult extreme_grad_types(const OpTypes& use) { return reduce_grad_types(use, {0, 2}); }

LoopRule reduce_grad_rule(const OpTypes& use) {
  LoopBuilder build;
  const Dims dims = build.letters(use.inputs[1].shape);
  Dims kept = dims;
  for (int64_t axis : use.attrs.integers("axes")) {
    build.mark_whole(dims[static_cast<size_t>(axis)][0]);
    kept[static_cast<size_t>(axis)] = {};
  }
  build.rule.inputs = {kept, dims};
  if (use.inputs.size() > 2) build.rule.inputs.push_back(kept);
  build.rule.outputs = {dims};
  build.rule.linear = {{0}};
  return build.rule;
}

LoopRule reduce_rule(const OpTypes& use, LoopRule::Reduction reduces) {
  const Result<std::vector<bool>> reduced = reduced_dims(use);
  PIPER_CHECK(reduced.ok(), "loops of an ill-typed reduction");
  const bool keep = use.attrs.integer("keepdims");
  LoopBuilder build;
  const Dims dims = build.letters(use.inputs[0].shape);
  build.rule.inputs = {dims};
  build.rule.outputs.emplace_back();
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!(*reduced)[d]) build.rule.outputs[0].push_back(dims[d]);
    if ((*reduced)[d] && keep) build.rule.outputs[0].push_back({});
    if ((*reduced)[d] && reduces == LoopRule::kNone) build.mark_whole(dims[d][0]);
  }
  build.rule.reduces = reduces;
  if (reduces == LoopRule::kSum) build.rule.linear = {{0}};
  return build.rule;
}
LoopRule reduce_sum_rule(const OpTypes& use) { return reduce_rule(use, LoopRule::kSum); }
LoopRule max_rule(const OpTypes& use) { return reduce_rule(use, LoopRule::kMax); }
LoopRule other_rule(const OpTypes& use) { return reduce_rule(use, LoopRule::kNone); }

OpDef reduction(std::string_view name, Grads (*gradient)(Builder&, const GradientArgs&),
                LoopRule (*loops)(const OpTypes&)) {
  OpDef def{.name = name, .types = reduce_types, .gradient = gradient, .loops = loops};
  def.cost = element_cost<1>;
  auto over = [](std::vector<int64_t> axes, int64_t keepdims) {
    return Attrs{{"axes", axes}, {"keepdims", keepdims}};
  };
  def.samples = {{.inputs = {f64({4, 3})}, .attrs = over({1}, 0)},
                 {.inputs = {f64({4, 2, 3})}, .attrs = over({0, 2}, 0)},
                 {.inputs = {f64({4, 2, 3})}, .attrs = over({1}, 1)},
                 {.inputs = {f64({4, 2})}, .attrs = over({0, 1}, 0)},
                 {.inputs = {i64({4, 2})}, .attrs = over({0}, 0)}};
  return def;
}

}  // namespace

std::vector<OpDef> reduce_ops() {
  OpDef product_grad{.name = "ReduceProdGrad",
                     .types = product_grad_types,
                     .loops = reduce_grad_rule,
                     .cost = element_cost<3>};
  product_grad.samples = {
      {.inputs = {f64({4, 1, 1}), f64({4, 3, 2})}, .attrs = {{"axes", Shape{1, 2}}}},
      {.inputs = {f64({1, 3}), f64({4, 3})}, .attrs = {{"axes", Shape{0}}}}};
  OpDef extreme_grad{.name = "ReduceExtremeGrad",
                     .types = extreme_grad_types,
                     .loops = reduce_grad_rule,
                     .cost = element_cost<3>};
  extreme_grad.samples = {{.inputs = {f64({4, 1, 1}), f64({4, 3, 2}), f64({4, 1, 1})},
                           .attrs = {{"axes", Shape{1, 2}}}},
                          {.inputs = {f64({1, 3}), f64({4, 3}), f64({1, 3})},
                           .attrs = {{"axes", Shape{0}}, {"first", int64_t{1}}}}};
  extreme_grad.absent = -INFINITY;  // of either extreme: no other element equals it
  extreme_grad.absent_in = 1;
  OpDef greatest = reduction("ReduceMax", extreme_gradient, max_rule);
  greatest.absent = -INFINITY;
  OpDef least = reduction("ReduceMin", extreme_gradient, other_rule);
  least.absent = INFINITY;
  OpDef sum = reduction("ReduceSum", reduce_sum_gradient, reduce_sum_rule);
  OpDef product = reduction("ReduceProd", product_gradient, other_rule);
  sum.autocast = product.autocast = OpDef::Autocast::kF32;
  sum.attributes = product.attributes = {{"axes", kIntegers}, {"keepdims"}};
  greatest.attributes = least.attributes = {{"axes", kIntegers}, {"keepdims"}, {"first"}};
  extreme_grad.attributes = {{"axes", kIntegers}, {"first"}};
  product_grad.attributes = {{"axes", kIntegers}};
  return {sum, greatest, least, product, product_grad, extreme_grad};
}

}  // namespace piper
