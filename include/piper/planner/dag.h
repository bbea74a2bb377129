// The global training DAG of one step: compute tasks, inputs and communication of all devices, as
// flat arrays and ids.
//
// Built in two steps. make_dag groups the graph's nodes into *chunks*, one per (region, pass): a
// region is a combination of tag values. Directives then say where chunks run (place) and what is
// replicated. expand_tasks makes the tasks: one compute task per chunk and microbatch, input loads,
// sends and receives for every value that is read on another device, and the reductions that
// StepSums ask for.
//
// A *cell* is the set of ranks with equal coordinates on the placed mesh axes (those that `place`
// names). They run one program and differ along the other axes only, as SPMD ranks do, so nothing
// here grows with their number.
#pragma once

#include <algorithm>

#include "piper/base/small_vector.h"
#include "piper/plan/role.h"
#include "piper/planner/sums.h"

namespace piper {

struct ChunkTag;
struct ItemTag;
struct TaskTag;
using ChunkId = Id<ChunkTag>;
using ItemId = Id<ItemTag>;
using TaskId = Id<TaskTag>;

struct Chunk {
  TaskPass pass = TaskPass::kF;
  std::vector<int32_t> tags;    // by Dag::region_tags
  std::vector<NodeId> nodes;    // in graph order
  std::vector<ValueId> reads;   // made outside (also constants and state), ascending
  std::vector<ValueId> writes;  // read outside, ascending
  int32_t cell = 0;
  std::vector<int32_t> groups;    // of Dag::group_of that it runs for, ascending; empty: all
  std::vector<int32_t> variants;  // of Dag::variants that it runs for, ascending; empty: all
  int32_t level = 0;              // of kPrepare: its sums need some of so many levels before it
  std::string name;               // "F stage=1"
};

// An Item is one value in one cell and microbatch, which gets a buffer.
struct Item {
  ValueId value;
  int32_t micro = -1;  // -1: one for the whole step
  int32_t cell = 0;
  ItemId alias;      // shares the memory of this item: in-place collectives, updated state
  int32_t sum = -1;  // holds the finished sum Dag::sums[sum]
};

// A Combine is a compute task's sum of parts: `into` then holds what the `from` items held.
struct Combine {
  int32_t sum = 0;
  ItemId into;
  SmallVector<ItemId> from;
};

// An Accumulate says what a compute task does besides its chunk's nodes: it adds a contribution to
// an accumulator. The first to run sets it.
struct Accumulate {
  ValueId contribution;  // made by the chunk
  ItemId into;
  int32_t sum = 0, use = 0;  // index of Dag::sums and of the use
  ItemId reduced;            // the contribution is this item, which is summed over replicas already
};

// A value of Task::distance: a receive is issued as soon as its send is.
inline constexpr int32_t kEarliest = INT32_MAX;

struct Task {
  // Pairs of kReduceScatter, kAllGather and kOwnPart are items read and written one by one. Tasks
  // of kinds that the table of instructions calls `within` are within computations only; none is
  // kPosition.
  InstructionKind kind = InstructionKind::kCompute;
  TaskPass pass = TaskPass::kMove;
  ChunkId chunk;  // kCompute
  int32_t micro = -1;
  int32_t micros = 1;  // messages and collectives: of so many, from `micro` on
  int32_t cell = 0;
  int32_t peer = -1;   // kSend, kRecv: the other cell
  int32_t stream = 0;  // index of Dag::streams
  // kRecv, kInput: issued so many compute tasks of its cell ahead of the first one that reads what
  // it brings (0: just before that), or kEarliest.
  int32_t distance = 0;
  int32_t label = -1;             // index of Dag::labels, without the microbatch: see print_label
  SmallVector<int32_t> group;     // collectives: mesh axes
  bool fast = false;              // kAllReduce, kReduceScatter: see SumRound
  Scaled scaled = Scaled::kNone;  // kReduceScatter: likewise
  int64_t block = 0;
  int64_t slice = 0;  // kAllReduce: likewise
  ChunkId region;     // updates and reductions that an order may name: a chunk of their region
  SmallVector<ItemId> reads, writes;  // kCompute: parallel to the chunk's reads and writes
  SmallVector<Accumulate> accumulates;
  SmallVector<Combine> combines;
  // A collective among the nodes of a compute task runs within that: `nodes` of its chunk, on a
  // stream of its own unless that is 0. Its distance counts programs of the computation.
  TaskId within;
  SmallVector<NodeId> nodes;
};

// A TaskStream is a queue of a device. A backend that cannot use priority or a limit of SMs runs it
// as any other.
struct TaskStream {
  std::string name;
  int32_t priority = 0;  // higher goes first
  int64_t sms = 0;       // multiprocessors at most; 0: any
  // The sums of gradients are in the order in which a simulated step sends them, with at most
  // so many bytes under way; 0: in which they are ready. What messages take there, in
  // FLOPs of a rank.
  int64_t credit = 0;
  int64_t flops_of_byte = 50, flops_of_message = 0;
};

// An Offload names what is kept in host memory while it is not needed.
struct Offload {
  // The optimizer's states; parameters; else `items`.
  bool optimizer = false, parameters = false;
  std::vector<ItemId> items;       // kept from forward to backward
  std::vector<std::string> names;  // of states and parameters; none: all that no other one names
  int32_t distance = 1;            // comes back so many compute instructions ahead of its use
  int32_t in_flight = 1;           // leaves while so many following ones compute
  int32_t out_stream = 0, in_stream = 0;  // to the host, and back
};

// What the backward pass makes again may differ by microbatch: those of one variant make the same.
// Where a copy is not made, its readers get what it is a copy of, kept from the forward pass.
struct Variants {
  std::vector<int32_t> of_micro;                    // empty: one variant
  std::vector<std::pair<ValueId, ValueId>> copies;  // and what each is a copy of; ascending
  std::vector<std::vector<ValueId>> made;           // by variant: copies, ascending

  int32_t count() const { return made.empty() ? 1 : static_cast<int32_t>(made.size()); }
  int32_t of(int32_t micro) const {
    return of_micro.empty() ? 0 : of_micro[static_cast<size_t>(micro) % of_micro.size()];
  }
  bool makes(int32_t variant, ValueId copy) const {
    const auto& here = made[static_cast<size_t>(variant)];
    return std::binary_search(here.begin(), here.end(), copy);
  }
  bool is_copy(ValueId value) const {
    const auto at = std::lower_bound(copies.begin(), copies.end(), std::pair(value, ValueId()));
    return at != copies.end() && at->first == value;
  }
  // Returns what stands for the value.
  ValueId read(ValueId value, int32_t variant) const {
    const auto at = std::lower_bound(copies.begin(), copies.end(), std::pair(value, ValueId()));
    return is_copy(value) && !makes(variant, value) ? at->second : value;
  }
};

// Says that a parameter, or an optimizer's state of one, is block `index` of `count` equal ones of
// a dim of a tensor, and is trained by itself (piper/plan/trained_parts.h).
struct TrainedPart {
  ValueId value;
  int32_t dim = 0;
  int64_t index = 0, count = 1;
};

struct DagAxis {
  std::string name;
  int64_t size = 1;
  bool placed = false;      // some place directive names it
  bool replicated = false;  // some replicate directive names it
  bool sharded = false;     // some shard directive names it, or its replicas are coupled
  // It numbers the devices that hold one stage for different microbatches (bidirectional
  // pipelines). They are ranks of the axis of the places until fold_twins splits them off.
  bool twins = false;
  // Returns whether replicas need samples of each other: they run one graph, of whose batch each
  // has a block.
  bool is_coupled() const { return replicated && sharded; }
  // Returns whether each rank has a part of the batch of its own.
  bool shares_batch() const { return replicated && !sharded && !twins; }
  bool tells_cells_apart() const { return placed || twins; }
};
struct Dag;
// Returns by chunk of tokens the one before it in its pass: forwards go through the tokens of a
// sample in order, backwards in reverse, whatever they need of each other. -1: there is none.
std::vector<int32_t> chunks_before(const Dag& dag);
// Returns the mesh as plans have it.
Mesh mesh_of(const std::vector<DagAxis>& axes);

struct Dag {
  Graph graph;  // sharded; expand_tasks adds the nodes that sum
  std::vector<DagAxis> mesh;
  std::vector<std::string> region_tags;  // tags that tell regions apart
  int64_t tokens = -1;  // position of the one that numbers chunks of tokens; -1: there is none
  std::vector<TaskStream> streams{{"compute"}};
  int64_t microbatches = 1;
  // By microbatch: those whose chunks all have the same places and tags form a group, numbered by
  // its first one. Empty: all do. Chunks of one region and pass in different places are together.
  std::vector<int32_t> group_of;
  Variants variants;
  // The replicas whose samples one device runs one after the other. More than 1 only in a reference
  // plan, where the device runs those of all replicas.
  int64_t replicas_in_turn = 1;
  // How many devices hold each stage, and the stride between them in the numbering of replicas.
  int64_t twins = 1, twin_stride = 1;
  // An order names BI and BW, R, updates of regions, or reductions.
  bool split_backward = false, split_recompute = false, split_update = false, split_sums = false;
  std::vector<SumRound> rounds;          // of the sums, each once
  std::vector<PartsInBlocks> in_blocks;  // likewise
  std::vector<Part> parts;               // states that are cut, by value
  std::vector<Part> exchanges;  // within the update: one side is made, and the other is moved there
  std::vector<Copy> copies;     // in canonical parameter order
  // In canonical parameter order, then of copies, the number last; empty: one version of each.
  std::vector<Version> versions;
  std::vector<TrainedPart> trained;
  std::vector<Offload> offloads;
  // By value, of the first ones: axes whose ranks hold it alike and send a run each; ascending.
  std::vector<std::vector<int32_t>> sliced;
  // Coordinates by mesh axis; -1 on axes that are not placed.
  std::vector<std::vector<int32_t>> cells;
  std::vector<Chunk> chunks;
  std::vector<Item> items;
  std::vector<Task> tasks;
  std::vector<std::string> labels;  // of tasks
  std::vector<Sum> sums;
  // By cell: scalars to read after the step.
  std::vector<std::vector<std::pair<std::string, ItemId>>> reports;

  int64_t micros() const { return microbatches * replicas_in_turn; }
  int32_t num_groups() const {
    return group_of.empty() ? 1 : *std::max_element(group_of.begin(), group_of.end()) + 1;
  }
  int32_t group_of_micro(int32_t micro) const {
    return group_of.empty() ? 0 : group_of[static_cast<size_t>(micro % microbatches)];
  }
};

}  // namespace piper
