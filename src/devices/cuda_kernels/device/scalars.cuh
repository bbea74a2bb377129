// The scalars of a step, in f64.

// ---- Sums of squares ----------------------------------------------------------------------------
// Sums the flat elements of several tensors. Those of a tensor are in runs, and runs in chunks of
// kElements: which thread adds what follows from the place in the chunk only, so that zeros after
// a run do not change its sum.
template <int kTensors>
struct Runs {
  Tensors<kTensors> tensors;  // by chunk
  int64_t run[kTensors];      // elements
  int64_t chunks[kTensors];   // of a run
};

// A block has a chunk. Operands of each tensor: the elements, the sum of all.
template <class T, int kThreads, int64_t kElements, int kPointers, int kTensors>
DEVICE void sum_chunk(const Pointers<kPointers>& p, const Runs<kTensors>& runs, double* partial) {
  constexpr int kPack = 16 / sizeof(T);
  const int tensor = runs.tensors.of(blockIdx.x);
  const int64_t chunk = blockIdx.x - runs.tensors.first[tensor];
  const int64_t run = chunk / runs.chunks[tensor];
  const int64_t begin = run * runs.run[tensor] + chunk % runs.chunks[tensor] * kElements;
  int64_t end = begin + kElements;
  if (end > (run + 1) * runs.run[tensor]) end = (run + 1) * runs.run[tensor];
  if (end > runs.tensors.count[tensor]) end = runs.tensors.count[tensor];
  const T* x = p.template at<const T>(2 * tensor);
  const bool can_pack = reinterpret_cast<uint64_t>(x + begin) % 16 == 0;
  double sum[kPack] = {};
  for (int64_t i = begin + threadIdx.x * kPack; i < end; i += kThreads * kPack) {
    Pack<T, kPack> pack;
    if (can_pack && i + kPack <= end) {
      pack = *reinterpret_cast<const Pack<T, kPack>*>(x + i);
    } else {
      for (int e = 0; e < kPack; ++e) pack.x[e] = i + e < end ? x[i + e] : T(0.0f);
    }
    for (int e = 0; e < kPack; ++e) {
      const double value = static_cast<computed<T>>(pack.x[e]);
      sum[e] = add_product(value, value, sum[e]);
    }
  }
  for (int step = kPack / 2; step > 0; step /= 2)
    for (int e = 0; e < step; ++e) sum[e] += sum[e + step];
  SHARED(double, shared, kThreads / kWarp);
  const double all = over_block<Sum, kThreads>(sum[0], shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

// A block has a tensor: a warp adds the chunks of a run, and puts the sum in place of the first;
// then those of the runs are added in order.
template <int kThreads, int kPointers, int kTensors>
DEVICE void sum_runs(const Pointers<kPointers>& p, const Runs<kTensors>& runs, double* partial) {
  const int tensor = static_cast<int>(blockIdx.x);
  const int64_t first = runs.tensors.first[tensor], chunks = runs.chunks[tensor];
  const int64_t all = (runs.tensors.first[tensor + 1] - first) / chunks;
  for (int64_t run = threadIdx.x / kWarp; run < all; run += kThreads / kWarp) {
    double sum = 0;
    for (int64_t chunk = threadIdx.x % kWarp; chunk < chunks; chunk += kWarp)
      sum += partial[first + run * chunks + chunk];
    sum = over_warp<Sum>(sum);
    if (threadIdx.x % kWarp == 0) partial[first + run * chunks] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int64_t run = 0; run < all; ++run) total += partial[first + run * chunks];
  *p.template at<double>(2 * tensor + 1) = total;
}

// Adds the elements of several vectors of f64 in order to `sum`; the first thread has the result.
template <int kThreads, int kPointers, int kTensors>
DEVICE double add_in_order(const Pointers<kPointers>& p, const Tensors<kTensors>& vectors,
                           double sum) {
  SHARED(double, tile, kThreads);
  const int64_t count = vectors.first[kTensors];
  for (int64_t at = 0; at < count; at += kThreads) {
    const int64_t i = at + threadIdx.x;
    if (i < count) {
      const int vector = vectors.of(i);
      tile[threadIdx.x] = p.template at<const double>(vector)[i - vectors.first[vector]];
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int64_t k = 0; k < kThreads && at + k < count; ++k) sum += tile[k];
    __syncthreads();
  }
  return sum;
}

// ---- Numbers of one thread ----------------------------------------------------------------------
// Returns what floor division leaves, as formulas of the learning rate take it.
DEVICE double floor_remainder(double a, double b) { return a - b * floor(a / b); }

DEVICE double clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1.0 : factor;  // a NaN stays one
}

template <class T>
DEVICE bool is_finite(T x) {
  return x - x == 0;
}

// Holds the state of loss scaling: the scale and the steps since it last changed.
struct Scaling {
  float scale;
  int64_t good;
};
struct ScaleRule {
  double growth, backoff;
  int64_t interval;

  DEVICE Scaling next(Scaling now, bool skip) const {
    const double scale = now.scale;
    Scaling next{static_cast<float>(skip ? scale * backoff : scale), skip ? 0 : now.good + 1};
    if (next.good != interval) return next;
    const float grown = static_cast<float>(scale * growth);
    if (is_finite(grown)) next.scale = grown;
    next.good = 0;
    return next;
  }
};
