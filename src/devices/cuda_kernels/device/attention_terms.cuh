// What goes with a library's attention, after the text of our own: its mask, and the queries that
// see no key, of which a library makes what it likes.
namespace attention {

// Returns what a term is at least. Finite, so that a tile of keys that a query does not see is no
// difference of infinities; low enough that the key weighs 0 beside one that is seen.
DEVICE float lowest_term(const bf16*) { return -1e30f; }
DEVICE float lowest_term(const f16*) { return -65504; }

// Returns the term of a key, -∞ where it is not seen.
template <class T>
DEVICE float term_of(const Head<T>& head, int64_t query, int64_t number) {
  const int64_t element = head.mask_element(query, number);
  if (head.f.mask == kAdds)
    return static_cast<float>(reinterpret_cast<const T*>(head.in.mask)[element]);
  return reinterpret_cast<const bool*>(head.in.mask)[element] ? 0 : -kInfinity;
}

// Makes terms of [.., heads, queries, keys], a thread for each; dims that the mask is repeated
// along are 1. Rows are `step` elements apart.
template <class T>
DEVICE void make_terms(const Form& f, const Inputs<T>& in, int64_t rows, int64_t heads,
                       int64_t queries, int64_t step, T* to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = at / f.keys, key = at % f.keys;
  if (row >= rows) return;
  const int64_t h = row / queries % heads, b = row / queries / heads;
  const Head<T> head{f, in, static_cast<int>(b), static_cast<int>(h)};
  float x = term_of(head, row % queries, head.key_numbers().at(key));
  if (x < lowest_term(to)) x = lowest_term(to);
  to[row * step + key] = T(x);
}

// Clears y and lse of a query that sees no key, a warp for each query.
template <class T>
DEVICE void clear_unseeing(const Form& f, const Inputs<T>& in, T* y, float* lse) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (at >= f.batch * f.heads * f.queries) return;
  const int64_t query = at % f.queries, h = at / f.queries % f.heads, b = at / f.queries / f.heads;
  const Head<T> head{f, in, static_cast<int>(b), static_cast<int>(h)};
  const Numbers keys = head.key_numbers();
  const int64_t last = head.query_numbers().at(query) + f.offset, lane = threadIdx.x % kWarp;
  bool sees = !f.causal || keys.fewest(0, f.keys) <= last;
  if (sees && f.mask != kNoMask) {
    sees = false;
    for (int64_t key = lane; !sees && key - lane < f.keys; key += kWarp) {
      const int64_t number = key < f.keys ? keys.at(key) : 0;
      const bool shown = key < f.keys && (!f.causal || number <= last) &&
                         term_of(head, query, number) != -kInfinity;
      sees = __any_sync(0xffffffffu, shown);
    }
  }
  if (sees) return;
  const int64_t first = f.y.at(b, h) + query * f.y.token;
  for (int64_t i = lane; i < f.v_width; i += kWarp) y[first + i] = T(0);
  if (lane == 0) set_unseen(lse[at]);
}

}  // namespace attention
