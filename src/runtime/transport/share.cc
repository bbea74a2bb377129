// Each member's share of a collective, where all of them can reach all memory: it reads what others
// have brought and writes what nobody else touches.
#include <fmt/format.h>

#include <algorithm>

#include "reduce.h"

namespace piper {
namespace {

using Members = std::span<const Collective* const>;

void share_all_reduce(Members members, size_t own, ShareScratch& scratch) {
  const std::span<const Piece> pieces = members[own]->pieces;
  const auto size = static_cast<int64_t>(members.size()), at = static_cast<int64_t>(own);
  const int64_t total = flat_size(pieces);
  // Nobody else writes a member's slice: each member sums its slice and writes it to all.
  for_each_run(pieces, slice_begin(total, at, size), slice_begin(total, at + 1, size),
               [&](size_t p, int64_t offset, int64_t bytes, int64_t) {
                 for (size_t i = 0; i < members.size(); ++i) {
                   scratch.to[i] = members[i]->pieces[p].data + offset;
                   scratch.from[i] = scratch.to[i];
                 }
                 const DType dtype = pieces[p].dtype;
                 reduce_in_order(pieces[p].reduction, dtype, scratch.to, scratch.from,
                                 bytes / info(dtype).bytes);
               });
}

void share_reduce_scatter(Members members, size_t own, ShareScratch& scratch) {
  const std::span<const Shard> shards = members[own]->shards;
  for (size_t s = 0; s < shards.size(); ++s) {
    const DType dtype = shards[s].dtype;
    shards[s].for_each_run(static_cast<int64_t>(own), [&](const Shard::Run& run) {
      for (size_t i = 0; i < members.size(); ++i)
        scratch.from[i] = members[i]->shards[s].whole + run.whole;
      std::byte* to = shards[s].part + run.part;
      const int64_t count = run.bytes / info(dtype).bytes;
      if (shards[s].blocks.any())
        add_in_blocks(shards[s].blocks, dtype, scratch.from, count, to);
      else
        reduce_in_order(Reduction::kSum, dtype, std::span(&to, 1), scratch.from, count);
    });
    clear_rest(shards[s], static_cast<int64_t>(own));
  }
}

void share_all_gather(Members members, size_t own) {
  const std::span<const Shard> shards = members[own]->shards;
  for (size_t s = 0; s < shards.size(); ++s)
    for (size_t i = 0; i < members.size(); ++i)
      shards[s].for_each_run(static_cast<int64_t>(i), [&](const Shard::Run& run) {
        std::byte* to = shards[s].whole + run.whole;
        const std::byte* from = members[i]->shards[s].part + run.part;
        if (shards[s].blocks.any())
          round_in_blocks(shards[s].blocks, shards[s].dtype, from,
                          run.bytes / info(shards[s].dtype).bytes, to);
        else if (to != from)
          std::memcpy(to, from, static_cast<size_t>(run.bytes));
      });
}

void share_all_to_all(Members members, size_t position) {
  const std::span<const Exchange> exchanges = members[position]->exchanges;
  for (size_t e = 0; e < exchanges.size(); ++e)
    for (size_t i = 0; i < members.size(); ++i) {
      const Exchange& own = exchanges[e];
      const std::byte* from =
          members[i]->exchanges[e].from + static_cast<int64_t>(position) * own.from_block;
      std::byte* to = own.to + static_cast<int64_t>(i) * own.to_block;
      own.for_each_run(0, own.block_bytes(), [&](int64_t f, int64_t t, int64_t, int64_t bytes) {
        std::memcpy(to + t, from + f, static_cast<size_t>(bytes));
      });
    }
}

void share_dispatch(Members members, size_t position) {
  const Rows& rows = members[position]->rows[0];
  const auto own = static_cast<int64_t>(position);
  clear_rows(rows, own, true);
  for (size_t i = 0; i < members.size(); ++i)
    rows.for_each(static_cast<int64_t>(i), [&](int64_t whole, int64_t part, int64_t owner) {
      if (owner == own)
        std::memcpy(rows.whole + whole, members[i]->rows[0].part + part,
                    static_cast<size_t>(rows.row_bytes));
    });
}

void share_combine(Members members, size_t position) {
  const Rows& rows = members[position]->rows[0];
  const auto own = static_cast<int64_t>(position);
  clear_rows(rows, own, false);
  rows.for_each(own, [&](int64_t whole, int64_t part, int64_t owner) {
    if (owner < rows.members)
      std::memcpy(rows.part + part, members[static_cast<size_t>(owner)]->rows[0].whole + whole,
                  static_cast<size_t>(rows.row_bytes));
  });
}

void share_rotate(Members members, size_t own) {
  const std::span<const Turn> turns = members[own]->turns;
  for (size_t t = 0; t < turns.size(); ++t) {
    const size_t before =
        (own + members.size() - static_cast<size_t>(turns[t].shift)) % members.size();
    const std::byte* const from = members[before]->turns[t].from;
    if (from != turns[t].to) std::memcpy(turns[t].to, from, static_cast<size_t>(turns[t].bytes));
  }
}

}  // namespace

bool are_alike(const Collective& a, const Collective& b) {
  const auto alike = [](const auto& x, const auto& y) { return are_alike(x, y); };
  return a.kind == b.kind && std::ranges::equal(a.pieces, b.pieces, alike) &&
         std::ranges::equal(a.shards, b.shards, alike) &&
         std::ranges::equal(a.exchanges, b.exchanges, alike) &&
         std::ranges::equal(a.turns, b.turns, alike) && std::ranges::equal(a.rows, b.rows, alike);
}

void do_share(Members members, size_t own, ShareScratch& scratch) {
  switch (members[own]->kind) {
    case InstructionKind::kAllReduce:
      return share_all_reduce(members, own, scratch);
    case InstructionKind::kReduceScatter:
      return share_reduce_scatter(members, own, scratch);
    case InstructionKind::kAllGather:
      return share_all_gather(members, own);
    case InstructionKind::kAllToAll:
      return share_all_to_all(members, own);
    case InstructionKind::kRotate:
      return share_rotate(members, own);
    case InstructionKind::kDispatch:
      return share_dispatch(members, own);
    case InstructionKind::kCombine:
      return share_combine(members, own);
    default:
      PIPER_CHECK(false, "{} is no collective", to_string(members[own]->kind));
  }
}

}  // namespace piper
