// The table of kernels by op, with which programs are loaded.
#include <algorithm>
#include <array>

#include "families.h"
#include "piper/devices/cpu.h"

namespace piper::cpu {
namespace {

struct Entry {
  std::string_view op;
  Maker make;
};

// By name, so that it can be searched.
constexpr std::array kKernels = std::to_array<Entry>({
    {"Abs", make_pointwise},
    {"Acos", make_pointwise},
    {"Acosh", make_pointwise},
    {"Adagrad", make_adagrad},
    {"AdamW", make_adamw},
    {"Add", make_pointwise},
    {"And", make_pointwise},
    {"Asin", make_pointwise},
    {"Asinh", make_pointwise},
    {"Atan", make_pointwise},
    {"Atanh", make_pointwise},
    {"Attention", make_attention},
    {"AttentionGrad", make_attention_grad},
    {"AttentionMerge", make_attention_merge},
    {"Cast", make_pointwise},
    {"Ceil", make_pointwise},
    {"ClipFactor", make_clip_factor},
    {"Concat", make_concat},
    {"Cos", make_pointwise},
    {"Cosh", make_pointwise},
    {"CrossEntropyGrad", make_cross_entropy_grad},
    {"CrossEntropyOfTerms", make_cross_entropy_of_terms},
    {"CrossEntropySum", make_cross_entropy_sum},
    {"CrossEntropyTerms", make_cross_entropy_terms},
    {"CumSum", make_cumsum},
    {"Detach", make_pointwise},
    {"Div", make_pointwise},
    {"Dropout", make_dropout},
    {"Equal", make_pointwise},
    {"Erf", make_pointwise},
    {"Exp", make_pointwise},
    {"Expand", make_expand},
    {"Fill", make_fill},
    {"Floor", make_pointwise},
    {"Fold", make_fold},
    {"Fused", make_fused},
    {"Gather", make_gather},
    {"GatherElements", make_gather_elements},
    {"GatherElementsGrad", make_gather_elements_grad},
    {"GatherGrad", make_gather_grad},
    {"GatherND", make_gather_nd},
    {"GatherNDGrad", make_gather_nd_grad},
    {"Gelu", make_pointwise},
    {"GeluAndSlope", make_gelu_and_slope},
    {"GeluGrad", make_pointwise},
    {"GlobalNorm", make_global_norm},
    {"Greater", make_pointwise},
    {"GreaterOrEqual", make_pointwise},
    {"GroupNorm", make_group_norm},
    {"GroupNormGradParams", make_group_norm_grad_params},
    {"GroupNormGradX", make_group_norm_grad_x},
    {"GroupedMatMul", make_grouped_matmul},
    {"GroupedMatMulGrad", make_grouped_matmul_grad},
    {"IsNaN", make_pointwise},
    {"LabelCount", make_label_count},
    {"LayerNorm", make_layer_norm},
    {"LayerNormGradParams", make_layer_norm_grad_params},
    {"LayerNormGradX", make_layer_norm_grad_x},
    {"LearningRate", make_learning_rate},
    {"Less", make_pointwise},
    {"LessOrEqual", make_pointwise},
    {"Log", make_pointwise},
    {"LogSoftmax", make_softmax},
    {"LogSoftmaxGrad", make_softmax_grad},
    {"LossScale", make_next_loss_scale},
    {"MatMul", make_matmul},
    {"Max", make_pointwise},
    {"Min", make_pointwise},
    {"Mod", make_pointwise},
    {"Mul", make_pointwise},
    {"Neg", make_pointwise},
    {"NextLossScale", make_next_loss_scale},
    {"NextStep", make_next_step},
    {"Not", make_pointwise},
    {"NotFinite", make_not_finite},
    {"OnnxAdam", make_onnx_adam},
    {"Or", make_pointwise},
    {"Pack", make_pack},
    {"Pad", make_pad},
    {"Pow", make_pointwise},
    {"Random", make_random},
    {"Reciprocal", make_pointwise},
    {"ReduceExtremeGrad", make_reduce_extreme_grad},
    {"ReduceMax", make_reduce},
    {"ReduceMin", make_reduce},
    {"ReduceProd", make_reduce},
    {"ReduceProdGrad", make_reduce_prod_grad},
    {"ReduceSum", make_reduce},
    {"Relu", make_pointwise},
    {"Reshape", make_reshape},
    {"RmsNorm", make_rms_norm},
    {"RmsNormGradScale", make_rms_norm_grad_scale},
    {"RmsNormGradX", make_rms_norm_grad_x},
    {"Rotary", make_rotary},
    {"Round", make_pointwise},
    {"ScatterElements", make_scatter_elements},
    {"ScatterND", make_scatter_nd},
    {"Sgd", make_sgd},
    {"Sigmoid", make_pointwise},
    {"Sign", make_pointwise},
    {"Silu", make_pointwise},
    {"SiluGrad", make_pointwise},
    {"Sin", make_pointwise},
    {"Sinh", make_pointwise},
    {"Slice", make_slice},
    {"Softmax", make_softmax},
    {"SoftmaxGrad", make_softmax_grad},
    {"Softplus", make_pointwise},
    {"Sqrt", make_pointwise},
    {"Sub", make_pointwise},
    {"SumSquares", make_sum_squares},
    {"SwiGlu", make_pointwise},
    {"Tan", make_pointwise},
    {"Tanh", make_pointwise},
    {"TopK", make_top_k},
    {"Transpose", make_transpose},
    {"Trilu", make_trilu},
    {"Unfold", make_unfold},
    {"Where", make_pointwise},
    {"Xor", make_pointwise},
});

}  // namespace

// They move elements, compare, choose or convert them; a Fused op casts itself, and those of a
// cross-entropy do so row by row.
bool takes_halves(std::string_view op) {
  if (op.starts_with("CrossEntropy")) return op != "CrossEntropyOfTerms";
  constexpr std::array kTakers = std::to_array<std::string_view>(
      {"Cast",  "Concat",    "Dropout",        "Equal",    "Expand",  "Fill",
       "Fused", "Gather",    "GatherElements", "GatherND", "Greater", "GreaterOrEqual",
       "IsNaN", "Less",      "LessOrEqual",    "Pad",      "Random",  "Reshape",
       "Slice", "Transpose", "Trilu",          "Unfold",   "Where"});
  return std::find(kTakers.begin(), kTakers.end(), op) != kTakers.end();
}

Maker find_kernel(std::string_view op) {
  const auto* entry =
      std::lower_bound(kKernels.begin(), kKernels.end(), op,
                       [](const Entry& e, std::string_view name) { return e.op < name; });
  return entry != kKernels.end() && entry->op == op ? entry->make : nullptr;
}

}  // namespace piper::cpu

namespace piper {

std::vector<std::string> cpu_ops() {
  std::vector<std::string> names;
  for (const cpu::Entry& entry : cpu::kKernels) names.emplace_back(entry.op);
  return names;
}

}  // namespace piper
