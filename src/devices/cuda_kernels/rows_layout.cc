// Chooses how threads share the rows that a kernel reduces or normalises.
#include "rows_layout.h"

#include <algorithm>
#include <bit>

#include "walk.h"

namespace piper::cuda_kernels {
namespace {

constexpr int64_t kMostThreads = 1024;
constexpr int64_t kRowThreads = 256;     // of a block, about
constexpr int64_t kSumThreads = 384;     // of one that adds rows up
constexpr int64_t kRegisters = 80;       // of a thread, for elements that it keeps
constexpr int64_t kMostSums = 512;       // blocks whose sums are added up
constexpr int64_t kBlocksOfSums = 1024;  // with tiles

// Returns a power of 2 within a warp, or whole warps.
int64_t whole_threads(int64_t threads) {
  if (threads <= kWarp)
    return static_cast<int64_t>(
        std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(threads, 1))));
  return ceil_div(threads, kWarp) * kWarp;
}

// Returns, for a row of so many runs of lanes, the most threads of a tile that leave few without
// work, or the fewest.
int64_t tile_threads(int64_t runs) {
  constexpr int64_t kFew = 64;  // one in so many
  if (runs <= kRowThreads) return whole_threads(runs);
  int64_t best = kRowThreads;
  const auto idle = [&](int64_t threads) { return ceil_div(runs, threads) * threads - runs; };
  for (int64_t threads = kRowThreads; threads >= kRowThreads / 2; threads -= kWarp)
    if (idle(best) > runs / kFew && idle(threads) < idle(best)) best = threads;
  return best;
}

// Returns, for a whole row with at most so many runs a thread if there are enough, the threads that
// leave the fewest without work, and the fewest of these.
int64_t row_threads(int64_t runs, int64_t most_chunks) {
  int64_t best = 0, idle = 0;
  for (int64_t chunks = std::max<int64_t>(most_chunks, 1); chunks > 0; --chunks) {
    const int64_t threads = std::min(whole_threads(ceil_div(runs, chunks)), kMostThreads);
    const int64_t left = threads * ceil_div(runs, threads) - runs;
    if (best == 0 || left < idle) best = threads, idle = left;
  }
  return best;
}

// Returns the rows that a block has at once, of about so many threads.
int64_t rows_at_once(int64_t threads, int64_t of_row, int64_t rows) {
  const int64_t of_warp = std::max<int64_t>(kWarp / of_row, 1);
  return std::min(std::max<int64_t>(threads / of_row, 1), ceil_div(rows, of_warp) * of_warp);
}

RowLayout without_sums(const PassShape& shape) {
  RowLayout layout;
  layout.lanes = shape.lanes;
  const int64_t most = std::max<int64_t>(kRegisters / shape.kept, 1);
  while (layout.lanes > 1 && layout.lanes > most) layout.lanes /= 2;
  const int64_t runs = ceil_div(shape.width, layout.lanes);
  layout.threads = tile_threads(runs);
  layout.tiles = ceil_div(runs, layout.threads);
  layout.at_once = rows_at_once(kRowThreads, layout.threads, shape.rows);
  layout.row_blocks = ceil_div(shape.rows, layout.at_once);
  return layout;
}

// A short row is laid out as one that is kept is; of a long one, with one row at once, tiles add
// the rows of their columns in the order in which one block would.
RowLayout with_sums(const PassShape& shape) {
  RowLayout layout;
  layout.lanes = kMostLanes;
  while (shape.width % layout.lanes != 0) layout.lanes /= 2;
  const int64_t runs = ceil_div(shape.width, layout.lanes);
  layout.threads = row_threads(runs, kMostLanes / layout.lanes);
  layout.chunks = ceil_div(runs, layout.threads);
  const int64_t at_once = rows_at_once(kSumThreads, layout.threads, shape.rows);
  const int64_t steps = ceil_div(shape.rows, at_once);
  int64_t tiles = 1;
  if (layout.threads > kRowThreads) {
    const int64_t threads = tile_threads(runs);
    tiles = ceil_div(runs, threads);
    if (!shape.keeps_row) {
      layout.threads = threads;
      layout.chunks = 1;
      layout.tiles = tiles;
    }
  }
  layout.at_once =
      shape.sums_rows ? at_once : rows_at_once(kRowThreads, layout.threads, shape.rows);
  layout.row_blocks = ceil_div(shape.rows, layout.at_once);
  if (!shape.sums_rows) return layout;
  const int64_t most_blocks = std::clamp<int64_t>(kBlocksOfSums / tiles, 1, kMostSums);
  layout.turns = ceil_div(steps, std::min(steps, most_blocks));
  layout.row_blocks = ceil_div(steps, layout.turns);
  return layout;
}

}  // namespace

RowLayout layout_of(const PassShape& shape) {
  return shape.keeps_row || shape.sums_rows ? with_sums(shape) : without_sums(shape);
}

}  // namespace piper::cuda_kernels
