// Attention, compiled once per instruction set.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_attention.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "attention_tiles-inl.h"
#include "attention_rows-inl.h"
// clang-format on
#include <algorithm>
#include <limits>

#include "attention.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
class Attention {
 public:
  Attention(const AttentionForm& form, const AttentionInputs<T>& in, T* scratch)
      : f(form), in(in), sizes(attention_sizes(form)), scratch_(scratch) {
    packed_k = take(sizes.key_block * f.width);
    dense_q = take(sizes.query_block * f.width);
    s = {take(sizes.key_block * sizes.score_rows), sizes.score_rows};
  }

  void forward(T* y, T* lse, int64_t begin, int64_t end);
  void backward(const AttentionAdjoints<T>& a, int64_t begin, int64_t end);

 private:
  // Holds one head's operands.
  struct Head {
    const T *q, *k, *v;
    const std::byte* mask;
  };
  // Covers queries [i0, i0 + m) and keys [k0, k0 + n); query i sees key j ≤ i + offset, if causal.
  struct Block {
    int64_t i0, m, k0, n;
    int64_t offset;
  };
  int64_t queries_from(int64_t i0) const {
    return HWY_MIN(sizes.query_block, f.query.left(i0, f.queries));
  }
  int64_t keys_from(int64_t k0) const { return HWY_MIN(sizes.key_block, f.key.left(k0, f.keys)); }
  bool sees(const Block& block) const { return seen(block, block.i0 + block.m - 1) > 0; }
  Head head(int64_t b, int64_t h) const {
    const int64_t g = h / (f.heads / f.kv_heads);
    const int64_t bytes = f.mask == AttentionForm::kKeeps ? 1 : static_cast<int64_t>(sizeof(T));
    return {in.q + f.q.at(b, h), in.k + f.k.at(b, g), in.v + f.v.at(b, g),
            in.mask ? in.mask + (b * f.mask_step[0] + h * f.mask_step[1]) * bytes : nullptr};
  }

  // Returns how many of the block's keys the query sees.
  int64_t seen(const Block& block, int64_t query) const {
    return f.causal ? std::clamp<int64_t>(query + block.offset + 1 - block.k0, 0, block.n)
                    : block.n;
  }
  // Returns row r of the block, of which the scores of n keys are made.
  ScoreRow<T> row_of(const Block& block, int64_t r, int64_t n) const {
    return {s.at(r, 0), s.rows * kPanel, seen(block, block.i0 + r), whole_panels(n)};
  }
  // Returns how many keys the queries of row r's tile see.
  int64_t seen_by_tile(const Block& block, int64_t r) const {
    return seen(block, block.i0 + HWY_MIN(r | (kTileRows - 1), block.m - 1));
  }
  // The masks of a block's keys begin with their number.
  int64_t mask_element(const Block& block, int64_t query) const {
    const int64_t first = f.key.number(block.k0, f.keys), last = f.all_keys - block.n;
    return query * f.mask_step[2] + HWY_MIN(first, last) * f.mask_step[3];
  }
  ScoreRule<T> rule_of(const Block& block, int64_t query, const std::byte* mask) const {
    ScoreRule<T> rule{static_cast<T>(f.scale), static_cast<T>(f.softcap)};
    rule.masked = static_cast<T>(f.masked_score), rule.mask_step = f.mask_step[3];
    const int64_t element = mask_element(block, query);
    if (f.mask == AttentionForm::kAdds) rule.add = reinterpret_cast<const T*>(mask) + element;
    if (f.mask == AttentionForm::kKeeps)
      rule.keep = reinterpret_cast<const uint8_t*>(mask) + element;
    return rule;
  }

  // Returns how a row's scores are made; terms, at once.
  template <bool kTerms>
  ScoreLine<T, kTerms> line_of(const Block& block, int64_t query, const std::byte* mask) const {
    const T scale = static_cast<T>(f.scale);
    if constexpr (kTerms) {
      const ScoreRule<T> rule = rule_of(block, query, mask);
      return {.scale = scale, .add = rule.add, .step = rule.mask_step};
    }
    if (!at_once) return {};
    return {.scale = scale, .rate = rate};
  }
  // Multiplies the block's queries, whose rows of x are dense, with packed keys.
  void products(const Block& block, const T* x, int64_t width, const T* packed,
                const Scores<T>& to) {
    for (int64_t r = 0; r < block.m; r += kTileRows) {
      const int64_t last = HWY_MIN(r + kTileRows, block.m) - 1;
      tile_scores(x + r * width, width, packed, seen(block, block.i0 + last), r, to, soon);
    }
  }

  // Computes rows of queries, from c on, (+)= scores · b for the block's row r and its tile; b is
  // dense.
  void times_keys(const Scores<T>& scores, int64_t r, int64_t n, const T* b, int64_t width, T* c,
                  TileResult<T>& to) {
    const ScoreRows a{scores.rows * kPanel};
    const T* const post = to.post;
    int64_t k = 0;
    do {
      const int64_t chain = HWY_MIN(kChain, n - k);
      to.post = k + chain == n ? post : nullptr;
      tile_row(a, scores.at(r, k), chain, b + k * width, width, c, to, soon);
      to.add = true, to.keep = nullptr;
      k += chain;
    } while (k < n);
  }

  // Computes rows of the block's keys, from c on, (+)= scoresᵀ · b, whose rows are the block's
  // queries'.
  void times_queries(const Block& block, const Scores<T>& scores, const T* b, int64_t width, T* c,
                     int64_t c_step, bool add) {
    TileResult<T> to{.row_step = c_step, .vector_step = tile_lanes<T>(), .add = add};
    for (int64_t j = 0; j < block.n; j += kTileRows) {
      const int64_t first =
          f.causal ? std::clamp<int64_t>(block.k0 + j - block.offset - block.i0, 0, block.m) : 0;
      if (first == block.m && add) continue;
      to.rows = HWY_MIN(kTileRows, block.n - j);
      tile_row(ScoreColumns(), scores.at(first, j), block.m - first, b + first * width, width,
               c + j * c_step, to, soon);
    }
  }

  void expect(const Block& block, int64_t b, int64_t h, const T* y, const T* dy);
  void forward_block(const Head& h, const Block& block, T* y, T* lse);
  template <bool kTerms>
  void forward_rows(const Head& h, const Block& block, int64_t r0, int64_t rows, T* y, T* lse);
  template <bool kTerms>
  void backward_block(const Head& h, const Block& block, const AttentionAdjoints<T>& a, bool first);

  const AttentionForm& f;
  const AttentionInputs<T>& in;
  const AttentionSizes sizes;
  // Whether scores are made of products in one step, × scale, + a term, and rise with them.
  bool at_once = f.softcap == 0 && f.mask != AttentionForm::kKeeps && f.scale > 0;
  const ExpRate<T> rate = exp_rate<T>(f.scale);  // of products
  T* take(int64_t elements) {
    T* const at = scratch_;
    scratch_ += elements;
    return at;
  }

  Soon<T> soon;
  T* scratch_;
  T *packed_k, *dense_q;
  Scores<T> s;
  // Forward: values; by query, the largest value so far and the sum of exponentials.
  T *dense_v = nullptr, *top = nullptr, *sum = nullptr;
  // Backward.
  T *packed_v = nullptr, *dense_k = nullptr, *dense_dy = nullptr, *slope = nullptr;
  Scores<T> d;
};

template <class T>
void Attention<T>::forward(T* y, T* lse, int64_t begin, int64_t end) {
  dense_v = take(sizes.key_block * f.v_width);
  const int64_t rows = whole_panels(f.queries) + kPanel;  // a block's last panel may begin anywhere
  top = take(rows), sum = take(rows);
  int64_t packed = -1;  // the head of keys, over the batch, that is in packed_k, when it is whole
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t b = unit / f.heads;
    const int64_t of_keys = unit / (f.heads / f.kv_heads);
    const Head h = head(b, unit % f.heads);
    T* const y_head = y + f.y.at(b, unit % f.heads);
    T* const lse_head = lse ? lse + unit * f.queries : nullptr;
    std::fill_n(top, rows, -std::numeric_limits<T>::infinity());
    std::fill_n(sum, rows, T{0});
    int64_t k0 = 0;
    do {
      const int64_t n = keys_from(k0);
      if (packed != of_keys || f.keys > n) {
        pack_keys(h.k + k0 * f.k.token, f.k.token, n, f.width, packed_k);
        copy_rows(h.v + k0 * f.v.token, f.v.token, n, f.v_width, dense_v);
      }
      packed = of_keys;
      for (int64_t i0 = 0, m = 0; i0 < f.queries; i0 += m) {
        m = queries_from(i0);
        const Block block{i0, m, k0, n, f.offset_of(i0, k0)};
        if (k0 > 0 && !sees(block)) continue;
        expect(block, b, unit % f.heads, y, static_cast<const T*>(nullptr));
        forward_block(h, block, y_head, lse_head);
      }
      k0 += n;
    } while (k0 < f.keys);
  }
}

// Fetches what the next block will touch, of the same head or of the next one, while this one
// multiplies; dy is null forward.
template <class T>
void Attention<T>::expect(const Block& block, int64_t b, int64_t h, const T* y, const T* dy) {
  soon = {};
  int64_t i0 = block.i0 + block.m, k0 = block.k0;
  if (i0 == f.queries) i0 = 0, k0 += block.n;
  if (i0 == 0 && k0 >= f.keys) k0 = 0, ++h;
  if (h == f.heads) h = 0, ++b;
  if (b == f.batch) return;
  const Head next = head(b, h);
  const int64_t queries = queries_from(i0), keys = i0 > 0 ? 0 : keys_from(k0);
  soon.add(next.q + i0 * f.q.token, f.q.token, queries, f.width);
  soon.add(y + f.y.at(b, h) + i0 * f.y.token, f.y.token, queries, f.v_width);
  if (dy) soon.add(dy + f.y.at(b, h) + i0 * f.y.token, f.y.token, queries, f.v_width);
  soon.add(next.k + k0 * f.k.token, f.k.token, keys, f.width);
  soon.add(next.v + k0 * f.v.token, f.v.token, keys, f.v_width);
  // As if all were as wide as keys.
  const auto fetches = [](int64_t depth) { return HWY_MAX(whole_panels(depth) / kPanel, 1) - 1; };
  int64_t calls = 0;
  for (int64_t r = 0; r < block.m; r += kTileRows) {
    const int64_t n = seen_by_tile(block, r);
    calls += (dy ? 2 : 1) * score_tiles<T>(n) * fetches(f.width) +
             (dy ? 3 : 1) * score_tiles<T>(f.width) * fetches(n);
  }
  soon.share_among(calls);
}

template <class T>
void Attention<T>::forward_block(const Head& h, const Block& block, T* y, T* lse) {
  copy_rows(h.q + block.i0 * f.q.token, f.q.token, block.m, f.width, dense_q);
  products(block, dense_q, f.width, packed_k, s);
  const auto rows = at_once && f.mask == AttentionForm::kAdds ? &Attention::forward_rows<true>
                                                              : &Attention::forward_rows<false>;
  for (int64_t r = 0; r < block.m; r += kPanel)
    (this->*rows)(h, block, r, HWY_MIN(kPanel, block.m - r), y, lse);
}

// Does the block's rows from r0 on, at most a panel. Each step is done for all of them before the
// next: they do not wait for each other.
template <class T>
template <bool kTerms>
void Attention<T>::forward_rows(const Head& h, const Block& block, int64_t r0, int64_t rows, T* y,
                                T* lse) {
  HWY_ALIGN T old[kPanel], keep[kPanel], shift[kPanel], inverse[kPanel], logs[kPanel];
  const int64_t first = block.i0 + r0;
  T *const tops = top + first, *const sums = sum + first;
  if (seen(block, first + rows - 1) == 0 && block.k0 > 0) return;
  ScoreRow<T> row[kPanel];
  for (int64_t t = 0; t < rows; ++t) row[t] = row_of(block, r0 + t, seen_by_tile(block, r0 + t));
  for (int64_t t = 0; t < rows && !at_once; ++t)
    to_scores(row[t], rule_of(block, first + t, h.mask), static_cast<T*>(nullptr));
  std::copy_n(tops, kPanel, old);
  for (int64_t t = 0; t < rows; ++t)
    tops[t] = greatest(row[t], line_of<kTerms>(block, first + t, h.mask), old[t]);
  const auto any = line_of<kTerms>(block, first, h.mask);
  find_shifts(old, tops, any.rate, keep, shift);
  for (int64_t t = 0; t < rows; ++t) {
    const auto line = line_of<kTerms>(block, first + t, h.mask);
    sums[t] = sums[t] * keep[t] + exponentials(row[t], line, shift[t]);
  }
  log_sums(tops, any.score_of_value(), sums, inverse, logs);
  if (lse) std::copy_n(logs, rows, lse + first);
  for (int64_t t = 0; t < rows; t += kTileRows) {
    const int64_t n = seen_by_tile(block, r0 + t), i = first + t;
    if (n == 0 && block.k0 > 0) continue;
    TileResult<T> to{.row_step = f.y.token, .vector_step = tile_lanes<T>()};
    to.rows = HWY_MIN(kTileRows, rows - t);
    to.add = block.k0 > 0, to.keep = keep + t;
    // This fetches for the last keys of these queries.
    if (f.seen_by(i + to.rows - 1) <= block.k0 + block.n) to.post = inverse + t;
    times_keys(s, r0 + t, n, dense_v, f.v_width, y + i * f.y.token, to);
  }
}

template <class T>
void Attention<T>::backward(const AttentionAdjoints<T>& a, int64_t begin, int64_t end) {
  packed_v = take(sizes.key_block * f.v_width);
  dense_k = take(sizes.key_block * f.width);
  dense_dy = take(sizes.query_block * f.v_width);
  d = {take(sizes.key_block * sizes.score_rows), sizes.score_rows};
  slope = take(sizes.key_block);
  const int64_t repeat = f.heads / f.kv_heads;
  // With a gradient of the mask, the scores' adjoints are wanted before those of the products.
  at_once = at_once && !a.dmask;
  const auto run = at_once && f.mask == AttentionForm::kAdds ? &Attention::backward_block<true>
                                                             : &Attention::backward_block<false>;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t b = unit / f.kv_heads, g = unit % f.kv_heads;
    int64_t k0 = 0;
    do {
      const int64_t n = keys_from(k0);
      const Head first = head(b, g * repeat);
      pack_keys(first.k + k0 * f.k.token, f.k.token, n, f.width, packed_k);
      pack_keys(first.v + k0 * f.v.token, f.v.token, n, f.v_width, packed_v);
      copy_rows(first.k + k0 * f.k.token, f.k.token, n, f.width, dense_k);
      bool fresh = true;  // nothing is in dk and dv
      for (int64_t hd = g * repeat; hd < (g + 1) * repeat; ++hd) {
        const AttentionAdjoints<T> of_head = {
            a.y + f.y.at(b, hd),
            a.lse + (b * f.heads + hd) * f.queries,
            a.dy + f.y.at(b, hd),
            a.dq + f.dq.at(b, hd),
            a.dk + f.dk.at(b, g) + k0 * f.dk.token,
            a.dv + f.dv.at(b, g) + k0 * f.dv.token,
            a.dmask ? a.dmask + b * f.mask_step[0] + hd * f.mask_step[1] : nullptr};
        for (int64_t i0 = 0, m = 0; i0 < f.queries; i0 += m) {
          m = queries_from(i0);
          const bool last = hd + 1 == (g + 1) * repeat && i0 + m == f.queries;
          const Block block{i0, m, k0, n, f.offset_of(i0, k0)};
          if (k0 > 0 && !sees(block) && !(fresh && last)) continue;
          expect(block, b, hd, a.y, a.dy);
          (this->*run)(head(b, hd), block, of_head, fresh);
          fresh = false;
        }
      }
      k0 += n;
    } while (k0 < f.keys);
  }
}

template <class T>
template <bool kTerms>
void Attention<T>::backward_block(const Head& h, const Block& block, const AttentionAdjoints<T>& a,
                                  bool first) {
  const T rise = at_once ? static_cast<T>(f.scale) : T{1};
  copy_rows(h.q + block.i0 * f.q.token, f.q.token, block.m, f.width, dense_q);
  products(block, dense_q, f.width, packed_k, s);
  copy_rows(a.dy + block.i0 * f.y.token, f.y.token, block.m, f.v_width, dense_dy);
  products(block, dense_dy, f.v_width, packed_v, d);
  for (int64_t r = 0; r < block.m; r += kTileRows) {
    const int64_t rows = HWY_MIN(kTileRows, block.m - r), i = block.i0 + r;
    const int64_t n = seen(block, i + rows - 1);
    T dot[kTileRows];
    for (int64_t t = 0; t < rows; ++t)
      dot[t] = dot_of(a.y + (i + t) * f.y.token, a.dy + (i + t) * f.y.token, f.v_width);
    for (int64_t t = 0; t < rows; ++t) {
      const ScoreRow<T> row = row_of(block, r + t, n);
      if (!at_once) to_scores(row, rule_of(block, i + t, h.mask), slope);
      T* const ds = d.at(r + t, 0);
      gradient(row, line_of<kTerms>(block, i + t, h.mask), a.lse[i + t], dot[t], rise, ds);
      if (at_once) continue;
      T* const dmask = a.dmask ? a.dmask + mask_element(block, i + t) : nullptr;
      through_rule(row, slope, ds, dmask, f.mask_step[3]);
    }
    TileResult<T> to{.row_step = f.dq.token, .vector_step = tile_lanes<T>(), .rows = rows};
    to.add = block.k0 > 0;
    if (n > 0 || block.k0 == 0) times_keys(d, r, n, dense_k, f.width, a.dq + i * f.dq.token, to);
  }
  times_queries(block, s, dense_dy, f.v_width, a.dv, f.dv.token, !first);
  times_queries(block, d, dense_q, f.width, a.dk, f.dk.token, !first);
}

template <class T>
void forward(const AttentionForm& form, const AttentionInputs<T>& in, T* y, T* lse, T* scratch,
             int64_t begin, int64_t end) {
  Attention<T>(form, in, scratch).forward(y, lse, begin, end);
}
template <class T>
void backward(const AttentionForm& form, const AttentionInputs<T>& in,
              const AttentionAdjoints<T>& adjoints, T* scratch, int64_t begin, int64_t end) {
  Attention<T>(form, in, scratch).backward(adjoints, begin, end);
}

AttentionFns<float> AttentionF32() { return {forward<float>, backward<float>}; }
AttentionFns<double> AttentionF64() { return {forward<double>, backward<double>}; }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(AttentionF32);
HWY_EXPORT(AttentionF64);

template <>
AttentionFns<float> attention_fns() {
  return HWY_DYNAMIC_DISPATCH(AttentionF32)();
}
template <>
AttentionFns<double> attention_fns() {
  return HWY_DYNAMIC_DISPATCH(AttentionF64)();
}

}  // namespace piper::cpu
#endif
