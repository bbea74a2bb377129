// Sums of ranks on one host. Each lays its data for the others into its slot, segment by segment;
// each sums its slice of everybody's, and all take the slices from there. A segment stays in the
// cache, so that memory is passed over as often as between threads.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "process_fabric.h"
#include "reduce.h"

namespace piper::process {
namespace {

constexpr double kSharedRest = 50e-6;  // seconds; nothing that others write ends it

// Finds out whether all members have mapped the blocks of all.
Status all_map(Group& group, bool& all) {
  std::vector<std::byte> maps(group.ranks.size(), std::byte{all});
  PIPER_TRY(group.with_others([&](int64_t i) -> Status {
    PIPER_TRY(group.start_recv(i, &maps[static_cast<size_t>(i)], 1));
    return group.start_send(i, &maps[static_cast<size_t>(group.position)], 1);
  }));
  PIPER_TRY(group.finish("all-reduce"));
  all = std::count(maps.begin(), maps.end(), std::byte{1}) == group.size();
  return ok_status();
}

SharedCounters* take_counters(HostBlock& own, uint64_t hash) {
  for (SharedCounters& each : own.counters) {
    if (each.group.load() != 0) continue;
    each.group.store(hash);
    return &each;
  }
  return nullptr;
}

}  // namespace

// Describes the part of a message's flat form that fits a slot.
struct SharedSums::Segment {
  uint64_t number = 0;  // of the group's
  int64_t begin = 0, end = 0;
  size_t slot() const { return number % kSharedSlots; }
  // Returns where the member's slice begins.
  int64_t slice(const Group& group, int64_t member) const {
    return begin + slice_begin(end - begin, member, group.size());
  }
};

std::byte* SharedSums::slot_of(const Group& group, int64_t member, const Segment& segment) const {
  return memory_.block(group.ranks[static_cast<size_t>(member)])->slots[segment.slot()];
}

// Gives counters of its own to a group whose members all share memory. All members decide alike
// without a message: a group with a member on another host has none.
Status SharedSums::join(Group& group) {
  group.joined = true;
  const auto is_here = [&](int64_t rank) { return memory_.is_here(rank); };
  if (!std::all_of(group.ranks.begin(), group.ranks.end(), is_here)) return ok_status();
  std::string text = fmt::format("{}:", group.communicator);
  for (int64_t rank : group.ranks) text += fmt::format("{},", rank);
  group.hash = std::hash<std::string>()(text) | 1;
  SharedCounters* const own = take_counters(memory_.own(), group.hash);
  bool all = own != nullptr;
  for (int64_t rank : group.ranks) all = all && memory_.block(rank) != nullptr;
  PIPER_TRY(all_map(group, all));
  if (!all) return ok_status();
  group.counters.assign(group.ranks.size(), nullptr);
  group.counters[static_cast<size_t>(group.position)] = own;
  return ok_status();
}

Status SharedSums::wait_counter(Group& group, int64_t member,
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
  return group.peers.wait_until(kSharedRest, ready, [&] {
    return fmt::format("in the all-reduce of ranks [{}] for", fmt::join(group.ranks, ","));
  });
}

// Waits until no member takes slices from the slot any more; the last user may be another group.
Status SharedSums::clear_slot(size_t slot) {
  const auto [user, number] = slot_users_[slot];
  for (int64_t i = 0; user != nullptr && i < user->size(); ++i)
    PIPER_TRY(wait_counter(*user, i, &SharedCounters::left, number + 1));
  return ok_status();
}

Status SharedSums::fill_slot(Group& group, std::span<const Piece> pieces, const Segment& segment) {
  PIPER_TRY(clear_slot(segment.slot()));
  slot_users_[segment.slot()] = {&group, segment.number};
  std::byte* to = memory_.own().slots[segment.slot()];
  const auto copy = [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
    std::memcpy(to + (flat - segment.begin), pieces[p].data + offset, static_cast<size_t>(bytes));
  };
  for_each_run(pieces, segment.begin, segment.slice(group, group.position), copy);
  for_each_run(pieces, segment.slice(group, group.position + 1), segment.end, copy);
  group.counters[static_cast<size_t>(group.position)]->filled.store(segment.number + 1);
  return ok_status();
}

Status SharedSums::sum_slice(Group& group, std::span<const Piece> pieces, const Segment& segment) {
  const int64_t own = group.position;
  SharedCounters& counters = *group.counters[static_cast<size_t>(own)];
  PIPER_TRY(group.with_others([&](int64_t i) -> Status {
    PIPER_TRY(wait_counter(group, i, &SharedCounters::filled, segment.number + 1));
    const uint64_t bytes = group.counters[static_cast<size_t>(i)]->bytes.load();
    if (bytes == counters.bytes.load()) return ok_status();
    return size_mismatch(group.peers.rank(), group.ranks[static_cast<size_t>(i)],
                         "in the all-reduce with", static_cast<int64_t>(bytes),
                         static_cast<int64_t>(counters.bytes.load()));
  }));
  for_each_run(pieces, segment.slice(group, own), segment.slice(group, own + 1),
               [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
                 std::byte* const to[] = {
                     memory_.own().slots[segment.slot()] + (flat - segment.begin),
                     pieces[p].data + offset};
                 for (int64_t i = 0; i < group.size(); ++i)
                   group.from[static_cast<size_t>(i)] =
                       i == own ? to[1] : slot_of(group, i, segment) + (flat - segment.begin);
                 reduce_in_order(pieces[p].reduction, pieces[p].dtype, to, group.from,
                                 bytes / info(pieces[p].dtype).bytes);
               });
  counters.summed.store(segment.number + 1);
  return ok_status();
}

Status SharedSums::take_slices(Group& group, std::span<const Piece> pieces,
                               const Segment& segment) {
  PIPER_TRY(group.with_others([&](int64_t i) -> Status {
    PIPER_TRY(wait_counter(group, i, &SharedCounters::summed, segment.number + 1));
    const std::byte* from = slot_of(group, i, segment);
    for_each_run(pieces, segment.slice(group, i), segment.slice(group, i + 1),
                 [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
                   std::memcpy(pieces[p].data + offset, from + (flat - segment.begin),
                               static_cast<size_t>(bytes));
                 });
    return ok_status();
  }));
  group.counters[static_cast<size_t>(group.position)]->left.store(segment.number + 1);
  return ok_status();
}

// Each segment is summed one turn after it was filled, and taken two turns after: nobody waits for
// others unless they are further behind than that.
Status SharedSums::all_reduce(Group& group, std::span<const Piece> pieces) {
  const int64_t total = flat_size(pieces);
  const int64_t count = (total + kSharedSlotBytes - 1) / kSharedSlotBytes;
  const auto segment = [&](int64_t k) {
    const int64_t begin = k * kSharedSlotBytes;
    return Segment{group.segments + static_cast<uint64_t>(k), begin,
                   std::min(begin + kSharedSlotBytes, total)};
  };
  group.counters[static_cast<size_t>(group.position)]->bytes.store(static_cast<uint64_t>(total));
  for (int64_t turn = 0; turn < count + 2; ++turn) {
    if (turn < count) PIPER_TRY(fill_slot(group, pieces, segment(turn)));
    if (turn >= 1 && turn <= count) PIPER_TRY(sum_slice(group, pieces, segment(turn - 1)));
    if (turn >= 2) PIPER_TRY(take_slices(group, pieces, segment(turn - 2)));
  }
  group.segments += static_cast<uint64_t>(count);
  return ok_status();
}

}  // namespace piper::process
