// Cross-entropy over the last dim: a block a row of logits.

namespace losses {

// Holds a row of kClasses over kThreads threads, as aligned runs of 16 bytes, of which the first
// and the last may belong to the row in part. What does not belong to it is minus infinity. The
// next row begins kPitch elements after it.
template <class T, int64_t kClasses, int64_t kPitch, int kThreads>
struct LogitRow {
  typedef computed<T> C;
  static constexpr int kLanes = 16 / sizeof(T);
  static constexpr int kRuns = static_cast<int>((kClasses + 2 * kLanes - 2) / kLanes);  // at most
  static constexpr int kChunks = (kRuns + kThreads - 1) / kThreads;
  typedef Pack<T, kLanes> Run;

  const T* row;
  int before;  // elements between the first run's begin and the row's

  DEVICE explicit LogitRow(const T* logits) {
    row = logits + static_cast<int64_t>(blockIdx.x) * kPitch;
    before = static_cast<int>(reinterpret_cast<uint64_t>(row) % 16 / sizeof(T));
  }
  DEVICE int number(int chunk) const { return chunk * kThreads + static_cast<int>(threadIdx.x); }
  DEVICE int64_t column(int chunk) const {
    return static_cast<int64_t>(number(chunk)) * kLanes - before;
  }
  DEVICE static bool has(int64_t column) { return column >= 0 && column < kClasses; }
  DEVICE bool is_whole(int chunk) const {
    return column(chunk) >= 0 && column(chunk) + kLanes <= kClasses;
  }
  DEVICE Run load(int chunk) const {
    if (is_whole(chunk)) return reinterpret_cast<const Run*>(row - before)[number(chunk)];
    Run run;
    EACH(l, kLanes) {
      const int64_t at = column(chunk) + l;
      run.x[l] = T(-kInfinity);
      if (has(at)) run.x[l] = row[at];
    }
    return run;
  }
  // Stores a run; `to`: where the row begins, whose runs are aligned as those of the logits.
  DEVICE void store(T* to, int chunk, const Run& run) const {
    if (is_whole(chunk)) return store_run(reinterpret_cast<Run*>(to - before) + number(chunk), run);
    EACH(l, kLanes) {
      const int64_t at = column(chunk) + l;
      if (has(at)) to[at] = run.x[l];
    }
  }
  DEVICE static C greatest_of(const Run& run, C top) {
    EACH(l, kLanes) top = Greatest::of(top, C(run.x[l]));
    return top;
  }
  DEVICE static C sum_above(const Run& run, C top) {
    C sum = 0;
    EACH(l, kLanes) sum += word::near_exp(C(run.x[l]) - top);
    return sum;
  }
  // Calls take(chunk, runs) for this thread's chunks, kAtOnce at a time, so that several loads are
  // on their way. What is after the row is minus infinity.
  static constexpr int kAtOnce = 4;
  template <class Take>
  DEVICE void each(const Take& take) const {
    EACH_OF_MANY(c, (kChunks + kAtOnce - 1) / kAtOnce) {
      Run runs[kAtOnce];
      const int first = c * kAtOnce;
      if (is_whole(first) && is_whole(first + kAtOnce - 1)) {
        const Run* const from = reinterpret_cast<const Run*>(row - before);
        EACH(r, kAtOnce) runs[r] = from[number(first + r)];
      } else {
        EACH(r, kAtOnce) runs[r] = load(first + r);
      }
      take(first, runs);
    }
  }
};

// Returns where among kPart classes from `first` on a label is; -2: among all kWhole, but
// elsewhere; -1: it is none of them.
template <int64_t kPart, int64_t kWhole>
DEVICE int64_t place_of(int64_t label, const int64_t* first) {
  if (label < 0 || label >= kWhole) return -1;
  const int64_t place = label - (first ? *first : 0);
  return place >= 0 && place < kPart ? place : -2;
}

// Computes the term of the sum that this row has, and the probability of its largest logit. Each
// thread sums above the largest that it has seen.
template <int64_t kClasses, int64_t kPitch, int kThreads, class T, class C>
DEVICE void cross_entropy_row(const T* logits, const int64_t* labels, C* share, C* terms,
                              int64_t ignore) {
  typedef LogitRow<T, kClasses, kPitch, kThreads> Row;
  SHARED(C, parts, kThreads / kWarp);
  const Row x(logits);
  C seen = -kInfinity, sum = 0;
  x.each([&](int, const typename Row::Run* runs) {
    C top = seen;
    EACH(r, Row::kAtOnce) top = x.greatest_of(runs[r], top);
    if (top == -kInfinity) return;
    sum *= word::near_exp(seen - top);
    EACH(r, Row::kAtOnce) sum += x.sum_above(runs[r], top);
    seen = top;
  });
  const C top = over_block<Greatest, kThreads>(seen, parts);
  const C above = over_block<Sum, kThreads>(sum * word::near_exp(seen - top), parts);
  if (threadIdx.x != 0) return;
  const int64_t row = blockIdx.x, label = labels[row];
  if (share) share[row] = C(1) / above;
  C term = 0;
  if (label != ignore)
    term = x.has(label) ? word::log(above) + (top - C(x.row[label])) : C(0) * kInfinity;
  terms[row] = term;
}

template <int64_t kClasses, int64_t kPitch, int64_t kWhole, int kThreads, class T, class C>
DEVICE void cross_entropy_terms_row(const T* logits, const int64_t* labels, const C* tops,
                                    const int64_t* first, C* above, C* chosen, int64_t ignore) {
  typedef LogitRow<T, kClasses, kPitch, kThreads> Row;
  SHARED(C, parts, kThreads / kWarp);
  const Row x(logits);
  const int64_t row = blockIdx.x, label = labels[row];
  const C top = tops[row];
  C sum = 0;
  x.each([&](int, const typename Row::Run* runs) {
    EACH(r, Row::kAtOnce) sum += x.sum_above(runs[r], top);
  });
  sum = over_block<Sum, kThreads>(sum, parts);
  if (threadIdx.x != 0) return;
  if (above) above[row] = sum;
  if (!chosen) return;
  const int64_t place = label == ignore ? -2 : place_of<kClasses, kWhole>(label, first);
  chosen[row] = place >= 0 ? C(x.row[place]) - top : place == -1 ? C(0) * kInfinity : C(0);
}

// Computes a row of gradients, which may overwrite the logits. `tops` may be null: the largest of
// the row, for which it is gone over twice; the second time from shared memory, where it has been
// kept.
template <int64_t kClasses, int64_t kPitch, int64_t kWhole, int kThreads, bool kKeeps, class T,
          class C>
DEVICE void cross_entropy_grad_row(const T* logits, const int64_t* labels, const C* share,
                                   const C* dsum, const C* tops, const int64_t* first, T* gradients,
                                   int64_t ignore) {
  typedef LogitRow<T, kClasses, kPitch, kThreads> Row;
  SHARED(C, parts, kThreads / kWarp);
  const Row x(logits);
  typename Row::Run* kept = nullptr;
  if constexpr (kKeeps) {
    DYNAMIC_SHARED(typename Row::Run, all);
    kept = all;
  }
  C top = -kInfinity;
  if (tops) {
    top = tops[blockIdx.x];
  } else {
    x.each([&](int first, const typename Row::Run* runs) {
      EACH(r, Row::kAtOnce) {
        top = x.greatest_of(runs[r], top);
        if (kKeeps && x.number(first + r) < Row::kRuns) kept[x.number(first + r)] = runs[r];
      }
    });
    top = over_block<Greatest, kThreads>(top, parts);
  }
  const int64_t row = blockIdx.x, label = labels[row];
  const bool is_ignored = label == ignore;
  const int64_t place = place_of<kClasses, kWhole>(label, first);
  const C scale = *dsum;
  const C factor = !is_ignored && place == -1 ? C(0) * kInfinity : scale * share[row];
  EACH_OF_MANY(c, Row::kChunks) {
    if (x.number(c) >= Row::kRuns) break;
    typename Row::Run run;
    if (kKeeps)
      run = kept[x.number(c)];
    else
      run = x.load(c);
    const int64_t chosen = place - x.column(c);
    C slopes[Row::kLanes];
    EACH(l, Row::kLanes) slopes[l] = word::near_exp(C(run.x[l]) - top) * factor;
    if (chosen >= 0 && chosen < Row::kLanes) EACH(l, Row::kLanes) if (l == chosen) slopes[l] -= scale;
    EACH(l, Row::kLanes) run.x[l] = T(is_ignored ? C(0) : slopes[l]);
    x.store(gradients + row * kPitch, c, run);
  }
}

// Computes a term and a share of each row, from the parts of the classes.
template <int64_t kRows, class T>
DEVICE void cross_entropy_of_terms(const T* above, const T* chosen, const int64_t* labels, T* share,
                                   computed<T>* terms, int64_t ignore) {
  typedef computed<T> C;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= kRows) return;
  const C sum = C(above[row]);
  terms[row] = labels[row] == ignore ? C(0) : word::log(sum) - C(chosen[row]);
  if (share) share[row] = T(C(1) / sum);
}

// Sums all terms, in double, in one block.
template <int64_t kRows, int kThreads, class C, class T>
DEVICE void sum_terms(const C* terms, T* sum) {
  SHARED(double, parts, kThreads / kWarp);
  double all = 0;
  for (int64_t row = threadIdx.x; row < kRows; row += kThreads)
    all += static_cast<double>(terms[row]);
  all = over_block<Sum, kThreads>(all, parts);
  if (threadIdx.x == 0) *sum = static_cast<T>(static_cast<computed<T>>(all));
}

// Counts in one block how many labels count.
template <int64_t kRows, int kThreads>
DEVICE void count_labels(const int64_t* labels, float* count, int64_t ignore) {
  SHARED(int64_t, parts, kThreads / kWarp);
  int64_t all = 0;
  for (int64_t row = threadIdx.x; row < kRows; row += kThreads) all += labels[row] != ignore;
  all = over_block<Sum, kThreads>(all, parts);
  if (threadIdx.x == 0) *count = static_cast<float>(all);
}

}  // namespace losses
