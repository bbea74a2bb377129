// Softmax and its like along a dim that others follow: [outer, kSize, kInner], a thread a line.

namespace lines {

template <class T, int64_t kSize, int64_t kInner>
struct Line {
  typedef computed<T> C;
  T* first;
  DEVICE T& at(int64_t i) const { return first[i * kInner]; }
  template <class F>
  DEVICE static C sum(F term) {
    C all = 0;
    for (int64_t i = 0; i < kSize; ++i) all += term(i);
    return all;
  }
};
// Returns where the line of this thread begins; -1: there is none.
template <int64_t kLines, int64_t kSize, int64_t kInner>
DEVICE int64_t line_of_thread() {
  const int64_t line = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  return line < kLines ? line / kInner * kSize * kInner + line % kInner : -1;
}

template <bool kLog, int64_t kLines, int64_t kSize, int64_t kInner, class T>
DEVICE void softmax_lines(const T* from, T* to) {
  const int64_t begin = line_of_thread<kLines, kSize, kInner>();
  if (begin < 0) return;
  typedef computed<T> C;
  const Line<const T, kSize, kInner> x{from + begin};
  const Line<T, kSize, kInner> y{to + begin};
  C top = -kInfinity;
  for (int64_t i = 0; i < kSize; ++i) top = Greatest::of(top, C(x.at(i)));
  const C sum = y.sum([&](int64_t i) { return word::exp(C(x.at(i)) - top); });
  const C inverse = C(1) / sum, rest = word::log(sum);
  for (int64_t i = 0; i < kSize; ++i) {
    const C above = C(x.at(i)) - top;
    y.at(i) = T(kLog ? above - rest : word::exp(above) * inverse);
  }
}

template <bool kLog, int64_t kLines, int64_t kSize, int64_t kInner, class T>
DEVICE void softmax_grad_lines(const T* results, const T* gradients, T* to) {
  const int64_t begin = line_of_thread<kLines, kSize, kInner>();
  if (begin < 0) return;
  typedef computed<T> C;
  const Line<const T, kSize, kInner> y{results + begin}, dy{gradients + begin};
  const Line<T, kSize, kInner> dx{to + begin};
  const C sum = dx.sum([&](int64_t i) { return kLog ? C(dy.at(i)) : C(y.at(i)) * C(dy.at(i)); });
  for (int64_t i = 0; i < kSize; ++i)
    dx.at(i) =
        T(kLog ? C(dy.at(i)) - word::exp(C(y.at(i))) * sum : C(y.at(i)) * (C(dy.at(i)) - sum));
}

}  // namespace lines
