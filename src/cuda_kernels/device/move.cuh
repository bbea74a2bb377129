// Elements in another order. T is an unsigned integer of their size.

// Element i of the result, by strides: its index is taken apart by the extents, last dim first.
template <int kRank>
struct Strides {
  int64_t extent[kRank], stride[kRank];
  DEVICE int64_t at(int64_t i) const {
    int64_t from = 0;
    for (int d = kRank; d-- > 0;) {
      from += i % extent[d] * stride[d];
      i /= extent[d];
    }
    return from;
  }
};

template <class T, int kRank>
DEVICE void take_strided(const T* from, T* to, int64_t count, const Strides<kRank>& strides) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[strides.at(i)];
}
