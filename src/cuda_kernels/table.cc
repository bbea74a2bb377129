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
    {"Adagrad", make_adagrad},
    {"AdamW", make_adamw},
    {"ClipFactor", make_clip_factor},
    {"GlobalNorm", make_global_norm},
    {"GroupedMatMul", make_grouped_matmul},
    {"GroupedMatMulGrad", make_grouped_matmul_grad},
    {"LearningRate", make_learning_rate},
    {"Linear", make_linear},
    {"LossScale", make_loss_scale},
    {"MatMul", make_matmul},
    {"NextLossScale", make_next_loss_scale},
    {"NextStep", make_next_step},
    {"NotFinite", make_not_finite},
    {"OnnxAdam", make_onnx_adam},
    {"Reshape", make_reshape},
    {"Sgd", make_sgd},
    {"SumSquares", make_sum_squares},
    {"Transpose", make_transpose},
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
  const Entry* entry = find_entry(op);
  return entry ? entry->make_run : nullptr;
}

}  // namespace piper::cuda_kernels

namespace piper {

std::vector<std::string> cuda_ops() {
  std::vector<std::string> names;
  for (const cuda_kernels::Entry& entry : cuda_kernels::kMakers) names.emplace_back(entry.op);
  return names;
}

}  // namespace piper
