// Products of rows with the matrix that each names. Rows are brought in order by a counting sort:
// those of matrix 0 first, in the order in which they are; last those whose matrix is not here, and
// those that name none at all.

// The matrices [*first, *first + kHere) of kWhole are here; first may be null: from 0 on.
template <int64_t kHere, int64_t kWhole>
struct Groups {
  static constexpr int64_t kElsewhere = kHere, kNowhere = kHere + 1, kAll = kHere + 2;
  int64_t first;
  DEVICE explicit Groups(const int64_t* at) : first(at ? *at : 0) {}
  DEVICE int64_t of(int64_t index) const {
    if (index < 0) index += kWhole;
    if (index < 0 || index >= kWhole) return kNowhere;
    return index >= first && index < first + kHere ? index - first : kElsewhere;
  }
};

// A block has a group: it writes where its rows begin, and the rows. Each thread looks at as many
// rows, those of the first thread first.
template <class Groups, int kThreads, class I>
DEVICE void sort_rows(const I* index, Groups groups, int64_t rows, int64_t* begins,
                      int64_t* order) {
  const int64_t share = (rows + kThreads - 1) / kThreads, group = blockIdx.x;
  const int64_t from = threadIdx.x * share, end = from + share;
  const int64_t to = end < rows ? end : rows;
  SHARED(int64_t, before, kThreads);  // rows of groups before this one
  SHARED(int64_t, own, kThreads);
  int64_t fewer = 0, equal = 0;
  for (int64_t r = from; r < to; ++r) {
    const int64_t of = groups.of(index[r]);
    fewer += of < group;
    equal += of == group;
  }
  before[threadIdx.x] = fewer;
  own[threadIdx.x] = equal;
  __syncthreads();
  int64_t at = 0;
  for (int t = 0; t < kThreads; ++t) at += before[t];
  if (threadIdx.x == 0) begins[group] = at;
  if (threadIdx.x == 0 && group == Groups::kNowhere) begins[group + 1] = rows;
  for (int t = 0; t < static_cast<int>(threadIdx.x); ++t) at += own[t];
  for (int64_t r = from; r < to; ++r)
    if (groups.of(index[r]) == group) order[at++] = r;
}

// Gives rows their places among those that have the same owner. A block has an owner, and the last
// one those rows that have none.
template <int kThreads, class I>
DEVICE void place_rows(const I* index, int64_t rows, int64_t owners, int64_t owned, int64_t room,
                       I* places, I* packed) {
  const int64_t share = (rows + kThreads - 1) / kThreads, owner = blockIdx.x;
  const int64_t from = threadIdx.x * share, end = from + share;
  const int64_t to = end < rows ? end : rows;
  SHARED(int64_t, own, kThreads);
  int64_t count = 0;
  for (int64_t r = from; r < to; ++r)
    count += (index[r] < 0 || index[r] >= owners * owned ? owners : index[r] / owned) == owner;
  own[threadIdx.x] = count;
  __syncthreads();
  int64_t at = 0, all = 0;
  for (int t = 0; t < static_cast<int>(threadIdx.x); ++t) at += own[t];
  for (int t = 0; t < kThreads; ++t) all += own[t];
  for (int64_t r = from; r < to; ++r) {
    if ((index[r] < 0 || index[r] >= owners * owned ? owners : index[r] / owned) != owner) continue;
    const bool fits = owner < owners && at < room;
    places[r] = static_cast<I>(fits ? owner * room + at : owners * room);
    if (fits) packed[owner * room + at] = index[r];
    ++at;
  }
  for (int64_t i = all + threadIdx.x; owner < owners && i < room; i += kThreads)
    packed[owner * room + i] = static_cast<I>(owners * owned);
}

DEVICE int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- Tiles --------------------------------------------------------------------------------------
// A tile of kSide × kSide sums over a depth, kDepth of it at a time: the two factors are in
// shared memory as packs of four along the side, and each of 256 threads has 4 × 4 sums.
constexpr int kSide = 64, kDepth = 32, kTileThreads = 256;
constexpr int kFours = kSide / 4, kPitch = kFours + 1;  // a pack more, so that banks differ

// Reads a factor whose memory goes on along the depth: row(i) is where the line of place i in the
// tile begins, null where there is none.
template <class T>
struct Lines {
  const T* line[kFours * 4 * kWarp / kTileThreads];
  int64_t depth;

  template <class Row>
  DEVICE Lines(int64_t depth_, Row row) : depth(depth_) {
    for (int i = 0; i < 8; ++i)
      line[i] = row((threadIdx.x / kWarp + i / 4 * (kTileThreads / kWarp)) * 4 + i % 4);
  }
  template <class Shared>
  DEVICE void stage(int64_t from, Shared& to) const {
    typedef computed<T> C;
    const int lane = threadIdx.x % kWarp;
    for (int i = 0; i < 8; i += 4) {
      Pack<C, 4> four;
      for (int e = 0; e < 4; ++e)
        four.x[e] = line[i + e] && from + lane < depth ? C(line[i + e][from + lane]) : C(0);
      to[lane * kPitch + threadIdx.x / kWarp + i / 4 * (kTileThreads / kWarp)] = four;
    }
  }
};

// Reads a factor whose memory goes on along the side: row(d) is where the line at depth d begins,
// of which `width` elements are in the tile; kPack says whether lines are of whole packs of four.
template <class T, bool kPack, class Row>
struct Columns {
  int64_t depth, width;
  Row row;

  template <class Shared>
  DEVICE void stage(int64_t from, Shared& to) const {
    typedef computed<T> C;
    const int four_at = threadIdx.x % kFours, column = four_at * 4;
    for (int d = threadIdx.x / kFours; d < kDepth; d += kTileThreads / kFours) {
      Pack<C, 4> four{};
      if (from + d < depth && column < width) {
        const T* line = row(from + d) + column;
        if (kPack) {
          const Pack<T, 4> all = *reinterpret_cast<const Pack<T, 4>*>(line);
          for (int e = 0; e < 4; ++e) four.x[e] = C(all.x[e]);
        } else {
          for (int e = 0; e < 4 && column + e < width; ++e) four.x[e] = C(line[e]);
        }
      }
      to[d * kPitch + four_at] = four;
    }
  }
};
template <class T, bool kPack, class Row>
DEVICE Columns<T, kPack, Row> columns(int64_t depth, int64_t width, Row row) {
  return {depth, width, row};
}

// Holds the 4 × 4 sums of a thread, and where they are in the tile: from row() and column() on.
template <class C>
struct Sums {
  C x[4][4];
  DEVICE static int row() { return threadIdx.x / kFours * 4; }
  DEVICE static int column() { return threadIdx.x % kFours * 4; }

  template <class Left, class Right>
  DEVICE void multiply(const Left& left, const Right& right, int64_t depth) {
    typedef Pack<C, 4> Four;
    SHARED(Four, a, kDepth * kPitch);
    SHARED(Four, b, kDepth * kPitch);
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) x[r][c] = 0;
    for (int64_t from = 0; from < depth; from += kDepth) {
      left.stage(from, a);
      right.stage(from, b);
      __syncthreads();
      for (int d = 0; d < kDepth; ++d) {
        const Four l = a[d * kPitch + threadIdx.x / kFours],
                   r = b[d * kPitch + threadIdx.x % kFours];
        for (int i = 0; i < 4; ++i)
          for (int k = 0; k < 4; ++k) x[i][k] = add_product(l.x[i], r.x[k], x[i][k]);
      }
      __syncthreads();
    }
  }
  // Stores row r of the four, of which `width` elements are in the matrix.
  template <bool kPack, class T>
  DEVICE void store(int r, int64_t width, T* to) const {
    if (kPack && width >= 4) {
      Pack<T, 4> four;
      for (int e = 0; e < 4; ++e) four.x[e] = T(x[r][e]);
      *reinterpret_cast<Pack<T, 4>*>(to) = four;
    } else {
      for (int e = 0; e < 4 && e < width; ++e) to[e] = T(x[r][e]);
    }
  }
};

// The tiles of a group's rows are numbered from begins[group] / kSide + group on, which leaves room
// for those of the groups before it; where one has fewer tiles, `rows` of the numbers after them
// is not above 0.
template <class Groups, int kSide>
struct RowTile {
  int64_t group, at, rows;  // begins with sorted row `at`
  DEVICE RowTile(const int64_t* begins, int64_t number) {
    int64_t behind = Groups::kAll;
    group = 0;
    while (behind - group > 1) {
      const int64_t middle = (group + behind) / 2;
      if (number < begins[middle] / kSide + middle)
        behind = middle;
      else
        group = middle;
    }
    at = begins[group] + (number - begins[group] / kSide - group) * kSide;
    rows = lesser(begins[group + 1] - at, kSide);
  }
};

// Clears rows of no matrix of this rank, of which the block has kSide columns.
template <int kSide, int kThreads, class T>
DEVICE void clear_rows(T* y, const int64_t* order, int64_t rows, int64_t width, int64_t column,
                       bool is_nowhere) {
  const float rest = is_nowhere ? 0.0f * kInfinity : 0.0f;
  for (int64_t i = threadIdx.x; i < rows * kSide; i += kThreads)
    if (column + i % kSide < width) y[order[i / kSide] * width + column + i % kSide] = T(rest);
}

// A block has a tile of the sorted rows and kSide columns of the results.
template <class Groups, class T, bool kTransposed, bool kPack, int64_t kDeep, int64_t kWidth>
DEVICE void grouped_product(const T* x, const T* w, const int64_t* begins, const int64_t* order,
                            T* y) {
  constexpr int64_t kAcross = (kWidth + kSide - 1) / kSide;
  const RowTile<Groups, kSide> tile(begins, blockIdx.x / kAcross);
  const int64_t column = blockIdx.x % kAcross * kSide;
  const int64_t* named = order + tile.at;
  if (tile.rows <= 0) return;
  if (tile.group >= Groups::kElsewhere)
    return clear_rows<kSide, kTileThreads>(y, named, tile.rows, kWidth, column,
                                           tile.group == Groups::kNowhere);
  const T* matrix = w + tile.group * kDeep * kWidth;
  const Lines<T> left(
      kDeep, [&](int i) -> const T* { return i < tile.rows ? x + named[i] * kDeep : nullptr; });
  Sums<computed<T>> sums;
  if constexpr (kTransposed) {
    const Lines<T> right(kDeep, [&](int i) -> const T* {
      return column + i < kWidth ? matrix + (column + i) * kDeep : nullptr;
    });
    sums.multiply(left, right, kDeep);
  } else {
    const auto row = [&](int64_t d) { return matrix + d * kWidth + column; };
    sums.multiply(left, columns<T, kPack>(kDeep, kWidth - column, row), kDeep);
  }
  const int64_t from = column + sums.column();
  for (int r = 0; r < 4; ++r)
    if (sums.row() + r < tile.rows && from < kWidth)
      sums.template store<kPack>(r, kWidth - from, y + named[sums.row() + r] * kWidth + from);
}

// A block has a tile of a matrix of kHeight × kWidth: sums over the rows of its group, in order, of
// what `left` and `right` have in them.
template <class T, bool kPackLeft, bool kPackRight, int64_t kHeight, int64_t kWidth, class Made>
DEVICE void grouped_gradient(const T* left, const T* right, const int64_t* begins,
                             const int64_t* order, Made* made) {
  constexpr int64_t kAcross = (kWidth + kSide - 1) / kSide;
  constexpr int64_t kTiles = kAcross * ((kHeight + kSide - 1) / kSide);
  const int64_t group = blockIdx.x / kTiles, tile = blockIdx.x % kTiles;
  const int64_t top = tile / kAcross * kSide, column = tile % kAcross * kSide;
  const int64_t depth = begins[group + 1] - begins[group];
  const int64_t* rows = order + begins[group];
  const auto of_left = [&](int64_t d) { return left + rows[d] * kHeight + top; };
  const auto of_right = [&](int64_t d) { return right + rows[d] * kWidth + column; };
  Sums<computed<T>> sums;
  sums.multiply(columns<T, kPackLeft>(depth, kHeight - top, of_left),
                columns<T, kPackRight>(depth, kWidth - column, of_right), depth);
  const int64_t from = column + sums.column();
  for (int r = 0; r < 4; ++r)
    if (top + sums.row() + r < kHeight && from < kWidth)
      sums.template store<kPackRight>(
          r, kWidth - from, made + (group * kHeight + top + sums.row() + r) * kWidth + from);
}
