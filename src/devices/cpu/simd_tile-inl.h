// A tile of a matrix product, in registers. Included once per instruction set, see
// "hwy/foreach_target.h".
#include "gemm.h"

#if defined(PIPER_CPU_SIMD_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PIPER_CPU_SIMD_TILE_INL_H_
#undef PIPER_CPU_SIMD_TILE_INL_H_
#else
#define PIPER_CPU_SIMD_TILE_INL_H_
#endif

#include "hwy/highway.h"
#include "simd_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#define PIPER_TILE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

// Computes one tile: c[rows][two vectors] = a · b over `depth`, added to `old` where there is one.
// Element (i, k) of a is at i × a_step + k, or at i + k × a_step where its rows are adjacent. b
// is a panel, or made on the way from the rows of `source`.
template <class T>
struct Tile {
  int64_t depth = 0;
  const T* a = nullptr;
  int64_t a_step = 0;
  T* b = nullptr;
  const T* source = nullptr;
  int64_t source_step = 0;
  T* c = nullptr;
  int64_t c_step = 0;
  const T* old = nullptr;
  int64_t old_step = 0;
  bool far = false;           // c is in no near cache
  Ahead<T>* ahead = nullptr;  // what else is fetched, `share` lines at a time
  int64_t share = 0;
  const T* next = nullptr;  // what `then` reads of a matrix for the next tile; null: nothing
  int64_t next_step = 0;
  const Gemm* then = nullptr;   // what is done with the elements, when they are finished, or null
  int64_t row = 0, column = 0;  // of c's first element, for `then`
  const T* with(int t) const {
    return static_cast<const T*>(then->then[t].at) + row * then->then[t].step + column;
  }
};

// Fetches `rows` rows of what is about to be touched at one column.
template <int kRowCount, class T>
HWY_INLINE void fetch_rows(const T* at, int64_t step) {
  for (int i = 0; i < kRowCount; ++i, at += step) __builtin_prefetch(at);
}

// Does the end of a tile's depth for a few rows after the other, so that their elements are stored
// while the next ones multiply. All at once, the stores would keep the processor waiting.
#if HWY_TARGET <= HWY_AVX3
constexpr int64_t kTail = 8;
constexpr int kTogether = 4;
#else
constexpr int64_t kTail = 0;
constexpr int kTogether = kRows;
#endif

// Lines of each row of a that are fetched before they are needed: what takes as long as memory
// does. Of rows that are a power of two apart, the nearest cache holds little more.
constexpr int64_t kLinesAhead = 24 / kRows;

// What follows is of tile(), for row i: its sums, in two vectors; a step along the depth, for the
// rows of the body or, of the last steps, for kTogether of them; what is combined with the sums,
// and the store. PIPER_TOGETHER ends kTogether rows.
#define PIPER_DECLARE(i) auto x##i = hn::Zero(d), y##i = hn::Zero(d);
#define PIPER_STEP(i)                                                                       \
  if constexpr (i < R) {                                                                    \
    const T* row = i / kGroup == 0 ? a0 : i / kGroup == 1 ? a1 : i / kGroup == 2 ? a2 : a3; \
    const auto ai = hn::Set(d, row[(i % kGroup) * row_step]);                               \
    x##i = hn::MulAdd(ai, b0, x##i);                                                        \
    y##i = hn::MulAdd(ai, b1, y##i);                                                        \
  }
#define PIPER_TAIL(i) \
  if constexpr (i / kTogether == kThese) PIPER_STEP(i)
#define PIPER_COMBINE(i, OP)                         \
  if constexpr (i < R && i / kTogether == kThese) {  \
    const T* from = with + (i % kTogether) * step;   \
    x##i = hn::OP(x##i, hn::LoadU(d, from));         \
    y##i = hn::OP(y##i, hn::LoadU(d, from + lanes)); \
  }
#define PIPER_ADD(i) PIPER_COMBINE(i, Add)
#define PIPER_MUL(i) PIPER_COMBINE(i, Mul)
#define PIPER_STORE(i)                              \
  if constexpr (i < R && i / kTogether == kThese) { \
    hn::StoreU(x##i, d, c);                         \
    hn::StoreU(y##i, d, c + lanes);                 \
    c += c_step;                                    \
  }
#define PIPER_TOGETHER(these)                                                 \
  if constexpr (these * kTogether < R) {                                      \
    constexpr int kThese = these;                                             \
    const T* const start[] = {a0, a1, a2, a3, b};                             \
    for (int64_t k = 0; tail && k < kTail; ++k, b += b_step) {                \
      const auto b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + lanes);          \
      PIPER_TILE_ROWS(PIPER_TAIL)                                             \
      a0 += depth_step, a1 += depth_step, a2 += depth_step, a3 += depth_step; \
    }                                                                         \
    a0 = start[0], a1 = start[1], a2 = start[2], a3 = start[3], b = start[4]; \
    if (old) {                                                                \
      const T* with = old + these * kTogether * t.old_step;                   \
      const int64_t step = t.old_step;                                        \
      PIPER_TILE_ROWS(PIPER_ADD)                                              \
    }                                                                         \
    for (int o = 0; o < thens; ++o) {                                         \
      const int64_t step = t.then->then[o].step;                              \
      const T* with = t.with(o) + these * kTogether * step;                   \
      if (t.then->then[o].multiply) {                                         \
        PIPER_TILE_ROWS(PIPER_MUL)                                            \
      } else {                                                                \
        PIPER_TILE_ROWS(PIPER_ADD)                                            \
      }                                                                       \
    }                                                                         \
    PIPER_TILE_ROWS(PIPER_STORE)                                              \
  }

// Fetches a's elements, at the end those of the tile below, while it multiplies: rows of a are too
// short, and those of a tile too many, for the processor to guess them. The first tile (kPacks),
// which nobody fetched for, fetches its own, kSoon of k ahead. c is fetched row by row: all at
// once, its lines would keep those of a and b waiting.
template <int R, bool kRowsAdjacent, bool kPacks, class T>
HWY_NOINLINE void tile(const Tile<T>& t) {
  constexpr int64_t kSoon = 16;
  // Four registers find the rows, each with no, one and two steps: more would not fit.
  constexpr int kGroup = kRowsAdjacent ? R : 3;
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t row_step = kRowsAdjacent ? 1 : t.a_step, depth_step = kRowsAdjacent ? t.a_step : 1;
  const T *a0 = t.a, *a1 = a0 + kGroup * row_step, *a2 = a1 + kGroup * row_step,
          *a3 = a2 + kGroup * row_step;
  const T* b = kPacks ? t.source : t.b;
  const int64_t b_step = kPacks ? t.source_step : 2 * lanes;
  T *packed = t.b, *c = t.c;
  int unfetched = t.far ? R : 0;  // rows of c
  const bool tail = t.depth >= kTail;
  const int64_t body = tail ? t.depth - kTail : t.depth;
  PIPER_TILE_ROWS(PIPER_DECLARE)
  for (int64_t k = 0; k < body;) {
    // All that the innermost loop does not need is read again: registers are few.
    asm volatile("" ::: "memory");
    const int64_t begin = k, stop = HWY_MIN(t.depth - (tail ? kTail : 0), k + kLine<T>);
    if constexpr (!kRowsAdjacent && kPacks) fetch_rows<R>(a0 + 2 * kLine<T>, row_step);
    HWY_UNROLL(4)
    for (; k < stop; ++k) {
      if constexpr (kRowsAdjacent) __builtin_prefetch(a0 + 2 * R - 1);
      const auto b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + lanes);
      if constexpr (kPacks) {
        if constexpr (kRowsAdjacent) __builtin_prefetch(a0 + kSoon * depth_step + R - 1);
        __builtin_prefetch(b + kSoon * b_step);
        __builtin_prefetch(b + kSoon * b_step + lanes);
        hn::StoreU(b0, d, packed);
        hn::StoreU(b1, d, packed + lanes);
        packed += 2 * lanes;
      }
      PIPER_TILE_ROWS(PIPER_STEP)
      a0 += depth_step, a1 += depth_step, a2 += depth_step, a3 += depth_step;
      // The compiler would keep other ones, and more than there are.
      if constexpr (!kRowsAdjacent) asm("" : "+r"(a0), "+r"(a1), "+r"(a2), "+r"(a3));
      b += b_step;
    }
    // After the multiply-adds: a tile's first ones would wait for all of this.
    if (t.share > 0) t.ahead->fetch(t.share);
    if constexpr (!kRowsAdjacent) {
      const int64_t soon = begin + kLinesAhead * kLine<T>, below = soon - t.depth;
      fetch_rows<R>(t.a + (below < 0 ? soon : R * row_step + below), row_step);
    }
    for (int i = 0; i < 2 && unfetched > 0; ++i, --unfetched, c += t.c_step) {
      __builtin_prefetch(c, 1);
      __builtin_prefetch(c + 2 * lanes - 1, 1);
      if (!t.next) continue;
      const T* const next = t.next + (R - unfetched) * t.next_step;
      __builtin_prefetch(next);
      __builtin_prefetch(next + 2 * lanes - 1);
    }
  }
  for (int64_t k = 0; kRowsAdjacent && tail && k < kTail; ++k)
    __builtin_prefetch(a0 + k * depth_step + 2 * R - 1);
  for (int64_t k = 0; kPacks && tail && k < kTail; ++k, packed += 2 * lanes) {
    hn::StoreU(hn::LoadU(d, b + k * b_step), d, packed);
    hn::StoreU(hn::LoadU(d, b + k * b_step + lanes), d, packed + lanes);
  }
  c = t.c;
  const int64_t c_step = t.c_step;
  const T* const old = t.old;
  const int thens = t.then ? t.then->thens : 0;
  PIPER_TOGETHER(0)
  PIPER_TOGETHER(1)
  PIPER_TOGETHER(2)
  PIPER_TOGETHER(3)
}

template <class T>
using TileFn = void (*)(const Tile<T>&);

// Returns the function for a tile of `rows` rows.
template <bool kRowsAdjacent, class T>
TileFn<T> tile_of(int64_t rows) {
#define PIPER_CASE(i)                                               \
  if constexpr (i < kRows) {                                        \
    if (rows == i + 1) return tile<i + 1, kRowsAdjacent, false, T>; \
  }
  PIPER_TILE_ROWS(PIPER_CASE)
  return nullptr;
}

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
