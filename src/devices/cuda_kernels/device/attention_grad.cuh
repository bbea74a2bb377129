// Gradients of attention, after the text of attention itself: a kernel for delta, one for dq over
// tiles of queries, one for dk and dv over tiles of keys, one for that of a mask. All of them make
// the weights again.
namespace attention {

template <class T>
struct Adjoints {
  const T* dy;
  const computed<T>*lse, *delta;  // delta: of each query, the sum of dy · y
};

// Scores become weights, `ds` the adjoints of scores.
template <class T, int kTile, int kVector, class Shared>
DEVICE void make_adjoints(const Head<T>& head, const Adjoints<T>& a, int64_t i0, int64_t k0,
                          Shared& stage, Tile<T, kTile>& tile, Square<T, kTile>& ds) {
  typedef computed<T> C;
  const Form& f = head.f;
  make_scores<T, kTile, kVector>(head, i0, k0, stage, tile);
  multiply<T, kTile, kVector>(head.adjoints(a.dy, i0), head.values(k0), stage, ds);
  for (int i = 0; i < kEach<kTile>; ++i) {
    const int64_t query = least(i0 + row<kTile>() + i, f.queries - 1);
    const int64_t at = head.row_of(query);
    const C lse = a.lse[at], delta = a.delta[at];
    for (int j = 0; j < kEach<kTile>; ++j) {
      C& x = tile.score[i][j];
      const bool seen = x != -kInfinity;
      x = seen ? exponential(x - lse) : 0;
      ds[i][j] = seen ? x * (ds[i][j] - delta) : 0;
    }
  }
}

template <class T, int kTile, class Shared>
DEVICE void share_by_queries(const Square<T, kTile>& x, Shared& to) {
  __syncthreads();
  for (int i = 0; i < kEach<kTile>; ++i) {
    Piece<T, kTile> piece;
    for (int j = 0; j < kEach<kTile>; ++j) piece.x[j] = x[i][j];
    to[piece_of<kTile>(row<kTile>() + i, column<kTile>())] = piece;
  }
}

// Computes delta of each query, a warp for each.
template <class T>
DEVICE void dot_adjoints(const Form& f, const T* y, const T* dy, computed<T>* delta) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (at >= f.batch * f.heads * f.queries) return;
  const int64_t query = at % f.queries, h = at / f.queries % f.heads;
  const int64_t first = f.y.at(at / f.queries / f.heads, h) + query * f.y.token;
  computed<T> sum = 0;
  for (int64_t i = threadIdx.x % kWarp; i < f.v_width; i += kWarp)
    sum = multiply_add(static_cast<computed<T>>(y[first + i]),
                       static_cast<computed<T>>(dy[first + i]), sum);
  sum = over_warp<Sum>(sum);
  if (threadIdx.x % kWarp == 0) delta[at] = sum;
}

template <class T, int kTile, int kColumns, int kVector>
DEVICE void query_gradients(const Form& f, const Inputs<T>& in, const Adjoints<T>& a,
                            int64_t chunks, T* dq) {
  typedef computed<T> C;
  typedef Piece<T, kTile> Shared;
  SHARED(Shared, stage, 2 * kDepth * kSide);
  SHARED(Shared, weights, kTile * kSide);
  const Place at = place_of(chunks, (f.queries + kTile - 1) / kTile, f.heads);
  const Head<T> head{f, in, at.batch, at.head};
  const int64_t i0 = int64_t{at.tile} * kTile;
  const int c0 = at.chunk * kColumns;
  C made[kEach<kTile>][kColumns / kSide];
  clear(made);
  for (int64_t k0 = 0; k0 < f.keys; k0 += kTile) {
    if (!head.meet(i0, k0, kTile)) continue;
    Tile<T, kTile> tile;
    C ds[kEach<kTile>][kEach<kTile>];
    make_adjoints<T, kTile, kVector>(head, a, i0, k0, stage, tile, ds);
    for (int i = 0; i < kEach<kTile>; ++i)
      for (int j = 0; j < kEach<kTile>; ++j) ds[i][j] *= tile.slope[i][j];
    share_by_keys<T, kTile>(ds, weights);
    accumulate<T, kTile, kColumns, kVector>(weights, columns_from(head.keys(k0), c0), stage, made);
  }
  write<T, kTile, kColumns>(made, dq + f.dq.at(head.b, head.h) + i0 * f.dq.token + c0, f.dq.token,
                            f.queries - i0, f.width - c0);
}

// Sums over all heads that read those of the keys, in order.
template <class T, int kTile, int kColumns, int kVector>
DEVICE void key_gradients(const Form& f, const Inputs<T>& in, const Adjoints<T>& a, int64_t chunks,
                          T* dk, T* dv) {
  typedef computed<T> C;
  constexpr int kWide = kColumns / kSide;
  typedef Piece<T, kTile> Shared;
  SHARED(Shared, stage, 2 * kDepth * kSide);
  SHARED(Shared, weights, kTile * kSide);
  const Place at = place_of(chunks, (f.keys + kTile - 1) / kTile, f.kv_heads);
  const int64_t k0 = int64_t{at.tile} * kTile;
  const int c0 = at.chunk * kColumns, repeat = static_cast<int>(f.heads / f.kv_heads);
  C of_keys[kEach<kTile>][kWide], of_values[kEach<kTile>][kWide];
  clear(of_keys);
  clear(of_values);
  for (int h = at.head * repeat; h < (at.head + 1) * repeat; ++h) {
    const Head<T> head{f, in, at.batch, h};
    for (int64_t i0 = 0; i0 < f.queries; i0 += kTile) {
      if (!head.meet(i0, k0, kTile)) continue;
      Tile<T, kTile> tile;
      C ds[kEach<kTile>][kEach<kTile>];
      make_adjoints<T, kTile, kVector>(head, a, i0, k0, stage, tile, ds);
      share_by_queries<T, kTile>(tile.score, weights);
      accumulate<T, kTile, kColumns, kVector>(weights, columns_from(head.adjoints(a.dy, i0), c0),
                                              stage, of_values);
      for (int i = 0; i < kEach<kTile>; ++i)
        for (int j = 0; j < kEach<kTile>; ++j) ds[i][j] *= tile.slope[i][j];
      share_by_queries<T, kTile>(ds, weights);
      accumulate<T, kTile, kColumns, kVector>(weights, columns_from(head.queries(i0), c0), stage,
                                              of_keys);
    }
  }
  write<T, kTile, kColumns>(of_keys, dk + f.dk.at(at.batch, at.head) + k0 * f.dk.token + c0,
                            f.dk.token, f.keys - k0, f.width - c0);
  write<T, kTile, kColumns>(of_values, dv + f.dv.at(at.batch, at.head) + k0 * f.dv.token + c0,
                            f.dv.token, f.keys - k0, f.v_width - c0);
}

// Computes the gradient of a mask of terms. A block has a tile of it and walks over all that it is
// repeated for: extents of the mask that are 1 have no step.
template <class T, int kTile, int kVector, class M>
DEVICE void mask_gradients(const Form& f, const Inputs<T>& in, const Adjoints<T>& a, M* dmask) {
  typedef computed<T> C;
  typedef Piece<T, kTile> Shared;
  SHARED(Shared, stage, 2 * kDepth * kSide);
  SHARED(Shared, weights, kTile * kSide);
  const bool every_batch = f.mask_step[0] == 0, every_head = f.mask_step[1] == 0;
  const bool every_query = f.mask_step[2] == 0, every_key = f.mask_step[3] == 0;
  const int64_t query_tiles = (f.queries + kTile - 1) / kTile;
  const int64_t key_tiles = (f.keys + kTile - 1) / kTile;
  const Place at =
      place_of(every_key ? 1 : key_tiles, every_query ? 1 : query_tiles, every_head ? 1 : f.heads);
  C made[kEach<kTile>][kEach<kTile>];
  clear(made);
  for (int b = at.batch; b < (every_batch ? f.batch : at.batch + 1); ++b)
    for (int h = at.head; h < (every_head ? f.heads : at.head + 1); ++h)
      for (int64_t i = at.tile; i < (every_query ? query_tiles : at.tile + 1); ++i)
        for (int64_t k = at.chunk; k < (every_key ? key_tiles : at.chunk + 1); ++k) {
          const Head<T> head{f, in, b, h};
          if (!head.meet(i * kTile, k * kTile, kTile)) continue;
          Tile<T, kTile> tile;
          C ds[kEach<kTile>][kEach<kTile>];
          make_adjoints<T, kTile, kVector>(head, a, i * kTile, k * kTile, stage, tile, ds);
          for (int r = 0; r < kEach<kTile>; ++r)
            for (int c = 0; c < kEach<kTile>; ++c) made[r][c] += ds[r][c];
        }
  share_by_queries<T, kTile>(made, weights);
  __syncthreads();
  const int columns = every_key ? 1 : kTile, rows = every_query ? 1 : kTile;
  const Head<T> head{f, in, at.batch, at.head};
  for (int e = threadIdx.x; e < rows * columns; e += kThreads) {
    const int r = e / columns, c = e % columns;
    const int64_t query = int64_t{at.tile} * kTile + r, key = int64_t{at.chunk} * kTile + c;
    if ((!every_query && query >= f.queries) || (!every_key && key >= f.keys)) continue;
    C sum = 0;
    for (int i = r; i < (every_query ? kTile : r + 1); ++i)
      for (int j = c; j < (every_key ? kTile : c + 1); ++j)
        sum += weights[piece_of<kTile>(i, j)].x[j % kEach<kTile>];
    dmask[head.mask_element(query, every_key ? 0 : head.key_numbers().at(key))] = M(sum);
  }
}

}  // namespace attention
