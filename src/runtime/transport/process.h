// Ranks as processes, over a wire. Reductions are our own reduce-scatter and all-gather, so that
// their bits are those of inproc. Every wait tests, gives way to other processes and looks at the
// clock.
//
// process.cc: waiting, messages and Control; process_collectives.cc: the collectives of messages;
// process_shared.cc: sums by way of memory that the ranks of a host share.
#pragma once

#include <sched.h>

#include <chrono>
#include <deque>
#include <optional>
#include <thread>

#include "doorbell.h"
#include "host_memory.h"
#include "wire.h"

namespace piper::process {

inline constexpr int64_t kLargest = int64_t{1}
                                    << 30;  // bytes of one message; MPI's counts are ints

// Tensors of one collective whose transfers are under way at once.
inline constexpr size_t kTogether = 32;

struct Route {
  int64_t peer = 0;
  int32_t communicator = 0;
};

struct Group {
  int32_t communicator = -1;  // of the whole job
  std::vector<int64_t> ranks;
  int64_t position = 0;
  int32_t tag = 0;
  std::vector<Transfer> transfers;     // room for kTogether sends and receives per member
  std::vector<const std::byte*> from;  // operands of a sum, one per member
  // Where all members share memory, which the first sum finds out: by member, null until theirs is
  // found; and how many segments were summed. Empty elsewhere.
  bool joined = false;
  std::vector<SharedCounters*> counters;
  uint64_t hash = 0, segments = 0;
  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

class ProcessTransport final : public Transport, public Control, public Fabric {
 public:
  ProcessTransport(std::unique_ptr<Wire> wire, const TransportOptions& options);
  ~ProcessTransport() override;

  std::string_view name() const override { return wire_->name(); }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }
  Control& control() override { return *this; }
  Fabric& fabric() override { return *this; }

  void set_timeout(double seconds) override { timeout_ = seconds; }
  double timeout() const override { return timeout_; }
  Seat& seat() override { return memory_.own().seat; }
  std::vector<int64_t> find_stuck(std::span<const int64_t> ranks) override;
  Status check_stopped() override {
    wire_->rest(0);  // what has come is heard
    return wire_->check_stopped();
  }
  Status agree(const PlanIdentity& own) override;
  Status tell(int64_t rank, std::span<const std::byte> bytes) override;
  Status hear(int64_t rank, std::span<std::byte> bytes, const char* what) override;
  void abort(const Error& reason) override;

  Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t in_flight, int32_t) override;
  Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t) override;
  Status add_message(std::span<const MessagePart> parts) override;
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator, int32_t) override;

  Status send(int32_t route, const std::byte* data, int64_t bytes) override;
  Status recv(int32_t route, std::byte* to, int64_t bytes) override;
  Status send(int32_t route, std::span<const MessagePart> parts) override;
  Status recv(int32_t route, std::span<const MessagePart> parts) override;
  Status run(int32_t group, const Collective& collective) override;
  Status wait_sends() override;

 private:
  // Bytes that were told and may not have left yet.
  struct Letter {
    Transfer transfer;
    std::vector<std::byte> bytes;
  };
  Status start_message(int32_t route, std::span<const MessagePart> parts);
  Status take_message(int32_t route, std::span<const MessagePart> parts);
  Group make_group(int32_t communicator, std::span<const int64_t> ranks) const;
  bool done(Transfer& transfer, Status& status, const char* what);
  Status wait(std::span<Transfer> transfers, const char* what, const Group* group);
  Status wait_all(std::span<Transfer> transfers, const char* what, const Group* group);
  // Null: it is on another host.
  const Seat* seat_of(int64_t rank) const;
  Error late(int64_t peer, const std::string& where) const;
  std::string place_of(const Transfer& transfer, const char* what, const Group* group) const;
  // Waits until ready(peer), which says for whom it waits; rests for so many seconds between two
  // looks.
  template <class Ready, class Where>
  Status look_until(double rest_s, Ready ready, Where where);
  Status start_send(Group& group, int64_t member, const std::byte* data, int64_t bytes);
  Status start_recv(Group& group, int64_t member, std::byte* to, int64_t bytes);
  Status finish(Group& group, const char* what);
  template <class Visit>
  Status with_others(const Group& group, Visit visit);
  Status all_reduce(Group& group, std::span<const Piece> pieces);
  Status reduce_scatter(Group& group, std::span<const Shard> shards);
  Status all_gather(Group& group, std::span<const Shard> shards);
  Status all_to_all(Group& group, std::span<const Exchange> exchanges);
  Status rotate(Group& group, std::span<const Turn> turns);
  Status reduce_segment(Group& group, std::span<const Piece> pieces, int64_t begin, int64_t end);
  int64_t segment_bytes(const Group& group) const;
  int64_t member_room(const Group& group) const;
  Status move_rows(Group& group, const Rows& rows, bool whole);
  Status join(Group& group);
  Status all_map(Group& group, bool& all);
  SharedCounters* take_counters(uint64_t hash);
  Status wait_counter(Group& group, int64_t member, std::atomic<uint64_t> SharedCounters::*counter,
                      uint64_t least);
  Status clear_slot(size_t slot);
  Status all_reduce_shared(Group& group, std::span<const Piece> pieces);
  struct Segment;
  std::byte* slot_of(const Group& group, int64_t member, const Segment& segment) const;
  Status fill_slot(Group& group, std::span<const Piece> pieces, const Segment& segment);
  Status sum_slice(Group& group, std::span<const Piece> pieces, const Segment& segment);
  Status take_slices(Group& group, std::span<const Piece> pieces, const Segment& segment);

  std::unique_ptr<Wire> wire_;
  const int64_t rank_, world_;
  const bool shared_memory_;
  int spins_ = 32;  // before others get the core
  double timeout_;
  bool ended_ = false;  // by an error
  HostMemory memory_;
  // By slot: the group and the segment that used it last.
  std::pair<Group*, uint64_t> slot_users_[kSharedSlots] = {};
  std::vector<Route> routes_;
  std::vector<Transfer> sends_;  // since the last wait_sends
  std::deque<Letter> letters_;
  std::deque<Group> groups_;
  std::vector<std::byte> out_, in_;  // one segment of an all-reduce: own data, and others' slices
};

template <class Visit>
Status ProcessTransport::with_others(const Group& group, Visit visit) {
  for (int64_t i = 0; i < group.size(); ++i) {
    if (i != group.position) PIPER_TRY(visit(i));
  }
  return ok_status();
}

// Others may need the core to get there: gives way soon, rests after a while.
template <class Ready, class Where>
Status ProcessTransport::look_until(double rest_s, Ready ready, Where where) {
  std::optional<Patience> patience;
  int64_t peer = -1;
  for (int turn = 0; !ready(peer); ++turn) {
    if (turn % 32 == 0 || (patience && patience->waited() > wire_->spin_seconds())) {
      PIPER_TRY(wire_->check_stopped());
      if (!patience) patience.emplace(memory_.own().seat, timeout_);
      patience->wait_for(peer);
      if (!patience->look()) return late(peer, where());
      if (patience->waited() > wire_->spin_seconds())
        wire_->rest(std::min(rest_s, patience->interval()));
    }
    turn < spins_ ? Doorbell::relax() : static_cast<void>(sched_yield());
  }
  if (patience) patience->done();
  return ok_status();
}

}  // namespace piper::process
