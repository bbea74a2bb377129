// Matrix products of f32 and f64.
//
// Every element of the result is a sum of chains of multiply-adds over 128 of k, in ascending
// order, added to the old value when accumulating: one chain over all of k would lose a bit or two.
// Of f32 in AMX's tiles, chains are over 512 of k (amx_gemm.cc).
// So its bits depend on its row, its column and the old value only: not on the other rows and
// columns, on how the work is cut into tiles or threads, on alignment. Nothing is allocated: packed
// tiles go to the caller's scratch.
//
// How products are cut, and why no library is called for whole ones: products.txt.
//
// b is packed in each call, at no cost that shows where many rows share it. SmallVector rows, those
// of a pipeline's microbatch, gain from a b that has been packed before: with 32 rows 10 % to 13 %,
// with 64 6 %, with 128 2 % to 3 %.
#pragma once

#include <cstdint>
#include <string_view>

#include "piper/devices/cpu.h"

namespace piper::cpu {

// A chain of multiply-adds of vectors is over so many of k.
inline constexpr int64_t kGemmChain = 128;
// What parts of b and of a are cut into: whole panels and whole tiles of any instruction set.
inline constexpr int64_t kGemmColumnStep = 64, kGemmHeightStep = 24;
// Returns the rows of the next part of a, of `rows` that are left: no part is much smaller than the
// others.
inline int64_t gemm_height(const ProductCut& cut, int64_t rows) {
  return rows <= cut.height * 3 / 2 ? rows : cut.height;
}

// Says what is done with each finished element of c: added to or multiplied with one of a matrix of
// c's type and columns.
struct GemmThen {
  bool multiply = false;
  const void* at = nullptr;
  int64_t step = 0;  // elements from one row to the next; 0: one row for all
};

struct Gemm {  // row-major: c[m,n] (+)= a[m,k] · b[k,n]; a is stored [k,m] if trans_a, b [n,k] if
               // trans_b
  bool trans_a = false, trans_b = false, accumulate = false;
  bool packed_b = false;  // b is what gemm_pack_fn() made of it
  int64_t m = 0, n = 0, k = 0;
  int64_t a_step = 0, b_step = 0, c_step = 0;  // elements from one stored row to the next; 0: dense
  const void* old = nullptr;  // with accumulate: the old value, where it is not c, of the same type
  int64_t old_step = 0;
  GemmThen then[2];  // in this order
  int thens = 0;
  ProductCut cut;
  int64_t row_of_a() const { return a_step ? a_step : trans_a ? m : k; }
  int64_t row_of_b() const { return b_step ? b_step : trans_b ? k : n; }
  int64_t row_of_c() const { return c_step ? c_step : n; }
  int64_t row_of_old() const { return old_step ? old_step : n; }
};

// Points at the rows of what c's are added to; null: nothing.
template <class T>
struct GemmOld {
  const T* at = nullptr;
  int64_t step = 0;
};
// Returns that of the rows of `c`, which begin at row m, in the part of the depth from k0 on.
template <class T>
GemmOld<T> old_of(const Gemm& g, const T* c, int64_t m, int64_t k0) {
  if (k0 > 0 || (g.accumulate && !g.old)) return {c, g.row_of_c()};
  if (!g.accumulate) return {};
  return {static_cast<const T*>(g.old) + m * g.row_of_old(), g.row_of_old()};
}

// Packed rows of a are apart by what they hold and kGemmPad.
inline constexpr int64_t kGemmPad = 16;

template <class T>
using GemmFn = void (*)(const Gemm& g, const T* a, const T* b, T* c, T* scratch);

// What the instruction set is called that multiplies f32 in tiles.
inline constexpr std::string_view kAmx = "AMX";
// `kernels` are a ProductTable's: f32 is multiplied in tiles where it says so and they are there.
template <class T>
GemmFn<T> gemm_fn(std::string_view kernels);
// Returns the function for tiles, whose c has the bits that amx_gemm.cc describes; null without
// them.
GemmFn<float> amx_gemm();

// Panels of the columns [begin, end) of g's b, each whole: for products of which many take the same
// b. `begin` is a multiple of kGemmColumnStep. `packed` has k rows, of g.n and fewer than
// kGemmWidest more columns, whatever the instruction set.
inline constexpr int64_t kGemmWidest = 32;
template <class T>
using GemmPackFn = void (*)(const Gemm& g, const T* b, T* packed, int64_t begin, int64_t end);
template <class T>
GemmPackFn<T> gemm_pack_fn();
// The instruction set that was chosen; the other vectorised kernels choose alike.
std::string_view gemm_target();
// Returns bytes of scratch that a product of f32 or f64 needs with these kernels; that any product
// needs with this cut.
template <class T>
int64_t gemm_scratch(const Gemm& g, std::string_view kernels);
int64_t gemm_scratch(const ProductCut& cut);
int64_t amx_scratch(int64_t columns, int64_t k, const ProductCut& cut);  // of amx_gemm()

}  // namespace piper::cpu
