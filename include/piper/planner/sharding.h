// How values are laid out over mesh axes, from one rule per op (LoopRule): letters that pass
// through carry a shard, letters that are summed turn it into a partial sum, and a value that must
// be whole is brought together by a communication.
//
// The batch is the first axis group: a batch of B samples is cut into `replicas × microbatches`
// equal blocks; block replica × microbatches + mb holds samples [block × B/n, (block + 1) × B/n).
// Microbatches are a sequential axis, replicas a mesh axis; for layouts both are one axis group of
// n shards.
#pragma once

#include <span>

#include "piper/ir/graph.h"

namespace piper {

struct BatchCut {
  int64_t replicas = 1;
  int64_t microbatches = 1;
  SourceSpan at;  // the split or replicate directive, for errors
};

// Requires a differentiated graph at global shapes, of a batch that divides. Ensures that every
// value has its layout and its local shape, and that every op is legal on local shapes (localise).
//
// A Partial value meets only ops linear in it and StepSums. Where a non-linear op needs one, a
// StepSum is put between. That is legal where the value depends on inputs, constants and step-level
// values only (the label count), or where only the new value of a state needs it, which pass U then
// makes. Elsewhere it is refused, naming op and scope.
//
// Every gradient contribution is Partial: where all shards have the same one, the first shard's
// counts. A cut into one returns the graph as it is, but with the same StepSums, so that plans
// differ in their cut only.
Result<Graph> shard_batch(Graph graph, const BatchCut& cut);

// Checks whether the batch of the graph can be cut like this: the error is that of shard_batch.
Status check_batch(const Graph& graph, const BatchCut& cut);

// Names a tensor that is cut over a mesh axis because a strategy says so. Of a parameter whose
// readers take it apart (three projections in one), the parts are cut alike.
struct ShardSeed {
  ValueId value;  // state, an input or what a node makes
  int dim = -1;   // -1: every rank holds all of it
  SourceSpan at;
  // With zeros up to a multiple of so many parts of the dim, or of what its readers take apart in
  // it; 0: without.
  int64_t pad_to = 0;
  int64_t outer = 0;  // equal stretches that are each cut; 0: as readers take the dim apart
  // Of twice as many blocks as there are ranks, rank r has the r-th from both ends.
  bool zigzag = false;
};

// Says how attention is done whose tokens are in blocks over the axis: each rank has its queries
// and gathers keys and values (Grattafiori et al., 2024, §3.3.2); all tokens of its heads (Jacobs
// et al., 2023); or its queries, and keys and values of each rank in turn (Liu et al., 2023).
enum class AttentionBy { kGather, kHeads, kRing };
struct AttentionCut {
  Glob scope;
  AttentionBy by = AttentionBy::kGather;
  SourceSpan at;
};

struct AxisCut {
  int32_t axis = 0;  // of the mesh
  std::string name;
  int64_t ranks = 1;
  std::vector<ShardSeed> seeds;
  std::vector<AttentionCut> attention = {};
  // Of rows that an index sends: how many times an even load each rank has room for; none: a rank
  // has room for all rows of all ranks.
  std::optional<double> capacity = {};
  SourceSpan capacity_at = {};
};

// Describes a collective that a cut needs.
struct Conversion {
  NodeId node;
  ValueId value;      // what changes its layout
  NodeId reader;      // the first op that needs it so; invalid: the end of the step
  int64_t bytes = 0;  // that a rank sends, once
};

struct ShardedGraph {
  Graph graph;
  std::vector<Conversion> conversions;
};

// Returns whether zeros after the dim of the seed, up to a multiple of `to`, would count nowhere.
bool can_be_padded(const Graph& graph, const AxisCut& cut, const ShardSeed& seed, int64_t to);

// Cuts a graph over one mesh axis, from what `seeds` name: an op whose operands are cut works on
// its own part where one of its loops allows that (LoopRule), other states of the same loop are cut
// alike, and where two layouts meet, the collective that sends fewest bytes is between. Every
// value of the result has its layout in Value::over, and its local shape; the graph is legal for
// the next axis. Error: a seed that does not divide and cannot be padded, naming tensor, dim, ranks
// and line; attention whose tokens or heads are not as its line says.
Result<ShardedGraph> shard_axis(Graph graph, const AxisCut& cut);

// Says how regions of ops, or a step, are cut into parts that one device runs in turn.
struct PartCut {
  std::string name;  // of the tag that gets the number of the part
  int64_t into = 1;
  int64_t outer =
      0;  // equal blocks of which each part has its share; 0: as readers take a dim apart
  std::vector<int32_t> region;  // by node: which it is in; -1: none
  // Names a value that a region reads, and the dim at which it is cut.
  struct Seed {
    int32_t region = 0;
    ValueId value;
    int dim = 0;
  };
  std::vector<Seed> seeds;
  bool is_placed = false;      // parts are on devices of their own, and wait for one another's sums
  bool in_order = false;       // chunks of tokens, or shares of samples: see cut_chunks
  bool of_samples = false;     // shares, each of which may be on a device of its own
  std::vector<int64_t> sizes;  // of these; empty: equal
  SourceSpan at, dim_at;
  // Returns how many ranks the axis has: one for each part, or, where parts of equal size would not
  // be whole, several for each, by their sizes.
  int64_t ranks() const;
};

struct Parts {
  Graph graph;
  int64_t ops = 0;      // of the graph as it was, that run part by part
  int64_t joined = 0;   // values that are put together after the last part
  int64_t summed = 0;   // values that are added up over the parts
  int64_t carried = 0;  // values of which a chunk of tokens reads those of the chunks before
};

// Cuts regions as shard_axis cuts a graph over an axis, whose ranks one device plays in turn: ops
// of a region work on the part that a loop of theirs gives them, and what others read is put
// together, or added up in the order of the parts. Ops that run in parts have the tag `name`.
// Where parts are placed, sums over them and greatest values are formed in no part, and parts may
// go on after these. Requires a graph whose batch is cut, and no axis yet. Error: a dim that does
// not divide; an op of the region that needs all of what is cut, naming both.
Result<Parts> cut_in_parts(Graph graph, const PartCut& cut);

// Cuts the step into chunks of tokens, in their order. It is the same axis in time as that of
// parts, but its cells are tasks of their own, which orders name: ops that work on a chunk have the
// tag `name` with its number, and so have those that work on what several chunks make. The forward
// goes through chunks in order, the backward in reverse. What a chunk needs of those before is
// carried as any value is that one task makes and another reads: causal attention reads the keys
// and values of all chunks up to its own; later chunks' terms of the gradients of these go back
// with the backward; so do sums of the step. Shares of samples are such chunks that need nothing of
// one another; sums of the step have a term for each. Requires a graph whose batch is cut, and no
// axis yet, and that the seeds are inputs of region 0. Error: a dim that does not divide; an op
// that mixes tokens in another way, naming both.
Result<Parts> cut_chunks(Graph graph, const PartCut& cut);

// Puts the parts of each region one after the other, so that each frees its memory for the next;
// but where their collectives let others run meanwhile, all parts up to these. `names`: of the tags
// that parts have.
Graph order_parts(Graph graph, std::span<const std::string> names);

// The tag that number_spans sets.
inline constexpr const char* kSpanOfParts = "parts.span";
// The tag that holds the region of ops which run in parts.
inline constexpr const char* kRegionOfParts = "part region";
// Numbers the spans of each region of tasks, forward and backward apart: what is in no part and
// before the first parts is 0, these are 1, what is between them and further ones is 2, and so on.
// So parts can be tasks: of a region of tasks no span reads what a later one makes. `names`: of the
// tags that parts have; `regions`: tags that tell regions of tasks apart.
Graph number_spans(Graph graph, std::span<const std::string> names,
                   std::span<const std::string> regions);

}  // namespace piper
