// What a step does once: StepSum, the sum of contributions over uses, microbatches and replicas,
// which the Dag expands (no backend has it); and the scalars of the update: norms, clipping,
// learning rate, step counter. All f64 but the counter.
//   SumSquares{parts?}(x) -> f64[] or f64[parts]: of the flat elements; of `parts` runs of
//     ceil(elements / parts) each, the last ones shorter.
#include "rules.h"

namespace piper {
namespace {

const TensorType kReal{DType::kF64, {}};
const TensorType kStep{DType::kI64, {}};

TypesResult sum_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, size_t(-1)));
  for (size_t i = 1; i < use.inputs.size(); ++i) {
    PIPER_TRY(check_type(use, i, "contribution", use.inputs[0]));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

LoopRule sum_rule(const OpTypes& use) {
  std::vector<int> all;
  for (size_t i = 0; i < use.inputs.size(); ++i) all.push_back(static_cast<int>(i));
  return pointwise_loops(use, {all});
}

TypesResult squares_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  const int64_t parts = use.attrs.integer("parts", 0);
  if (parts < 0) return fail("{} parts", parts);
  return std::vector<TensorType>{{DType::kF64, parts > 0 ? Shape{parts} : Shape{}}};
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
  // Sums of squares one by one, or several in a vector: all are added in order.
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    if (use.inputs[i].shape.size() == 1 && use.inputs[i].dtype == DType::kF64) continue;
    PIPER_TRY(check_type(use, i, "sum of squares", kReal));
  }
  return std::vector<TensorType>{kReal};
}

TypesResult clip_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_type(use, 0, "norm", kReal));
  return std::vector<TensorType>{kReal};
}

TypesResult rate_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_type(use, 0, "step", kStep));
  return std::vector<TensorType>{kReal};
}

TypesResult next_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_type(use, 0, "step", kStep));
  return std::vector<TensorType>{kStep};
}

LoopRule scalar_rule(const OpTypes& use) { return pointwise_loops(use, {}); }

OpDef scalar_op(std::string_view name, TypesResult (*types)(const OpTypes&), OpSample sample) {
  OpDef def{.name = name, .types = types, .loops = scalar_rule};
  def.cost = element_cost<1>;
  def.samples = {std::move(sample)};
  return def;
}

}  // namespace

std::vector<OpDef> step_ops() {
  OpDef sum{.name = "StepSum", .types = sum_types, .loops = sum_rule};
  sum.cost = element_cost<1>;
  sum.in_place = {{0, 0}};
  sum.samples = {{.inputs = {f64({4, 3}), f64({4, 3})}}};
  OpDef squares{.name = "SumSquares", .types = squares_types, .loops = squares_rule};
  squares.cost = element_cost<2>;
  squares.samples = {{.inputs = {f64({4, 3})}},
                     {.inputs = {f64({4, 3})}, .attrs = {{"parts", int64_t{5}}}}};
  const Attrs warm{{"base", 0.5},
                   {"warmup", int64_t{4}},
                   {"cosine", int64_t{1}},
                   {"total", int64_t{10}},
                   {"min_ratio", 0.1}};
  return {
      sum,
      squares,
      scalar_op("GlobalNorm", norm_types, {.inputs = {f64({}), f64({}), f64({})}, .low = 0.5}),
      scalar_op("ClipFactor", clip_types,
                {.inputs = {f64({})}, .attrs = {{"max_norm", 0.75}}, .low = 0.5}),
      scalar_op("LearningRate", rate_types, {.inputs = {i64({})}, .attrs = warm, .int_high = 20}),
      scalar_op("NextStep", next_types, {.inputs = {i64({})}, .int_high = 20})};
}

}  // namespace piper
