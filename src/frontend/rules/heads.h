// Pieces of attention that operators of several domains are written out in. Heads are
// [batch, heads, tokens, width].
#pragma once

#include "rule.h"

namespace piper::onnx_import {

Result<Val> split_heads(RuleContext& c, const Val& x, int64_t heads);  // of [batch, tokens, all]
Result<Val> joined_heads(RuleContext& c, const Val& x);                // and back
// Each of the fewer key and value heads serves several query heads.
Result<Val> repeat_heads(RuleContext& c, const Val& x, int64_t heads);
// Makes bool [queries, keys]: keys up to the query's own, the last `window` of them; 0: all.
// `past`: keys before the one of the first query.
Result<Val> causal_mask(RuleContext& c, int64_t queries, int64_t keys, int64_t past,
                        int64_t window = 0);
// Computes scale · q·k', [batch, heads, queries, keys].
Result<Val> scaled_scores(RuleContext& c, const Val& q, const Val& k, double scale);
Result<Val> capped(RuleContext& c, Val scores, double cap);  // cap · tanh(scores / cap); 0: none
// Returns the first elements of each head turned in pairs by tables [batch or 1, 1, tokens, pairs];
// `interleaved`: neighbours are pairs.
Result<Val> rotated(RuleContext& c, const Val& x, const Val& cos, const Val& sin, bool interleaved);

}  // namespace piper::onnx_import
