// The table of keys.
#include <algorithm>

#include "fields.h"

namespace piper::fields {
namespace {

using enum Type;
constexpr Presence kOptional = Presence::kOptional, kRequired = Presence::kRequired,
                   kBeside = Presence::kBeside, kUnsupported = Presence::kUnsupported;

// Of the entries of a list.
constexpr Field kWhen = {"when", kBool, kBeside,
                         "Whether the entry counts, over params and mesh axes. Default 1."};

constexpr Field kStrategy[] = {
    {"piper", kInteger, kRequired, "Version of the language: 1."},
    {"include", kPaths, kOptional,
     "Strategy files to read first, relative to this file; $name inserts a param of it."},
    {"params", kParams, kOptional,
     "Named integers, numbers and texts; piperc -D name=value overrides them."},
    {"require", kMany, kOptional, "What the params must be, and why.", "requirement"},
    {"mesh", kCounts, kOptional, "Device axes and their sizes; ranks are row-major."},
    {"inputs", kNamed, kOptional, "What the model file leaves open about its inputs.", "input"},
    {"dims", kCounts, kOptional, "Sizes of other dynamic dims, by their name in the model."},
    {"parameters", kMany, kOptional,
     "What is trained, where the file alone does not say or you know better.", "parameter"},
    {"loss", kTextOrOne, kOptional, "The output that is the loss, or how to form it.", "loss"},
    {"train", kOne, kOptional, "Optimizer, schedule, batch.", "train"},
    {"weight_versions", kInteger, kOptional,
     "2: gradients are taken at the weights before the last update. Default 1."},
    {"annotate", kManyOrOne, kOptional, "Rules that give ops their tags.", "rule", "annotate"},
    {"directives", kMany, kOptional, "What to do to the training step.", "directive"},
};
constexpr Field kRequirement[] = {
    {"that", kInteger, kRequired, "An expression over params and mesh axes that must not be 0."},
    {"why", kText, kRequired, "What is said where it is 0."},
    kWhen,
};
constexpr Field kInput[] = {
    {"shape", kIntegers, kOptional, "The whole shape, batch included."},
    {"dtype", kWord, kOptional, "Element type.", "f32 f64 bf16 f16 i64 i32 bool"},
    {"batch_dim", kInteger, kOptional, "Which dim is the batch."},
};
constexpr Field kParameter[] = {
    {"include", kTextOrOne, kOptional,
     "Float constants of the model that are parameters: a pattern, or what they are.", "include"},
    {"exclude", kGlob, kOptional, "Parameters that are constants."},
    {"freeze", kGlob, kOptional, "Parameters that keep their values."},
    {"thaw", kGlob, kOptional, "Parameters that the importer freezes and that are trained."},
    {"rename", kOne, kOptional, "New names for parameters.", "rename"},
    {"tie", kPaths, kOptional, "Names of one tensor; the first is its own."},
    {"stored", kOne, kOptional, "What the file has in place of parameters.", "stored"},
    kWhen,
};
constexpr Field kStored[] = {
    {"match", kGlob, kRequired, "A pattern over paths of parameters."},
    {"plus", kReal, kRequired, "What the file has added to their values."},
};
constexpr Field kIncluded[] = {
    {"match", kGlob, kRequired, "A pattern over names of constants."},
    {"as", kText, kRequired, "The parameter that they are."},
    {"transposed", kBool, kOptional, "The file has the transpose of it. Default false."},
};
constexpr Field kRename[] = {
    {"from", kGlob, kRequired, "A pattern over paths of parameters."},
    {"to", kText, kRequired, "The new path; {name} and ** are what the pattern found."},
};
constexpr Field kLoss[] = {
    {"output", kText, kOptional, "A scalar output of the model."},
    {"cross_entropy", kOne, kOptional, "Mean cross-entropy over labels.", "cross_entropy"},
};
constexpr Field kCrossEntropy[] = {
    {"logits", kText, kRequired, "An output [..., classes]."},
    {"labels", kText, kRequired, "An input of class numbers."},
    {"ignore_index", kInteger, kOptional, "The label that does not count. Default -100."},
};
constexpr Field kTrain[] = {
    {"optimizer", kOne, kOptional, "Default: sgd.", "optimizer"},
    {"groups", kMany, kOptional, "Other settings for some parameters; the first match wins.",
     "group"},
    {"clip_norm", kReal, kOptional, "Clip gradients to this global norm."},
    {"schedule", kOne, kOptional, "How the learning rate changes.", "schedule"},
    {"global_batch", kInteger, kOptional, "Samples a step, over all replicas and microbatches."},
    {"microbatch_size", kInteger, kOptional, "Samples of one microbatch on one replica."},
    {"seed", kInteger, kOptional, "Seed of random ops. Default 0."},
};
constexpr Field kOptimizer[] = {
    {"sgd", kOne, kOptional, "Stochastic gradient descent.", "sgd"},
    {"adam", kOne, kOptional, "Adam; weight decay is added to the gradient.", "adam"},
    {"adamw", kOne, kOptional, "Adam with decoupled weight decay.", "adamw"},
    {"adagrad", kOne, kOptional, "Adagrad.", "adagrad"},
    {"onnx_adam", kOne, kOptional, "Adam as ai.onnx.preview.training defines it.", "onnx_adam"},
};
constexpr Field kSgd[] = {
    {"lr", kReal, kOptional, "Learning rate. Default 1e-3."},
    {"momentum", kReal, kOptional, "Default 0."},
    {"dampening", kReal, kOptional, "Default 0."},
    {"nesterov", kBool, kOptional, "Default false."},
    {"weight_decay", kReal, kOptional, "Default 0."},
};
constexpr Field kAdam[] = {
    {"lr", kReal, kOptional, "Learning rate. Default 1e-3."},
    {"betas", kReals, kOptional, "Two decay rates. Default [0.9, 0.999]."},
    {"eps", kReal, kOptional, "Default 1e-8."},
    {"weight_decay", kReal, kOptional, "Default 0 for adam, 1e-2 for adamw."},
};
constexpr Field kAdagrad[] = {
    {"lr", kReal, kOptional, "Learning rate. Default 1e-2."},
    {"lr_decay", kReal, kOptional, "Divides the rate by 1 + step * lr_decay. Default 0."},
    {"eps", kReal, kOptional, "Default 1e-10."},
    {"weight_decay", kReal, kOptional, "Default 0."},
    {"initial_accumulator_value", kReal, kOptional, "Default 0."},
};
constexpr Field kOnnxAdam[] = {
    {"lr", kReal, kOptional, "Learning rate. Default 1e-3."},
    {"betas", kReals, kOptional, "Two decay rates. Default [0.9, 0.999]."},
    {"eps", kReal, kOptional, "Joins the root as it is. Default 1e-6."},
    {"weight_decay", kReal, kOptional, "norm_coefficient. Default 0."},
    {"weight_decay_after", kReal, kOptional, "norm_coefficient_post. Default 0."},
};
constexpr Field kGroup[] = {
    {"match", kGlob, kRequired, "Parameters: a pattern over their paths."},
    {"lr", kReal, kOptional, "Default: the optimizer's."},
    {"weight_decay", kReal, kOptional, "Default: the optimizer's."},
    kWhen,
};
constexpr Field kSchedule[] = {
    {"warmup", kInteger, kOptional, "Steps over which the learning rate rises. Default 0."},
    {"cosine", kOne, kOptional, "Cosine decay after the warm-up.", "cosine"},
};
constexpr Field kCosine[] = {
    {"total", kInteger, kRequired, "Step at which the decay ends."},
    {"min_ratio", kReal, kOptional, "Last learning rate as a part of the first. Default 0."},
};
constexpr Field kAnnotate[] = {
    {"strict", kBool, kOptional, "Ops that no rule matches are an error. Default false."},
    {"rules", kMany, kRequired, "The rules; later ones override earlier ones.", "rule"},
};
constexpr Field kRule[] = {
    {"match", kGlob, kOptional, "A pattern over scope paths; {name} captures an integer."},
    {"tags", kCounts, kOptional, "Tags and their values."},
    {"balance", kOne, kOptional, "A contiguous cut by cost, for any model.", "balance"},
    kWhen,
};
constexpr Field kBalance[] = {
    {"tag", kText, kRequired, "The tag to set."},
    {"into", kInteger, kRequired, "Number of parts."},
};
constexpr Field kDirective[] = {
    {"split", kOne, kOptional, "Cut the batch into microbatches.", "split"},
    {"place", kOne, kOptional, "Put tasks on mesh coordinates.", "place"},
    {"replicate", kOne, kOptional, "Data parallelism.", "replicate"},
    {"shard", kOne, kOptional, "Cut tensors over a mesh axis.", "shard"},
    {"order", kOne, kOptional, "In which order each device works.", "order"},
    {"recompute", kOne, kOptional, "Run forward ops again in the backward pass.", "recompute"},
    {"precision", kOne, kOptional, "In which types ops compute.", "precision"},
    {"stream", kOne, kOptional, "Put tasks on a named stream.", "stream"},
    {"prefetch", kOne, kOptional, "Issue receives and inputs ahead of their use.", "prefetch"},
    {"offload", kOne, kOptional, "Keep values in host memory while they are not needed.",
     "offload"},
    {"fuse", kOne, kOptional, "Join messages between the same devices.", "fuse"},
    {"drop", kPaths, kOptional, "Leave out directives of included files, by their names."},
    {"name", kText, kBeside, "What a file that includes this one overrides or drops it by."},
    kWhen,
};
constexpr Field kFuse[] = {
    {"where", kWhere, kRequired, "Which messages: tags, pass, kind, value."},
    {"bucket", kBytes, kOptional, "They join into messages of at least this size. Default: all."},
    {"microbatches", kInteger, kOptional, "So many of them share a message. Default 1."},
};
constexpr Field kSplit[] = {
    {"dim", kWord, kRequired, "What to cut.", "batch"},
    {"into", kInteger, kRequired, "Number of microbatches."},
    {"as", kText, kOptional, "Name of the microbatch coordinate. Default mb."},
};
constexpr Field kPlace[] = {
    {"where", kWhere, kOptional, "Which tasks. Default: all."},
    {"on", kCounts, kRequired, "Mesh axes and the coordinate on each."},
    {"tags", kCounts, kOptional, "Tags that tasks get, by stage and microbatch: dir: mb >= M/2."},
};
constexpr Field kReplicate[] = {
    {"over", kText, kRequired, "A mesh axis."},
    {"bucket", kBytes, kOptional,
     "Gradients and parameters travel in messages of at least this size."},
    {"stream", kText, kOptional, "Stream of the reductions. Default reduce."},
    {"shard", kWords, kOptional,
     "What is cut over the axis: [optimizer], [optimizer, gradients] or [optimizer, gradients, "
     "parameters].",
     "optimizer gradients parameters"},
    {"persist", kBytes, kOptional, "Parameters smaller than this stay whole. Default 0."},
    {"gather", kOne, kOptional, "How whole parameters are put together.", "gather"},
    {"reduce", kOne, kOptional, "How gradients are summed.", "reduce"},
    {"where", kWhere, kUnsupported, ""},
};
constexpr Field kShard[] = {
    {"match", kPaths, kOptional, "Parameters: patterns over their paths."},
    {"input", kPaths, kOptional, "Or data inputs: patterns over their names."},
    {"scope", kPaths, kOptional, "Or what modules make for others: patterns over scope paths."},
    {"sends", kPaths, kOptional,
     "Or what stages send one another, in parts that are put together on arrival: patterns over "
     "scope paths."},
    {"attention", kPaths, kOptional,
     "Or attention over tokens that are cut over the axis: patterns over scope paths."},
    {"by", kWord, kOptional,
     "How it is done: keys and values of all tokens gathered, all tokens of the own heads, or the "
     "keys and values of each rank in turn.",
     "gather heads ring"},
    {"dim", kIntegerOrWord, kOptional,
     "Which dim is cut, from the end if negative; none: every rank holds all of it.", "none"},
    {"over", kText, kRequired, "A mesh axis."},
    {"pad", kBool, kOptional,
     "Where the axis does not divide the dim: zeros behind it, which never count. Default false."},
};
constexpr Field kGather[] = {
    {"prefetch", kInteger, kOptional, "Buckets gathered ahead of their use. Default 1."},
    {"when", kWord, kOptional, "How often. Default per_pass.", "per_pass per_microbatch per_step"},
    {"stream", kText, kOptional, "Stream of the gathers. Default gather."},
};
constexpr Field kReduce[] = {
    {"when", kWord, kOptional, "How often. Default per_step.", "per_step per_microbatch"},
    {"dtype", kWord, kOptional,
     "Type in which gradients travel. Default: the one they are added up in.", "f32 bf16 f16"},
    {"stream", kText, kOptional, "Stream of the reductions. Default reduce."},
};
constexpr Field kRecompute[] = {
    {"match", kGlob, kOptional,
     "Ops by scope path; {name} captures make a group each. Default: all."},
    {"where", kWhere, kOptional, "Ops by their tags. Default: all."},
    {"ops", kPaths, kOptional, "Names of ops. Default: all."},
    {"budget", kBytes, kOptional,
     "What a microbatch may keep in each region; the compiler chooses the ops."},
};
constexpr Field kPrecision[] = {
    {"compute", kWord, kRequired, "Type of products and attention; f64: of all.",
     "bf16 f16 f32 f64"},
    {"match", kGlob, kOptional, "Ops by scope path. Default: all."},
    {"where", kWhere, kOptional, "Ops by their tags. Default: all."},
    {"keep", kPaths, kOptional, "Names of further ops that compute in f32."},
    {"accumulate", kWord, kOptional, "Type in which gradients are added up.", "f32 bf16 f16"},
    {"reduce", kWord, kOptional, "Type in which gradients travel, over all axes.", "f32 bf16 f16"},
    {"master", kWord, kOptional, "none: 16-bit parameters stay as they are. Default f32.",
     "f32 none"},
    {"loss_scale", kTextOrOne, kOptional, "dynamic, or its settings. Default: none.", "loss_scale",
     "dynamic"},
};
constexpr Field kLossScale[] = {
    {"init_scale", kReal, kOptional, "Of the first step. Default 65536."},
    {"growth_factor", kReal, kOptional, "After growth_interval good steps. Default 2."},
    {"backoff_factor", kReal, kOptional, "After a step that was skipped. Default 0.5."},
    {"growth_interval", kInteger, kOptional, "Default 2000."},
    {"static", kReal, kOptional, "A scale that stays."},
};
constexpr Field kStream[] = {
    {"where", kWhere, kOptional, "Which tasks. Default: none; the stream is there already."},
    {"name", kText, kRequired, "The stream."},
    {"priority", kIntegerOrWord, kOptional,
     "low, high or an integer; higher goes first. Default 0.", "low high"},
    {"sms", kInteger, kOptional, "Multiprocessors that its work takes at most."},
};
constexpr Field kPrefetch[] = {
    {"where", kWhere, kRequired, "Which receives or inputs."},
    {"distance", kIntegerOrWord, kRequired,
     "eager, lazy, or how many compute tasks ahead of the first that reads it.", "eager lazy"},
};
constexpr Field kOffload[] = {
    {"what", kWord, kRequired, "What leaves.", "activations optimizer"},
    {"match", kGlob, kOptional, "Activations by the scope path of the op that makes them."},
    {"where", kWhere, kOptional, "Activations by the task that keeps them. Default: all."},
    {"min", kBytes, kOptional, "Smaller activations stay. Default 0."},
    {"distance", kInteger, kOptional,
     "Compute tasks (of states: updates) ahead of its use at which a value comes back. Default 1."},
    {"in_flight", kInteger, kOptional,
     "Compute tasks (of states: updates) that may run while a value leaves. Default 1."},
};
constexpr Field kOrder[] = {
    {"each", kText, kRequired, "A mesh axis; the program runs for each coordinate r of it."},
    {"program", kProgram, kOptional, "The order program."},
    {"lists", kTexts, kOptional, "The tasks of each coordinate, in order: 0F0 0F1 3F0&3B0."},
    {"csv", kText, kOptional,
     "A PyTorch pipeline file, relative to this file; a row a coordinate."},
    {"dialect", kWord, kOptional, "Letters of the csv: old (B, W, BW) or new (I, W, B).",
     "old new"},
    {"policy", kOne, kOptional, "List scheduling over the cost model.", "policy"},
    {"where", kWhere, kUnsupported, ""},
};
constexpr Field kPolicy[] = {
    {"prefer", kWords, kRequired, "Passes, the most wanted first: [B, F, BW]; BI or BW split it.",
     "F B BI BW"},
    {"in_flight", kInteger, kOptional,
     "Chunks whose activations a device holds at most, over r, P, M."},
    {"memory", kBytes, kOptional, "Bytes of activations that a device holds at most."},
    {"costs", kWord, kOptional, "Operations and bytes of the model (default), or a unit for each.",
     "model unit"},
};

constexpr Object kObjects[] = {
    {"strategy", kStrategy},
    {"requirement", kRequirement},
    {"input", kInput},
    {"parameter", kParameter, true},
    {"include", kIncluded},
    {"rename", kRename},
    {"stored", kStored},
    {"loss", kLoss, true},
    {"cross_entropy", kCrossEntropy},
    {"train", kTrain},
    {"optimizer", kOptimizer, true},
    {"sgd", kSgd},
    {"adam", kAdam},
    {"adamw", kAdam},
    {"adagrad", kAdagrad},
    {"onnx_adam", kOnnxAdam},
    {"group", kGroup},
    {"schedule", kSchedule},
    {"cosine", kCosine},
    {"annotate", kAnnotate},
    {"rule", kRule},
    {"balance", kBalance},
    {"directive", kDirective, true},
    {"split", kSplit},
    {"place", kPlace},
    {"replicate", kReplicate},
    {"shard", kShard},
    {"recompute", kRecompute},
    {"precision", kPrecision},
    {"loss_scale", kLossScale},
    {"stream", kStream},
    {"prefetch", kPrefetch},
    {"offload", kOffload},
    {"fuse", kFuse},
    {"gather", kGather},
    {"reduce", kReduce},
    {"order", kOrder},
    {"policy", kPolicy},
};

}  // namespace

const Object& object(std::string_view name) {
  const auto* found = std::find_if(std::begin(kObjects), std::end(kObjects),
                                   [&](const Object& o) { return o.name == name; });
  PIPER_CHECK(found != std::end(kObjects), "no object {}", name);
  return *found;
}

std::span<const Object> objects() { return kObjects; }

const Field* find_field(const Object& object, std::string_view name) {
  const auto field = std::find_if(object.fields.begin(), object.fields.end(),
                                  [&](const Field& f) { return f.name == name; });
  return field == object.fields.end() ? nullptr : &*field;
}

}  // namespace piper::fields
