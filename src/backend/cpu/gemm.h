// Matrix products of f32 and f64.
//
// Every element of the result is one chain of multiply-adds over k in ascending order, started from
// the old value when accumulating. So its bits depend on its row, its column and the old value
// alone: not on the other rows and columns, on how the work is cut into tiles or threads, on
// alignment; and two products that accumulate one after the other have the bits of the one product
// over both. Nothing is allocated: packed tiles go to the caller's scratch.
#pragma once

#include <cstdint>

namespace piper::cpu {

struct Gemm {  // row-major: c[m,n] (+)= a[m,k] · b[k,n]; a is stored [k,m] if trans_a, b [n,k] if
               // trans_b
  bool trans_a = false, trans_b = false, accumulate = false;
  int64_t m = 0, n = 0, k = 0;
};

// Whether a, transposed, is packed: beyond this its columns fall into the same few sets of the
// caches.
inline bool gemm_packs_a(const Gemm& g) { return g.trans_a && g.m > 1024; }

template <class T>
using GemmFn = void (*)(const Gemm& g, const T* a, const T* b, T* c, T* scratch);

template <class T>
GemmFn<T> gemm_fn();
// Elements of scratch that a product needs.
int64_t gemm_scratch(const Gemm& g);

}  // namespace piper::cpu
