// The ops of optimizers, and the table of what strategies say of these.
// Each op is one step on one parameter. The gradient is multiplied by `clip` first.
//   Sgd{momentum, dampening, nesterov, weight_decay, count}(p, g, buf?, lr, clip?, step)
//     -> (p', buf'?): PyTorch's, and Momentum of ai.onnx.preview.training 1 (alpha = momentum,
//     beta = 1 - dampening, norm_coefficient = weight_decay). A buffer iff momentum is not 0.
//   AdamW{beta1, beta2, eps, weight_decay, decoupled}(p, g, m, v, lr, clip?, step) -> (p', m', v'):
//     PyTorch's; with decoupled = 0 its Adam, where weight_decay · p joins the gradient.
//   OnnxAdam{beta1, beta2, eps, weight_decay, weight_decay_after, count}(p, g, m, v, lr, clip?,
//     step) -> (p', m', v'): Adam of ai.onnx.preview.training 1, where eps joins the root as it is
//     and p' shrinks by the factor 1 - weight_decay_after.
//   Lion{beta1, beta2, weight_decay}(p, g, m, lr, clip?, step) -> (p', m'): as Chen et al. define
//   it
//     (Symbolic Discovery of Optimization Algorithms, 2023), with decoupled weight decay.
//   Muon{scale, weight_decay, …}(p, d, lr, clip?, step) -> p': p - lr (scale d + weight_decay p),
//     d being the direction that ops before it make of the gradient (muon.cc), `clip` included.
//   Adafactor{weight_decay, …}(p, d, lr, clip?, step) -> p': p - d - lr weight_decay p; the rate is
//     in d (adafactor.cc).
//   Adagrad{lr_decay, eps, weight_decay, count}(p, g, h, lr, clip?, step) -> (p', h'): both's.
// `count`: the updates of p before step 0 (T of ai.onnx.preview.training). All take one more input,
// skip?, a bool: where it is true p and the states keep their values. With the attribute `ema` all
// have one more state after the others, the average a of p: a' = a + (1 - ema)(p' - a), where a is
// p if step is 0. Of a 16-bit p the states are f32. Of f32, all but the average may also be bf16.
// The gradient is of the states' type, or of 16 bits.
#include <algorithm>

#include "directions.h"
#include "piper/ir/optimizers.h"
#include "rules.h"

namespace piper {
namespace {

TensorType state_type(const TensorType& param) {
  return {info(param.dtype).bytes < 4 ? DType::kF32 : param.dtype, param.shape};
}

Status check_states(const OpTypes& use, size_t lr) {
  const TensorType& gradient = use.inputs[1];
  const bool rounded = info(gradient.dtype).is_float && info(gradient.dtype).bytes < 4 &&
                       gradient.shape == use.inputs[0].shape &&
                       state_type(use.inputs[0]).dtype == DType::kF32;
  const TensorType own = state_type(use.inputs[0]);
  for (size_t i = rounded ? 2 : 1; i < lr; ++i) {
    const bool is_moment = i >= 2 && i < lr - (use.attrs.find("ema") ? 1 : 0);
    const bool is_half = is_moment && own.dtype == DType::kF32 &&
                         use.inputs[i] == TensorType{DType::kBF16, own.shape};
    if (has_input(use, i) && !is_half) PIPER_TRY(check_type(use, i, "of the parameter", own));
  }
  return ok_status();
}

// Checks the operands (p, g, state…, lr, clip?, step, skip?) with `states` state tensors.
Status check_update(const OpTypes& use, size_t states) {
  const size_t lr = 2 + states;
  if (use.inputs.size() != lr + 3 && use.inputs.size() != lr + 4)
    return fail("takes {} or {} inputs, but has {}", lr + 3, lr + 4, use.inputs.size());
  PIPER_TRY(check_float(use, 0));
  if (!use.present[lr] || !use.present[lr + 2]) return fail("learning rate and step are required");
  const TensorType real{DType::kF64, {}};
  PIPER_TRY(check_states(use, lr));
  PIPER_TRY(check_type(use, lr, "learning rate", real));
  if (has_input(use, lr + 1)) PIPER_TRY(check_type(use, lr + 1, "clip factor", real));
  if (has_input(use, lr + 3)) PIPER_TRY(check_type(use, lr + 3, "skip", {DType::kBool, {}}));
  return check_type(use, lr + 2, "step", {DType::kI64, {}});
}

// Returns the types of (p', state'…), after a check of all operands. An attribute `ema` adds a
// state, the last.
TypesResult update_types(const OpTypes& use, size_t states, bool has_states = true) {
  const AttrValue* ema = use.attrs.find("ema");
  const size_t all = states + (ema ? 1 : 0);
  PIPER_TRY(check_arity(use, 2, all + 6));
  PIPER_TRY(check_update(use, all));
  for (size_t i = 0; has_states && i < states; ++i)
    if (!use.present[2 + i]) return fail("needs a state");
  if (ema && !use.present[1 + all]) return fail("an average needs a state");
  const double decay = use.attrs.real("ema");
  if (ema && !(decay > 0 && decay < 1)) return fail("an average with the decay {}", decay);
  std::vector<TensorType> made((has_states ? states : 0) + (ema ? 2 : 1),
                               state_type(use.inputs[0]));
  made[0] = use.inputs[0];
  for (size_t i = 0; has_states && i < states; ++i) made[1 + i] = use.inputs[2 + i];
  return made;
}

TypesResult sgd_types(const OpTypes& use) {
  const double momentum = use.attrs.real("momentum");
  PIPER_ASSIGN(std::vector<TensorType> types, update_types(use, 1, momentum != 0));
  if (use.present[2] != (momentum != 0)) {
    return fail("momentum {} {} a momentum buffer", momentum,
                use.present[2] ? "does not take" : "needs");
  }
  return types;
}
TypesResult no_state_types(const OpTypes& use) { return update_types(use, 0); }
TypesResult one_state_types(const OpTypes& use) { return update_types(use, 1); }
TypesResult adam_types(const OpTypes& use) { return update_types(use, 2); }

// Updates every element of the parameter on its own: the scalars are broadcast.
LoopRule optimizer_rule(const OpTypes& use) { return pointwise_loops(use, {}); }

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

OpSample lion_sample(bool clipped) {
  OpSample sample = sgd_sample(0.9, 0, 0, clipped);
  sample.attrs = {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.1}};
  return sample;
}

OpSample directed_sample(bool clipped) {
  OpSample sample{.inputs = {f64({4, 3}), f64({4, 3}), f64({}), f64({}), i64({})},
                  .attrs = {{"scale", 0.5}, {"weight_decay", 0.1}},
                  .low = 0.1,
                  .high = 1};
  if (!clipped) sample.absent.push_back(3);
  return sample;
}

OpSample relative_sample(bool clipped) {
  OpSample sample = directed_sample(clipped);
  sample.attrs = {{"weight_decay", 0.1}};
  return sample;
}

OpSample with_ema(OpSample sample, std::ptrdiff_t states) {
  sample.inputs.insert(sample.inputs.begin() + 2 + states, f64({4, 3}));
  sample.attrs.set("ema", 0.75);
  return sample;
}

// `moments` says of each state whether it is kept in bf16.
OpSample with_halves(OpSample sample, std::vector<bool> moments) {
  for (TensorType& type : sample.inputs)
    if (type.shape.size() == 2) type.dtype = DType::kF32;
  for (size_t i = 0; i < moments.size(); ++i)
    if (moments[i]) sample.inputs[2 + i].dtype = DType::kBF16;
  return sample;
}

OpSample with_skip(OpSample sample) {
  sample.inputs.push_back(boolean({}));
  return sample;
}

// ---- What strategies say of optimizers ---------------------------------------------------------

using SettingForm = OptimizerSetting::Form;

OptimizerSetting rate(double otherwise, std::string_view doc) {
  return {"lr", SettingForm::kAtLeast0, otherwise, doc};
}
OptimizerSetting decay(double otherwise, std::string_view doc) {
  return {"weight_decay", SettingForm::kAtLeast0, otherwise, doc};
}
OptimizerSetting eps(double otherwise, std::string_view doc) {
  return {"eps", SettingForm::kAbove0, otherwise, doc};
}
// Strategies write both as the list `betas`, described once.
OptimizerSetting beta1(std::string_view doc) { return {"beta1", SettingForm::kBelow1, 0.9, doc}; }
OptimizerSetting beta2(double otherwise) { return {"beta2", SettingForm::kBelow1, otherwise, {}}; }

constexpr std::string_view kRateDoc = "Learning rate. Default 1e-3.",
                           kBetasDoc = "Two decay rates. Default [0.9, 0.999].",
                           kDefault0 = "Default 0.";

OptimizerDef sgd() {
  OptimizerDef def{.name = "sgd", .doc = "Stochastic gradient descent.", .op = "Sgd"};
  def.settings = {rate(1e-3, kRateDoc),
                  {"momentum", SettingForm::kAtLeast0, 0, kDefault0},
                  {"dampening", SettingForm::kUnit, 0, kDefault0},
                  {"nesterov", SettingForm::kBool, 0, "Default false."},
                  decay(0, kDefault0)};
  def.states = {"momentum"};
  def.states_need = "momentum";
  def.counts = true;
  def.need = {"nesterov", "nesterov needs a momentum above 0 and no dampening",
              [](const Attrs& settings) {
                return settings.integer("nesterov") == 0 ||
                       (settings.real("momentum") > 0 && settings.real("dampening") == 0);
              }};
  return def;
}
OptimizerDef adam() {
  return {.name = "adam",
          .doc = "Adam; weight decay is added to the gradient.",
          .op = "AdamW",
          .settings = {rate(1e-3, kRateDoc), beta1(kBetasDoc), beta2(0.999),
                       eps(1e-8, "Default 1e-8."), decay(0, kDefault0)},
          .states = {"exp_avg", "exp_avg_sq"},
          .fixed = {{"decoupled", int64_t{0}}}};
}
OptimizerDef adamw() {
  OptimizerDef def = adam();
  def.name = "adamw", def.doc = "Adam with decoupled weight decay.";
  def.settings.back() = decay(1e-2, "Default 1e-2.");
  def.fixed = {{"decoupled", int64_t{1}}};
  return def;
}
OptimizerDef adagrad() {
  OptimizerDef def{.name = "adagrad", .doc = "Adagrad.", .op = "Adagrad"};
  def.settings = {rate(1e-2, "Learning rate. Default 1e-2."),
                  {"lr_decay", SettingForm::kAtLeast0, 0,
                   "Divides the rate by 1 + step * lr_decay. Default 0."},
                  eps(1e-10, "Default 1e-10."),
                  decay(0, kDefault0),
                  {"initial_accumulator_value", SettingForm::kAtLeast0, 0, kDefault0, true}};
  def.states = {"sum"};
  def.counts = true;
  return def;
}
OptimizerDef onnx_adam() {
  return {.name = "onnx_adam",
          .doc = "Adam as ai.onnx.preview.training defines it.",
          .op = "OnnxAdam",
          .settings =
              {rate(1e-3, kRateDoc),
               beta1(kBetasDoc),
               beta2(0.999),
               eps(1e-6,
                   "Added to the root of the second moment before bias correction. Default 1e-6."),
               decay(0, "norm_coefficient. Default 0."),
               {"weight_decay_after", SettingForm::kUnit, 0, "norm_coefficient_post. Default 0."}},
          .states = {"exp_avg", "exp_avg_sq"},
          .counts = true};
}
OptimizerDef lion() {
  return {.name = "lion",
          .doc = "Lion; steps by the sign of an average, decoupled weight decay.",
          .op = "Lion",
          .settings = {rate(1e-4, "Learning rate. Default 1e-4."),
                       beta1("Two decay rates. Default [0.9, 0.99]."), beta2(0.99),
                       decay(0, kDefault0)},
          .states = {"exp_avg"}};
}
OptimizerDef muon() {
  OptimizerDef def{
      .name = "muon",
      .doc = "Muon; steps by the nearest semi-orthogonal matrix, decoupled weight decay.",
      .op = "Muon",
      .settings = {rate(1e-3, kRateDoc),
                   {"momentum", SettingForm::kBelow1, 0.95, "Default 0.95."},
                   {"nesterov", SettingForm::kBool, 1, "Default true."},
                   {"ns_steps", SettingForm::kCount, 5, "Newton-Schulz iterations. Default 5."},
                   {"adjust_lr",
                    SettingForm::kWord,
                    0,
                    "The factor of the rate: original is sqrt(max(1, rows / columns)), "
                    "match_rms_adamw 0.2 sqrt(max(rows, columns)). Default original.",
                    false,
                    {"original", "match_rms_adamw"}},
                   eps(1e-7, "The least norm that a matrix is divided by. Default 1e-7."),
                   decay(0.1, "Default 0.1.")}};
  def.direction = muon_direction;
  def.least_rank = 2;
  def.of_shape = muon_scale;
  return def;
}
OptimizerDef adafactor() {
  OptimizerDef def{
      .name = "adafactor",
      .doc = "Adafactor, which keeps means of the second moment over rows and columns.",
      .op = "Adafactor",
      .settings = {
          rate(1e-2, "Upper bound of the relative step size. Default 1e-2."),
          {"beta2_decay", SettingForm::kAtMost0, -0.8,
           "Exponent of the step number in the decay of the second moment. Default -0.8."},
          {"eps1", SettingForm::kAtLeast0, 0,
           "Lower bound of the root of the second moment. Default 0: the epsilon of the type."},
          {"eps2", SettingForm::kAbove0, 1e-3,
           "Lower bound of a parameter's root mean square. Default 1e-3."},
          {"d", SettingForm::kAbove0, 1,
           "Root mean square above which steps are scaled down. Default 1."},
          decay(0, kDefault0)}};
  def.direction = adafactor_direction;
  return def;
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  OpDef sgd{.name = "Sgd", .types = sgd_types, .loops = optimizer_rule};
  sgd.cost = element_cost<6>;
  sgd.states = 1;
  sgd.in_place = {{0, 0}, {1, 2}, {2, 3}};  // the last is the average
  sgd.samples = {sgd_sample(0, 0, 0, false), sgd_sample(0.9, 0.1, 0, true),
                 sgd_sample(0.9, 0, 1, false), with_skip(sgd_sample(0.9, 0, 1, true)),
                 with_ema(sgd_sample(0.9, 0, 0, true), 1)};
  OpDef adam{.name = "AdamW", .types = adam_types, .loops = optimizer_rule};
  adam.cost = element_cost<20>;
  adam.states = 2;
  adam.in_place = {{0, 0}, {1, 2}, {2, 3}, {3, 4}};
  adam.samples = {adam_sample(1, true),
                  adam_sample(0, false),
                  with_skip(adam_sample(1, false)),
                  with_ema(adam_sample(1, true), 2),
                  with_skip(with_ema(adam_sample(1, true), 2)),
                  with_halves(adam_sample(1, true), {true, false}),
                  with_halves(with_ema(adam_sample(0, true), 2), {true, true})};
  OpDef onnx_adam{.name = "OnnxAdam", .types = adam_types, .loops = optimizer_rule};
  onnx_adam.cost = element_cost<20>;
  onnx_adam.states = 2;
  onnx_adam.in_place = adam.in_place;
  onnx_adam.samples = {onnx_adam_sample(0, false), onnx_adam_sample(2, true),
                       with_skip(onnx_adam_sample(2, false))};
  OpDef adagrad{.name = "Adagrad", .types = one_state_types, .loops = optimizer_rule};
  adagrad.cost = element_cost<8>;
  adagrad.states = 1;
  adagrad.in_place = sgd.in_place;
  adagrad.samples = {adagrad_sample(0, false), adagrad_sample(3, true),
                     with_skip(adagrad_sample(3, false))};
  OpDef lion{.name = "Lion", .types = one_state_types, .loops = optimizer_rule};
  lion.cost = element_cost<9>;
  lion.states = 1;
  lion.in_place = adagrad.in_place;
  lion.samples = {lion_sample(false), lion_sample(true), with_skip(lion_sample(true))};
  lion.attributes = {{"beta1", kReal}, {"beta2", kReal}, {"weight_decay", kReal}};
  sgd.attributes = {
      {"momentum", kReal}, {"dampening", kReal}, {"weight_decay", kReal}, {"nesterov"}, {"count"}};
  adam.attributes = {
      {"beta1", kReal}, {"beta2", kReal}, {"eps", kReal}, {"weight_decay", kReal}, {"decoupled"}};
  onnx_adam.attributes = {{"beta1", kReal},
                          {"beta2", kReal},
                          {"eps", kReal},
                          {"weight_decay", kReal},
                          {"weight_decay_after", kReal},
                          {"count"}};
  adagrad.attributes = {{"lr_decay", kReal}, {"eps", kReal}, {"weight_decay", kReal}, {"count"}};
  OpDef muon{.name = "Muon", .types = no_state_types, .loops = optimizer_rule};
  muon.cost = element_cost<4>;
  muon.states = 0;
  muon.directed = true;
  muon.in_place = {{0, 0}, {1, 2}};
  muon.samples = {directed_sample(false), with_skip(directed_sample(true)),
                  with_ema(directed_sample(true), 0)};
  muon.attributes = {{"scale", kReal},    {"weight_decay", kReal}, {"momentum", kReal},
                     {"nesterov"},        {"eps", kReal},          {"ns_steps"},
                     {"adjust_lr", kText}};
  OpDef adafactor = muon;
  adafactor.name = "Adafactor";
  adafactor.samples = {relative_sample(true), with_skip(relative_sample(false)),
                       with_ema(relative_sample(true), 0)};
  adafactor.attributes = {{"weight_decay", kReal},
                          {"beta2_decay", kReal},
                          {"eps1", kReal},
                          {"eps2", kReal},
                          {"d", kReal}};
  std::vector<OpDef> all = {sgd, adam, onnx_adam, adagrad, lion, muon, adafactor};
  for (OpDef& op : all) op.attributes.push_back({"ema", kReal});
  return all;
}

std::span<const OptimizerDef> optimizers() {
  static const std::vector<OptimizerDef> made{sgd(),       adam(), adamw(), adagrad(),
                                              onnx_adam(), lion(), muon(),  adafactor()};
  return made;
}

}  // namespace piper
