// Elements around others, in place of others, or only. T is a word: an element, or several side by
// side.

// Says where in the input element i of the result is, or that it is not there.
template <class Index, int kRank>
struct Padding {
  Index extent[kRank], before[kRank], size[kRank];  // of the result; of the input
  DEVICE bool at(Index i, Index& place) const {
    bool inside = true;
    Index step = 1;
    place = 0;
    for (int d = kRank - 1; d >= 0; --d) {
      const Index k = (d > 0 ? i % extent[d] : i) - before[d];
      inside = inside && k >= 0 && k < size[d];
      place += k * step;
      step *= size[d];
      i /= extent[d];
    }
    return inside;
  }
};
template <class T, class Index, int kRank>
DEVICE void pad(const T* from, T* to, Index count, const Padding<Index, kRank>& padding,
                const T& value) {
  const Index i = this_thread<Index>();
  if (i >= count) return;
  Index place;
  const bool inside = padding.at(i, place);
  to[i] = inside ? from[place] : value;
}

template <class T, class Index>
DEVICE void fill(T* to, Index count, const T& value) {
  const Index i = this_thread<Index>();
  if (i < count) to[i] = value;
}

// Keeps a triangle of matrices [rows, kCount * packs]: columns from row + diagonal on, or those up
// to it.
template <class Index, class T, int kCount>
DEVICE void triangle(const Pack<T, kCount>* from, Pack<T, kCount>* to, Index count, Index rows,
                     Index packs, Index diagonal, bool upper) {
  const Index i = this_thread<Index>();
  if (i >= count) return;
  const Index edge = i / packs % rows + diagonal, column = i % packs * kCount;
  Pack<T, kCount> x = from[i];
  for (int k = 0; k < kCount; ++k)
    if (upper ? column + k < edge : column + k > edge) x.x[k] = T();
  to[i] = x;
}
