// Ranks as processes of an MPI job. Messages are MPI's; reductions are our own reduce-scatter and
// all-gather, so that their bits are those of inproc. Every wait tests, gives way to other
// processes and looks at the clock.
#include <fmt/format.h>
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#include <mpi.h>
#include <sched.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "errors.h"
#include "reduce.h"

namespace piper {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kLargest = int64_t{1} << 30;  // bytes of one MPI message; its counts are ints
constexpr int kIdentityTag = 1;

Error mpi_error(int64_t rank, const char* call, int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return fail("rank {}: {}: {}", rank, call, text).with_code(ExitCode::kPeer);
}

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
  std::vector<Request> requests;       // room for a send and a receive per member
  std::vector<const std::byte*> from;  // operands of a sum, one per member
  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

// Sent to all when a rank fails.
struct Stop {
  int32_t code = 0;
  char reason[508] = {};
};

// An identity as it travels.
struct IdentityRecord {
  int64_t rank = 0, world = 0;
  char set_id[128] = {}, source[256] = {};
};

template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

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
  Result<int32_t> add_group(std::span<const int64_t> ranks) override;

  Status send(int32_t route, const std::byte* data, int64_t bytes) override;
  Status recv(int32_t route, std::byte* to, int64_t bytes) override;
  Status all_reduce(int32_t group, std::span<const Piece> pieces) override;
  Status reduce_scatter(int32_t group, const std::byte* whole, std::byte* part, DType dtype,
                        int64_t count) override;
  Status all_gather(int32_t group, const std::byte* part, std::byte* whole, int64_t bytes) override;
  Status all_to_all(int32_t group, const std::byte* from, std::byte* to, int64_t bytes) override;
  Status broadcast(int32_t group, std::byte* data, int64_t bytes, int32_t root) override;
  Status wait_sends() override;
  Status barrier() override;
  void abort(const Error& reason) override;

 private:
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
  std::vector<Request> sends_;  // since the last wait_sends
  std::vector<Group> groups_;
  std::vector<std::byte> out_, in_;  // one segment of an all-reduce: own data, and others' slices
  Stop stop_in_, stop_out_;
  MPI_Request stop_request_ = MPI_REQUEST_NULL;
  int64_t stopped_by_ = -1;
  int exit_code_ = 0;    // of the rank that failed first, as far as known here
  bool broken_ = false;  // an error leaves transfers open: MPI cannot end in order
};

MpiTransport::MpiTransport(const TransportOptions& options) : timeout_(options.timeout_s) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  int world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  rank_ = rank;
  world_ = world;
}

MpiTransport::~MpiTransport() {
  if (broken_ && exit_code_ == 0) exit_code_ = static_cast<int>(ExitCode::kPeer);
  if (exit_code_ != 0) MPI_Abort(MPI_COMM_WORLD, exit_code_);
  if (stop_request_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&stop_request_);
    MPI_Wait(&stop_request_, MPI_STATUS_IGNORE);
  }
  MPI_Finalize();
}

// ---- Waiting
// --------------------------------------------------------------------------------------

Status MpiTransport::check_stopped() {
  if (stop_request_ == MPI_REQUEST_NULL) return ok_status();
  int flag = 0;
  MPI_Status status;
  PIPER_MPI(MPI_Test(&stop_request_, &flag, &status));
  if (flag != 0) {
    stopped_by_ = status.MPI_SOURCE;
    if (exit_code_ == 0) exit_code_ = stop_in_.code;
  }
  if (stopped_by_ < 0) return ok_status();
  return stopped_by(rank_, stopped_by_, stop_in_.reason);
}

// Whether the transfer has ended; a receive of another size ends with an error.
bool MpiTransport::done(Request& request, Status& status, const char* what) {
  if (request.handle == MPI_REQUEST_NULL) return true;
  int flag = 0;
  MPI_Status detail;
  int code = MPI_Test(&request.handle, &flag, &detail);
  if (code == MPI_SUCCESS && flag == 0) return false;
  int got = -1;
  if (code == MPI_SUCCESS && request.bytes >= 0) MPI_Get_count(&detail, MPI_BYTE, &got);
  int kind = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_TRUNCATE ||
      (kind == MPI_SUCCESS && request.bytes >= 0 && got != request.bytes)) {
    std::string where = request.channel >= 0 ? fmt::format("on channel {} from", request.channel)
                                             : fmt::format("in the {} with", what);
    status = size_mismatch(rank_, request.peer, where, got, request.bytes);
  } else if (kind != MPI_SUCCESS) {
    status = mpi_error(rank_, what, code);
  }
  return true;
}

Error MpiTransport::late(const Request& request, const char* what, const Group* group) const {
  std::string where;
  if (group != nullptr) {
    where = fmt::format("in the {} of ranks [{}] for", what, fmt::join(group->ranks, ","));
  } else if (request.bytes >= 0) {
    where = fmt::format("for a message on channel {} from", request.channel);
  } else {
    where = fmt::format("for a message on channel {} to be taken by", request.channel);
  }
  return timed_out(rank_, timeout_, where, request.peer, nullptr);
}

// Until all have ended. Others may need the core to get there: yields soon, sleeps after a while.
Status MpiTransport::wait(std::span<Request> requests, const char* what, const Group* group) {
  Status status = wait_all(requests, what, group);
  if (!status) broken_ = true;
  return status;
}

Status MpiTransport::wait_all(std::span<Request> requests, const char* what, const Group* group) {
  Clock::time_point start;
  Status status = ok_status();
  size_t next = 0;
  for (int turn = 0;; ++turn) {
    while (next < requests.size() && done(requests[next], status, what)) {
      if (!status) return status;
      ++next;
    }
    if (next == requests.size()) return ok_status();
    if (turn % 32 == 0) {
      PIPER_TRY(check_stopped());
      Clock::time_point now = Clock::now();
      if (turn == 0) start = now;
      std::chrono::duration<double> waited = now - start;
      if (waited.count() > timeout_) return late(requests[next], what, group);
      if (waited.count() > 2e-3) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (turn >= 32) sched_yield();
  }
}

void MpiTransport::abort(const Error& reason) {
  if (exit_code_ != 0) return;  // stopped by another, or for the second time
  exit_code_ = static_cast<int>(reason.code);
  if (stops_ == MPI_COMM_NULL) return;
  stop_out_.code = exit_code_;
  copy_text(stop_out_.reason, reason.message);
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    MPI_Isend(&stop_out_, sizeof(Stop), MPI_BYTE, peer, 0, stops_, &requests.emplace_back());
  }
  // A short while for those that still listen; a dead rank must not hold us up.
  auto until = Clock::now() + std::chrono::milliseconds(300);
  int flag = 0;
  while (flag == 0 && Clock::now() < until) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE);
    sched_yield();
  }
}

// ---- Registration
// ---------------------------------------------------------------------------------

Group MpiTransport::make_group(std::span<const int64_t> ranks) const {
  Group group;
  group.ranks.assign(ranks.begin(), ranks.end());
  group.position = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  uint32_t hash = 2166136261u;  // members of different groups must not take each other's messages
  for (int64_t rank : ranks) hash = (hash ^ static_cast<uint32_t>(rank + 1)) * 16777619u;
  group.tag = static_cast<int>(hash & 0xfffffff);
  group.requests.reserve(ranks.size() * 2);
  group.from.resize(ranks.size());
  return group;
}

Status MpiTransport::agree(const PlanIdentity& own) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < world_; ++i) all.push_back(i);
  Group everyone = make_group(all);
  everyone.tag = kIdentityTag;
  std::vector<IdentityRecord> records(all.size());
  IdentityRecord& mine = records[static_cast<size_t>(rank_)];
  mine.rank = own.rank;
  mine.world = own.world;
  copy_text(mine.set_id, own.set_id);
  copy_text(mine.source, own.source);
  auto bytes = [&](int64_t i) {
    return reinterpret_cast<std::byte*>(&records[static_cast<size_t>(i)]);
  };
  PIPER_TRY(with_others(everyone, [&](int64_t i) -> Status {
    PIPER_TRY(start_recv(everyone, MPI_COMM_WORLD, i, bytes(i), sizeof(IdentityRecord)));
    return start_send(everyone, MPI_COMM_WORLD, i, bytes(rank_), sizeof(IdentityRecord));
  }));
  PIPER_TRY(finish(everyone, "comparison of plans"));
  std::vector<PlanIdentity> identities;
  for (const IdentityRecord& r : records) {
    identities.push_back({r.set_id, r.rank, r.world, r.source});
  }
  PIPER_TRY(check_identities(identities));
  rank_ = own.rank;
  PIPER_TRY(open_communicators());
  groups_.push_back(make_group(all));
  return ok_status();
}

// Ranks of these communicators are those of the plan, whatever numbers the launcher gave.
Status MpiTransport::open_communicators() {
  PIPER_MPI(MPI_Comm_split(MPI_COMM_WORLD, 0, static_cast<int>(rank_), &messages_));
  PIPER_MPI(MPI_Comm_dup(messages_, &collectives_));
  PIPER_MPI(MPI_Comm_dup(messages_, &stops_));
  for (MPI_Comm comm : {messages_, collectives_, stops_}) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  PIPER_MPI(
      MPI_Irecv(&stop_in_, sizeof(Stop), MPI_BYTE, MPI_ANY_SOURCE, 0, stops_, &stop_request_));
  return ok_status();
}

Result<int32_t> MpiTransport::add_send(int64_t peer, int32_t channel, int64_t in_flight) {
  PIPER_TRY(check_peer(rank_, world_, peer));
  routes_.push_back({peer, channel});
  sends_.reserve(sends_.capacity() + static_cast<size_t>(in_flight));
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> MpiTransport::add_recv(int64_t peer, int32_t channel) {
  PIPER_TRY(check_peer(rank_, world_, peer));
  routes_.push_back({peer, channel});
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> MpiTransport::add_group(std::span<const int64_t> ranks) {
  PIPER_TRY(check_group(rank_, world_, ranks));
  groups_.push_back(make_group(ranks));
  if (ranks.size() > 1 && out_.empty()) {
    out_.resize(static_cast<size_t>(kTransportSlotBytes / 2));
    in_.resize(static_cast<size_t>(kTransportSlotBytes / 2));
  }
  return static_cast<int32_t>(groups_.size() - 1);
}

// ---- Messages
// -------------------------------------------------------------------------------------

Status MpiTransport::send(int32_t route, const std::byte* data, int64_t bytes) {
  const Route& to = routes_[static_cast<size_t>(route)];
  for (int64_t at = 0; at == 0 || at < bytes; at += kLargest) {
    Request& request = sends_.emplace_back(Request{MPI_REQUEST_NULL, to.peer, -1, to.channel});
    PIPER_MPI(MPI_Isend(data + at, static_cast<int>(std::min(bytes - at, kLargest)), MPI_BYTE,
                        static_cast<int>(to.peer), to.channel, messages_, &request.handle));
  }
  return ok_status();
}

Status MpiTransport::recv(int32_t route, std::byte* to, int64_t bytes) {
  const Route& from = routes_[static_cast<size_t>(route)];
  for (int64_t at = 0; at == 0 || at < bytes; at += kLargest) {
    Request request{MPI_REQUEST_NULL, from.peer, std::min(bytes - at, kLargest), from.channel};
    PIPER_MPI(MPI_Irecv(to + at, static_cast<int>(request.bytes), MPI_BYTE,
                        static_cast<int>(from.peer), from.channel, messages_, &request.handle));
    PIPER_TRY(wait(std::span(&request, 1), "receive", nullptr));
  }
  return ok_status();
}

Status MpiTransport::wait_sends() {
  PIPER_TRY(wait(sends_, "send", nullptr));
  sends_.clear();
  return ok_status();
}

// ---- Collectives
// ----------------------------------------------------------------------------------

Status MpiTransport::start_send(Group& group, MPI_Comm comm, int64_t member, const std::byte* data,
                                int64_t bytes) {
  int64_t peer = group.ranks[static_cast<size_t>(member)];
  Request& request = group.requests.emplace_back(Request{MPI_REQUEST_NULL, peer, -1, -1});
  PIPER_MPI(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(peer), group.tag,
                      comm, &request.handle));
  return ok_status();
}

Status MpiTransport::start_recv(Group& group, MPI_Comm comm, int64_t member, std::byte* to,
                                int64_t bytes) {
  int64_t peer = group.ranks[static_cast<size_t>(member)];
  Request& request = group.requests.emplace_back(Request{MPI_REQUEST_NULL, peer, bytes, -1});
  PIPER_MPI(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(peer), group.tag,
                      comm, &request.handle));
  return ok_status();
}

Status MpiTransport::finish(Group& group, const char* what) {
  PIPER_TRY(wait(group.requests, what, &group));
  group.requests.clear();
  return ok_status();
}

template <class Visit>
Status MpiTransport::with_others(const Group& group, Visit visit) {
  for (int64_t i = 0; i < group.size(); ++i) {
    if (i != group.position) PIPER_TRY(visit(i));
  }
  return ok_status();
}

Status MpiTransport::barrier() {
  Group& everyone = groups_[0];
  PIPER_TRY(with_others(everyone, [&](int64_t i) -> Status {
    PIPER_TRY(start_recv(everyone, collectives_, i, nullptr, 0));
    return start_send(everyone, collectives_, i, nullptr, 0);
  }));
  return finish(everyone, "barrier");
}

// What fits: the own data in out_, and in in_ a slice from every member, each with its rounding.
int64_t MpiTransport::segment_bytes(const Group& group) const {
  int64_t room = static_cast<int64_t>(in_.size()) - 2 * kFlatAlign * group.size();
  return std::max(room / kFlatAlign, int64_t{1}) * kFlatAlign;
}

Status MpiTransport::all_reduce(int32_t group_id, std::span<const Piece> pieces) {
  Group& group = groups_[static_cast<size_t>(group_id)];
  if (group.size() == 1) return ok_status();
  int64_t total = flat_size(pieces);
  int64_t segment = segment_bytes(group);
  for (int64_t begin = 0; begin < total; begin += segment) {
    PIPER_TRY(reduce_segment(group, pieces, begin, std::min(begin + segment, total)));
  }
  return ok_status();
}

Status MpiTransport::reduce_segment(Group& group, std::span<const Piece> pieces, int64_t begin,
                                    int64_t end) {
  auto bound = [&](int64_t member) { return slice_begin(end - begin, member, group.size()); };
  auto length = [&](int64_t member) { return bound(member + 1) - bound(member); };
  int64_t own = group.position;
  std::byte* out = out_.data();
  int64_t stride = length(own);
  for_each_run(pieces, begin, end, [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
    std::memcpy(out + (flat - begin), pieces[p].data + offset, static_cast<size_t>(bytes));
  });
  PIPER_TRY(with_others(group, [&](int64_t i) -> Status {
    PIPER_TRY(start_recv(group, collectives_, i, in_.data() + i * stride, stride));
    return start_send(group, collectives_, i, out + bound(i), length(i));
  }));
  PIPER_TRY(finish(group, "all-reduce"));
  int64_t first = begin + bound(own);
  for_each_run(pieces, first, first + stride, [&](size_t p, int64_t, int64_t bytes, int64_t flat) {
    for (int64_t i = 0; i < group.size(); ++i) {
      const std::byte* theirs = in_.data() + i * stride + (flat - first);
      group.from[static_cast<size_t>(i)] = i == own ? out + (flat - begin) : theirs;
    }
    std::byte* sum = out + (flat - begin);
    ordered_sum(pieces[p].dtype, std::span(&sum, 1), group.from,
                bytes / info(pieces[p].dtype).bytes);
  });
  PIPER_TRY(with_others(group, [&](int64_t i) -> Status {
    PIPER_TRY(start_recv(group, collectives_, i, out + bound(i), length(i)));
    return start_send(group, collectives_, i, out + bound(own), stride);
  }));
  PIPER_TRY(finish(group, "all-reduce"));
  for_each_run(pieces, begin, end, [&](size_t p, int64_t offset, int64_t bytes, int64_t flat) {
    std::memcpy(pieces[p].data + offset, out + (flat - begin), static_cast<size_t>(bytes));
  });
  return ok_status();
}

Status MpiTransport::reduce_scatter(int32_t group_id, const std::byte* whole, std::byte* part,
                                    DType dtype, int64_t count) {
  Group& group = groups_[static_cast<size_t>(group_id)];
  int64_t bytes = count * info(dtype).bytes;
  int64_t own = group.position;
  int64_t room =
      group.size() == 1 ? bytes : segment_bytes(group) / group.size() / kFlatAlign * kFlatAlign;
  int64_t segment = std::max(room, kFlatAlign);
  for (int64_t at = 0; at < bytes; at += segment) {
    int64_t length = std::min(segment, bytes - at);
    PIPER_TRY(with_others(group, [&](int64_t i) -> Status {
      PIPER_TRY(start_recv(group, collectives_, i, in_.data() + i * segment, length));
      return start_send(group, collectives_, i, whole + i * bytes + at, length);
    }));
    PIPER_TRY(finish(group, "reduce-scatter"));
    for (int64_t i = 0; i < group.size(); ++i) {
      const std::byte* theirs = in_.data() + i * segment;
      group.from[static_cast<size_t>(i)] = i == own ? whole + own * bytes + at : theirs;
    }
    std::byte* sum = part + at;
    ordered_sum(dtype, std::span(&sum, 1), group.from, length / info(dtype).bytes);
  }
  return ok_status();
}

Status MpiTransport::all_gather(int32_t group_id, const std::byte* part, std::byte* whole,
                                int64_t bytes) {
  Group& group = groups_[static_cast<size_t>(group_id)];
  std::byte* own = whole + group.position * bytes;
  if (own != part) std::memcpy(own, part, static_cast<size_t>(bytes));
  for (int64_t at = 0; at < bytes; at += kLargest) {
    int64_t length = std::min(kLargest, bytes - at);
    PIPER_TRY(with_others(group, [&](int64_t i) -> Status {
      PIPER_TRY(start_recv(group, collectives_, i, whole + i * bytes + at, length));
      return start_send(group, collectives_, i, own + at, length);
    }));
    PIPER_TRY(finish(group, "all-gather"));
  }
  return ok_status();
}

Status MpiTransport::all_to_all(int32_t group_id, const std::byte* from, std::byte* to,
                                int64_t bytes) {
  Group& group = groups_[static_cast<size_t>(group_id)];
  int64_t own = group.position * bytes;
  std::memcpy(to + own, from + own, static_cast<size_t>(bytes));
  for (int64_t at = 0; at < bytes; at += kLargest) {
    int64_t length = std::min(kLargest, bytes - at);
    PIPER_TRY(with_others(group, [&](int64_t i) -> Status {
      PIPER_TRY(start_recv(group, collectives_, i, to + i * bytes + at, length));
      return start_send(group, collectives_, i, from + i * bytes + at, length);
    }));
    PIPER_TRY(finish(group, "all-to-all"));
  }
  return ok_status();
}

Status MpiTransport::broadcast(int32_t group_id, std::byte* data, int64_t bytes, int32_t root) {
  Group& group = groups_[static_cast<size_t>(group_id)];
  for (int64_t at = 0; at < bytes; at += kLargest) {
    int64_t length = std::min(kLargest, bytes - at);
    if (group.position == root) {
      PIPER_TRY(with_others(
          group, [&](int64_t i) { return start_send(group, collectives_, i, data + at, length); }));
    } else {
      PIPER_TRY(start_recv(group, collectives_, root, data + at, length));
    }
    PIPER_TRY(finish(group, "broadcast"));
  }
  return ok_status();
}

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options) {
  return std::make_unique<MpiTransport>(options);
}

}  // namespace piper
