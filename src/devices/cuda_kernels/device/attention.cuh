// Attention by tiles of queries and keys: a tile's scores are made, used and forgotten (Dao et al.,
// 2022, FlashAttention). A block has one tile of queries (or, of the gradients of k and v, of keys)
// and walks over the tiles of the others in order, so no sum depends on which block comes first.
// Widths are cut into chunks of columns, a block for each: scores are made again for each of them.
namespace attention {

constexpr int kThreads = 256, kSide = 16;  // threads of a tile: kSide along its rows and columns
constexpr int kDepth = 32;                 // of a product's operands, staged at once

// Describes an operand of [batch, tokens, heads, width]: elements in front of the first one and
// between neighbours; those of one token and head are adjacent.
struct Rows {
  int64_t first, batch, token, head;
  DEVICE int64_t at(int64_t b, int64_t h) const { return first + b * batch + h * head; }
};

enum Mask { kNoMask, kKeeps, kAdds };

struct Form {
  int64_t batch, queries, keys, heads, kv_heads, width, v_width;
  Rows q, k, v, y, dq, dk, dv;  // y: of dy too
  double scale, softcap;
  bool causal;
  int64_t offset, query_stretches, key_stretches;
  Mask mask;
  bool wide_mask;  // terms of the type of sums
  double masked_score;
  int64_t mask_step[4], all_keys;
};

template <class T>
struct Inputs {
  const T *q, *k, *v;
  const char* mask;
  const int64_t *first, *first_key;  // where tokens begin, by stretches
};
DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }
DEVICE float exponential(float x) { return expf(x); }
DEVICE double exponential(double x) { return exp(x); }
DEVICE float logarithm(float x) { return logf(x); }
DEVICE double logarithm(double x) { return log(x); }
DEVICE float hyperbolic(float x) { return tanhf(x); }
DEVICE double hyperbolic(double x) { return tanh(x); }
// Sets the logarithm of a sum of no exponentials.
DEVICE void set_unseen(float& lse) { lse = float_of_bits(0x7f7fffffu); }
DEVICE void set_unseen(double& lse) { lse = 1.7976931348623157e308; }

DEVICE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- Numbers of tokens --------------------------------------------------------------------------
// Token t of n has the number first[t / (n / stretches)] + t % (n / stretches); of no stretches, t.
struct Numbers {
  const int64_t* first;
  int64_t stretches, tokens;

  DEVICE int64_t at(int64_t token) const {
    if (stretches == 0) return token;
    const int64_t length = tokens / stretches, begin = first[token / length];
    const int64_t furthest = 1LL << 40;
    return (begin < 0 ? 0 : least(begin, furthest)) + token % length;
  }
  // Returns the largest and the least number of tokens [from, to).
  DEVICE int64_t most(int64_t from, int64_t to) const {
    if (stretches == 0) return to - 1;
    const int64_t length = tokens / stretches;
    int64_t number = -1;
    for (int64_t end = from; end < to;) {
      end = least((end / length + 1) * length, to);
      if (at(end - 1) > number) number = at(end - 1);
    }
    return number;
  }
  DEVICE int64_t fewest(int64_t from, int64_t to) const {
    if (stretches == 0) return from;
    const int64_t length = tokens / stretches;
    int64_t number = at(from);
    for (int64_t begin = (from / length + 1) * length; begin < to; begin += length)
      number = least(number, at(begin));
    return number;
  }
};

// ---- Products of tiles --------------------------------------------------------------------------
// Views rows of a matrix, of which only so many rows and columns exist; the others count as zeros.
template <class T>
struct Matrix {
  const T* at;
  int64_t step, rows, columns;
};

// A thread has kEach rows and as many columns of a tile, side by side: what it reads of shared
// memory for them is one piece.
template <int kTile>
constexpr int kEach = kTile / kSide;
template <int kTile>
DEVICE int row() {
  return static_cast<int>(threadIdx.x) / kSide * kEach<kTile>;
}
template <int kTile>
DEVICE int column() {
  return static_cast<int>(threadIdx.x) % kSide * kEach<kTile>;
}
template <class T, int kTile>
using Piece = Pack<computed<T>, kEach<kTile>>;
// Of the second operand of a product of weights it has several such pieces.
template <int kTile>
DEVICE int column(int c) {
  return c / kEach<kTile> * kTile + column<kTile>() + c % kEach<kTile>;
}

// Stages element [begin + column][row] of lines of kTile, of kTile rows and kDepth columns.
template <class T, int kTile, int kVector, class Shared>
DEVICE void stage_columns(const Matrix<T>& from, Shared& to, int begin) {
  for (int e = threadIdx.x; e < kTile * (kDepth / kVector); e += kThreads) {
    const int row = e % kTile, column = e / kTile * kVector;
    Pack<T, kVector> x{};
    if (row < from.rows && column < from.columns)
      x = *reinterpret_cast<const Pack<T, kVector>*>(from.at + row * from.step + column);
    for (int i = 0; i < kVector; ++i)
      to[((begin + column + i) * kTile + row) / kEach<kTile>].x[row % kEach<kTile>] =
          static_cast<computed<T>>(x.x[i]);
  }
}
// Stages element [row][column] of lines of kColumns, of kRows rows: piece by piece, where so many
// may be read at once.
template <class T, int kTile, int kRows, int kColumns, int kVector, class Shared>
DEVICE void stage_rows(const Matrix<T>& from, Shared& to) {
  constexpr int kTaken = kVector % kEach<kTile> == 0 ? kEach<kTile> : 1;
  constexpr int kPieces = kColumns / kTaken;
  for (int e = threadIdx.x; e < kRows * kPieces; e += kThreads) {
    const int row = e / kPieces, column = e % kPieces * kTaken;
    Pack<T, kTaken> x{};
    if (row < from.rows && column < from.columns)
      x = *reinterpret_cast<const Pack<T, kTaken>*>(from.at + row * from.step + column);
    Pack<computed<T>, kTaken> wide;
    for (int i = 0; i < kTaken; ++i) wide.x[i] = static_cast<computed<T>>(x.x[i]);
    if constexpr (kTaken == kEach<kTile>)
      to[e] = wide;
    else
      to[e / kEach<kTile>].x[e % kEach<kTile>] = wide.x[0];
  }
}

template <class T, int kRows, int kColumns>
DEVICE void clear(T (&made)[kRows][kColumns]) {
  for (int i = 0; i < kRows; ++i)
    for (int c = 0; c < kColumns; ++c) made[i][c] = 0;
}
template <class T, int kTile>
using Square = computed<T>[kEach<kTile>][kEach<kTile>];

// Computes s = a · bᵀ of the rows of both.
template <class T, int kTile, int kVector, class Shared>
DEVICE void multiply(Matrix<T> a, Matrix<T> b, Shared& stage, Square<T, kTile>& s) {
  clear(s);
  for (; a.columns > 0; a.columns -= kDepth, b.columns -= kDepth, a.at += kDepth, b.at += kDepth) {
    __syncthreads();
    stage_columns<T, kTile, kVector>(a, stage, 0);
    stage_columns<T, kTile, kVector>(b, stage, kDepth);
    __syncthreads();
#pragma unroll 2
    for (int d = 0; d < kDepth; ++d) {
      const Piece<T, kTile> x = stage[(d * kTile + row<kTile>()) / kEach<kTile>];
      const Piece<T, kTile> z = stage[((kDepth + d) * kTile + column<kTile>()) / kEach<kTile>];
      for (int i = 0; i < kEach<kTile>; ++i)
        for (int j = 0; j < kEach<kTile>; ++j) s[i][j] = multiply_add(x.x[i], z.x[j], s[i][j]);
    }
  }
}

// Returns where a piece is in what a block shares of a tile: lines of pieces, in an order that lets
// neighbours write to different banks.
template <int kTile>
DEVICE int piece_of(int line, int element) {
  return line * kSide + ((element / kEach<kTile>)^(line / kEach<kTile> % 8));
}

// Computes made[i][c] += the sum over n of weights[n][row] · b[n][column].
template <class T, int kTile, int kColumns, int kVector, class Weights, class Shared>
DEVICE void accumulate(Weights& weights, Matrix<T> b, Shared& stage,
                       computed<T> (&made)[kEach<kTile>][kColumns / kSide]) {
  constexpr int kStaged = 2 * kDepth * kTile / kColumns, kPart = kStaged < kTile ? kStaged : kTile;
  for (int n0 = 0; n0 < kTile; n0 += kPart, b.at += kPart * b.step, b.rows -= kPart) {
    __syncthreads();
    stage_rows<T, kTile, kPart, kColumns, kVector>(b, stage);
    __syncthreads();
#pragma unroll 2
    for (int n = 0; n < kPart; ++n) {
      const Piece<T, kTile> x = weights[piece_of<kTile>(n0 + n, row<kTile>())];
      for (int p = 0; p < kColumns / kTile; ++p) {
        const Piece<T, kTile> z =
            stage[(n * kColumns + p * kTile + column<kTile>()) / kEach<kTile>];
        for (int i = 0; i < kEach<kTile>; ++i)
          for (int j = 0; j < kEach<kTile>; ++j) {
            computed<T>& to = made[i][p * kEach<kTile> + j];
            to = multiply_add(x.x[i], z.x[j], to);
          }
      }
    }
  }
}

// Writes into rows [0, rows) and columns [0, columns).
template <class T, int kTile, int kColumns>
DEVICE void write(const computed<T> (&made)[kEach<kTile>][kColumns / kSide], T* to, int64_t step,
                  int64_t rows, int64_t columns) {
  for (int i = 0; i < kEach<kTile>; ++i)
    for (int c = 0; c < kColumns / kSide; ++c) {
      const int at = row<kTile>() + i, along = column<kTile>(c);
      if (at < rows && along < columns) to[at * step + along] = T(made[i][c]);
    }
}

// Combines over the threads of a tile's row, which all get the same bits.
template <class Op, class T>
DEVICE T over_row(T x) {
  for (int half = kSide / 2; half > 0; half /= 2) {
    const T other = __shfl_xor_sync(0xffffffffu, x, half);
    x = (threadIdx.x & half) ? Op::of(other, x) : Op::of(x, other);
  }
  return x;
}

// ---- One tile of queries and keys ---------------------------------------------------------------
template <class T, int kTile>
struct Tile {
  Square<T, kTile> score;  // -∞ where the key is not seen
  Square<T, kTile> slope;  // what one that is seen rises by with the product
};

// Holds what a block of one head works with.
template <class T>
struct Head {
  const Form& f;
  Inputs<T> in;
  int b, h;

  DEVICE int group() const { return h / static_cast<int>(f.heads / f.kv_heads); }
  DEVICE Numbers query_numbers() const { return {in.first, f.query_stretches, f.queries}; }
  DEVICE Numbers key_numbers() const { return {in.first_key, f.key_stretches, f.keys}; }
  DEVICE Matrix<T> queries(int64_t i0) const {
    return {in.q + f.q.at(b, h) + i0 * f.q.token, f.q.token, f.queries - i0, f.width};
  }
  DEVICE Matrix<T> keys(int64_t k0) const {
    return {in.k + f.k.at(b, group()) + k0 * f.k.token, f.k.token, f.keys - k0, f.width};
  }
  DEVICE Matrix<T> values(int64_t k0) const {
    return {in.v + f.v.at(b, group()) + k0 * f.v.token, f.v.token, f.keys - k0, f.v_width};
  }
  DEVICE Matrix<T> adjoints(const T* dy, int64_t i0) const {
    return {dy + f.y.at(b, h) + i0 * f.y.token, f.y.token, f.queries - i0, f.v_width};
  }
  // Returns the row of lse.
  DEVICE int64_t row_of(int64_t query) const { return (b * f.heads + h) * f.queries + query; }
  // Returns whether some query of a tile sees some key of another.
  DEVICE bool meet(int64_t i0, int64_t k0, int tile) const {
    return !f.causal || key_numbers().fewest(k0, least(k0 + tile, f.keys)) <=
                            query_numbers().most(i0, least(i0 + tile, f.queries)) + f.offset;
  }
  DEVICE int64_t mask_element(int64_t i, int64_t key) const {
    return b * f.mask_step[0] + h * f.mask_step[1] + i * f.mask_step[2] +
           least(key, f.all_keys - 1) * f.mask_step[3];
  }
};

template <class T>
DEVICE Matrix<T> columns_from(Matrix<T> matrix, int64_t first) {
  matrix.at += first;
  matrix.columns -= first;
  return matrix;
}

// The product of a query and a key becomes a score; slope, first that of one without a cap, its
// own.
template <class T>
DEVICE void to_score(const Head<T>& head, int64_t i, int64_t key, computed<T>& x,
                     computed<T>& slope) {
  typedef computed<T> C;
  const Form& f = head.f;
  if (f.softcap > 0) {
    const C t = hyperbolic(x * static_cast<C>(f.scale / f.softcap));
    x = static_cast<C>(f.softcap) * t;
    slope *= 1 - t * t;
  } else {
    x *= slope;
  }
  if (f.mask == kAdds) {
    const int64_t element = head.mask_element(i, key);
    x += f.wide_mask ? reinterpret_cast<const C*>(head.in.mask)[element]
                     : static_cast<C>(reinterpret_cast<const T*>(head.in.mask)[element]);
  }
  if (f.mask == kKeeps && !reinterpret_cast<const bool*>(head.in.mask)[head.mask_element(i, key)]) {
    x = static_cast<C>(f.masked_score);
    slope = 0;
  }
}

template <class T, int kTile, int kVector, class Shared>
DEVICE void make_scores(const Head<T>& head, int64_t i0, int64_t k0, Shared& stage,
                        Tile<T, kTile>& tile) {
  const Form& f = head.f;
  multiply<T, kTile, kVector>(head.queries(i0), head.keys(k0), stage, tile.score);
  const Numbers queries = head.query_numbers(), keys = head.key_numbers();
  for (int i = 0; i < kEach<kTile>; ++i)
    for (int j = 0; j < kEach<kTile>; ++j) {
      const int64_t query = i0 + row<kTile>() + i, key = k0 + column<kTile>() + j;
      bool seen = query < f.queries && key < f.keys;
      if (seen && f.causal) seen = keys.at(key) <= queries.at(query) + f.offset;
      tile.slope[i][j] = static_cast<computed<T>>(f.scale);
      if (seen)
        to_score(head, query, keys.at(key), tile.score[i][j], tile.slope[i][j]);
      else
        tile.score[i][j] = -kInfinity;
    }
}

// Shares what is summed over, queries or keys, as the lines of what a block shares.
template <class T, int kTile, class Shared>
DEVICE void share_by_keys(const Square<T, kTile>& x, Shared& to) {
  __syncthreads();
  for (int j = 0; j < kEach<kTile>; ++j) {
    Piece<T, kTile> piece;
    for (int i = 0; i < kEach<kTile>; ++i) piece.x[i] = x[i][j];
    to[piece_of<kTile>(column<kTile>() + j, row<kTile>())] = piece;
  }
}
// Says what a block has: chunks of columns next to each other, then tiles, the last of which comes
// first, since it sees most.
struct Place {
  int chunk, tile, head, batch;
};
DEVICE Place place_of(int64_t chunks, int64_t tiles, int64_t heads) {
  const int index = static_cast<int>(blockIdx.x), c = static_cast<int>(chunks),
            t = static_cast<int>(tiles), h = static_cast<int>(heads);
  return {index % c, t - 1 - index / c % t, index / c / t % h, index / c / t / h};
}

// ---- Kernels ------------------------------------------------------------------------------------
template <class T, int kTile, int kColumns, int kVector>
DEVICE void forward(const Form& f, const Inputs<T>& in, int64_t chunks, T* y, computed<T>* lse) {
  typedef computed<T> C;
  constexpr int kWide = kColumns / kSide;
  typedef Piece<T, kTile> Shared;
  SHARED(Shared, stage, 2 * kDepth * kSide);
  SHARED(Shared, weights, kTile * kSide);
  const Place at = place_of(chunks, (f.queries + kTile - 1) / kTile, f.heads);
  const Head<T> head{f, in, at.batch, at.head};
  const int64_t i0 = int64_t{at.tile} * kTile;
  const int c0 = at.chunk * kColumns;
  C made[kEach<kTile>][kWide], top[kEach<kTile>], sum[kEach<kTile>];
  clear(made);
  for (int i = 0; i < kEach<kTile>; ++i) top[i] = -kInfinity, sum[i] = 0;
  for (int64_t k0 = 0; k0 < f.keys; k0 += kTile) {
    if (!head.meet(i0, k0, kTile)) continue;
    Tile<T, kTile> tile;
    make_scores<T, kTile, kVector>(head, i0, k0, stage, tile);
    for (int i = 0; i < kEach<kTile>; ++i) {
      C most = tile.score[i][0];
      for (int j = 1; j < kEach<kTile>; ++j) most = Greatest::of(most, tile.score[i][j]);
      most = Greatest::of(top[i], over_row<Greatest>(most));
      const C keep = most == top[i] ? C(1) : exponential(top[i] - most);
      const C shift = most == -kInfinity ? C(0) : most;
      top[i] = most;
      sum[i] *= keep;  // of this thread's keys
      for (int j = 0; j < kEach<kTile>; ++j) {
        tile.score[i][j] = exponential(tile.score[i][j] - shift);
        sum[i] += tile.score[i][j];
      }
      for (int c = 0; c < kWide; ++c) made[i][c] *= keep;
    }
    share_by_keys<T, kTile>(tile.score, weights);
    accumulate<T, kTile, kColumns, kVector>(weights, columns_from(head.values(k0), c0), stage,
                                            made);
  }
  for (int i = 0; i < kEach<kTile>; ++i) {
    const C all = over_row<Sum>(sum[i]);
    for (int c = 0; c < kWide; ++c) made[i][c] = all == 0 ? C(0) : made[i][c] / all;
    C logs = top[i] + logarithm(all);
    if (all == 0) set_unseen(logs);
    const int64_t query = i0 + row<kTile>() + i;
    if (c0 == 0 && column<kTile>() == 0 && query < f.queries) lse[head.row_of(query)] = logs;
  }
  write<T, kTile, kColumns>(made, y + f.y.at(head.b, head.h) + i0 * f.y.token + c0, f.y.token,
                            f.queries - i0, f.v_width - c0);
}

// Merges two parts' rows by their sums of exponentials, a warp for each; what sees no key weighs
// nothing.
template <class T>
DEVICE void merge(int64_t count, int64_t queries, int64_t heads, int64_t width, const Rows& rows,
                  double parts, double hidden, const T* y, const computed<T>* lse, const T* other_y,
                  const computed<T>* other_lse, T* to, computed<T>* to_lse) {
  typedef computed<T> C;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (at >= count) return;
  // Only one lane touches them, since it may write over what it reads.
  const int lane = threadIdx.x % kWarp;
  const C a = __shfl_sync(0xffffffffu, lane == 0 ? lse[at] : C(0), 0);
  const C b = __shfl_sync(0xffffffffu, lane == 0 ? other_lse[at] : C(0), 0);
  C none;
  set_unseen(none);
  const C top = a == none ? b : b == none ? a : Greatest::of(a, b);
  const C times = a <= static_cast<C>(hidden / 2) ? static_cast<C>(parts) : C(1);
  const C of_a = a == none ? C(0) : times * exponential(a - top);
  const C of_b = b == none ? C(0) : exponential(b - top), sum = of_a + of_b;
  const C share_a = sum == 0 ? C(0) : of_a / sum, share_b = sum == 0 ? C(0) : of_b / sum;
  const int64_t first =
      rows.at(at / queries / heads, at / queries % heads) + at % queries * rows.token;
  for (int64_t i = lane; i < width; i += kWarp)
    to[first + i] =
        T(share_a * static_cast<C>(y[first + i]) + share_b * static_cast<C>(other_y[first + i]));
  if (lane == 0) to_lse[at] = sum == 0 ? none : top + logarithm(sum);
}

}  // namespace attention
