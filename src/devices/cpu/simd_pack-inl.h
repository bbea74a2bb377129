// How products lay out their operands for the registers' tiles. Included once per instruction set,
// see "hwy/foreach_target.h".
#include <cstring>

#include "ahead.h"
#include "gemm.h"

#if defined(PIPER_CPU_SIMD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PIPER_CPU_SIMD_PACK_INL_H_
#undef PIPER_CPU_SIMD_PACK_INL_H_
#else
#define PIPER_CPU_SIMD_PACK_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile has as many rows as fit; two accumulators a row, two vectors of b and one of a must fit
// the registers.
#if HWY_TARGET <= HWY_AVX3
constexpr int kRows = 12;
#elif HWY_TARGET <= HWY_AVX2
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif

// Writes to[k][i] = from[i][k] for a whole vector of i, and as many k as a 128-bit block holds.
#if HWY_TARGET == HWY_SCALAR
template <class T>
constexpr int64_t kSquare = 1;
template <class D, class T>
HWY_INLINE void transpose_vector(D, const T* from, int64_t, T* to, int64_t) {
  *to = *from;
}
#else
template <class T>
constexpr int64_t kSquare = 16 / sizeof(T);
// Returns a block of every kSquare-th row.
template <class D, class T>
HWY_INLINE hn::Vec<D> blocks_of_rows(D d, const T* from, int64_t step) {
  if constexpr (hn::MaxLanes(d) * sizeof(T) == 16) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    const int64_t rows = hn::MaxLanes(half);
    return hn::Combine(d, blocks_of_rows(half, from + rows * step, step),
                       blocks_of_rows(half, from, step));
  }
}
template <class D>
HWY_INLINE void transpose_vector(D d, const float* from, int64_t from_step, float* to,
                                 int64_t to_step) {
  const auto r0 = blocks_of_rows(d, from, from_step);
  const auto r1 = blocks_of_rows(d, from + from_step, from_step);
  const auto r2 = blocks_of_rows(d, from + 2 * from_step, from_step);
  const auto r3 = blocks_of_rows(d, from + 3 * from_step, from_step);
  const auto a = hn::InterleaveLower(d, r0, r2), b = hn::InterleaveLower(d, r1, r3);
  const auto c = hn::InterleaveUpper(d, r0, r2), e = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, a, b), d, to);
  hn::StoreU(hn::InterleaveUpper(d, a, b), d, to + to_step);
  hn::StoreU(hn::InterleaveLower(d, c, e), d, to + 2 * to_step);
  hn::StoreU(hn::InterleaveUpper(d, c, e), d, to + 3 * to_step);
}
template <class D>
HWY_INLINE void transpose_vector(D d, const double* from, int64_t from_step, double* to,
                                 int64_t to_step) {
  const auto r0 = blocks_of_rows(d, from, from_step);
  const auto r1 = blocks_of_rows(d, from + from_step, from_step);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, to);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, to + to_step);
}
#endif

// Packs panel[k][j] = b(k0 + k, n0 + j), zero beyond b's columns.
template <class T>
void pack_b(const Gemm& g, const T* b, int64_t k0, int64_t depth, int64_t n0, int64_t width,
            T* panel) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t columns = HWY_MIN(width, g.n - n0), step = g.row_of_b();
  if (columns < width) std::memset(panel, 0, static_cast<size_t>(depth * width) * sizeof(T));
  if (!g.trans_b) {
    const T* from = b + k0 * step + n0;
    for (int64_t k = 0; k < depth && columns == width; ++k, from += step, panel += width) {
      hn::StoreU(hn::LoadU(d, from), d, panel);
      hn::StoreU(hn::LoadU(d, from + lanes), d, panel + lanes);
    }
    for (int64_t k = 0; k < depth && columns < width; ++k, from += step, panel += width)
      std::memcpy(panel, from, static_cast<size_t>(columns) * sizeof(T));
    return;
  }
  constexpr int64_t kSide = kSquare<T>;
  const int64_t whole_depth = depth / kSide * kSide, whole = columns / lanes * lanes;
  const T* from = b + n0 * step + k0;
  for (int64_t j = 0; j < whole; j += lanes)
    for (int64_t k = 0; k < whole_depth; k += kSide)
      transpose_vector(d, from + j * step + k, step, panel + k * width + j, width);
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t k = j < whole ? whole_depth : 0; k < depth; ++k)
      panel[k * width + j] = from[j * step + k];
}

// Packs a part of a: rows, kGemmPad apart, or transposed: blocks of kRows rows, each
// [depth][kRows], and kGemmPad apart. Reads row by row, and fetches some rows ahead: in memory they
// are far apart.
template <class T>
void pack_a(const Gemm& g, const T* from, int64_t height, int64_t depth, T* packed) {
  const int64_t step = g.row_of_a(), rows = g.trans_a ? depth : height;
  const int64_t length = g.trans_a ? height : depth, whole = height / kRows * kRows;
  const int64_t block = depth * kRows + kGemmPad;
  for (int64_t r = 0; r < rows; ++r, from += step) {
    constexpr int64_t kSoon = 4;
    for (int64_t i = 0; i < length && r + kSoon < rows; i += kLine<T>)
      __builtin_prefetch(from + kSoon * step + i);
    if (!g.trans_a) {
      std::memcpy(packed + r * (depth + kGemmPad), from, static_cast<size_t>(depth) * sizeof(T));
      continue;
    }
    T* to = packed + r * kRows;
    for (int64_t i = 0; i < whole; i += kRows, to += block)
      std::memcpy(to, from + i, kRows * sizeof(T));  // a few moves: the size is known
    for (int64_t i = whole; i < height; ++i) to[i - whole] = from[i];
  }
}

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
