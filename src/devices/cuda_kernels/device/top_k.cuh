// The largest elements along the middle dim of [outer, size, inner], one after the other: each is
// the best of those after the last one. kFlip: the least.

// These return numbers in the order of elements: NaN is greater than all, -0 is 0.
DEVICE uint64_t rank_of(double x) {
  union {
    double number;
    uint64_t bits;
  } as{x == 0 ? 0.0 : x};
  if (x != x) return ~0ull;
  return as.bits >> 63 ? ~as.bits : as.bits | (1ull << 63);
}
DEVICE uint64_t rank_of(float x) {
  if (x != x) return ~0ull;
  const uint32_t bits = bits_of_float(x == 0 ? 0.0f : x);
  return bits >> 31 ? ~bits : bits | (1u << 31);
}
DEVICE uint64_t rank_of(int64_t x) { return static_cast<uint64_t>(x) ^ (1ull << 63); }
DEVICE uint64_t rank_of(int32_t x) { return rank_of(static_cast<int64_t>(x)); }

struct Ranked {
  uint64_t rank;
  int64_t place;
  DEVICE bool before(const Ranked& other) const {
    return rank > other.rank || (rank == other.rank && place < other.place);
  }
};

struct Chosen {
  int64_t size, inner, count;  // count: of those taken
};
// Uses a block for each line.
template <bool kFlip, int kThreads, class T>
DEVICE void top_k(const T* x, T* values, int64_t* places, const Chosen& by) {
  SHARED(uint64_t, ranks, kThreads / kWarp);
  SHARED(int64_t, at, kThreads / kWarp);
  const int64_t line = static_cast<int64_t>(blockIdx.x), outer = line / by.inner;
  const T* const from = x + outer * by.size * by.inner + line % by.inner;
  const int64_t to = outer * by.count * by.inner + line % by.inner;
  const int thread = static_cast<int>(threadIdx.x);
  Ranked last{~0ull, -1};
  for (int64_t n = 0; n < by.count; ++n) {
    Ranked best{0, by.size};
    for (int64_t i = thread; i < by.size; i += kThreads) {
      const uint64_t rank = rank_of(static_cast<computed<T>>(from[i * by.inner]));
      const Ranked here{kFlip ? ~rank : rank, i};
      if (last.before(here) && here.before(best)) best = here;
    }
    for (int half = kWarp / 2; half > 0; half /= 2) {
      const Ranked other{static_cast<uint64_t>(__shfl_xor_sync(
                             0xffffffffu, static_cast<int64_t>(best.rank), half)),
                         __shfl_xor_sync(0xffffffffu, best.place, half)};
      if (other.before(best)) best = other;
    }
    if constexpr (kThreads > kWarp) {
      if (thread % kWarp == 0) {
        ranks[thread / kWarp] = best.rank;
        at[thread / kWarp] = best.place;
      }
      __syncthreads();
      for (int warp = 0; warp < kThreads / kWarp; ++warp) {
        const Ranked other{ranks[warp], at[warp]};
        if (other.before(best)) best = other;
      }
      __syncthreads();
    }
    if (thread == 0) {
      values[to + n * by.inner] = from[best.place * by.inner];
      places[to + n * by.inner] = best.place;
    }
    last = best;
  }
}
