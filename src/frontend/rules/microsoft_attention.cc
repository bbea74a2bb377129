// Attention as onnxruntime's optimizer and its builders of models write it: com.microsoft's
// Attention, MultiHeadAttention, GroupQueryAttention and RotaryEmbedding, in matrix products and a
// softmax.
#include <cmath>
#include <limits>

#include "heads.h"

namespace piper::onnx_import {
namespace {

// Holds what is weighed, and how. Heads, those of the past included.
struct Attended {
  Val q, k, v;
  int64_t past = 0;  // keys before the one of the first query
  bool causal = false;
  int64_t window = 0;  // of the last keys; 0: all
  double cap = 0;      // of scores
  Vals added, kept;    // to scores; of them (bool)
};

Result<Val> masked_by_all(RuleContext& c, Val scores, const Vals& kept) {
  const Val lowest = c.number(-std::numeric_limits<float>::infinity(), scores);
  for (const Val& mask : kept) {
    PIPER_ASSIGN(scores, c.pointwise("Where", {mask, scores, lowest}));
  }
  return scores;
}

Result<Val> attended(RuleContext& c, const Attended& a) {
  const double own = 1 / std::sqrt(static_cast<double>(a.q.shape[3]));
  const double scale = c.real("scale", 0) == 0 ? own : c.real("scale", 0);
  PIPER_ASSIGN(Val scores, scaled_scores(c, a.q, a.k, scale));
  PIPER_ASSIGN(scores, capped(c, scores, a.cap));
  for (const Val& term : a.added) {
    PIPER_ASSIGN(scores, c.pointwise("Add", {scores, term}));
  }
  Vals kept = a.kept;
  if (a.causal) {
    PIPER_ASSIGN(kept.emplace_back(),
                 causal_mask(c, scores.shape[2], scores.shape[3], a.past, a.window));
  }
  PIPER_ASSIGN(scores, masked_by_all(c, scores, kept));
  PIPER_ASSIGN(const Val weights, c.op("Softmax", {scores}, {{"axis", int64_t{3}}}));
  PIPER_ASSIGN(const Val wide, repeat_heads(c, a.v, a.q.shape[1]));
  PIPER_ASSIGN(const Val y, c.matmul(weights, wide));
  return joined_heads(c, y);
}

// ---- Operands -----------------------------------------------------------------------------------

Status check_tokens(RuleContext& c, size_t input) {
  if (c.in(input).rank() == 3) return ok_status();
  return c.error("needs [batch, tokens, width], got {}", to_string(c.in(input).shape));
}

Status no_more_inputs(RuleContext& c, size_t first) {
  for (size_t i = first; i < c.num_inputs(); ++i)
    if (c.has(i)) return c.error("its input {} is not supported", i);
  return ok_status();
}

// Returns true where the key is before the end of its sample; ends [batch].
Result<Val> before_ends(RuleContext& c, const Val& ends, int64_t keys) {
  PIPER_ASSIGN(Val column, c.cast(ends, DType::kI64));
  PIPER_ASSIGN(column, c.reshape(column, {ends.shape[0], 1, 1, 1}));
  PIPER_ASSIGN(const Val places, c.emit.count_to(keys));
  return c.pointwise("Less", {places, column});
}

// Returns the mask as one of batch, heads, queries and keys.
Result<Val> spread_mask(RuleContext& c, const Val& mask, const Attended& a) {
  const int64_t batch = a.q.shape[0], queries = a.q.shape[2], keys = a.k.shape[2];
  Val kept;
  if (mask.shape == Shape{batch, keys}) {
    PIPER_ASSIGN(kept, c.reshape(mask, {batch, 1, 1, keys}));
  } else if (mask.shape == Shape{batch, queries, keys}) {
    PIPER_ASSIGN(kept, c.reshape(mask, {batch, 1, queries, keys}));
  } else if (mask.shape == Shape{batch}) {
    PIPER_ASSIGN(kept, before_ends(c, mask, keys));
  } else {
    return c.error(
        "a mask {} is not supported; [batch], [batch, keys] and [batch, queries, keys] "
        "are",
        to_string(mask.shape));
  }
  return kept;
}

// Returns what a mask of keys adds to scores: nothing, or `mask_filter_value` where it is 0. Of all
// queries [batch, keys], of each [batch, queries, keys], or lengths [batch].
Result<Val> mask_term(RuleContext& c, const Val& mask, const Attended& a) {
  PIPER_ASSIGN(Val kept, spread_mask(c, mask, a));
  if (kept.dtype != DType::kBool) {
    PIPER_ASSIGN(kept, c.pointwise("Greater", {kept, number_val(0, kept.dtype)}));
  }
  const Val lowest = c.number(c.real("mask_filter_value", -10000), a.q);
  return c.pointwise("Where", {kept, c.number(0, a.q), lowest});
}

// Puts keys or values of the past before those that are new.
Status add_past(RuleContext& c, const Val& past, Val& x) {
  if (!past.present() || num_elements(past.shape) == 0) return ok_status();
  if (past.rank() != 4) return c.error("a past of {} is not supported", to_string(past.shape));
  PIPER_ASSIGN(x, c.op("Concat", {past, x}, {{"axis", int64_t{2}}}));
  return ok_status();
}

// ---- Attention: one product makes queries, keys and values --------------------------------------

// Returns widths by attribute, or three equal parts of the width of the product.
Result<std::vector<int64_t>> widths_of(RuleContext& c, int64_t all) {
  std::vector<int64_t> widths = c.integers("qkv_hidden_sizes");
  if (widths.empty() && all % 3 == 0) widths.assign(3, all / 3);
  if (widths.size() != 3 || widths[0] < 1 || widths[1] != widths[0] || widths[2] < 1 ||
      widths[0] + widths[1] + widths[2] != all)
    return c.error("cannot take queries, keys and values of {} elements", all);
  return widths;
}

Result<Vals> fused_attention(RuleContext& c) {
  PIPER_TRY(c.need(2));
  c.pass_over({"mask_filter_value", "rotary_embedding_dim"});
  PIPER_TRY(no_more_inputs(c, 6));
  PIPER_TRY(check_tokens(c, 0));
  if (c.in(1).rank() != 2) return c.error("has weights {}", to_string(c.in(1).shape));
  if (c.integer("do_rotary", 0) != 0 || c.integer("past_present_share_buffer", 0) != 0)
    return c.error("rotary positions and shared buffers are not supported");
  PIPER_ASSIGN(Val all, c.matmul(c.in(0), c.in(1)));
  if (c.has(2)) {
    PIPER_ASSIGN(all, c.pointwise("Add", {all, c.in(2)}));
  }
  PIPER_ASSIGN(const auto widths, widths_of(c, all.shape[2]));
  const int64_t heads = c.integer("num_heads", 0);
  Attended a{.causal = c.integer("unidirectional", 0) != 0};
  Val* const each[] = {&a.q, &a.k, &a.v};
  for (int64_t i = 0, start = 0; i < 3; start += widths[static_cast<size_t>(i++)]) {
    PIPER_ASSIGN(const Val one, c.part(all, 2, start, widths[static_cast<size_t>(i)]));
    PIPER_ASSIGN(*each[i], split_heads(c, one, heads));
  }
  if (c.has(4)) {
    for (int64_t i = 0; i < 2; ++i) {
      if (c.in(4).rank() != 5) return c.error("has a past of {}", to_string(c.in(4).shape));
      PIPER_ASSIGN(Val past, c.part(c.in(4), 0, i, 1));
      PIPER_ASSIGN(past, c.reshape(past, Shape(past.shape.begin() + 1, past.shape.end())));
      PIPER_TRY(add_past(c, past, *each[i + 1]));
    }
    a.past = a.k.shape[2] - a.q.shape[2];
  }
  if (c.has(3)) {
    PIPER_ASSIGN(a.added.emplace_back(), mask_term(c, c.in(3), a));
  }
  if (c.has(5)) a.added.push_back(c.in(5));
  Vals out(1);
  PIPER_ASSIGN(out[0], attended(c, a));
  if (c.node.outputs.size() < 2 || c.node.outputs[1].empty()) return out;
  Vals both;
  for (const Val& x : {a.k, a.v}) {
    Shape shape = x.shape;
    shape.insert(shape.begin(), 1);
    PIPER_ASSIGN(both.emplace_back(), c.reshape(x, shape));
  }
  PIPER_ASSIGN(out.emplace_back(), c.op("Concat", both, {{"axis", int64_t{0}}}));
  return out;
}

// ---- MultiHeadAttention: queries, keys and values come made, perhaps packed
// -----------------------

// Returns x[…, i, …] of a dim, which goes.
Result<Val> nth(RuleContext& c, const Val& x, size_t axis, int64_t i) {
  PIPER_ASSIGN(const Val one, c.part(x, axis, i, 1));
  Shape shape = one.shape;
  shape.erase(shape.begin() + static_cast<int64_t>(axis));
  return c.reshape(one, shape);
}

// Returns keys, values or queries of their own, as heads.
Result<Val> separate_heads(RuleContext& c, size_t i, int64_t heads) {
  const Val& x = c.in(i);
  if (x.rank() == 4 && i > 0) return x;
  if (!x.present()) return c.error("has neither keys and values nor packed ones");
  PIPER_TRY(check_tokens(c, i));
  return split_heads(c, x, heads);
}

// Reads heads: packed [batch, tokens, heads, 3 or 2, width], separate [batch, tokens, all], or as
// heads already.
Status read_given_heads(RuleContext& c, int64_t heads, Attended& a) {
  const Val &q = c.in(0), &k = c.in(1);
  Val* const each[] = {&a.q, &a.k, &a.v};
  const Val* packed = q.rank() == 5 ? &q : k.rank() == 5 ? &k : nullptr;
  const size_t first = packed == &q ? 0 : 1;  // of those that are packed
  for (size_t i = 0; i < 3; ++i) {
    if (packed && i >= first) {
      PIPER_ASSIGN(const Val one, nth(c, *packed, 3, static_cast<int64_t>(i - first)));
      PIPER_ASSIGN(*each[i], c.transpose(one, {0, 2, 1, 3}));
      continue;
    }
    PIPER_ASSIGN(*each[i], separate_heads(c, i, heads));
  }
  return ok_status();
}

Status add_biases(RuleContext& c, const Val& bias, Attended& a) {
  int64_t start = 0;
  for (Val* x : {&a.q, &a.k, &a.v}) {
    const int64_t heads = x->shape[1], width = x->shape[3];
    if (bias.rank() != 1) return c.error("has a bias {}", to_string(bias.shape));
    PIPER_ASSIGN(Val own, c.part(bias, 0, start, heads * width));
    PIPER_ASSIGN(own, c.reshape(own, {heads, 1, width}));
    PIPER_ASSIGN(*x, c.pointwise("Add", {*x, own}));
    start += heads * width;
  }
  return ok_status();
}

Result<Vals> multi_head(RuleContext& c) {
  PIPER_TRY(c.need(1));
  c.pass_over({"mask_filter_value"});
  PIPER_TRY(no_more_inputs(c, 8));
  Attended a{.causal = c.integer("unidirectional", 0) != 0};
  PIPER_TRY(read_given_heads(c, c.integer("num_heads", 0), a));
  if (c.has(3)) PIPER_TRY(add_biases(c, c.in(3), a));
  PIPER_TRY(add_past(c, c.in(6), a.k));
  PIPER_TRY(add_past(c, c.in(7), a.v));
  if (a.causal) a.past = a.k.shape[2] - a.q.shape[2];
  if (c.has(4)) {
    PIPER_ASSIGN(a.added.emplace_back(), mask_term(c, c.in(4), a));
  }
  if (c.has(5)) a.added.push_back(c.in(5));
  PIPER_ASSIGN(Val y, attended(c, a));
  return Vals{std::move(y), a.k, a.v};
}

// ---- GroupQueryAttention ------------------------------------------------------------------------

Status read_groups(RuleContext& c, Attended& a) {
  const int64_t heads = c.integer("num_heads", 0), groups = c.integer("kv_num_heads", 0);
  PIPER_TRY(check_tokens(c, 0));
  if (heads < 1 || groups < 1) return c.error("has {} heads and {} groups", heads, groups);
  if (c.has(1) && c.has(2)) {
    PIPER_TRY(check_tokens(c, 1));
    PIPER_TRY(check_tokens(c, 2));
    PIPER_ASSIGN(a.q, split_heads(c, c.in(0), heads));
    PIPER_ASSIGN(a.k, split_heads(c, c.in(1), groups));
    PIPER_ASSIGN(a.v, split_heads(c, c.in(2), groups));
    return ok_status();
  }
  PIPER_ASSIGN(const Val all, split_heads(c, c.in(0), heads + 2 * groups));
  PIPER_ASSIGN(a.q, c.part(all, 1, 0, heads));
  PIPER_ASSIGN(a.k, c.part(all, 1, heads, groups));
  PIPER_ASSIGN(a.v, c.part(all, 1, heads + groups, groups));
  return ok_status();
}

// Returns rows of a table [positions, pairs] for the tokens of a sample, [batch or 1, 1, tokens,
// pairs]: those at `places` [batch, tokens] or, absent, the first ones.
Result<Val> table_rows(RuleContext& c, const Val& table, const Val& places, int64_t tokens) {
  if (table.rank() != 2) return c.error("has a table {}", to_string(table.shape));
  Val rows;
  if (places.present()) {
    PIPER_ASSIGN(const Val index, c.cast(places, DType::kI64));
    PIPER_ASSIGN(rows, c.op("Gather", {table, index}, {{"axis", int64_t{0}}}));
  } else {
    PIPER_ASSIGN(rows, c.part(table, 0, 0, tokens));
  }
  const int64_t batch = rows.rank() == 3 ? rows.shape[0] : 1;
  return c.reshape(rows, {batch, 1, tokens, table.shape[1]});
}

// Returns the lengths of the samples where they may be less than all tokens; absent where they are
// not.
Result<Val> shorter_lengths(RuleContext& c, const Val& last, int64_t tokens) {
  PIPER_ASSIGN(const Val ends, c.cast(last, DType::kI64));
  PIPER_ASSIGN(const Val lengths, c.pointwise("Add", {ends, integer_val(1)}));
  PIPER_ASSIGN(const Val flat, c.reshape(lengths, {num_elements(lengths.shape)}));
  if (!flat.is_constant()) return flat;
  for (int64_t i = 0; i < num_elements(flat.stored); ++i)
    if (read_number(flat.data, DType::kI64, i) != static_cast<double>(tokens)) return flat;
  return Val();
}

Status rotate_groups(RuleContext& c, Attended& a) {
  const int64_t tokens = a.q.shape[2];
  const bool pairs = c.integer("rotary_interleaved", 0) != 0;
  PIPER_ASSIGN(const Val cos, table_rows(c, c.in(7), c.in(9), tokens));
  PIPER_ASSIGN(const Val sin, table_rows(c, c.in(8), c.in(9), tokens));
  PIPER_ASSIGN(a.q, rotated(c, a.q, cos, sin, pairs));
  PIPER_ASSIGN(a.k, rotated(c, a.k, cos, sin, pairs));
  return ok_status();
}

Status add_lengths(RuleContext& c, Attended& a) {
  const int64_t tokens = a.q.shape[2];
  PIPER_ASSIGN(const Val lengths, shorter_lengths(c, c.in(5), tokens));
  if (lengths.present()) {
    PIPER_ASSIGN(a.kept.emplace_back(), before_ends(c, lengths, tokens));
  }
  return ok_status();
}

Result<Vals> group_query(RuleContext& c) {
  PIPER_TRY(c.need(1));
  PIPER_TRY(no_more_inputs(c, 11));
  if (c.integer("smooth_softmax", 0) > 0) return c.error("smooth_softmax is not supported");
  for (size_t i : {3, 4})
    if (c.has(i) && num_elements(c.in(i).shape) > 0)
      return c.error("a past is not supported: export the model without its cache");
  c.pass_over({"rotary_interleaved"});
  Attended a{.causal = true};
  PIPER_TRY(read_groups(c, a));
  a.window = std::max<int64_t>(c.integer("local_window_size", -1), 0);
  a.cap = c.real("softcap", 0);
  if (c.integer("do_rotary", 0) != 0) PIPER_TRY(rotate_groups(c, a));
  if (c.has(5)) PIPER_TRY(add_lengths(c, a));
  if (c.has(10)) a.added.push_back(c.in(10));
  PIPER_ASSIGN(Val y, attended(c, a));
  return Vals{std::move(y), a.k, a.v};
}

// ---- RotaryEmbedding ----------------------------------------------------------------------------

// Returns the place of each token, or of each sample.
Result<Val> token_places(RuleContext& c, int64_t tokens) {
  Val places = c.in(1);
  if (num_elements(places.shape) == 1) {  // that of the first token
    PIPER_ASSIGN(const Val count, c.emit.count_to(tokens));
    PIPER_ASSIGN(places, c.cast(places, DType::kI64));
    PIPER_ASSIGN(places, c.reshape(places, {1}));
    PIPER_ASSIGN(places, c.pointwise("Add", {count, places}));
  }
  return places;
}

Result<Val> heads_by_table(RuleContext& c, const Val& x, const Val& table) {
  const int64_t own = c.integer("num_heads", 0),
                width = 2 * (table.rank() == 2 ? table.shape[1] : 0);
  if (own == 0 && width == 0) return c.error("has a table {}", to_string(table.shape));
  return split_heads(c, x, own > 0 ? own : x.shape[2] / width);
}

Result<Vals> rotary_at(RuleContext& c) {
  PIPER_TRY(c.need(4, 4));
  if (c.real("scale", 1) != 1 || c.integer("is_packed_batching", 0) != 0)
    return c.error("a scale and packed batches are not supported");
  c.pass_over({"num_heads", "rotary_embedding_dim"});  // which the tables say, too
  const Val& table = c.in(2);
  const bool flat = c.in(0).rank() == 3;
  Val x = c.in(0);
  if (flat) {
    PIPER_ASSIGN(x, heads_by_table(c, x, table));
  }
  if (x.rank() != 4) return c.error("needs a value of 3 or 4 dims, got {}", to_string(x.shape));
  PIPER_ASSIGN(const Val places, token_places(c, x.shape[2]));
  PIPER_ASSIGN(const Val cos, table_rows(c, table, places, x.shape[2]));
  PIPER_ASSIGN(const Val sin, table_rows(c, c.in(3), places, x.shape[2]));
  PIPER_ASSIGN(const Val y, rotated(c, x, cos, sin, c.integer("interleaved", 0) != 0));
  if (!flat) return Vals{y};
  return single(joined_heads(c, y));
}

constexpr ImportRule kMicrosoftAttentionRules[] = {
    {"com.microsoft::Attention", 1, kNewest, fused_attention},
    {"com.microsoft::GroupQueryAttention", 1, kNewest, group_query, "without a past"},
    {"com.microsoft::MultiHeadAttention", 1, kNewest, multi_head},
    {"com.microsoft::RotaryEmbedding", 1, kNewest, rotary_at},
};

}  // namespace

std::span<const ImportRule> microsoft_attention_rules() { return kMicrosoftAttentionRules; }

}  // namespace piper::onnx_import
