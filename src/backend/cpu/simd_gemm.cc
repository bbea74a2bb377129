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
#include "simd_math-inl.h"
// clang-format on
#include <algorithm>

#include "gemm.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Of a tile; two accumulators a row, two vectors of b and one of a must fit the registers.
#if HWY_TARGET <= HWY_AVX3
constexpr int kRows = 12;
#elif HWY_TARGET <= HWY_AVX2
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif

#define PIPER_TILE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

// c[R rows][two vectors] = a · b, added to c if `add`. Element (i, k) of a stands at i × row_step
// + k × depth_step.
template <int R, bool kRowsAdjacent, class T>
HWY_INLINE void tile(int64_t depth, const T* a, int64_t step, const T* b, T* c, int64_t c_step,
                     bool add) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t row_step = kRowsAdjacent ? 1 : step, depth_step = kRowsAdjacent ? step : 1;
#define PIPER_DECLARE(i) auto x##i = hn::Zero(d), y##i = hn::Zero(d);
  PIPER_TILE_ROWS(PIPER_DECLARE)
  for (int64_t k = 0; k < depth; ++k) {
    const auto b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + lanes);
#define PIPER_STEP(i)                            \
  if constexpr (i < R) {                         \
    const auto ai = hn::Set(d, a[i * row_step]); \
    x##i = hn::MulAdd(ai, b0, x##i);             \
    y##i = hn::MulAdd(ai, b1, y##i);             \
  }
    PIPER_TILE_ROWS(PIPER_STEP)
    a += depth_step;
    b += 2 * lanes;
  }
#define PIPER_ADD(i)                                            \
  if constexpr (i < R) {                                        \
    x##i = hn::Add(x##i, hn::LoadU(d, c + i * c_step));         \
    y##i = hn::Add(y##i, hn::LoadU(d, c + i * c_step + lanes)); \
  }
  if (add) {
    PIPER_TILE_ROWS(PIPER_ADD)
  }
#define PIPER_STORE(i)                           \
  if constexpr (i < R) {                         \
    hn::StoreU(x##i, d, c + i * c_step);         \
    hn::StoreU(y##i, d, c + i * c_step + lanes); \
  }
  PIPER_TILE_ROWS(PIPER_STORE)
}

template <class T>
using TileFn = void (*)(int64_t, const T*, int64_t, const T*, T*, int64_t, bool);

template <int R, bool kRowsAdjacent, class T>
void tile_fn(int64_t depth, const T* a, int64_t step, const T* b, T* c, int64_t c_step, bool add) {
  tile<R, kRowsAdjacent>(depth, a, step, b, c, c_step, add);
}
// The function for a tile of `rows` rows.
template <bool kRowsAdjacent, class T>
TileFn<T> tile_of(int64_t rows) {
#define PIPER_CASE(i)                                           \
  if constexpr (i < kRows) {                                    \
    if (rows == i + 1) return tile_fn<i + 1, kRowsAdjacent, T>; \
  }
  PIPER_TILE_ROWS(PIPER_CASE)
  return nullptr;
}

// to[k][i] = from[i][k] for a square of one 128-bit vector.
#if HWY_TARGET == HWY_SCALAR
template <class T>
constexpr int64_t kSquare = 1;
template <class T>
HWY_INLINE void transpose_square(const T* from, int64_t, T* to, int64_t) {
  *to = *from;
}
#else
template <class T>
constexpr int64_t kSquare = 16 / sizeof(T);
HWY_INLINE void transpose_square(const float* from, int64_t from_step, float* to, int64_t to_step) {
  const hn::FixedTag<float, 4> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_step);
  const auto r2 = hn::LoadU(d, from + 2 * from_step), r3 = hn::LoadU(d, from + 3 * from_step);
  const auto a = hn::InterleaveLower(d, r0, r2), b = hn::InterleaveLower(d, r1, r3);
  const auto c = hn::InterleaveUpper(d, r0, r2), e = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, a, b), d, to);
  hn::StoreU(hn::InterleaveUpper(d, a, b), d, to + to_step);
  hn::StoreU(hn::InterleaveLower(d, c, e), d, to + 2 * to_step);
  hn::StoreU(hn::InterleaveUpper(d, c, e), d, to + 3 * to_step);
}
HWY_INLINE void transpose_square(const double* from, int64_t from_step, double* to,
                                 int64_t to_step) {
  const hn::FixedTag<double, 2> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_step);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, to);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, to + to_step);
}
#endif

// panel[k][j] = b(k0 + k, n0 + j), zero beyond b's columns.
template <class T>
void pack_b(const Gemm& g, const T* b, int64_t k0, int64_t depth, int64_t n0, int64_t width,
            T* panel) {
  const int64_t columns = HWY_MIN(width, g.n - n0), step = g.row_of_b();
  if (columns < width) std::memset(panel, 0, static_cast<size_t>(depth * width) * sizeof(T));
  if (!g.trans_b) {
    const T* from = b + k0 * step + n0;
    for (int64_t k = 0; k < depth; ++k, from += step, panel += width) {
      std::memcpy(panel, from, static_cast<size_t>(columns) * sizeof(T));
    }
    return;
  }
  constexpr int64_t kSide = kSquare<T>;
  const int64_t whole_depth = depth / kSide * kSide, whole = columns / kSide * kSide;
  const T* from = b + n0 * step + k0;
  for (int64_t j = 0; j < whole; j += kSide) {
    for (int64_t k = 0; k < whole_depth; k += kSide) {
      transpose_square(from + j * step + k, step, panel + k * width + j, width);
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t k = j < whole ? whole_depth : 0; k < depth; ++k) {
      panel[k * width + j] = from[j * step + k];
    }
  }
}

// A part of a transposed: blocks of kRows rows, each [depth][kRows].
template <class T>
void pack_a(const Gemm& g, const T* a, int64_t m0, int64_t height, int64_t k0, int64_t depth,
            T* packed) {
  const int64_t step = g.row_of_a();
  for (int64_t i = 0; i < height; i += kRows, packed += depth * kRows) {
    const int64_t rows = HWY_MIN(int64_t{kRows}, height - i);
    const T* from = a + k0 * step + m0 + i;
    T* to = packed;
    if (rows == kRows) {
      for (int64_t k = 0; k < depth; ++k, from += step, to += kRows) {
        std::memcpy(to, from, kRows * sizeof(T));  // a few moves: the size is known
      }
    } else {
      for (int64_t k = 0; k < depth; ++k, from += step, to += kRows) {
        for (int64_t r = 0; r < rows; ++r) to[r] = from[r];
      }
    }
  }
}

// All tiles of one packed panel of b: `height` rows from `c` on, blocks of kRows rows of a
// `block_step` apart. A tile takes its chains one after the other, while its part of c is near.
template <bool kRowsAdjacent, class T>
HWY_INLINE void panel_tiles(const Gemm& g, const T* a, int64_t a_step, int64_t block_step,
                            int64_t height, int64_t depth, const T* panel, int64_t columns, T* c,
                            bool add) {
  constexpr hn::ScalableTag<T> d;
  constexpr int64_t kMaxWidth = 2 * hn::MaxLanes(d);
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(d)), c_step = g.row_of_c();
  const int64_t depth_step = kRowsAdjacent ? a_step : 1;
  HWY_ALIGN T edge[kRows * kMaxWidth] = {};
  const bool inside = columns == width;
  const auto bytes = static_cast<size_t>(columns) * sizeof(T);
  for (int64_t i = 0; i < height; i += kRows, a += block_step, c += kRows * c_step) {
    const int64_t rows = HWY_MIN(int64_t{kRows}, height - i);
    for (int64_t r = 0; r < rows && !inside; ++r)
      std::memcpy(edge + r * width, c + r * c_step, bytes);
    T* to = inside ? c : edge;
    const int64_t to_step = inside ? c_step : width;
    for (int64_t k = 0; k < depth; k += kGemmChain) {
      const int64_t chain = HWY_MIN(kGemmChain, depth - k);
      const T *from = a + k * depth_step, *part = panel + k * width;
      if (rows == kRows) {
        tile<kRows, kRowsAdjacent>(chain, from, a_step, part, to, to_step, add || k > 0);
      } else {
        tile_of<kRowsAdjacent, T>(rows)(chain, from, a_step, part, to, to_step, add || k > 0);
      }
    }
    for (int64_t r = 0; r < rows && !inside; ++r)
      std::memcpy(c + r * c_step, edge + r * width, bytes);
  }
}

// The part of the product in c's columns [n0, n0 + columns) from depth [k0, k0 + depth). Panels of
// b are packed as the first rows need them, and wait for the other rows.
template <class T>
void gemm_block(const Gemm& g, const T* a, const T* b, T* c, int64_t k0, int64_t depth, int64_t n0,
                int64_t columns, T* panels, T* packed) {
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const int64_t a_step = g.row_of_a();
  const bool pack = gemm_packs_a(g) && columns > width, add = g.accumulate || k0 > 0;
  for (int64_t m0 = 0; m0 < g.m; m0 += kGemmHeight) {
    const int64_t height = HWY_MIN(kGemmHeight, g.m - m0);
    if (pack) pack_a(g, a, m0, height, k0, depth, packed);
    for (int64_t n = n0; n < n0 + columns; n += width) {
      const T* panel = panels + (n - n0) * depth;
      if (g.packed_b) {
        panel = b + n * g.b_step + k0 * width;
      } else if (m0 == 0) {
        pack_b(g, b, k0, depth, n, width, panels + (n - n0) * depth);
      }
      const int64_t some = HWY_MIN(width, n0 + columns - n);
      T* to = c + m0 * g.row_of_c() + n;
      if (pack) {
        panel_tiles<true>(g, packed, kRows, depth * kRows, height, depth, panel, some, to, add);
      } else if (g.trans_a) {
        panel_tiles<true>(g, a + k0 * a_step + m0, a_step, kRows, height, depth, panel, some, to,
                          add);
      } else {
        panel_tiles<false>(g, a + m0 * a_step + k0, a_step, kRows * a_step, height, depth, panel,
                           some, to, add);
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
  for (int64_t i = 0; g.k == 0 && !g.accumulate && i < g.m; ++i) {
    std::memset(c + i * g.row_of_c(), 0, static_cast<size_t>(g.n) * sizeof(T));
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
  if (gemm_packs_a(g)) return kGemmDepth * (kGemmColumns + kGemmHeight);
  return g.packed_b ? 0 : depth * columns;
}

}  // namespace piper::cpu
#endif
