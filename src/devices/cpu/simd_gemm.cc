// Matrix products in register tiles, compiled once per instruction set.
//
// Panels of b, kGemmDepth × two vectors, are packed so that a tile walks them without gaps; a is
// walked as it is, and packed where that would not stay in the caches. In a training step
// operands come from the third-level cache: whatever is needed next is fetched while a tile
// multiplies.
#include "simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_gemm.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "simd_tile-inl.h"
// clang-format on
#include <algorithm>
#include <cstring>

#include "gemm.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Holds what all tiles of one packed panel of b share: `height` rows from `c` on; blocks of kRows
// rows of a are `block_step` apart.
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
  const Gemm* then = nullptr;      // what is to be done with the finished elements, or null
  int64_t row = 0, column = 0;     // of c's first element here
  Ahead<T>* rows_ahead = nullptr;  // what will be packed of a next, fetched by all tiles
  int64_t rows_share = 0;
};

// Does what Gemm::then says, on a part of a tile.
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

// Finishes the rows of a tile, chain after chain, while its part of c is near. `t` is not copied:
// that would wait for the stores that made it.
template <bool kRowsAdjacent, class T>
HWY_INLINE void tile_chains(Tile<T>& t, int64_t rows, int64_t depth, int64_t width,
                            const Gemm* then) {
  t.far = true;
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

// Returns the first operand of `then` that is a matrix, or null.
inline const GemmThen* matrix_of(const Gemm* g) {
  for (int o = 0; g && o < g->thens; ++o)
    if (g->then[o].step > 0) return &g->then[o];
  return nullptr;
}

template <bool kRowsAdjacent, class T>
HWY_INLINE void panel_tiles(const Panel<T>& p, Ahead<T>& ahead) {
  constexpr hn::ScalableTag<T> d;
  constexpr int64_t kMaxWidth = 2 * hn::MaxLanes(d);
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN T edge[kRows * kMaxWidth];
  const auto bytes = static_cast<size_t>(p.columns) * sizeof(T);
  const bool whole = p.columns == width;
  if (!whole) std::fill_n(edge, kRows * width, T{0});
  const GemmThen* const matrix = whole ? matrix_of(p.then) : nullptr;
  const int64_t times = (p.height + kRows - 1) / kRows * ((p.depth + kLine<T> - 1) / kLine<T>);
  Tile<T> t;
  t.a_step = p.a_step, t.source_step = p.source_step;
  t.c_step = whole ? p.c_step : width, t.column = p.column;
  t.ahead = &ahead, t.share = (ahead.lines() + times - 1) / times;
  for (int64_t i = 0; i < p.height; i += kRows) {
    p.rows_ahead->fetch(p.rows_share);
    const int64_t rows = HWY_MIN(int64_t{kRows}, p.height - i);
    const T* old = p.old ? p.old + i * p.old_step : nullptr;
    T* c = p.c + i * p.c_step;
    for (int64_t r = 0; r < rows && old && !whole; ++r)
      std::memcpy(edge + r * width, old + r * p.old_step, bytes);
    t.a = p.a + i / kRows * p.block_step, t.b = p.b, t.source = i == 0 ? p.source : nullptr;
    t.c = whole ? c : edge, t.row = p.row + i;
    t.old = whole || !old ? old : edge, t.old_step = whole ? p.old_step : width;
    if (matrix) {  // the tile below, or the next panel's first one
      const bool below = i + kRows < p.height;
      t.next_step = matrix->step;
      t.next = static_cast<const T*>(matrix->at) + (p.row + (below ? i + kRows : 0)) * t.next_step +
               p.column + (below ? 0 : width);
    }
    tile_chains<kRowsAdjacent>(t, rows, p.depth, width, whole ? p.then : nullptr);
    if (whole) continue;
    for (int64_t r = 0; r < rows; ++r) std::memcpy(c + r * p.c_step, edge + r * width, bytes);
    if (p.then) finish(*p.then, p.row + i, p.column, rows, p.columns, c, p.c_step);
  }
}

// Names the part of a product in c's columns [n0, n0 + columns) from depth [k0, k0 + depth).
struct Part {
  int64_t k0 = 0, depth = 0, n0 = 0, columns = 0;
  int64_t end() const { return n0 + columns; }
};

// Returns the panel at column n of a packed b, from depth k on.
template <class T>
const T* packed_panel(const Gemm& g, const T* b, int64_t k, int64_t n, int64_t width) {
  return b + n * g.k + k * width;
}

// Returns what will be packed after the panel at column `n`: the next one, if these are the first
// rows; the next part's first one after the last panel of the last rows.
template <class T>
Ahead<T> next_panel(const Gemm& g, const T* b, const Part& part, int64_t n, int64_t width,
                    bool first_rows, bool last_rows) {
  int64_t k = part.k0, next = n + width;
  if (next >= part.end()) {
    if (!last_rows) return {};
    k += part.depth, next = part.n0;
    if (k >= g.k) k = 0, next = part.end();
  } else if (!first_rows) {
    return {};
  }
  if (next >= g.n) return {};
  if (g.packed_b) {
    const int64_t depth = HWY_MIN(g.cut.depth, g.k - k);
    return Ahead<T>(packed_panel(g, b, k, next, width), 1, depth * width, 0);
  }
  return Ahead<T>(g, b, k, HWY_MIN(g.cut.depth, g.k - k), next, HWY_MIN(width, g.n - next));
}

// Returns what of a will be packed after the rows [m0, m0 + height): the next rows, or the first
// ones of the next depth. Fetched by each tile of the part, so many lines at a time.
template <class T>
Ahead<T> next_rows(const Gemm& g, const T* a, const Part& part, int64_t m0, int64_t height,
                   int64_t& share) {
  int64_t k = part.k0, row = m0 + height;
  if (row == g.m) row = 0, k += part.depth;
  if (k >= g.k) return {};
  const int64_t rows = gemm_height(g.cut, g.m - row), depth = HWY_MIN(g.cut.depth, g.k - k);
  const int64_t step = g.row_of_a();
  const Ahead<T> ahead = g.trans_a ? Ahead<T>(a + k * step + row, depth, rows, step)
                                   : Ahead<T>(a + row * step + k, rows, depth, step);
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const int64_t times = (part.columns + width - 1) / width * ((height + kRows - 1) / kRows);
  share = (ahead.lines() + times - 1) / times;
  return ahead;
}

// Sets where the panel's rows of a and their old values are.
template <class T>
void place_rows(const Gemm& g, const T* a, T* c, const Part& part, int64_t m0, Panel<T>& p) {
  p.c = c + m0 * p.c_step;
  p.row = m0;
  const GemmOld<T> old = old_of(g, p.c, m0, part.k0);
  p.old = old.at, p.old_step = old.step;
  p.a = g.trans_a ? a + part.k0 * p.a_step + m0 : a + m0 * p.a_step + part.k0;
}

// Panels of b are packed as the first rows need them, and wait for the other rows.
template <class T>
void gemm_part(const Gemm& g, const T* a, const T* b, T* c, const Part& part, T* panels,
               T* packed) {
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const bool pack = g.cut.pack_a && part.columns > width;
  Ahead<T> rows_ahead;
  Panel<T> rows;
  rows.rows_ahead = &rows_ahead;
  rows.depth = part.depth, rows.c_step = g.row_of_c();
  rows.then = g.thens > 0 && part.k0 + part.depth == g.k ? &g : nullptr;
  for (int64_t m0 = 0; m0 < g.m; m0 += rows.height) {
    rows.height = gemm_height(g.cut, g.m - m0), rows.a_step = g.row_of_a();
    place_rows(g, a, c, part, m0, rows);
    rows.block_step = g.trans_a ? kRows : kRows * rows.a_step;
    if (pack) {
      pack_a(g, rows.a, rows.height, part.depth, packed);
      rows.a = packed, rows.a_step = g.trans_a ? kRows : part.depth + kGemmPad;
      rows.block_step = kRows * (g.trans_a ? part.depth : rows.a_step);
      if (g.trans_a) rows.block_step += kGemmPad;
      rows_ahead = next_rows(g, a, part, m0, rows.height, rows.rows_share);
    }
    const bool first = m0 == 0, last = m0 + rows.height == g.m;
    for (int64_t n = part.n0; n < part.end(); n += width) {
      Panel<T> p = rows;
      p.columns = HWY_MIN(width, part.end() - n);
      p.c += n, p.column = n;
      if (p.old) p.old += n;
      // Where no other rows wait for it, one place that stays near serves all panels.
      p.b = first && last ? panels : panels + (n - part.n0) * part.depth;
      if (g.packed_b) {
        p.b = const_cast<T*>(packed_panel(g, b, part.k0, n, width));  // only read
      } else if (first && !g.trans_b && p.columns == width && p.height >= kRows) {
        p.source = b + part.k0 * g.row_of_b() + n, p.source_step = g.row_of_b();
      } else if (first) {
        pack_b(g, b, part.k0, part.depth, n, width, p.b);
      }
      Ahead<T> ahead = next_panel(g, b, part, n, width, first, last);
      if (g.trans_a) {
        panel_tiles<true>(p, ahead);
      } else {
        panel_tiles<false>(p, ahead);
      }
    }
  }
}

template <class T>
void gemm(const Gemm& g, const T* a, const T* b, T* c, T* scratch) {
  if (g.m == 0 || g.n == 0) return;
  for (int64_t i = 0; g.k == 0 && i < g.m; ++i) {
    const auto bytes = static_cast<size_t>(g.n) * sizeof(T);
    T* row = c + i * g.row_of_c();
    if (!g.accumulate) std::memset(row, 0, bytes);
    if (g.accumulate && g.old)
      std::memcpy(row, static_cast<const T*>(g.old) + i * g.row_of_old(), bytes);
  }
  if (g.k == 0) return;  // without scratch, too
  T* packed = scratch + g.cut.depth * g.cut.columns;
  for (int64_t n0 = 0; n0 < g.n; n0 += g.cut.columns) {
    const int64_t columns = HWY_MIN(g.cut.columns, g.n - n0);
    for (int64_t k0 = 0; k0 < g.k; k0 += g.cut.depth) {
      const Part part{k0, HWY_MIN(g.cut.depth, g.k - k0), n0, columns};
      gemm_part(g, a, b, c, part, scratch, packed);
    }
  }
}

template <class T>
void gemm_pack(const Gemm& g, const T* b, T* packed, int64_t begin, int64_t end) {
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  for (int64_t n = begin; n < end; n += width) pack_b(g, b, 0, g.k, n, width, packed + n * g.k);
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }
GemmFn<float> GemmF32() { return gemm<float>; }
GemmFn<double> GemmF64() { return gemm<double>; }
GemmPackFn<float> GemmPackF32() { return gemm_pack<float>; }
GemmPackFn<double> GemmPackF64() { return gemm_pack<double>; }

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace piper::cpu {

HWY_EXPORT(TargetName);
HWY_EXPORT(GemmF32);
HWY_EXPORT(GemmF64);
HWY_EXPORT(GemmPackF32);
HWY_EXPORT(GemmPackF64);

std::string_view gemm_target() {
  const std::string_view vectors = HWY_DYNAMIC_DISPATCH(TargetName)();
  return vectors.starts_with("AVX3") && amx_gemm() ? kAmx : vectors;
}

template <>
GemmFn<float> gemm_fn(std::string_view kernels) {
  const bool tiles = kernels == kAmx && amx_gemm();
  return tiles ? amx_gemm() : HWY_DYNAMIC_DISPATCH(GemmF32)();
}
template <>
GemmFn<double> gemm_fn(std::string_view) {
  return HWY_DYNAMIC_DISPATCH(GemmF64)();
}

template <>
GemmPackFn<float> gemm_pack_fn() {
  return HWY_DYNAMIC_DISPATCH(GemmPackF32)();
}
template <>
GemmPackFn<double> gemm_pack_fn() {
  return HWY_DYNAMIC_DISPATCH(GemmPackF64)();
}

namespace {

// Elements.
int64_t vectors_scratch(const ProductCut& cut) {
  return cut.depth * cut.columns + (cut.depth + kGemmPad) * cut.height * 3 / 2;
}

}  // namespace

template <class T>
int64_t gemm_scratch(const Gemm& g, std::string_view kernels) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  if (std::is_same_v<T, float> && gemm_fn<T>(kernels) != gemm_fn<T>(""))
    return amx_scratch(g.n, g.k, g.cut);
  if (g.cut.pack_a) return vectors_scratch(g.cut) * kBytes;
  const int64_t columns =
      std::min((g.n + kGemmWidest - 1) / kGemmWidest * kGemmWidest, g.cut.columns);
  return std::min(g.k, g.cut.depth) * columns * kBytes;
}
template int64_t gemm_scratch<float>(const Gemm& g, std::string_view kernels);
template int64_t gemm_scratch<double>(const Gemm& g, std::string_view kernels);

int64_t gemm_scratch(const ProductCut& cut) {
  return std::max(vectors_scratch(cut) * static_cast<int64_t>(sizeof(double)),
                  amx_scratch(cut.columns, cut.depth, cut));
}

}  // namespace piper::cpu
#endif
