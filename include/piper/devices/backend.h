// What executes programs: one small interface, implemented by the rooms cpu (vectorised loops),
// cuda (NVIDIA's devices) and null (records, runs nothing), and for tests by tests/support/sim.h
// (the loops of cpu, queued, in any order that is legal).
//
// A backend belongs to one rank and is used from that rank's thread; copy, where nothing is queued,
// from a second one, too. load, bind, add_stream and add_event may allocate; launch, copy, fill,
// record and wait may not, take no lock (the threads of a rank meet at the end of an op), and do
// not fail: all that can be wrong is found at load and bind, or said by finish.
#pragma once

#include "piper/devices/fabric.h"
#include "piper/plan/bundle.h"

namespace piper {

// Says where memory is: on the device, or on the host, where both sides reach it.
enum class Space : uint8_t { kDevice, kHost };

// Describes a run of bytes that is taken many times, by nested loops around it.
struct StridedMove {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::vector<Exchange::Loop> loops;  // the outermost first; at most kMostLoops
  int64_t run = 0;                    // bytes
  static constexpr size_t kMostLoops = 16;
};

struct Taken {
  int64_t device = 0, host = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Returns whether it runs plans that are made for this kind of device.
  virtual bool runs(std::string_view target) const { return target == name(); }
  // Returns whether it takes no more memory than such plans state.
  virtual bool keeps_within(std::string_view target) const { return target == name(); }
  // Returns what it runs in place of a plan's instructions, with the same results: it may have more
  // instructions, with buffers of their own after those of the arena.
  virtual RoleProgram prepare(RoleProgram role) const { return role; }
  // Returns whether the host reads and writes memory of kDevice as its own.
  virtual bool shares_memory() const { return true; }
  // Returns what it runs on, as its vendor names it.
  virtual std::string device() const { return std::string(name()); }
  // So much of the device is all that will be allocated: it may be taken at once.
  virtual Status reserve(int64_t /*bytes*/) { return ok_status(); }
  // Returns what it has taken so far, in bytes: by allocate and for itself, whole pages where it
  // takes such.
  virtual Taken taken() const { return {}; }
  // Returns the bytes that the driver reports as free on the device; nothing if the backend has no
  // memory of its own.
  virtual std::optional<int64_t> free_bytes() const { return std::nullopt; }
  // Returns one block for buffers or workspace: zeroed, 256-byte aligned, freed with the backend.
  virtual Result<std::byte*> allocate(int64_t bytes, Space space = Space::kDevice) = 0;
  // Prepares a program: joins ops, picks kernels, allocates what they prepare. The error names the
  // op it lacks.
  virtual Result<int32_t> load(const Program& program) = 0;
  // Loads several programs, which may be prepared at the same time.
  virtual Result<std::vector<int32_t>> load_all(std::span<const Program> programs) {
    std::vector<int32_t> loaded;
    for (const Program& program : programs) {
      PIPER_ASSIGN(loaded.emplace_back(), load(program));
    }
    return loaded;
  }
  // Returns what a loaded program takes for its own values while it runs.
  virtual int64_t workspace_bytes(int32_t program) const = 0;
  // Fixes the arguments of one instruction. The pointers stay valid as long as the backend.
  virtual Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                               std::byte* workspace) = 0;
  // Runs a binding, in order with what was queued on the stream before.
  virtual void launch(int32_t binding, int32_t stream = 0) = 0;
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes, int32_t stream = 0) = 0;
  // Runs do not overlap others. As many copies, unless the backend has something faster.
  virtual void move(const StridedMove& move, int32_t stream = 0);
  // Every element of `type` at `to` becomes `value`.
  virtual void fill(std::byte* to, const TensorType& type, double value, int32_t stream = 0) = 0;

  // ---- Queues -----------------------------------------------------------------------------------
  // Returns whether launch, copy and fill queue their work and return before it is done. If not,
  // there is one stream, and nothing ever waits.
  virtual bool is_asynchronous() const { return false; }
  // Returns a queue beside stream 0, as a plan's stream of the same kind asks for it.
  virtual Result<int32_t> add_stream(const Stream&) { return 0; }
  virtual Result<int32_t> add_event() { return 0; }
  // The event is what has been queued on the stream so far, until it is recorded again.
  virtual void record(int32_t /*event*/, int32_t /*stream*/) {}
  // Lets what is queued on the stream from here on begin when the event, as last recorded, is
  // complete.
  virtual void wait(int32_t /*event*/, int32_t /*stream*/) {}
  // Does the same for an event of another rank of this process, whose backend is of the same kind;
  // its host has recorded it.
  virtual void wait_for(const Backend& /*other*/, int32_t /*event*/, int32_t /*stream*/) {}
  // Prepares copies from memory of another rank of this process, whose backend is of the same kind.
  virtual Status meet(const Backend& /*other*/) { return ok_status(); }
  // Copies like copy(), from memory of such a rank.
  virtual void copy_from(const Backend& /*other*/, std::byte* to, const std::byte* from,
                         int64_t bytes, int32_t stream = 0) {
    copy(to, from, bytes, stream);
  }
  // The host waits for it. An error is that of any work since the last call.
  virtual Status finish(int32_t /*event*/) { return ok_status(); }
  // Returns whether it need not wait; returns at once.
  virtual Result<bool> is_done(int32_t /*event*/) { return true; }
  // Returns what moves bytes between its ranks, beside what their hosts have; destroyed before the
  // backend. Null: what the hosts have does.
  virtual Result<std::unique_ptr<Fabric>> make_fabric(const FabricSource&) {
    return std::unique_ptr<Fabric>();
  }

  // ---- Times ------------------------------------------------------------------------------------
  // Returns whether it can say when something was done.
  virtual bool keeps_times() const { return false; }
  virtual Result<int32_t> add_timed_event() { return add_event(); }
  // Returns the microseconds between two timed events that have been waited for.
  virtual double microseconds(int32_t /*from*/, int32_t /*to*/) { return 0; }

  // ---- Graphs -----------------------------------------------------------------------------------
  // Returns whether what is queued between begin_capture and end_capture can be kept, to be queued
  // again as one. Nothing of it is done meanwhile. It is on the stream, and on others that
  // wait, directly or not, for an event recorded on it after begin_capture; all of them are waited
  // for by it before end_capture. Nothing of it waits for events recorded before, and nobody is
  // told of those in it.
  virtual bool can_capture() const { return false; }
  virtual Status begin_capture(int32_t /*stream*/) { return ok_status(); }
  // Error: it cannot be kept, and none of it is done. (That of begin_capture is of work before.)
  virtual Result<int32_t> end_capture(int32_t /*stream*/) { return 0; }
  virtual void launch_graph(int32_t /*graph*/, int32_t /*stream*/) {}

  // The host is about to read or write memory of kHost: for devices that check who uses what when.
  virtual void host_uses(const std::byte* /*at*/, int64_t /*bytes*/, bool /*writes*/) {}
};

// Says what a backend takes beside a plan's arenas to run it.
struct Needs {
  std::vector<int64_t> workspace_bytes;  // by stream: the most of its programs
  int64_t packed_bytes = 0;              // of buffers that prepare adds
  int64_t transport_bytes = 0;           // of fabrics, for the parts of sums that they form
  int64_t scratch_bytes = 0;             // a thread's
};
// Returns by stream the workspace that its programs take, given what each program takes.
std::vector<int64_t> workspaces_of(const RoleProgram& role, std::span<const int64_t> by_program);
// Returns whether the rank reduces with others.
bool has_groups(const RoleProgram& role);
// Returns whether the plan calls a sum fast.
bool has_fast_sums(const RoleProgram& role);

}  // namespace piper
