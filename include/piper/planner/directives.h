// The directives: one file each in src/planner/directives/; piper/frontend/directive_lists.h has
// what they say. Every one reports what it matched and inserted; matching nothing is an error at
// its place in the strategy.
//
// The compiler applies them in one sequence, whatever their order in the file: split (how the batch
// is cut) | annotate, precision (the forward graph) | shard, recompute (the training graph) |
// place, replicate, shard (what stages send), offload, stream, prefetch, order, fuse (the Dag).
#pragma once

#include "piper/frontend/strategy.h"
#include "piper/planner/make_dag.h"
#include "piper/planner/sharding.h"

namespace piper {

// What one directive did, for --explain.
struct Explanation {
  SourceSpan at;
  std::string directive;           // "place"
  std::vector<std::string> lines;  // "stage=1 on pp=1: 3 chunks, 128 ops"
};
using Explanations = std::vector<Explanation>;

// It knows the costs of ops on the devices of the job: piper/planner/job_costs.h.
class JobCosts;

// ---- Transforms: directives that need nothing of what other steps found -------------------------
// Each is a file of src/planner/directives/transforms/. All other directives are functions of their
// own, below.
struct TransformContext {  // what a transform reads, and where it explains itself
  const Strategy& strategy;
  const Variables& variables;
  const JobCosts& costs;
  Explanations& out;
};
// The transforms of one time are applied in the order of their names.
enum class TransformTime : uint8_t {
  kForward,    // of the forward graph, when all ops have their tags
  kTasks,      // of tasks that are on their devices
  kStreams,    // of tasks, to move them to other streams
  kDistances,  // of tasks on their streams, to say how far ahead of their use they are issued
};
Result<Graph> apply_transforms(TransformTime time, Graph forward, const TransformContext& context);
Result<Dag> apply_transforms(TransformTime time, Dag dag, const TransformContext& context);

// ---- Other directives ---------------------------------------------------------------------------

// Tags the forward graph. Rules match scope paths; ops that no rule matches join by dataflow: the
// latest region of their producers, else the earliest of their consumers (strict: an error).
// Requires a forward graph. Ops may lack tags that only rules for other ops set.
Result<Graph> apply_annotate(Graph forward, const Annotate& annotate, const Variables& variables,
                             const JobCosts& costs, Explanations& out);

// Ops on data only (no parameter reaches them, no matrix product) go to the regions of `tags` that
// read them, one copy each: a mask is computed in every stage, not sent down the pipeline. Values
// stay the same bit for bit. Requires a tagged forward graph.
Result<Graph> clone_data_ops(Graph forward, std::span<const std::string> tags, const SourceSpan& at,
                             Explanations& out);

// Returns a contiguous cut of the ops, in graph order, into `into` regions: minimises the largest
// region's cost, on the slowest of the devices that `place` gives it. By time: seconds of the
// forward and of the messages at its boundaries, or, where no devices are known, FLOPs, of which
// each byte of a message counts kFlopsPerSentByte. By memory and weights: bytes, as shares of the
// memory where devices are known.
Result<Graph> apply_balance(Graph forward, const BalanceRule& balance, const JobCosts& costs,
                            Explanations& out);

// Rounds gradients to the 16-bit type that a precision directive names, and adds them up in it;
// the same step where none names one.
// Requires a differentiated graph. Refuses gradients in f64.
Result<Graph> accumulate_in_halves(Graph step, const std::vector<Precision>& precisions);

// A Recomputation lists forward ops that the backward pass runs again, just before it first needs
// what they make. Ops that share a directive, captures and region form a group: what it takes from
// outside is kept, and what it hands to other forward ops; with `ops`, nothing that a chosen op
// makes is kept. With a budget the least is kept that the cheapest ops suffice for (the least
// time, or FLOPs where no devices are known, for each byte): a minimum cut of the region's
// dataflow. A group goes on over parts that its entry does not name. Groups within groups run again
// in what is run again.
// Bits do not change. Where conditions name the microbatch, the graph has copies of all that some
// microbatch makes again, and the variants say which are made. Requires a sharded graph. Errors:
// nothing matches, an unknown op, an op chosen twice, nothing to save, a budget that is too small.
struct Recomputed {
  Graph graph;
  Variants variants;
};
struct TagsOfOps {
  std::vector<std::string> tasks;  // that tell tasks apart
  std::vector<std::string> parts;  // of regions
};
Result<Recomputed> apply_recompute(Graph step, const std::vector<Recompute>& recomputes,
                                   const TagsOfOps& tags, const Variables& variables,
                                   int64_t microbatches, const JobCosts& costs, Explanations& out);

// Makes one mesh axis of those that directives name together only, and of a tag that `replicate`
// names, and a rule of `shard` for each axis of one that cuts over several: each names one axis.
Result<Strategy> join_axes(Strategy strategy, Explanations& out);

// Mesh axes and batch cut that split and replicate ask for; used before the Dag exists.
struct Cut {
  std::vector<DagAxis> mesh;
  int64_t microbatches = 1, replicas = 1;
  SourceSpan at;  // of the split, or else the replicate directive
  // By parameter: the `replicate` entries that speak of it, by position, in the order in which its
  // gradient is summed: those that cut its states come first.
  std::map<std::string, std::vector<size_t>> lines_of;
  std::map<std::string, std::vector<SumRound>> rounds_of;  // likewise
  std::vector<SumRound> rounds;                            // of all other sums
};
Result<Cut> apply_split(const Strategy& strategy, int64_t batch, Explanations& out);
// Cuts replicas of a differentiated graph whose ops need samples of each other: their axes then cut
// one graph as `shard` does, samples in blocks and states whole, with collectives inside the step.
// Otherwise the cut as it is. Error: microbatches as well, for each runs before the next one's
// samples are there.
Result<Cut> couple_replicas(const Graph& step, const Strategy& strategy, Cut cut,
                            Explanations& out);
// Chooses which `replicate` entries speak of each parameter of a differentiated graph, and in which
// order its gradient is summed. Errors: an entry that speaks of none, two that speak of one
// parameter over one axis, or cut it over one axis after the other.
Result<Cut> choose_replicas(const Graph& step, const Strategy& strategy, const Variables& variables,
                            Cut cut);

// Returns by parameter of a differentiated graph how many versions of it are kept, if that are
// several: the most that entries say of the forward ops that read it. Errors: an entry that is of
// no op, two of one op, a number that is not 1 to 64.
Result<std::map<std::string, int64_t>> versions_of(const Graph& step,
                                                   const std::vector<WeightVersions>& entries,
                                                   const Variables& variables, Explanations& out);

// Rounds parameters where `replicate` gathers them in 16 bits and the model reads them in f32.
// Error: that is not said to be lossy.
Result<Graph> round_gathered(Graph step, const Strategy& strategy, const Cut& cut,
                             Explanations& out);

// Rounds what ops make for others across a tag, where `send` says so. Requires a differentiated
// graph, or the forward one of an evaluation, of which nothing is explained. Error: an entry that
// rounds nothing.
Result<Graph> round_sent(Graph step, const Strategy& strategy, const Variables& variables,
                         Explanations* out);

// Makes parameters that a `split` names whose parts `place` puts on devices into parameters of
// their own, one for each part: others read them put together. Notes them in `trained`, by name.
// Requires a forward graph.
Graph train_parts(Graph forward, const Strategy& strategy,
                  std::map<std::string, TrainedPart>& trained, Explanations& out);

// Cuts the regions that `split` directives name into parts, one directive after the other. Requires
// a graph whose batch is cut. Errors: nothing matches, ops of two splits, a dim that the region's
// tensors have not or that does not divide, and those of cut_in_parts.
Result<Graph> apply_parts(Graph step, const Strategy& strategy, Explanations& out);

// Return the parts of regions, by the names of their tags, that an order names, and those that
// `place` puts on devices: they are tasks of their own. Errors: beside items of updates, reductions
// or what runs again; placed beside several versions of the weights, or a policy.
Result<std::vector<std::string>> parts_in_orders(const Strategy& strategy);
Result<std::vector<std::string>> placed_parts(const Strategy& strategy);

// Cuts tokens into chunks, or samples into shares, that are tasks of their own, where a `split`
// says so. Requires a graph whose batch is cut. Errors: no input has tokens, or a number of them
// that does not divide; parts, places by chunk, or attention by ring, beside it; and those of
// cut_chunks.
Result<Graph> apply_chunks(Graph step, const Strategy& strategy, Explanations& out);

// Returns what `shard` directives and coupled replicas ask for: a cut for each axis that they name,
// in the order of the mesh. Requires a graph whose batch is cut. Errors: nothing matches, a dim
// that the tensor has not, a tensor that two directives cut over one axis.
Result<std::vector<AxisCut>> apply_shard(const Graph& step, const Strategy& strategy,
                                         const Cut& cut, const Variables& variables,
                                         Explanations& out);
// Applies the `shard` entries about sends: of a value that all ranks of an axis hold alike, each
// rank sends its part to the next stage, which gathers it. Requires chunks that have their places.
// Error: no value that is sent and held alike matches.
Result<Dag> apply_sends(Dag dag, const std::vector<ShardRule>& shards, Explanations& out);
// Explains which collectives an axis has come to, in sums, and one by one with what each is for.
void explain_axis(const ShardedGraph& made, const AxisCut& cut, const Strategy& strategy,
                  Explanations& out, std::vector<std::string>& each);
// Returns what of a cut of `graph` that has been made was perhaps not meant: attention that ranks
// do whole, weights that send less if they are cut the other way.
std::vector<std::string> notes_of(const Graph& graph, const ShardedGraph& made, const AxisCut& cut);
// Returns how the parameters and inputs are laid out that some axis cuts: "model.h.0.fc.weight
// f32[64,32]: dim 0 over tp".
std::vector<std::string> layouts_of(const Graph& graph, const std::vector<AxisCut>& cuts);

// Assigns chunks to cells. Axis coordinates outside the mesh, chunks without a place or with two,
// and coordinates without work are errors.
Result<Dag> apply_place(Dag dag, const std::vector<Place>& places, const Variables& variables,
                        Explanations& out);

// Adds gradient reductions: bucket size and stream; and cuts what is sharded over the replicas.
Result<Dag> apply_replicate(Dag dag, const std::vector<Replicate>& replicates, const Cut& cut,
                            Explanations& out);

// Returns, by cell, the computations that items of an order do not take: where `place` puts parts
// on devices and the order names none of them, these, and of what their stage computes beside them
// in a pass all but the most costly. Requires tasks.
std::vector<std::vector<TaskId>> tasks_of_parts(const Dag& dag, const Strategy& strategy);

// Returns the compute order per cell that the order directive asks for; empty when there is none,
// or a policy. Requires tasks. Errors: an item that finds no task, or names a tag value that the
// device has not; tasks that no item takes; anything after U.
Result<std::vector<ComputeOrder>> apply_order(const Dag& dag, const Strategy& strategy,
                                              const Variables& variables, Explanations& out);
// Gives the collectives within the second halves of pairs ('&&') streams of their own, where
// entries of `stream` have given them one, and says so.
void give_streams(Dag& dag, const std::vector<ComputeOrder>& order, Explanations& out);

// Returns what became of values that are to be in host memory when plans were made. Error: nothing
// can leave.
Result<Explanation> explain_offload(const OffloadRule& rule, int64_t values, int64_t bytes,
                                    int64_t stay);

// Says which messages become one, and for which rules.
struct Fused {
  std::vector<std::vector<TaskId>> groups;  // of two tasks or more: see join_messages
  std::vector<size_t> rule;                 // by group: of the strategy's
  std::vector<int64_t> matched;             // by rule
};
// Sends with equal ends, and collectives of one kind and group, on equal streams, of one
// microbatch, or of the whole step, that have the same pass and tags; as large as the bucket says.
// Requires tasks and their streams. Errors: nothing matches, what is no message, a message that two
// entries claim.
Result<Fused> apply_fuse(const Dag& dag, const Strategy& strategy, const Variables& variables);
// Joins after that messages of neighbouring microbatches that carry the same values, where a rule
// asks for it.
Result<Fused> fuse_microbatches(const Dag& dag, const Strategy& strategy,
                                const Variables& variables);
// Counts by rule how many messages of those that `matched` are `left`, and, of groups that had to
// be split, how many messages more than one each has, and one of them.
struct FuseCount {
  int64_t left = 0, apart = 0;
  std::string example;
};
void explain_fuse(const Dag& dag, const Strategy& strategy, const Fused& fused,
                  const std::vector<FuseCount>& counts, Explanations& out);

// Returns the limit of each cell that the order's policy gives: in tasks, of which a stage has one
// for each chunk of tokens, or share of samples, of a microbatch.
Result<std::vector<int64_t>> policy_limits(const Dag& dag, const Strategy& strategy,
                                           const Variables& variables);

// The cells of a compute order by device, for lists and files: stages by the tag `stage`. Error: no
// such tag, or more than one placed axis.
Result<OrderRows> order_rows(const Dag& dag, const std::vector<ComputeOrder>& compute);

}  // namespace piper
