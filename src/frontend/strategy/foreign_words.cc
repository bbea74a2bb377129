// Words of other systems, and what is written here instead.
#include "foreign_words.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "piper/base/base.h"
#include "piper/base/scaled.h"

namespace piper {
namespace {

// `@8` in a help stands for the number that the user has written, or for 8.
struct Row {
  std::string_view words, help;
};
constexpr Row kRows[] = {
    // These keys, written DIRECTIVE.KEY, mean this in one directive only.
    {"directive.accumulate directive.accumulation",
     "'- split: {dim: batch, into: 8}': microbatches, whose gradients are added up; 'precision: "
     "{accumulate: bf16}' is their type"},
    {"recompute.mode recompute.granularity recompute.selective recompute.full recompute.policy "
     "recompute.method recompute.every recompute.layers recompute.num_layers recompute.n_layers "
     "recompute.modules",
     "'ops: [Attention]' for some ops of all layers, 'match: \"h/{0..3}/**\"' for some layers, and "
     "'annotate: [{match: \"h/{layer}/**\", tags: {again: layer % 2}}]' with 'where: {again: 0}' "
     "for every other one"},
    {"local_steps.clip_norm local_steps.clip local_steps.max_norm local_steps.max_grad_norm "
     "local_steps.grad_clip local_steps.gradient_clipping",
     "outer updates are not clipped; 'train: {clip_norm: @1.0}' clips the gradients of each site"},
    {"local_steps.lr local_steps.outer_lr local_steps.learning_rate local_steps.momentum "
     "local_steps.nesterov local_steps.optimizer local_steps.outer_optimizer",
     "'outer: {sgd: {lr: 0.7, momentum: 0.9, nesterov: true}}'"},
    {"local_steps.schedule local_steps.lr_schedule local_steps.warmup",
     "the rate of outer updates is constant; 'train: {schedule: …}' is that of each site"},
    {"zero zero_stage zero_level zero_optimization zero1 zero2 zero3 zero_1 zero_2 zero_3 "
     "deepspeed "
     "fsdp fsdp2 fully_shard fsdp_config sharding_strategy reshard_after_forward "
     "distributed_optimizer use_distributed_optimizer",
     "ZeRO-1 is '- replicate: {over: dp, shard: [optimizer]}' under 'directives', ZeRO-2 "
     "'[optimizer, gradients]', ZeRO-3 and FSDP '[optimizer, gradients, parameters]'; "
     "'<memory/zero1>' to '<memory/zero3>' are files to include"},
    {"tensor_parallel tensor_parallel_size tensor_model_parallel_size tensor_parallel_degree "
     "tp tp_size tp_degree sequence_parallel sequence_parallel_size",
     "'mesh: {tp: @2}', and '- shard: {match: \"**/qkv/weight\", dim: 0, over: tp}' under "
     "'directives' for each kind of tensor that is cut; how all others lie follows"},
    {"context_parallel context_parallel_size context_parallel_degree cp cp_size cp_degree "
     "ulysses_degree ulysses_size ring_attention ring_degree",
     "'include: <context/ring>', '<context/heads>' (Ulysses) or '<context/gather>' with "
     "'params: {cp: @2}', and '- replicate: {over: dp}' for what is beside it"},
    {"expert_parallel expert_parallel_size expert_parallel_degree expert_model_parallel_size ep "
     "ep_size ep_degree expert_tensor_parallel_size",
     "'include: <experts/experts>' with 'params: {ep: @4}'; where the ranks of ep are replicas of "
     "all else, '- shard: {match: \"**/experts/*\", dim: 0, over: ep}' and '- replicate: {over: "
     "[dp, ep]}' under 'directives'"},
    {"pipeline pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size "
     "pipeline_parallel_degree pp pp_size pp_degree num_stages n_stages stages split_points",
     "'include: <1f1b>' with its params, or 'mesh: {pp: 4}', 'annotate: [{balance: "
     "{tag: stage, "
     "into: 4}}]' and '- place: {where: {stage: s}, on: {pp: s}}' under 'directives'"},
    {"virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage virtual_stages "
     "num_model_chunks vpp interleave",
     "'include: <interleaved-1f1b>' with 'params: {chunks: @2}'"},
    {"schedule pipeline_schedule pipeline_parallel_schedule schedules 1f1b one_f_one_b gpipe "
     "interleaved interleaved_1f1b zb_h1 zb_h2 zbv zb_v zero_bubble zerobubble dualpipe dualpipev "
     "chimera hanayo looped_bfs",
     "an order of work is '- order: {each: pp, program: …}' under 'directives', and the library "
     "has complete files: 'include: <1f1b>'; the learning rate's schedule is in "
     "'train'"},
    {"data_parallel data_parallel_size data_parallel_degree dp dp_size dp_degree ddp "
     "distributed_data_parallel dp_replicate dp_shard replicas num_replicas",
     "'mesh: {dp: @4}', and '- replicate: {over: dp}' under 'directives'"},
    {"gradient_accumulation gradient_accumulation_steps grad_accumulation_steps "
     "accumulate_grad_batches grad_accum gas microbatches micro_batches num_microbatches "
     "n_microbatches num_micro_batches",
     "'- split: {dim: batch, into: @8}' under 'directives', or 'train: {microbatch_size: 1}'"},
    {"micro_batch_size micro_batch train_micro_batch_size_per_gpu per_device_train_batch_size "
     "per_gpu_batch_size local_batch_size mbs",
     "'train: {microbatch_size: @1}'"},
    {"batch_size batch train_batch_size global_batch_size gbs", "'train: {global_batch: @8}'"},
    {"rampup_batch_size batch_size_rampup batch_rampup batch_size_schedule batch_warmup",
     "'train: {global_batch: 256, rampup: [{steps: 100, global_batch: 64}]}'"},
    {"bf16 bfloat16 fp16 f16 float16 half fp32 fp8 amp autocast mixed_precision precision_plugin "
     "torch_dtype param_dtype reduce_dtype mp_policy",
     "'- precision: {compute: bf16}' under 'directives'"},
    {"loss_scaling loss_scaler initial_scale_power grad_scaler",
     "'- precision: {compute: f16, loss_scale: dynamic}' under 'directives'"},
    {"activation_checkpointing activation_checkpoint gradient_checkpointing checkpoint_activations "
     "checkpointing checkpoint ac remat rematerialization recompute_granularity "
     "activation_recomputation use_reentrant",
     "'- recompute: {match: \"h/{layer}/**\"}' under 'directives'"},
    {"offload_optimizer offload_optimizer_device cpu_offload optimizer_offload",
     "'- offload: {what: optimizer}' under 'directives'"},
    {"offload_activations activation_offloading cpu_checkpointing",
     "'- offload: {what: activations}' under 'directives'"},
    {"offload_param offload_params offload_parameters",
     "'- offload: {what: parameters}' under 'directives'"},
    {"lr learning_rate weight_decay betas eps beta1 beta2 adam_beta1 adam_beta2 "
     "adam_epsilon optim optimizer_type",
     "'train: {optimizer: {adamw: {lr: 3e-4, weight_decay: 0.1}}}'"},
    {"param_groups parameter_groups no_decay no_weight_decay no_weight_decay_on",
     "'train: {groups: [{of: [vectors, norms], weight_decay: 0}]}'"},
    {"gradient_clipping grad_clipping gradient_clip_val max_grad_norm max_norm clip_grad "
     "clip_grad_norm grad_clip clip",
     "'train: {clip_norm: @1.0}'"},
    {"warmup_steps num_warmup_steps warmup_iters lr_scheduler scheduler lr_schedule "
     "lr_decay_style lr_warmup_iters min_lr cosine warmup inverse_sqrt wsd",
     "'train: {schedule: [{warmup: 100}, {cosine: {steps: 900, to: 0.1}}]}'"},
    {"bucket_cap_mb bucket_size reduce_bucket_size allgather_bucket_size allreduce_bucket_size "
     "ddp_bucket_size",
     "'bucket: 25MiB' in 'replicate'"},
    {"overlap_comm overlap_grad_reduce overlap_param_gather overlap",
     "reductions and gathers have streams of their own; 'F & B' in an order program overlaps two "
     "tasks"},
    {"receive", "'- prefetch: {where: {kind: recv}, distance: eager}' under 'directives'"},
    {"num_gpus gpus num_devices devices world_size nproc_per_node n_gpus nodes num_nodes nnodes "
     "device_mesh mesh_shape mesh_dim_names",
     "'mesh: {pp: 2, dp: 4}': axes and their sizes; one device for each combination"},
    {"steps max_steps num_steps train_iters epochs num_train_epochs max_epochs iterations",
     "how long to train is piper-run's: --steps"},
    {"data dataset data_path train_data", "data are piper-run's: --data"},
    {"save checkpoint_dir output_dir save_interval", "what is saved is piper-run's: --save"},
    {"model model_path model_name", "the model is piperc's first argument"},
    {"frozen requires_grad", "'parameters: [{freeze: \"wte/**\"}]'"},
    {"stage_of layers_per_stage auto_wrap_policy",
     "'annotate: [{match: \"h/{layer}/**\", tags: {stage: layer * 4 / layers}}]', or 'annotate: "
     "[{balance: {tag: stage, into: 4}}]'"},
};

// Values of other systems, and what they are called here.
constexpr Row kValues[] = {
    {"bfloat16 bfloat b16", "bf16"},
    {"fp16 float16 half", "f16"},
    {"fp32 float32 float single", "f32"},
    {"fp64 float64 double", "f64"},
    {"fp8 f8 float8_e4m3 float8_e4m3fn e4m3 fp8_e4m3", "float8"},
    {"i8 s8 qint8", "int8"},
    {"a2a all2all alltoall", "all_to_all"},
    {"allreduce", "all_reduce"},
    {"reducescatter", "reduce_scatter"},
    {"allgather", "all_gather"},
    {"sequence seq sequences token", "tokens"},
    {"sample", "samples"},
    {"batches microbatch microbatches", "batch"},
};

const Row* find_row(std::span<const Row> rows, std::string_view word) {
  std::string name = " " + std::string(word) + " ";
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::tolower(c));
  });
  for (const Row& row : rows)
    if ((" " + std::string(row.words) + " ").find(name) != std::string::npos) return &row;
  return nullptr;
}

}  // namespace

std::string foreign_word(std::string_view word, std::string_view value) {
  const Row* const row = find_row(kRows, word);
  std::string help(row ? row->help : std::string_view());
  const size_t at = help.find('@');
  if (at == std::string::npos) return help;
  const auto end_of_number = [](std::string_view text) {
    return std::min(text.find_first_not_of("0123456789."), text.size());
  };
  const bool is_number = !value.empty() && end_of_number(value) == value.size();
  if (!is_number) return help.erase(at, 1);
  return help.replace(at, 1 + end_of_number(std::string_view(help).substr(at + 1)), value);
}

bool is_in_8_bits(std::string_view word) {
  if (const Row* const row = find_row(kValues, word)) word = row->help;
  return parse_scaled(word) != Scaled::kNone;
}

std::string did_you_mean_value(std::string_view word, std::span<const std::string> values) {
  const Row* const row = find_row(kValues, word);
  const bool is_one = row && std::ranges::count(values, row->help) > 0;
  return is_one ? fmt::format(" (did you mean '{}'?)", row->help) : did_you_mean(word, values);
}

}  // namespace piper
