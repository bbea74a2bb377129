// What a library's matrix product leaves to do: bias and activation of its sums.

DEVICE float erfc_of(float x) { return erfcf(x); }
DEVICE double erfc_of(double x) { return erfc(x); }
DEVICE float exp_of(float x) { return expf(x); }
DEVICE double exp_of(double x) { return exp(x); }

// x times the share of a normal distribution below x, and what tanh makes of that. Nothing cancels,
// and what is far below gives zero, also where it is infinite.
template <class C>
DEVICE C at_least(C x) {
  return x < C(-1e3) ? C(-1e3) : x;
}
struct NoActivation {
  template <class C>
  DEVICE static C of(C x) {
    return x;
  }
};
struct GeluExact {
  template <class C>
  DEVICE static C of(C x) {
    x = at_least(x);
    return x * (C(0.5) * erfc_of(-x * C(0.70710678118654752440)));
  }
};
struct GeluTanh {  // ½ (1 + tanh u) is 1 / (1 + e^(-2u))
  template <class C>
  DEVICE static C of(C x) {
    x = at_least(x);
    const C inner = add_product(C(0.044715) * x, x * x, x);
    return x / (C(1) + exp_of(C(-2 * 0.79788456080286535588) * inner));
  }
};

// Computes y = activation(sum + bias), and before it pre, of matrices of kColumns columns, `count`
// elements together; pre or y may be where the sums are. A thread has kPack elements of a row.
template <class Activation, class T, int kPack, int64_t kColumns, bool kPre>
DEVICE void finish_sums(const computed<T>* sums, const T* bias, T* y, T* pre, int64_t count) {
  typedef computed<T> C;
  typedef Pack<T, kPack> Elements;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;  // of packs
  if (i >= count / kPack) return;
  const Pack<C, kPack> sum = reinterpret_cast<const Pack<C, kPack>*>(sums)[i];
  const Elements b = reinterpret_cast<const Elements*>(bias)[i % (kColumns / kPack)];
  Elements made, before;
  for (int e = 0; e < kPack; ++e) {
    const C x = sum.x[e] + static_cast<C>(b.x[e]);
    before.x[e] = T(x);
    made.x[e] = T(Activation::of(x));
  }
  if (kPre) reinterpret_cast<Elements*>(pre)[i] = before;
  reinterpret_cast<Elements*>(y)[i] = made;
}

// Rounds `count` sums, and adds c to them: matrices of kRows rows, which are kLdd elements apart in c
// and d, and from matrix to matrix kStep.
template <class R, bool kAdds, int64_t kColumns, int64_t kRows, int64_t kLdd, int64_t kStep>
DEVICE void round_sums(const float* sums, const R* c, R* d, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / kColumns;
  const int64_t at = row / kRows * kStep + row % kRows * kLdd + i % kColumns;
  d[at] = R(kAdds ? sums[i] + static_cast<float>(c[at]) : sums[i]);
}

// Computes d = sum + what the last kTail elements of k give: a [rows, kTail] · b [kTail, kColumns],
// either of which may be transposed. Rows are so many elements apart. A thread has kPack of the
// `count` elements of d, of one row.
template <class T, class R, int kPack, int kTail, bool kTransA, bool kTransB, int64_t kColumns,
          int64_t kLda, int64_t kLdb, int64_t kLdd, int64_t kLdSums>
DEVICE void add_tail(const float* sums, const T* a, const T* b, R* d, int64_t count) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack;
  if (i >= count) return;
  const int64_t row = i / kColumns, column = i % kColumns;
  Pack<float, kPack> sum =
      *reinterpret_cast<const Pack<float, kPack>*>(sums + row * kLdSums + column);
  for (int j = 0; j < kTail; ++j) {
    const float factor = static_cast<float>(kTransA ? a[j * kLda + row] : a[row * kLda + j]);
    for (int e = 0; e < kPack; ++e)
      sum.x[e] += factor * static_cast<float>(kTransB ? b[(column + e) * kLdb + j]
                                                      : b[j * kLdb + column + e]);
  }
  Pack<R, kPack> made;
  for (int e = 0; e < kPack; ++e) made.x[e] = R(sum.x[e]);
  *reinterpret_cast<Pack<R, kPack>*>(d + row * kLdd + column) = made;
}
