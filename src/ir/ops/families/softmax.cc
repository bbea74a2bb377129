// Softmax{axis}, LogSoftmax{axis}, and their gradients from the result: (y, dy) -> dx.
#include <cmath>

#include "rules.h"

namespace piper {
namespace {

TypesResult softmax_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_axis(use.attrs, "axis", use.inputs[0].shape.size()));
  return std::vector<TensorType>{use.inputs[0]};
}

TypesResult softmax_grad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_type(use, 1, "dy", use.inputs[0]));
  PIPER_TRY(check_axis(use.attrs, "axis", use.inputs[0].shape.size()));
  return std::vector<TensorType>{use.inputs[0]};
}

Grads softmax_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("SoftmaxGrad", {args.outputs[0], args.output_grads[0]}, args.attrs)};
}
Grads log_softmax_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("LogSoftmaxGrad", {args.outputs[0], args.output_grads[0]}, args.attrs)};
}

LoopRule with_whole_axis(const OpTypes& use, std::vector<std::vector<int>> linear) {
  LoopBuilder build;
  const Dims dims = build.letters(use.inputs[0].shape);
  build.mark_whole(dims[static_cast<size_t>(use.attrs.integer("axis"))][0]);
  build.rule.inputs.assign(use.inputs.size(), dims);
  build.rule.outputs = {dims};
  build.rule.linear = std::move(linear);
  return build.rule;
}
LoopRule softmax_rule(const OpTypes& use) { return with_whole_axis(use, {}); }
LoopRule softmax_grad_rule(const OpTypes& use) { return with_whole_axis(use, {{1}}); }

OpDef forward(std::string_view name, Grads (*gradient)(Builder&, const GradientArgs&)) {
  OpDef def{.name = name, .types = softmax_types, .gradient = gradient, .loops = softmax_rule};
  def.cost = element_cost<15>;
  def.autocast = OpDef::Autocast::kF32;
  def.nonzero = {0};
  def.absent = -INFINITY;
  def.attributes = {{"axis"}};
  def.samples = {{.inputs = {f64({4, 6})}, .attrs = {{"axis", int64_t{1}}}},
                 {.inputs = {f64({2, 3, 4})}, .attrs = {{"axis", int64_t{1}}}}};
  return def;
}

// Returns what the result has where nothing was: no probability, or the least of its logarithms.
OpDef backward(std::string_view name, int flops, double absent) {
  OpDef def{.name = name, .types = softmax_grad_types, .loops = softmax_grad_rule};
  def.absent = absent;
  def.cost = flops > 5 ? element_cost<15> : element_cost<4>;
  def.attributes = {{"axis"}};
  def.samples = {{.inputs = {f64({4, 6}), f64({4, 6})}, .attrs = {{"axis", int64_t{1}}}},
                 {.inputs = {f64({2, 3, 4}), f64({2, 3, 4})}, .attrs = {{"axis", int64_t{1}}}}};
  return def;
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  return {forward("Softmax", softmax_gradient), backward("SoftmaxGrad", 4, 0),
          forward("LogSoftmax", log_softmax_gradient), backward("LogSoftmaxGrad", 15, -INFINITY)};
}

}  // namespace piper
