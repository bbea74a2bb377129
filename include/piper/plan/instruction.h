// Instructions: what a rank does in a step, one by one. Each kind has a row in one table, which
// says how plans, strategies and graphs name it, what arguments it takes and whether it adds.
//
// Ids are positions in the vectors of the same RoleProgram (role.h).
#pragma once

#include <array>

#include "piper/base/base.h"
#include "piper/base/scaled.h"
#include "piper/plan/pass.h"

namespace piper {

enum class InstructionKind : uint8_t {
  kCompute,  // program on args
  kInput,    // args[0] := samples of a data input, or their numbers in the global batch
  kSend,     // args to `peer`, as one message
  kRecv,     // args from `peer`
  // args, in place, as one message: `reduction` of the elements over `group`, in rank order.
  kAllReduce,
  // Pairs (whole, own part), as one message. Parts are blocks of Instruction::dim, or equal runs of
  // the flat elements, by position in the group; beyond the whole's end such a run is zero.
  kReduceScatter,
  kAllGather,  // pairs (own part, whole), as one message
  kAllToAll,   // pairs (own part by `dim`, own part by `to_dim`), as one message
  kRotate,     // args[1] := args[0] of the member `turn` positions before, in a circle
  kCopy,       // args[0] -> args[1]
  kOwnPart,    // pairs (whole, own part), without communication
  // args[0], i64[] or i64[n] := where the blocks begin that a member has of a cut dim. The dim is
  // one stretch, or n, each of a block of `outer` elements for each member; the member is the one
  // `turn` positions before in `group`.
  kPosition,
  // (own part, whole, index): as experts get their tokens. The index has a number for each row of
  // the whole, which is cut by `dim`. The rank gets the rows whose number it owns, from all parts;
  // its other rows are zero.
  kDispatch,
  kCombine,  // (whole, own part, index): each row from the rank that owns what its index names
};
inline constexpr int kNumInstructionKinds = 14;

// Says what args an instruction takes. A collective's form is also that of its operands (fabric.h).
enum class ArgForm : uint8_t {
  kOwn,        // as the kind's comment says
  kPieces,     // any number; each is read and written
  kShards,     // pairs, read and written: a whole and the rank's own part, or the other way round
  kExchanges,  // pairs: own parts by two dims
  kTurns,      // a pair of equal types
  kRows,       // a pair, and an index that is read
};

// Describes one row of the table of kinds.
struct InstructionDef {
  InstructionKind kind;
  const char* word;  // in plans, strategies and labels: "all_reduce"
  ArgForm args = ArgForm::kOwn;
  // Of collectives.
  const char* noun = nullptr;  // in messages: "all-reduce"; null: it is none
  bool adds = false;           // its results are sums, or maxima, over the members
  // In the graph: the ops that become it. Null: there is none.
  const char* op = nullptr;
  const char* maximum_op = nullptr;  // the one whose `reduction` is kMax
  // Which arg of a pair is the whole that the other one is a part of; -1: neither.
  int whole = -1;
  bool within = false;  // never a task: only between the programs of one
  bool joins = false;   // several of them may travel as one message (directive `fuse`)
};
inline constexpr std::array<InstructionDef, kNumInstructionKinds> kInstructions = {{
    {InstructionKind::kCompute, "compute"},
    {InstructionKind::kInput, "input"},
    {.kind = InstructionKind::kSend, .word = "send", .joins = true},
    {.kind = InstructionKind::kRecv, .word = "recv", .joins = true},
    {.kind = InstructionKind::kAllReduce,
     .word = "all_reduce",
     .args = ArgForm::kPieces,
     .noun = "all-reduce",
     .adds = true,
     .op = "AllReduce",
     .maximum_op = "AllReduceMax",
     .joins = true},
    {.kind = InstructionKind::kReduceScatter,
     .word = "reduce_scatter",
     .args = ArgForm::kShards,
     .noun = "reduce-scatter",
     .adds = true,
     .op = "ReduceScatter",
     .whole = 0,
     .joins = true},
    {.kind = InstructionKind::kAllGather,
     .word = "all_gather",
     .args = ArgForm::kShards,
     .noun = "all-gather",
     .op = "AllGather",
     .whole = 1,
     .joins = true},
    {.kind = InstructionKind::kAllToAll,
     .word = "all_to_all",
     .args = ArgForm::kExchanges,
     .noun = "all-to-all",
     .op = "AllToAll",
     .joins = true},
    {.kind = InstructionKind::kRotate,
     .word = "rotate",
     .args = ArgForm::kTurns,
     .noun = "rotation",
     .op = "Rotate",
     .within = true},
    {InstructionKind::kCopy, "copy"},
    {.kind = InstructionKind::kOwnPart,
     .word = "own_part",
     .args = ArgForm::kShards,
     .op = "OwnBlock",
     .whole = 0},
    {.kind = InstructionKind::kPosition, .word = "position", .within = true},
    {.kind = InstructionKind::kDispatch,
     .word = "dispatch",
     .args = ArgForm::kRows,
     .noun = "dispatch",
     .op = "Dispatch",
     .whole = 1,
     .within = true},
    {.kind = InstructionKind::kCombine,
     .word = "combine",
     .args = ArgForm::kRows,
     .noun = "combine",
     .op = "Combine",
     .whole = 0,
     .within = true},
}};
// `word` by kind.
inline constexpr std::array<const char*, kNumInstructionKinds> kInstructionWords = [] {
  std::array<const char*, kNumInstructionKinds> words{};
  for (size_t i = 0; i < words.size(); ++i) words[i] = kInstructions[i].word;
  return words;
}();
// Lists of fields print and read a kind by these words.
constexpr const auto& names_of(InstructionKind) { return kInstructionWords; }
constexpr const InstructionDef& info(InstructionKind kind) {
  return kInstructions[static_cast<size_t>(kind)];
}
constexpr const char* to_string(InstructionKind kind) { return info(kind).word; }
constexpr bool is_collective(InstructionKind kind) { return info(kind).noun != nullptr; }
constexpr bool takes_index(InstructionKind kind) { return info(kind).args == ArgForm::kRows; }
// Returns whether args come in pairs: read, written. An index is after the only pair.
constexpr bool takes_pairs(InstructionKind kind) {
  return info(kind).args != ArgForm::kOwn && info(kind).args != ArgForm::kPieces;
}
// Returns whether it moves elements between its args as its group says: a collective, or a rank's
// own part of a value.
constexpr bool moves_by_group(InstructionKind kind) { return info(kind).args != ArgForm::kOwn; }
// Returns the row whose `op` or `maximum_op` this is, or whose `word`; null: there is none.
const InstructionDef* find_instruction(std::string_view op);
const InstructionDef* find_instruction_by_word(std::string_view word);

enum class Reduction : uint8_t { kSum, kMax };

// Names samples of the global batch: [first + sum over axes of coordinate × stride, + count).
struct SampleRange {
  int64_t first = 0, count = 0;
  std::vector<int64_t> stride;  // by mesh axis
  bool operator==(const SampleRange&) const = default;
};

// Declares gradient provenance, for the verifier: what a compute instruction's argument holds. "the
// partial gradient of parameter `param` by its use `use` over the instruction's samples". Sums of
// such values carry the multiset union. Written by the instruction that makes the contribution.
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
  TaskPass pass = TaskPass::kNone;  // for pictures and summaries
  int32_t stream = 0;
  int32_t program = -1;       // kCompute
  std::vector<int32_t> args;  // buffer ids
  // Earlier instructions on other streams (ids) that must be complete before it starts.
  std::vector<int32_t> waits;
  // kSend, kRecv: the peer's mesh coordinates; -1 keeps its own coordinate.
  std::vector<int32_t> peer;
  int32_t group = -1;  // collectives, kOwnPart, kPosition: index of RoleProgram::groups
  Reduction reduction = Reduction::kSum;  // kAllReduce
  // Sums of kAllReduce and kReduceScatter: formed by the device's own library, in an order of its
  // own that follows from plan and topology; else, and by devices without one, in rank order.
  bool fast = false;
  // Of pairs: this dim of the whole is `outer` equal stretches, each of as many equal blocks as the
  // group has members; the part has its own block of every stretch. -1: parts are flat runs.
  int32_t dim = -1;
  int64_t outer = 1;
  // Of pairs and kPosition: in every second stretch members count from its end.
  bool mirrored = false;
  int32_t to_dim = -1;  // kAllToAll: of the whole, into what its other part has blocks
  int64_t to_outer = 1;
  bool to_mirrored = false;
  int32_t turn = 0;   // kRotate, kPosition
  int64_t owned = 0;  // kDispatch, kCombine: position k owns the numbers [k × owned, + owned)
  int64_t first = 0, count = 0;  // of one sum, or each part of it: elements from there; 0: all
  // kAllGather and kReduceScatter of flat runs: each part, or term of it, travels in 8 bits, in
  // blocks of so many elements, and is rounded to these for all; sums of terms are not.
  Scaled scaled = Scaled::kNone;
  int64_t block = 0;
  InBlocks in_blocks() const { return {scaled, block}; }
  // Returns whether flat runs are exchanged: an arg by dim -1 is [members, n], the other [1, all].
  bool exchanges_runs() const {
    return kind == InstructionKind::kAllToAll && (dim < 0 || to_dim < 0);
  }
  // Messages and collectives: index of RoleProgram::communicators. What one of them does, all its
  // members do in the same order.
  int32_t communicator = -1;
  // kInput: name of the data input; empty: the numbers of the samples, i64 [count].
  std::string input;
  // kInput: what it loads; kCompute: what its contributions are of, if it makes any.
  SampleRange samples;
  std::string label;               // the task, for people and errors: "F stage=1 mb=3"
  int32_t stage = -1, micro = -1;  // for pictures; -1: none
  // How many microbatches, from `micro` on, it serves; each has as many of the args, in turn.
  int32_t micros = 1;
  int32_t ahead = 0;  // where steps overlap: so many steps after the one under way it belongs to
  std::vector<Contribution> contributions;
  std::vector<SumCombine> combines;
  std::vector<SumRead> sum_reads;
  bool operator==(const Instruction&) const = default;
};

}  // namespace piper
