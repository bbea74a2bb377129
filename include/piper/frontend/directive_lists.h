// What the directives of a strategy say: a struct for each, and a list of these. Their order in a
// file has no meaning.
#pragma once

#include "piper/base/scaled.h"
#include "piper/frontend/expression.h"
#include "piper/frontend/local_steps.h"
#include "piper/frontend/order.h"
#include "piper/frontend/split.h"

namespace piper {

// Names mesh axes whose ranks are counted together, the first axis outermost: `over: [pod, dp]`.
using Axes = std::vector<std::string>;
// - place: {where: {stage: s}, tags: {dir: "mb >= M/2"}, on: {pp: "dir ? P-1-s : s"}}
struct Place {
  Where where;
  // Tags that tasks get here, then axis -> coordinate; over bound variables, tags (also those given
  // before), the microbatch and M; coordinates also over P, the size of their axis.
  std::vector<std::pair<std::string, Expr>> tags, on;
  std::string micro = "mb";  // what split calls the microbatch
  std::vector<SourceSpan> on_at;
  SourceSpan at;
};
// - replicate: {over: dp, bucket: 25MiB, stream: grads, shard: [optimizer]}
struct Replicate {
  Axes over;                  // mesh axes, or a tag of `place`: the devices of a stage
  std::optional<Glob> match;  // over paths of the parameters that it speaks of; nothing: all others
  Where where;                // over tags of the ops that read them
  bool is_of_some() const { return match || !where.empty(); }
  bool is_over(const std::string& axis) const {
    return std::find(over.begin(), over.end(), axis) != over.end();
  }
  int64_t bucket_bytes = 0, slice_bytes = 0;  // of a message: at least, at most; 0: no such bound
  std::string stream = "reduce";
  // What is cut over the axis: nothing, optimizer state, also gradients, also parameters.
  bool shard_optimizer = false, shard_gradients = false, shard_parameters = false;
  int64_t persist_bytes = 0;  // smaller parameters stay whole
  enum class When { kPass, kMicrobatch, kStep };
  When gather = When::kPass;  // how often whole parameters are put together
  int64_t prefetch = 1;       // buckets gathered ahead
  std::string gather_stream = "gather";
  std::optional<SourceSpan> stream_at, gather_stream_at;  // where they are given
  When reduce = When::kStep;
  // How parameters and gradients travel (nothing: as they are), and if they may be rounded for it.
  std::optional<DType> gather_dtype, dtype;
  InBlocks gather_in = {Scaled::kNone, 256}, reduce_in = gather_in;
  bool lossy = false, reduce_lossy = false;
  enum class Order { kOrdered, kFast } sum = Order::kOrdered;  // of the replicas' terms
  SourceSpan at, over_at, shard_at, dtype_at, gather_dtype_at, slice_at;
};
// - stream: {where: {kind: all_reduce}, name: grads, priority: high, sms: 20}
struct StreamRule {                 // moves tasks to a stream, and says what that is
  std::optional<Where> where;       // nothing: no task moves
  std::string name;                 // "tp{s}": a stream for each value of the variable s of `where`
  std::optional<int32_t> priority;  // higher goes first; low is -1, high 1
  std::optional<int64_t> sms, credit;  // at most: multiprocessors, bytes not yet summed
  SourceSpan at, name_at, credit_at;
};
// Says when what tasks read from elsewhere is issued.
struct Prefetch {  // - prefetch: {where: {kind: recv}, distance: 2}
  Where where;
  // Compute tasks ahead of the first that reads it, over the variables of `where`: 0 is just before
  // it (lazy). Nothing: a receive when its send is issued, an input at the start of the step.
  std::optional<Expr> distance;
  SourceSpan at;
};
struct FuseRule {  // joins messages. - fuse: {where: {kind: send}, bucket: 25MiB}
  Where where;
  int64_t bucket_bytes = 0;  // messages of at least this size; 0: of all there is
  int64_t microbatches = 1;  // so many of them share a message
  SourceSpan at;
};
// Says what is in host memory while it is not needed.
// - offload: {what: activations, match: "h/{layer}/**", where: {stage: 0}, distance: 2}
struct OffloadRule {
  enum class What { kActivations, kOptimizer, kParameters };
  What what = What::kActivations;
  std::optional<Glob> match;  // over scopes of the ops that make the values
  Where where;                // over tags and microbatch of the tasks that keep them
  // Compute tasks ahead of its use at which a value comes back; updates for states.
  int32_t distance = 1;
  // Following compute tasks that may run while it leaves; updates for states.
  int32_t in_flight = 1;
  int64_t min_bytes = 0;  // smaller values stay
  SourceSpan at;
};
// Names tensors that are cut over a mesh axis; the layouts of all others follow.
struct ShardRule {                // - shard: {match: "**/qkv/weight", dim: 0, over: tp}
  std::optional<Glob> match;      // parameters, by path
  std::optional<Glob> input;      // or data inputs
  std::optional<Glob> scope;      // or what modules make for others, by scope
  std::optional<Glob> sends;      // or what stages send one another, by scope: flat parts
  std::optional<Glob> attention;  // or how attention over tokens in blocks is done, by scope
  enum class By : uint8_t { kGather, kHeads, kRing };
  std::optional<By> by;            // of attention
  std::optional<int64_t> dim;      // from the end if negative; none: every rank holds all of it
  bool pad = false;                // with zeros behind the dim, where it does not divide
  std::optional<double> capacity;  // room for rows that are looked up, by an even load
  bool zigzag = false;             // of input: of twice as many blocks one from each end
  // Over tags: of the ops that read a parameter, or of those that make what others read.
  Where where;
  Axes over;  // of two the first has the longer blocks
  // join_axes: the axes before its own in a list, and whether the first has two blocks a rank.
  Axes within;
  bool within_zigzag = false;
  SourceSpan at, of_at, dim_at, over_at, capacity_at;
  bool has_dim() const { return !sends && !attention; }
};
// Says in which type what stages hand on travels, where that is rounded.
// - send: {across: stage, dtype: int8, lossy: true}
struct SendRule {
  std::string across;          // the tag of which the op that makes a value and its reader differ
  std::optional<DType> dtype;  // of 16 bits, or in blocks of 8 bits
  InBlocks in = {Scaled::kNone, 256};
  bool lossy = false;
  bool activations = true, gradients = true;  // what forward ops make, what backward ops make
  std::optional<Glob> match;                  // over scopes of the ops that make the values
  Where where;                                // over tags of these
  SourceSpan at, across_at, dtype_at;
};
// Lists forward ops that run again in the backward pass: what they make is not kept until then.
// - recompute: {match: "h/{layer}/**", where: {stage: 0}, ops: [Gelu]}
struct Recompute {
  std::optional<Glob> match;  // over scopes; ops with equal captures are recomputed together
  std::vector<std::pair<std::string, SourceSpan>> ops;  // names of the op table; empty: all
  Where where;                                          // over tags and microbatch
  std::string micro = "mb";                             // what split calls the microbatch
  // Of what a microbatch keeps in a region; then the compiler chooses the ops.
  std::optional<int64_t> budget_bytes;
  SourceSpan at;
};
// Says in which types ops compute, and how the loss is scaled.
struct Precision {                      // - precision: {compute: bf16, keep: [Gelu]}
  std::optional<Glob> match;            // over scopes
  Where where;                          // over tags
  DType compute = DType::kBF16;         // of products and attention
  bool masters = true;                  // parameters of 16 bits become f32
  std::optional<LossScale> loss_scale;  // train.loss_scale
  std::optional<DType> reduce;          // Replicate::dtype of all directives
  std::optional<DType> accumulate;      // of all gradients; all directives that say it say the same
  std::vector<std::pair<std::string, SourceSpan>> keep;  // further ops that compute in f32
  SourceSpan at, reduce_at, accumulate_at;
};

// The schema, help and print_strategy have the directives in this sequence.
struct DirectiveLists {
  std::vector<Precision> precisions;  // loss scaling is in `train`
  std::vector<Split> splits;
  std::vector<Recompute> recomputes;
  std::vector<Place> places;
  std::vector<Replicate> replicates;
  std::vector<LocalSteps> local_steps;  // one at most
  std::vector<ShardRule> shards;
  std::vector<SendRule> sends;
  std::vector<OffloadRule> offloads;
  std::vector<StreamRule> streams;
  std::vector<Prefetch> prefetches;
  std::vector<FuseRule> fuses;
  std::vector<Order> orders;

  const Split* batch_split() const {  // null: the batch is not split
    for (const Split& split : splits)
      if (split.of_batch()) return &split;
    return nullptr;
  }
  std::string micro_name() const { return batch_split() ? batch_split()->as : "mb"; }
  const Split* chunk_split() const {  // null: neither tokens nor samples are split
    for (const Split& split : splits)
      if (split.of_chunks()) return &split;
    return nullptr;
  }
};

}  // namespace piper
