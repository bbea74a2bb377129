// Attention of opset 23, written out in matrix products and a softmax.
#include <cmath>
#include <limits>
#include <numeric>

#include "heads.h"

namespace piper::onnx_import {

Result<Val> split_heads(RuleContext& c, const Val& x, int64_t heads) {
  if (heads < 1 || x.shape[2] % heads != 0)
    return c.error("cannot split {} into {} heads", to_string(x.shape), heads);
  PIPER_ASSIGN(const Val apart, c.reshape(x, {x.shape[0], x.shape[1], heads, x.shape[2] / heads}));
  return c.transpose(apart, {0, 2, 1, 3});
}

Result<Val> joined_heads(RuleContext& c, const Val& x) {
  PIPER_ASSIGN(const Val y, c.transpose(x, {0, 2, 1, 3}));
  return c.reshape(y, {y.shape[0], y.shape[1], y.shape[2] * y.shape[3]});
}

Result<Val> repeat_heads(RuleContext& c, const Val& x, int64_t heads) {
  const int64_t own = x.shape[1];
  if (own == heads) return x;
  if (own < 1 || heads % own != 0) return c.error("{} query heads do not divide by {}", heads, own);
  PIPER_ASSIGN(Val wide, c.reshape(x, {x.shape[0], own, 1, x.shape[2], x.shape[3]}));
  PIPER_ASSIGN(wide, c.expand(wide, {x.shape[0], own, heads / own, x.shape[2], x.shape[3]}));
  return c.reshape(wide, {x.shape[0], heads, x.shape[2], x.shape[3]});
}

namespace {

// Returns by query and key whether the key's number is at most the query's bound, or, `from` it, at
// least: the bound is `first` for the first query, and one more for each that follows.
Result<Val> bounded_keys(RuleContext& c, int64_t queries, int64_t keys, int64_t first, bool from) {
  std::vector<int64_t> bounds(static_cast<size_t>(queries));
  std::iota(bounds.begin(), bounds.end(), first);
  PIPER_ASSIGN(const Val rows, c.reshape(integers_val(bounds), {queries, 1}));
  PIPER_ASSIGN(const Val columns, c.emit.count_to(keys));
  const Val &greater = from ? columns : rows, &less = from ? rows : columns;
  return graph_val(c.emit.graph(), c.emit.build().op1("GreaterOrEqual",
                                                      {c.emit.id_of(greater), c.emit.id_of(less)}));
}

}  // namespace

Result<Val> causal_mask(RuleContext& c, int64_t queries, int64_t keys, int64_t past,
                        int64_t window) {
  // The mask is a comparison: as a constant it would be the largest one where texts are long.
  if (window == 0) return bounded_keys(c, queries, keys, past, false);
  if (queries * keys > (1 << 28)) return c.error("its mask is too large");
  PIPER_TRY(c.emit.take_room({DType::kBool, {queries, keys}}));
  std::vector<uint8_t> mask(static_cast<size_t>(queries * keys));
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t last = std::min(i + past, keys - 1);
    for (int64_t j = window > 0 ? std::max<int64_t>(i + past - window + 1, 0) : 0; j <= last; ++j)
      mask[static_cast<size_t>(i * keys + j)] = 1;
  }
  return constant_val(DType::kBool, {queries, keys}, bytes_of(mask));
}

Result<Val> scaled_scores(RuleContext& c, const Val& q, const Val& k, double scale) {
  const Val root = c.number(std::sqrt(std::abs(scale)), q);
  PIPER_ASSIGN(const Val wide, repeat_heads(c, k, q.shape[1]));
  const Val signed_root = scale < 0 ? c.number(-std::sqrt(-scale), q) : root;
  PIPER_ASSIGN(const Val queries, c.pointwise("Mul", {q, signed_root}));
  PIPER_ASSIGN(Val keys, c.pointwise("Mul", {wide, root}));
  PIPER_ASSIGN(keys, c.transpose(keys, {0, 1, 3, 2}));
  return c.matmul(queries, keys);
}

Result<Val> capped(RuleContext& c, Val scores, double cap) {
  if (!(cap > 0)) return scores;
  PIPER_ASSIGN(scores, c.pointwise("Mul", {scores, c.number(1 / cap, scores)}));
  PIPER_ASSIGN(scores, c.pointwise("Tanh", {scores}));
  return c.pointwise("Mul", {scores, c.number(cap, scores)});
}

namespace {

struct Heads {
  Val q, k, v;        // those of the past included
  int64_t past = 0;   // keys before those of the first query
  bool flat = false;  // they came as [batch, tokens, heads·width], and so goes the result
};

// Puts the past keys and values before the others.
Status add_past_heads(RuleContext& c, Heads& h) {
  if (c.in(4).rank() != 4 || c.in(5).rank() != 4)
    return c.error("needs past keys and values of 4 dims");
  h.past = c.in(4).shape[2];
  PIPER_ASSIGN(h.k, c.op("Concat", {c.in(4), h.k}, {{"axis", int64_t{2}}}));
  PIPER_ASSIGN(h.v, c.op("Concat", {c.in(5), h.v}, {{"axis", int64_t{2}}}));
  return ok_status();
}

Result<Heads> read_heads(RuleContext& c) {
  c.pass_over({"kv_num_heads", "q_num_heads"});
  Heads h{.q = c.in(0), .k = c.in(1), .v = c.in(2), .flat = c.in(0).rank() == 3};
  if (h.flat) {
    const int64_t kv = c.integer("kv_num_heads", 0);
    if (h.k.rank() != 3 || h.v.rank() != 3) return c.error("its operands differ in rank");
    PIPER_ASSIGN(h.q, split_heads(c, h.q, c.integer("q_num_heads", 0)));
    PIPER_ASSIGN(h.k, split_heads(c, h.k, kv));
    PIPER_ASSIGN(h.v, split_heads(c, h.v, kv));
  }
  if (h.q.rank() != 4 || h.k.rank() != 4 || h.v.rank() != 4)
    return c.error("needs operands of 3 or 4 dims");
  if (c.has(4) != c.has(5)) return c.error("has only past keys or only past values");
  if (!c.has(4)) return h;
  PIPER_TRY(add_past_heads(c, h));
  return h;
}

// Hides keys farther from a query's own than opset 25 says, before it and after it; -1: no bound.
// The mask is a comparison, as causal_mask's is.
Result<Val> windowed(RuleContext& c, Val scores, int64_t past, const Val& lowest) {
  const int64_t left = c.integer("left_window_size", -1),
                right = c.integer("right_window_size", -1);
  if (left < -1 || right < -1) return c.error("a window of {} and {} keys", left, right);
  const int64_t queries = scores.shape[2], keys = scores.shape[3];
  if (right >= 0) {
    const int64_t after = std::min(right, keys);
    PIPER_ASSIGN(const Val mask, causal_mask(c, queries, keys, past + after));
    PIPER_ASSIGN(scores, c.pointwise("Where", {mask, scores, lowest}));
  }
  if (left < 0) return scores;
  const int64_t before = std::min(left, past + queries);
  if (past + queries - before > keys)
    return c.error("not supported: a window of {} keys that leaves queries without any", left);
  PIPER_ASSIGN(const Val mask, bounded_keys(c, queries, keys, past - before, true));
  return c.pointwise("Where", {mask, scores, lowest});
}

// Returns the mask, if there is one, for all keys: those that it does not reach are hidden.
Result<Val> whole_mask(RuleContext& c, int64_t keys) {
  const Val& mask = c.in(3);
  if (!mask.present() || mask.rank() == 0 || mask.shape.back() >= keys) return mask;
  Shape rest = mask.shape;
  rest.back() = keys - mask.shape.back();
  const double unseen = mask.dtype == DType::kBool ? 0 : -std::numeric_limits<double>::infinity();
  PIPER_ASSIGN(const Val hidden, c.expand(c.number(unseen, mask), rest));
  return c.op("Concat", {mask, hidden}, {{"axis", static_cast<int64_t>(mask.rank()) - 1}});
}

// Masks scores. `hidden`: the score of a key that a mask of booleans hides.
Result<Val> masked(RuleContext& c, const Val& mask, Val scores, int64_t past, double hidden) {
  const Val lowest = c.number(-std::numeric_limits<float>::infinity(), scores);
  if (c.integer("is_causal", 0) != 0) {
    PIPER_ASSIGN(const Val seen, causal_mask(c, scores.shape[2], scores.shape[3], past));
    PIPER_ASSIGN(scores, c.pointwise("Where", {seen, scores, lowest}));
  }
  PIPER_ASSIGN(scores, windowed(c, scores, past, lowest));
  if (!mask.present()) return scores;
  if (mask.dtype == DType::kBool)
    return c.pointwise("Where", {mask, scores, c.number(hidden, scores)});
  return c.pointwise("Add", {scores, mask});
}

// Returns a finite number, so that a query without keys makes no NaN: its weights become zero after
// the softmax.
double lowest_of(DType dtype) { return dtype == DType::kF16 ? -65504 : -3.3e38; }

// Returns the weights: a row whose keys are all masked weighs none of them.
Result<Val> weights_of(RuleContext& c, const Val& mask, const Val& scores) {
  PIPER_ASSIGN(Val weights, c.op("Softmax", {scores}, {{"axis", int64_t{3}}}));
  PIPER_ASSIGN(weights, with_attention_dropout(c, weights));
  if (!mask.present()) return weights;
  if (mask.dtype == DType::kBool)
    return c.pointwise("Where", {mask, weights, c.number(0, weights)});
  PIPER_ASSIGN(const Val none, c.pointwise("IsNaN", {weights}));
  return c.pointwise("Where", {none, c.number(0, weights), weights});
}

// Returns the scores that `qk_matmul_output_mode` asks for.
Result<Val> shown_scores(RuleContext& c, const Vals& stages) {
  const int64_t mode = c.integer("qk_matmul_output_mode", 0);
  if (mode < 0 || mode >= static_cast<int64_t>(stages.size()))
    return c.error("qk_matmul_output_mode {} is not supported", mode);
  return stages[static_cast<size_t>(mode)];
}

Result<Vals> attention(RuleContext& c) {
  PIPER_TRY(c.need(3));
  for (size_t i = 6; i < c.num_inputs(); ++i) {
    if (c.has(i)) return c.error("its input {} is not supported", i);
  }
  c.pass_over({"qk_matmul_output_mode"});
  PIPER_ASSIGN(const Heads h, read_heads(c));
  const double scale = c.real("scale", 1 / std::sqrt(static_cast<double>(h.q.shape[3])));
  PIPER_ASSIGN(const Val raw, scaled_scores(c, h.q, h.k, scale));
  PIPER_ASSIGN(const Val bent, capped(c, raw, c.real("softcap", 0)));
  PIPER_ASSIGN(const Val mask, whole_mask(c, bent.shape[3]));
  PIPER_ASSIGN(const Val seen, masked(c, mask, bent, h.past, lowest_of(bent.dtype)));
  PIPER_ASSIGN(const Val weights, weights_of(c, mask, seen));
  PIPER_ASSIGN(const Val wide, repeat_heads(c, h.v, h.q.shape[1]));
  PIPER_ASSIGN(Val y, c.matmul(weights, wide));
  if (h.flat) {
    PIPER_ASSIGN(y, joined_heads(c, y));
  }
  Vals out{std::move(y), h.k, h.v};
  if (c.node.outputs.size() > 3) {
    const double infinity = std::numeric_limits<double>::infinity();
    PIPER_ASSIGN(const Val hidden, masked(c, mask, bent, h.past, -infinity));
    PIPER_ASSIGN(Val shown, shown_scores(c, {raw, bent, hidden, weights}));
    out.push_back(std::move(shown));
  }
  return out;
}

// ---- Rotary positions: pairs of a head's elements turned by an angle ----------------------------

Result<Val> last_dims(RuleContext& c, const Val& x, int64_t start, int64_t step, int64_t count) {
  std::vector<int64_t> starts(x.rank(), 0), steps(x.rank(), 1);
  Shape shape = x.shape;
  starts.back() = start;
  steps.back() = step;
  shape.back() = count;
  return c.slice(x, starts, steps, shape);
}

// Computes a·cos - b·sin and b·cos + a·sin.
Result<std::pair<Val, Val>> turned(RuleContext& c, const Val& a, const Val& b, const Val& cos,
                                   const Val& sin) {
  PIPER_ASSIGN(const Val ac, c.pointwise("Mul", {a, cos}));
  PIPER_ASSIGN(const Val bs, c.pointwise("Mul", {b, sin}));
  PIPER_ASSIGN(const Val bc, c.pointwise("Mul", {b, cos}));
  PIPER_ASSIGN(const Val as, c.pointwise("Mul", {a, sin}));
  PIPER_ASSIGN(Val first, c.pointwise("Sub", {ac, bs}));
  PIPER_ASSIGN(Val second, c.pointwise("Add", {bc, as}));
  return std::pair(std::move(first), std::move(second));
}

Status check_tables(RuleContext& c, const Val& cos, const Val& sin, int64_t width) {
  const int64_t half = cos.shape.back();
  if (sin.shape != cos.shape || 2 * half > width)
    return c.error("its tables {} and {} do not fit {} elements", to_string(cos.shape),
                   to_string(sin.shape), width);
  return ok_status();
}

}  // namespace

Result<Val> rotated(RuleContext& c, const Val& x, const Val& cos, const Val& sin,
                    bool interleaved) {
  const int64_t width = x.shape[3], half = cos.shape.back();
  PIPER_TRY(check_tables(c, cos, sin, width));
  PIPER_ASSIGN(const Val a, last_dims(c, x, 0, interleaved ? 2 : 1, half));
  PIPER_ASSIGN(const Val b, last_dims(c, x, interleaved ? 1 : half, interleaved ? 2 : 1, half));
  PIPER_ASSIGN(auto both, turned(c, a, b, cos, sin));
  if (interleaved) {
    const Shape pairs{x.shape[0], x.shape[1], x.shape[2], half, 1};
    PIPER_ASSIGN(both.first, c.reshape(both.first, pairs));
    PIPER_ASSIGN(both.second, c.reshape(both.second, pairs));
  }
  PIPER_ASSIGN(Val y,
               c.op("Concat", {both.first, both.second}, {{"axis", int64_t{interleaved ? 4 : 3}}}));
  PIPER_ASSIGN(y, c.reshape(y, {x.shape[0], x.shape[1], x.shape[2], 2 * half}));
  if (2 * half == width) return y;
  PIPER_ASSIGN(const Val rest, last_dims(c, x, 2 * half, 1, width - 2 * half));
  return c.op("Concat", {y, rest}, {{"axis", int64_t{3}}});
}

namespace {

// Makes of [batch or 1, tokens, half] a table with a dim for the heads; caches are looked up by
// position where there is an input for it.
Result<Val> table(RuleContext& c, const Val& cache) {
  Val rows = cache;
  if (c.has(3)) {
    PIPER_ASSIGN(rows, c.op("Gather", {cache, c.in(3)}, {{"axis", int64_t{0}}}));
  }
  if (rows.rank() != 3)
    return c.error("its tables {} are not [batch, tokens, half]", to_string(rows.shape));
  return c.reshape(rows, {rows.shape[0], 1, rows.shape[1], rows.shape[2]});
}

// Returns how many elements of each head turn.
Result<int64_t> turning_width(RuleContext& c, int64_t width) {
  const int64_t turning =
      c.integer("rotary_embedding_dim", 0) > 0 ? c.integer("rotary_embedding_dim", 0) : width;
  if (turning % 2 != 0 || turning > width)
    return c.error("cannot turn {} of {} elements", turning, width);
  return turning;
}

Result<Vals> rotary(RuleContext& c) {
  PIPER_TRY(c.need(3, 4));
  Val x = c.in(0);
  const bool flat = x.rank() == 3;
  c.pass_over({"num_heads"});
  if (flat) {
    PIPER_ASSIGN(x, split_heads(c, x, c.integer("num_heads", 0)));
  }
  if (x.rank() != 4) return c.error("needs a value of 3 or 4 dims, got {}", to_string(x.shape));
  PIPER_ASSIGN(const int64_t turning, turning_width(c, x.shape[3]));
  PIPER_ASSIGN(const Val cos, table(c, c.in(1)));
  PIPER_ASSIGN(const Val sin, table(c, c.in(2)));
  if (cos.shape[3] != turning / 2 || sin.shape != cos.shape)
    return c.error("its tables do not fit {} elements", turning);
  PIPER_ASSIGN(const Val y, rotated(c, x, cos, sin, c.integer("interleaved", 0) != 0));
  if (!flat) return Vals{y};
  return single(joined_heads(c, y));
}

constexpr ImportRule kAttentionRules[] = {
    {"Attention", 23, kNewest, attention},
    {"RotaryEmbedding", 23, kNewest, rotary},
};

}  // namespace

std::span<const ImportRule> attention_rules() { return kAttentionRules; }

}  // namespace piper::onnx_import
