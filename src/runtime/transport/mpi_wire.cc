// Carries messages between processes by MPI.
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <unordered_map>

#include "errors.h"
#include "watchdog.h"
#include "wire.h"

namespace piper {
namespace process {
namespace {

constexpr double kAbortSeconds = 5;

// Returns how errors name a process that does not know its rank yet.
std::string who() {
  const auto launch = launched();
  if (!launch || !*launch) return "this process";
  return fmt::format("process {} of {}", (*launch)->rank, (*launch)->world);
}

// Says that others are missing. MPI waits without end for a rank that ends before MPI knows it.
std::string alone_text(double seconds, const char* where) {
  return print_error(
      fail("{} waited {:.3g} s for the others in {}: one of them ended or stopped before", who(),
           seconds, where)
          .with_note("help: look at what the other processes said; --start-timeout gives a slow "
                     "start more time"));
}

// Ends a job whose MPI lets only one thread call it: each thread of a rank may be the caller.
[[noreturn]] void end_unthreaded() {
  const Error error =
      fail("{}: this MPI lets only one thread call it (MPI_THREAD_SERIALIZED is not provided)",
           who())
          .with_note("help: start with torchrun or srun, or with --rendezvous, which need no MPI");
  std::fputs(print_error(error).c_str(), stderr);
  MPI_Finalize();
  std::_Exit(static_cast<int>(ExitCode::kUsage));
}

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

// A Stop is sent to all ranks when one fails.
struct Stop {
  int32_t code = 0;
  char reason[508] = {};
};

static_assert(sizeof(MPI_Request) <= sizeof(Transfer::handle));

class MpiWire final : public Wire {
 public:
  MpiWire(const TransportOptions& options, int64_t rank);
  ~MpiWire() override;
  std::string_view name() const override { return "mpi"; }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }
  uint64_t job() const override { return job_; }
  Status add_message(std::span<const MessagePart> parts) override;
  Status send(Transfer& transfer, const Address& to, std::span<const MessagePart> parts) override;
  Status receive(Transfer& transfer, const Address& from,
                 std::span<const MessagePart> parts) override;
  Status test(Transfer& transfer, int64_t& got) override;
  Status check_stopped() override;
  void rest(double) override { std::this_thread::sleep_for(std::chrono::microseconds(50)); }
  double spin_seconds() const override { return 2e-3; }
  void abort(const Error& reason) override;
  void give_up() override { broken_ = true; }

 private:
  struct Buffer {  // as MPI wants it
    void* data = nullptr;
    int count = 0;
    MPI_Datatype type = MPI_BYTE;
  };
  Buffer buffer_of(std::span<const MessagePart> parts) const;
  static void open(Transfer& transfer, MPI_Request request);

  const double start_timeout_;
  int64_t rank_ = 0, world_ = 1;
  uint64_t job_ = 0;
  // One communicator for each lane, and one for stops.
  MPI_Comm lanes_[kLanes] = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL}, stops_ = MPI_COMM_NULL;
  // The places in memory of messages of several parts, by their first part.
  std::unordered_map<const MessagePart*, MPI_Datatype> messages_of_parts_;
  Stop stop_in_, stop_out_;
  MPI_Request stop_request_ = MPI_REQUEST_NULL;
  int64_t stopped_by_ = -1;
  int exit_code_ = 0;    // of the rank that failed first, as far as known here
  bool broken_ = false;  // transfers are open: MPI cannot end in order
};

// Ranks of the communicators are those of the plan, whatever numbers the launcher gave.
MpiWire::MpiWire(const TransportOptions& options, int64_t rank)
    : start_timeout_(options.start_timeout_s) {
  const Watchdog guard(start_timeout_, alone_text(start_timeout_, "MPI_Init"),
                       static_cast<int>(ExitCode::kPeer));
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (provided < MPI_THREAD_SERIALIZED) end_unthreaded();
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_split(MPI_COMM_WORLD, 0, static_cast<int>(rank), &lanes_[0]);
  for (size_t lane = 1; lane < kLanes; ++lane) MPI_Comm_dup(lanes_[0], &lanes_[lane]);
  MPI_Comm_dup(lanes_[0], &stops_);
  for (MPI_Comm comm : lanes_) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(stops_, MPI_ERRORS_RETURN);
  int number = 0, count = 1;
  MPI_Comm_rank(lanes_[0], &number);
  MPI_Comm_size(lanes_[0], &count);
  rank_ = number;
  world_ = count;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  job_ = static_cast<uint64_t>(now.tv_sec) << 32 ^ static_cast<uint64_t>(now.tv_nsec) << 2 ^
         static_cast<uint64_t>(getpid()) << 16;
  MPI_Bcast(&job_, sizeof job_, MPI_BYTE, 0, lanes_[0]);
  MPI_Irecv(&stop_in_, sizeof(Stop), MPI_BYTE, MPI_ANY_SOURCE, 0, stops_, &stop_request_);
}

MpiWire::~MpiWire() {
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

Status MpiWire::check_stopped() {
  if (stopped_by_ < 0) {
    int flag = 0;
    MPI_Status status;
    PIPER_MPI(MPI_Test(&stop_request_, &flag, &status));
    if (flag == 0) return ok_status();
    stopped_by_ = status.MPI_SOURCE;
    if (exit_code_ == 0) exit_code_ = stop_in_.code;
  }
  return stopped_by(rank_, stopped_by_, stop_in_.reason);
}

void MpiWire::abort(const Error& reason) {
  if (exit_code_ != 0) return;  // stopped by another, or for the second time
  exit_code_ = static_cast<int>(reason.code);
  stop_out_.code = exit_code_;
  std::memcpy(stop_out_.reason, reason.message.data(),
              std::min(reason.message.size(), sizeof stop_out_.reason - 1));
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    MPI_Isend(&stop_out_, sizeof(Stop), MPI_BYTE, peer, 0, stops_, &requests.emplace_back());
  }
  // Ranks that still listen have a short while to hear it; a dead one must not hold this one up.
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  int flag = 0;
  while (flag == 0 && std::chrono::steady_clock::now() < until) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE);
    sched_yield();
  }
}

Status MpiWire::add_message(std::span<const MessagePart> parts) {
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
  // Plans that a job switches to may have parts where those before had some.
  MPI_Datatype& known =
      messages_of_parts_.try_emplace(parts.data(), MPI_DATATYPE_NULL).first->second;
  if (known != MPI_DATATYPE_NULL) PIPER_MPI(MPI_Type_free(&known));
  known = type;
  return ok_status();
}

MpiWire::Buffer MpiWire::buffer_of(std::span<const MessagePart> parts) const {
  if (parts.empty()) return {};
  if (parts.size() == 1) return {parts[0].data, static_cast<int>(parts[0].bytes), MPI_BYTE};
  return {MPI_BOTTOM, 1, messages_of_parts_.at(parts.data())};
}

void MpiWire::open(Transfer& transfer, MPI_Request request) {
  std::memcpy(&transfer.handle, &request, sizeof request);
  transfer.open = true;
}

Status MpiWire::send(Transfer& transfer, const Address& to, std::span<const MessagePart> parts) {
  const Buffer from = buffer_of(parts);
  MPI_Request request = MPI_REQUEST_NULL;
  PIPER_MPI(MPI_Isend(from.data, from.count, from.type, static_cast<int>(to.peer), to.tag,
                      lanes_[static_cast<size_t>(to.lane)], &request));
  open(transfer, request);
  return ok_status();
}

Status MpiWire::receive(Transfer& transfer, const Address& from,
                        std::span<const MessagePart> parts) {
  const Buffer to = buffer_of(parts);
  MPI_Request request = MPI_REQUEST_NULL;
  PIPER_MPI(MPI_Irecv(to.data, to.count, to.type, static_cast<int>(from.peer), from.tag,
                      lanes_[static_cast<size_t>(from.lane)], &request));
  open(transfer, request);
  return ok_status();
}

Status MpiWire::test(Transfer& transfer, int64_t& got) {
  MPI_Request request = MPI_REQUEST_NULL;
  std::memcpy(&request, &transfer.handle, sizeof request);
  int flag = 0;
  MPI_Status detail;
  const int code = MPI_Test(&request, &flag, &detail);
  if (code == MPI_SUCCESS && flag == 0) return ok_status();
  transfer.open = false;
  int kind = MPI_SUCCESS, count = -1;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  if (kind != MPI_SUCCESS && kind != MPI_ERR_TRUNCATE) return mpi_error(rank_, "MPI_Test", code);
  if (code == MPI_SUCCESS && transfer.bytes >= 0) MPI_Get_count(&detail, MPI_BYTE, &count);
  got = count;
  return ok_status();
}

}  // namespace
}  // namespace process

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options, int64_t rank) {
  return process::make_process_transport(std::make_unique<process::MpiWire>(options, rank),
                                         options);
}

}  // namespace piper
