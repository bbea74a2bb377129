// What executes programs: one small interface, implemented by cpu/ (vectorised loops), null/
// (records, runs nothing) and sim/ (the loops of cpu/, queued, in any order that is legal).
//
// A backend belongs to one rank and is used from that rank's thread; copy, where nothing is queued,
// from a second one, too. load, bind, add_stream and add_event may allocate; launch, copy, fill,
// record and wait may not, take no lock (the threads of a rank meet at the end of an op), and do
// not fail: all that can be wrong is found at load and bind, or said by finish.
#pragma once

#include <array>

#include "piper/bundle.h"

namespace piper {

// Where memory lies: on the device, or on the host, where both sides reach it.
enum class Space : uint8_t { kDevice, kHost };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Whether it runs plans that are made for this kind of device.
  virtual bool runs(std::string_view target) const { return target == name(); }
  // Whether it takes no more memory than such plans state.
  virtual bool keeps_within(std::string_view target) const { return target == name(); }
  // What it runs in place of a plan's instructions, with the same results: they may come to be
  // more, with buffers of their own behind those of the arena.
  virtual RoleProgram prepare(RoleProgram role) const { return role; }
  // One block for buffers or workspace: zeroed, 64-byte aligned, freed with the backend.
  virtual Result<std::byte*> allocate(int64_t bytes, Space space = Space::kDevice) = 0;
  // Prepares a program: joins ops, picks kernels, allocates what they prepare. The error names the
  // op it lacks.
  virtual Result<int32_t> load(const Program& program) = 0;
  // What a loaded program takes for its own values while it runs.
  virtual int64_t workspace_bytes(int32_t program) const = 0;
  // Fixes the arguments of one instruction. The pointers stay valid as long as the backend.
  virtual Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                               std::byte* workspace) = 0;
  // Runs a binding, in order with what was queued on the stream before.
  virtual void launch(int32_t binding, int32_t stream = 0) = 0;
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes, int32_t stream = 0) = 0;
  // Every element of `type` at `to` becomes `value`.
  virtual void fill(std::byte* to, const TensorType& type, double value, int32_t stream = 0) = 0;

  // ---- Queues -----------------------------------------------------------------------------------
  // Whether launch, copy and fill queue their work and return before it is done. If not, there is
  // one stream, and nothing ever waits.
  virtual bool is_asynchronous() const { return false; }
  // A queue beside stream 0, as a plan's stream of the same kind asks for it.
  virtual Result<int32_t> add_stream(const Stream&) { return 0; }
  virtual Result<int32_t> add_event() { return 0; }
  // The event is what has been queued on the stream so far, until it is recorded again.
  virtual void record(int32_t /*event*/, int32_t /*stream*/) {}
  // What is queued on the stream from here on begins when the event, as last recorded, is complete.
  virtual void wait(int32_t /*event*/, int32_t /*stream*/) {}
  // The host waits for it. An error is that of any work since the last call.
  virtual Status finish(int32_t /*event*/) { return ok_status(); }
  // The host is about to read or write memory of kHost: for devices that check who uses what when.
  virtual void host_uses(const std::byte* /*at*/, int64_t /*bytes*/, bool /*writes*/) {}
};

// What a backend takes beside a plan's arenas to run it.
struct Needs {
  std::vector<int64_t> workspace_bytes;  // by stream: the most of its programs
  int64_t packed_bytes = 0;              // of buffers that prepare adds
  int64_t scratch_bytes = 0;             // a thread's
};
std::vector<int64_t> workspaces_of(const RoleProgram& role, std::span<const int64_t> by_program);
// Of a backend that has nothing loaded; afterwards it has the programs.
Result<Needs> needs_of(Backend& backend, const RoleProgram& role);

// Pins the calling thread to a core (a number of sched_getaffinity); false where the system
// refuses.
bool pin_to_core(int core);
// What the kernels of a thread may allocate for themselves (a plan's scratch_bytes).
inline constexpr int64_t kKernelScratchBytes = int64_t{4} << 20;

// How a matrix product c[m,n] = a[m,k] · b[k,n] is cut; its bits do not depend on it. Products work
// on the part of b of `depth` of k (a multiple of 128) and `columns` (of 64), packed, and with
// `height` rows of a (of 24) before the next ones; with `pack_a` that part of a is packed, too. No
// thread may need more than kKernelScratchBytes for it.
struct ProductCut {
  int64_t depth = 256, columns = 512, height = 240;
  bool pack_a = false;
  bool operator==(const ProductCut&) const = default;
};
// What a choice of the cut looks at.
struct ProductShape {
  DType dtype = DType::kF32;
  bool trans_a = false, trans_b = false;
  int64_t rows = 0, columns = 0, depth = 0;  // m, n, k
};
// What src/backend_cpu/products.txt, whose head says its form, holds for one processor.
struct ProductTable {
  struct Condition {
    enum Of : uint8_t { kType, kTransA, kTransB, kRows, kColumns, kDepth, kLine } of = kType;
    char is = '=';  // or '<' and '>' (or equal), '%' (a multiple of)
    int64_t number = 0;
  };
  struct Rule {
    std::vector<Condition> conditions;
    ProductCut cut;
  };
  std::string entry;        // "AuthenticAMD 25 17 AVX3", "any AVX2" or "any"
  std::string digest;       // of the whole text but its comments
  std::vector<Rule> rules;  // the first one that holds counts; the last one has no conditions
};
// The entry of `processor` ("AuthenticAMD 25 17": vendor, family, model) with the instruction set
// `kernels`; where there is none, that of any processor with it, else that of any. The error names
// the line.
Result<ProductTable> read_products(std::string_view text, std::string_view processor,
                                   std::string_view kernels);
ProductCut cut_of(const ProductTable& table, const ProductShape& shape);
// Of this processor, as it was built in.
const ProductTable& cpu_products();
std::string cpu_processor();  // "unknown" where it cannot be asked

struct CpuOptions {
  // The caller's thread and threads - 1 more share the work of a launch; the bits are the same for
  // any number.
  int threads = 1;
  std::vector<int> cores;  // by thread: where it is pinned; the caller pins its own. Empty: nowhere
  const ProductTable* products = nullptr;  // outlives the backend; null: cpu_products()
  bool fuse = true;                        // false: every op on its own, with the same bits
};
struct FusedProgram;  // fuse.h
class CpuBackend : public Backend {
 public:
  using Backend::load;
  // As it is: its ops are joined, and none takes 16-bit floats whose kernel does not.
  virtual Result<int32_t> load(const FusedProgram& program) = 0;
};
std::unique_ptr<CpuBackend> make_cpu_backend(const CpuOptions& options = {});
// The program as the CPU backend runs it.
FusedProgram joined_for_cpu(const Program& program);
// What a null backend was asked to do. Its `copy` and `fill` leave memory as it is.
struct NullCounts {
  int64_t loads = 0, binds = 0, launches = 0, copies = 0, fills = 0;
};
std::unique_ptr<Backend> make_null_backend(NullCounts* counts = nullptr);

// The instruction set that this processor's kernels use ("AVX3", "AVX2", "SSE2"): processors for
// which it is the same give the same bits.
std::string_view cpu_kernels();
// Ops that the CPU backend has a kernel for: by name, sorted.
std::vector<std::string> cpu_ops();

// Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
// 3; SC 2011): what random ops draw from, see src/ops/random.cc.
using PhiloxWords = std::array<uint32_t, 4>;
PhiloxWords philox(PhiloxWords counter, uint64_t key);

// Runs one op at once on host data, on the CPU backend: constant folding and tests. An input whose
// Bytes have no data (while its type has elements) is absent.
Result<std::vector<Bytes>> evaluate_op(std::string_view op, const Attrs& attrs,
                                       std::span<const TensorType> input_types,
                                       std::span<const Bytes> inputs,
                                       std::span<const TensorType> output_types);

}  // namespace piper
