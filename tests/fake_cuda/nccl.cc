// NCCL between ranks that are threads of one process. A send or receive is there when its group is
// at the head of its stream; when its partner is there too, the bytes are copied, and the group's
// stream goes on when that is so of all of it.
#include <fmt/format.h>

#include <cstring>

#include "elements.h"
#include "fake.h"

using namespace piper;        // NOLINT: what is called is all outside of namespaces
using namespace piper::fake;  // NOLINT

namespace {

constexpr int kNcclOk = 0, kNcclInvalid = 4;

// What a group still waits for.
struct Waiting {
  int count = 0;
  std::shared_ptr<Point> over = std::make_shared<Point>();
  void one_less() {
    if (--count == 0) over->is_done = true;
  }
};
struct Transfer {
  char* at = nullptr;
  size_t bytes = 0;
  std::shared_ptr<Waiting> of;
  bool in_graph = false;
};
// Of one room and ordered pair: what is there on one side alone.
struct Line {
  std::deque<Transfer> sends, receives;
};
// A sum that members have come to, in turn.
struct Addition {
  std::vector<char*> at;
  std::vector<std::shared_ptr<Waiting>> of;
  bool in_graph = false;
};
struct Room {
  std::set<int> ranks;
  std::map<std::pair<int, int>, Line> lines;
  std::map<int64_t, Addition> additions;  // by number
  std::map<int, int64_t> added;           // by rank: how many
  bool is_over = false;                   // a rank has aborted
};
std::map<std::string, Room>& rooms() {
  static std::map<std::string, Room> all;
  return all;
}

struct Operation {
  enum Kind { kSend, kReceive, kAdd } kind = kSend;
  char* at = nullptr;
  size_t count = 0;
  int type = 0, peer = 0, how = 0;
  NcclComm* comm = nullptr;
  CuStream* stream = nullptr;
};
thread_local std::vector<Operation> group;
thread_local int depth = 0;

size_t size_of(int type) {
  return type == kNcclInt8                        ? 1
         : type == kNcclF16 || type == kNcclBF16  ? 2
         : type == kNcclInt32 || type == kNcclF32 ? 4
                                                  : 8;
}
DType dtype_of(int type) {
  return type == kNcclF64    ? DType::kF64
         : type == kNcclF32  ? DType::kF32
         : type == kNcclBF16 ? DType::kBF16
                             : DType::kF16;
}

Status meet(State& state, Line& line) {
  while (!line.sends.empty() && !line.receives.empty()) {
    const Transfer from = line.sends.front(), to = line.receives.front();
    line.sends.pop_front();
    line.receives.pop_front();
    if (from.in_graph != to.in_graph) return fail("a message stands in a graph on one side alone");
    if (from.bytes != to.bytes)
      return fail("{} bytes are sent where {} are received", from.bytes, to.bytes);
    for (const auto& [at, access] :
         {std::pair{from.at, emulator::Access::kRead}, {to.at, emulator::Access::kWrite}})
      if (const std::string wrong =
              state.touch(reinterpret_cast<uintptr_t>(at), from.bytes, access);
          !wrong.empty())
        return fail("a message: {}", wrong);
    std::memmove(to.at, from.at, from.bytes);
    from.of->one_less();
    to.of->one_less();
  }
  return ok_status();
}

Status arrive(State& state, const Operation& one, const std::shared_ptr<Waiting>& of,
              bool in_graph) {
  Room& room = rooms()[one.comm->room];
  if (room.is_over) return ok_status();
  const int own = one.comm->rank;
  if (one.kind == Operation::kAdd) {
    Addition& sum = room.additions[room.added[own]++];
    if (sum.at.empty()) sum.in_graph = in_graph;
    if (sum.in_graph != in_graph) return fail("a sum stands in a graph on some ranks alone");
    sum.at.push_back(one.at);
    sum.of.push_back(of);
    if (static_cast<int>(sum.at.size()) < one.comm->size) return ok_status();
    const DType type = dtype_of(one.type);
    for (size_t i = 0; i < one.count * size_of(one.type); i += size_of(one.type)) {
      double all = emulator::load_number(type, sum.at[0] + i);
      for (size_t k = 1; k < sum.at.size(); ++k) {
        const double x = emulator::load_number(type, sum.at[k] + i);
        all = one.how == kNcclSum ? all + x : std::max(all, x);
      }
      for (char* at : sum.at) emulator::store_number(type, all, at + i);
    }
    for (const auto& each : sum.of) each->one_less();
    return ok_status();
  }
  const Transfer transfer{one.at, one.count * size_of(one.type), of, in_graph};
  const bool sends = one.kind == Operation::kSend;
  Line& line = room.lines[sends ? std::pair{own, one.peer} : std::pair{one.peer, own}];
  (sends ? line.sends : line.receives).push_back(transfer);
  return meet(state, line);
}

int queue_all(State& state, const std::vector<Operation>& all) {
  CuStream* const stream = all[0].stream;
  const bool in_graph = stream->capture != nullptr;
  const auto begin = [&state, all, in_graph]() -> Result<std::shared_ptr<Point>> {
    const auto waiting = std::make_shared<Waiting>();
    waiting->count = static_cast<int>(all.size());
    for (const Operation& one : all) PIPER_TRY(arrive(state, one, waiting, in_graph));
    return waiting->over;
  };
  const int code = state.communicate("ncclGroupEnd", all[0].comm, stream, begin);
  return code == kOk ? kNcclOk : kNcclInvalid;
}

// Communicators do not block: what is called is queued while somebody asks whether it is.
int queue_group(State& state) {
  if (group.empty()) return kNcclOk;
  NcclComm* const comm = group[0].comm;
  if (comm->pending) state.misuse("ncclGroupEnd", "the communicator's last call is not done");
  comm->pending = [&state, all = std::exchange(group, {})] { return queue_all(state, all); };
  return kNcclInProgress;
}

int add(Call& call, Operation one) {
  if (!call.state.check(call.name, one.comm) || !call.state.check(call.name, one.stream))
    return kNcclInvalid;
  group.push_back(one);
  return depth > 0 ? kNcclOk : queue_group(call.state);
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return kNcclOk;
}
const char* ncclGetErrorString(int code) {
  return code == kNcclOk           ? "no error"
         : code == kNcclInProgress ? "in progress"
                                   : "invalid argument";
}
const char* ncclGetLastError(NcclComm*) { return ""; }
int ncclGetUniqueId(NcclId* id) {
  FAKE_CALL(ncclGetUniqueId);
  static int64_t made = 0;
  *id = {};
  fmt::format_to_n(id->bytes, sizeof id->bytes - 1, "room {}", made++);
  return kNcclOk;
}
int ncclCommInitRankConfig(NcclComm** comm, int size, NcclId id, int rank, NcclConfig* config) {
  FAKE_CALL(ncclCommInitRankConfig);
  FAKE_CONTEXT();
  FAKE_NO_CAPTURE();
  if (config->magic != 0xcafebeef || rank < 0 || rank >= size) return kNcclInvalid;
  if (!rooms()[id.bytes].ranks.insert(rank).second) return kNcclInvalid;
  *comm = call.state.make<NcclComm>();
  (*comm)->room = id.bytes;
  (*comm)->size = size;
  (*comm)->rank = rank;
  (*comm)->context = current_context();
  call.state.communicates |= size > 1;
  return config->blocking == 0 ? static_cast<int>(kNcclInProgress) : kNcclOk;
}
int ncclCommGetAsyncError(NcclComm* comm, int* state) {
  FAKE_CALL(ncclCommGetAsyncError);
  FAKE_CHECK(comm);
  const bool all = static_cast<int>(rooms()[comm->room].ranks.size()) == comm->size;
  if (comm->pending && call.state.random() % 2 == 0) {
    *state = kNcclInProgress;
    return kNcclOk;
  }
  if (const auto pending = std::exchange(comm->pending, nullptr)) return *state = pending();
  *state = all ? kNcclOk : static_cast<int>(kNcclInProgress);
  return kNcclOk;
}
int ncclCommFinalize(NcclComm* comm) {
  FAKE_CALL(ncclCommFinalize);
  FAKE_CHECK(comm);
  return kNcclOk;
}
int ncclCommDestroy(NcclComm* comm) {
  FAKE_RELEASE(ncclCommDestroy);
  FAKE_CHECK(comm);
  call.state.end(call.name, comm);
  return call.code;
}
int ncclCommAbort(NcclComm* comm) {
  FAKE_RELEASE(ncclCommAbort);
  FAKE_CHECK(comm);
  Room& room = rooms()[comm->room];
  room.is_over = true;
  room.lines.clear();
  room.additions.clear();
  call.state.end(call.name, comm);
  return call.code;
}
int ncclGroupStart() {
  ++depth;
  return kNcclOk;
}
int ncclGroupEnd() {
  FAKE_CALL(ncclGroupEnd);
  return --depth > 0 ? kNcclOk : queue_group(call.state);
}
int ncclSend(const void* data, size_t count, int type, int peer, NcclComm* comm, CuStream* stream) {
  FAKE_CALL(ncclSend);
  return add(call, {Operation::kSend, static_cast<char*>(const_cast<void*>(data)), count, type,
                    peer, 0, comm, stream});
}
int ncclRecv(void* data, size_t count, int type, int peer, NcclComm* comm, CuStream* stream) {
  FAKE_CALL(ncclRecv);
  return add(call,
             {Operation::kReceive, static_cast<char*>(data), count, type, peer, 0, comm, stream});
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int how, NcclComm* comm,
                  CuStream* stream) {
  FAKE_CALL(ncclAllReduce);
  if (from != to || type == kNcclInt8 || type == kNcclInt32 || type == kNcclInt64)
    return kNcclInvalid;
  return add(call, {Operation::kAdd, static_cast<char*>(to), count, type, 0, how, comm, stream});
}

}  // extern "C"
