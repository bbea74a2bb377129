// A plan: what one rank executes, and the plan set on disk. The only contract between the compiler
// and piper-run; formats/plan.md and formats/plan.proto give the bytes. A field that is added here
// is added to its list in src/plan/bundle/fields.h, by which all of it is written, read and
// checked.
//
//   plans/manifest.json            set id, version, mesh, digests of all files, what was predicted
//   plans/rankN.plan               header of rank N: coordinates, role digest, set id
//   plans/roles/<digest>.pb        a role program: shared by all ranks that run the same
//   plans/params/init.safetensors  initial values of state and large constants, by name
//   plans/single/, plans/uncut/    the oracle's plan sets: one device; same cut, or no cut
//
// All ids below are positions in the vectors of the same RoleProgram.
#pragma once

#include <map>

#include "piper/base/base.h"

namespace piper {

inline constexpr int kPlanFormatVersion = 12;

// ---- Programs: what one compute instruction runs ------------------------------------------------

// One op on values of its program. `op` is a name of the closed op set; backends refuse what they
// lack at load.
struct ProgramOp {
  std::string op;
  Attrs attrs;
  std::vector<int32_t> inputs;  // value ids; -1 for an absent optional input
  std::vector<int32_t> outputs;
  bool operator==(const ProgramOp&) const = default;
};

// What a program was made of: stated by the compiler for whoever explains or compares plans;
// nothing is run by it.
struct Work {
  int64_t ops = 0;
  int64_t recomputed = 0;  // of these: forward ops that run again for a backward pass
  // Matrix products by the type of what they make, ascending.
  std::vector<std::pair<DType, int64_t>> products;
  bool operator==(const Work&) const = default;
};

// A chunk program, shared by content: equal layers have one. Its ops are what the model means, not
// how a device runs them: of 16-bit floats an op computes in f32, and rounds each result once.
// Where values lie, which ops run as one and in which types is the backend's. Values [0, num_args)
// are bound by each instruction, the others live while the program runs.
struct Program {
  std::string label;  // a typical use, for people: "F stage=1 h/2"
  std::vector<TensorType> values;
  int32_t num_args = 0;
  // Small constants: value id, its bytes (at most 64).
  std::vector<std::pair<int32_t, std::string>> literals;
  std::vector<ProgramOp> ops;  // in execution order
  // By argument: the program writes it (it may read it too: in-place accumulation).
  std::vector<bool> arg_written;
  std::vector<bool> arg_read;  // by argument: the program reads what was there before
  Work work;
  bool operator==(const Program&) const = default;
};

// ---- Buffers ------------------------------------------------------------------------------------

enum class BufferKind : uint8_t {
  kState,     // loaded before the first step, kept for ever
  kConstant,  // loaded before the first step, never written
  kStep,      // made and consumed inside one step
};
// A dim is `outer` equal stretches; each has as many blocks as the mesh axis has coordinates, of
// which the rank holds its own: equal ones, or of so many elements, which are zero behind the end.
struct TensorCut {
  int32_t axis = 0, dim = 0;
  int64_t outer = 1, block = 0;  // 0: equal blocks
  bool operator==(const TensorCut&) const = default;
};
// What a buffer is of: one for the buffers of all microbatches.
struct Tensor {
  std::string name;
  TensorType type;
  BufferKind kind = BufferKind::kStep;  // all but kStep have one buffer
  bool host = false;                    // in the host's arena: only copies touch it
  // kState, kConstant: name of the tensor in params/init.safetensors, which copies round; empty:
  // filled with `fill`.
  std::string init;
  double fill = 0;
  // kState: framework name, when the buffer is a trained parameter; what --save writes. kStep: the
  // parameter that is gathered here from its parts, whole.
  std::string param;
  std::vector<std::string> aliases;  // of the parameter (ties)
  // kState: what the rank holds of a tensor of shape `whole`, which `init` names: its blocks by
  // `cuts`, one after the other; then, with `part_of`, of the flat elements of these the run
  // [k × own size, …) as member k of that group, zeros behind the end. Neither: all of it.
  std::vector<TensorCut> cuts;
  int32_t part_of = -1;
  std::vector<int64_t> whole;
  // kState: the version before the last update of that parameter (a buffer); -1: none.
  int32_t previous_of = -1;
  // The parameter (a buffer: whole, or the own part) that this is, rounded to 16 bits; -1: none.
  // kState: it starts as that does, rounded, and is not saved. kStep: gathered from such parts.
  int32_t copy_of = -1;
  bool is_whole() const { return cuts.empty() && part_of < 0; }
  TensorType whole_type() const { return is_whole() ? type : TensorType{type.dtype, whole}; }
  bool operator==(const Tensor&) const = default;
};
struct Buffer {
  int32_t tensor = 0;  // index of RoleProgram::tensors
  int32_t micro = -1;  // the microbatch, which the buffer's name ends with ("h@3"); -1: none
  int64_t offset = 0;  // bytes from the arena's start, a multiple of 256
  bool operator==(const Buffer&) const = default;
};

// ---- Instructions -------------------------------------------------------------------------------

enum class InstructionKind : uint8_t {
  kCompute,    // program on args
  kInput,      // args[0] := samples of a data input, or their numbers in the global batch
  kSend,       // args to `peer`, as one message
  kRecv,       // args from `peer`
  kAllReduce,  // args, in place, as one message: `reduction` of the elements over `group`, in rank
               // order
  // Pairs (whole, own part) as one message. Parts are blocks of Instruction::dim, or equal runs of
  // the flat elements, by position in the group; behind the whole's end these are zero.
  kReduceScatter,
  kAllGather,  // pairs (own part, whole), as one message
  kAllToAll,   // pairs (own part by `dim`, own part by `to_dim`), as one message
  kRotate,     // args[1] := args[0] of the member `turn` positions before, in a circle
  kCopy,       // args[0] -> args[1]
  kOwnPart,    // pairs (whole, own part), without communication
  // args[0], i64[] or i64[n]: where the blocks of `outer` elements begin that the member of `group`
  // which is `turn` positions before has of one stretch, or of each of n that follow one another.
  kPosition,
  // (own part, whole, index): the rows of which the index names what the rank owns, from all parts;
  // others are zero. An index for each row of the whole, which is cut by `dim`.
  kDispatch,
  kCombine,  // (whole, own part, index): each row from the rank that owns what its index names
};
inline constexpr int kNumInstructionKinds = 14;
// Whether args come in pairs: read, written. An index stands behind the only pair.
bool takes_pairs(InstructionKind kind);
bool takes_index(InstructionKind kind);
bool is_collective(InstructionKind kind);
const char* to_string(InstructionKind kind);

enum class Reduction : uint8_t { kSum, kMax };

// Samples of the global batch: [first + sum over axes of coordinate × stride, + count).
struct SampleRange {
  int64_t first = 0, count = 0;
  std::vector<int64_t> stride;  // by mesh axis
  bool operator==(const SampleRange&) const = default;
};

// Gradient provenance, for the verifier: what a compute instruction's argument is declared to hold.
// "the partial gradient of parameter `param` by its use `use` over the instruction's samples". Sums
// of such values carry the multiset union. Written by the instruction that makes the contribution.
struct Contribution {
  int32_t arg = 0;           // position in args
  int32_t target = 0;        // index of RoleProgram::sum_targets
  int32_t use = 0;           // index of the use, from 0
  bool accumulates = false;  // added to what the argument held before
  bool operator==(const Contribution&) const = default;
};
// A sum over the whole step that a plan promises: a parameter's gradient, the loss, the label
// count. Its value in `buffer` must hold each (use, sample) exactly once when `consumer`
// instructions read it.
struct SumTarget {
  std::string name;  // "grad model.h.0.qkv.weight", "loss"
  int32_t uses = 1;
  bool operator==(const SumTarget&) const = default;
};
// Declares that a compute instruction reads the finished sum `target` in args[arg].
struct SumRead {
  int32_t arg = 0;
  int32_t target = 0;
  bool operator==(const SumRead&) const = default;
};
// Declares that args[arg] holds, after the instruction, the sum of what the listed args held for
// the same target.
struct SumCombine {
  int32_t arg = 0;
  std::vector<int32_t> from;
  bool operator==(const SumCombine&) const = default;
};

struct Instruction {
  InstructionKind kind = InstructionKind::kCompute;
  // 'F' 'B' 'I' (BI) 'W' (BW) 'U', '-' for communication and input: colours pictures.
  char pass = ' ';
  int32_t stream = 0;
  int32_t program = -1;       // kCompute
  std::vector<int32_t> args;  // buffer ids
  // Earlier instructions on other streams (ids) that must be complete before it starts.
  std::vector<int32_t> waits;
  // kSend, kRecv: the peer's mesh coordinates; -1 keeps the own coordinate.
  std::vector<int32_t> peer;
  int32_t group = -1;  // collectives, kOwnPart, kPosition: index of RoleProgram::groups
  Reduction reduction = Reduction::kSum;  // kAllReduce
  // Sums of kAllReduce and kReduceScatter: formed by the device's own library, in an order of its
  // own that follows from plan and topology; else, and by devices without one, in rank order.
  bool fast = false;
  // Of pairs: this dim of the whole is `outer` equal stretches, each of as many equal blocks as the
  // group has members; the part has the own block of every stretch. -1: parts are flat runs.
  int32_t dim = -1;
  int64_t outer = 1;
  // Of pairs and kPosition: in every second stretch members count from its end.
  bool mirrored = false;
  // kAllToAll: of the whole, into what its other part has blocks.
  int32_t to_dim = -1;
  int64_t to_outer = 1;
  bool to_mirrored = false;
  int32_t turn = 0;   // kRotate, kPosition
  int64_t owned = 0;  // kDispatch, kCombine: position k owns the numbers [k × owned, + owned)
  // Messages and collectives: index of RoleProgram::communicators. What one of them does, all its
  // members do in the same order.
  int32_t communicator = -1;
  // kInput: name of the data input; empty: the numbers of the samples, i64 [count].
  std::string input;
  // kInput: what it loads; kCompute: what its contributions are of, if it makes any.
  SampleRange samples;
  std::string label;               // the task, for people and errors: "F stage=1 mb=3"
  int32_t stage = -1, micro = -1;  // for pictures; -1: none
  // Of a message or collective of several microbatches, from `micro` on: how many. Each has as many
  // of the args, one after the other.
  int32_t micros = 1;
  int32_t ahead = 0;  // in a body: 1 for what belongs to the next step
  std::vector<Contribution> contributions;
  std::vector<SumCombine> combines;
  std::vector<SumRead> sum_reads;
  bool operator==(const Instruction&) const = default;
};

struct Stream {
  std::string name;
  int32_t priority = 0;  // higher goes first; a backend may not have priorities
  // Multiprocessors that its work may take, as far as a backend can say so; 0: any.
  int64_t sms = 0;
  bool operator==(const Stream&) const = default;
};

// The ranks that communicate: all whose coordinates equal the own ones except on these axes, in
// rank order.
struct Group {
  std::string name;           // "dp"
  std::vector<int32_t> axes;  // mesh axis indices
  bool operator==(const Group&) const = default;
};

// Ranks that open a connection of their own before the first step: the members of a group, or, of
// an ordered pair, who sends and who receives. All roles list the same, in one order.
struct Communicator {
  std::vector<int32_t> axes;  // of a group: mesh axes
  // Of a pair: the coordinates of both, or -1 on the same axes of both, along which each rank has
  // its own.
  std::vector<int32_t> from, to;
  // On which its operations stand: one of a group; of a pair the sender's, the receiver's.
  std::vector<int32_t> streams;
  int64_t sms = 0;  // multiprocessors that it may take, as far as a backend can say so; 0: any
  bool is_pair() const { return !from.empty(); }
  bool operator==(const Communicator&) const = default;
};

// Named results of a step, read by the executor after the body.
struct Report {
  std::string name;    // "loss", "grad_norm", "learning_rate"
  int32_t buffer = 0;  // a scalar of any float type
  bool operator==(const Report&) const = default;
};

struct DataInput {
  std::string name;
  TensorType type;        // of the whole batch
  int32_t batch_dim = 0;  // -1: not cut into samples; every read takes all of it
  // Integers must lie in [low, high] when low <= high: vocabulary, labels.
  int64_t low = 0, high = 0;
  int64_t ignore = INT64_MIN;  // one further legal value (ignore_index)
  bool operator==(const DataInput&) const = default;
};

// What all ranks of one role execute. `prologue` runs once, `body` once a step, `epilogue` once at
// the end. A section begins when all of the one before is complete and what that sent has been
// received.
struct RoleProgram {
  std::vector<std::pair<std::string, int64_t>> mesh;  // axes and sizes, row-major ranks
  std::vector<Stream> streams;
  std::vector<Group> groups;
  std::vector<Communicator> communicators;
  std::vector<Tensor> tensors;
  std::vector<Buffer> buffers;
  std::vector<Program> programs;
  std::vector<DataInput> inputs;
  std::vector<SumTarget> sum_targets;
  // Each in issue order; running it one by one is legal.
  std::vector<Instruction> prologue, body, epilogue;
  std::vector<Report> reports;
  // 1: steps overlap. The prologue begins the first step, a body finishes one and begins the next,
  // and the epilogue, instead of a body, finishes the last. What a section sends is received in the
  // same section of the other rank.
  int32_t steps_ahead = 0;
  int64_t batch = 0;        // samples of the global batch
  int64_t arena_bytes = 0;  // greatest buffer end on the device
  int64_t host_bytes = 0;   // greatest buffer end on the host
  // Of the host, beside its arena: what it brings to a device that works by itself, of two
  // sections.
  int64_t staging_bytes = 0;
  // The kind of device that the plan is made for. What that takes beside the arenas is stated, and
  // never exceeded: for the values inside programs, by stream; for weights in a form that its
  // products read faster; of transports, for slots; of a thread's kernels, for themselves.
  std::string target = "cpu";
  // The digest of the table by which the target chooses algorithms; "": it has none.
  std::string table;
  std::vector<int64_t> workspace_bytes;
  int64_t packed_bytes = 0;
  int64_t transport_bytes = 0;
  int64_t scratch_bytes = 0;
  const Tensor& tensor(const Buffer& buffer) const {
    return tensors[static_cast<size_t>(buffer.tensor)];
  }
  const Tensor& tensor(int32_t buffer) const {
    return tensor(buffers[static_cast<size_t>(buffer)]);
  }
  Tensor& tensor(int32_t buffer) {
    return tensors[static_cast<size_t>(buffers[static_cast<size_t>(buffer)].tensor)];
  }
  // What a version or copy is of, or the tensor itself: it starts with the same values.
  const Tensor& original(const Tensor& tensor) const {
    const Tensor& newest = tensor.previous_of < 0 ? tensor : this->tensor(tensor.previous_of);
    return newest.copy_of < 0 ? newest : this->tensor(newest.copy_of);
  }
  std::string name(const Buffer& buffer) const;
  std::string name(int32_t buffer) const { return name(buffers[static_cast<size_t>(buffer)]); }
  int32_t add_buffer(Tensor tensor, int32_t micro = -1);  // with a tensor of its own
  // The device's memory that the plan states: the arena, and what the target takes beside it.
  int64_t peak_bytes() const;
  bool operator==(const RoleProgram&) const = default;
};

struct RankHeader {
  int32_t rank = 0;
  std::vector<int64_t> coordinates;
  std::string role;  // digest of the role program file
  std::string set_id;
};

struct Manifest {
  int format_version = kPlanFormatVersion;
  // Digest over everything else in the set: equal for all ranks of one compilation.
  std::string set_id;
  std::string compiler;         // version of piperc
  std::string model, strategy;  // as named on the command line, and their digests
  std::string model_digest, strategy_digest;
  uint64_t seed = 0;  // of the data's order and of random ops
  std::vector<std::pair<std::string, int64_t>> mesh;
  // Role digests by the coordinates on `role_axes`, row-major: what all ranks run, whatever their
  // other coordinates.
  std::vector<std::string> role_axes;
  std::vector<std::string> role_of_rank;
  std::map<std::string, std::string> files;   // path in the set -> digest
  std::map<std::string, double> predictions;  // "peak_bytes", "flops_per_step", …
};

struct PlanSet {
  Manifest manifest;
  std::vector<RoleProgram> roles;
  std::vector<int32_t> role_of_rank;                             // index into roles
  std::vector<std::pair<std::string, TensorType>> tensor_types;  // of params/init.safetensors
  // Initial values; filled by the compiler, and by load_params.
  std::vector<std::pair<std::string, Bytes>> tensors;
  std::string directory;  // where it was read from
  int64_t world() const { return static_cast<int64_t>(role_of_rank.size()); }
};

// Coordinates of a rank in a row-major mesh, and back.
std::vector<int64_t> coordinates_of(const std::vector<std::pair<std::string, int64_t>>& mesh,
                                    int64_t rank);
int64_t rank_of(const std::vector<std::pair<std::string, int64_t>>& mesh,
                const std::vector<int64_t>& coordinates);
// The ranks of `group` as seen from `coordinates`, ascending.
std::vector<int64_t> group_ranks(const RoleProgram& role, const Group& group,
                                 const std::vector<int64_t>& coordinates);
// Where the rank at `coordinates` stands among them.
int64_t group_position(const RoleProgram& role, const Group& group,
                       const std::vector<int64_t>& coordinates);
// The rank that `peer` (Instruction::peer) names, seen from `coordinates`.
int64_t peer_rank(const RoleProgram& role, const std::vector<int32_t>& peer,
                  const std::vector<int64_t>& coordinates);

// What a rank holds of a tensor: its blocks; of the elements of these, one after the other, those
// from `first` on.
struct Held {
  // Block `index`, of `size` elements, of each of the `outer` equal stretches of a dim.
  struct Block {
    int32_t dim = 0;
    int64_t outer = 1, size = 1, index = 0;
    bool operator==(const Block&) const = default;
  };
  // Elements that lie side by side in the whole and in what is held; whole -1: behind the end of a
  // dim, where zeros are held.
  struct Run {
    int64_t whole = 0, held = 0, count = 0;
  };
  TensorType whole;
  std::vector<Block> blocks;  // each of what those before it left
  int64_t first = 0, count = 0;
  bool is_whole() const { return blocks.empty() && count == num_elements(whole.shape); }
  Run run_at(int64_t held) const;  // the run that begins at this element of what is held
  template <class Visit>
  void for_each_run(Visit visit) const {  // ascending in what is held
    for (int64_t at = 0; at < count;) {
      const Run run = run_at(at);
      if (run.whole >= 0) visit(run);
      at += run.count;
    }
  }
  bool operator==(const Held&) const = default;
};
Held held_of(const RoleProgram& role, const Tensor& tensor,
             const std::vector<int64_t>& coordinates);
// "f32[4,6] block 1 of 2 of dim 0, elements [0, 6)": equal where the same elements are held.
std::string to_string(const Held& held);
// What the host needs at most to stage what instructions read from it, and reports.
int64_t staging_of(const RoleProgram& role);
inline constexpr int64_t kStagedReportBytes = 64;
// Whether states or values are cut along dims: then sums within an op are formed in parts, and the
// bits are not those of one device.
bool cuts_dims(const RoleProgram& role);

struct WriteOptions {
  // Replace a directory that holds another plan set (never one that holds anything else).
  bool force = false;
};
// Writes the sets to `directory` all or nothing: built beside it, then renamed. `single` and
// `uncut` may be null.
Status write_plan_set(const PlanSet& set, const PlanSet* single, const PlanSet* uncut,
                      const std::string& directory, const WriteOptions& options);
// Reads and checks a set: versions, digests, ids in range, sizes, programs in SSA form. Nothing is
// believed.
Result<PlanSet> read_plan_set(const std::string& directory);
// The manifest of a set, and which role each rank runs, from its manifest alone: rank files add
// nothing to it. For readers that take one role at a time.
struct PlanOutline {
  std::string directory;
  Manifest manifest;
  std::vector<std::string> roles;     // digests, each once
  std::vector<int32_t> role_of_rank;  // index into roles
};
Result<PlanOutline> read_plan_outline(const std::string& directory);
Result<RoleProgram> read_role(const PlanOutline& outline, size_t role);
// Reads the header of one rank and the set it belongs to (the directory that holds the file).
struct RankPlan {
  RankHeader header;
  PlanSet set;  // with only this rank's role program read; others are empty
};
Result<RankPlan> read_rank_plan(const std::string& file);
// Maps params/init.safetensors and fills set.tensors: each is deferred, and leaves memory with the
// last copy of its made().
Status load_params(PlanSet& set);

// Structure alone: ids and sizes in range, buffers inside the arena, programs in SSA form with true
// flags, as many args as each kind needs, waits on earlier instructions. What it accepts can be
// walked without further checks. Every plan that is read passes it.
Status check_role(const RoleProgram& role);

// The canonical text form of a role program; parse_plan(print_plan(p)) prints the same.
std::string print_plan(const RoleProgram& role);
Result<RoleProgram> parse_plan(std::string_view text);

// The name of the role program's file in a set: equal for equal programs.
std::string role_digest(const RoleProgram& role);
// Content id of a program: equal for programs that print the same but for the label.
std::string program_digest(const Program& program);

}  // namespace piper
