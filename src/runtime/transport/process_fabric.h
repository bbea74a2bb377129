// The fabric of ranks that are processes, over a wire. Reductions are our own reduce-scatter and
// all-gather, so that their bits are those of inproc.
//
// process_fabric.cc: registration and messages; process_collectives.cc: the collectives of
// messages; shared_sums.cc: sums by way of memory that the ranks of a host share.
#pragma once

#include <deque>

#include "peers.h"

namespace piper::process {

inline constexpr int64_t kLargest = int64_t{1}
                                    << 30;  // bytes of one message; MPI's counts are ints

// Tensors of one collective whose transfers are under way at once.
inline constexpr size_t kTogether = 32;

// Holds a group of ranks, and what is under way between its members.
struct Group {
  Group(Peers& peers, int32_t communicator, std::span<const int64_t> ranks);
  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  Status start_send(int64_t member, const std::byte* data, int64_t bytes);
  Status start_recv(int64_t member, std::byte* to, int64_t bytes);
  // Waits for all that was started.
  Status finish(const char* what);
  template <class Visit>
  Status with_others(Visit visit) const {
    for (int64_t i = 0; i < size(); ++i)
      if (i != position) PIPER_TRY(visit(i));
    return ok_status();
  }

  Peers& peers;
  int32_t communicator;
  std::vector<int64_t> ranks;
  int64_t position = 0;
  std::vector<Transfer> transfers;     // room for kTogether sends and receives per member
  std::vector<const std::byte*> from;  // operands of a sum, one per member
  // Where all members share memory, which the first sum finds out: by member, null until theirs is
  // found; and how many segments were summed. Empty elsewhere.
  bool joined = false;
  std::vector<SharedCounters*> counters;
  uint64_t hash = 0, segments = 0;
};

// Adds up what ranks have that share the memory of a host.
class SharedSums {
 public:
  explicit SharedSums(HostMemory& memory) : memory_(memory) {}
  // Gives a group counters of its own if its members all share memory with each other.
  Status join(Group& group);
  // Requires a group that has counters.
  Status all_reduce(Group& group, std::span<const Piece> pieces);

 private:
  struct Segment;
  Status wait_counter(Group& group, int64_t member, std::atomic<uint64_t> SharedCounters::*counter,
                      uint64_t least);
  Status clear_slot(size_t slot);
  Status fill_slot(Group& group, std::span<const Piece> pieces, const Segment& segment);
  Status sum_slice(Group& group, std::span<const Piece> pieces, const Segment& segment);
  Status take_slices(Group& group, std::span<const Piece> pieces, const Segment& segment);
  std::byte* slot_of(const Group& group, int64_t member, const Segment& segment) const;

  HostMemory& memory_;
  // By slot: the group and the segment that used it last.
  std::pair<Group*, uint64_t> slot_users_[kSharedSlots] = {};
};

// Lists the rows that pass between this rank and each member in a dispatch or a combine.
class PassingRows {
 public:
  // Lists the rows that travel. `by_owner`: rows of the own part, between it and their owners; else
  // rows of all parts that the rank owns.
  void list(const Rows& rows, int64_t own, bool by_owner);
  int64_t bytes(int64_t member) const {
    const auto m = static_cast<size_t>(member);
    return static_cast<int64_t>(first_[m + 1] - first_[m]) * row_bytes_;
  }
  template <class Visit>
  void visit(int64_t member, int64_t begin, int64_t end, Visit visit) const;

 private:
  struct Row {
    int64_t whole, part;  // where it begins, in bytes
  };
  std::vector<Row> list_;             // by member
  std::vector<size_t> first_, next_;  // in `list_`, by member
  int64_t row_bytes_ = 0;
};

class ProcessFabric final : public Fabric {
 public:
  // `shares`: sums of ranks of one host may go by way of memory that they share.
  ProcessFabric(Peers& peers, bool shares)
      : peers_(peers), shares_(shares), sums_(peers.memory()) {}

  std::string_view name() const override { return peers_.wire().name(); }
  int64_t rank() const override { return peers_.rank(); }
  int64_t world() const override { return peers_.world(); }

  Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t in_flight, int32_t) override;
  Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t) override;
  Status add_message(std::span<const MessagePart> parts) override;
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator, int32_t) override;

  Status send(int32_t route, std::span<const MessagePart> parts) override;
  Status recv(int32_t route, std::span<const MessagePart> parts) override;
  Status run(int32_t group, const Collective& collective) override;
  Status wait_sends() override;

 private:
  struct Route {
    int64_t peer = 0;
    int32_t communicator = 0;
  };
  Status start_message(const Route& to, std::span<const MessagePart> parts);
  Status take_message(const Route& from, std::span<const MessagePart> parts);
  Status all_reduce(Group& group, std::span<const Piece> pieces);
  Status reduce_segment(Group& group, std::span<const Piece> pieces, int64_t begin, int64_t end);
  Status reduce_scatter(Group& group, std::span<const Shard> shards);
  Status all_gather(Group& group, std::span<const Shard> shards);
  Result<int64_t> most_in_blocks(const Group& group, const Shard& shard) const;
  Status reduce_in_blocks(Group& group, const Shard& shard);
  Status gather_in_blocks(Group& group, const Shard& shard);
  Status all_to_all(Group& group, std::span<const Exchange> exchanges);
  Status rotate(Group& group, std::span<const Turn> turns);
  Status move_rows(Group& group, const Rows& rows, bool whole);
  int64_t segment_bytes(const Group& group) const;
  int64_t member_room(const Group& group) const;

  Peers& peers_;
  const bool shares_;
  SharedSums sums_;
  std::vector<Route> routes_;
  std::vector<Transfer> sends_;  // since the last wait_sends
  std::deque<Group> groups_;
  PassingRows comes_, goes_;         // memory that each dispatch and combine uses again
  std::vector<std::byte> out_, in_;  // one segment of an all-reduce: own data, and others' slices
};

}  // namespace piper::process
