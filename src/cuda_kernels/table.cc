// The ops that there are steps for, by name.
#include <algorithm>
#include <array>

#include "families.h"

namespace piper::cuda_kernels {
namespace {

struct Entry {
  std::string_view op;
  Maker make;
};

// By name, so that it can be searched.
constexpr std::array kMakers = std::to_array<Entry>({
    {"CrossEntropyGrad", make_cross_entropy_grad},
    {"CrossEntropyOfTerms", make_cross_entropy_of_terms},
    {"CrossEntropySum", make_cross_entropy_sum},
    {"CrossEntropyTerms", make_cross_entropy_terms},
    {"GroupNorm", make_group_norm},
    {"GroupNormGradParams", make_group_norm_grad_params},
    {"GroupNormGradX", make_group_norm_grad_x},
    {"LabelCount", make_label_count},
    {"LogSoftmax", make_softmax},
    {"LogSoftmaxGrad", make_softmax_grad},
    {"Reshape", make_reshape},
    {"Softmax", make_softmax},
    {"SoftmaxGrad", make_softmax_grad},
    {"Transpose", make_transpose},
});

}  // namespace

Maker find_maker(std::string_view op) {
  const auto* entry =
      std::lower_bound(kMakers.begin(), kMakers.end(), op,
                       [](const Entry& e, std::string_view name) { return e.op < name; });
  return entry != kMakers.end() && entry->op == op ? entry->make : nullptr;
}

}  // namespace piper::cuda_kernels

namespace piper {

std::vector<std::string> cuda_ops() {
  std::vector<std::string> names = cuda_kernels::row_ops();
  for (const cuda_kernels::Entry& entry : cuda_kernels::kMakers) names.emplace_back(entry.op);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace piper
