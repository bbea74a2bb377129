// Rows put, or combined with those at places that indices name, in the order of their positions:
// the places are sorted with their positions, so that those of one place are side by side, and one
// thread goes through them. An entry is place << kBits | position; kNowhere is after all.
constexpr uint64_t kNowhere = ~0ull;

// Counts the positions, and the entries with those that stand for none.
struct Entries {
  int64_t count, all;
  int bits;
  DEVICE uint64_t entry(int64_t place, int64_t position) const {
    return place < 0 ? kNowhere
                     : static_cast<uint64_t>(place) << bits | static_cast<uint64_t>(position);
  }
};

// Enters positions [batches, places]: a row of their batch, `rows` of which begin at `first` of
// those that are named.
template <class I, int kDepth>
DEVICE void enter_rows(const I* indices, int64_t first, uint64_t* sorted, const Entries& entries,
                       int64_t places, int64_t rows, const Named<kDepth>& named) {
  const int64_t i = this_thread<int64_t>();
  if (i >= entries.all) return;
  int64_t row = -1;
  if (i < entries.count) {
    const int64_t all = named.row(indices + i * kDepth);
    if (all >= first && all - first < rows) row = i / places * rows + all - first;
  }
  sorted[i] = entries.entry(row, i);
}

// Enters elements: at strides.at(position), but along the axis where its index says.
template <class I, int kRank>
DEVICE void enter_elements(const I* indices, uint64_t* sorted, const Entries& entries,
                           const Strides<int64_t, kRank>& strides, int64_t size, int64_t step) {
  const int64_t i = this_thread<int64_t>();
  if (i >= entries.all) return;
  int64_t place = -1;
  if (i < entries.count) {
    const int64_t at = place_in(static_cast<int64_t>(indices[i]), size);
    if (at >= 0) place = strides.at(i) + at * step;
  }
  sorted[i] = entries.entry(place, i);
}

// ---- Sorting ------------------------------------------------------------------------------------
// All entries differ but those for nowhere, so that no order of steps shows. A pair of elements
// `apart` is put in order, ascending in every second run of `run`; the steps of a run halve
// `apart`.
DEVICE bool descends(int64_t i, int64_t run) { return (i & run) != 0; }

// Does kSteps steps of a run over all entries, of which the last one's pairs are `apart`: a thread
// has all entries that its own meet.
template <int kSteps>
DEVICE void sort_steps(uint64_t* x, int64_t threads, int64_t run, int64_t apart) {
  const int64_t thread = this_thread<int64_t>();
  if (thread >= threads) return;
  const int64_t first = ((thread & ~(apart - 1)) << kSteps) + (thread & (apart - 1));
  uint64_t own[1 << kSteps];
  for (int k = 0; k < 1 << kSteps; ++k) own[k] = x[first + k * apart];
  for (int half = 1 << (kSteps - 1); half > 0; half /= 2)
    for (int k = 0; k < 1 << kSteps; ++k) {
      const uint64_t a = own[k], b = own[k | half];
      if ((k & half) != 0 || (a > b) == descends(first, run)) continue;
      own[k] = b;
      own[k | half] = a;
    }
  for (int k = 0; k < 1 << kSteps; ++k) x[first + k * apart] = own[k];
}

// Does all steps of the runs [from, to] that stay in a tile.
template <int kTile, int kThreads>
DEVICE void sort_tiles(uint64_t* x, int64_t from, int64_t to) {
  SHARED(uint64_t, tile, kTile);
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kTile;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kTile; i += kThreads) tile[i] = x[base + i];
  __syncthreads();
  for (int64_t run = from; run <= to; run *= 2) {
    for (int64_t apart = (run < kTile ? run : kTile) / 2; apart > 0; apart /= 2) {
      for (int pair = thread; pair < kTile / 2; pair += kThreads) {
        const int i = 2 * pair - (pair & static_cast<int>(apart - 1));
        const uint64_t a = tile[i], b = tile[i + static_cast<int>(apart)];
        if ((a > b) != descends(base + i, run)) {
          tile[i] = b;
          tile[i + static_cast<int>(apart)] = a;
        }
      }
      __syncthreads();
    }
  }
  for (int i = thread; i < kTile; i += kThreads) x[base + i] = tile[i];
}

// ---- Combining ----------------------------------------------------------------------------------
struct Put {
  template <class T>
  DEVICE static T of(T update, T) {
    return update;
  }
};

// Updates [outer, positions, inner] to rows [outer, rows, inner] of `to`: the thread at the first
// of the entries of a row goes through them, kAhead at a time, as many as are after the last.
enum : int { kAhead = 12 };
struct Combined {
  int64_t outer, inner, rows;
};
template <class How, class T, int kPack>
DEVICE void combine(const uint64_t* sorted, const Pack<T, kPack>* updates, Pack<T, kPack>* to,
                    const Entries& entries, const Combined& by) {
  const int64_t e = this_thread<int64_t>();
  const int64_t j = e % by.inner, first = e / by.inner % entries.count;
  const int64_t outer = e / by.inner / entries.count;
  if (outer >= by.outer) return;
  const uint64_t mask = (1ull << entries.bits) - 1;
  const uint64_t head = sorted[first], place = head >> entries.bits;
  if (head == kNowhere || (first > 0 && sorted[first - 1] >> entries.bits == place)) return;
  Pack<T, kPack>* const row = to + (outer * by.rows + static_cast<int64_t>(place)) * by.inner + j;
  const Pack<T, kPack>* const from = updates + outer * entries.count * by.inner + j;
  const Pack<T, kPack> old = *row;
  computed<T> all[kPack];
  for (int k = 0; k < kPack; ++k) all[k] = static_cast<computed<T>>(old.x[k]);
  int mine = kAhead;
  for (int64_t at = first; mine == kAhead; at += kAhead) {
    Pack<T, kPack> x[kAhead];
    mine = 0;
    for (int a = 0; a < kAhead; ++a) {
      const uint64_t entry = sorted[at + a];
      if (entry >> entries.bits == place) ++mine;  // those behind are of greater places
      const uint64_t position = entry >> entries.bits == place ? entry & mask : head & mask;
      x[a] = from[static_cast<int64_t>(position) * by.inner];
    }
    for (int a = 0; a < kAhead; ++a)
      for (int k = 0; k < kPack; ++k) {
        const computed<T> next = How::of(static_cast<computed<T>>(x[a].x[k]), all[k]);
        all[k] = a < mine ? next : all[k];
      }
  }
  Pack<T, kPack> made;
  for (int k = 0; k < kPack; ++k) made.x[k] = T(all[k]);
  *row = made;
}
