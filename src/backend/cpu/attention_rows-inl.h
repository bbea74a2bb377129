// One query's scores of a block of keys: softmax and its gradient. Included once per instruction
// set, see "hwy/foreach_target.h".
#include "attention_tiles-inl.h"

#if defined(PIPER_CPU_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PIPER_CPU_ATTENTION_ROWS_INL_H_
#undef PIPER_CPU_ATTENTION_ROWS_INL_H_
#else
#define PIPER_CPU_ATTENTION_ROWS_INL_H_
#endif

#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The first `seen` of `width` scores, whole panels; behind those stands anything at first.
template <class T>
struct ScoreRow {
  T* s = nullptr;
  int64_t panel_step = 0;
  int64_t seen = 0, width = 0;
  T scale = 1;                    // of the products
  T cap = 0;                      // c > 0: c·tanh(score / c)
  const T* add = nullptr;         // terms, or null
  const uint8_t* keep = nullptr;  // or null
  int64_t mask_step = 1;          // 0: one term or one keep for all keys
  T masked = 0;                   // the score where `keep` is 0
  int64_t at(int64_t key) const { return key / kPanel * panel_step + key % kPanel; }
};

// Calls f(place, key, count) for each vector of the scores that are seen.
template <class T, class F>
HWY_INLINE void each_score(const ScoreRow<T>& row, F f) {
  const int64_t lanes = tile_lanes<T>();
  int64_t j = 0;
  for (; j + lanes <= row.seen; j += lanes) f(row.at(j), j, lanes);
  if (j < row.seen) f(row.at(j), j, row.seen - j);
}
template <class T>
HWY_INLINE hn::Mask<TileTag<T>> first_lanes(int64_t count) {
  return hn::FirstN(TileTag<T>(), static_cast<size_t>(count));
}
// Zeroes behind the last vector that holds a score that is seen.
template <class T>
HWY_INLINE void clear_unseen(const ScoreRow<T>& row, T* s) {
  const TileTag<T> d;
  const int64_t lanes = tile_lanes<T>();
  for (int64_t j = (row.seen + lanes - 1) / lanes * lanes; j < row.width; j += lanes)
    hn::StoreU(hn::Zero(d), d, s + row.at(j));
}

// Products become scores where that is more than a factor; what factor is left.
template <class T>
T to_scores(const ScoreRow<T>& row, T* slope) {
  const TileTag<T> d;
  if (row.cap == 0 && !row.add && !row.keep) return row.scale;
  const auto scale = hn::Set(d, row.scale), one = hn::Set(d, T{1});
  const auto cap = hn::Set(d, row.cap),
             inner = hn::Set(d, row.cap > 0 ? row.scale / row.cap : T{0});
  each_score(row, [&](int64_t at, int64_t j, int64_t count) HWY_ATTR {
    auto x = hn::LoadU(d, row.s + at);
    if (row.cap > 0) {
      const auto t = tanh_of(d, hn::Mul(x, inner));
      if (slope) hn::StoreU(hn::Mul(scale, hn::NegMulAdd(t, t, one)), d, slope + j);
      x = hn::Mul(cap, t);
    } else {
      x = hn::Mul(x, scale);
    }
    if (row.add) {
      x = hn::Add(x,
                  row.mask_step ? load_first(d, row.add + j, count, T{0}) : hn::Set(d, *row.add));
    }
    hn::StoreU(x, d, row.s + at);
  });
  for (int64_t j = 0; row.keep && j < row.seen; ++j)
    if (!row.keep[j * row.mask_step]) row.s[row.at(j)] = row.masked;
  return T{1};
}

template <class T>
bool none_seen(const ScoreRow<T>& row) {
  for (int64_t j = 0; j < row.seen; ++j)
    if (row.s[row.at(j)] != -std::numeric_limits<T>::infinity()) return false;
  return true;
}

// top becomes the greatest of itself and the scores; `keep` what sums so far are to be taken times.
template <class T>
HWY_INLINE void raise_top(const ScoreRow<T>& row, T factor, T& top, T& keep) {
  const TileTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity()), f = hn::Set(d, factor);
  auto best = hn::Set(d, top);
  each_score(row, [&](int64_t at, int64_t, int64_t count) HWY_ATTR {
    const auto x = hn::Mul(hn::LoadU(d, row.s + at), f);
    best = hn::Max(best,
                   count == tile_lanes<T>() ? x : hn::IfThenElse(first_lanes<T>(count), x, lowest));
  });
  const T old = top;
  top = hn::GetLane(hn::MaxOfLanes(d, best));
  keep = old == top                                   ? T{1}
         : old == -std::numeric_limits<T>::infinity() ? T{0}
                                                      : std::exp(old - top);
}

// Scores become exponentials of scores less `top`, 0 where they are not seen; their sum.
template <class T>
HWY_INLINE T exponentials(const ScoreRow<T>& row, T factor, T top) {
  const TileTag<T> d;
  if (row.seen == 0 || (top == -std::numeric_limits<T>::infinity() && none_seen(row))) {
    for (int64_t j = 0; j < row.width; j += kPanel)
      std::memset(row.s + row.at(j), 0, static_cast<size_t>(kPanel) * sizeof(T));
    return T{0};
  }
  const auto shift = hn::Set(d, top), f = hn::Set(d, factor);
  auto sum = hn::Zero(d);
  each_score(row, [&](int64_t at, int64_t, int64_t count) HWY_ATTR {
    auto e = exp_of_negative(d, hn::MulSub(hn::LoadU(d, row.s + at), f, shift));
    if (count < tile_lanes<T>()) e = hn::IfThenElseZero(first_lanes<T>(count), e);
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, row.s + at);
  });
  clear_unseen(row, row.s);
  return sum_lanes(d, sum);
}

// 1 / sum and the logarithm of the whole sum; no key seen: 0 and the greatest number.
template <class T>
void log_sums(const T* top, const T* sum, int64_t rows, T* inverse, T* lse) {
  const TileTag<T> d;
  const auto greatest = hn::Set(d, std::numeric_limits<T>::max());
  each_vector(d, rows, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto s = load_first(d, sum + i, count, T{1});
    const auto none = hn::Eq(s, hn::Zero(d));
    store_first(d, hn::IfThenElse(none, hn::Zero(d), hn::Div(hn::Set(d, T{1}), s)), inverse + i,
                count);
    if (!lse) return;
    const auto all = hn::Add(load_first(d, top + i, count, T{0}), log_of(d, s));
    store_first(d, hn::IfThenElse(none, greatest, all), lse + i, count);
  });
}

// Products become weights p, adjoints of weights in ds those of the products, by p·(ds - dot)·the
// slope of the score. `slope` holds `width` elements of scratch; raw, unless null, gets p·(ds -
// dot).
template <class T>
void gradient(const ScoreRow<T>& row, T lse, T dot, T* ds, T* slope, T* raw) {
  const TileTag<T> d;
  const T factor = to_scores(row, slope);
  const auto f = hn::Set(d, factor), shift = hn::Set(d, lse), middle = hn::Set(d, dot);
  const auto scale = hn::Set(d, row.scale);
  each_score(row, [&](int64_t at, int64_t j, int64_t count) HWY_ATTR {
    auto p = exp_of_negative(d, hn::MulSub(hn::LoadU(d, row.s + at), f, shift));
    auto g = hn::Mul(p, hn::Sub(hn::LoadU(d, ds + at), middle));
    if (raw) hn::StoreU(g, d, raw + j);
    g = hn::Mul(g, row.cap > 0 ? hn::LoadU(d, slope + j) : scale);
    if (count < tile_lanes<T>()) {
      p = hn::IfThenElseZero(first_lanes<T>(count), p);
      g = hn::IfThenElseZero(first_lanes<T>(count), g);
    }
    hn::StoreU(p, d, row.s + at);
    hn::StoreU(g, d, ds + at);
  });
  if (row.keep && row.masked != -std::numeric_limits<T>::infinity()) {
    for (int64_t j = 0; j < row.seen; ++j)  // their score is a constant, their weight is not 0
      if (!row.keep[j * row.mask_step]) ds[row.at(j)] = 0;
  }
  clear_unseen(row, row.s);
  clear_unseen(row, ds);
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
