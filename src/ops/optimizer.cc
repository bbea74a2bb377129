// One step of an optimizer on one parameter. The gradient is multiplied by `clip` first.
//   Sgd{momentum, dampening, nesterov, weight_decay, count}(p, g, buf?, lr, clip?, step)
//     -> (p', buf'?): PyTorch's, and Momentum of ai.onnx.preview.training 1 (alpha = momentum,
//     beta = 1 - dampening, norm_coefficient = weight_decay). A buffer iff momentum is not 0.
//   AdamW{beta1, beta2, eps, weight_decay, decoupled}(p, g, m, v, lr, clip?, step) -> (p', m', v'):
//     PyTorch's; with decoupled = 0 its Adam, where weight_decay · p joins the gradient.
//   OnnxAdam{beta1, beta2, eps, weight_decay, weight_decay_after, count}(p, g, m, v, lr, clip?,
//     step) -> (p', m', v'): Adam of ai.onnx.preview.training 1, where eps joins the root as it is
//     and p' shrinks by the factor 1 - weight_decay_after.
//   Adagrad{lr_decay, eps, weight_decay, count}(p, g, h, lr, clip?, step) -> (p', h'): both's.
// `count`: the updates of p before step 0 (T of ai.onnx.preview.training).
#include "rules.h"

namespace piper {
namespace {

// Of the operands (p, g, state…, lr, clip?, step) with `states` state tensors.
Status check_update(const OpTypes& use, size_t states) {
  const size_t lr = 2 + states;
  PIPER_TRY(check_float(use, 0));
  if (!use.present[lr] || !use.present[lr + 2]) return fail("learning rate and step are required");
  const TensorType real{DType::kF64, {}};
  for (size_t i = 1; i < lr; ++i) {
    if (has_input(use, i)) PIPER_TRY(check_type(use, i, "of the parameter", use.inputs[0]));
  }
  PIPER_TRY(check_type(use, lr, "learning rate", real));
  if (has_input(use, lr + 1)) PIPER_TRY(check_type(use, lr + 1, "clip factor", real));
  return check_type(use, lr + 2, "step", {DType::kI64, {}});
}

TypesResult sgd_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 6));
  if (use.inputs.size() != 6) return fail("takes 6 inputs, but has {}", use.inputs.size());
  PIPER_TRY(check_update(use, 1));
  const double momentum = use.attrs.real("momentum");
  if (use.present[2] != (momentum != 0)) {
    return fail("momentum {} {} a momentum buffer", momentum,
                use.present[2] ? "does not take" : "needs");
  }
  return std::vector<TensorType>(use.present[2] ? 2 : 1, use.inputs[0]);
}

TypesResult adagrad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 6));
  if (use.inputs.size() != 6) return fail("takes 6 inputs, but has {}", use.inputs.size());
  PIPER_TRY(check_update(use, 1));
  if (!use.present[2]) return fail("needs an accumulator");
  return std::vector<TensorType>(2, use.inputs[0]);
}

TypesResult adam_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 4, 7));
  if (use.inputs.size() != 7) return fail("takes 7 inputs, but has {}", use.inputs.size());
  PIPER_TRY(check_update(use, 2));
  return std::vector<TensorType>(3, use.inputs[0]);
}

// Every element of the parameter on its own: the scalars are broadcast.
LoopRule rule(const OpTypes& use) { return pointwise_loops(use, {}); }

OpSample sgd_sample(double momentum, double dampening, int64_t nesterov, bool clipped) {
  OpSample sample{.inputs = {f64({4, 3}), f64({4, 3}), f64({4, 3}), f64({}), f64({}), i64({})},
                  .attrs = {{"momentum", momentum},
                            {"dampening", dampening},
                            {"nesterov", nesterov},
                            {"weight_decay", 0.1}},
                  .low = 0.1,
                  .high = 1};
  if (momentum == 0) sample.absent.push_back(2);
  if (!clipped) sample.absent.push_back(4);
  return sample;
}

OpSample adam_sample(int64_t decoupled, bool clipped) {
  OpSample sample{
      .inputs = {f64({4, 3}), f64({4, 3}), f64({4, 3}), f64({4, 3}), f64({}), f64({}), i64({})},
      .attrs = {{"beta1", 0.9},
                {"beta2", 0.99},
                {"eps", 1e-6},
                {"weight_decay", 0.1},
                {"decoupled", decoupled}},
      .low = 0.1,
      .high = 1};
  if (!clipped) sample.absent.push_back(5);
  return sample;
}

OpSample onnx_adam_sample(int64_t count, bool clipped) {
  OpSample sample = adam_sample(0, clipped);
  sample.attrs = {{"beta1", 0.9},
                  {"beta2", 0.99},
                  {"eps", 1e-6},
                  {"weight_decay", 0.1},
                  {"weight_decay_after", 0.01},
                  {"count", count}};
  return sample;
}

OpSample adagrad_sample(int64_t count, bool clipped) {
  OpSample sample = sgd_sample(0.9, 0, 0, clipped);
  sample.attrs = {{"lr_decay", 0.1}, {"eps", 1e-6}, {"weight_decay", 0.1}, {"count", count}};
  return sample;
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  OpDef sgd{.name = "Sgd", .types = sgd_types, .loops = rule};
  sgd.cost = element_cost<6>;
  sgd.in_place = {{0, 0}, {1, 2}};
  sgd.samples = {sgd_sample(0, 0, 0, false), sgd_sample(0.9, 0.1, 0, true),
                 sgd_sample(0.9, 0, 1, false)};
  OpDef adam{.name = "AdamW", .types = adam_types, .loops = rule};
  adam.cost = element_cost<20>;
  adam.in_place = {{0, 0}, {1, 2}, {2, 3}};
  adam.samples = {adam_sample(1, true), adam_sample(0, false)};
  OpDef onnx_adam{.name = "OnnxAdam", .types = adam_types, .loops = rule};
  onnx_adam.cost = element_cost<20>;
  onnx_adam.in_place = adam.in_place;
  onnx_adam.samples = {onnx_adam_sample(0, false), onnx_adam_sample(2, true)};
  OpDef adagrad{.name = "Adagrad", .types = adagrad_types, .loops = rule};
  adagrad.cost = element_cost<8>;
  adagrad.in_place = {{0, 0}, {1, 2}};
  adagrad.samples = {adagrad_sample(0, false), adagrad_sample(3, true)};
  return {sgd, adam, onnx_adam, adagrad};
}

}  // namespace piper
