// Cross-entropy over the last dim, as a sum: the mean over the whole batch is the sum divided by
// LabelCount, whatever the cut.
//   CrossEntropySum{ignore_index}(logits[…, C], labels[…]) -> (sum, share[…])
//   CrossEntropyGrad{ignore_index}(logits, labels, share, dsum, top[…]?, first?) -> dlogits
//   LabelCount{ignore_index}(labels) -> f32 scalar
// In parts of the classes, from `first` on of `whole`, top the largest logit of a row:
//   CrossEntropyTerms{ignore_index}(logits, labels, top, first?) -> (above[…], chosen[…])
//     above = sum of exp(logit - top), chosen = logit of the label - top
//   CrossEntropyOfTerms{ignore_index}(above, chosen, labels) -> (sum, share[…])
// Logits, and their gradient, may be of 16 bits: computed with in f32, which all else is of then.
// share is the probability of the largest logit. The logarithm of the sum of exponentials would do
// as well, but in f32 it rounds all probabilities of a row, those of 256 classes by up to 2^-22.
#include <cmath>

#include "rules.h"

namespace piper {
namespace {

// 16-bit floats are the only ones of 2 bytes.
bool has_halves(const TensorType& type) { return info(type.dtype).bytes == 2; }

// Returns the type of share, once logits and labels are right.
Result<TensorType> rows_of(const OpTypes& use) {
  PIPER_TRY(check_float(use, 0));
  const TensorType& logits = use.inputs[0];
  if (logits.shape.empty() || logits.shape.back() == 0) {
    return fail("input 0 (logits) must end with a dim of classes, but is {}", to_string(logits));
  }
  TensorType rows{has_halves(logits) ? DType::kF32 : logits.dtype,
                  Shape(logits.shape.begin(), logits.shape.end() - 1)};
  PIPER_TRY(check_type(use, 1, "labels", {DType::kI64, rows.shape}));
  return rows;
}

TypesResult cross_entropy_sum_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_ASSIGN(TensorType rows, rows_of(use));
  return std::vector<TensorType>{{rows.dtype, {}}, rows};
}

TypesResult cross_entropy_grad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 4, 6));
  PIPER_ASSIGN(const TensorType rows, rows_of(use));
  PIPER_TRY(check_type(use, 2, "share", rows));
  PIPER_TRY(check_type(use, 3, "dsum", {rows.dtype, {}}));
  if (has_input(use, 4)) PIPER_TRY(check_type(use, 4, "top", rows));
  PIPER_TRY(check_part(use, 5));
  return std::vector<TensorType>{use.inputs[0]};
}

TypesResult terms_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 4));
  PIPER_ASSIGN(const TensorType rows, rows_of(use));
  PIPER_TRY(check_type(use, 2, "top", rows));
  PIPER_TRY(check_part(use, 3));
  return std::vector<TensorType>{rows, rows};
}

TypesResult of_terms_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  PIPER_TRY(check_float(use, 0));
  const TensorType rows = use.inputs[0];
  PIPER_TRY(check_type(use, 1, "chosen", rows));
  PIPER_TRY(check_type(use, 2, "labels", {DType::kI64, rows.shape}));
  return std::vector<TensorType>{{rows.dtype, {}}, rows};
}

// Returns the steps to the largest logit of a row.
std::vector<OpDef::Step> top_of(const OpTypes& use) {
  const auto last = static_cast<int64_t>(use.inputs[0].shape.size()) - 1;
  std::vector<OpDef::Step> steps{
      {"ReduceMax", {{-1, 0}}, {{"axes", std::vector{last}}, {"keepdims", int64_t{0}}}}};
  if (has_halves(use.inputs[0])) steps.push_back({"Cast", {{0, 0}}, {{"to", "f32"}}});
  return steps;
}

OpDef::Steps sum_apart(const OpTypes& use) {
  OpDef::Steps apart{top_of(use), {}};
  const int top = static_cast<int>(apart.steps.size()) - 1;
  apart.steps.push_back({"CrossEntropyTerms", {{-1, 0}, {-1, 1}, {top, 0}}, use.attrs});
  Attrs of_terms;  // without what is of parts of the classes
  if (const AttrValue* ignored = use.attrs.find("ignore_index"))
    of_terms.set("ignore_index", *ignored);
  apart.steps.push_back({"CrossEntropyOfTerms", {{top + 1, 0}, {top + 1, 1}, {-1, 1}}, of_terms});
  apart.outputs = {{top + 2, 0}, {top + 2, 1}};
  return apart;
}

OpDef::Steps grad_apart(const OpTypes& use) {
  if (has_input(use, 4)) return {};
  OpDef::Steps apart{top_of(use), {}};
  const int top = static_cast<int>(apart.steps.size()) - 1;
  apart.steps.push_back(
      {"CrossEntropyGrad", {{-1, 0}, {-1, 1}, {-1, 2}, {-1, 3}, {top, 0}}, use.attrs});
  apart.outputs = {{top + 1, 0}};
  return apart;
}

TypesResult count_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  if (use.inputs[0].dtype != DType::kI64) {
    return fail("input 0 (labels) must be i64, but is {}", to_string(use.inputs[0]));
  }
  return std::vector<TensorType>{{DType::kF32, {}}};
}

Grads cross_entropy_sum_gradient(Builder& build, const GradientArgs& args) {
  if (args.output_grads[1].valid()) return {};  // share is for the backward op alone
  return {build.op1("CrossEntropyGrad",
                    {args.inputs[0], args.inputs[1], args.outputs[1], args.output_grads[0]},
                    args.attrs),
          ValueId()};
}

struct RowLetters {
  LoopBuilder build;
  Dims logits, rows;
};
RowLetters cross_entropy_letters_of(const OpTypes& use) {
  RowLetters r;
  r.logits = r.build.letters(use.inputs[0].shape);
  r.build.mark_whole(r.logits.back()[0]);
  r.rows.assign(r.logits.begin(), r.logits.end() - 1);
  return r;
}

LoopRule cross_entropy_sum_rule(const OpTypes& use) {
  RowLetters r = cross_entropy_letters_of(use);
  r.build.rule.inputs = {r.logits, r.rows};
  r.build.rule.outputs = {{}, r.rows};
  return r.build.rule;
}

// Classes can be cut where the largest logit is given.
RowLetters cut_letters_of(const OpTypes& use, int first) {
  RowLetters r;
  r.logits = r.build.letters(use.inputs[0].shape);
  r.build.rule.firsts = {{r.logits.back()[0], first}};
  r.rows.assign(r.logits.begin(), r.logits.end() - 1);
  return r;
}

LoopRule cross_entropy_grad_rule(const OpTypes& use) {
  RowLetters r = has_input(use, 4) ? cut_letters_of(use, 5) : cross_entropy_letters_of(use);
  r.build.rule.inputs = {r.logits, r.rows, r.rows, {}};
  if (use.inputs.size() > 4) r.build.rule.inputs.push_back(has_input(use, 4) ? r.rows : Dims{});
  if (use.inputs.size() > 5) r.build.rule.inputs.push_back({});
  r.build.rule.outputs = {r.logits};
  r.build.rule.linear = {{3}};
  return r.build.rule;
}

LoopRule terms_rule(const OpTypes& use) {
  RowLetters r = cut_letters_of(use, 3);
  r.build.rule.inputs = {r.logits, r.rows, r.rows};
  if (use.inputs.size() > 3) r.build.rule.inputs.push_back({});
  r.build.rule.outputs = {r.rows, r.rows};
  return r.build.rule;
}

LoopRule of_terms_rule(const OpTypes& use) {
  LoopBuilder build;
  const Dims rows = build.letters(use.inputs[0].shape);
  build.rule.inputs = {rows, rows, rows};
  build.rule.outputs = {{}, rows};
  return build.rule;
}

LoopRule count_rule(const OpTypes& use) {
  LoopBuilder build;
  build.rule.inputs = {build.letters(use.inputs[0].shape)};
  build.rule.outputs = {{}};
  return build.rule;
}

OpDef::Indices classes(const OpTypes& use) {
  const int64_t extent = use.inputs[0].shape.back();
  return {use.attrs.integer("whole", extent), use.attrs.integer("ignore_index", -100)};
}

}  // namespace

std::vector<OpDef> cross_entropy_ops() {
  const Attrs ignore{{"ignore_index", int64_t{1}}};
  OpDef sum{.name = "CrossEntropySum",
            .types = cross_entropy_sum_types,
            .gradient = cross_entropy_sum_gradient,
            .loops = cross_entropy_sum_rule};
  sum.cost = element_cost<12>;
  sum.apart = sum_apart;
  sum.indices = classes;
  sum.autocast = OpDef::Autocast::kF32;
  sum.absent = -INFINITY;
  sum.nonzero = {0, 1};
  sum.samples = {{.inputs = {f64({6, 5}), i64({6})}, .attrs = ignore},
                 {.inputs = {f64({2, 4, 3}), i64({2, 4})}, .attrs = ignore},
                 {.inputs = {f64({5}), i64({})}, .attrs = {{"ignore_index", int64_t{-100}}}}};
  OpDef grad{.name = "CrossEntropyGrad",
             .types = cross_entropy_grad_types,
             .loops = cross_entropy_grad_rule};
  grad.cost = element_cost<12>;
  grad.apart = grad_apart;
  grad.absent = -INFINITY;
  grad.in_place = {{0, 0}};
  OpDef terms{.name = "CrossEntropyTerms", .types = terms_types, .loops = terms_rule};
  terms.cost = element_cost<12>;
  terms.indices = classes;
  terms.nonzero = {0};
  terms.absent = -INFINITY;
  terms.samples = {
      {.inputs = {f64({2, 4, 6}), i64({2, 4}), f64({2, 4})}, .attrs = ignore, .low = 0.5}};
  OpDef of_terms{.name = "CrossEntropyOfTerms", .types = of_terms_types, .loops = of_terms_rule};
  of_terms.cost = element_cost<12>;
  of_terms.nonzero = {0, 1};
  of_terms.samples = {
      {.inputs = {f64({2, 4}), f64({2, 4}), i64({2, 4})}, .attrs = ignore, .low = 0.5}};
  grad.samples = {{.inputs = {f64({2, 6}), i64({2}), f64({2}), f64({}), f64({2})}, .attrs = ignore},
                  {.inputs = {f64({2, 4, 3}), i64({2, 4}), f64({2, 4}), f64({})}, .attrs = ignore}};
  OpDef count{.name = "LabelCount", .types = count_types, .loops = count_rule};
  count.cost = element_cost<1>;
  count.samples = {{.inputs = {i64({2, 4})}, .attrs = ignore}};
  sum.attributes = of_terms.attributes = count.attributes = {{"ignore_index"}};
  terms.attributes = grad.attributes = {{"ignore_index"}, whole_of_parts()};
  return {sum, terms, of_terms, grad, count};
}

}  // namespace piper
