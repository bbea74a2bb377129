// Matrix products in register tiles, compiled once per instruction set.
//
// Panels of b, kDepth × two vectors, are packed so that a tile walks them without gaps; a is walked
// as it lies, and packed only where its columns lie far apart. A tile of kRows × two vectors stays
// in registers over the whole depth.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_gemm.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_pack-inl.h"
// clang-format on
#include <algorithm>
#include <cstring>

#include "gemm.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#define PIPER_TILE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

// One tile: c[rows][two vectors] = a · b over `depth`, added to `old` where there is one. Element
// (i, k) of a stands at i × a_step + k, or at i + k × a_step where its rows are adjacent. b is a
// panel, or made on the way from the rows of `source`.
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
  bool far = false;             // c is in no near cache
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

// Fetches a's elements of the tile below while it multiplies: rows of a are too short, and those of
// a tile too many, for the processor to guess them. The first tile (kPacks), which nobody fetched
// for, fetches its own, kSoon of k ahead. c is fetched row by row: all at once, its lines would
// keep those of a and b waiting.
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
#define PIPER_DECLARE(i) auto x##i = hn::Zero(d), y##i = hn::Zero(d);
  PIPER_TILE_ROWS(PIPER_DECLARE)
  for (int64_t k = 0; k < t.depth;) {
    const int64_t stop = HWY_MIN(t.depth, k + kLine<T>);
    if constexpr (!kRowsAdjacent) fetch_rows<R>(a0 + R * row_step, row_step);
    if constexpr (!kRowsAdjacent && kPacks) fetch_rows<R>(a0 + 2 * kLine<T>, row_step);
    for (int i = 0; i < 2 && unfetched > 0; ++i, --unfetched, c += t.c_step) {
      __builtin_prefetch(c, 1);
      __builtin_prefetch(c + 2 * lanes - 1, 1);
    }
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
#define PIPER_STEP(i)                                                                       \
  if constexpr (i < R) {                                                                    \
    const T* row = i / kGroup == 0 ? a0 : i / kGroup == 1 ? a1 : i / kGroup == 2 ? a2 : a3; \
    const auto ai = hn::Set(d, row[(i % kGroup) * row_step]);                               \
    x##i = hn::MulAdd(ai, b0, x##i);                                                        \
    y##i = hn::MulAdd(ai, b1, y##i);                                                        \
  }
      PIPER_TILE_ROWS(PIPER_STEP)
      a0 += depth_step, a1 += depth_step, a2 += depth_step, a3 += depth_step;
      // The compiler would keep other ones, and more than there are.
      if constexpr (!kRowsAdjacent) asm("" : "+r"(a0), "+r"(a1), "+r"(a2), "+r"(a3));
      b += b_step;
    }
  }
#define PIPER_COMBINE(i, OP)                         \
  if constexpr (i < R) {                             \
    x##i = hn::OP(x##i, hn::LoadU(d, with));         \
    y##i = hn::OP(y##i, hn::LoadU(d, with + lanes)); \
    with += step;                                    \
  }
#define PIPER_ADD(i) PIPER_COMBINE(i, Add)
#define PIPER_MUL(i) PIPER_COMBINE(i, Mul)
  if (t.old) {
    const T* with = t.old;
    const int64_t step = t.old_step;
    PIPER_TILE_ROWS(PIPER_ADD)
  }
  for (int then = 0; t.then && then < t.then->thens; ++then) {
    const T* with = t.with(then);
    const int64_t step = t.then->then[then].step;
    if (t.then->then[then].multiply) {
      PIPER_TILE_ROWS(PIPER_MUL)
    } else {
      PIPER_TILE_ROWS(PIPER_ADD)
    }
  }
  c = t.c;
  const int64_t c_step = t.c_step;
#define PIPER_STORE(i)              \
  if constexpr (i < R) {            \
    hn::StoreU(x##i, d, c);         \
    hn::StoreU(y##i, d, c + lanes); \
    c += c_step;                    \
  }
  PIPER_TILE_ROWS(PIPER_STORE)
}

template <class T>
using TileFn = void (*)(const Tile<T>&);

// The function for a tile of `rows` rows.
template <bool kRowsAdjacent, class T>
TileFn<T> tile_of(int64_t rows) {
#define PIPER_CASE(i)                                               \
  if constexpr (i < kRows) {                                        \
    if (rows == i + 1) return tile<i + 1, kRowsAdjacent, false, T>; \
  }
  PIPER_TILE_ROWS(PIPER_CASE)
  return nullptr;
}

// What all tiles of one packed panel of b share: `height` rows from `c` on; blocks of kRows rows of
// a are `block_step` apart.
template <class T>
struct Panel {
  const T* a = nullptr;
  int64_t a_step = 0, block_step = 0, height = 0, depth = 0;
  T* b = nullptr;
  const T* source = nullptr;  // what the first tile packs b from
  int64_t source_step = 0;
  int64_t columns = 0;
  T* c = nullptr;
  int64_t c_step = 0;
  const T* old = nullptr;
  int64_t old_step = 0;
  const Gemm* then = nullptr;   // what is to be done with the finished elements, or null
  int64_t row = 0, column = 0;  // of c's first element here
};

// What Gemm::then says, on a part of a tile.
template <class T>
void finish(const Gemm& g, int64_t row, int64_t column, int64_t rows, int64_t columns, T* c,
            int64_t c_step) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < rows; ++i, c += c_step) {
    const T* with[std::size(decltype(g.then){})] = {};
    for (int t = 0; t < g.thens; ++t)
      with[t] = static_cast<const T*>(g.then[t].at) + (row + i) * g.then[t].step + column;
    const auto finish_at = [&](auto tag, int64_t j) {
      auto x = hn::LoadU(tag, c + j);
      for (int t = 0; t < g.thens; ++t) {
        const auto y = hn::LoadU(tag, with[t] + j);
        x = g.then[t].multiply ? hn::Mul(x, y) : hn::Add(x, y);
      }
      hn::StoreU(x, tag, c + j);
    };
    int64_t j = 0;
    for (; j + lanes <= columns; j += lanes) finish_at(d, j);
    for (; j < columns; ++j) finish_at(one, j);
  }
}

// The rows of a tile, chain after chain, while its part of c is near.
template <bool kRowsAdjacent, class T>
HWY_INLINE void tile_chains(Tile<T> t, int64_t rows, int64_t depth, int64_t width) {
  t.far = true;
  const Gemm* then = t.then;
  for (int o = 0; then && o < then->thens; ++o) {
    const T* with = t.with(o);
    const int64_t step = then->then[o].step;
    for (int64_t i = 0; i < rows && step > 0; ++i) {
      __builtin_prefetch(with + i * step);
      __builtin_prefetch(with + i * step + width - 1);
    }
  }
  for (int64_t k = 0; k < depth; k += kGemmChain) {
    t.depth = HWY_MIN(kGemmChain, depth - k);
    t.then = k + t.depth == depth ? then : nullptr;
    if (t.source) {
      tile<kRows, kRowsAdjacent, true>(t);
      t.source += t.depth * t.source_step;
    } else if (rows == kRows) {
      tile<kRows, kRowsAdjacent, false>(t);
    } else {
      tile_of<kRowsAdjacent, T>(rows)(t);
    }
    t.a += t.depth * (kRowsAdjacent ? t.a_step : 1);
    t.b += t.depth * width;
    t.old = t.c, t.old_step = t.c_step, t.far = false;
  }
}

template <bool kRowsAdjacent, class T>
HWY_INLINE void panel_tiles(const Panel<T>& p, Ahead<T>& ahead) {
  constexpr hn::ScalableTag<T> d;
  constexpr int64_t kMaxWidth = 2 * hn::MaxLanes(d);
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN T edge[kRows * kMaxWidth] = {};
  const auto bytes = static_cast<size_t>(p.columns) * sizeof(T);
  const int64_t share = ahead.lines() / ((p.height + kRows - 1) / kRows) + 1;
  for (int64_t i = 0; i < p.height; i += kRows) {
    const int64_t rows = HWY_MIN(int64_t{kRows}, p.height - i);
    const T* old = p.old ? p.old + i * p.old_step : nullptr;
    T* c = p.c + i * p.c_step;
    ahead.fetch(share);
    const T* a = p.a + i / kRows * p.block_step;
    if (p.columns == width) {
      Tile<T> t{0, a, p.a_step, p.b, nullptr, p.source_step, c, p.c_step, old, p.old_step};
      if (i == 0) t.source = p.source;
      t.then = p.then, t.row = p.row + i, t.column = p.column;
      tile_chains<kRowsAdjacent>(t, rows, p.depth, width);
      continue;
    }
    for (int64_t r = 0; r < rows && old; ++r)
      std::memcpy(edge + r * width, old + r * p.old_step, bytes);
    tile_chains<kRowsAdjacent>(
        Tile<T>{0, a, p.a_step, p.b, nullptr, 0, edge, width, old ? edge : nullptr, width}, rows,
        p.depth, width);
    for (int64_t r = 0; r < rows; ++r) std::memcpy(c + r * p.c_step, edge + r * width, bytes);
    if (p.then) finish(*p.then, p.row + i, p.column, rows, p.columns, c, p.c_step);
  }
}

// The part of the product in c's columns [n0, n0 + columns) from depth [k0, k0 + depth). Panels of
// b are packed as the first rows need them, and wait for the other rows.
template <class T>
void gemm_block(const Gemm& g, const T* a, const T* b, T* c, int64_t k0, int64_t depth, int64_t n0,
                int64_t columns, T* panels, T* packed) {
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const bool pack = gemm_packs_a(g) && columns > width;
  Panel<T> p;
  p.depth = depth, p.c_step = g.row_of_c(), p.a_step = g.row_of_a();
  p.then = g.thens > 0 && k0 + depth == g.k ? &g : nullptr;
  if (pack) p.a_step = g.trans_a ? kRows : depth + kGemmPad;
  p.block_step = g.trans_a ? pack ? depth * kRows + kGemmPad : kRows : kRows * p.a_step;
  for (int64_t m0 = 0; m0 < g.m; m0 += p.height) {
    p.height = gemm_height(g.m - m0);
    p.a = pack ? packed : g.trans_a ? a + k0 * p.a_step + m0 : a + m0 * p.a_step + k0;
    if (pack) pack_a(g, a, m0, p.height, k0, depth, packed);
    for (int64_t n = n0; n < n0 + columns; n += width) {
      // Where no other rows wait for it, one place that stays near serves all panels.
      T* own = p.height == g.m ? panels : panels + (n - n0) * depth;
      // Only read: whoever packs writes to `own`.
      p.b = g.packed_b ? const_cast<T*>(b + n * g.b_step + k0 * width) : own;
      p.columns = HWY_MIN(width, n0 + columns - n);
      p.c = c + m0 * p.c_step + n;
      p.row = m0, p.column = n;
      p.old = nullptr;
      if (k0 > 0) {
        p.old = p.c, p.old_step = p.c_step;
      } else if (g.accumulate) {
        p.old_step = g.old ? g.row_of_old() : p.c_step;
        p.old = g.old ? static_cast<const T*>(g.old) + m0 * p.old_step + n : p.c;
      }
      Ahead<T> ahead;
      p.source = nullptr;
      if (!g.packed_b && m0 == 0 && !g.trans_b && p.columns == width && p.height >= kRows) {
        p.source = b + k0 * g.row_of_b() + n, p.source_step = g.row_of_b();
      } else if (!g.packed_b && m0 == 0) {
        pack_b(g, b, k0, depth, n, width, own);
      }
      if (!g.packed_b && m0 == 0 && n + width < n0 + columns)
        ahead = Ahead<T>(g, b, k0, depth, n + width, HWY_MIN(width, n0 + columns - n - width));
      if (g.trans_a) {
        panel_tiles<true>(p, ahead);
      } else {
        panel_tiles<false>(p, ahead);
      }
    }
  }
}

template <class T>
void gemm_pack(const Gemm& g, const T* b, T* packed) {
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  for (int64_t n = 0; n < g.n; n += width) pack_b(g, b, 0, g.k, n, width, packed + n * g.k);
}

template <class T>
void gemm(const Gemm& g, const T* a, const T* b, T* c, T* scratch) {
  for (int64_t i = 0; g.k == 0 && i < g.m; ++i) {
    const auto bytes = static_cast<size_t>(g.n) * sizeof(T);
    T* row = c + i * g.row_of_c();
    if (!g.accumulate) std::memset(row, 0, bytes);
    if (g.accumulate && g.old)
      std::memcpy(row, static_cast<const T*>(g.old) + i * g.row_of_old(), bytes);
  }
  T* packed = scratch + kGemmDepth * kGemmColumns;
  for (int64_t n0 = 0; n0 < g.n; n0 += kGemmColumns) {
    const int64_t columns = HWY_MIN(kGemmColumns, g.n - n0);
    for (int64_t k0 = 0; k0 < g.k; k0 += kGemmDepth) {
      gemm_block(g, a, b, c, k0, HWY_MIN(kGemmDepth, g.k - k0), n0, columns, scratch, packed);
    }
  }
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }
GemmFn<float> GemmF32() { return gemm<float>; }
GemmFn<double> GemmF64() { return gemm<double>; }
GemmPackFn<float> PackF32() { return gemm_pack<float>; }
GemmPackFn<double> PackF64() { return gemm_pack<double>; }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(TargetName);
HWY_EXPORT(GemmF32);
HWY_EXPORT(GemmF64);
HWY_EXPORT(PackF32);
HWY_EXPORT(PackF64);

const char* gemm_target() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

template <>
GemmFn<float> gemm_fn() {
  return HWY_DYNAMIC_DISPATCH(GemmF32)();
}
template <>
GemmFn<double> gemm_fn() {
  return HWY_DYNAMIC_DISPATCH(GemmF64)();
}

template <>
GemmPackFn<float> gemm_pack_fn() {
  return HWY_DYNAMIC_DISPATCH(PackF32)();
}
template <>
GemmPackFn<double> gemm_pack_fn() {
  return HWY_DYNAMIC_DISPATCH(PackF64)();
}

constexpr int64_t kWidest = 32;  // columns of a panel, at most
int64_t gemm_packed_size(const Gemm& g) { return (g.n + kWidest - 1) / kWidest * kWidest * g.k; }

int64_t gemm_scratch(const Gemm& g) {
  const int64_t columns = std::min((g.n + kWidest - 1) / kWidest * kWidest, kGemmColumns);
  const int64_t depth = std::min(g.k, kGemmDepth);
  if (gemm_packs_a(g))
    return kGemmDepth * kGemmColumns + (kGemmDepth + kGemmPad) * kGemmHeight * 3 / 2;
  return g.packed_b ? 0 : depth * columns;
}

}  // namespace piper::cpu
#endif
