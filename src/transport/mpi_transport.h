// Ranks as processes of an MPI job. Messages are MPI's; reductions are our own reduce-scatter and
// all-gather, so that their bits are those of inproc. Every wait tests, gives way to other
// processes and looks at the clock.
//
// mpi.cc: the job, waiting and messages; mpi_collectives.cc: the collectives of messages;
// mpi_shared.cc: sums by way of memory that the ranks of a host share.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C interface alone
#include <mpi.h>
#include <sched.h>

#include <chrono>
#include <deque>
#include <optional>
#include <thread>
#include <unordered_map>

#include "doorbell.h"
#include "host_memory.h"
#include "watchdog.h"

namespace piper::mpi {

inline constexpr int64_t kLargest = int64_t{1}
                                    << 30;  // bytes of one MPI message; its counts are ints

// Tensors of one collective whose transfers are under way at once.
inline constexpr size_t kTogether = 32;

Error mpi_error(int64_t rank, const char* call, int code);

#define PIPER_MPI(call)                                                             \
  do {                                                                              \
    if (int code = call; code != MPI_SUCCESS) return mpi_error(rank_, #call, code); \
  } while (false)

// One transfer under way.
struct Request {
  MPI_Request handle = MPI_REQUEST_NULL;
  int64_t peer = 0;
  int64_t bytes = -1;  // expected by a receive; -1 for a send
  int32_t channel = -1;
};

struct Route {
  int64_t peer = 0;
  int32_t channel = 0;
};

struct Group {
  std::vector<int64_t> ranks;
  int64_t position = 0;
  int tag = 0;
  std::vector<Request> requests;       // room for kTogether sends and receives per member
  std::vector<const std::byte*> from;  // operands of a sum, one per member
  // Where all members share memory: by member, null until theirs is found; and how many segments
  // were summed. Empty elsewhere.
  std::vector<SharedCounters*> counters;
  uint64_t hash = 0, segments = 0;
  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

// Sent to all when a rank fails.
struct Stop {
  int32_t code = 0;
  char reason[508] = {};
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(const TransportOptions& options);
  ~MpiTransport() override;

  std::string_view name() const override { return "mpi"; }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }
  void set_timeout(double seconds) override { timeout_ = seconds; }
  std::atomic<const char*>& activity() override { return memory_.own().seat.activity; }

  Status agree(const PlanIdentity& own) override;
  Result<int32_t> add_send(int64_t peer, int32_t channel, int64_t in_flight, int32_t) override;
  Result<int32_t> add_recv(int64_t peer, int32_t channel, int32_t) override;
  Status add_message(std::span<const MessagePart> parts) override;
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t) override;

  Status send(int32_t route, const std::byte* data, int64_t bytes) override;
  Status recv(int32_t route, std::byte* to, int64_t bytes) override;
  Status send(int32_t route, std::span<const MessagePart> parts) override;
  Status recv(int32_t route, std::span<const MessagePart> parts) override;
  Status all_reduce(int32_t group, std::span<const Piece> pieces) override;
  Status reduce_scatter(int32_t group, std::span<const Shard> shards) override;
  Status all_gather(int32_t group, std::span<const Shard> shards) override;
  Status all_to_all(int32_t group, std::span<const Exchange> exchanges) override;
  Status rotate(int32_t group, const std::byte* from, std::byte* to, int64_t bytes,
                int32_t turn) override;
  Status dispatch(int32_t group, const Rows& rows) override;
  Status combine(int32_t group, const Rows& rows) override;
  Status broadcast(int32_t group, std::byte* data, int64_t bytes, int32_t root) override;
  Status wait_sends() override;
  Status barrier() override;
  void abort(const Error& reason) override;

 private:
  Status start_message(int32_t route, const void* data, int count, MPI_Datatype type);
  Status take_message(int32_t route, void* to, int count, MPI_Datatype type, int64_t bytes);
  Group make_group(std::span<const int64_t> ranks) const;
  Status open_communicators();
  Status check_stopped();
  bool done(Request& request, Status& status, const char* what);
  Status wait(std::span<Request> requests, const char* what, const Group* group);
  Status wait_all(std::span<Request> requests, const char* what, const Group* group);
  Error late(int64_t peer, const std::string& where) const;
  std::string place_of(const Request& request, const char* what, const Group* group) const;
  // Until ready(peer), which says for whom it waits.
  template <class Ready, class Where>
  Status look_until(Ready ready, Where where);
  Status start_send(Group& group, MPI_Comm comm, int64_t member, const std::byte* data,
                    int64_t bytes);
  Status start_recv(Group& group, MPI_Comm comm, int64_t member, std::byte* to, int64_t bytes);
  Status finish(Group& group, const char* what);
  template <class Visit>
  Status with_others(const Group& group, Visit visit);
  // Each member's own entry, by position, reaches all.
  template <class T>
  Status exchange(Group& group, MPI_Comm comm, std::span<T> entries, int64_t count = 1);
  Status reduce_segment(Group& group, std::span<const Piece> pieces, int64_t begin, int64_t end);
  int64_t segment_bytes(const Group& group) const;
  int64_t member_room(const Group& group) const;
  Status move_rows(Group& group, const Rows& rows, bool whole);
  Status share_memory(std::span<const HostAddress> addresses);
  Status join(Group& group);
  Status wait_counter(Group& group, int64_t member, std::atomic<uint64_t> SharedCounters::*counter,
                      uint64_t least);
  Status clear_slot(size_t slot);
  Status all_reduce_shared(Group& group, std::span<const Piece> pieces);
  struct Segment;
  std::byte* slot_of(const Group& group, int64_t member, const Segment& segment) const;
  Status fill_slot(Group& group, std::span<const Piece> pieces, const Segment& segment);
  Status sum_slice(Group& group, std::span<const Piece> pieces, const Segment& segment);
  Status take_slices(Group& group, std::span<const Piece> pieces, const Segment& segment);

  const double start_timeout_;
  const bool shared_memory_;
  int spins_ = 32;  // before others get the core
  double timeout_;
  int64_t rank_ = 0;
  int64_t world_ = 1;
  HostMemory memory_;
  std::vector<std::vector<char>> shares_;  // by two ranks: whether the first has the second's block
  // By slot: the group and the segment that used it last.
  std::pair<Group*, uint64_t> slot_users_[kSharedSlots] = {};
  // Apart, so that no message is taken for another: messages of routes, collectives, stops.
  MPI_Comm messages_ = MPI_COMM_NULL, collectives_ = MPI_COMM_NULL, stops_ = MPI_COMM_NULL;
  std::vector<Route> routes_;
  // Messages of several parts, by the first: their places in memory. Those that are too large for
  // one message have none and travel part by part.
  std::unordered_map<const MessagePart*, MPI_Datatype> messages_of_parts_;
  std::vector<Request> sends_;  // since the last wait_sends
  std::deque<Group> groups_;
  std::vector<std::byte> out_, in_;  // one segment of an all-reduce: own data, and others' slices
  Stop stop_in_, stop_out_;
  MPI_Request stop_request_ = MPI_REQUEST_NULL;
  int64_t stopped_by_ = -1;
  int exit_code_ = 0;    // of the rank that failed first, as far as known here
  bool broken_ = false;  // an error leaves transfers open: MPI cannot end in order
};

template <class Visit>
Status MpiTransport::with_others(const Group& group, Visit visit) {
  for (int64_t i = 0; i < group.size(); ++i) {
    if (i != group.position) PIPER_TRY(visit(i));
  }
  return ok_status();
}

template <class T>
Status MpiTransport::exchange(Group& group, MPI_Comm comm, std::span<T> entries, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  auto at = [&](int64_t i) { return reinterpret_cast<std::byte*>(entries.data()) + i * bytes; };
  PIPER_TRY(with_others(group, [&](int64_t i) -> Status {
    PIPER_TRY(start_recv(group, comm, i, at(i), bytes));
    return start_send(group, comm, i, at(group.position), bytes);
  }));
  return finish(group, "comparison of plans");
}

// Others may need the core to get there: gives way soon, sleeps after a while.
template <class Ready, class Where>
Status MpiTransport::look_until(Ready ready, Where where) {
  std::optional<Patience> patience;
  int64_t peer = -1;
  for (int turn = 0; !ready(peer); ++turn) {
    if (turn % 32 == 0) {
      PIPER_TRY(check_stopped());
      if (!patience) patience.emplace(memory_.own().seat, timeout_);
      patience->wait_for(peer);
      if (!patience->look()) return late(peer, where());
      if (patience->waited() > 2e-3) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    turn < spins_ ? Doorbell::relax() : static_cast<void>(sched_yield());
  }
  if (patience) patience->done();
  return ok_status();
}

}  // namespace piper::mpi
