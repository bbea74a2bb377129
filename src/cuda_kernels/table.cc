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
    {"Attention", make_attention},
    {"AttentionGrad", make_attention_grad},
    {"AttentionMerge", make_attention_merge},
    {"Reshape", make_reshape},
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
  std::vector<std::string> names;
  for (const cuda_kernels::Entry& entry : cuda_kernels::kMakers) names.emplace_back(entry.op);
  return names;
}

}  // namespace piper
