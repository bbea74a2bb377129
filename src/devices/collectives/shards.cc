// The stages of collectives of values of which each member has a shard: reduce-scatters and
// all-gathers.
#include "make_stages.h"

namespace piper::device_fabric {

int64_t run_of(const Shard& shard) {
  return shard.part_count / std::max<int64_t>(1, shard.stretches);
}

namespace {

// Returns how many stretches of `copies` wholes fit into `limit` at once.
int64_t stretches_at_once(const Shard& shard, int64_t members, int64_t copies, int64_t limit) {
  const int64_t bytes = copies * members * run_of(shard) * info(shard.dtype).bytes;
  return std::clamp<int64_t>(limit / std::max<int64_t>(bytes, 1), 1, shard.stretches);
}

// Clears the end of the own part, past what is in the whole.
void clear_rest(const Seated& group, const Shard& shard, Stages& stages) {
  const int64_t own = Runs{shard.count, shard.part_count}.size(group.own),
                from = std::max(own, shard.first);
  if (from < shard.end())
    stages.push_back(
        zero_stage(shard.part + from * info(shard.dtype).bytes, shard.dtype, shard.end() - from));
}

}  // namespace

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

int64_t most_of_part(int64_t size, int64_t members, int64_t limit) {
  return std::max<int64_t>(1, limit / members / size / 128 * 128);
}

Status reduce_flat(const Preparer& with, const Shard& shard, Stages& stages) {
  const Seated& group = with.group;
  const int64_t size = info(shard.dtype).bytes, members = group.size();
  const Runs runs{shard.count, shard.part_count};
  const int64_t most = most_of_part(size, members, with.slots.limit());
  for (int64_t at = shard.first; at < shard.end(); at += most) {
    const auto part = [&](int64_t k) {
      return std::clamp<int64_t>(runs.size(k) - at, 0, std::min(most, shard.end() - at));
    };
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
  clear_rest(group, shard, stages);
  return ok_status();
}

int64_t stretches_to_add(const Shard& shard, int64_t members, int64_t limit) {
  return stretches_at_once(shard, members, 2, limit - (members + 1) * kAlign);
}

void sum_flat(const Seated& group, const Shard& shard, Stage& sum, Stages& behind) {
  const int64_t size = info(shard.dtype).bytes;
  const Runs runs{shard.count, shard.part_count};
  Links::Sum one{shard.whole,     shard.part,       shard.dtype,
                 Reduction::kSum, shard.part_count, Links::Sum::kEach};
  if (shard.slice == 0 && shard.count == group.size() * shard.part_count)
    return sum.sums.push_back(one);
  one.to = shard.part + shard.first * size;
  for (one.member = 0; one.member < group.size(); ++one.member) {
    one.from = shard.whole + (runs.begin(one.member) + shard.first) * size;
    one.count = std::min(runs.size(one.member), shard.end()) - shard.first;
    if (one.count > 0) sum.sums.push_back(one);
  }
  clear_rest(group, shard, behind);
}

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

}  // namespace piper::device_fabric
