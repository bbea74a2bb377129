// The collectives, of messages between all members of a group.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "process_fabric.h"
#include "reduce.h"

namespace piper::process {

// Returns the most bytes of a segment: out_ holds its own data, in_ a slice from every member, each
// rounded up.
int64_t ProcessFabric::segment_bytes(const Group& group) const {
  int64_t room = static_cast<int64_t>(in_.size()) - 2 * kFlatAlign * group.size();
  return std::max(room / kFlatAlign, int64_t{1}) * kFlatAlign;
}

Status ProcessFabric::all_reduce(Group& group, std::span<const Piece> pieces) {
  if (group.size() == 1) return ok_status();
  if (shares_ && !group.joined) PIPER_TRY(sums_.join(group));
  if (!group.counters.empty()) return sums_.all_reduce(group, pieces);
  int64_t total = flat_size(pieces);
  int64_t segment = segment_bytes(group);
  for (int64_t begin = 0; begin < total; begin += segment) {
    PIPER_TRY(reduce_segment(group, pieces, begin, std::min(begin + segment, total)));
  }
  return ok_status();
}

Status ProcessFabric::reduce_segment(Group& group, std::span<const Piece> pieces, int64_t begin,
                                     int64_t end) {
  auto bound = [&](int64_t member) { return slice_begin(end - begin, member, group.size()); };
  auto length = [&](int64_t member) { return bound(member + 1) - bound(member); };
  int64_t own = group.position;
  std::byte* out = out_.data();
  int64_t stride = length(own);
  for_each_run(pieces, begin, end, [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
    std::memcpy(out + (flat - begin), pieces[p].data + offset, static_cast<size_t>(bytes));
  });
  PIPER_TRY(group.with_others([&](int64_t i) -> Status {
    PIPER_TRY(group.start_recv(i, in_.data() + i * stride, stride));
    return group.start_send(i, out + bound(i), length(i));
  }));
  PIPER_TRY(group.finish("all-reduce"));
  int64_t first = begin + bound(own);
  for_each_run(pieces, first, first + stride, [&](size_t p, int64_t, int64_t bytes, int64_t flat) {
    for (int64_t i = 0; i < group.size(); ++i) {
      const std::byte* theirs = in_.data() + i * stride + (flat - first);
      group.from[static_cast<size_t>(i)] = i == own ? out + (flat - begin) : theirs;
    }
    std::byte* sum = out + (flat - begin);
    reduce_in_order(pieces[p].reduction, pieces[p].dtype, std::span(&sum, 1), group.from,
                    bytes / info(pieces[p].dtype).bytes);
  });
  PIPER_TRY(group.with_others([&](int64_t i) -> Status {
    PIPER_TRY(group.start_recv(i, out + bound(i), length(i)));
    return group.start_send(i, out + bound(own), stride);
  }));
  PIPER_TRY(group.finish("all-reduce"));
  for_each_run(pieces, begin, end, [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
    std::memcpy(pieces[p].data + offset, out + (flat - begin), static_cast<size_t>(bytes));
  });
  return ok_status();
}

namespace {

// Names bytes [at, at + bytes) of every member's part of a shard; they travel together with others.
struct Portion {
  const Shard* shard = nullptr;
  int64_t at = 0, bytes = 0;
  int64_t slot = 0;  // where they begin in a member's room
  template <class Visit>
  void for_each_run(int64_t member, Visit visit) const {
    shard->for_each_run(member, at, at + bytes, visit);
  }
  bool is_scattered() const { return shard->stretches > 1; }  // over the whole
  // Returns how many of the bytes are in the whole: the last members may have fewer.
  int64_t length(int64_t member) const {
    int64_t sum = 0;
    for_each_run(member, [&](const Shard::Run& run) { sum += run.bytes; });
    return sum;
  }
  // Returns where a member's bytes are in the whole, of shards that are not scattered.
  std::byte* of(int64_t member) const {
    std::byte* place = shard->whole;
    for_each_run(member, [&](const Shard::Run& run) { place += run.whole; });
    return place;
  }
  // Returns the member's bytes in one piece: in their place, or copied to `room`.
  std::byte* joined(int64_t member, std::byte* room) const {
    if (!is_scattered()) return of(member);
    for_each_run(member, [&](const Shard::Run& run) {
      std::memcpy(room + run.part - at, shard->whole + run.whole, static_cast<size_t>(run.bytes));
    });
    return room;
  }
  void scatter(int64_t member, const std::byte* from) const {
    for_each_run(member, [&](const Shard::Run& run) {
      std::memcpy(shard->whole + run.whole, from + run.part - at, static_cast<size_t>(run.bytes));
    });
  }
};

// Cuts the parts of a message's shards into portions of which a round takes as many as fit its
// room.
class Rounds {
 public:
  Rounds(std::span<const Shard> shards, int64_t room) : shards_(shards), room_(room) {}
  // Empty: none is left.
  std::span<const Portion> next() {
    size_t count = 0;
    for (int64_t used = 0; shard_ < shards_.size() && count < kTogether && used < room_;) {
      const Shard& shard = shards_[shard_];
      const int64_t part = shard.end() * info(shard.dtype).bytes;
      at_ = std::max(at_, shard.first * info(shard.dtype).bytes);
      const int64_t bytes = std::min(part - at_, room_ - used);
      portions_[count++] = {&shard, at_, bytes, used};
      used += (bytes + kFlatAlign - 1) / kFlatAlign * kFlatAlign;
      at_ += bytes;
      if (at_ < part) continue;
      ++shard_;
      at_ = 0;
    }
    return std::span(portions_).first(count);
  }

 private:
  std::span<const Shard> shards_;
  int64_t room_;  // a multiple of kFlatAlign, so that no cut divides an element
  size_t shard_ = 0;
  int64_t at_ = 0;
  std::array<Portion, kTogether> portions_;
};

// Returns how many elements from `at` on of a member's part are there, at most `most`.
int64_t count_in(const Shard& shard, int64_t member, int64_t at, int64_t most) {
  const int64_t all =
      std::clamp<int64_t>(shard.count - member * shard.part_count, 0, shard.part_count);
  return std::clamp<int64_t>(all - at, 0, most);
}

}  // namespace

// Returns how many bytes of each member fit, of what arrives scattered or is added here.
int64_t ProcessFabric::member_room(const Group& group) const {
  return std::max(segment_bytes(group) / group.size() / kFlatAlign, int64_t{1}) * kFlatAlign;
}

Status ProcessFabric::reduce_scatter(Group& group, std::span<const Shard> shards) {
  const int64_t own = group.position, room = member_room(group);
  if (!shards.empty() && shards[0].blocks.any()) {
    for (const Shard& shard : shards) PIPER_TRY(reduce_in_blocks(group, shard));
    return ok_status();
  }
  if (group.size() == 1) {
    for (const Shard& shard : shards) take_part(shard, own);
    return ok_status();
  }
  const auto place = [&](std::vector<std::byte>& rooms, int64_t i, const Portion& one) {
    return rooms.data() + i * room + one.slot;
  };
  Rounds rounds(shards, room);
  for (auto portions = rounds.next(); !portions.empty(); portions = rounds.next()) {
    for (const Portion& one : portions)
      PIPER_TRY(group.with_others([&](int64_t i) -> Status {
        PIPER_TRY(group.start_recv(i, place(in_, i, one), one.length(own)));
        const std::byte* theirs = one.joined(i, place(out_, i, one));
        return group.start_send(i, theirs, one.length(i));
      }));
    PIPER_TRY(group.finish("reduce-scatter"));
    for (const Portion& one : portions) {
      for (int64_t i = 0; i < group.size(); ++i)
        group.from[static_cast<size_t>(i)] =
            i == own ? one.joined(own, place(out_, own, one)) : place(in_, i, one);
      std::byte* sum = one.shard->part + one.at;
      const DType dtype = one.shard->dtype;
      reduce_in_order(Reduction::kSum, dtype, std::span(&sum, 1), group.from,
                      one.length(own) / info(dtype).bytes);
    }
  }
  for (const Shard& shard : shards) clear_rest(shard, own);
  return ok_status();
}

// Returns how many elements of a member's part fit its room, in blocks.
Result<int64_t> ProcessFabric::most_in_blocks(const Group& group, const Shard& shard) const {
  const int64_t most = member_room(group) / shard.blocks.block_bytes() * shard.blocks.block;
  if (most > 0) return most;
  return fail("not supported: blocks of {} elements between {} members", shard.blocks.block,
              group.size());
}

// Each member sends the others their parts in blocks, as many at a time as fit, and adds up what
// arrives.
Status ProcessFabric::reduce_in_blocks(Group& group, const Shard& shard) {
  const int64_t own = group.position, size = info(shard.dtype).bytes, room = member_room(group);
  if (group.size() == 1) {
    group.from[0] = shard.whole;
    add_in_blocks(shard.blocks, shard.dtype, group.from, shard.count, shard.part);
    clear_rest(shard, own);
    return ok_status();
  }
  PIPER_ASSIGN(const int64_t most, most_in_blocks(group, shard));
  const auto put = [&](int64_t member, int64_t at) {
    std::byte* const to = out_.data() + member * room;
    put_in_blocks(shard.blocks, shard.dtype, shard.whole + (member * shard.part_count + at) * size,
                  count_in(shard, member, at, most), to);
    return to;
  };
  for (int64_t at = 0; at < shard.part_count; at += most) {
    const int64_t here = count_in(shard, own, at, most);
    PIPER_TRY(group.with_others([&](int64_t i) -> Status {
      PIPER_TRY(group.start_recv(i, in_.data() + i * room, shard.blocks.bytes(here)));
      return group.start_send(i, put(i, at), shard.blocks.bytes(count_in(shard, i, at, most)));
    }));
    PIPER_TRY(group.finish("reduce-scatter"));
    for (int64_t i = 0; i < group.size(); ++i)
      group.from[static_cast<size_t>(i)] = i == own ? put(own, at) : in_.data() + i * room;
    add_blocks(shard.blocks, shard.dtype, group.from, here, shard.part + at * size);
  }
  clear_rest(shard, own);
  return ok_status();
}

// Each member sends its part in blocks, as many at a time as fit, and all decode them.
Status ProcessFabric::gather_in_blocks(Group& group, const Shard& shard) {
  if (group.size() == 1) {
    round_in_blocks(shard.blocks, shard.dtype, shard.part, shard.count, shard.whole);
    return ok_status();
  }
  const int64_t own = group.position, size = info(shard.dtype).bytes, room = member_room(group);
  PIPER_ASSIGN(const int64_t most, most_in_blocks(group, shard));
  const auto count_of = [&](int64_t member, int64_t at) {
    return count_in(shard, member, at, most);
  };
  const auto place = [&](int64_t member, int64_t at) {
    return shard.whole + (member * shard.part_count + at) * size;
  };
  for (int64_t at = 0; at < shard.part_count; at += most) {
    const int64_t sent = count_of(own, at);
    put_in_blocks(shard.blocks, shard.dtype, shard.part + at * size, sent, out_.data());
    take_from_blocks(shard.blocks, shard.dtype, out_.data(), sent, place(own, at));
    PIPER_TRY(group.with_others([&](int64_t i) -> Status {
      PIPER_TRY(group.start_recv(i, in_.data() + i * room, shard.blocks.bytes(count_of(i, at))));
      return group.start_send(i, out_.data(), shard.blocks.bytes(sent));
    }));
    PIPER_TRY(group.finish("all-gather"));
    PIPER_TRY(group.with_others([&](int64_t i) -> Status {
      take_from_blocks(shard.blocks, shard.dtype, in_.data() + i * room, count_of(i, at),
                       place(i, at));
      return ok_status();
    }));
  }
  return ok_status();
}

Status ProcessFabric::all_gather(Group& group, std::span<const Shard> shards) {
  const int64_t own = group.position;
  if (!shards.empty() && shards[0].blocks.any()) {
    for (const Shard& shard : shards) PIPER_TRY(gather_in_blocks(group, shard));
    return ok_status();
  }
  bool scattered = false;
  for (const Shard& shard : shards) {
    scattered = scattered || shard.stretches > 1;
    shard.for_each_run(own, [&](const Shard::Run& run) {
      if (shard.whole + run.whole != shard.part + run.part)
        std::memcpy(shard.whole + run.whole, shard.part + run.part, static_cast<size_t>(run.bytes));
    });
  }
  const int64_t room = scattered ? member_room(group) : kLargest;
  const auto place = [&](int64_t i, const Portion& one) {
    return one.is_scattered() ? in_.data() + i * room + one.slot : one.of(i);
  };
  Rounds rounds(shards, room);
  for (auto portions = rounds.next(); !portions.empty(); portions = rounds.next()) {
    for (const Portion& one : portions)
      PIPER_TRY(group.with_others([&](int64_t i) -> Status {
        PIPER_TRY(group.start_recv(i, place(i, one), one.length(i)));
        return group.start_send(i, one.shard->part + one.at, one.length(own));
      }));
    PIPER_TRY(group.finish("all-gather"));
    for (const Portion& one : portions)
      PIPER_TRY(group.with_others([&](int64_t i) -> Status {
        if (one.is_scattered()) one.scatter(i, place(i, one));
        return ok_status();
      }));
  }
  return ok_status();
}

Status ProcessFabric::all_to_all(Group& group, std::span<const Exchange> exchanges) {
  const int64_t own = group.position, room = member_room(group);
  for (const Exchange& one : exchanges) {
    const auto block = [&](int64_t i) { return one.from + i * one.from_block; };
    const int64_t all = one.block_bytes();
    one.for_each_run(0, all, [&](int64_t from, int64_t to, int64_t, int64_t bytes) {
      std::memcpy(one.to + own * one.to_block + to, block(own) + from, static_cast<size_t>(bytes));
    });
    for (int64_t at = 0; at < all && group.size() > 1; at += room) {
      const int64_t end = std::min(at + room, all);
      PIPER_TRY(group.with_others([&](int64_t i) -> Status {
        PIPER_TRY(group.start_recv(i, in_.data() + i * room, end - at));
        std::byte* out = out_.data() + i * room;
        one.for_each_run(at, end, [&](int64_t from, int64_t, int64_t place, int64_t bytes) {
          std::memcpy(out + place - at, block(i) + from, static_cast<size_t>(bytes));
        });
        return group.start_send(i, out, end - at);
      }));
      PIPER_TRY(group.finish("all-to-all"));
      PIPER_TRY(group.with_others([&](int64_t i) -> Status {
        std::byte* to = one.to + i * one.to_block;
        one.for_each_run(at, end, [&](int64_t, int64_t target, int64_t place, int64_t bytes) {
          std::memcpy(to + target, in_.data() + i * room + place - at, static_cast<size_t>(bytes));
        });
        return ok_status();
      }));
    }
  }
  return ok_status();
}

Status ProcessFabric::rotate(Group& group, std::span<const Turn> turns) {
  for (const Turn& turn : turns) {
    const int64_t before = (group.position + group.size() - turn.shift) % group.size(),
                  after = (group.position + turn.shift) % group.size();
    for (int64_t at = 0; at < turn.bytes; at += kLargest) {
      const int64_t length = std::min(kLargest, turn.bytes - at);
      PIPER_TRY(group.start_recv(before, turn.to + at, length));
      PIPER_TRY(group.start_send(after, turn.from + at, length));
      PIPER_TRY(group.finish("rotation"));
    }
  }
  return ok_status();
}

void PassingRows::list(const Rows& rows, int64_t own, bool by_owner) {
  first_.assign(static_cast<size_t>(rows.members) + 1, 0);
  list_.clear();
  row_bytes_ = rows.row_bytes;
  const auto end_of = [&](int64_t member) -> size_t& {
    return first_[static_cast<size_t>(member) + 1];
  };
  if (!by_owner) {  // from the parts of others: one after the other
    for (int64_t i = 0; i < rows.members; ++i) {
      rows.for_each(i, [&](int64_t whole, int64_t part, int64_t owner) {
        if (owner == own) list_.push_back({whole, part});
      });
      end_of(i) = list_.size();
    }
    return;
  }
  rows.for_each(own, [&](int64_t, int64_t, int64_t owner) {
    if (owner < rows.members) ++end_of(owner);
  });
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  list_.resize(first_.back());
  next_.assign(first_.begin(), first_.end());
  rows.for_each(own, [&](int64_t whole, int64_t part, int64_t owner) {
    if (owner < rows.members) list_[next_[static_cast<size_t>(owner)]++] = {whole, part};
  });
}

// Visits the bytes [begin, end) of what passes between this rank and the member:
// visit(byte of the whole, byte of the part, byte of what passes, bytes).
template <class Visit>
void PassingRows::visit(int64_t member, int64_t begin, int64_t end, Visit visit) const {
  if (row_bytes_ == 0) return;
  const size_t first = first_[static_cast<size_t>(member)];
  for (int64_t row = begin / row_bytes_, at = row * row_bytes_; at < std::min(end, bytes(member));
       ++row, at += row_bytes_) {
    const Row& one = list_[first + static_cast<size_t>(row)];
    const int64_t from = std::max<int64_t>(begin - at, 0), to = std::min(end - at, row_bytes_);
    visit(one.whole + from, one.part + from, at + from, to - from);
  }
}

// Moves rows to their owners, into wholes, or from them, into parts. Both sides know from the index
// which rows pass between them.
Status ProcessFabric::move_rows(Group& group, const Rows& rows, bool whole) {
  const int64_t own = group.position, room = member_room(group);
  clear_rows(rows, own, whole);
  comes_.list(rows, own, /*by_owner=*/!whole);
  goes_.list(rows, own, /*by_owner=*/whole);
  std::byte* const from = whole ? rows.part : rows.whole;
  std::byte* const to = whole ? rows.whole : rows.part;
  comes_.visit(own, 0, INT64_MAX, [&](int64_t at, int64_t part, int64_t, int64_t bytes) {
    std::memcpy(to + (whole ? at : part), from + (whole ? part : at), static_cast<size_t>(bytes));
  });
  int64_t most = 0;
  PIPER_TRY(group.with_others([&](int64_t i) -> Status {
    most = std::max({most, comes_.bytes(i), goes_.bytes(i)});
    return ok_status();
  }));
  for (int64_t at = 0; at < most; at += room) {
    PIPER_TRY(group.with_others([&](int64_t i) -> Status {
      const int64_t left = comes_.bytes(i) - at;
      if (left > 0) PIPER_TRY(group.start_recv(i, in_.data() + i * room, std::min(left, room)));
      std::byte* const out = out_.data() + i * room;
      goes_.visit(i, at, at + room, [&](int64_t row, int64_t part, int64_t place, int64_t bytes) {
        std::memcpy(out + place - at, from + (whole ? part : row), static_cast<size_t>(bytes));
      });
      const int64_t sent = goes_.bytes(i) - at;
      return sent <= 0 ? ok_status() : group.start_send(i, out, std::min(sent, room));
    }));
    PIPER_TRY(group.finish(whole ? "dispatch" : "combine"));
    PIPER_TRY(group.with_others([&](int64_t i) -> Status {
      comes_.visit(i, at, at + room, [&](int64_t row, int64_t part, int64_t place, int64_t bytes) {
        std::memcpy(to + (whole ? row : part), in_.data() + i * room + place - at,
                    static_cast<size_t>(bytes));
      });
      return ok_status();
    }));
  }
  return ok_status();
}

Status ProcessFabric::run(int32_t group_id, const Collective& collective) {
  Group& group = groups_[static_cast<size_t>(group_id)];
  switch (collective.kind) {
    case InstructionKind::kAllReduce:
      return all_reduce(group, collective.pieces);
    case InstructionKind::kReduceScatter:
      return reduce_scatter(group, collective.shards);
    case InstructionKind::kAllGather:
      return all_gather(group, collective.shards);
    case InstructionKind::kAllToAll:
      return all_to_all(group, collective.exchanges);
    case InstructionKind::kRotate:
      return rotate(group, collective.turns);
    case InstructionKind::kDispatch:
    case InstructionKind::kCombine:
      return move_rows(group, collective.rows[0], collective.kind == InstructionKind::kDispatch);
    default:
      PIPER_CHECK(false, "{} is no collective", to_string(collective.kind));
  }
}

}  // namespace piper::process
