// The table of kernels by op, with which programs are loaded.
#include <algorithm>
#include <array>

#include "blocks.h"
#include "families.h"
#include "piper/devices/cpu.h"
#include "rows.h"

namespace piper::cpu {
namespace {

struct Entry {
  std::string_view op;
  Maker make;
};

// By name, so that it can be searched. Pointwise ops have theirs in blocks.cc.
constexpr std::array kKernels = std::to_array<Entry>({
    {"Attention", make_attention},
    {"AttentionGrad", make_attention_grad},
    {"AttentionMerge", make_attention_merge},
    {"ClipFactor", make_clip_factor},
    {"Concat", make_concat},
    {"CrossEntropyGrad", make_cross_entropy_grad},
    {"CrossEntropyOfTerms", make_cross_entropy_of_terms},
    {"CrossEntropySum", make_cross_entropy_sum},
    {"CrossEntropyTerms", make_cross_entropy_terms},
    {"CumSum", make_cumsum},
    {"Dropout", make_dropout},
    {"Expand", make_expand},
    {"Fill", make_fill},
    {"Fold", make_fold},
    {"FromBlocks", make_from_blocks},
    {"Fused", make_fused},
    {"Gather", make_gather},
    {"GatherElements", make_gather_elements},
    {"GatherElementsGrad", make_gather_elements_grad},
    {"GatherGrad", make_gather_grad},
    {"GatherND", make_gather_nd},
    {"GatherNDGrad", make_gather_nd_grad},
    {"GeluAndSlope", make_gelu_and_slope},
    {"GlobalNorm", make_global_norm},
    {"GroupNorm", make_group_norm},
    {"GroupNormGradParams", make_group_norm_grad_params},
    {"GroupNormGradX", make_group_norm_grad_x},
    {"GroupedMatMul", make_grouped_matmul},
    {"GroupedMatMulGrad", make_grouped_matmul_grad},
    {"LabelCount", make_label_count},
    {"LayerNorm", make_layer_norm},
    {"LayerNormGradParams", make_layer_norm_grad_params},
    {"LayerNormGradX", make_layer_norm_grad_x},
    {"LearningRate", make_learning_rate},
    {"LogSoftmax", make_softmax},
    {"LogSoftmaxGrad", make_softmax_grad},
    {"LossScale", make_next_loss_scale},
    {"MatMul", make_matmul},
    {"NextLossScale", make_next_loss_scale},
    {"NextStep", make_next_step},
    {"NotFinite", make_not_finite},
    {"Pack", make_pack},
    {"Pad", make_pad},
    {"Random", make_random},
    {"ReduceExtremeGrad", make_reduce_extreme_grad},
    {"ReduceMax", make_reduce},
    {"ReduceMin", make_reduce},
    {"ReduceProd", make_reduce},
    {"ReduceProdGrad", make_reduce_prod_grad},
    {"ReduceSum", make_reduce},
    {"Reshape", make_reshape},
    {"RmsNorm", make_rms_norm},
    {"RmsNormGradScale", make_rms_norm_grad_scale},
    {"RmsNormGradX", make_rms_norm_grad_x},
    {"Rotary", make_rotary},
    {"RowPlaces", make_row_places},
    {"ScatterElements", make_scatter_elements},
    {"ScatterND", make_scatter_nd},
    {"Slice", make_slice},
    {"Softmax", make_softmax},
    {"SoftmaxGrad", make_softmax_grad},
    {"SumSquares", make_sum_squares},
    {"ToBlocks", make_to_blocks},
    {"TopK", make_top_k},
    {"Transpose", make_transpose},
    {"Trilu", make_trilu},
    {"Unfold", make_unfold},
});

}  // namespace

// They move elements, compare, choose or convert them; a Fused op casts itself, and those of a
// cross-entropy do so row by row.
bool takes_halves(std::string_view op) {
  if (op.starts_with("CrossEntropy")) return op != "CrossEntropyOfTerms";
  constexpr std::array kTakers = std::to_array<std::string_view>(
      {"Cast",        "Concat",     "Dropout",        "Equal",   "Expand",
       "Fill",        "FromBlocks", "Fused",          "Gather",  "GatherElements",
       "GatherND",    "Greater",    "GreaterOrEqual", "IsNaN",   "Less",
       "LessOrEqual", "Pad",        "Random",         "Reshape", "Slice",
       "ToBlocks",    "Transpose",  "Trilu",          "Unfold",  "Where"});
  return std::find(kTakers.begin(), kTakers.end(), op) != kTakers.end();
}

Maker find_kernel(std::string_view op) {
  const auto* entry =
      std::lower_bound(kKernels.begin(), kKernels.end(), op,
                       [](const Entry& e, std::string_view name) { return e.op < name; });
  if (entry != kKernels.end() && entry->op == op) return entry->make;
  for (const UpdateRule& rule : update_rules())
    if (rule.op == op) return make_update;
  return block_operands(op) > 0 ? make_pointwise : nullptr;
}

}  // namespace piper::cpu

namespace piper {

std::vector<std::string> cpu_ops() {
  std::vector<std::string> names = cpu::block_ops();
  for (const cpu::Entry& entry : cpu::kKernels) names.emplace_back(entry.op);
  for (const cpu::UpdateRule& rule : cpu::update_rules()) names.emplace_back(rule.op);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace piper
