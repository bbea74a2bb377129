// Changes of a strategy, and the sections in which each shows.
#pragma once

#include <vector>

namespace piper {

inline constexpr const char* kStrategy = R"(piper: 1
params: {stages: 2, dp: 2, microbatches: 4}
mesh: {pp: $stages, dp: $dp}
train:
  global_batch: 16
  optimizer: {adamw: {lr: 2e-3, weight_decay: 0.1}}
  groups:
    - {match: "**/bias", weight_decay: 0}
  clip_norm: 1.0
annotate:
  - balance: {tag: stage, into: $stages}
directives:
  - split: {dim: batch, into: $microbatches, as: mb}
  - place: {where: {stage: s}, on: {pp: s}}
  - replicate: {over: dp, bucket: 25MiB}
  - order:
      each: pp
      program: |
        repeat min(M, P-r-1):      F
        repeat M - min(M, P-r-1):  F B
        repeat min(M, P-r-1):      B
)";

// A change of kStrategy: `from` becomes `to`, or `to` is a directive more.
struct DiffCase {
  const char* name;
  const char* from;
  const char* to;
  const char* sections;                // that differ, all of them
  std::vector<const char*> says = {};  // in the text
};

inline constexpr const char* kBackwards = "        repeat min(M, P-r-1):      B\n";
inline const DiffCase kCases[] = {
    {"Comment", "train:", "\n# a comment\ntrain:", ""},
    {"Format", "{adamw: {lr: 2e-3, weight_decay: 0.1}}",
     "\n    adamw:\n      weight_decay: 1e-1\n      lr: 0.002", ""},
    {"OrderInOtherWords", kBackwards, "        for i in 0..min(M, P-r-1): B\n", ""},
    {"Tag", "stage", "part", "", {"tag 'stage' is now called 'part'"}},
    {"Axis", "pp", "line", "", {"axis 'pp' is now called 'line'"}},
    {"AxisOfOne",
     "dp: $dp}",
     "dp: $dp, tp: 1}",
     "",
     {"mesh axis 'tp' is new; it has one rank, which is no difference in what runs"}},
    {"Rate", "lr: 2e-3", "lr: 4e-3", "train", {"  lr  0.002 → 0.004\n"}},
    {"Optimizer",
     "adamw: {lr: 2e-3, weight_decay: 0.1}",
     "sgd: {lr: 0.1, momentum: 0.9}",
     "train memory flops time stages",
     {"optimizer     adamw → sgd", "momentum      none → 0.9"}},
    {"FirstState",
     "adamw: {lr: 2e-3, weight_decay: 0.1}",
     "adagrad: {lr: 0.1, initial_accumulator_value: 0.5}",
     "train memory flops time stages",
     {"initial_accumulator_value  none → 0.5"}},
    {"Group",
     "\"**/bias\"",
     "\"**/qkv/bias\"",
     "train",
     {"model.h.0.proj.bias", "weight_decay  0 → 0.1"}},
    {"Clip", "clip_norm: 1.0", "clip_norm: 0.5", "train", {"clip_norm  1 → 0.5"}},
    {"Schedule",
     "clip_norm: 1.0",
     "schedule: [{warmup: 5}]\n  clip_norm: 1.0",
     "train",
     {"schedule  none → lr * (step < 5 ? (step + 1) / 5 : 1)"}},
    {"Seed", "  clip_norm", "  seed: 7\n  clip_norm", "train", {"seed  0 → 7"}},
    {"Batch",
     "global_batch: 16",
     "global_batch: 32",
     "train memory flops time stages messages",
     {"global_batch     16 → 32", "microbatch_size  2 → 4"}},
    {"Precision",
     "",
     "  - precision: {compute: bf16}\n",
     "train memory flops time stages",
     {"products of the forward  21 f32 → 21 bf16"}},
    {"Frozen",
     "annotate:",
     "parameters: [{freeze: \"model/wpe/**\"}]\nannotate:",
     "parameters memory flops time stages collectives",
     {"parameters  1 of 52\n  model.wpe.weight  now  trained → frozen"}},
    {"Renamed",
     "annotate:",
     "parameters: [{rename: {from: \"model/wpe/**\", to: \"positions/**\"}}]\nannotate:",
     "parameters",
     {"name  model.wpe.weight → positions.weight"}},
    {"RenamedTogether",
     "annotate:",
     "parameters: [{rename: {from: \"model/h/0/**\", to: \"blocks/first/**\"}}]\nannotate:",
     "parameters",
     {"parameters  12 of 52\n  model.h.0.ln_1.weight, model.h.0.ln_1.bias, … (12)  name  "
      "model.h.0.… → blocks.first.…\n"}},
    {"Tied",
     "annotate:",
     "parameters: [{tie: [model.h.0.ln_1.bias, model.h.0.ln_2.bias]}]\nannotate:",
     "parameters memory flops time stages collectives",
     {"parameters  1 of 52\n  model.h.0.ln_2.bias  now  its own → tied to model.h.0.ln_1.bias"}},
    {"StaticLossScale",
     "",
     "  - precision: {compute: f16, loss_scale: {static: 128}}\n",
     "train memory flops time stages",
     {"loss_scale               none → static 128\n"}},
    {"WarmUp",
     "P-r-1",
     "P-r",
     "memory order",
     {"order  2 of 2 devices, the first from task 2 on",
      "  pp=0  from task 3 on\n    - F0 F1 B0 F2 B1 F3 B2 B3\n    + F0 F1 F2 B0 F3 B1 B2 B3\n",
      "forwards in flight, at most  2 → 3"}},
    {"Gpipe",
     "repeat min(M, P-r-1):      F\n        repeat M - min(M, P-r-1):  F B\n        "
     "repeat min(M, P-r-1):      B",
     "repeat M: F\n        repeat M: B",
     "memory order",
     {"forwards in flight, at most  1 → 4"}},
    {"SplitBackward",
     "F B\n",
     "F BI BW\n",
     "memory time stages order",
     {"passes  B, F → BI, BW, F"}},
    {"LateWeightGradients",
     "F B\n        repeat min(M, P-r-1):      B\n",
     "F BI\n        repeat min(M, P-r-1): BI\n        repeat M: BW\n",
     "memory time stages order",
     {"forwards in flight, at most  1 → 4"}},
    {"MoreReplicas",
     "dp: 2,",
     "dp: 4,",
     "train memory flops time placement stages collectives messages",
     {"{pp: 2, dp: 2} → {pp: 2, dp: 4}", "ranks that do the same  2 → 4"}},
    {"MoreStages",
     "stages: 2,",
     "stages: 4,",
     "memory flops time placement stages order collectives messages",
     {"stage=2  runs on  none → pp=2"}},
    {"Recompute",
     "",
     "  - recompute: {match: \"model/h/{l}/**\", where: {stage: 0}}\n",
     "memory flops time stages recompute",
     {"stage=0  ops that run again  0 → 36", "stage=0  kept for the backward"}},
    {"OffloadedStates",
     "",
     "  - offload: {what: optimizer}\n",
     "memory offload streams",
     {"on the host", "optimizer to the host"}},
    {"Versions",
     "piper: 1",
     "piper: 1\nweight_versions: 2",
     "train memory versions",
     {"weight_versions  none → 2", "older versions of parameters  0 → 26"}},
    {"Bucket",
     "25MiB",
     "100KiB",
     "collectives",
     {"all_reduce over dp, f32  1 message, 1.6 MiB → 7 messages, 1.6 MiB"}},
    {"Zero1",
     "25MiB",
     "25MiB, shard: [optimizer]",
     "memory flops time stages order collectives messages streams",
     {"optimizer states  3.4 MiB → 1.7 MiB  -50.0 %", "reduce_scatter over dp",
      "send of sums of the step over pp, f32  1 message, 128.0 KiB → 1 message, 64.0 KiB"}},
    {"FastSums",
     "25MiB",
     "25MiB, reduce: {sum: fast}",
     "collectives",
     {"fast all_reduce over dp, f32"}},
    {"ReduceType",
     "",
     "  - precision: {match: \"model/wpe/**\", compute: f32, reduce: bf16}\n",
     "memory flops time collectives",
     {"all_reduce over dp, bf16"}},
    {"Stream",
     "",
     "  - stream: {where: {kind: send}, name: sends}\n",
     "memory time order streams",
     {"send  on 'compute' → on 'sends'"}},
    {"StreamWithLimits",
     "",
     "  - stream: {where: {kind: all_reduce}, name: sums, priority: high, sms: 20}\n",
     "streams",
     {"streams  2 changes", "'sums' has  none → priority 1, 20 SMs"}},
    {"StreamsName",
     "bucket: 25MiB",
     "bucket: 25MiB, stream: sums",
     "",
     {"stream 'reduce' is now called 'sums'"}},
    {"Priority",
     "",
     "  - stream: {name: reduce, priority: high}\n",
     "streams",
     {"'reduce' has  priority 0 → priority 1"}},
    {"Prefetch",
     "",
     "  - prefetch: {where: {kind: recv}, distance: 1}\n",
     "memory time order",
     {"recv over pp  5 at their places → 3 of them issued earlier"}},
    {"JoinedMessages",
     "",
     "  - fuse: {where: {kind: send}, microbatches: 2}\n",
     "time messages",
     {"send of activations over pp, f32  4 messages, 512.0 KiB → 2 messages, 512.0 KiB",
      "send of gradients over pp, f32    4 messages, 512.0 KiB → 2 messages, 512.0 KiB"}},
    {"Slight",
     "weight_decay: 0}",
     "weight_decay: 0, lr: 1e-4}",
     "train memory",
     {"train, memory differ\n", "memory  the largest peak 21.8 MiB → 21.8 MiB (-768 B)\n",
      "peak             18.0 MiB → 18.0 MiB  +256 B\n"}}};

}  // namespace piper
