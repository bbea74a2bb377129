// Passes over the rows of matrices [kRows, kWidth]: where a thread is, what it reads and writes,
// and sums over a row and over rows. The bodies of kernels are generated.

namespace rows {

// Holds an element as it is in memory: a byte that is neither 0 nor 1 is true.
template <class T>
struct Stored {
  typedef T type;
};
template <>
struct Stored<bool> {
  typedef uint8_t type;
};

// Holds one row for all, which is loaded when it is first read; or zeros, where it is absent.
template <int kPiece, class T>
struct Weights {
  const T* from;
  template <class At>
  DEVICE void load(const At& at, T (&x)[At::kCount]) const {
    at.template load<kPiece>(from, x);
  }
};
struct Zeros {
  template <class At, class T>
  DEVICE void load(const At&, T (&x)[At::kCount]) const {
    EACH(i, At::kCount) x[i] = T(0.0f);
  }
};
template <int kPiece, class T>
DEVICE Weights<kPiece, T> weights(const T* from) {
  return {from};
}

// kThreads threads go over a row, of kAtOnce rows at a time, kTurns times a block. A thread has
// kChunks runs of kLanes elements of it, in each tile of kTile columns; what is summed over a row
// has one tile. Threads are a power of 2 within a warp, or whole warps. The last run may belong to
// the row in part, where there is a gap after each row of all operands.
template <int64_t kRows, int64_t kWidth, int kThreads, int kAtOnce, int kLanes, int kChunks,
          int kTurns>
struct Rows {
  static constexpr int kCount = kLanes * kChunks;
  static constexpr int64_t kTile = static_cast<int64_t>(kThreads) * kCount;
  static constexpr uint32_t kTiles = static_cast<uint32_t>((kWidth + kTile - 1) / kTile);
  static constexpr bool kWhole = kWidth % kLanes == 0;
  static constexpr bool kFits = kRows % (static_cast<int64_t>(kAtOnce) * kTurns) == 0;

  int64_t row = 0;
  bool is_on = true;  // false: it is behind the last row, of which nothing is touched
  int parity = 0;

  DEVICE int64_t block() const { return blockIdx.x / kTiles; }
  DEVICE int64_t tile() const { return blockIdx.x % kTiles; }
  DEVICE int thread() const { return static_cast<int>(threadIdx.x) % kThreads; }
  DEVICE int group() const { return static_cast<int>(threadIdx.x) / kThreads; }

  DEVICE void go(int turn) {
    row = (block() * kTurns + turn) * kAtOnce + group();
    is_on = kFits || row < kRows;
  }
  // Returns the number of a run in its row: one to begin with, and a constant.
  DEVICE int64_t run(int chunk) const {
    return tile() * (kThreads * kChunks) + thread() + static_cast<int64_t>(chunk * kThreads);
  }
  DEVICE int64_t column(int i) const { return run(i / kLanes) * kLanes + i % kLanes; }
  DEVICE bool has(int i) const { return kWidth % kTile == 0 || column(i) < kWidth; }
  // Returns whether all of a piece belongs to the row, which begins at element `first` of a run.
  template <int kPiece>
  DEVICE bool has_piece(int first) const {
    return kWhole ? has(first / kLanes * kLanes) : column(first) + kPiece <= kWidth;
  }

  // Loads elements of a row that begins here, so many at once.
  template <int kPiece, class T>
  DEVICE void load(const T* from, T (&x)[kCount]) const {
    typedef Pack<typename Stored<T>::type, kPiece> Piece;
    constexpr int kPieces = kLanes / kPiece;
    EACH(c, kChunks * kPieces) {
      Piece elements{};
      if (is_on && has_piece<kPiece>(c * kPiece)) {
        elements = reinterpret_cast<const Piece*>(from)[run(c / kPieces) * kPieces + c % kPieces];
      } else if (!kWhole && is_on) {
        EACH(l, kPiece) {
          const int64_t at = column(c * kPiece + l);
          if (at < kWidth)
            elements.x[l] = reinterpret_cast<const typename Stored<T>::type*>(from)[at];
        }
      }
      EACH(l, kPiece) x[c * kPiece + l] = static_cast<T>(elements.x[l]);
    }
  }
  template <int kPiece, class T>
  DEVICE void store(T* to, const T (&x)[kCount]) const {
    typedef Pack<T, kPiece> Piece;
    constexpr int kPieces = kLanes / kPiece;
    if (!is_on) return;
    EACH(c, kChunks * kPieces) {
      Piece elements;
      EACH(l, kPiece) elements.x[l] = x[c * kPiece + l];
      if (has_piece<kPiece>(c * kPiece)) {
        store_run(reinterpret_cast<Piece*>(to) + run(c / kPieces) * kPieces + c % kPieces,
                  elements);
      } else if (!kWhole) {
        EACH(l, kPiece) {
          const int64_t at = column(c * kPiece + l);
          if (at < kWidth) to[at] = elements.x[l];
        }
      }
    }
  }
  // Returns one element of the row.
  template <class T>
  DEVICE T load_one(const T* from) const {
    typename Stored<T>::type one{};
    if (is_on) one = *reinterpret_cast<const typename Stored<T>::type*>(from);
    return static_cast<T>(one);
  }
  template <class T>
  DEVICE void store_one(T* to, T x) const {
    if (is_on && thread() == 0 && tile() == 0) *to = x;
  }

  // Combines over the threads of a row, which get the same bits.
  template <class Op, class T>
  DEVICE T over(T x) {
    constexpr int kPart = kThreads < kWarp ? kThreads : kWarp;
    EACH(step, 5) {
      const int half = kPart >> (step + 1);
      if (half == 0) continue;
      const T other = __shfl_xor_sync(0xffffffffu, x, half);
      x = (threadIdx.x & half) ? Op::of(other, x) : Op::of(x, other);
    }
    if (kThreads <= kWarp) return x;
    // Two sets, in turn: the barrier of the next call is before one is written again.
    constexpr int kWarps = kThreads * kAtOnce / kWarp, kOfRow = (kThreads + kWarp - 1) / kWarp;
    SHARED(T, parts, 2 * kWarps);
    T* const set = parts + parity * kWarps;
    parity ^= 1;
    if (threadIdx.x % kWarp == 0) set[threadIdx.x / kWarp] = x;
    __syncthreads();
    T all = set[group() * kOfRow];
    EACH(warp, kOfRow - 1) all = Op::of(all, set[group() * kOfRow + warp + 1]);
    return all;
  }
  template <class F>
  DEVICE auto sum(F term) {
    decltype(term(0)) all = 0;
    EACH(i, kCount) {
      if (has(i)) all += term(i);
    }
    return over<Sum>(all);
  }
  template <class F>
  DEVICE auto greatest(F element) {
    decltype(element(0)) all = -kInfinity;
    EACH(i, kCount) {
      if (has(i)) all = Greatest::of(all, element(i));
    }
    return over<Greatest>(all);
  }

  // Adds a term of a sum over rows.
  template <class T>
  DEVICE void add(T& sum, T term) const {
    if (is_on) sum = word::add(sum, term);
  }
  // Stores the sums of this block's rows, for sum_parts: [blocks, kWidth], or [blocks] of one
  // element.
  template <class T>
  DEVICE void store_sums(T* parts, const T (&sums)[kCount]) const {
    EACH(c, kChunks) {
      T run[kLanes];
      EACH(l, kLanes) run[l] = sums[c * kLanes + l];
      add_groups(run);
      if (group() != 0 || !has(c * kLanes)) continue;
      EACH(l, kLanes) parts[block() * kWidth + column(c * kLanes + l)] = run[l];
    }
  }
  template <class T>
  DEVICE void store_sum(T* parts, T sum) const {
    T run[1] = {sum};
    add_groups(run);
    if (threadIdx.x == 0 && tile() == 0) parts[block()] = run[0];
  }
  // Adds what the groups of rows have to that of the first.
  template <class T, int kRun>
  DEVICE static void add_groups(T (&run)[kRun]) {
    if constexpr (kAtOnce > 1) {
      SHARED(T, all, kThreads * kAtOnce * kRun);
      const int own = static_cast<int>(threadIdx.x) * kRun;
      EACH(l, kRun) all[own + l] = run[l];
      __syncthreads();
      if (threadIdx.x < kThreads)
        for (int other = 1; other < kAtOnce; ++other)
          EACH(l, kRun) run[l] = word::add(run[l], all[other * kThreads * kRun + own + l]);
      __syncthreads();
    }
  }
};

// Adds up the columns of [kParts, kWidth], a warp's lanes side by side and its parts in the order
// of warps: `block` is of those that have this sum.
template <int64_t kParts, int64_t kWidth, class T, class To>
DEVICE void sum_parts(const T* parts, To* sums, int64_t block) {
  constexpr int kWarps = 8;
  SHARED(T, all, kWarps * kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = block * kWarp + lane;
  T sum = 0;
  if (column < kWidth)
    for (int64_t part = warp; part < kParts; part += kWarps)
      sum = word::add(sum, parts[part * kWidth + column]);
  all[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || column >= kWidth) return;
  EACH(other, kWarps - 1) sum = word::add(sum, all[(other + 1) * kWarp + lane]);
  sums[column] = static_cast<To>(sum);
}

}  // namespace rows
