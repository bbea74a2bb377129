// Running sums along the middle dim of [outer, size, inner]. A result may overwrite the input.
template <class Index>
struct Scanned {
  Index lines, size, inner;  // lines: outer * inner
  bool exclusive, reverse;
  DEVICE Index first(Index line) const { return line / inner * size * inner + line % inner; }
  DEVICE Index step(Index i) const { return (reverse ? size - 1 - i : i) * inner; }
};

// Gives the type that elements of a type are added in: chains are as long as the dim.
template <class T>
struct Chained {
  typedef T type;
};
template <>
struct Chained<float> {
  typedef double type;
};
template <class T>
using chained = typename Chained<computed<T>>::type;

// Uses a thread for each line.
template <class T, class Index>
DEVICE void sum_lines(const T* x, T* y, const Scanned<Index>& by) {
  const Index line = this_thread<Index>();
  if (line >= by.lines) return;
  const Index first = by.first(line);
  chained<T> sum = 0;
  for (Index i = 0; i < by.size; ++i) {
    const Index at = first + by.step(i);
    const chained<T> next = added(sum, static_cast<chained<T>>(static_cast<computed<T>>(x[at])));
    y[at] = T(static_cast<computed<T>>(by.exclusive ? sum : next));
    sum = next;
  }
}

// Uses a block for each line: kEach elements a thread at a time.
template <int kThreads, int kEach, class T, class Index>
DEVICE void sum_line(const T* x, T* y, const Scanned<Index>& by) {
  SHARED(chained<T>, sums, kThreads);
  const Index first = by.first(static_cast<Index>(blockIdx.x));
  const int thread = static_cast<int>(threadIdx.x);
  chained<T> before = 0;
  for (Index base = 0; base < by.size; base += kThreads * kEach) {
    const Index own = base + thread * kEach;
    chained<T> each[kEach], sum = 0;
    for (int k = 0; k < kEach; ++k) {
      each[k] = own + k < by.size ? static_cast<computed<T>>(x[first + by.step(own + k)]) : 0;
      sum = added(sum, each[k]);
    }
    sums[thread] = sum;
    __syncthreads();
    for (int apart = 1; apart < kThreads; apart *= 2) {  // of all threads up to each
      const chained<T> other = thread >= apart ? sums[thread - apart] : 0;
      __syncthreads();
      sums[thread] = sum = added(other, sum);
      __syncthreads();
    }
    chained<T> running = thread > 0 ? added(before, sums[thread - 1]) : before;
    for (int k = 0; k < kEach; ++k) {
      const chained<T> next = added(running, each[k]);
      if (own + k < by.size)
        y[first + by.step(own + k)] = T(static_cast<computed<T>>(by.exclusive ? running : next));
      running = next;
    }
    before = added(before, sums[kThreads - 1]);
    __syncthreads();
  }
}
