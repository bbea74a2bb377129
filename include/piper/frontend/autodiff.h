// Reverse-mode differentiation and the optimizer, as ordinary ops of the same graph.
//
// A *use* of a parameter is one (node, input) that reads it, or reads a value made of parameters
// and constants only (its transpose or cast) — then the use is where that value meets one that
// depends on inputs. Autodiff emits one gradient contribution per (parameter, use), in order of
// uses, never a sum across uses:
//   StepSum(contribution 0, contribution 1, …) -> gradient of the whole step
// and the Dag expands StepSum into accumulation over microbatches, uses and replicas (in this
// order: per use over microbatches by index, then over uses, then over replicas). The loss is a
// StepSum too.
//
// Passes: a backward node is BW if only gradients of parameters depend on it;
// a node from which an adjoint of a value that depends on inputs is reachable is BI.
// Contributions are f32 at least: where one would be rounded to 16 bits before it is summed, the
// ops that make it for the use only take their operands in f32 instead. Every backward node carries
// scope and tags of the forward node it comes from. A sum of adjoints has those of the value's
// first reader where all have the same tags, so that one value goes on from there, else of its
// producer; what leads from a use back to the parameter has those of the use.
#pragma once

#include <set>

#include "piper/ir/blocks.h"
#include "piper/ir/graph.h"

namespace piper {

struct OptimizerSpec {
  std::string name = "sgd";        // of the table of optimizers (piper/ir/optimizers.h)
  Attrs settings;                  // by key; what is absent has its default
  int64_t count = 0;               // updates before step 0, of optimizers that count them
  std::vector<DType> states = {};  // in which each is kept, of all or of one by one; empty: f32
  bool operator==(const OptimizerSpec&) const = default;
};

// What a parameter is: of rank 1 at most; a scale or shift of a norm; added to what others make; a
// table of rows that are looked up; the weight of the product that makes the logits of a
// cross-entropy. Embeddings and weights may be several of these, or none.
enum class ParamKind { kVector, kNorm, kBias, kEmbedding, kHead };
inline constexpr std::string_view kParamKinds[] = {"vectors", "norms", "biases", "embeddings",
                                                   "heads"};

// A ParamGroup is a group of parameters with common optimizer settings; the first group whose glob
// matches a parameter's scope or name, and one of whose kinds it is, wins; a last group "**" holds
// the defaults.
struct ParamGroup {
  std::string match;  // glob over Param::scope ("**/bias")
  SourceSpan at;
  double lr = 1e-3;
  double weight_decay = 0;
  std::optional<OptimizerSpec> optimizer = {};  // of its own
  std::vector<std::string> names = {};          // instead of `match`: the parameters themselves
  std::vector<ParamKind> kinds = {};            // empty: any
  // The rate that each step trains with: a formula (piper/ir/rate.h) of lr, step and tokens.
  std::string rate = "lr";
  SourceSpan rate_at = {};
};
std::string describe(const ParamGroup& group);  // "'**/bias'", "norms, biases"
struct TrainSpec;
// Returns the group's own optimizer, or that of all.
const OptimizerSpec& optimizer_of(const ParamGroup& group, const TrainSpec& train);
// The tag of ops that put a parameter together of parts that are trained by themselves.
inline constexpr const char* kJoinedParts = "parts.joined";
// Returns by parameter whether it is such a part.
std::vector<bool> trained_parts(const Graph& graph);
// Returns by parameter the first group that matches it. Errors: a group that no parameter is left
// for, a trained parameter without a group.
Result<std::vector<const ParamGroup*>> groups_of(const Graph& graph,
                                                 const std::vector<ParamGroup>& groups);
// Returns by parameter whether it has more than two dims, and ops multiply with each of the
// matrices that the last two make: experts, but no kernels of convolutions.
std::vector<bool> stacks_of(const Graph& graph);
// Returns the elements of the first input of integers in a step, or else the samples.
int64_t tokens_of_step(const Graph& graph);

// The loss is scaled before it is differentiated, so that small gradients do not vanish in f16;
// gradients are scaled back before the norm is reported and clipped. A step whose gradients are not
// all finite changes no parameter and no optimizer state, and counts as none. Dynamic: see
// NextLossScale in ops/step.cc.
struct LossScale {
  bool dynamic = true;
  double init = 65536;  // dynamic: of the first step
  double growth = 2, backoff = 0.5;
  int64_t interval = 2000;
  SourceSpan at;
};

struct TrainSpec {
  OptimizerSpec optimizer;
  std::vector<ParamGroup> groups;
  std::optional<double> clip_norm;  // factor min(1, clip / (norm + 1e-6)), PyTorch's, by site
  std::optional<LossScale> loss_scale;
  bool skip_nonfinite = false;  // as clip_norm and loss_scale do: see skips_nonfinite
  std::optional<double> ema;    // the decay of averages of all trained parameters, states NAME.ema
  int64_t sites = 1;            // of copy_for_sites: so many losses the graph's is the sum of
};

// Returns whether a step whose gradients have no finite norm changes no parameter and no optimizer
// state: wherever updates wait for the norm.
bool skips_nonfinite(const TrainSpec& train);

// Requires a forward graph with a scalar float `loss`. Ensures: backward and update nodes as above,
// `updates` for every trained parameter, its optimizer state and the step counter; loss, grad_norm,
// step and Param::gradient set. Errors: an op without gradient on the way, a group that matches
// nothing, no trainable parameter, a learning rate that is negative or no number. Parameters
// without gradient are listed in `without_gradient` and left alone.
struct Differentiated {
  Graph graph;
  std::vector<std::string> without_gradient;
};
Result<Differentiated> differentiate(Graph forward, const TrainSpec& train);

// Makes of a forward graph what is computed when the model is evaluated: no dropout, noise at its
// mean, and the running statistics, which stay as they are, in place of those of the batch. Sets
// Graph::weight where the loss is divided by one number of the batch's inputs. Error: a choice by
// random numbers that is no dropout.
Result<Graph> evaluated(Graph forward);

// Makes a copy of a forward graph for each site, each with inputs, trained parameters and a loss of
// its own, under names of the site (piper/plan/sites.h). Ops have the site as `tag`. Loss and
// weight are sums over sites.
Graph copy_for_sites(const Graph& forward, int64_t sites, const std::string& tag);
// Describes an outer update of some parameters (LocalSteps).
struct OuterSpec {
  TrainSpec optimizer;
  std::set<std::string> names;  // of the outer parameters
  std::string step;             // of its counter of updates
  bool is_delayed = false;      // it reads what sites had before, and they get the result later
  double mix = 0;               // the share of a site's own parameters in its next ones
  // How distances and the gradient travel, each rounded to it; nothing: as they are.
  std::optional<SentAs> sent = {};
};
// Makes of such copies the step that an outer optimizer takes: it updates outer parameters, which
// have the names and initial values of the model, by the mean over the sites of their distance from
// those of a site, which then become what the outer ones are. Of the regions, by `region_tags` of
// the graph, that read a parameter the first counts. It has no loss.
Result<Graph> outer_step(const Graph& copies, int64_t sites, const OuterSpec& spec,
                         std::span<const std::string> region_tags);
// These make the steps before and after a delayed one: sites keep what their parameters are, as
// states (taken_of); and their parameters become what the outer ones have become.
Graph taking_step(const Graph& copies, int64_t sites, const OuterSpec& spec,
                  std::span<const std::string> region_tags);
Graph joining_step(const Graph& copies, int64_t sites, const OuterSpec& spec,
                   std::span<const std::string> region_tags);

// Where a Gelu's input is read by its gradient only, the forward pass makes what that multiplies
// with (GeluAndSlope) beside the result, and the backward pass keeps it in place of the input.
// Values stay the same; those of 16 bits would not.
Graph keep_slopes(Graph step);

// Reads less of the forward pass in the backward pass: where that reads parts or other shapes
// (Slice, Reshape) of one value, made in the reader's region, it takes them from that value again,
// if this is no more to keep than they were. Values stay the same.
Graph rename_in_backward(Graph step);

// A LossTerm is one term of a loss that the strategy names, of a value of the model, element by
// element beside a target of the same shape; of cross-entropy the target is a label for each row of
// classes. A target that the model does not have becomes an input. Options mean what they mean in
// PyTorch.
struct LossTerm {
  enum class Kind {
    kOutput,  // the value itself, a scalar
    kMean,
    kSum,
    kCrossEntropy,
    kMse,
    kL1,
    kSmoothL1,
    kHuber,
    kBce,            // of probabilities
    kBceWithLogits,  // of their logits
    kKl,             // of log-probabilities
  } kind = Kind::kOutput;
  std::string output, target;  // names of values; kinds up to kSum have no target
  // The sum is divided by the number of elements (of labels that count), by that of samples, or by
  // nothing.
  enum class Reduction { kMean, kBatchMean, kSum } reduction = Reduction::kMean;
  double weight = 1;            // in the sum of all terms
  int64_t dim = -1;             // kCrossEntropy: where the classes are
  int64_t ignore_index = -100;  // kCrossEntropy
  double label_smoothing = 0;   // kCrossEntropy
  double beta = 1;              // kSmoothL1: where the square begins, > 0; kHuber calls it delta
  double pos_weight = 1;        // kBceWithLogits
  bool log_target = false;      // kKl: the target is log-probabilities, too
  SourceSpan at, output_at, target_at;
};
// Appends their weighted sum as the graph's loss, and as an output. Error, at the place of the
// name: a value that is not there, with the nearest; one of another type or shape; a target without
// a dim of samples.
Result<Graph> add_loss(Graph forward, std::span<const LossTerm> terms);

}  // namespace piper
