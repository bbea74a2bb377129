// The ops that there are steps for, by name.
#include <algorithm>
#include <array>

#include "families.h"

namespace piper::cuda_kernels {
namespace {

struct Entry {
  std::string_view op;
  Maker make = nullptr;
  RunMaker make_run = nullptr;

  constexpr Entry(std::string_view name, Maker maker) : op(name), make(maker) {}
  constexpr Entry(std::string_view name, RunMaker maker) : op(name), make_run(maker) {}
};

// By name, so that it can be searched.
constexpr std::array kMakers = std::to_array<Entry>({
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
    {"Gather", make_gather},
    {"GatherElements", make_gather_elements},
    {"GatherElementsGrad", make_gather_elements_grad},
    {"GatherGrad", make_gather_grad},
    {"GatherND", make_gather_nd},
    {"GatherNDGrad", make_gather_nd_grad},
    {"GlobalNorm", make_global_norm},
    {"GroupNorm", make_group_norm},
    {"GroupNormGradParams", make_group_norm_grad_params},
    {"GroupNormGradX", make_group_norm_grad_x},
    {"GroupedMatMul", make_grouped_matmul},
    {"GroupedMatMulGrad", make_grouped_matmul_grad},
    {"LabelCount", make_label_count},
    {"LearningRate", make_learning_rate},
    {"Linear", make_linear},
    {"LogSoftmax", make_softmax},
    {"LogSoftmaxGrad", make_softmax_grad},
    {"LossScale", make_loss_scale},
    {"MatMul", make_matmul},
    {"NextLossScale", make_next_loss_scale},
    {"NextStep", make_next_step},
    {"NotFinite", make_not_finite},
    {"Pad", make_pad},
    {"Random", make_random},
    {"ReduceExtremeGrad", make_reduce_extreme_grad},
    {"ReduceMax", make_reduce},
    {"ReduceMin", make_reduce},
    {"ReduceProd", make_reduce},
    {"ReduceProdGrad", make_reduce_prod_grad},
    {"ReduceSum", make_reduce},
    {"Reshape", make_reshape},
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

const Entry* find_entry(std::string_view op) {
  const auto* entry =
      std::lower_bound(kMakers.begin(), kMakers.end(), op,
                       [](const Entry& e, std::string_view name) { return e.op < name; });
  return entry != kMakers.end() && entry->op == op ? entry : nullptr;
}

}  // namespace

Maker find_maker(std::string_view op) {
  const Entry* entry = find_entry(op);
  return entry ? entry->make : nullptr;
}
RunMaker find_run_maker(std::string_view op) {
  for (const std::string_view update : update_ops())
    if (update == op) return make_update;
  const Entry* entry = find_entry(op);
  return entry ? entry->make_run : nullptr;
}

}  // namespace piper::cuda_kernels

namespace piper {

std::vector<std::string> cuda_ops() {
  std::vector<std::string> names = cuda_kernels::row_ops();
  for (const cuda_kernels::Entry& entry : cuda_kernels::kMakers) names.emplace_back(entry.op);
  for (const std::string_view op : cuda_kernels::update_ops()) names.emplace_back(op);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace piper
