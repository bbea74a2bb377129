// Gradients of attention of 16-bit floats by tensor cores, after the texts of mma_attention and
// attention_grad: a kernel for dq over tiles of queries, one for dk and dv over tiles of keys, each
// of which makes the weights again. Weights and adjoints of scores are rounded to 16 bits where
// they are multiplied again.
namespace mma {

using attention::Adjoints;

constexpr int kAtOnce = 16;  // of the tokens that a block walks over, by registers

// Scores become weights, and what `ds` has of the products of adjoints and values the adjoints of
// the scores' products. lse and delta: of a row's query, or, kKeysFirst, of a column's.
template <bool kKeysFirst, class T, int kBlocks>
DEVICE void make_adjoints(const Meeting<T>& meeting, int i0, int j0, const float* lse,
                          const float* delta, float (&x)[kBlocks][4], float (&ds)[kBlocks][4]) {
  float slope[kBlocks][4];
  make_scores<kKeysFirst>(meeting, i0, j0, x, slope);
#pragma unroll
  for (int j = 0; j < kBlocks; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = kKeysFirst ? column_of(j, e) : e / 2;
      const bool seen = x[j][e] != -kInfinity;
      x[j][e] = seen ? to_power(x[j][e] - lse[at]) : 0.0f;
      ds[j][e] = seen ? x[j][e] * (ds[j][e] - delta[at]) * slope[j][e] : 0.0f;
    }
}

template <class T, int kWidth, int kValueWidth>
DEVICE void query_gradients(const Form& f, const Inputs<T>& in, const Adjoints<T>& a, T* dq) {
  typedef Tile<kTokens, kWidth> Keys;
  typedef Tile<kTokens, kValueWidth> Values;
  SHARED(Eight, shared, Keys::kEights + Values::kEights);
  SHARED(int64_t, numbers, 2 * kTokens);
  const Keys keys{shared};
  const Values values{shared + Keys::kEights};
  const attention::Place at = attention::place_of(1, (f.queries + kTokens - 1) / kTokens, f.heads);
  const Head<T> head{f, in, at.batch, at.head};
  const int i0 = at.tile * kTokens;
  const int row = warp() * kOfWarp;
  stage(head.queries(i0), keys);
  stage(head.adjoints(a.dy, i0), values);
  __syncthreads();
  const HeldRows<Keys> queries(keys, row);
  const HeldRows<Values> adjoints(values, row);
  float lse[2], delta[2], made[kWidth / 8][4];
  for (int r = 0; r < 2; ++r) {
    const int64_t query = head.row_of(least(i0 + row + row_of(2 * r), f.queries - 1));
    lse[r] = a.lse[query], delta[r] = a.delta[query];
  }
  clear(made);
  for (int k0 = 0; k0 < static_cast<int>(f.keys); k0 += kTokens) {
    if (!head.meet(i0, k0, kTokens)) continue;
    const Meeting<T> meeting(head, numbers, i0, k0);
    __syncthreads();
    meeting.stage_numbers();
    stage(head.keys(k0), keys);
    stage(head.values(k0), values);
    __syncthreads();
#pragma unroll 1
    for (int part = 0; part < kTokens; part += kAtOnce) {
      float x[kAtOnce / 8][4], ds[kAtOnce / 8][4];
      clear(x);
      clear(ds);
      add_along<T>(queries, keys, part, x);
      add_along<T>(adjoints, values, part, ds);
      make_adjoints<false>(meeting, row, part, lse, delta, x, ds);
      add_weighted<T>(ds, keys, part, made);
    }
  }
  write_rows(made, keys, dq + f.dq.at(head.b, head.h) + int64_t{i0} * f.dq.token, f.dq.token,
             f.queries - i0, f.width);
}

// Sums over all heads that read those of the keys, in order.
template <class T, int kWidth, int kValueWidth>
DEVICE void key_gradients(const Form& f, const Inputs<T>& in, const Adjoints<T>& a, T* dk, T* dv) {
  typedef Tile<kTokens, kWidth> Keys;
  typedef Tile<kTokens, kValueWidth> Values;
  // As many queries as leave room for a second and a third block.
  constexpr int kStaged = kWidth + kValueWidth > 192 ? 32 : kTokens;
  typedef Tile<kStaged, kWidth> Queries;
  typedef Tile<kStaged, kValueWidth> Outputs;
  constexpr int kFirst = Values::kEights;  // of the tiles that are walked over
  constexpr int kWalked = kFirst + Queries::kEights + Outputs::kEights;
  SHARED(Eight, shared, kWalked > Keys::kEights ? kWalked : Keys::kEights);
  SHARED(float, sums, 2 * kStaged);
  SHARED(int64_t, numbers, 2 * kTokens);
  const Keys keys{shared};
  const Values values{shared};
  const Queries queries{shared + kFirst};
  const Outputs adjoints{shared + kFirst + Queries::kEights};
  const attention::Place at = attention::place_of(1, (f.keys + kTokens - 1) / kTokens, f.kv_heads);
  const int k0 = at.tile * kTokens;
  const int repeat = static_cast<int>(f.heads / f.kv_heads), row = warp() * kOfWarp;
  const Head<T> own{f, in, at.batch, at.head * repeat};
  stage(own.keys(k0), keys);
  __syncthreads();
  const HeldRows<Keys> of_keys(keys, row);
  __syncthreads();
  stage(own.values(k0), values);
  __syncthreads();
  float made[kWidth / 8][4], made_values[kValueWidth / 8][4];
  clear(made);
  clear(made_values);
  for (int h = own.h; h < own.h + repeat; ++h) {
    const Head<T> head{f, in, at.batch, h};
    for (int i0 = 0; i0 < static_cast<int>(f.queries); i0 += kTokens) {
      if (!head.meet(i0, k0, kTokens)) continue;
      const Meeting<T> meeting(head, numbers, i0, k0);
      for (int from = 0; from < kTokens && i0 + from < f.queries; from += kStaged) {
        __syncthreads();
        meeting.stage_numbers();
        stage(head.queries(i0 + from), queries);
        stage(head.adjoints(a.dy, i0 + from), adjoints);
        for (int i = threadIdx.x; i < 2 * kStaged; i += kThreads) {
          const int64_t query = least(i0 + from + i % kStaged, f.queries - 1);
          sums[i] = (i < kStaged ? a.lse : a.delta)[head.row_of(query)];
        }
        __syncthreads();
#pragma unroll 1
        for (int part = 0; part < kStaged; part += kAtOnce) {
          float x[kAtOnce / 8][4], ds[kAtOnce / 8][4];
          clear(x);
          clear(ds);
          add_along<T>(of_keys, queries, part, x);
          add_along<T>(LyingRows<Values>{values, row}, adjoints, part, ds);
          make_adjoints<true>(meeting, from + part, row, sums + part, sums + kStaged + part, x, ds);
          add_weighted<T>(x, adjoints, part, made_values);
          add_weighted<T>(ds, queries, part, made);
        }
      }
    }
  }
  write_rows(made, keys, dk + f.dk.at(at.batch, at.head) + int64_t{k0} * f.dk.token, f.dk.token,
             f.keys - k0, f.width);
  write_rows(made_values, values, dv + f.dv.at(at.batch, at.head) + int64_t{k0} * f.dv.token,
             f.dv.token, f.keys - k0, f.v_width);
}

}  // namespace mma
