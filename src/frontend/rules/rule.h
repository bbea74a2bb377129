// What the tables of rules share: a file of rules includes this header and lists its table here.
#pragma once

#include "piper/frontend/rules.h"

namespace piper::onnx_import {

inline constexpr int64_t kNewest = 99;
// Places, steps or windows that a rule lists one by one; a file of a few bytes can ask for more.
inline constexpr int64_t kMostListed = int64_t{1} << 24;

std::span<const ImportRule> math_rules();
std::span<const ImportRule> shape_rules();
std::span<const ImportRule> index_rules();
std::span<const ImportRule> reduce_rules();
std::span<const ImportRule> matmul_rules();
std::span<const ImportRule> norm_rules();
std::span<const ImportRule> loss_rules();
std::span<const ImportRule> attention_rules();
std::span<const ImportRule> join_rules();
std::span<const ImportRule> einsum_rules();
std::span<const ImportRule> pool_rules();
std::span<const ImportRule> conv_rules();
std::span<const ImportRule> activation_rules();
std::span<const ImportRule> scatter_rules();
std::span<const ImportRule> resize_rules();
std::span<const ImportRule> batch_norm_rules();
std::span<const ImportRule> random_rules();
std::span<const ImportRule> recurrent_rules();
std::span<const ImportRule> quantize_rules();
std::span<const ImportRule> sample_rules();
std::span<const ImportRule> signal_rules();
std::span<const ImportRule> microsoft_rules();
std::span<const ImportRule> microsoft_attention_rules();
std::span<const ImportRule> bag_rules();

// Returns input 1 with dims of 1 around it, so that it meets those of input 0 that the attributes
// of opsets before 7 name: from `axis` on, or the last ones. Newer ones broadcast as numpy does.
Result<Val> second_operand(RuleContext& c);
// Returns what `of` makes of input 0 along the attribute `axis`. Before opset 13 that was along all
// dims from there on, taken as one.
Result<Val> along_axis(RuleContext& c, Result<Val> (*of)(RuleContext&, const Val&, size_t axis));

// Returns the weights of an attention as it trains: the exporter leaves their dropout out of the
// file, or writes one that does not train, but the call that it notes has it.
Result<Val> with_attention_dropout(RuleContext& c, const Val& weights);

// Returns x in f32 where it is of f16, whose range a sum leaves before it is divided or its root is
// taken; bf16 has the range of f32. What comes out is cast back.
inline Result<Val> in_range_of_sums(RuleContext& c, const Val& x) {
  return x.dtype == DType::kF16 ? c.cast(x, DType::kF32) : Result<Val>(x);
}

// Says whether what is on a bound has a gradient.
enum class Bound { kPasses, kStops };
// Returns x, and the bounds that are present where it is beyond them.
Result<Val> bounded(RuleContext& c, Val x, const Val& low, const Val& high, Bound at);

// Returns one value as the whole result of a rule.
inline Result<Vals> single(Result<Val> value) {
  if (!value) return std::move(value).error();
  return Vals{*std::move(value)};
}

}  // namespace piper::onnx_import
