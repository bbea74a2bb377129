// The table of optimizers: what strategies say of each.
#include "piper/ir/optimizers.h"

#include <algorithm>

#include "directions.h"

namespace piper {

namespace {

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

size_t count_states(const OpDef& op, const Attrs& attrs) {
  return static_cast<size_t>(op.states) + (attrs.find("ema") ? 1 : 0);
}

std::span<const OptimizerDef> optimizers() {
  static const std::vector<OptimizerDef> made{sgd(),       adam(), adamw(), adagrad(),
                                              onnx_adam(), lion(), muon(),  adafactor()};
  return made;
}

const OptimizerDef& find_optimizer(std::string_view name) {
  const auto found = std::find_if(optimizers().begin(), optimizers().end(),
                                  [&](const OptimizerDef& def) { return def.name == name; });
  PIPER_CHECK(found != optimizers().end(), "there is no optimizer '{}'", name);
  return *found;
}

const OptimizerSetting* OptimizerDef::find(std::string_view key) const {
  for (const OptimizerSetting& setting : settings)
    if (setting.key == key) return &setting;
  return nullptr;
}

Attrs with_defaults(const OptimizerDef& def, const Attrs& given) {
  Attrs all = given;
  for (const OptimizerSetting& setting : def.settings) {
    if (given.find(setting.key)) continue;
    if (setting.form == SettingForm::kBool || setting.form == SettingForm::kCount)
      all.set(std::string(setting.key), static_cast<int64_t>(setting.otherwise));
    else if (setting.form == SettingForm::kWord)
      all.set(std::string(setting.key),
              std::string(setting.words[static_cast<size_t>(setting.otherwise)]));
    else
      all.set(std::string(setting.key), setting.otherwise);
  }
  return all;
}

}  // namespace piper
