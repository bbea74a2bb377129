// Reductions in rank order, and how a message of several pieces is cut into slices. Shared by the
// transports, so that they cannot differ in a bit.
#pragma once

#include <algorithm>
#include <cstring>

#include "piper/runtime/transport.h"

namespace piper {

// Every `to` becomes the sum of `from` in order, or the largest, element by element; 16-bit floats
// are summed in f32 and rounded once. `to` may be among `from`, at the same place.
void reduce_in_order(Reduction reduction, DType dtype, std::span<std::byte* const> to,
                     std::span<const std::byte* const> from, int64_t count);

// A message's flat form: its pieces one after another, each from a multiple of kFlatAlign on, so
// that a cut at such a multiple never divides an element.
inline constexpr int64_t kFlatAlign = 64;
inline int64_t flat_size(const Piece& piece) {
  int64_t bytes = piece.count * info(piece.dtype).bytes;
  return (bytes + kFlatAlign - 1) / kFlatAlign * kFlatAlign;
}
inline int64_t flat_size(std::span<const Piece> pieces) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += flat_size(piece);
  return total;
}
// Returns where slice `index` of `count` begins in [0, total).
inline int64_t slice_begin(int64_t total, int64_t index, int64_t count) {
  return total / kFlatAlign * index / count * kFlatAlign;
}

// Calls visit(piece index, byte offset in the piece, bytes, flat offset) for what is in [begin,
// end), padding left out.
template <class Visit>
void for_each_run(std::span<const Piece> pieces, int64_t begin, int64_t end, Visit visit) {
  int64_t base = 0;
  for (size_t p = 0; p < pieces.size() && base < end; ++p) {
    int64_t bytes = pieces[p].count * info(pieces[p].dtype).bytes;
    int64_t from = std::max<int64_t>(begin - base, 0);
    int64_t to = std::min(end - base, bytes);
    if (from < to) visit(p, from, to - from, base + from);
    base += flat_size(pieces[p]);
  }
}

// Clears the end of member k's part, past what is in the whole.
inline void clear_rest(const Shard& shard, int64_t k) {
  int64_t end = shard.first * info(shard.dtype).bytes;
  shard.for_each_run(k, [&](const Shard::Run& run) { end = run.part + run.bytes; });
  const int64_t bytes = shard.end() * info(shard.dtype).bytes;
  if (end < bytes) std::memset(shard.part + end, 0, static_cast<size_t>(bytes - end));
}

// Returns whether two members bring the same, but for where it is.
inline bool are_alike(const Piece& a, const Piece& b) {
  return a.dtype == b.dtype && a.count == b.count && a.reduction == b.reduction;
}
inline bool are_alike(const Shard& a, const Shard& b) {
  return a.dtype == b.dtype && a.count == b.count && a.part_count == b.part_count &&
         a.stretches == b.stretches && a.mirrored == b.mirrored && a.blocks == b.blocks &&
         a.first == b.first && a.slice == b.slice;
}
inline bool are_alike(const Exchange& a, const Exchange& b) {
  return a.loops == b.loops && a.run == b.run && a.from_block == b.from_block &&
         a.to_block == b.to_block;
}
inline bool are_alike(const Turn& a, const Turn& b) {
  return a.bytes == b.bytes && a.shift == b.shift;
}
inline bool are_alike(const Rows& a, const Rows& b) {
  return a.wide == b.wide && a.count == b.count && a.row_bytes == b.row_bytes &&
         a.stretches == b.stretches && a.mirrored == b.mirrored && a.owned == b.owned;
}
// Clears the rows that no member sends here: zeros in a whole, NaN in a part.
inline void clear_rows(const Rows& rows, int64_t own, bool whole) {
  const auto size = static_cast<size_t>(rows.row_bytes);
  for (int64_t k = whole ? 0 : own; k < (whole ? rows.members : own + 1); ++k)
    rows.for_each(k, [&](int64_t at, int64_t part, int64_t owner) {
      if (whole && owner != own) std::memset(rows.whole + at, 0, size);
      if (!whole && owner == rows.members) std::memset(rows.part + part, 0xff, size);
    });
}

inline int64_t whole_bytes(std::span<const Shard> shards) {
  int64_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.count * info(shard.dtype).bytes;
  return bytes;
}

// Returns what a member brings, in bytes, for errors; 0 of rows, of which each rank knows what
// travels.
inline int64_t bytes_of(const Collective& collective) {
  int64_t bytes = flat_size(collective.pieces) + whole_bytes(collective.shards);
  for (const Exchange& each : collective.exchanges) bytes += each.block_bytes();
  for (const Turn& each : collective.turns) bytes += each.bytes;
  return bytes;
}

}  // namespace piper
