// Turns collectives into stages of moves and sums, when the plan is loaded.
#include "make_stages.h"

namespace piper::device_fabric {

Status add_up(const Seated& group, Arithmetic& arithmetic, std::byte* slot,
              std::span<const Term> terms, Stages& stages) {
  for (const Term& term : terms) {
    if (term.count == 0) continue;
    if (group.size() == 1) {
      stages.push_back(
          move_stage({slot + term.offset, term.to, {}, term.count * info(term.dtype).bytes}));
      continue;
    }
    std::vector<std::byte*> from;
    for (int64_t k = 0; k < group.size(); ++k) from.push_back(slot + term.offset + k * term.step);
    PIPER_ASSIGN(const int32_t binding,
                 arithmetic.reduce(term.reduction, term.dtype, term.count, from, term.to));
    stages.push_back(launch_stage(binding));
  }
  return ok_status();
}

namespace {

// ---- All-reduce ---------------------------------------------------------------------------------

// Holds the pieces, or stretches of them, that fit into the slot at once.
struct Batch {
  std::vector<Piece> pieces;
  int64_t bytes = 0;
};
// Returns elements of a piece that go into a batch.
int64_t most_of_piece(int64_t size, int64_t members, int64_t limit) {
  return std::max<int64_t>(1, (limit - members * kAlign) / size / 2 / kAlign) * kAlign;
}

std::vector<Batch> batches_of(std::span<const Piece> pieces, int64_t members, int64_t limit) {
  std::vector<Batch> batches(1);
  for (const Piece& piece : pieces) {
    const int64_t size = info(piece.dtype).bytes;
    const auto room_of = [&](int64_t count) {
      return members * aligned(even_runs(count, members, size).each * size);
    };
    const int64_t most = most_of_piece(size, members, limit);
    for (int64_t at = 0; at < piece.count;) {
      const int64_t count = std::min(piece.count - at, most);
      if (batches.back().bytes > 0 && batches.back().bytes + room_of(count) > limit)
        batches.emplace_back();
      batches.back().pieces.push_back(
          {piece.data + at * size, piece.dtype, count, piece.reduction});
      batches.back().bytes += room_of(count);
      at += count;
    }
  }
  if (batches.back().pieces.empty()) batches.pop_back();
  return batches;
}

Status reduce_batch(const Preparer& with, const Batch& batch, Stages& stages) {
  const Seated& group = with.group;
  PIPER_ASSIGN(std::byte* const slot, with.slots.at_least(group.stream, batch.bytes));
  Stage bring, give;
  std::vector<Term> terms;
  int64_t offset = 0;
  for (const Piece& piece : batch.pieces) {
    const int64_t size = info(piece.dtype).bytes;
    const Runs runs = even_runs(piece.count, group.size(), size);
    std::byte* const own = piece.data + runs.begin(group.own) * size;
    const int64_t own_bytes = runs.size(group.own) * size, step = aligned(runs.each * size);
    for (int64_t k = 0; k < group.size(); ++k) {
      std::byte* const its = piece.data + runs.begin(k) * size;
      add_block(bring.outgoing, k, its, runs.size(k) * size);
      add_block(bring.incoming, k, slot + offset + k * step, own_bytes);
      if (k == group.own) continue;
      add_block(give.outgoing, k, own, own_bytes);
      add_block(give.incoming, k, its, runs.size(k) * size);
    }
    terms.push_back({own, piece.dtype, piece.reduction, runs.size(group.own), offset, step});
    offset += group.size() * step;
  }
  stages.push_back(std::move(bring));
  PIPER_TRY(add_up(group, with.arithmetic, slot, terms, stages));
  stages.push_back(std::move(give));
  return ok_status();
}

// ---- All-to-all ---------------------------------------------------------------------------------

// Moves blocks between a member's places, as the loops say, and a contiguous run.
StridedMove blocks_move(const Exchange& exchange, int64_t members, std::byte* packed, bool packs) {
  const int64_t bytes = exchange.block_bytes();
  StridedMove move{packs ? exchange.from : packed, packs ? packed : exchange.to, {}, exchange.run};
  const auto add = [&](int64_t count, int64_t outside, int64_t inside) {
    move.loops.push_back({count, packs ? outside : inside, packs ? inside : outside});
  };
  add(members, packs ? exchange.from_block : exchange.to_block, bytes);
  int64_t inside = bytes;
  for (const Exchange::Loop& loop : exchange.loops) {
    inside /= std::max<int64_t>(loop.count, 1);
    add(loop.count, packs ? loop.from : loop.to, inside);
  }
  return move;
}

// Returns a tensor of rows as a shard of elements.
Shard shard_of(const Rows& rows, std::byte* whole, std::byte* part, int64_t row_bytes) {
  const DType dtype = carrier_of(row_bytes);
  const int64_t elements = rows.count * row_bytes / info(dtype).bytes;
  return {whole, part, dtype, elements, elements / rows.members, rows.stretches, rows.mirrored};
}

}  // namespace

int64_t most_reduced(const TensorType& piece, int64_t members, int64_t limit) {
  const int64_t size = info(piece.dtype).bytes;
  const int64_t most = std::min(num_elements(piece.shape), most_of_piece(size, members, limit));
  return even_runs(most, members, size).each;
}

int64_t most_scattered(const TensorType& part, int64_t stretches, int64_t members, int64_t limit) {
  Shard shard;
  shard.dtype = part.dtype;
  shard.part_count = num_elements(part.shape);
  shard.stretches = stretches;
  if (stretches == 1)
    return std::min(shard.part_count, most_of_part(info(part.dtype).bytes, members, limit));
  return stretches_to_add(shard, members, limit) * run_of(shard);
}

Result<Stages> Preparer::all_reduce(std::span<const Piece> pieces, bool fast) {
  Stages stages;
  if (group.size() == 1) return stages;
  if (fast && adds) {
    Stage& sum = stages.emplace_back(sum_stage());
    for (const Piece& piece : pieces)
      if (piece.count > 0)
        sum.sums.push_back({piece.data, piece.data, piece.dtype, piece.reduction, piece.count});
    return stages;
  }
  for (const Batch& batch : batches_of(pieces, group.size(), slots.limit()))
    PIPER_TRY(reduce_batch(*this, batch, stages));
  return stages;
}

// Each member puts what others own of its terms into blocks, and adds up what arrives of its own.
Result<Stages> Preparer::reduce_in_blocks(std::span<const Shard> shards) {
  int64_t room = 0;
  for (const Shard& shard : shards)
    room += aligned(group.size() * part_in_blocks(shard)) +
            group.size() * aligned(part_in_blocks(shard));
  PIPER_ASSIGN(std::byte * at, slots.at_least(group.stream, room));
  Stages before, after;
  Stage bring;
  for (const Shard& shard : shards) {
    if (shard.part_count == 0) continue;
    const int64_t bytes = part_in_blocks(shard), parts = parts_of(shard);
    std::byte *const terms = at, *const arrived = at + aligned(group.size() * bytes);
    at = arrived + group.size() * aligned(bytes);
    if (shard.count > 0) {
      PIPER_ASSIGN(const int32_t put, arithmetic.put_parts_in_blocks(shard, terms));
      before.push_back(launch_stage(put));
    }
    if (group.own >= parts) {
      after.push_back(zero_stage(shard.part, shard.dtype, shard.part_count));
    } else {
      std::vector<std::byte*> from;
      for (int64_t k = 0; k < group.size(); ++k) {
        from.push_back(arrived + k * aligned(bytes));
        add_block(bring.incoming, k, from.back(), bytes);
      }
      PIPER_ASSIGN(const int32_t add, arithmetic.add_parts(shard, from));
      after.push_back(launch_stage(add));
    }
    for (int64_t k = 0; k < parts; ++k) add_block(bring.outgoing, k, terms + k * bytes, bytes);
  }
  before.push_back(std::move(bring));
  std::move(after.begin(), after.end(), std::back_inserter(before));
  return before;
}

Result<Stages> Preparer::reduce_scatter(std::span<const Shard> shards, bool fast) {
  if (!shards.empty() && shards[0].blocks.any()) return reduce_in_blocks(shards);
  Stages stages;
  const bool sums = fast && adds && group.size() > 1;
  Stage flat = sum_stage();  // all of one stretch at once
  for (const Shard& shard : shards) {
    if (shard.count == 0 && shard.part_count == 0) continue;
    if (sums && shard.stretches == 1)
      sum_flat(group, shard, flat, stages);
    else if (sums)
      PIPER_TRY(sum_blocks(*this, shard, stages));
    else
      PIPER_TRY(shard.stretches == 1 ? reduce_flat(*this, shard, stages)
                                     : reduce_blocks(*this, shard, stages));
  }
  if (!flat.sums.empty()) stages.insert(stages.begin(), std::move(flat));
  return stages;
}

// All parts are put into blocks, travel together, and are taken out of them.
Result<Stages> Preparer::gather_in_blocks(std::span<const Shard> shards) {
  int64_t room = 0;
  for (const Shard& shard : shards)
    room += aligned(part_in_blocks(shard)) + aligned(group.size() * part_in_blocks(shard));
  PIPER_ASSIGN(std::byte * at, slots.at_least(group.stream, room));
  Stages before, after;
  Stage bring = gathers ? gather_stage() : Stage();
  for (const Shard& shard : shards) {
    if (shard.count == 0) continue;
    const int64_t bytes = part_in_blocks(shard);
    std::byte *const own = at, *const all = at + aligned(bytes);
    at = all + aligned(group.size() * bytes);
    PIPER_ASSIGN(const int32_t put, arithmetic.put_in_blocks(shard, own));
    before.push_back(launch_stage(put));
    if (gathers) bring.gathers.push_back({own, all, bytes});
    for (int64_t k = 0; k < group.size() && !gathers; ++k) {
      add_block(bring.outgoing, k, own, bytes);
      add_block(bring.incoming, k, all + k * bytes, bytes);
    }
    PIPER_ASSIGN(const int32_t take, arithmetic.take_from_blocks(shard, all));
    after.push_back(launch_stage(take));
  }
  if (before.empty()) return before;
  before.push_back(std::move(bring));
  std::move(after.begin(), after.end(), std::back_inserter(before));
  return before;
}

Result<Stages> Preparer::all_gather(std::span<const Shard> shards) {
  if (!shards.empty() && shards[0].blocks.any()) return gather_in_blocks(shards);
  Stages stages(1);  // all flat ones at once
  Stage even = gather_stage();
  for (const Shard& shard : shards) {
    const bool is_even = shard.count > 0 && shard.count == group.size() * shard.part_count;
    if (shard.stretches == 1 && gathers && is_even)
      even.gathers.push_back({shard.part, shard.whole, shard.part_count * info(shard.dtype).bytes});
    else if (shard.stretches == 1)
      gather_flat(group, shard, stages[0]);
    else if (shard.count > 0)
      PIPER_TRY(gather_blocks(*this, shard, stages));
  }
  if (stages[0].outgoing.empty() && stages[0].incoming.empty()) stages.erase(stages.begin());
  if (!even.gathers.empty()) stages.insert(stages.begin(), std::move(even));
  return stages;
}

Result<Stages> Preparer::all_to_all(std::span<const Exchange> exchanges) {
  int64_t room = 0;
  for (const Exchange& each : exchanges)
    if (!each.loops.empty()) room += 2 * aligned(group.size() * each.block_bytes());
  std::byte* packed = nullptr;
  if (room > 0) {
    PIPER_ASSIGN(packed, slots.at_least(group.stream, room));
  }
  Stages before, after;
  Stage bring;
  for (const Exchange& each : exchanges) {
    const int64_t bytes = each.block_bytes(), half = aligned(group.size() * bytes);
    if (bytes == 0) continue;
    for (int64_t k = 0; k < group.size() && each.loops.empty(); ++k) {  // as they lie
      add_block(bring.outgoing, k, const_cast<std::byte*>(each.from) + k * each.from_block, bytes);
      add_block(bring.incoming, k, each.to + k * each.to_block, bytes);
    }
    if (each.loops.empty()) continue;
    before.push_back(move_stage(blocks_move(each, group.size(), packed, true)));
    for (int64_t k = 0; k < group.size(); ++k) {
      add_block(bring.outgoing, k, packed + k * bytes, bytes);
      add_block(bring.incoming, k, packed + half + k * bytes, bytes);
    }
    after.push_back(move_stage(blocks_move(each, group.size(), packed + half, false)));
    packed += 2 * half;
  }
  before.push_back(std::move(bring));
  std::move(after.begin(), after.end(), std::back_inserter(before));
  return before;
}

Result<Stages> Preparer::rotate(std::span<const Turn> turns) {
  const int64_t members = group.size();
  Stages stages(1);
  for (const Turn& turn : turns) {
    add_block(stages[0].outgoing, (group.own + turn.shift) % members,
              const_cast<std::byte*>(turn.from), turn.bytes);
    add_block(stages[0].incoming, (group.own + members - turn.shift) % members, turn.to,
              turn.bytes);
  }
  return stages;
}

Result<Stages> Preparer::dispatch(const Rows& rows) {
  const Shard shard = shard_of(rows, rows.whole, rows.part, rows.row_bytes);
  PIPER_ASSIGN(Stages stages, all_gather(std::span(&shard, 1)));
  if (shard.count == 0) return stages;
  PIPER_ASSIGN(const int32_t binding, arithmetic.keep_owned(rows, group.own));
  stages.push_back(launch_stage(binding));
  return stages;
}

Result<Stages> Preparer::combine(const Rows& rows) {
  Stages stages;
  const int64_t members = group.size(), count = rows.count / members;
  const int64_t bytes = count * rows.row_bytes, number = rows.wide ? 8 : 4;
  if (bytes == 0) return stages;
  // In the slot: what goes out, what comes in, and the index, first all of it and then its own
  // part.
  const int64_t step = aligned(bytes), in = aligned(members * bytes), all = in + members * step,
                own = all + aligned(rows.count * number);
  PIPER_ASSIGN(std::byte* const packed, slots.at_least(group.stream, own + count * number));
  const Shard whole = shard_of(rows, rows.whole, rows.part, rows.row_bytes);
  move_stretches(whole, members, 0, rows.stretches, packed, true, stages);
  const Shard index = shard_of(rows, const_cast<std::byte*>(rows.index), nullptr, number);
  move_stretches(index, members, 0, rows.stretches, packed + all, true, stages);
  stages.push_back(
      move_stage({packed + all + group.own * count * number, packed + own, {}, count * number}));
  Stage bring;
  std::vector<std::byte*> from;
  for (int64_t k = 0; k < members; ++k) {
    from.push_back(packed + in + k * step);
    add_block(bring.outgoing, k, packed + k * bytes, bytes);
    add_block(bring.incoming, k, from.back(), bytes);
  }
  stages.push_back(std::move(bring));
  PIPER_ASSIGN(const int32_t binding,
               arithmetic.choose_owner(rows, count, packed + own, from, rows.part));
  stages.push_back(launch_stage(binding));
  return stages;
}

Result<Stages> Preparer::prepare(const Collective& collective) {
  switch (collective.kind) {
    case InstructionKind::kAllReduce:
      return all_reduce(collective.pieces, collective.fast);
    case InstructionKind::kReduceScatter:
      return reduce_scatter(collective.shards, collective.fast);
    case InstructionKind::kAllGather:
      return all_gather(collective.shards);
    case InstructionKind::kAllToAll:
      return all_to_all(collective.exchanges);
    case InstructionKind::kRotate:
      return rotate(collective.turns);
    case InstructionKind::kDispatch:
      return dispatch(collective.rows[0]);
    case InstructionKind::kCombine:
      return combine(collective.rows[0]);
    default:
      PIPER_CHECK(false, "{} is no collective", to_string(collective.kind));
  }
}

}  // namespace piper::device_fabric
