// Ranks as processes of an MPI job. Messages are MPI's; reductions are our own reduce-scatter and
// all-gather, so that their bits are those of inproc. Every wait tests, gives way to other
// processes and looks at the clock.
//
// mpi.cc: the job, waiting and messages; mpi_collectives.cc: the collectives.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C interface alone
#include <mpi.h>

#include <unordered_map>

#include "piper/transport.h"

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
  std::atomic<const char*>& activity() override { return activity_; }

  Status agree(const PlanIdentity& own) override;
  Result<int32_t> add_send(int64_t peer, int32_t channel, int64_t in_flight) override;
  Result<int32_t> add_recv(int64_t peer, int32_t channel) override;
  Status add_message(std::span<const MessagePart> parts) override;
  Result<int32_t> add_group(std::span<const int64_t> ranks) override;

  Status send(int32_t route, const std::byte* data, int64_t bytes) override;
  Status recv(int32_t route, std::byte* to, int64_t bytes) override;
  Status send(int32_t route, std::span<const MessagePart> parts) override;
  Status recv(int32_t route, std::span<const MessagePart> parts) override;
  Status all_reduce(int32_t group, std::span<const Piece> pieces) override;
  Status reduce_scatter(int32_t group, std::span<const Shard> shards) override;
  Status all_gather(int32_t group, std::span<const Shard> shards) override;
  Status all_to_all(int32_t group, const std::byte* from, std::byte* to, int64_t bytes) override;
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
  Error late(const Request& request, const char* what, const Group* group) const;
  Status start_send(Group& group, MPI_Comm comm, int64_t member, const std::byte* data,
                    int64_t bytes);
  Status start_recv(Group& group, MPI_Comm comm, int64_t member, std::byte* to, int64_t bytes);
  Status finish(Group& group, const char* what);
  template <class Visit>
  Status with_others(const Group& group, Visit visit);
  Status reduce_segment(Group& group, std::span<const Piece> pieces, int64_t begin, int64_t end);
  int64_t segment_bytes(const Group& group) const;

  double timeout_;
  int64_t rank_ = 0;
  int64_t world_ = 1;
  std::atomic<const char*> activity_{nullptr};
  // Apart, so that no message is taken for another: messages of routes, collectives, stops.
  MPI_Comm messages_ = MPI_COMM_NULL, collectives_ = MPI_COMM_NULL, stops_ = MPI_COMM_NULL;
  std::vector<Route> routes_;
  // Messages of several parts, by the first: their places in memory. Those that are too large for
  // one message have none and travel part by part.
  std::unordered_map<const MessagePart*, MPI_Datatype> messages_of_parts_;
  std::vector<Request> sends_;  // since the last wait_sends
  std::vector<Group> groups_;
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

}  // namespace piper::mpi
