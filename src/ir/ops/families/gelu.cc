// Gelu{approximate: none | tanh}(x), GeluGrad{approximate}(x, dy) -> dx, and
// GeluAndSlope{approximate}(x) -> (y, slope): Gelu's result, and what GeluGrad multiplies dy with.
#include "rules.h"

namespace piper {
namespace {

Status check_approximate(const Attrs& attrs) {
  const std::string text = attrs.text("approximate", "none");
  if (text == "none" || text == "tanh") return ok_status();
  return fail("approximate '{}' is neither 'none' nor 'tanh'", quote_control(text));
}

TypesResult gelu_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_approximate(use.attrs));
  return std::vector<TensorType>{use.inputs[0]};
}

TypesResult both_types(const OpTypes& use) {
  PIPER_ASSIGN(std::vector<TensorType> y, gelu_types(use));
  y.push_back(y[0]);
  return y;
}

TypesResult gelu_grad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_type(use, 1, "dy", use.inputs[0]));
  PIPER_TRY(check_approximate(use.attrs));
  return std::vector<TensorType>{use.inputs[0]};
}

Grads gelu_gradient(Builder& build, const GradientArgs& args) {
  return {build.op1("GeluGrad", {args.inputs[0], args.output_grads[0]}, args.attrs)};
}

LoopRule gelu_rule(const OpTypes& use) { return pointwise_loops(use, {}); }
LoopRule gelu_grad_rule(const OpTypes& use) { return pointwise_loops(use, {{1}}); }

}  // namespace

std::vector<OpDef> gelu_ops() {
  const Attrs exact{{"approximate", "none"}}, tanh{{"approximate", "tanh"}};
  OpDef gelu{.name = "Gelu", .types = gelu_types, .gradient = gelu_gradient, .loops = gelu_rule};
  gelu.cost = element_cost<15>;
  gelu.in_place = {{0, 0}};
  gelu.pointwise = true;
  gelu.samples = {{.inputs = {f64({4, 6})}, .attrs = exact},
                  {.inputs = {f64({4, 6})}, .attrs = tanh}};
  OpDef both{.name = "GeluAndSlope", .types = both_types, .loops = gelu_rule};
  both.cost = element_cost<25>;
  both.in_place = {{1, 0}};
  both.samples = gelu.samples;
  both.nonzero = {1};
  OpDef grad{.name = "GeluGrad", .types = gelu_grad_types, .loops = gelu_grad_rule};
  grad.cost = element_cost<25>;
  grad.in_place = {{0, 0}, {0, 1}};
  grad.pointwise = true;
  grad.samples = {{.inputs = {f64({4, 6}), f64({4, 6})}, .attrs = exact},
                  {.inputs = {f64({4, 6}), f64({4, 6})}, .attrs = tanh}};
  gelu.attributes = both.attributes = grad.attributes = {{"approximate", kText}};
  return {gelu, both, grad};
}

}  // namespace piper
