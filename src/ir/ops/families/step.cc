// What a step does once: StepSum, the sum of contributions over uses, microbatches and replicas,
// which the Dag expands (no backend has it); and the scalars of the update: norms, clipping,
// learning rate, loss scale, step counters. All f64 but the counters.
//   SumSquares{parts?}(x) -> f64[]: of the flat elements; of `parts` runs of ceil(elements / parts)
//     each, the last ones shorter, the sums of the runs added in order.
//   NotFinite(norm) -> bool: whether the step is skipped.
//   LearningRate{base, rate}(step) -> f64[]: the formula `rate` (piper/ir/rate.h) where lr is base.
//   NextStep(step, skip?) -> step + 1, or step itself.
//   LossScale(scale f32[]) -> f64[]: what the loss was multiplied with.
//   NextLossScale{growth, backoff, interval}(scale f32[], good, skip) -> (scale', good'): dynamic
//     loss scaling (Micikevicius et al., Mixed Precision Training, 2018) as torch.amp.GradScaler
//     does it: a skipped step takes the scale times `backoff`, `interval` others in a row take it
//     times `growth`, if that is finite. `good` counts them.
#include <algorithm>

#include "piper/ir/rate.h"
#include "rules.h"

namespace piper {
namespace {

const TensorType kNumber{DType::kF64, {}};
const TensorType kStep{DType::kI64, {}};
const TensorType kSkip{DType::kBool, {}};
const TensorType kScale{DType::kF32, {}};

TypesResult step_sum_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, size_t(-1)));
  for (size_t i = 1; i < use.inputs.size(); ++i) {
    PIPER_TRY(check_type(use, i, "contribution", use.inputs[0]));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

LoopRule step_sum_rule(const OpTypes& use) {
  std::vector<int> all;
  for (size_t i = 0; i < use.inputs.size(); ++i) all.push_back(static_cast<int>(i));
  return pointwise_loops(use, {all});
}

TypesResult squares_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  const int64_t parts = use.attrs.integer("parts", 0);
  if (parts < 0 || parts > int64_t{1} << 48) return fail("{} parts", parts);
  return std::vector<TensorType>{kNumber};
}

LoopRule squares_rule(const OpTypes& use) {
  if (use.attrs.integer("parts", 0) > 0) return whole_loops(use);
  LoopBuilder build;
  build.rule.inputs = {build.letters(use.inputs[0].shape)};
  build.rule.outputs = {{}};
  return build.rule;
}

TypesResult norm_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, size_t(-1)));
  // The inputs are sums of squares one by one, or several in a vector: all are added in order.
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    if (use.inputs[i].shape.size() == 1 && use.inputs[i].dtype == DType::kF64) continue;
    PIPER_TRY(check_type(use, i, "sum of squares", kNumber));
  }
  return std::vector<TensorType>{kNumber};
}

struct Scalar {
  std::string_view what;
  TensorType type;
};
// Checks an op on these scalars.
TypesResult scalars(const OpTypes& use, std::initializer_list<Scalar> inputs,
                    std::vector<TensorType> outputs) {
  PIPER_TRY(check_arity(use, inputs.size(), inputs.size()));
  size_t i = 0;
  for (const Scalar& input : inputs) PIPER_TRY(check_type(use, i++, input.what, input.type));
  return outputs;
}

TypesResult clip_types(const OpTypes& use) { return scalars(use, {{"norm", kNumber}}, {kNumber}); }
TypesResult rate_types(const OpTypes& use) {
  PIPER_ASSIGN(const Rate rate, Rate::parse(use.attrs.text("rate")));
  if (rate.counts_tokens()) return fail("a formula has no word 'tokens'");
  return scalars(use, {{"step", kStep}}, {kNumber});
}
TypesResult not_finite_types(const OpTypes& use) {
  return scalars(use, {{"norm", kNumber}}, {kSkip});
}
TypesResult loss_scale_types(const OpTypes& use) {
  return scalars(use, {{"scale", kScale}}, {kNumber});
}
TypesResult scale_types(const OpTypes& use) {
  return scalars(use, {{"scale", kScale}, {"good steps", kStep}, {"skip", kSkip}}, {kScale, kStep});
}
TypesResult next_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 2));
  PIPER_TRY(check_type(use, 0, "step", kStep));
  if (has_input(use, 1)) PIPER_TRY(check_type(use, 1, "skip", kSkip));
  return std::vector<TensorType>{kStep};
}

LoopRule scalar_rule(const OpTypes& use) { return pointwise_loops(use, {}); }
// Vectors of squares are whole.
LoopRule norm_rule(const OpTypes& use) {
  const auto is_scalar = [](const TensorType& type) { return type.shape.empty(); };
  return std::all_of(use.inputs.begin(), use.inputs.end(), is_scalar) ? scalar_rule(use)
                                                                      : whole_loops(use);
}

OpDef scalar_op(std::string_view name, TypesResult (*types)(const OpTypes&), OpSample sample) {
  OpDef def{.name = name, .types = types, .loops = scalar_rule};
  def.cost = element_cost<1>;
  def.samples = {std::move(sample)};
  return def;
}

}  // namespace

std::vector<OpDef> step_ops() {
  OpDef sum{.name = "StepSum", .types = step_sum_types, .loops = step_sum_rule};
  sum.cost = element_cost<1>;
  sum.in_place = {{0, 0}};
  sum.sums_step = true;
  sum.samples = {{.inputs = {f64({4, 3}), f64({4, 3})}}};
  OpDef squares{.name = "SumSquares", .types = squares_types, .loops = squares_rule};
  squares.cost = element_cost<2>;
  squares.samples = {{.inputs = {f64({4, 3})}},
                     {.inputs = {f64({4, 3})}, .attrs = {{"parts", int64_t{5}}}}};
  OpDef next = scalar_op("NextStep", next_types, {.inputs = {i64({})}, .int_high = 20});
  next.in_place = {{0, 0}};
  next.samples.push_back({.inputs = {i64({}), boolean({})}, .int_high = 20});
  OpDef scale = scalar_op("NextLossScale", scale_types,
                          {.inputs = {kScale, i64({}), boolean({})},
                           .attrs = {{"growth", 2.0}, {"backoff", 0.5}, {"interval", int64_t{2}}}});
  scale.in_place = {{0, 0}, {1, 1}};
  OpDef norm =
      scalar_op("GlobalNorm", norm_types, {.inputs = {f64({}), f64({}), f64({})}, .low = 0.5});
  norm.loops = norm_rule;
  norm.samples.push_back({.inputs = {f64({}), f64({4})}, .low = 0.5});
  OpDef clip = scalar_op("ClipFactor", clip_types,
                         {.inputs = {f64({})}, .attrs = {{"max_norm", 0.75}}, .low = 0.5});
  clip.nonzero = {0};
  // A warm-up, then a cosine.
  const Attrs warm{{"base", 0.5},
                   {"rate",
                    "lr step 4 < step 1 + 4 / step 10 < 3.141592653589793 step 4 - 6 / * cos 1 + "
                    "0.9 * 2 / 0.1 + 0.1 ? ? *"}};
  OpDef rate =
      scalar_op("LearningRate", rate_types, {.inputs = {i64({})}, .attrs = warm, .int_high = 20});
  squares.attributes = {{"parts"}};
  clip.attributes = {{"max_norm", kReal}};
  scale.attributes = {{"growth", kReal}, {"backoff", kReal}, {"interval"}};
  rate.attributes = {{"base", kReal}, {"rate", kText}};
  return {sum,
          squares,
          norm,
          clip,
          rate,
          next,
          scale,
          scalar_op("LossScale", loss_scale_types, {.inputs = {kScale}}),
          scalar_op("NotFinite", not_finite_types, {.inputs = {f64({})}})};
}

}  // namespace piper
