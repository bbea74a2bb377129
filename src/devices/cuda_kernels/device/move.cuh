// Elements in another order. T is a word: an element, or several that are side by side in what is
// read and in what is written.

// Computes to[i] = from[strides.at(i)].
template <class T, class Index, int kRank>
DEVICE void take(const T* from, T* to, Index count, const Strides<Index, kRank>& strides) {
  const Index i = this_thread<Index>();
  if (i < count) to[i] = from[strides.at(i)];
}

// Computes to[strides.at(i)] = from[i].
template <class T, class Index, int kRank>
DEVICE void put(const T* from, T* to, Index count, const Strides<Index, kRank>& strides) {
  const Index i = this_thread<Index>();
  if (i < count) to[strides.at(i)] = from[i];
}

// Repeats every element kCount times.
template <class T, int kCount, class Index, int kRank>
DEVICE void repeat(const T* from, Pack<T, kCount>* to, Index count,
                   const Strides<Index, kRank>& strides) {
  const Index i = this_thread<Index>();
  if (i >= count) return;
  const T x = from[strides.at(i)];
  Pack<T, kCount> same;
  for (int k = 0; k < kCount; ++k) same.x[k] = x;
  to[i] = same;
}

// Transposes each block [rows, columns] of the result: to[r * to_step + c] = from[r + c *
// from_step], by tiles in shared memory: both sides are read and written along their last dim.
template <class Index, int kRank>
struct Turned {
  Index rows, columns, from_step, to_step;
  Strides<Index, kRank> from, to;  // of the blocks
};
template <class T, int kTile, int kThreads, class Index, int kRank>
DEVICE void take_turned(const T* from, T* to, const Turned<Index, kRank>& by) {
  SHARED(T, tile, kTile * (kTile + 1));
  const Index down = (by.rows + kTile - 1) / kTile, across = (by.columns + kTile - 1) / kTile;
  const Index block = static_cast<Index>(blockIdx.x);
  const Index c0 = block % across * kTile, r0 = block / across % down * kTile;
  from += by.from.at(block / across / down);
  to += by.to.at(block / across / down);
  const int thread = static_cast<int>(threadIdx.x);
  for (int k = 0; k < kTile * kTile / kThreads; ++k) {
    const int e = k * kThreads + thread, r = e % kTile, c = e / kTile;
    if (r0 + r < by.rows && c0 + c < by.columns)
      tile[c * (kTile + 1) + r] = from[r0 + r + (c0 + c) * by.from_step];
  }
  __syncthreads();
  for (int k = 0; k < kTile * kTile / kThreads; ++k) {
    const int e = k * kThreads + thread, c = e % kTile, r = e / kTile;
    if (r0 + r < by.rows && c0 + c < by.columns)
      to[(r0 + r) * by.to_step + c0 + c] = tile[c * (kTile + 1) + r];
  }
}
