// Sums and the like over dims of a tensor. Result o gathers the elements r: they are at
// kept.at(o) + reduced.at(r), in packs of kPack. What is gathered may be one part of several, of
// `chunk` packs each; results of parts are [parts, results].

template <class Index, int kKept, int kReduced>
struct Reduced {
  Index results, elements, chunk;  // results and elements in packs, where packs go along them
  Strides<Index, kKept> kept;
  Strides<Index, kReduced> reduced;
};

// Combines over the kLanes threads, one, a warp or a block, that make one result together.
template <class Op, int kLanes, class T>
DEVICE T over_lanes(T x) {
  if constexpr (kLanes == 1) {
    return x;
  } else if constexpr (kLanes == kWarp) {
    return over_warp<Op>(x);
  } else {
    SHARED(T, shared, kLanes / kWarp);
    return over_block<Op, kLanes>(x, shared);
  }
}

// Loads packs of kPack elements by words of kWord, as they are aligned: how sums are formed does
// not depend on the alignment of operands.
template <int kPack, int kWord, class T>
DEVICE Pack<T, kPack> load_pack(const T* from) {
  Pack<T, kPack> pack;
  for (int w = 0; w < kPack; w += kWord) {
    const Pack<T, kWord> word = *reinterpret_cast<const Pack<T, kWord>*>(from + w);
    for (int k = 0; k < kWord; ++k) pack.x[w + k] = word.x[k];
  }
  return pack;
}
template <int kWord, class T, int kPack>
DEVICE void store_pack(T* to, const Pack<T, kPack>& pack) {
  for (int w = 0; w < kPack; w += kWord) {
    Pack<T, kWord> word;
    for (int k = 0; k < kWord; ++k) word.x[k] = pack.x[w + k];
    *reinterpret_cast<Pack<T, kWord>*>(to + w) = word;
  }
}

// Reduces packs whose elements are along a reduced dim.
template <class Op, int kLanes, int kPack, int kWord, class T, class To, class Index, int kKept,
          int kReduced>
DEVICE void reduce_rows(const T* x, To* to, Index parts, const Reduced<Index, kKept, kReduced>& by,
                        computed<T> identity) {
  const Index group = this_thread<Index>() / kLanes, lane = static_cast<Index>(threadIdx.x) % kLanes;
  const Index part = group / by.results;
  const Index begin = part * by.chunk, ahead = begin + by.chunk;
  const Index end = part >= parts ? begin : ahead < by.elements ? ahead : by.elements;
  const T* const from = x + by.kept.at(group % by.results) * kPack;
  computed<T> all[kPack];
  for (int k = 0; k < kPack; ++k) all[k] = identity;
  for (Index r = begin + lane; r < end; r += kLanes) {
    const Pack<T, kPack> next = load_pack<kPack, kWord>(from + by.reduced.at(r) * kPack);
    for (int k = 0; k < kPack; ++k) all[k] = Op::of(all[k], static_cast<computed<T>>(next.x[k]));
  }
  for (int half = kPack / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) all[k] = Op::of(all[k], all[k + half]);
  const computed<T> one = over_lanes<Op, kLanes>(all[0]);
  if (lane == 0 && part < parts) to[group] = To(one);
}

// Reduces packs whose elements are along a kept dim: a block makes kAcross packs of results, each
// by kThreads / kAcross threads that take every so many rows. Results are stored by words of
// kToWord.
template <class Op, int kThreads, int kAcross, int kPack, int kWord, int kToWord, class T, class To,
          class Index, int kKept, int kReduced>
DEVICE void reduce_columns(const T* x, To* to, const Reduced<Index, kKept, kReduced>& by,
                           computed<T> identity) {
  constexpr int kDown = kThreads / kAcross;
  SHARED(computed<T>, shared, kDown > 1 ? kThreads * kPack : 1);
  const int across = static_cast<int>(threadIdx.x) % kAcross;
  const int down = static_cast<int>(threadIdx.x) / kAcross;
  const Index tiles = (by.results + kAcross - 1) / kAcross;
  const Index part = static_cast<Index>(blockIdx.x) / tiles;
  const Index result = static_cast<Index>(blockIdx.x) % tiles * kAcross + across;
  const Index begin = part * by.chunk, ahead = begin + by.chunk;
  const Index end = result >= by.results ? begin : ahead < by.elements ? ahead : by.elements;
  const T* const from = x + by.kept.at(result) * kPack;
  computed<T> all[kPack];
  for (int k = 0; k < kPack; ++k) all[k] = identity;
  for (Index r = begin + down; r < end; r += kDown) {
    const Pack<T, kPack> next = load_pack<kPack, kWord>(from + by.reduced.at(r) * kPack);
    for (int k = 0; k < kPack; ++k) all[k] = Op::of(all[k], static_cast<computed<T>>(next.x[k]));
  }
  if constexpr (kDown > 1) {
    for (int k = 0; k < kPack; ++k) shared[k * kThreads + static_cast<int>(threadIdx.x)] = all[k];
    __syncthreads();
    if (down > 0) return;
    for (int d = 1; d < kDown; ++d)
      for (int k = 0; k < kPack; ++k)
        all[k] = Op::of(all[k], shared[k * kThreads + d * kAcross + across]);
  }
  if (result >= by.results) return;
  Pack<To, kPack> made;
  for (int k = 0; k < kPack; ++k) made.x[k] = To(all[k]);
  store_pack<kToWord>(to + (part * by.results + result) * kPack, made);
}

// Computes dx = dy at the first extreme (kFirst), or shared by all of them.
template <bool kFirst, int kLanes, class T, class Index, int kKept, int kReduced>
DEVICE void extreme_grad(const T* dy, const T* x, const T* y, T* dx,
                         const Reduced<Index, kKept, kReduced>& by) {
  const Index result = this_thread<Index>() / kLanes;
  const Index lane = static_cast<Index>(threadIdx.x) % kLanes;
  const bool is_one = result < by.results;
  const Index from = is_one ? by.kept.at(result) : 0, count = is_one ? by.elements : 0;
  const computed<T> best = static_cast<computed<T>>(y[is_one ? result : 0]);
  const computed<T> share = static_cast<computed<T>>(dy[is_one ? result : 0]);
  int64_t hits = 0, first = by.elements;
  for (Index r = lane; r < count; r += kLanes) {
    const computed<T> here = static_cast<computed<T>>(x[from + by.reduced.at(r)]);
    if (!(here == best || (here != here && best != best))) continue;
    ++hits;
    first = first < r ? first : r;
  }
  if constexpr (kFirst) {
    first = over_lanes<Least, kLanes>(first);
  } else {
    hits = over_lanes<Sum, kLanes>(hits);
  }
  for (Index r = lane; r < count; r += kLanes) {
    const Index at = from + by.reduced.at(r);
    const computed<T> here = static_cast<computed<T>>(x[at]);
    const bool hit = here == best || (here != here && best != best);
    computed<T> made = 0;
    if (hit && !kFirst) made = share / static_cast<computed<T>>(hits);
    if (kFirst && r == first) made = share;
    dx[at] = T(made);
  }
}

// dx = dy times the product of all the others, of those before and of those after: right where
// elements are zero. A lane has elements [lane * share, …); `held` is dx, or as wide as what is
// computed.
template <int kLanes, class T, class Index, int kKept, int kReduced>
DEVICE void product_grad(const T* dy, const T* x, T* dx, computed<T>* held,
                         const Reduced<Index, kKept, kReduced>& by) {
  SHARED(computed<T>, products, kLanes);
  const Index result = this_thread<Index>() / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool is_one = result < by.results;
  const Index from = is_one ? by.kept.at(result) : 0;
  const Index begin = is_one ? lane * by.chunk : 0, ahead = begin + by.chunk;
  const Index end = !is_one ? 0 : ahead < by.elements ? ahead : by.elements;
  computed<T> before = is_one ? static_cast<computed<T>>(dy[result]) : 0, behind = 1;
  if constexpr (kLanes > 1) {
    computed<T> own = 1;
    for (Index r = begin; r < end; ++r) own *= static_cast<computed<T>>(x[from + by.reduced.at(r)]);
    products[lane] = own;
    __syncthreads();
    for (int l = 0; l < lane; ++l) before *= products[l];
    for (int l = kLanes - 1; l > lane; --l) behind *= products[l];
  }
  for (Index r = begin; r < end; ++r) {
    const Index at = from + by.reduced.at(r);
    held[at] = before;
    before *= static_cast<computed<T>>(x[at]);
  }
  for (Index r = end - 1; r >= begin; --r) {
    const Index at = from + by.reduced.at(r);
    dx[at] = T(held[at] * behind);
    behind *= static_cast<computed<T>>(x[at]);
  }
}
