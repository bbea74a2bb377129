// A role program: what all ranks that run the same execute, with its buffers, compute programs,
// streams, groups and instructions (instruction.h).
//
// All ids are positions in the vectors of the same RoleProgram.
#pragma once

#include "piper/plan/instruction.h"

namespace piper {

// ---- Programs: what one compute instruction runs ------------------------------------------------

// Describes one op on values of its program. `op` is a name of the closed op set; backends refuse
// what they lack at load.
struct ProgramOp {
  std::string op;
  Attrs attrs;
  std::vector<int32_t> inputs;  // value ids; -1 for an absent optional input
  std::vector<int32_t> outputs;
  bool operator==(const ProgramOp&) const = default;
};

// Says what a program was made of: stated by the compiler for tools that explain or compare plans;
// nothing is run by it.
struct Work {
  int64_t ops = 0;
  int64_t recomputed = 0;  // of these: forward ops that run again for a backward pass
  // Matrix products by the type of what they make, ascending.
  std::vector<std::pair<DType, int64_t>> products;
  bool operator==(const Work&) const = default;
};

// Holds a chunk program, shared by content: equal layers have one. Its ops are what the model
// means, not how a device runs them: of 16-bit floats an op computes in f32, and rounds each result
// once. Where values are, which ops run as one and in which types is the backend's. Values [0,
// num_args) are bound by each instruction, the others live while the program runs.
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
// A dim is `outer` stretches, of each of which a rank has its block: as many equal ones as the mesh
// axis has ranks, or of so many elements, zero past the end. Axis -1: see trained_parts.h.
struct TensorCut {
  int32_t axis = 0, dim = 0;
  int64_t outer = 1, block = 0;  // 0: equal blocks
  bool operator==(const TensorCut&) const = default;
};
// Describes the tensor of a buffer: one for the buffers of all microbatches.
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
  // [k × own size, …) as member k of that group, zeros past the end. Neither: all of it.
  std::vector<TensorCut> cuts;
  int32_t part_of = -1;
  std::vector<int64_t> whole;
  // kState: of that parameter, copy or older version (a buffer), the version one update older;
  // -1: none.
  int32_t previous_of = -1;
  // The parameter (a buffer: whole, or its own part) that this is, rounded to 16 bits; -1: none.
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

// ---- Streams, groups and communicators ----------------------------------------------------------

struct Stream {
  std::string name;
  int32_t priority = 0;  // higher goes first; a backend may not have priorities
  // Multiprocessors that its work may take, as far as a backend can say so; 0: any.
  int64_t sms = 0;
  bool operator==(const Stream&) const = default;
};

// Names the ranks that communicate: all whose coordinates equal its own except on these axes, in
// the order of the axes, the last one fastest: that of ranks, but where flat runs have another one.
struct Group {
  std::string name;           // "dp"
  std::vector<int32_t> axes;  // mesh axis indices
  bool operator==(const Group&) const = default;
};

// Names ranks that open a connection of their own before the first step: the members of a group,
// or, of an ordered pair, the sender and the receiver. All roles list the same, in one order.
struct Communicator {
  std::vector<int32_t> axes;  // of a group: mesh axes
  // Of a pair: the coordinates of both, or -1 on the same axes of both, along which each rank has
  // its own.
  std::vector<int32_t> from, to;
  // On which its operations are: one of a group; of a pair the sender's, the receiver's.
  std::vector<int32_t> streams;
  int64_t sms = 0;  // multiprocessors that it may take, as far as a backend can say so; 0: any
  bool is_pair() const { return !from.empty(); }
  bool operator==(const Communicator&) const = default;
};

// Names a result of a step, which the executor reads after the body.
struct Report {
  std::string name;    // "loss", "grad_norm", "learning_rate"
  int32_t buffer = 0;  // a scalar of any float type
  bool operator==(const Report&) const = default;
};

struct DataInput {
  std::string name;
  TensorType type;        // of the whole batch
  int32_t batch_dim = 0;  // -1: not cut into samples; every read takes all of it
  // Integers must be in [low, high] when low <= high: vocabulary, labels.
  int64_t low = 0, high = 0;
  int64_t ignore = INT64_MIN;  // one further legal value (ignore_index)
  // Where elements of a sample index different tables, four numbers for each run of them, in order:
  // how many they are, their low, high and ignore. Those above are then what all have in common.
  std::vector<int64_t> ranges = {};
  // Of inputs that share one of the data: its name, empty where it is `name`; and of how many equal
  // runs of its samples this one reads which.
  std::string data = {};
  int64_t share = 0, shares = 1;
  const std::string& data_name() const { return data.empty() ? name : data; }
  bool operator==(const DataInput&) const = default;
};

// Is a step of its own, of an outer optimizer of some parameters, at the end of each step t,
// counted from 1, with t % every = offset. It reads no inputs and reports nothing. All roles have
// as many, at the same steps; one that holds none of the parameters has no instructions.
struct OuterUpdate {
  int64_t every = 0, offset = 0;
  std::vector<Instruction> instructions;
  bool operator==(const OuterUpdate&) const = default;
};

using Mesh = std::vector<std::pair<std::string, int64_t>>;  // axes and sizes, row-major ranks

// Holds what all ranks of one role execute. `prologue` runs once, `body` once a step, `epilogue`
// once at the end. A section begins when all of the one before is complete and what that sent has
// been received.
struct RoleProgram {
  Mesh mesh;
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
  // The forward pass alone, of one batch, which writes no state: it may run wherever a step may
  // begin that no other overlaps with. Empty: the plan cannot evaluate.
  std::vector<Instruction> evaluation;
  std::vector<OuterUpdate> outer_updates;
  std::vector<Report> reports;
  std::vector<Report> evaluation_reports;  // "loss" and, where it is no mean over samples, "weight"
  // Above 0: steps overlap, see windows.h. A body finishes one step and goes on with so many after
  // it. The prologue only goes on with these, the epilogue without the farthest. What a section
  // sends is received in the same section of the other rank.
  int32_t steps_ahead = 0;
  int64_t batch = 0;        // samples of the global batch, or of each share of it
  int64_t arena_bytes = 0;  // greatest buffer end on the device
  int64_t host_bytes = 0;   // greatest buffer end on the host
  // Beside the host's arena: what it brings to a device that works by itself, of two sections.
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
  // Return all sections, those that are empty, too.
  std::vector<const std::vector<Instruction>*> sections() const;
  std::vector<std::vector<Instruction>*> sections();
  int64_t samples() const;  // of a step, over all shares
  const Tensor& tensor(const Buffer& buffer) const {
    return tensors[static_cast<size_t>(buffer.tensor)];
  }
  const Tensor& tensor(int32_t buffer) const {
    return tensor(buffers[static_cast<size_t>(buffer)]);
  }
  Tensor& tensor(int32_t buffer) {
    return tensors[static_cast<size_t>(buffers[static_cast<size_t>(buffer)].tensor)];
  }
  // Returns what a version or copy is of, or the tensor itself: it starts with the same values.
  const Tensor& original(const Tensor& tensor) const;
  // Returns what an older version is of, or the tensor itself; and its age in updates.
  const Tensor& newest(const Tensor& tensor) const;
  int32_t age(const Tensor& tensor) const;
  std::string name(const Buffer& buffer) const;
  std::string name(int32_t buffer) const { return name(buffers[static_cast<size_t>(buffer)]); }
  int32_t add_buffer(Tensor tensor, int32_t micro = -1);  // with a tensor of its own
  // Returns the device's memory that the plan states: the arena, and what the target takes besides.
  int64_t peak_bytes() const;
  bool operator==(const RoleProgram&) const = default;
};

int64_t ranks_of(const Mesh& mesh);
// These return the coordinates of a rank in a row-major mesh, and the rank at coordinates.
std::vector<int64_t> coordinates_of(const Mesh& mesh, int64_t rank);
int64_t rank_of(const Mesh& mesh, const std::vector<int64_t>& coordinates);
// Returns the ranks of `group` as seen from `coordinates`, in its order.
std::vector<int64_t> group_ranks(const RoleProgram& role, const Group& group,
                                 const std::vector<int64_t>& coordinates);
// Returns where the rank at `coordinates` is among them.
int64_t group_position(const RoleProgram& role, const Group& group,
                       const std::vector<int64_t>& coordinates);
// Returns the rank that `peer` (Instruction::peer) names, seen from `coordinates`.
int64_t peer_rank(const RoleProgram& role, const std::vector<int32_t>& peer,
                  const std::vector<int64_t>& coordinates);

}  // namespace piper
