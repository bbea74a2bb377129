// Attention of 16-bit floats by tensor cores, after the texts of attention and mma: of widths up
// to 128, in whole eights. A block has 64 queries, 16 of them each of its four warps, and walks
// over the tiles of keys in order. Scores and sums are of f32; weights are rounded to 16 bits where
// they are multiplied by values, as libraries do it.
namespace mma {

using attention::Form;
using attention::Head;
using attention::Inputs;
using attention::Matrix;

constexpr int kTokens = 64, kOfWarp = 16;  // of a tile, and of a warp's share of it

DEVICE float to_power(float x) { return exp2f(x * 1.44269504088896341f); }  // e to that power
DEVICE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Moves four at once to registers: more of them would leave room for fewer blocks.
template <class T, class Tile>
DEVICE void stage(const Matrix<T>& from, const Tile& to) {
#pragma unroll 4
  for (int i = 0; i < Share<Tile>::kEights; ++i) {
    if (!Share<Tile>::is_inside(i)) continue;
    const int row = Share<Tile>::row(i), column = Share<Tile>::column(i);
    Eight x{};
    if (row < from.rows && column < from.columns)
      x = *reinterpret_cast<const Eight*>(from.at + row * from.step + column);
    Share<Tile>::in(to, i) = x;
  }
}

template <int kBlocks>
DEVICE void clear(float (&made)[kBlocks][4]) {
#pragma unroll
  for (int c = 0; c < kBlocks; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) made[c][e] = 0;
}

// Holds 16 rows of a tile, from `row` on, as the left factors of products along its columns: in
// registers, or where they are.
template <class Tile>
struct HeldRows {
  uint32_t x[Tile::kColumns / 16][4];
  DEVICE HeldRows(const Tile& tile, int row) {
#pragma unroll
    for (int w = 0; w < Tile::kColumns / 16; ++w) tile.left(x[w], row, 16 * w);
  }
  DEVICE void get(uint32_t (&a)[4], int w) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = x[w][r];
  }
};
template <class Tile>
struct LyingRows {
  const Tile& tile;
  int row;
  DEVICE void get(uint32_t (&a)[4], int w) const { tile.left(a, row, 16 * w); }
};

// sums += rows · tileᵀ, of 8 · kBlocks rows of the tile from `first` on.
template <class T, class Rows, class Tile, int kBlocks>
DEVICE void add_along(const Rows& rows, const Tile& tile, int first, float (&sums)[kBlocks][4]) {
#pragma unroll
  for (int w = 0; w < Tile::kColumns / 16; ++w) {
    uint32_t a[4];
    rows.get(a, w);
#pragma unroll
    for (int j = 0; j < kBlocks / 2; ++j) {
      uint32_t b[4];
      tile.right_transposed(b, 16 * w, first + 16 * j);
      multiply_fragments(T{}, sums[2 * j], a, b[0], b[1]);
      multiply_fragments(T{}, sums[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// sums += weights · tile, of 8 · kBlocks rows of the tile from `first` on: what came out of a
// product, rounded, is laid out as the left factor of another.
template <class T, class Tile, int kBlocks>
DEVICE void add_weighted(const float (&weights)[kBlocks][4], const Tile& tile, int first,
                         float (&sums)[Tile::kColumns / 8][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; j += 2) {
    const uint32_t a[4] = {rounded_pair(T{}, weights[j][0], weights[j][1]),
                           rounded_pair(T{}, weights[j][2], weights[j][3]),
                           rounded_pair(T{}, weights[j + 1][0], weights[j + 1][1]),
                           rounded_pair(T{}, weights[j + 1][2], weights[j + 1][3])};
#pragma unroll
    for (int c = 0; c < Tile::kColumns / 16; ++c) {
      uint32_t b[4];
      tile.right(b, first + 8 * j, 16 * c);
      multiply_fragments(T{}, sums[2 * c], a, b[0], b[1]);
      multiply_fragments(T{}, sums[2 * c + 1], a, b[2], b[3]);
    }
  }
}

// Rounds the warps' sums into a tile that nobody reads any more, and writes its rows.
template <class T, class Tile>
DEVICE void write_rows(const float (&sums)[Tile::kColumns / 8][4], const Tile& tile, T* to,
                       int64_t step, int64_t rows, int64_t columns) {
  __syncthreads();
#pragma unroll
  for (int c = 0; c < Tile::kColumns / 8; ++c) tile.write(T{}, warp() * kOfWarp, 8 * c, sums[c]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Share<Tile>::kEights; ++i) {
    const int row = Share<Tile>::row(i), column = Share<Tile>::column(i);
    if (Share<Tile>::is_inside(i) && row < rows && column < columns)
      *reinterpret_cast<Eight*>(to + row * step + column) = Share<Tile>::in(tile, i);
  }
}

// ---- Scores -------------------------------------------------------------------------------------
// Brings together a tile of queries and one of keys. Where tokens have numbers of their own,
// threads bring them to shared memory, for the sake of tiles that go over the end of a stretch.
template <class T>
struct Meeting {
  const Head<T>& head;
  int64_t* numbers;  // of the queries, with the offset, and of the keys
  int i0, k0, queries, keys;
  bool is_plain;  // all is seen, and scores are multiples of products

  static DEVICE int tokens_of(int64_t all, int from) {
    return static_cast<int>(least(all - from, kTokens));
  }
  DEVICE Meeting(const Head<T>& head_, int64_t* numbers_, int i0_, int k0_)
      : head(head_),
        numbers(numbers_),
        i0(i0_),
        k0(k0_),
        queries(tokens_of(head.f.queries, i0)),
        keys(tokens_of(head.f.keys, k0)) {
    const Form& f = head.f;
    is_plain = f.mask == attention::kNoMask && !(f.softcap > 0) && queries == kTokens &&
               keys == kTokens;
    if (f.causal)
      is_plain = is_plain && head.key_numbers().most(k0, k0 + keys) <=
                                 head.query_numbers().fewest(i0, i0 + queries) + f.offset;
  }
  DEVICE bool has_numbers() const {
    return head.f.query_stretches > 0 || head.f.key_stretches > 0;
  }
  DEVICE void stage_numbers() const {
    if (!has_numbers()) return;
    const int i = threadIdx.x % kTokens;
    numbers[threadIdx.x] =
        threadIdx.x < kTokens
            ? head.query_numbers().at(i0 + (i < queries ? i : queries - 1)) + head.f.offset
            : head.key_numbers().at(k0 + (i < keys ? i : keys - 1));
  }
  DEVICE float scale() const { return static_cast<float>(head.f.scale); }
  // Turns the product of query i and key j into a score where it is not plain, `slope` being what
  // it rises by with the product. What is not there counts as the last that is, and then as not
  // seen.
  DEVICE void score(int i, int j, float& x, float& slope) const {
    const Form& f = head.f;
    bool seen = i < queries && j < keys;
    i = i < queries ? i : queries - 1, j = j < keys ? j : keys - 1;
    const int64_t key = has_numbers() ? numbers[kTokens + j] : k0 + j;
    if (f.causal) seen = seen && key <= (has_numbers() ? numbers[i] : i0 + i + f.offset);
    slope = scale();
    to_score(head, i0 + i, key, x, slope);
    if (!seen) x = -kInfinity;
  }
};

// Returns where element e of block j of a product's d is.
DEVICE int row_of(int e) { return lane() / 4 + e / 2 * 8; }
DEVICE int column_of(int j, int e) { return 8 * j + 2 * (lane() % 4) + e % 2; }

// Makes scores of 16 queries from i0 on and 8 · kBlocks keys from j0 on, or of as many keys and
// queries.
template <bool kKeysFirst, class T, int kBlocks>
DEVICE void make_scores(const Meeting<T>& meeting, int i0, int j0, float (&x)[kBlocks][4],
                        float (&slope)[kBlocks][4]) {
  if (meeting.is_plain) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] *= slope[j][e] = meeting.scale();
    return;
  }
#pragma unroll
  for (int j = 0; j < kBlocks; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = row_of(e), column = column_of(j, e);
      meeting.score(i0 + (kKeysFirst ? column : row), j0 + (kKeysFirst ? row : column), x[j][e],
                    slope[j][e]);
    }
}

// Combines over the four lanes that have a row of a product, which all get the same bits.
template <class Op>
DEVICE float over_lanes(float x) {
  for (int half = 2; half > 0; half /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, x, half);
    x = (threadIdx.x & half) ? Op::of(other, x) : Op::of(x, other);
  }
  return x;
}
// ---- Forward ------------------------------------------------------------------------------------
// Holds what the rows of a warp have so far: of `sum` each lane has that of its keys.
template <class Values>
struct Softmax {
  float made[Values::kColumns / 8][4], top[2], sum[2];

  DEVICE Softmax() {
    clear(made);
    for (int r = 0; r < 2; ++r) top[r] = -kInfinity, sum[r] = 0;
  }
  // Scores become weights.
  DEVICE void weigh(float (&x)[kTokens / 8][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = x[0][2 * r];
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j)
        most = Greatest::of(Greatest::of(most, x[j][2 * r]), x[j][2 * r + 1]);
      most = Greatest::of(top[r], over_lanes<Greatest>(most));
      const float keep = most == top[r] ? 1.0f : to_power(top[r] - most);
      const float shift = most == -kInfinity ? 0.0f : most;
      top[r] = most;
      sum[r] *= keep;
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) sum[r] += x[j][e] = to_power(x[j][e] - shift);
#pragma unroll
      for (int c = 0; c < Values::kColumns / 8; ++c)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) made[c][e] *= keep;
    }
  }
};

template <class T, int kWidth, int kValueWidth>
DEVICE void forward(const Form& f, const Inputs<T>& in, T* y, float* lse) {
  typedef Tile<kTokens, kWidth> Keys;
  typedef Tile<kTokens, kValueWidth> Values;
  SHARED(Eight, shared, Keys::kEights + Values::kEights);
  SHARED(int64_t, numbers, 2 * kTokens);
  const Keys keys{shared};
  const Values values{shared + Keys::kEights};
  const attention::Place at =
      attention::place_of(1, (f.queries + kTokens - 1) / kTokens, f.heads);
  const Head<T> head{f, in, at.batch, at.head};
  const int i0 = at.tile * kTokens;
  stage(head.queries(i0), keys);
  __syncthreads();
  const HeldRows<Keys> queries(keys, warp() * kOfWarp);
  Softmax<Values> rows;
  for (int k0 = 0; k0 < static_cast<int>(f.keys); k0 += kTokens) {
    if (!head.meet(i0, k0, kTokens)) continue;
    const Meeting<T> meeting(head, numbers, i0, k0);
    __syncthreads();
    meeting.stage_numbers();
    stage(head.keys(k0), keys);
    stage(head.values(k0), values);
    __syncthreads();
    float x[kTokens / 8][4];
    clear(x);
    add_along<T>(queries, keys, 0, x);
    float slope[kTokens / 8][4];  // the gradients' affair
    make_scores<false>(meeting, warp() * kOfWarp, 0, x, slope);
    rows.weigh(x);
    add_weighted<T>(x, values, 0, rows.made);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = over_lanes<Sum>(rows.sum[r]);
    float logs = rows.top[r] + logf(all);
    if (all == 0) attention::set_unseen(logs);
    const int query = i0 + warp() * kOfWarp + row_of(2 * r);
    if (lane() % 4 == 0 && query < f.queries) lse[head.row_of(query)] = logs;
#pragma unroll
    for (int c = 0; c < kValueWidth / 8; ++c)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e)
        rows.made[c][e] = all == 0 ? 0.0f : rows.made[c][e] / all;
  }
  write_rows(rows.made, values, y + f.y.at(head.b, head.h) + int64_t{i0} * f.y.token, f.y.token,
             f.queries - i0, f.v_width);
}

}  // namespace mma
