// One query's scores of a block of keys: softmax and its gradient. Included once per instruction
// set, see "hwy/foreach_target.h".
#include "attention_tiles-inl.h"

#if defined(PIPER_CPU_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PIPER_CPU_ATTENTION_ROWS_INL_H_
#undef PIPER_CPU_ATTENTION_ROWS_INL_H_
#else
#define PIPER_CPU_ATTENTION_ROWS_INL_H_
#endif

#include <cstring>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Says how products become scores.
template <class T>
struct ScoreRule {
  T scale = 1;                    // of the products
  T cap = 0;                      // c > 0: c·tanh(score / c)
  const T* add = nullptr;         // terms, or null
  const uint8_t* keep = nullptr;  // or null
  int64_t mask_step = 1;          // 0: one term or one keep for all keys
  T masked = 0;                   // the score where `keep` is 0
};

// Views one query's row of a block: the first `seen` of `width` scores, in whole panels; anything
// may follow those at first.
template <class T>
struct ScoreRow {
  T* s;
  int64_t panel_step, seen, width;
  int64_t at(int64_t key) const { return key / kPanel * panel_step + key % kPanel; }
};

// Calls f(place, key, count) for each vector of the scores that are seen.
template <class T, class F>
HWY_INLINE void each_score(const ScoreRow<T>& row, F f) {
  const int64_t lanes = tile_lanes<T>();
  int64_t j = 0, at = 0;
  for (; j + kPanel <= row.seen; j += kPanel, at += row.panel_step)
    for (int64_t v = 0; v < kPanel; v += lanes) f(at + v, j + v, lanes);
  for (; j < row.seen; j += lanes, at += lanes) f(at, j, HWY_MIN(lanes, row.seen - j));
}
template <class T>
HWY_INLINE hn::Mask<TileTag<T>> first_lanes(int64_t count) {
  return hn::FirstN(TileTag<T>(), static_cast<size_t>(count));
}
// Clears what follows the last vector that holds a score that is seen.
template <class T>
HWY_INLINE void clear_unseen(const ScoreRow<T>& row, T* s) {
  const TileTag<T> d;
  const int64_t lanes = tile_lanes<T>();
  for (int64_t j = (row.seen + lanes - 1) / lanes * lanes; j < row.width; j += lanes)
    hn::StoreU(hn::Zero(d), d, s + row.at(j));
}

// Returns whether no byte of eight is 0: subtracting 1 of each borrows its highest bit only from a
// 0, or from one above a 0 (Warren: Hacker's Delight, 2nd edition, 2012, section 6-1).
inline bool all_kept(const uint8_t* keep) {
  constexpr uint64_t kOnes = ~uint64_t{0} / 255;
  uint64_t bytes;
  std::memcpy(&bytes, keep, sizeof bytes);
  return ((bytes - kOnes) & ~bytes & (kOnes << 7)) == 0;
}

// Products become scores; slope, unless null, gets their slopes by the products. Of a mask, which
// keeps most keys, eight are looked at together.
template <class T>
HWY_NOINLINE void to_scores(const ScoreRow<T>& row, const ScoreRule<T>& rule, T* slope) {
  const TileTag<T> d;
  const auto scale = hn::Set(d, rule.scale), one = hn::Set(d, T{1});
  const auto cap = hn::Set(d, rule.cap),
             inner = hn::Set(d, rule.cap > 0 ? rule.scale / rule.cap : T{0});
  each_score(row, [&](int64_t at, int64_t j, int64_t count) HWY_ATTR {
    auto x = hn::LoadU(d, row.s + at), by = scale, term = hn::Zero(d);
    if (rule.add)
      term = rule.mask_step ? load_first(d, rule.add + j, count, T{0}) : hn::Set(d, *rule.add);
    if (rule.cap > 0) {
      const auto t = tanh_of(d, hn::Mul(x, inner));
      by = hn::Mul(scale, hn::NegMulAdd(t, t, one));
      x = hn::MulAdd(cap, t, term);
    } else {
      x = hn::MulAdd(x, scale, term);
    }
    if (slope) hn::StoreU(by, d, slope + j);
    hn::StoreU(x, d, row.s + at);
  });
  for (int64_t j = 0; rule.keep && j < row.seen; ++j) {
    while (rule.mask_step == 1 && j + 8 <= row.seen && all_kept(rule.keep + j)) j += 8;
    if (j == row.seen || rule.keep[j * rule.mask_step]) continue;
    row.s[row.at(j)] = rule.masked;
    if (slope) slope[j] = 0;  // a constant
  }
}

// Turns what is in a row, scores or (at once) products, into scores: × scale, + a term of each key
// or of all (step 0). Keys are compared by their scores if these have terms, else by what is in the
// row, which rises with them and takes no product. The largest is subtracted before anything is
// multiplied, so that its exponent is 0 however large it is.
template <class T, bool kTerms>
struct ScoreLine {
  T scale = 1;
  ExpRate<T> rate = exp_rate<T>();  // of a difference of values
  const T* add = nullptr;
  int64_t step = 1;
  // Returns what key j, of `count` ones, is compared by.
  template <class D>
  HWY_INLINE hn::Vec<D> value(D d, hn::Vec<D> x, int64_t j, int64_t count) const {
    if constexpr (!kTerms) return x;
    const auto term = step ? load_first(d, add + j, count, T{0}) : hn::Set(d, *add);
    return hn::MulAdd(x, hn::Set(d, scale), term);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> score(D d, hn::Vec<D> x, int64_t j, int64_t count) const {
    if constexpr (!kTerms) return hn::Mul(x, hn::Set(d, scale));
    return value(d, x, j, count);
  }
  T score_of_value() const { return kTerms ? T{1} : scale; }
};

// Returns the largest of `top` and the values.
template <class T, class Line>
HWY_INLINE T greatest(const ScoreRow<T>& row, const Line& line, T top) {
  const TileTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto best = hn::Set(d, top);
  each_score(row, [&](int64_t at, int64_t j, int64_t count) HWY_ATTR {
    auto x = line.value(d, hn::LoadU(d, row.s + at), j, count);
    if (count < tile_lanes<T>()) x = hn::IfThenElse(first_lanes<T>(count), x, lowest);
    best = hn::Max(best, x);
  });
  return hn::GetLane(hn::MaxOfLanes(d, best));
}

// A row becomes exponentials of values - shift, 0 where they are not seen; their sum.
template <class T, class Line>
HWY_INLINE T exponentials(const ScoreRow<T>& row, const Line& line, T shift) {
  const TileTag<T> d;
  const auto less = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  each_score(row, [&](int64_t at, int64_t j, int64_t count) HWY_ATTR {
    const auto x = line.value(d, hn::LoadU(d, row.s + at), j, count);
    auto e = exp_negative(d, hn::Sub(x, less), line.rate);
    if (count < tile_lanes<T>()) e = hn::IfThenElseZero(first_lanes<T>(count), e);
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, row.s + at);
  });
  clear_unseen(row, row.s);
  return sum_lanes(d, sum);
}

// Computes, after the tops of kPanel rows rose: keep = what their sums so far are multiplied with,
// shift = what is subtracted from the values. Rows that have seen no key have the lowest top: 0 is
// taken off.
template <class T>
HWY_INLINE void find_shifts(const T* old_top, const T* top, const ExpRate<T>& rate, T* keep,
                            T* shift) {
  const TileTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < kPanel; i += tile_lanes<T>()) {
    const auto old = hn::LoadU(d, old_top + i), now = hn::LoadU(d, top + i);
    const auto factor = exp_negative(d, hn::Sub(old, now), rate);
    hn::StoreU(hn::IfThenElse(hn::Eq(old, now), hn::Set(d, T{1}), factor), d, keep + i);
    hn::StoreU(hn::IfThenElse(hn::Eq(now, lowest), hn::Zero(d), now), d, shift + i);
  }
}

// Of kPanel rows 1 / sum and the logarithm of the whole sum; no key seen: 0 and the largest
// number.
template <class T>
void log_sums(const T* top, T score_of_value, const T* sum, T* inverse, T* lse) {
  const TileTag<T> d;
  const auto greatest = hn::Set(d, std::numeric_limits<T>::max());
  const auto score = hn::Set(d, score_of_value);
  for (int64_t i = 0; i < kPanel; i += tile_lanes<T>()) {
    const auto s = hn::LoadU(d, sum + i);
    const auto none = hn::Eq(s, hn::Zero(d));
    const auto all = hn::MulAdd(hn::LoadU(d, top + i), score, log_of(d, s));
    hn::StoreU(hn::IfThenElseZero(hn::Not(none), hn::Div(hn::Set(d, T{1}), s)), d, inverse + i);
    hn::StoreU(hn::IfThenElse(none, greatest, all), d, lse + i);
  }
}

// A row becomes weights p, adjoints of weights in ds those of the products, by p·(ds - dot)·rise.
template <class T, class Line>
HWY_INLINE void gradient(const ScoreRow<T>& row, const Line& line, T lse, T dot, T rise, T* ds) {
  const TileTag<T> d;
  constexpr auto kRate = exp_rate<T>();
  const auto shift = hn::Set(d, lse), middle = hn::Set(d, dot * rise), by = hn::Set(d, rise);
  each_score(row, [&](int64_t at, int64_t j, int64_t count) HWY_ATTR {
    const auto x = line.score(d, hn::LoadU(d, row.s + at), j, count);
    auto p = exp_negative(d, hn::Sub(x, shift), kRate);
    auto g = hn::Mul(p, hn::MulSub(hn::LoadU(d, ds + at), by, middle));
    if (count < tile_lanes<T>()) {
      p = hn::IfThenElseZero(first_lanes<T>(count), p);
      g = hn::IfThenElseZero(first_lanes<T>(count), g);
    }
    hn::StoreU(p, d, row.s + at);
    hn::StoreU(g, d, ds + at);
  });
  clear_unseen(row, row.s);
  clear_unseen(row, ds);
}

// Adjoints of scores in ds become those of the products; dmask, unless null, gets them added.
template <class T>
HWY_NOINLINE void through_rule(const ScoreRow<T>& row, const T* slope, T* ds, T* dmask,
                               int64_t mask_step) {
  const TileTag<T> d;
  for (int64_t j = 0; dmask && j < row.seen; ++j) dmask[j * mask_step] += ds[row.at(j)];
  each_score(row, [&](int64_t at, int64_t j, int64_t count) HWY_ATTR {
    auto g = hn::Mul(hn::LoadU(d, ds + at), hn::LoadU(d, slope + j));
    if (count < tile_lanes<T>()) g = hn::IfThenElseZero(first_lanes<T>(count), g);
    hn::StoreU(g, d, ds + at);
  });
}

template <class T>
HWY_INLINE T dot_of(const T* a, const T* b, int64_t n) {
  const TileTag<T> d;
  auto sum = hn::Zero(d);
  each_vector(d, n, [&](int64_t i, int64_t count) HWY_ATTR {
    sum = hn::MulAdd(load_first(d, a + i, count, T{0}), load_first(d, b + i, count, T{0}), sum);
  });
  return sum_lanes(d, sum);
}

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
