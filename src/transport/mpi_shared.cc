// Sums of ranks on one host. Each lays its data for the others into its slot, segment by segment;
// each sums its slice of everybody's, and all take the slices from there. A segment stays in the
// cache, so that memory is passed over as often as between threads.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "mpi_transport.h"
#include "reduce.h"

namespace piper::mpi {

Status MpiTransport::share_memory(std::span<const HostAddress> addresses) {
  Group& everyone = groups_[0];
  const auto world = static_cast<size_t>(world_);
  std::vector<char> mapped(world * world);
  const std::vector<char> own = memory_.map(addresses, rank_);
  std::copy(own.begin(), own.end(), mapped.begin() + rank_ * world_);
  PIPER_TRY(exchange(everyone, collectives_, std::span(mapped), world_));
  memory_.all_have_mapped();
  for (size_t i = 0; i < world; ++i) {
    const auto row = mapped.begin() + static_cast<int64_t>(i) * world_;
    shares_.emplace_back(row, row + world_);
  }
  return ok_status();
}

// Counters of its own for a group whose members all share memory with each other: all of them find
// the same.
Status MpiTransport::join(Group& group) {
  if (!shared_memory_) return ok_status();
  for (int64_t a : group.ranks)
    for (int64_t b : group.ranks)
      if (!shares_[static_cast<size_t>(a)][static_cast<size_t>(b)]) return ok_status();
  std::string text;
  for (int64_t rank : group.ranks) text += fmt::format("{},", rank);
  group.hash = std::hash<std::string>()(text) | 1;
  for (SharedCounters& each : memory_.own().counters) {
    if (each.group.load() != 0) continue;
    each.group.store(group.hash);
    group.counters.assign(group.ranks.size(), nullptr);
    group.counters[static_cast<size_t>(group.position)] = &each;
    return ok_status();
  }
  return fail("rank {} is in more than {} groups", rank_, kSharedGroups).with_code(ExitCode::kPlan);
}

Status MpiTransport::wait_counter(Group& group, int64_t member,
                                  std::atomic<uint64_t> SharedCounters::*counter, uint64_t least) {
  const auto i = static_cast<size_t>(member);
  const auto ready = [&](int64_t& peer) {
    peer = group.ranks[i];
    for (SharedCounters& each : memory_.block(peer)->counters) {
      if (group.counters[i] != nullptr || each.group.load() == 0) break;
      if (each.group.load() == group.hash) group.counters[i] = &each;
    }
    return group.counters[i] != nullptr && (group.counters[i]->*counter).load() >= least;
  };
  return look_until(ready, [&] {
    return fmt::format("in the all-reduce of ranks [{}] for", fmt::join(group.ranks, ","));
  });
}

// Others may still take slices from it, of another group maybe.
Status MpiTransport::clear_slot(size_t slot) {
  const auto [user, number] = slot_users_[slot];
  for (int64_t i = 0; user != nullptr && i < user->size(); ++i)
    PIPER_TRY(wait_counter(*user, i, &SharedCounters::left, number + 1));
  return ok_status();
}

namespace {

// Where a segment's slices begin and end.
struct Slices {
  int64_t begin = 0, end = 0, members = 1;
  int64_t first(int64_t member) const { return begin + slice_begin(end - begin, member, members); }
};

}  // namespace

Status MpiTransport::fill_slot(Group& group, std::span<const Piece> pieces, int64_t begin,
                               int64_t end) {
  const size_t slot = group.segments % kSharedSlots;
  PIPER_TRY(clear_slot(slot));
  slot_users_[slot] = {&group, group.segments};
  const Slices slices{begin, end, group.size()};
  std::byte* to = memory_.own().slots[slot];
  const auto copy = [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
    std::memcpy(to + (flat - begin), pieces[p].data + offset, static_cast<size_t>(bytes));
  };
  for_each_run(pieces, begin, slices.first(group.position), copy);
  for_each_run(pieces, slices.first(group.position + 1), end, copy);
  return ok_status();
}

void MpiTransport::sum_slice(Group& group, std::span<const Piece> pieces, int64_t begin,
                             int64_t end) {
  const size_t slot = group.segments % kSharedSlots;
  const Slices slices{begin, end, group.size()};
  const int64_t own = group.position;
  for_each_run(pieces, slices.first(own), slices.first(own + 1),
               [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
                 std::byte* const to[] = {memory_.own().slots[slot] + (flat - begin),
                                          pieces[p].data + offset};
                 for (int64_t i = 0; i < group.size(); ++i)
                   group.from[static_cast<size_t>(i)] =
                       i == own ? to[1]
                                : memory_.block(group.ranks[static_cast<size_t>(i)])->slots[slot] +
                                      (flat - begin);
                 ordered_sum(pieces[p].dtype, to, group.from, bytes / info(pieces[p].dtype).bytes);
               });
}

Status MpiTransport::take_slices(Group& group, std::span<const Piece> pieces, int64_t begin,
                                 int64_t end) {
  const size_t slot = group.segments % kSharedSlots;
  const Slices slices{begin, end, group.size()};
  return with_others(group, [&](int64_t i) -> Status {
    PIPER_TRY(wait_counter(group, i, &SharedCounters::summed, group.segments + 1));
    const std::byte* from = memory_.block(group.ranks[static_cast<size_t>(i)])->slots[slot];
    for_each_run(pieces, slices.first(i), slices.first(i + 1),
                 [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
                   std::memcpy(pieces[p].data + offset, from + (flat - begin),
                               static_cast<size_t>(bytes));
                 });
    return ok_status();
  });
}

Status MpiTransport::all_reduce_shared(Group& group, std::span<const Piece> pieces) {
  SharedCounters& own = *group.counters[static_cast<size_t>(group.position)];
  const int64_t total = flat_size(pieces);
  own.bytes.store(static_cast<uint64_t>(total));
  for (int64_t begin = 0; begin < total; begin += kSharedSlotBytes) {
    const int64_t end = std::min(begin + kSharedSlotBytes, total);
    const uint64_t number = group.segments + 1;
    PIPER_TRY(fill_slot(group, pieces, begin, end));
    own.filled.store(number);
    PIPER_TRY(with_others(group, [&](int64_t i) -> Status {
      PIPER_TRY(wait_counter(group, i, &SharedCounters::filled, number));
      const auto bytes = static_cast<int64_t>(group.counters[static_cast<size_t>(i)]->bytes.load());
      if (bytes == total) return ok_status();
      return size_mismatch(rank_, group.ranks[static_cast<size_t>(i)], "in the all-reduce with",
                           bytes, total);
    }));
    sum_slice(group, pieces, begin, end);
    own.summed.store(number);
    PIPER_TRY(take_slices(group, pieces, begin, end));
    own.left.store(number);
    group.segments = number;
  }
  return ok_status();
}

}  // namespace piper::mpi
