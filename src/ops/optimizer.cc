// One step of an optimizer on one parameter, as PyTorch defines it. The gradient is multiplied by
// `clip` first.
//   Sgd{momentum, dampening, nesterov, weight_decay}(p, g, buf?, lr, clip?, step) -> (p', buf'?)
//   AdamW{beta1, beta2, eps, weight_decay, decoupled}(p, g, m, v, lr, clip?, step) -> (p', m', v')
// Sgd has a buffer iff momentum is not 0. AdamW with decoupled = 0 is Adam: weight_decay · p joins
// the gradient.
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
  return {sgd, adam};
}

}  // namespace piper
