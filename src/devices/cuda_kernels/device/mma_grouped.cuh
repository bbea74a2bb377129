// Products of rows with the matrix that each names, and their gradients, of 16-bit floats: after
// the texts of grouped and mma. A block has a tile of 128 × 128 sums, each of its four warps a
// quarter of it, and two stages of the factors in shared memory: while one is multiplied, the next
// is under way to registers. Extents fit into int.
//
// By count, which nobody has measured: for 32 of the depth a multiprocessor of sm_80 multiplies for
// 512 cycles, reads and writes shared memory for 384 and takes 16 KiB from L2, so that 60 to 70 %
// of its peak are within reach; one of sm_90, which multiplies twice as fast, is held up by shared
// memory at about 40 %.
namespace mma {

constexpr int kSide = 128, kStep = 32;  // kStep: of the depth, at once

// Reads a factor whose memory goes on along the depth: place i of the tile has row line(i) of a
// matrix of rows of kDeep.
template <class T, int kVector, int kDeep>
struct Lines {
  typedef Tile<kSide, kStep> Shared;
  typedef Share<Shared> Mine;
  const T* matrix;
  int line[Mine::kEights];
  Eight next[Mine::kEights];

  template <class Line>
  DEVICE Lines(const T* matrix_, Line line_) : matrix(matrix_) {
#pragma unroll
    for (int i = 0; i < Mine::kEights; ++i) line[i] = line_(Mine::row(i));
  }
  DEVICE void load(int from) {
#pragma unroll
    for (int i = 0; i < Mine::kEights; ++i) {
      const int at = from + Mine::column(i);
      next[i] = take<kVector>(matrix + (int64_t{line[i]} * kDeep + at), kDeep - at);
    }
  }
  DEVICE void store(const Shared& to) const {
#pragma unroll
    for (int i = 0; i < Mine::kEights; ++i) Mine::in(to, i) = next[i];
  }
  DEVICE static void left(const Shared& tile, uint32_t (&a)[4], int row, int depth) {
    tile.left(a, row, depth);
  }
  DEVICE static void right(const Shared& tile, uint32_t (&b)[4], int depth, int column) {
    tile.right_transposed(b, depth, column);
  }
};

// Reads a factor whose memory goes on along the side: row(d) is where the line at depth d begins,
// of which `width` elements are in the tile.
template <class T, int kVector, class Row>
struct Columns {
  typedef Tile<kStep, kSide> Shared;
  typedef Share<Shared> Mine;
  int depth, width;
  Row row;
  Eight next[Mine::kEights];

  DEVICE Columns(int depth_, int width_, Row row_) : depth(depth_), width(width_), row(row_) {}
  DEVICE void load(int from) {
#pragma unroll
    for (int i = 0; i < Mine::kEights; ++i) {
      const int d = from + Mine::row(i);
      next[i] = Eight{};
      if (d < depth) next[i] = take<kVector>(row(d) + Mine::column(i), width - Mine::column(i));
    }
  }
  DEVICE void store(const Shared& to) const {
#pragma unroll
    for (int i = 0; i < Mine::kEights; ++i) Mine::in(to, i) = next[i];
  }
  DEVICE static void left(const Shared& tile, uint32_t (&a)[4], int row, int depth) {
    tile.left_transposed(a, row, depth);
  }
  DEVICE static void right(const Shared& tile, uint32_t (&b)[4], int depth, int column) {
    tile.right(b, depth, column);
  }
};
template <class T, int kVector, class Row>
DEVICE Columns<T, kVector, Row> columns(int depth, int width, Row row) {
  return {depth, width, row};
}

// Holds the sums of a warp: 64 × 64 of the tile, from row() and column() on.
struct Sums {
  float x[4][8][4];
  DEVICE static int row() { return warp() / 2 * 64; }
  DEVICE static int column() { return warp() % 2 * 64; }

  template <class Left, class Right, class T>
  DEVICE void multiply(T type, const typename Left::Shared& left,
                       const typename Right::Shared& right) {
#pragma unroll
    for (int d = 0; d < kStep; d += 16) {
      uint32_t b[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) Right::right(right, b[j], d, column() + 16 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t a[4];
        Left::left(left, a, row() + 16 * i, d);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply_fragments(type, x[i][2 * j], a, b[j][0], b[j][1]);
          multiply_fragments(type, x[i][2 * j + 1], a, b[j][2], b[j][3]);
        }
      }
    }
  }
};

// Gives the sums to `rows` lines, of which `width` elements are in the tile and which begin at
// to(row). A line of 16-bit floats is put together in shared memory.
template <int kVector, class T, class To>
DEVICE void give_sums(const Sums& sums, Eight* shared, int rows, int width, To to, T*) {
  typedef Tile<kSide, kSide> Made;
  const Made made{shared};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      made.write(T{}, sums.row() + 16 * i, sums.column() + 8 * j, sums.x[i][j]);
  __syncthreads();
  for (int i = 0; i < Share<Made>::kEights; ++i) {
    const int row = Share<Made>::row(i), column = Share<Made>::column(i);
    if (row < rows) give<kVector>(Share<Made>::in(made, i), to(row) + column, width - column);
  }
}
// One of f32 gets them as fragments have them: four neighbours of a warp write 32 bytes.
template <int kVector, class To>
DEVICE void give_sums(const Sums& sums, Eight*, int rows, int width, To to, float*) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int row = sums.row() + 16 * i + 8 * low + lane() / 4;
        const int column = sums.column() + 8 * j + lane() % 4 * 2;
        if (row >= rows) continue;
        const Pack<float, 2> pair{{sums.x[i][j][2 * low], sums.x[i][j][2 * low + 1]}};
        if constexpr (kVector == 2) {
          if (column < width) *reinterpret_cast<Pack<float, 2>*>(to(row) + column) = pair;
        } else {
          for (int e = 0; e < 2; ++e)
            if (column + e < width) to(row)[column + e] = pair.x[e];
        }
      }
}

// The sums over the depth go to lines, as give_sums says.
template <class T, int kVector, class Left, class Right, class To>
DEVICE void product(Left left, Right right, int depth, int rows, int width, To to) {
  constexpr int kStage = Left::Shared::kEights + Right::Shared::kEights;
  constexpr int kMade = Tile<kSide, kSide>::kEights;
  SHARED(Eight, shared, 2 * kStage > kMade ? 2 * kStage : kMade);
  Sums sums;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.x[i][j][e] = 0;
  left.load(0);
  right.load(0);
  left.store({shared});
  right.store({shared + Left::Shared::kEights});
  __syncthreads();
  Eight *here = shared, *other = shared + kStage;
  for (int from = 0; from < depth; from += kStep) {
    const bool goes_on = from + kStep < depth;
    if (goes_on) left.load(from + kStep);
    if (goes_on) right.load(from + kStep);
    if (sums.row() < rows) sums.multiply<Left, Right>(T{}, {here}, {here + Left::Shared::kEights});
    if (goes_on) left.store({other});
    if (goes_on) right.store({other + Left::Shared::kEights});
    Eight* const last = here;
    here = other, other = last;
    __syncthreads();
  }
  give_sums<kVector>(sums, shared, rows, width, to, to(0));
}

// Tiles of rows next to each other have the same columns: eight of them read a stretch of a matrix
// at about one time.
template <class Groups, class T, bool kTransposed, int kVectorX, int kVectorW, int kVectorY,
          int kDeep, int kWidth>
DEVICE void grouped_product(const T* x, const T* w, const int64_t* begins, const int64_t* order,
                            T* y, int rows) {
  constexpr int kAcross = (kWidth + kSide - 1) / kSide, kBand = 8;
  const int tiles = rows / kSide + static_cast<int>(Groups::kAll), block = blockIdx.x;
  const int band = block / (kBand * kAcross) * kBand, in_band = block % (kBand * kAcross);
  const int high = kBand < tiles - band ? kBand : tiles - band;
  const RowTile<Groups, kSide> tile(begins, band + in_band % high);
  const int column = in_band / high * kSide, here = static_cast<int>(tile.rows);
  if (tile.rows <= 0) return;
  const int64_t* named = order + tile.at;
  if (tile.group >= Groups::kElsewhere)
    return clear_rows<kSide, kThreads>(y, named, tile.rows, kWidth, column,
                                       tile.group == Groups::kNowhere);
  const T* matrix = w + tile.group * kDeep * kWidth;
  // What is not there is not written: it may be that of any line.
  const Lines<T, kVectorX, kDeep> left(
      x, [=](int i) { return static_cast<int>(named[i < here ? i : here - 1]); });
  const auto to = [=](int i) { return y + named[i] * kWidth + column; };
  if constexpr (kTransposed) {
    const Lines<T, kVectorW, kDeep> right(
        matrix, [=](int i) { return column + i < kWidth ? column + i : kWidth - 1; });
    product<T, kVectorY>(left, right, kDeep, here, kWidth - column, to);
  } else {
    const auto row = [=](int d) { return matrix + int64_t{d} * kWidth + column; };
    product<T, kVectorY>(left, columns<T, kVectorW>(kDeep, kWidth - column, row), kDeep, here,
                         kWidth - column, to);
  }
}

// A block has a tile of a matrix of kHeight × kWidth, as grouped_gradient has.
template <class T, int kVectorLeft, int kVectorRight, int kVectorMade, int kHeight, int kWidth,
          class Made>
DEVICE void grouped_gradient(const T* left, const T* right, const int64_t* begins,
                             const int64_t* order, Made* made) {
  constexpr int kAcross = (kWidth + kSide - 1) / kSide;
  constexpr int kTiles = kAcross * ((kHeight + kSide - 1) / kSide);
  const int group = blockIdx.x / kTiles, tile = blockIdx.x % kTiles;
  const int top = tile / kAcross * kSide, column = tile % kAcross * kSide;
  const int depth = static_cast<int>(begins[group + 1] - begins[group]);
  const int64_t* rows = order + begins[group];
  Made* to = made + (int64_t{group} * kHeight + top) * kWidth + column;
  product<T, kVectorMade>(
      columns<T, kVectorLeft>(depth, kHeight - top,
                              [=](int d) { return left + rows[d] * kHeight + top; }),
      columns<T, kVectorRight>(depth, kWidth - column,
                               [=](int d) { return right + rows[d] * kWidth + column; }),
      depth, kHeight - top, kWidth - column, [=](int i) { return to + int64_t{i} * kWidth; });
}

}  // namespace mma
