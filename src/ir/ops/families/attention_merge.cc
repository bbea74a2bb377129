// Attention to some keys and to others: what it is of all.
//   AttentionMerge(y, lse, y', lse') -> (y, lse), with y and lse of Attention (attention.cc)
// Parts have the weights exp(lse) of exp(lse) + exp(lse') (Liu et al., 2023, Ring Attention).
// Attributes: tokens_first is that of y; with hidden_score, y is of `parts` times as many keys as
// y': of a query all of whose scores are hidden, lse does not tell how many there are.
#include "rules.h"

namespace piper {
namespace {

TypesResult merged_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 4, 4));
  PIPER_TRY(check_float(use, 0));
  const TensorType &y = use.inputs[0], &lse = use.inputs[1];
  if (y.shape.size() != 4) return fail("parts of four dims, but {}", operands(use));
  const int64_t tokens_first = use.attrs.integer("tokens_first");
  if (tokens_first != 0 && tokens_first != 1)
    return fail("tokens_first is {}, not 0 or 1", tokens_first);
  Shape rows{y.shape[0], y.shape[1], y.shape[2]};
  if (tokens_first == 1) std::swap(rows[1], rows[2]);
  const DType dtype = y.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  PIPER_TRY(check_type(use, 1, "lse", {dtype, std::move(rows)}));
  PIPER_TRY(check_type(use, 2, "y", y));
  PIPER_TRY(check_type(use, 3, "lse", lse));
  return std::vector<TensorType>{y, lse};
}

LoopRule merge_rule(const OpTypes& use) {
  LoopBuilder build;
  const Dims y = build.letters(use.inputs[0].shape);
  Dims lse(y.begin(), y.end() - 1);
  if (use.attrs.integer("tokens_first") != 0) std::swap(lse[1], lse[2]);
  build.mark_whole(y[3][0]);  // lse is of all of it
  build.rule.inputs = {y, lse, y, lse};
  build.rule.outputs = {y, lse};
  build.rule.merges = true;
  return std::move(build.rule);
}

// Returns an attribute of a merge, which is read only where all keys of a query may be hidden.
OpAttribute parts() {
  return {"parts", kInteger, [](const OpDef&, const OpTypes& use) {
            return use.attrs.find("hidden_score") != nullptr;
          }};
}

}  // namespace

std::vector<OpDef> attention_merge_ops() {
  OpDef merge{.name = "AttentionMerge", .types = merged_types, .loops = merge_rule};
  merge.cost = element_cost<4>;
  merge.in_place = {{0, 0}, {1, 1}};
  merge.nonzero = {1};
  for (const int64_t tokens_first : {0, 1}) {
    const TensorType y = f64({2, 3, 4, 5}),
                     lse = f64(tokens_first ? Shape{2, 4, 3} : Shape{2, 3, 4});
    merge.samples.push_back(
        {.inputs = {y, lse, y, lse}, .attrs = {{"tokens_first", tokens_first}}});
    merge.samples.push_back(
        {.inputs = {y, lse, y, lse},
         .attrs = {{"tokens_first", tokens_first}, {"parts", int64_t{3}}, {"hidden_score", -1.0}}});
  }
  merge.attributes = {{"tokens_first"}, parts(), {"hidden_score", kReal}};
  return {merge};
}

}  // namespace piper
