// NCCL between ranks that are threads of one process, or processes that meet in a folder. All that
// ranks do with each other is letters (letters.h): an operation posts its own when its group is at
// the head of its stream; the group is over when it has taken all that it expects and all of its
// own have been taken. So nothing ends before both sides are there.
//
// Members connect as late as the vendor's library lets them: the first group that sends to a peer,
// or receives from it, is queued when the peer has made its first call that does the opposite, and
// stays in progress until then. So does the first sum of a kind and size, unless
// NCCL_RUNTIME_CONNECT was 0 when the process first made a communicator.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "elements.h"
#include "fake.h"
#include "letters.h"

using namespace piper;        // NOLINT: what is called is all outside of namespaces
using namespace piper::fake;  // NOLINT

namespace {

constexpr int kNcclOk = 0, kNcclInvalid = 4;

struct Operation {
  enum Kind { kSend, kReceive, kAllReduce, kReduceScatter, kReduce, kAllGather } kind = kSend;
  const char* from = nullptr;
  char* to = nullptr;
  size_t count = 0;
  int type = 0, how = 0;
  int peer = -1;  // of a message, or who gets a sum
  NcclComm* comm = nullptr;
  CuStream* stream = nullptr;
  bool in_graph = false;

  size_t size() const {
    return type == kNcclInt8                        ? 1
           : type == kNcclF16 || type == kNcclBF16  ? 2
           : type == kNcclInt32 || type == kNcclF32 ? 4
                                                    : 8;
  }
  size_t bytes() const { return count * size(); }
  // What both sides of a letter must say.
  std::string says() const {
    constexpr const char* kNames[] = {"",       "",          "all-reduce", "reduce-scatter",
                                      "reduce", "all-gather"};
    const char* const where = in_graph ? " in a graph" : "";
    if (kind <= kReceive) return fmt::format("{} bytes{}", bytes(), where);
    return fmt::format("{} of {} of type {} by {} to {}{}", kNames[kind], count, type, how, peer,
                       where);
  }
  bool gets() const { return kind != kSend && (kind != kReduce || peer == comm->rank); }
  bool gives_to(int rank) const {
    return kind != kReceive && (peer < 0 || peer == rank) && rank != comm->rank;
  }
  bool takes_from(int rank) const {
    return gets() && (kind != kReceive || peer == rank) && rank != comm->rank;
  }
  const char* part_for(int rank) const {
    return from + (kind == kReduceScatter ? static_cast<size_t>(rank) * bytes() : 0);
  }
};
thread_local std::vector<Operation> group;
thread_local int depth = 0;

// What a group still waits for.
struct Incoming {
  size_t operation = 0;
  int from = 0;
  std::string name;
};
struct UnderWay {
  std::vector<Operation> operations;
  std::vector<std::string> outgoing;
  std::vector<Incoming> incoming;
  std::map<std::pair<size_t, int>, std::string> terms;  // of sums: by operation and rank
  std::shared_ptr<Point> over = std::make_shared<Point>();
};
std::vector<UnderWay>& under_way() {
  static std::vector<UnderWay> all;
  return all;
}

Status touch(State& state, const char* at, size_t bytes, emulator::Access access) {
  const std::string wrong = state.touch(reinterpret_cast<uintptr_t>(at), bytes, access);
  return wrong.empty() ? ok_status() : Status(fail("a message: {}", wrong));
}

DType dtype_of(int type) {
  return type == kNcclF64    ? DType::kF64
         : type == kNcclF32  ? DType::kF32
         : type == kNcclBF16 ? DType::kBF16
                             : DType::kF16;
}

// From the last rank to the first, each rounded: an order of its own.
Status sum_up(State& state, UnderWay& all, size_t number) {
  const Operation& one = all.operations[number];
  const DType type = dtype_of(one.type);
  all.terms[{number, one.comm->rank}] = std::string(one.part_for(one.comm->rank), one.bytes());
  PIPER_TRY(touch(state, one.to, one.bytes(), emulator::Access::kWrite));
  for (size_t i = 0; i < one.bytes(); i += one.size()) {
    const auto term = [&](int rank) {
      return emulator::load_number(type, all.terms[{number, rank}].data() + i);
    };
    double sum = term(one.comm->size - 1);
    for (int rank = one.comm->size - 2; rank >= 0; --rank) {
      sum = one.how == kNcclSum ? sum + term(rank) : std::max(sum, term(rank));
      emulator::store_number(type, sum, one.to + i);
      sum = emulator::load_number(type, one.to + i);
    }
    emulator::store_number(type, sum, one.to + i);
  }
  return ok_status();
}

Status take(State& state, UnderWay& all, const Incoming& each, const std::string& letter) {
  const Operation& one = all.operations[each.operation];
  const size_t head = letter.find('\n');
  const std::string said = letter.substr(0, head);
  if (said != one.says())
    return fail("rank {} brings {} where rank {} expects {}", each.from, said, one.comm->rank,
                one.says());
  if (one.kind != Operation::kReceive) {
    all.terms[{each.operation, each.from}] = letter.substr(head + 1);
    return ok_status();
  }
  PIPER_TRY(touch(state, one.to, one.bytes(), emulator::Access::kWrite));
  std::memcpy(one.to, letter.data() + head + 1, one.bytes());
  return ok_status();
}

// Puts down what each member has brought, by rank.
Status lay_out(State& state, UnderWay& all, size_t number) {
  const Operation& one = all.operations[number];
  all.terms[{number, one.comm->rank}] = std::string(one.from, one.bytes());
  const size_t members = static_cast<size_t>(one.comm->size);
  PIPER_TRY(touch(state, one.to, members * one.bytes(), emulator::Access::kWrite));
  for (int rank = 0; rank < one.comm->size; ++rank)
    std::memcpy(one.to + static_cast<size_t>(rank) * one.bytes(), all.terms[{number, rank}].data(),
                one.bytes());
  return ok_status();
}

// Whether it has come further.
Result<bool> go_on(State& state, UnderWay& all) {
  Letters& letters = Letters::get();
  const size_t left = all.incoming.size() + all.outgoing.size();
  for (size_t i = 0; i < all.incoming.size();) {
    const Incoming each = all.incoming[i];
    const auto letter = letters.read(each.name);
    if (!letter) {
      ++i;
      continue;
    }
    all.incoming.erase(all.incoming.begin() + static_cast<std::ptrdiff_t>(i));
    letters.remove(each.name);
    PIPER_TRY(take(state, all, each, *letter));
  }
  std::erase_if(all.outgoing, [&](const std::string& name) { return !letters.is_there(name); });
  const size_t now = all.incoming.size() + all.outgoing.size();
  if (now > 0) return now < left;
  for (size_t n = 0; n < all.operations.size(); ++n)
    if (all.operations[n].kind > Operation::kReceive && all.operations[n].gets())
      PIPER_TRY(all.operations[n].kind == Operation::kAllGather ? lay_out(state, all, n)
                                                                : sum_up(state, all, n));
  all.over->is_done = true;
  return true;
}

bool poll(State& state) {
  bool moved = false;
  for (UnderWay& all : under_way()) {
    Result<bool> went = go_on(state, all);
    if (!went) state.fail_work(went.error().message);
    if (!went) all.over->is_done = true;
    moved |= !went || *went;
  }
  std::erase_if(under_way(), [](const UnderWay& all) { return all.over->is_done; });
  return moved;
}

std::string letter_name(const NcclComm& comm, int from, int to, int number) {
  return fmt::format("{}.{}.{}.{}", comm.room, from, to, number);
}

// The group is at the head of its stream, and done when the point is.
Result<std::shared_ptr<Point>> begin(State& state, UnderWay all) {
  const std::shared_ptr<Point> over = all.over;
  for (size_t n = 0; n < all.operations.size(); ++n) {
    const Operation& one = all.operations[n];
    NcclComm& comm = *one.comm;
    for (int rank = 0; rank < comm.size; ++rank) {
      if (one.gives_to(rank)) {
        PIPER_TRY(touch(state, one.part_for(rank), one.bytes(), emulator::Access::kRead));
        all.outgoing.push_back(letter_name(comm, comm.rank, rank, comm.sent[rank]++));
        Letters::get().put(all.outgoing.back(),
                           one.says() + "\n" + std::string(one.part_for(rank), one.bytes()));
      }
      if (one.takes_from(rank))
        all.incoming.push_back({n, rank, letter_name(comm, rank, comm.rank, comm.awaited[rank]++)});
    }
  }
  under_way().push_back(std::move(all));
  return over;
}

int queue_all(State& state, std::vector<Operation> operations) {
  for (Operation& one : operations) one.in_graph = one.stream->capture != nullptr;
  state.poll = poll;
  const auto start = [&state, operations] {
    return begin(state, UnderWay{.operations = operations});
  };
  const int code =
      state.communicate("ncclGroupEnd", operations[0].comm, operations[0].stream, start);
  return code == kOk ? kNcclOk : kNcclInvalid;
}

// ---- What members do before their first call of a kind
// -------------------------------------------

bool sums_connect_late() {
  static const bool is_late = variable("NCCL_RUNTIME_CONNECT", 1) != 0;
  return is_late;
}

std::string way_name(const NcclComm& comm, const std::string& way) {
  return fmt::format("{}.way.{}", comm.room, way);
}

// What must be set up before an operation: a way of the own rank, and of the other members those
// that are set up with it.
struct Way {
  std::string own;
  std::vector<std::string> others;
};
std::optional<Way> way_of(const Operation& one) {
  const int rank = one.comm->rank;
  switch (one.kind) {
    case Operation::kSend:
      return Way{fmt::format("send {} {}", rank, one.peer),
                 {fmt::format("receive {} {}", rank, one.peer)}};
    case Operation::kReceive:
      return Way{fmt::format("receive {} {}", one.peer, rank),
                 {fmt::format("send {} {}", one.peer, rank)}};
    default:
      break;
  }
  if (!sums_connect_late()) return std::nullopt;
  constexpr size_t kMostOfTree = 1024;  // bytes: larger sums take other ways
  const auto way = [&](int member) {
    return fmt::format("sum {} {} {}", static_cast<int>(one.kind), one.bytes() > kMostOfTree,
                       member);
  };
  Way made{way(rank), {}};
  for (int member = 0; member < one.comm->size; ++member) made.others.push_back(way(member));
  return made;
}

std::vector<Way> closed_ways(const NcclComm& comm, const std::vector<Operation>& operations) {
  std::vector<Way> closed;
  for (const Operation& one : operations)
    if (auto way = way_of(one); way && !comm.connected.contains(way->own))
      closed.push_back(*std::move(way));
  return closed;
}
void show_ways(const NcclComm& comm, const std::vector<Operation>& operations) {
  for (const Way& way : closed_ways(comm, operations))
    Letters::get().put(way_name(comm, way.own), "");
}
// Whether all of the group's ways are open.
bool connect(NcclComm& comm, const std::vector<Operation>& operations) {
  const std::vector<Way> closed = closed_ways(comm, operations);
  for (const Way& way : closed)
    for (const std::string& other : way.others)
      if (!Letters::get().is_there(way_name(comm, other))) return false;
  for (const Way& way : closed) comm.connected.insert(way.own);
  return true;
}

int connect_and_queue(State& state, NcclComm& comm, const std::vector<Operation>& operations) {
  const bool is_captured = operations[0].stream->capture != nullptr;
  if (is_captured && !closed_ways(comm, operations).empty()) {
    state.misuse("ncclGroupEnd", "a communicator's first call is captured");
    return kNcclInvalid;
  }
  return connect(comm, operations) ? queue_all(state, operations)
                                   : static_cast<int>(kNcclInProgress);
}

// What an operation reads and writes; an empty one: nothing.
struct Touched {
  const char* at = nullptr;
  size_t bytes = 0;
  bool meets(const Touched& other) const {
    return bytes > 0 && other.bytes > 0 && at < other.at + other.bytes && other.at < at + bytes;
  }
};
Touched read_by(const Operation& one) {
  const size_t parts =
      one.kind == Operation::kReduceScatter ? static_cast<size_t>(one.comm->size) : 1;
  return one.kind == Operation::kReceive ? Touched() : Touched{one.from, parts * one.bytes()};
}
Touched written_by(const Operation& one) {
  const size_t parts = one.kind == Operation::kAllGather ? static_cast<size_t>(one.comm->size) : 1;
  return one.gets() ? Touched{one.to, parts * one.bytes()} : Touched();
}
// Returns whether the operation is in place, as NCCL defines it: a gather reads the rank's own part
// of what it writes, and a scatter writes the rank's own part of what it reads.
bool is_in_place(const Operation& one) {
  const size_t own = static_cast<size_t>(one.comm->rank) * one.bytes();
  return one.kind == Operation::kAllGather       ? one.from == one.to + own
         : one.kind == Operation::kReduceScatter ? one.to == one.from + own
                                                 : one.from == one.to;
}
// Operations of a group run in no order.
void check_memory(State& state, const std::vector<Operation>& operations) {
  for (size_t i = 0; i < operations.size(); ++i) {
    const Touched written = written_by(operations[i]);
    if (written.meets(read_by(operations[i])) && !is_in_place(operations[i]))
      state.misuse("ncclGroupEnd", "an operation writes over what it reads");
    for (size_t k = 0; k < operations.size(); ++k)
      if (k != i && (written.meets(read_by(operations[k])) ||
                     (k > i && written.meets(written_by(operations[k])))))
        state.misuse("ncclGroupEnd",
                     "an operation writes where another one of its group reads or writes");
  }
}

// Communicators do not block: what is called is queued while somebody asks whether it is.
int queue_group(State& state) {
  if (group.empty()) return kNcclOk;
  NcclComm* const comm = group[0].comm;
  if (comm->pending) state.misuse("ncclGroupEnd", "the communicator's last call is not done");
  check_memory(state, group);
  show_ways(*comm, group);
  comm->pending = [&state, comm, all = std::exchange(group, {})] {
    return connect_and_queue(state, *comm, all);
  };
  return kNcclInProgress;
}

int add(Call& call, Operation one) {
  if (!call.state.check(call.name, one.comm) || !call.state.check(call.name, one.stream))
    return kNcclInvalid;
  if (one.comm->is_final) call.state.misuse(call.name, "the communicator is finalized");
  if (one.comm->stream && one.comm->stream != one.stream)
    call.state.misuse(call.name, "a communicator on two streams");
  one.comm->stream = one.stream;
  const bool is_sum = one.kind > Operation::kReceive;
  const bool adds =
      one.type == kNcclF64 || one.type == kNcclF32 || one.type == kNcclBF16 || one.type == kNcclF16;
  if ((is_sum && !adds && one.kind != Operation::kAllGather) || one.peer >= one.comm->size ||
      (!is_sum && (one.peer < 0 || one.peer == one.comm->rank)))
    return kNcclInvalid;
  group.push_back(one);
  return depth > 0 ? kNcclOk : queue_group(call.state);
}
Operation sum_of(Operation::Kind kind, const void* from, void* to, size_t count, int type, int how,
                 NcclComm* comm, CuStream* stream) {
  return {kind,  static_cast<const char*>(from), static_cast<char*>(to), count, type, how, -1, comm,
          stream};
}

// ---- What all members come to together ----------------------------------------------------------

std::string meeting(const NcclComm& comm, size_t number, int rank) {
  return fmt::format("{}.all.{}.{}", comm.room, number, rank);
}
void come_together(NcclComm& comm, const std::string& says) {
  Letters::get().put(meeting(comm, comm.brought.size(), comm.rank), says);
  comm.brought.push_back(says);
}
// Whether all have come to all; what they say of it must be the same.
bool are_all_there(State& state, const NcclComm& comm) {
  for (size_t n = 0; n < comm.brought.size(); ++n)
    for (int rank = 0; rank < comm.size; ++rank) {
      const auto said = Letters::get().read(meeting(comm, n, rank));
      if (!said) return false;
      if (*said != comm.brought[n])
        state.misuse("a communicator", fmt::format("rank {} says {}, rank {} says {}", rank, *said,
                                                   comm.rank, comm.brought[n]));
    }
  return true;
}

// Who leaves last takes all letters along: who is left and has ended will not.
std::string here(const NcclComm& comm, int rank) {
  return fmt::format("{}.here.{}", comm.room, rank);
}
void leave(Call& call, NcclComm& comm) {
  call.state.end(call.name, &comm);
  Letters& letters = Letters::get();
  std::erase_if(under_way(), [](const UnderWay& all) { return all.over->is_done; });
  letters.remove(here(comm, comm.rank));
  for (int rank = 0; rank < comm.size; ++rank)
    if (const auto process = letters.read(here(comm, rank)))
      if (kill(std::atoi(process->c_str()), 0) == 0) return;
  for (const std::string& name : letters.names(comm.room + ".")) letters.remove(name);
}

// Whether there was any.
bool forget_all(State& state, const NcclComm* comm) {
  return std::erase_if(state.registered, [&](NcclWindow* each) {
           if (each->comm == comm) each->is_alive = false;
           return each->comm == comm;
         }) > 0;
}

// What is under way of it ends at once. Then the library waits for the streams on which its
// operations stand, behind whatever else stands there.
void begin_abort(NcclComm& comm) {
  comm.is_aborted = true;
  comm.pending = nullptr;
  for (const std::shared_ptr<Point>& over : comm.under_way) over->is_done = true;
  std::erase_if(under_way(), [](const UnderWay& all) { return all.over->is_done; });
}
void end_abort(Call& call, NcclComm& comm) {
  State& state = call.state;
  state.run_until([&] { return comm.expected.empty() || state.failure() != kOk; });
  forget_all(state, &comm);
  leave(call, comm);
}
thread_local std::vector<NcclComm*> aborted;  // by the group that is open

// What the environment says takes the place of what the caller does; what is empty says nothing.
void check_environment(Call& call, const NcclConfig& config) {
  constexpr int kNothing = NcclConfig::kUndefined;
  for (const auto& [name, said] : {std::pair("NCCL_COMM_BLOCKING", config.blocking),
                                   {"NCCL_CGA_CLUSTER_SIZE", config.cluster},
                                   {"NCCL_MIN_CTAS", config.least_blocks},
                                   {"NCCL_MIN_NCHANNELS", config.least_blocks},
                                   {"NCCL_MAX_CTAS", config.most_blocks},
                                   {"NCCL_LAUNCH_ORDER_IMPLICIT", 0}}) {
    const char* const text = std::getenv(name);
    if (text && *text && std::atoi(text) != said)
      call.state.misuse(call.name,
                        fmt::format("{}={} takes the place of {}", name, text,
                                    said == kNothing ? "nothing" : std::to_string(said)));
  }
}

NcclWindow* registered(Call& call, NcclComm* comm, void* at, size_t bytes, bool is_window) {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  const Range* range = call.state.range_of(begin);
  const uintptr_t first = range ? std::prev(call.state.memory.upper_bound(begin))->first : 0;
  if (!range || !range->is_mapped || begin - first + bytes > range->bytes || begin % 4096 != 0) {
    call.state.misuse(call.name, "it is no part of mapped memory that begins at a page");
    return nullptr;
  }
  NcclWindow* made = call.state.make<NcclWindow>();
  made->comm = comm;
  made->at = begin;
  made->bytes = bytes;
  made->is_window = is_window;
  call.state.registered.push_back(made);
  return made;
}
int forget(Call& call, NcclComm* comm, NcclWindow* window, bool is_window) {
  if (!call.state.check(call.name, comm) || !call.state.check(call.name, window))
    return kNcclInvalid;
  if (window->comm != comm || window->is_window != is_window)
    call.state.misuse(call.name, "it was registered otherwise");
  window->is_alive = false;
  std::erase(call.state.registered, window);
  return call.code;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = static_cast<int>(variable("FAKE_NCCL_VERSION", 22809));
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
  fmt::format_to_n(id->bytes, sizeof id->bytes - 1, "room-{}-{}", getpid(), made++);
  return kNcclOk;
}
int ncclCommInitRankConfig(NcclComm** comm, int size, NcclId id, int rank, NcclConfig* config) {
  FAKE_CALL(ncclCommInitRankConfig);
  FAKE_CONTEXT();
  FAKE_NO_CAPTURE();
  check_environment(call, *config);
  const bool has_limits = config->most_blocks != NcclConfig::kUndefined;
  if (config->magic != 0xcafebeef || config->size < sizeof(NcclConfig) || rank < 0 ||
      rank >= size || (has_limits && (config->most_blocks < 1 || config->most_blocks > 64)) ||
      (config->least_blocks != NcclConfig::kUndefined &&
       (!has_limits || config->least_blocks > config->most_blocks)) ||
      (config->cluster != NcclConfig::kUndefined && (config->cluster < 0 || config->cluster > 8)) ||
      !config->name)
    return kNcclInvalid;
  // The blocks of a cluster wait for room for all of them, which the limits above do not count.
  if (config->cluster > 1 || config->cluster == NcclConfig::kUndefined)
    call.state.misuse(call.name, "blocks of a communicator begin in clusters");
  NcclComm made;
  made.room = id.bytes;
  if (Letters::get().is_there(here(made, rank))) return kNcclInvalid;
  *comm = call.state.make<NcclComm>();
  (*comm)->room = id.bytes;
  (*comm)->size = size;
  (*comm)->rank = rank;
  (*comm)->context = current_context();
  Letters::get().put(here(**comm, rank), std::to_string(getpid()));
  come_together(**comm, fmt::format("{} of {}, {} to {} blocks, policy {}", config->name, size,
                                    config->least_blocks, config->most_blocks, config->policy));
  call.state.communicates |= size > 1;
  return config->blocking == 0 ? static_cast<int>(kNcclInProgress) : kNcclOk;
}
int ncclCommGetAsyncError(NcclComm* comm, int* state) {
  FAKE_CALL(ncclCommGetAsyncError);
  FAKE_CHECK(comm);
  if (comm->pending && call.state.random() % 2 == 0) {
    *state = kNcclInProgress;
    return kNcclOk;
  }
  if (comm->pending) {
    *state = comm->pending();
    if (*state != kNcclInProgress) comm->pending = nullptr;
    return kNcclOk;
  }
  *state = are_all_there(call.state, *comm) ? kNcclOk : static_cast<int>(kNcclInProgress);
  return kNcclOk;
}
int ncclCommFinalize(NcclComm* comm) {
  FAKE_CALL(ncclCommFinalize);
  FAKE_CHECK(comm);
  if (std::exchange(comm->is_final, true)) call.state.misuse(call.name, "it was called before");
  return kNcclOk;
}
int ncclCommDestroy(NcclComm* comm) {
  FAKE_RELEASE(ncclCommDestroy);
  FAKE_CHECK(comm);
  if (forget_all(call.state, comm))
    call.state.misuse(call.name, "memory is still registered with it");
  if (!comm->is_final) call.state.misuse(call.name, "the communicator is not finalized");
  leave(call, *comm);
  return call.code;
}
int ncclCommAbort(NcclComm* comm) {
  FAKE_RELEASE(ncclCommAbort);
  FAKE_CHECK(comm);
  begin_abort(*comm);
  if (depth > 0)
    aborted.push_back(comm);
  else
    end_abort(call, *comm);
  return call.code;
}
int ncclCommRegister(NcclComm* comm, void* at, size_t bytes, void** made) {
  FAKE_CALL(ncclCommRegister);
  FAKE_CHECK(comm);
  FAKE_NO_CAPTURE();
  *made = registered(call, comm, at, bytes, false);
  return *made ? kNcclOk : kNcclInvalid;
}
int ncclCommDeregister(NcclComm* comm, void* made) {
  FAKE_RELEASE(ncclCommDeregister);
  return forget(call, comm, static_cast<NcclWindow*>(made), false);
}
int ncclCommWindowRegister(NcclComm* comm, void* at, size_t bytes, NcclWindow** made, int flags) {
  FAKE_CALL(ncclCommWindowRegister);
  FAKE_CHECK(comm);
  FAKE_NO_CAPTURE();
  *made = registered(call, comm, at, bytes, true);
  if (!*made) return kNcclInvalid;
  come_together(*comm, fmt::format("a window of {} bytes, flags {}", bytes, flags));
  return kNcclInProgress;
}
int ncclCommWindowDeregister(NcclComm* comm, NcclWindow* window) {
  FAKE_RELEASE(ncclCommWindowDeregister);
  return forget(call, comm, window, true);
}
int ncclGroupStart() {
  ++depth;
  return kNcclOk;
}
int ncclGroupEnd() {
  FAKE_RELEASE(ncclGroupEnd);
  if (--depth > 0) return call.code;
  for (NcclComm* comm : std::exchange(aborted, {})) end_abort(call, *comm);
  if (call.code == kOk) return queue_group(call.state);
  group.clear();
  return call.code;
}
int ncclSend(const void* data, size_t count, int type, int peer, NcclComm* comm, CuStream* stream) {
  FAKE_CALL(ncclSend);
  return add(call, {Operation::kSend, static_cast<const char*>(data), nullptr, count, type, 0, peer,
                    comm, stream});
}
int ncclRecv(void* data, size_t count, int type, int peer, NcclComm* comm, CuStream* stream) {
  FAKE_CALL(ncclRecv);
  return add(call, {Operation::kReceive, nullptr, static_cast<char*>(data), count, type, 0, peer,
                    comm, stream});
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int how, NcclComm* comm,
                  CuStream* stream) {
  FAKE_CALL(ncclAllReduce);
  return add(call, sum_of(Operation::kAllReduce, from, to, count, type, how, comm, stream));
}
int ncclReduceScatter(const void* from, void* to, size_t each, int type, int how, NcclComm* comm,
                      CuStream* stream) {
  FAKE_CALL(ncclReduceScatter);
  return add(call, sum_of(Operation::kReduceScatter, from, to, each, type, how, comm, stream));
}
int ncclAllGather(const void* from, void* to, size_t each, int type, NcclComm* comm,
                  CuStream* stream) {
  FAKE_CALL(ncclAllGather);
  return add(call, sum_of(Operation::kAllGather, from, to, each, type, 0, comm, stream));
}
int ncclReduce(const void* from, void* to, size_t count, int type, int how, int root,
               NcclComm* comm, CuStream* stream) {
  FAKE_CALL(ncclReduce);
  Operation one = sum_of(Operation::kReduce, from, to, count, type, how, comm, stream);
  one.peer = root;
  return add(call, one);
}

}  // extern "C"
