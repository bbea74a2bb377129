// Pairs of elements of rows turned by angles: packs of kPack pairs a thread. The result may be
// over the input.
template <class Index, int kRank>
struct Turns {
  Index half, apart;             // pairs of a row; how far their elements are apart: both in packs
  Strides<Index, kRank> tables;  // by row: where its angles begin, in packs
};
// kJoined: the elements of a pair are neighbours, and read as one.
template <bool kJoined, bool kInverse, class T, int kPack, class Index, int kRank>
DEVICE void rotate(const T* x, const Pack<T, kPack>* cosines, const Pack<T, kPack>* sines, T* y,
                   Index count, const Turns<Index, kRank>& by) {
  typedef Pack<T, kJoined ? 2 * kPack : kPack> Elements;
  constexpr int kStep = kJoined ? 2 : 1;
  const Index i = this_thread<Index>();
  if (i >= count) return;
  const Index row = i / by.half, pack = i % by.half, angle = by.tables.at(row) + pack;
  const Pack<T, kPack> cos = cosines[angle], sin = sines[angle];
  const Index at = kJoined ? i : by.apart == 1 ? 2 * i : row * 2 * by.half + pack;
  const Elements* from = reinterpret_cast<const Elements*>(x);
  Elements* to = reinterpret_cast<Elements*>(y);
  Elements first = from[at], second = first;
  if (!kJoined) second = from[at + by.apart];
  for (int k = 0; k < kPack; ++k) {
    const computed<T> a = static_cast<computed<T>>(first.x[k * kStep]);
    const computed<T> b = static_cast<computed<T>>(kJoined ? first.x[k * kStep + kJoined] : second.x[k]);
    const computed<T> c = static_cast<computed<T>>(cos.x[k]);
    computed<T> s = static_cast<computed<T>>(sin.x[k]);
    if (kInverse) s = -s;
    first.x[k * kStep] = T(a * c - b * s);
    (kJoined ? first.x[k * kStep + kJoined] : second.x[k]) = T(b * c + a * s);
  }
  to[at] = first;
  if (!kJoined) to[at + by.apart] = second;
}
