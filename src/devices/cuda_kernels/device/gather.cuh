// Rows and elements that indices name. T is a word of a row; an index that is outside takes
// `nothing`.

// to [batches, places, inner] takes of data [batches, rows, inner]: in each batch at indices of its
// own or, where own_indices is 0, at the same. The rows begin at `first` of those that are named.
struct Gathered {
  int64_t places, rows, inner, own_indices;
};
template <class T, class Index, class I, int kDepth>
DEVICE void gather(const T* data, const I* indices, int64_t first, T* to, Index count,
                   const Gathered& g, const Named<kDepth>& named, const T& nothing) {
  const Index e = this_thread<Index>();
  if (e >= count) return;
  const Index places = static_cast<Index>(g.places), inner = static_cast<Index>(g.inner);
  const Index j = e % inner, place = e / inner % places, batch = e / inner / places;
  const I* index = indices + (static_cast<int64_t>(batch) * g.own_indices * places + place) * kDepth;
  const int64_t all = named.row(index), row = all - first;
  T x = nothing;
  if (all >= 0) x = T();
  if (all >= 0 && row >= 0 && row < g.rows) x = data[(batch * g.rows + row) * inner + j];
  to[e] = x;
}

// Gathers element i of data at strides.at(i), but along the axis where index i says.
template <class T, class Index, class I, int kRank>
DEVICE void gather_elements(const T* data, const I* indices, T* to, Index count,
                            const Strides<Index, kRank>& strides, int64_t size, int64_t step,
                            const T& nothing) {
  const Index i = this_thread<Index>();
  if (i >= count) return;
  const int64_t at = place_in(static_cast<int64_t>(indices[i]), size);
  T x = nothing;
  if (at >= 0) x = data[strides.at(i) + at * step];
  to[i] = x;
}
