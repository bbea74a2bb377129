#include <fmt/format.h>

#include <cstring>

#include "errors.h"
#include "mpi_transport.h"
#include "reduce.h"

namespace piper {
namespace mpi {

namespace {

constexpr int kIdentityTag = 1;
constexpr double kAbortSeconds = 5;

// An identity as it travels.
struct IdentityRecord {
  int64_t rank = 0, world = 0;
  char set_id[128] = {}, source[256] = {}, kernels[64] = {};
  char flags[2048] = {};  // lines of name and value
  HostAddress memory;
};

template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

IdentityRecord record_of(const PlanIdentity& identity, const HostAddress& memory) {
  IdentityRecord record;
  record.rank = identity.rank;
  record.world = identity.world;
  record.memory = memory;
  copy_text(record.set_id, identity.set_id);
  copy_text(record.source, identity.source);
  copy_text(record.kernels, identity.kernels);
  std::string flags;
  for (const auto& [name, value] : identity.flags) flags += fmt::format("{}\n{}\n", name, value);
  PIPER_CHECK(flags.size() < sizeof record.flags, "{} bytes of flags", flags.size());
  copy_text(record.flags, flags);
  return record;
}

PlanIdentity identity_of(const IdentityRecord& record) {
  PlanIdentity identity{record.set_id, record.rank,    record.world,
                        record.source, record.kernels, {}};
  const std::vector<std::string> lines = split_text(record.flags, '\n');
  for (size_t i = 0; i + 1 < lines.size(); i += 2)
    identity.flags.emplace_back(lines[i], lines[i + 1]);
  return identity;
}

// For the messages of a process that does not know its rank yet.
std::string who() {
  const auto launch = launched();
  return launch ? fmt::format("process {} of {}", launch->rank, launch->world) : "this process";
}

// A rank that ends or stops before MPI knows it would be waited for without end.
std::string alone_text(double seconds, const char* where) {
  return print_error(
      fail("{} waited {:.3g} s for the others in {}: one of them ended or stopped before", who(),
           seconds, where)
          .with_note("help: look at what the other processes said; --start-timeout gives a slow "
                     "start more time"));
}

}  // namespace

Error mpi_error(int64_t rank, const char* call, int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return fail("rank {}: {}: {}", rank, call, text).with_code(ExitCode::kPeer);
}

MpiTransport::MpiTransport(const TransportOptions& options)
    : start_timeout_(options.start_timeout_s),
      shared_memory_(options.shared_memory),
      timeout_(options.timeout_s),
      memory_(launched().value_or(Launch{}).rank) {
  const Watchdog guard(start_timeout_, alone_text(start_timeout_, "MPI_Init"),
                       static_cast<int>(ExitCode::kPeer));
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
  if (exit_code_ != 0) {
    const Watchdog guard(kAbortSeconds, "", exit_code_);  // for a launcher that is gone
    MPI_Abort(MPI_COMM_WORLD, exit_code_);
  }
  if (stop_request_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&stop_request_);
    MPI_Wait(&stop_request_, MPI_STATUS_IGNORE);
  }
  for (auto& [parts, type] : messages_of_parts_) MPI_Type_free(&type);
  const Watchdog guard(start_timeout_, alone_text(start_timeout_, "MPI_Finalize"),
                       static_cast<int>(ExitCode::kPeer));
  MPI_Finalize();
}

// ---- Waiting ------------------------------------------------------------------------------------

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

std::string MpiTransport::place_of(const Request& request, const char* what,
                                   const Group* group) const {
  if (group != nullptr)
    return fmt::format("in the {} of ranks [{}] for", what, fmt::join(group->ranks, ","));
  return fmt::format("for {} {}", name_message(request.channel),
                     request.bytes >= 0 ? "from" : "to be taken by");
}

Error MpiTransport::late(int64_t peer, const std::string& where) const {
  const auto seat = [&](int64_t rank) -> const Seat* {
    const HostBlock* block = memory_.block(rank);
    return block != nullptr ? &block->seat : nullptr;
  };
  const auto chain = chain_of_waits(rank_, peer, timeout_ / 2, seat);
  return timed_out(rank_, timeout_, where, chain, [&](int64_t rank) -> std::string {
    if (seat(rank) == nullptr) return "another host, which shows no more of it";
    return memory_.read_text(rank, seat(rank)->activity.load());
  });
}

// Until all have ended.
Status MpiTransport::wait(std::span<Request> requests, const char* what, const Group* group) {
  Status status = wait_all(requests, what, group);
  if (!status) broken_ = true;
  return status;
}

Status MpiTransport::wait_all(std::span<Request> requests, const char* what, const Group* group) {
  Status status = ok_status();
  size_t next = 0;
  const auto ready = [&](int64_t& peer) {
    while (next < requests.size() && done(requests[next], status, what) && status) ++next;
    if (next < requests.size()) peer = requests[next].peer;
    return next == requests.size() || !status;
  };
  PIPER_TRY(look_until(ready, [&] { return place_of(requests[next], what, group); }));
  return status;
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
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  int flag = 0;
  while (flag == 0 && std::chrono::steady_clock::now() < until) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE);
    sched_yield();
  }
}

// ---- Registration -------------------------------------------------------------------------------

Group MpiTransport::make_group(std::span<const int64_t> ranks) const {
  Group group;
  group.ranks.assign(ranks.begin(), ranks.end());
  group.position = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  uint32_t hash = 2166136261u;  // members of different groups must not take each other's messages
  for (int64_t rank : ranks) hash = (hash ^ static_cast<uint32_t>(rank + 1)) * 16777619u;
  group.tag = static_cast<int>(hash & 0xfffffff);
  group.requests.reserve(ranks.size() * 2 * kTogether);
  group.from.resize(ranks.size());
  return group;
}

Status MpiTransport::agree(const PlanIdentity& own) {
  // The waits here name whom they wait for; MPI's own calls would not end.
  const Watchdog guard(start_timeout_ + 2, alone_text(start_timeout_, "the comparison of plans"),
                       static_cast<int>(ExitCode::kPeer));
  std::vector<int64_t> all;
  for (int64_t i = 0; i < world_; ++i) all.push_back(i);
  Group everyone = make_group(all);
  everyone.tag = kIdentityTag;
  std::vector<IdentityRecord> records(all.size());
  records[static_cast<size_t>(rank_)] = record_of(own, memory_.address());
  PIPER_TRY(exchange(everyone, MPI_COMM_WORLD, std::span(records)));
  std::vector<PlanIdentity> identities;
  for (const IdentityRecord& record : records) identities.push_back(identity_of(record));
  PIPER_TRY(check_identities(identities));
  rank_ = own.rank;
  PIPER_TRY(open_communicators());
  groups_.push_back(make_group(all));
  std::vector<HostAddress> addresses(all.size());
  for (const IdentityRecord& record : records)
    addresses[static_cast<size_t>(record.rank)] = record.memory;
  return share_memory(addresses);
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

Result<int32_t> MpiTransport::add_send(int64_t peer, int32_t channel, int64_t in_flight, int32_t) {
  PIPER_TRY(check_peer(rank_, world_, peer));
  routes_.push_back({peer, channel});
  sends_.reserve(sends_.capacity() + static_cast<size_t>(in_flight));
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> MpiTransport::add_recv(int64_t peer, int32_t channel, int32_t) {
  PIPER_TRY(check_peer(rank_, world_, peer));
  routes_.push_back({peer, channel});
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> MpiTransport::add_group(std::span<const int64_t> ranks, int32_t) {
  PIPER_TRY(check_group(rank_, world_, ranks));
  for (size_t i = 1; i < groups_.size(); ++i)
    if (std::equal(ranks.begin(), ranks.end(), groups_[i].ranks.begin(), groups_[i].ranks.end()))
      return static_cast<int32_t>(i);
  groups_.push_back(make_group(ranks));
  if (ranks.size() > 1) PIPER_TRY(join(groups_.back()));
  if (ranks.size() > 1 && out_.empty()) {
    constexpr int64_t kShared = kSharedSlots * kSharedSlotBytes;
    out_.resize(static_cast<size_t>((kTransportSlotBytes - kShared) / 2));
    in_.resize(out_.size());
  }
  return static_cast<int32_t>(groups_.size() - 1);
}

Status MpiTransport::add_message(std::span<const MessagePart> parts) {
  if (bytes_of(parts) > kLargest) return ok_status();
  std::vector<int> lengths;
  std::vector<MPI_Aint> places;
  for (const MessagePart& part : parts) {
    lengths.push_back(static_cast<int>(part.bytes));
    PIPER_MPI(MPI_Get_address(part.data, &places.emplace_back()));
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  PIPER_MPI(MPI_Type_create_hindexed(static_cast<int>(parts.size()), lengths.data(), places.data(),
                                     MPI_BYTE, &type));
  PIPER_MPI(MPI_Type_commit(&type));
  messages_of_parts_[parts.data()] = type;
  return ok_status();
}

// ---- Messages -----------------------------------------------------------------------------------

Status MpiTransport::start_message(int32_t route, const void* data, int count, MPI_Datatype type) {
  const Route& to = routes_[static_cast<size_t>(route)];
  Request& request = sends_.emplace_back(Request{MPI_REQUEST_NULL, to.peer, -1, to.channel});
  PIPER_MPI(MPI_Isend(data, count, type, static_cast<int>(to.peer), to.channel, messages_,
                      &request.handle));
  return ok_status();
}

Status MpiTransport::take_message(int32_t route, void* to, int count, MPI_Datatype type,
                                  int64_t bytes) {
  const Route& from = routes_[static_cast<size_t>(route)];
  Request request{MPI_REQUEST_NULL, from.peer, bytes, from.channel};
  PIPER_MPI(MPI_Irecv(to, count, type, static_cast<int>(from.peer), from.channel, messages_,
                      &request.handle));
  return wait(std::span(&request, 1), "receive", nullptr);
}

Status MpiTransport::send(int32_t route, const std::byte* data, int64_t bytes) {
  for (int64_t at = 0; at == 0 || at < bytes; at += kLargest)
    PIPER_TRY(start_message(route, data + at, static_cast<int>(std::min(bytes - at, kLargest)),
                            MPI_BYTE));
  return ok_status();
}

Status MpiTransport::recv(int32_t route, std::byte* to, int64_t bytes) {
  for (int64_t at = 0; at == 0 || at < bytes; at += kLargest) {
    const int64_t now = std::min(bytes - at, kLargest);
    PIPER_TRY(take_message(route, to + at, static_cast<int>(now), MPI_BYTE, now));
  }
  return ok_status();
}

Status MpiTransport::send(int32_t route, std::span<const MessagePart> parts) {
  const auto joined = messages_of_parts_.find(parts.data());
  if (joined != messages_of_parts_.end())
    return start_message(route, MPI_BOTTOM, 1, joined->second);
  for (const MessagePart& part : parts) PIPER_TRY(send(route, part.data, part.bytes));
  return ok_status();
}

Status MpiTransport::recv(int32_t route, std::span<const MessagePart> parts) {
  const auto joined = messages_of_parts_.find(parts.data());
  if (joined != messages_of_parts_.end())
    return take_message(route, MPI_BOTTOM, 1, joined->second, bytes_of(parts));
  for (const MessagePart& part : parts) PIPER_TRY(recv(route, part.data, part.bytes));
  return ok_status();
}

Status MpiTransport::wait_sends() {
  PIPER_TRY(wait(sends_, "send", nullptr));
  sends_.clear();
  return ok_status();
}

}  // namespace mpi

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options) {
  return std::make_unique<mpi::MpiTransport>(options);
}

}  // namespace piper
