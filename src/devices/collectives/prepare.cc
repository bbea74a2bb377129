// Turns collectives into stages of moves and sums, when the plan is loaded.
#include <algorithm>
#include <numeric>

#include "stages.h"

namespace piper::device_fabric {
namespace {

constexpr int64_t kAlign = 256;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Stage move_stage(StridedMove move) {
  Stage stage;
  stage.kind = Stage::kMove;
  stage.move = std::move(move);
  return stage;
}
Stage launch_stage(int32_t binding) {
  Stage stage;
  stage.kind = Stage::kLaunch;
  stage.binding = binding;
  return stage;
}
Stage sum_stage(std::optional<Links::Sum> sum = {}) {
  Stage stage;
  stage.kind = Stage::kAdd;
  if (sum) stage.sums.push_back(*sum);
  return stage;
}
Stage gather_stage(std::optional<Links::Gather> gather = {}) {
  Stage stage;
  stage.kind = Stage::kGather;
  if (gather) stage.gathers.push_back(*gather);
  return stage;
}
Stage zero_stage(std::byte* to, DType dtype, int64_t count) {
  Stage stage;
  stage.kind = Stage::kFill;
  stage.to = to;
  stage.type = {dtype, {count}};
  return stage;
}
void add_block(std::vector<Links::Block>& blocks, int64_t member, std::byte* data, int64_t bytes) {
  if (bytes > 0) blocks.push_back({member, data, bytes});
}

// Says which elements members have of a stretch of `count`, by position: runs of `each`, of which
// the last may be shorter or empty.
struct Runs {
  int64_t count = 0, each = 0;
  int64_t begin(int64_t k) const { return std::min(k * each, count); }
  int64_t size(int64_t k) const { return begin(k + 1) - begin(k); }
};
// All begin where wide loads can, for pieces that do.
constexpr int64_t kWide = 16;  // bytes, and what programs ask of their arguments
Runs even_runs(int64_t count, int64_t members, int64_t size) {
  const int64_t step = std::max<int64_t>(1, kWide / size);
  return {count, ((count + members - 1) / members + step - 1) / step * step};
}

// Describes what is added up at once: of each member a run, side by side in the slot.
struct Term {
  std::byte* to = nullptr;
  DType dtype = DType::kF32;
  Reduction reduction = Reduction::kSum;
  int64_t count = 0;   // elements of the own run
  int64_t offset = 0;  // of the slot: the first member's run
  int64_t step = 0;    // bytes from member to member
};

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

// ---- Shards -------------------------------------------------------------------------------------

int64_t run_of(const Shard& shard) {
  return shard.part_count / std::max<int64_t>(1, shard.stretches);
}

// Moves stretches between [first, last) of the whole and, at `packed`, the members' blocks of them,
// one after the other: in every second stretch of a mirrored whole members count from its end.
void move_stretches(const Shard& shard, int64_t members, int64_t first, int64_t last,
                    std::byte* packed, bool packs, Stages& stages) {
  const int64_t run = run_of(shard) * info(shard.dtype).bytes, whole = members * run;
  const auto add = [&](int64_t from, int64_t step, bool reversed) {
    if (from >= last) return;
    const int64_t count = (last - from + step - 1) / step;
    std::byte* const in_whole = shard.whole + from * whole + (reversed ? (members - 1) * run : 0);
    std::byte* const in_packed = packed + (from - first) * run;
    const Exchange::Loop by_member{members, reversed ? -run : run, (last - first) * run},
        by_stretch{count, step * whole, step * run};
    StridedMove move{in_whole, in_packed, {by_member, by_stretch}, run};
    if (!packs) {
      move = {in_packed, in_whole, {by_member, by_stretch}, run};
      for (Exchange::Loop& loop : move.loops) std::swap(loop.from, loop.to);
    }
    stages.push_back(move_stage(std::move(move)));
  };
  if (!shard.mirrored) return add(first, 1, false);
  add(first + first % 2, 2, false);
  add(first + 1 - first % 2, 2, true);
}

// Returns how many stretches of `copies` wholes fit into `limit` at once.
int64_t stretches_at_once(const Shard& shard, int64_t members, int64_t copies, int64_t limit) {
  const int64_t bytes = copies * members * run_of(shard) * info(shard.dtype).bytes;
  return std::clamp<int64_t>(limit / std::max<int64_t>(bytes, 1), 1, shard.stretches);
}

// Returns elements of a part of one stretch that are added up at once.
int64_t most_of_part(int64_t size, int64_t members, int64_t limit) {
  return std::max<int64_t>(1, limit / members / size / 128 * 128);
}

Status reduce_flat(const Preparer& with, const Shard& shard, Stages& stages) {
  const Seated& group = with.group;
  const int64_t size = info(shard.dtype).bytes, members = group.size();
  const Runs runs{shard.count, shard.part_count};
  const int64_t most = most_of_part(size, members, with.slots.limit());
  for (int64_t at = 0; at < shard.part_count; at += most) {
    const auto part = [&](int64_t k) { return std::clamp<int64_t>(runs.size(k) - at, 0, most); };
    const int64_t step = aligned(part(group.own) * size);
    PIPER_ASSIGN(std::byte* const slot, with.slots.at_least(group.stream, members * step));
    Stage bring;
    for (int64_t k = 0; k < members; ++k) {
      add_block(bring.outgoing, k, shard.whole + (runs.begin(k) + at) * size, part(k) * size);
      add_block(bring.incoming, k, slot + k * step, part(group.own) * size);
    }
    stages.push_back(std::move(bring));
    const Term term{shard.part + at * size, shard.dtype, Reduction::kSum, part(group.own), 0, step};
    PIPER_TRY(add_up(group, with.arithmetic, slot, {&term, 1}, stages));
  }
  const int64_t own = runs.size(group.own);
  if (own < shard.part_count)
    stages.push_back(zero_stage(shard.part + own * size, shard.dtype, shard.part_count - own));
  return ok_status();
}

int64_t stretches_to_add(const Shard& shard, int64_t members, int64_t limit) {
  return stretches_at_once(shard, members, 2, limit - (members + 1) * kAlign);
}

// Queues the library's own sums of one stretch: one call where all members have as much of it, else
// one for each of them. After them what is padding.
void sum_flat(const Seated& group, const Shard& shard, Stage& sum, Stages& behind) {
  const int64_t size = info(shard.dtype).bytes;
  const Runs runs{shard.count, shard.part_count};
  Links::Sum one{shard.whole,     shard.part,       shard.dtype,
                 Reduction::kSum, shard.part_count, Links::Sum::kEach};
  if (shard.count == group.size() * shard.part_count) return sum.sums.push_back(one);
  for (one.member = 0; one.member < group.size(); ++one.member) {
    one.from = shard.whole + runs.begin(one.member) * size;
    one.count = runs.size(one.member);
    if (one.count > 0) sum.sums.push_back(one);
  }
  const int64_t own = runs.size(group.own);
  if (own < shard.part_count)
    behind.push_back(zero_stage(shard.part + own * size, shard.dtype, shard.part_count - own));
}

// Sums several stretches, of which members' blocks are put side by side first.
Status sum_blocks(const Preparer& with, const Shard& shard, Stages& stages) {
  const int64_t size = info(shard.dtype).bytes, members = with.group.size(), run = run_of(shard);
  const int64_t most = stretches_at_once(shard, members, 1, with.slots.limit());
  for (int64_t first = 0; first < shard.stretches; first += most) {
    const int64_t last = std::min(first + most, shard.stretches), count = (last - first) * run;
    PIPER_ASSIGN(std::byte* const packed,
                 with.slots.at_least(with.group.stream, members * count * size));
    move_stretches(shard, members, first, last, packed, true, stages);
    stages.push_back(sum_stage(Links::Sum{packed, shard.part + first * run * size, shard.dtype,
                                          Reduction::kSum, count, Links::Sum::kEach}));
  }
  return ok_status();
}

Status reduce_blocks(const Preparer& with, const Shard& shard, Stages& stages) {
  const Seated& group = with.group;
  const int64_t size = info(shard.dtype).bytes, members = group.size(), run = run_of(shard);
  const int64_t most = stretches_to_add(shard, members, with.slots.limit());
  for (int64_t first = 0; first < shard.stretches; first += most) {
    const int64_t last = std::min(first + most, shard.stretches), count = (last - first) * run;
    const int64_t bytes = count * size, half = aligned(members * bytes), step = aligned(bytes);
    PIPER_ASSIGN(std::byte* const packed, with.slots.at_least(group.stream, half + members * step));
    move_stretches(shard, members, first, last, packed, true, stages);
    Stage bring;
    for (int64_t k = 0; k < members; ++k) {
      add_block(bring.outgoing, k, packed + k * bytes, bytes);
      add_block(bring.incoming, k, packed + half + k * step, bytes);
    }
    stages.push_back(std::move(bring));
    const Term term{shard.part + first * run * size, shard.dtype, Reduction::kSum, count, 0, step};
    PIPER_TRY(add_up(group, with.arithmetic, packed + half, {&term, 1}, stages));
  }
  return ok_status();
}

Status gather_blocks(const Preparer& with, const Shard& shard, Stages& stages) {
  const Seated& group = with.group;
  const int64_t size = info(shard.dtype).bytes, members = group.size(), run = run_of(shard);
  const int64_t most = stretches_at_once(shard, members, 1, with.slots.limit());
  for (int64_t first = 0; first < shard.stretches; first += most) {
    const int64_t last = std::min(first + most, shard.stretches),
                  bytes = (last - first) * run * size;
    PIPER_ASSIGN(std::byte* const packed, with.slots.at_least(group.stream, members * bytes));
    std::byte* const own = shard.part + first * run * size;
    Stage bring;
    if (with.gathers) bring = gather_stage(Links::Gather{own, packed, bytes});
    for (int64_t k = 0; k < members && !with.gathers; ++k) {
      add_block(bring.outgoing, k, own, bytes);
      add_block(bring.incoming, k, packed + k * bytes, bytes);
    }
    stages.push_back(std::move(bring));
    move_stretches(shard, members, first, last, packed, false, stages);
  }
  return ok_status();
}

void gather_flat(const Seated& group, const Shard& shard, Stage& bring) {
  const int64_t size = info(shard.dtype).bytes;
  const Runs runs{shard.count, shard.part_count};
  for (int64_t k = 0; k < group.size(); ++k) {
    add_block(bring.outgoing, k, shard.part, runs.size(group.own) * size);
    add_block(bring.incoming, k, shard.whole + runs.begin(k) * size, runs.size(k) * size);
  }
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

Result<Stages> Preparer::reduce_scatter(std::span<const Shard> shards, bool fast) {
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

Result<Stages> Preparer::all_gather(std::span<const Shard> shards) {
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
  for (const Exchange& each : exchanges) room += 2 * aligned(group.size() * each.block_bytes());
  PIPER_ASSIGN(std::byte * packed, slots.at_least(group.stream, room));
  Stages before, after;
  Stage bring;
  for (const Exchange& each : exchanges) {
    const int64_t bytes = each.block_bytes(), half = aligned(group.size() * bytes);
    if (bytes == 0) continue;
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
