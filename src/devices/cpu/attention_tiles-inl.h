// Register tiles of attention's products, and the layout of a block of scores. Included once per
// instruction set, see "hwy/foreach_target.h".
//
// Scores are in panels of 16 keys, [panel][query][16]: a query's scores are whole vectors, a key's
// are one stream, and both are walked without gaps or conflicts in the caches.
#include "simd_math-inl.h"

#if defined(PIPER_CPU_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PIPER_CPU_ATTENTION_TILES_INL_H_
#undef PIPER_CPU_ATTENTION_TILES_INL_H_
#else
#define PIPER_CPU_ATTENTION_TILES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace piper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile has as many rows as fit: two accumulators a row, two vectors of b and one of a must fit
// the registers.
#if HWY_TARGET <= HWY_AVX3
constexpr int64_t kTileRows = 8;
#else
constexpr int64_t kTileRows = 4;
#endif
constexpr int64_t kPanel = 16;   // keys
constexpr int64_t kChain = 128;  // multiply-adds, at most, between two sums

// A vector has at most the width of a panel.
template <class T>
using TileTag = hn::CappedTag<T, kPanel>;
template <class T>
HWY_INLINE int64_t tile_lanes() {
  return static_cast<int64_t>(hn::Lanes(TileTag<T>()));
}

inline int64_t whole_panels(int64_t keys) { return (keys + kPanel - 1) / kPanel * kPanel; }

template <class T>
struct Scores {
  T* data = nullptr;
  int64_t rows = 0;  // queries of the block
  T* at(int64_t row, int64_t key) const {
    return data + key / kPanel * kPanel * rows + row * kPanel + key % kPanel;
  }
};

// Finds element (row, k) of a tile's left operand at p[row × row_step + k × depth_step], and 16 of
// k further at p + panel_step.
struct DenseRows {  // of q or dy
  int64_t row_step;
  static constexpr int64_t depth_step = 1, panel_step = kPanel;
};
struct ScoreRows {  // of scores: k is the key
  static constexpr int64_t row_step = kPanel, depth_step = 1;
  int64_t panel_step;
};
struct ScoreColumns {  // of scores: the row is the key, k the query
  static constexpr int64_t row_step = 1, depth_step = kPanel, panel_step = kPanel * kPanel;
};

// Says what a tile writes: vector v of row r at c + r × row_step + v × vector_step becomes (old ×
// keep[r] + product) × post[r]; a null keep or post is 1, and nothing is old unless `add`. Handed
// on as it is: a copy would wait for the stores that made it.
template <class T>
struct TileResult {
  int64_t row_step = 0, vector_step = 0;
  int64_t rows = kTileRows;  // that are written
  bool add = false;
  const T *keep = nullptr, *post = nullptr;
};

// Fetches rows that the next block will touch, little by little: heads are adjacent, so that their
// rows are too short and too far apart for the processor to guess them.
template <class T>
class Soon {
 public:
  void add(const T* at, int64_t step, int64_t rows, int64_t width) {
    if (rows <= 0) return;
    const auto place = reinterpret_cast<uintptr_t>(at) / sizeof(T) | static_cast<uintptr_t>(step);
    const int64_t inside = place % kLine == 0 ? 0 : kLine - 1;  // where a row begins in a line
    parts_[count_++] = {at, step, rows, width, width + inside};
    lines_ += rows * ((width + inside + kLine - 1) / kLine);
  }
  // Spreads the fetches over so many calls, one for each panel of a tile's depth except the first.
  void share_among(int64_t calls) { share_ = calls > 0 ? (lines_ + calls - 1) / calls : 0; }
  HWY_INLINE void fetch() {
    for (int64_t left = share_; left > 0 && at_ < count_;) {
      Part& part = parts_[at_];
      const T* at = part.at;  // in registers: a chain through memory would take longer
      int64_t rows = part.rows, column = column_;
      for (; left > 0 && rows > 0; --left) {
        __builtin_prefetch(at + HWY_MIN(column, part.width - 1));
        column += kLine;
        if (column >= part.reach) column = 0, at += part.step, --rows;
      }
      part.at = at, part.rows = rows, column_ = column;
      if (rows == 0) ++at_;
    }
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(T);
  struct Part {
    const T* at;
    int64_t step, rows, width, reach;
  };
  Part parts_[5];  // of q, k, v, y and dy
  int count_ = 0, at_ = 0;
  int64_t lines_ = 0, share_ = 0, column_ = 0;
};

#define PIPER_TILE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

// Computes kTileRows rows of kVectors vectors: a · b, row k of b at b + k × b_step. Where kPart, of
// one vector's first `part` lanes. Fetches between multiply-adds, which go on meanwhile.
template <int kVectors, bool kPart, class A, class T>
HWY_NOINLINE void tile(const A& a, const T* p, int64_t depth, const T* b, int64_t b_step, T* c,
                       const TileResult<T>& to, int64_t part, Soon<T>& soon) {
  const TileTag<T> d;
  const int64_t lanes = tile_lanes<T>(), row_step = a.row_step, panel_step = a.panel_step;
  const auto load = [&](const T* from) HWY_ATTR {
    return kPart ? load_first(d, from, part, T{0}) : hn::LoadU(d, from);
  };
#define PIPER_DECLARE(i) auto x##i = hn::Zero(d), y##i = hn::Zero(d);
  PIPER_TILE_ROWS(PIPER_DECLARE)
  for (int64_t k0 = 0; k0 < depth; k0 += kPanel, p += panel_step) {
    if (k0 > 0) soon.fetch();
    const T* element = p;
    for (int64_t k = HWY_MIN(kPanel, depth - k0); k > 0; --k) {
      const auto b0 = load(b), b1 = kVectors > 1 ? hn::LoadU(d, b + lanes) : b0;
#define PIPER_STEP(i)                                            \
  if constexpr (i < kTileRows) {                                 \
    const auto ai = hn::Set(d, element[i * row_step]);           \
    x##i = hn::MulAdd(ai, b0, x##i);                             \
    if constexpr (kVectors > 1) y##i = hn::MulAdd(ai, b1, y##i); \
  }
      PIPER_TILE_ROWS(PIPER_STEP)
      element += a.depth_step;
      b += b_step;
    }
  }
  const auto store = [&](hn::Vec<decltype(d)> sum, T* at) HWY_ATTR {
    if constexpr (kPart)
      store_first(d, sum, at, part);
    else
      hn::StoreU(sum, d, at);
  };
#define PIPER_STORE(i)                                                             \
  if constexpr (i < kTileRows) {                                                   \
    store(x##i, c + i * to.row_step);                                              \
    if constexpr (kVectors > 1) store(y##i, c + i * to.row_step + to.vector_step); \
  }
  if (to.rows == kTileRows && !to.add && !to.post) {  // most tiles, so that the next begins soon
    PIPER_TILE_ROWS(PIPER_STORE)
    return;
  }
  const auto finish = [&](hn::Vec<decltype(d)> sum, int64_t r, T* at) HWY_ATTR {
    if (to.add) {
      const auto old = load(at);
      sum = to.keep ? hn::MulAdd(old, hn::Set(d, to.keep[r]), sum) : hn::Add(old, sum);
    }
    if (to.post) sum = hn::Mul(sum, hn::Set(d, to.post[r]));
    store(sum, at);
  };
#define PIPER_FINISH(i)                                                                  \
  if constexpr (i < kTileRows) {                                                         \
    if (i < to.rows) {                                                                   \
      finish(x##i, i, c + i * to.row_step);                                              \
      if constexpr (kVectors > 1) finish(y##i, i, c + i * to.row_step + to.vector_step); \
    }                                                                                    \
  }
  PIPER_TILE_ROWS(PIPER_FINISH)
}

// Computes rows of `width` elements: a · b, which is dense.
template <class A, class T>
void tile_row(const A& a, const T* p, int64_t depth, const T* b, int64_t width, T* c,
              const TileResult<T>& to, Soon<T>& soon) {
  const int64_t lanes = tile_lanes<T>();
  int64_t n = 0;
  for (; n + 2 * lanes <= width; n += 2 * lanes)
    tile<2, false>(a, p, depth, b + n, width, c + n, to, lanes, soon);
  for (; n + lanes <= width; n += lanes)
    tile<1, false>(a, p, depth, b + n, width, c + n, to, lanes, soon);
  if (n < width) tile<1, true>(a, p, depth, b + n, width, c + n, to, width - n, soon);
}

// ---- Copies of operands --------------------------------------------------------------

// Copies rows without gaps. Rows that are apart, by powers of two above all, fall into the same few
// sets of the nearest cache.
template <class T>
void copy_rows(const T* from, int64_t step, int64_t rows, int64_t width, T* to) {
  const TileTag<T> d;
  for (int64_t r = 0; r < rows; ++r, from += step, to += width)
    each_vector(d, width, [&](int64_t i, int64_t count) HWY_ATTR {
      store_first(d, load_first(d, from + i, count, T{0}), to + i, count);
    });
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
int64_t transpose_most(const T*, int64_t, int64_t, int64_t, T*, int64_t) {
  return 0;
}
#else
// Stores a vector's blocks of 128 bits `step` apart.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, hn::TFromD<D>* to, int64_t step) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= 16) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    const int64_t blocks = static_cast<int64_t>(hn::Lanes(half) * sizeof(hn::TFromD<D>)) / 16;
    store_blocks(half, hn::LowerHalf(half, v), to, step);
    store_blocks(half, hn::UpperHalf(half, v), to + blocks * step, step);
  }
}

// Writes to[k × to_step + r] = from[r × step + k] for one vector of k, and as many r as fill 128
// bits.
template <class D>
HWY_INLINE void transpose_vectors(D d, const float* from, int64_t step, float* to,
                                  int64_t to_step) {
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + step);
  const auto r2 = hn::LoadU(d, from + 2 * step), r3 = hn::LoadU(d, from + 3 * step);
  const auto a = hn::InterleaveLower(d, r0, r2), b = hn::InterleaveLower(d, r1, r3);
  const auto c = hn::InterleaveUpper(d, r0, r2), e = hn::InterleaveUpper(d, r1, r3);
  store_blocks(d, hn::InterleaveLower(d, a, b), to, 4 * to_step);
  store_blocks(d, hn::InterleaveUpper(d, a, b), to + to_step, 4 * to_step);
  store_blocks(d, hn::InterleaveLower(d, c, e), to + 2 * to_step, 4 * to_step);
  store_blocks(d, hn::InterleaveUpper(d, c, e), to + 3 * to_step, 4 * to_step);
}
template <class D>
HWY_INLINE void transpose_vectors(D d, const double* from, int64_t step, double* to,
                                  int64_t to_step) {
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + step);
  store_blocks(d, hn::InterleaveLower(d, r0, r1), to, 2 * to_step);
  store_blocks(d, hn::InterleaveUpper(d, r0, r1), to + to_step, 2 * to_step);
}

// Writes to[k × to_step + r] = from[r × step + k] for rows that fill 128 bits; returns how many
// rows that were.
template <class T>
HWY_INLINE int64_t transpose_most(const T* from, int64_t step, int64_t rows, int64_t width, T* to,
                                  int64_t to_step) {
  const TileTag<T> d;
  const int64_t lanes = tile_lanes<T>(), side = 16 / sizeof(T), whole = width / lanes * lanes;
  int64_t r = 0;
  for (; r + side <= rows; r += side) {
    for (int64_t k = 0; k < whole; k += lanes)
      transpose_vectors(d, from + r * step + k, step, to + k * to_step + r, to_step);
    for (int64_t k = whole; k < width; ++k)
      for (int64_t i = r; i < r + side; ++i) to[k * to_step + i] = from[i * step + k];
  }
  return r;
}
#endif

// Returns the width of what pack_keys makes: a tile's.
template <class T>
HWY_INLINE int64_t packed_columns() {
  return 2 * tile_lanes<T>();
}

// Packs to[panel][k][column] = from[key][k], zero past the last key.
template <class T>
void pack_keys(const T* from, int64_t step, int64_t keys, int64_t width, T* to) {
  const int64_t columns = packed_columns<T>();
  for (int64_t j0 = 0; j0 < keys; j0 += columns, to += columns * width) {
    const int64_t some = HWY_MIN(columns, keys - j0);
    if (some < columns) std::memset(to, 0, static_cast<size_t>(columns * width) * sizeof(T));
    const T* const rows = from + j0 * step;
    for (int64_t j = transpose_most(rows, step, some, width, to, columns); j < some; ++j)
      for (int64_t k = 0; k < width; ++k) to[k * columns + j] = rows[j * step + k];
  }
}

// Returns how many tiles the scores of so many keys are.
template <class T>
HWY_INLINE int64_t score_tiles(int64_t keys) {
  return (keys + packed_columns<T>() - 1) / packed_columns<T>();
}

// Computes the scores of the queries of a tile, dense from q on, for the keys [0, keys) of the
// packed ones.
template <class T>
void tile_scores(const T* q, int64_t width, const T* packed, int64_t keys, int64_t row,
                 const Scores<T>& s, Soon<T>& soon) {
  const int64_t lanes = tile_lanes<T>(), columns = packed_columns<T>();
  const DenseRows a{width};
  const TileResult<T> to{.row_step = kPanel,
                         .vector_step = lanes == kPanel ? s.rows * kPanel : lanes};
  for (int64_t j = 0; j < keys; j += columns, packed += columns * width) {
    if (j + lanes < keys)
      tile<2, false>(a, q, width, packed, columns, s.at(row, j), to, lanes, soon);
    else
      tile<1, false>(a, q, width, packed, columns, s.at(row, j), to, lanes, soon);
  }
}

}  // namespace piper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
