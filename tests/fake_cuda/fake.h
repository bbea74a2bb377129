// A driver, NVRTC, cuBLASLt and NCCL for tests, in one library that stands for all of them
// (PIPER_CUDA_PATH). Kernels are compiled for the host and run by the emulator (grid.h); whatever
// is queued runs when somebody waits, in an order drawn from all that are legal.
//
//     FAKE_CUDA_DEVICES=N  so many devices (2)        FAKE_CUDA_INIT=CODE   cuInit fails
//     FAKE_CUDA_SEED=N     of orders (1)              FAKE_CUDA_CHECK=1     kernels with all checks
//     FAKE_CUDA_FAIL=N     the Nth call fails, once   FAKE_CUDA_COUNT=1     says how many there
//     were, and how many of them took or gave back memory; =NAME: of functions whose names begin so
//     FAKE_NVRTC_PLAIN=1   kernels are not optimised: soon compiled, and slow
//     FAKE_CUDA_OFFERS=1   cuBLASLt has several algorithms, most of them no good (cublaslt.cc)
//     FAKE_CUDA_FAIL_FIRST=NAME  the first call of this fails
//     FAKE_CUDA_SHARED=N   bytes of shared memory that the text of each kernel declares (0)
//     FAKE_CUDA_PAGE=N     bytes of a page of the device's memory (2 MiB)
//     FAKE_CUDA_PEERS=0    no device reaches another one's memory
//     FAKE_CUDA_CAPABILITY=N  of the devices (90)   FAKE_NVRTC_ARCHS=N,N  that NVRTC knows
//     FAKE_CUDA_RDMA=N     0: no device maps memory for adapters; 2: it says so, and refuses to
//     FAKE_CUDA_FILES=N    the same for memory that is shared as a file
//     FAKE_CUDA_LIBRARIES_TAKE=N  bytes of the device, from the first product on (0)
//     FAKE_CUDA_LAZY=1     the first product of a kind waits until its device has nothing to do
//     FAKE_CUDA_STOP=NAME  the process stops where it calls this first
//     FAKE_NCCL_FOLDER=F   ranks of several processes meet there
//     FAKE_NCCL_VERSION=N  (22809)
//
// Misuse is said on stderr: handles that are no longer, calls without a context, memory that nobody
// has. At the end so is what was never destroyed, and a process that would end with 0 ends with 86
// (unless FAKE_CUDA_REPORT=0).
#pragma once

#include <api.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "grid.h"

namespace piper::fake {

using namespace piper::cuda;  // NOLINT: the names of what is called

enum Code : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinary = 209,
  kPeerUnsupported = 217,
  kInvalidPtx = 218,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kPeerEnabled = 704,
  kContextDestroyed = 709,
  kLaunchFailed = 719,
  kUnsupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
  kInvalidResource = 915,
  kUnknown = 999,
};

// What a handle stands for. It is kept when it has been destroyed, so that its later uses are
// known.
struct Object {
  virtual ~Object() = default;
  virtual const char* kind() const = 0;
  bool is_alive = true;
};

// Work, once it is done.
struct Point {
  bool is_done = false;
  double milliseconds = 0;
};
using Work = std::function<Status()>;
// Work that is done when the point is that it gives; null: when it has begun.
using Begin = std::function<Result<std::shared_ptr<Point>>()>;
struct Queued {
  Begin begin;  // none: it only waits, or is waited for
  std::shared_ptr<Point> after, done;
};

}  // namespace piper::fake

namespace piper::cuda {

struct CuContext : fake::Object {
  const char* kind() const override { return "context"; }
  int device = 0, users = 0;
  CuContext* primary = nullptr;  // of a green one; null: it is one itself
  // What is made in the one may be used in the other.
  const CuContext* root() const { return primary ? primary : this; }
};
struct CuModule : fake::Object {
  const char* kind() const override { return "module"; }
  CuContext* context = nullptr;
  std::shared_ptr<emulator::Module> kernels;
};
struct CuFunction : fake::Object {
  const char* kind() const override { return "function"; }
  CuModule* module = nullptr;
  std::string name;
  int pointers = 0;
  int64_t fixed_shared = 0;        // bytes that its text declares
  int64_t most_shared = 48 << 10;  // bytes beside these that a launch may ask for
};
// A graph under way: nodes that come after others.
struct CuGraph : fake::Object {
  const char* kind() const override { return "graph"; }
  struct Node {
    fake::Begin begin;
    std::set<size_t> after;
  };
  std::vector<Node> nodes;
  std::vector<std::pair<NcclComm*, int64_t>> calls;  // that nodes are, in order, and their numbers
  bool is_open = true, is_broken = false;
};
struct CuGraphExec : fake::Object {
  const char* kind() const override { return "executable graph"; }
  std::shared_ptr<const std::vector<CuGraph::Node>> nodes;
  std::vector<std::pair<NcclComm*, int64_t>> calls;
  int queued = 0;                         // launches that have not begun
  std::shared_ptr<fake::Point> launched;  // the last one that has; null: none
};
// Multiprocessors, from the first one on.
struct CuPart {
  unsigned first = 0, count = 0;
  bool is_split = false;  // made by a split: it is not split again
};
struct CuStream : fake::Object {
  const char* kind() const override { return "stream"; }
  CuContext* context = nullptr;
  std::deque<fake::Queued> queue;
  CuGraph* capture = nullptr;  // what is queued becomes a part of it
  bool is_origin = false;
  CuPart part{0, 132};
  std::set<size_t> last;  // nodes of the capture, after which the next one comes
};
struct CuEvent : fake::Object {
  const char* kind() const override { return "event"; }
  CuContext* context = nullptr;
  bool is_timed = false;
  std::shared_ptr<fake::Point> recorded;  // null: never
  CuGraph* capture = nullptr;             // recorded while this was captured, after these nodes
  std::set<size_t> nodes;
};
struct CuResourceDesc : fake::Object {
  CuPart part;
  const char* kind() const override { return "resource description"; }
};
struct NcclComm : fake::Object {
  const char* kind() const override { return "communicator"; }
  std::string room;  // where its ranks meet
  int size = 0, rank = 0;
  CuContext* context = nullptr;
  // Queues what was called last, as a thread of the library does; "in progress" until it could.
  std::function<int()> pending;
  std::set<std::string> connected;  // the ways that work: "send 0 1", "receive 0 1", "sum 0"
  bool is_aborted = false;          // its operations end when they begin
  bool is_final = false;            // it takes no more operations
  std::deque<int64_t> expected;     // numbers of calls that are to begin
  std::vector<std::shared_ptr<fake::Point>> under_way;  // what has begun
  CuStream* stream = nullptr;        // the one on which all of its operations stand
  std::map<int, int> sent, awaited;  // letters, by rank
  std::vector<std::string> brought;  // to what all come together, in order: what this one says
};
// Memory that a communicator knows: alone, or as all its members do.
struct NcclWindow : fake::Object {
  const char* kind() const override { return "registration with a communicator"; }
  NcclComm* comm = nullptr;
  uintptr_t at = 0;
  size_t bytes = 0;
  bool is_window = false;
};
struct CuGreenContext : fake::Object {
  const char* kind() const override { return "green context"; }
  CuContext* context = nullptr;
  CuPart part;
};

}  // namespace piper::cuda

namespace piper::fake {

struct Range {
  size_t bytes = 0;
  bool is_host = false, is_mapped = false;
  int device = 0;         // whose memory it is
  std::set<int> readers;  // devices that have access, where it is mapped
  bool is_for_rdma = false;
};

// A graph that runs.
struct Launch {
  std::shared_ptr<const std::vector<CuGraph::Node>> nodes;
  std::vector<size_t> waits;  // by node: so many nodes before it are not done
  std::vector<size_t> able;   // nodes that wait for nothing and have not begun
  std::vector<std::pair<size_t, std::shared_ptr<Point>>> under_way;
  size_t left = 0;  // nodes that are not done
  std::shared_ptr<Point> done;
  void end(size_t node);
};

class State {
 public:
  std::recursive_mutex mutex;
  bool is_ready = false;    // cuInit
  bool has_failed = false;  // a call, as was wanted: what then cannot be done is no misuse
  int64_t calls = 0;
  std::map<std::string, int64_t, std::less<>> calls_of;  // by name
  int64_t captured_calls = 0;  // that make graphs; of these the one that is to fail
  int64_t fails_captured = 0;
  std::string fails_call;                 // a call of this is to fail
  int64_t fails_call_in = 0;              // that many calls of it from now on; 0: none
  bool call_has_failed = false;           // as was wanted
  double clock = 0;                       // milliseconds that work has taken
  std::map<uintptr_t, Range> memory;      // allocations, and mappings with access
  std::set<std::pair<int, int>> peers;    // (reader, owner) of what is not mapped
  std::map<uintptr_t, size_t> addresses;  // reserved
  struct Pages {
    int file = -1;
    size_t bytes = 0;
    int device = 0;
    bool is_for_rdma = false;
  };
  std::map<CuMemory, Pages> pages;
  emulator::WatchedMemory watched;  // where kernels are checked
  std::vector<CuStream*> streams;
  const bool is_checked;
  bool communicates = false;       // several ranks have met
  bool (*poll)(State&) = nullptr;  // whether something has come that streams wait for
  std::vector<NcclWindow*> registered;
  std::mt19937_64 random;

  static State& get();

  template <class T>
  T* make() {
    T* made = new T;
    objects_.emplace_back(made);
    known_.insert(made);
    return made;
  }
  // Null, and misuse is noted, unless there is such an object, and alive.
  template <class T>
  T* check(const char* call, T* handle) {
    const bool is_known = known_.contains(handle);
    if (is_known && handle->is_alive) return handle;
    misuse(call,
           is_known ? std::string("a destroyed ") + handle->kind() : "a handle that never was");
    return nullptr;
  }
  void misuse(const char* call, const std::string& what);

  // What is wrong with touching [at, at + bytes); empty: nothing. Pageable memory of the host is
  // nobody's to check.
  std::string touch(uintptr_t at, size_t bytes, emulator::Access access);
  // What is wrong with a device touching what begins here; empty: nothing.
  std::string reach(uintptr_t at, int device) const;
  const Range* range_of(uintptr_t at) const;
  void add_range(uintptr_t at, const Range& range, const char* name);
  void drop_range(uintptr_t at);

  // Queues work; a stream under capture notes it.
  int queue(const char* call, CuStream* stream, Work work);
  int begin(const char* call, CuStream* stream, Begin work);
  // Queues what a communicator does; each begins in the order in which the host has called, and
  // graphs are queued.
  int communicate(const char* call, NcclComm* comm, CuStream* stream, Begin work);
  // Returns whether a graph is queued or runs that contains calls of this communicator.
  bool is_in_running_graph(const NcclComm* comm) const;
  // Queues a graph's calls again.
  void expect(const CuGraphExec& graph);
  std::shared_ptr<Point> launch(const CuGraphExec& graph);
  // What is under way of it ends, and its memory may go. Misuse, unless no graph has calls of it.
  void end(const char* call, NcclComm* comm);
  // Runs what is queued, in some order, until it is done. Error: some work failed, now or before.
  int run_until(const std::function<bool()>& is_done);
  bool run_one();
  void fail_work(const std::string& what);
  int failure() const { return failure_.empty() ? kOk : kLaunchFailed; }
  // Whether the calling thread captures, so that it may not call what waits or allocates.
  bool is_capturing() const;
  void set_capturing(CuGraph* graph, bool capturing);
  void break_captures();  // of the calling thread

  int64_t calls_for_memory() const;
  int report();

 private:
  State();
  std::shared_ptr<Point> start(const Begin& work);
  std::vector<std::unique_ptr<Object>> objects_;
  std::deque<Launch> launches_;
  int64_t communicated_ = 0;
  std::set<const void*> known_;
  std::map<CuGraph*, std::thread::id> capturing_;
  std::string failure_;  // of work
  int64_t misused_ = 0;
};

// The way into every call: one at a time, counted, and made to fail where that is wanted.
class Call {
 public:
  explicit Call(const char* name, bool needs_start = true);
  const char* name;
  State& state;
  int code = kOk;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};
#define FAKE_CALL(name) \
  Call call(#name);     \
  if (call.code != kOk) return call.code
// What releases does so even where it says that it failed.
#define FAKE_RELEASE(name) Call call(#name)
#define FAKE_CHECK(handle) \
  if (!call.state.check(call.name, handle)) return kInvalidHandle
// The current context of the thread; calls without one fail.
CuContext*& current_context();
#define FAKE_CONTEXT()                                      \
  if (!current_context() || !current_context()->is_alive) { \
    call.state.misuse(call.name, "no context is current");  \
    return kInvalidContext;                                 \
  }
#define FAKE_NO_CAPTURE()                                            \
  if (call.state.is_capturing()) {                                   \
    call.state.misuse(call.name, "it may not be called in capture"); \
    call.state.break_captures();                                     \
    return kCaptureUnsupported;                                      \
  }

CuContext* primary_context(State& state, int device);
int64_t variable(const char* name, int64_t otherwise);

}  // namespace piper::fake

extern "C" {
// What went wrong and what was never destroyed, on stderr; how much of it. Work is run again after
// some has failed.
int fake_cuda_report();
// Whether adapters of a network may reach this memory, as cuPointerGetAttribute says; -1: there is
// none.
int fake_cuda_is_for_rdma(uintptr_t at);
// How many multiprocessors a stream has, and which is the first.
int fake_cuda_multiprocessors(const piper::cuda::CuStream* stream, int* first);
// From now on the Nth call of this function fails, once; whether that wanted before has failed.
int fake_cuda_fail_call(const char* name, int64_t number);
int64_t fake_cuda_calls_of(const char* name);
// How many calls there were of functions whose names begin so.
int64_t fake_cuda_calls(const char* name);
// From now on the Nth call that makes a graph fails, once; how many there were before.
int64_t fake_cuda_fail_captured(int64_t number);
// Orders are drawn from here on, as FAKE_CUDA_SEED says where they begin.
void fake_cuda_seed(int64_t seed);
// What is faked has the types with which it is called.
#define FAKE_DECLARED(name, result, arguments) result name arguments;
namespace piper::fake {
PIPER_CUDA_DRIVER(FAKE_DECLARED)
PIPER_CUDA_GREEN(FAKE_DECLARED)
PIPER_NVRTC(FAKE_DECLARED)
PIPER_CUBLASLT(FAKE_DECLARED)
PIPER_CUDNN(FAKE_DECLARED)
PIPER_NCCL(FAKE_DECLARED)
PIPER_NCCL_WINDOWS(FAKE_DECLARED)
}  // namespace piper::fake
}
