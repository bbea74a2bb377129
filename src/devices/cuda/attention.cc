// Attentions that cuDNN runs: one plan for each form, and its calls.
#include "attention.h"

#include <algorithm>

namespace piper::cuda {

Result<std::unique_ptr<Attentions>> Attentions::open(const Device& device) {
  PIPER_ASSIGN(const Opened<Cudnn>* library, opened<Cudnn>());
  std::unique_ptr<Attentions> attentions(new Attentions(library->functions, device));
  device.enter();
  PIPER_TRY(dnn_status(attentions->api_, attentions->api_.cudnnCreate(&attentions->handle_),
                       "cudnnCreate"));
  return attentions;
}

Attentions::~Attentions() {
  device_.enter();
  bound_.clear();
  plans_.clear();
  if (handle_) api_.cudnnDestroy(handle_);
}

// Layers of one form have one plan, and one refusal.
Result<const AttentionPlan*> Attentions::plan_of(const DeviceAttention& attention) {
  auto known = std::find_if(plans_.begin(), plans_.end(),
                            [&](const auto& each) { return each.first == attention; });
  if (known == plans_.end())
    known = plans_.emplace(plans_.end(), attention,
                           AttentionPlan::make(api_, attention, {.handle = handle_}));
  if (!known->second) return known->second.error();
  return &*known->second;
}

Result<int32_t> Attentions::bind(const DeviceAttention& attention,
                                 std::span<std::byte* const> operands, std::byte* workspace) {
  PIPER_ASSIGN(const AttentionPlan* plan, plan_of(attention));
  PIPER_ASSIGN(AttentionPlan::Calls calls, plan->bind(operands, workspace));
  bound_.push_back({plan, std::move(calls)});
  return static_cast<int32_t>(bound_.size()) - 1;
}

int Attentions::run(int32_t bound, CuStream* stream) const {
  const Bound& one = bound_[static_cast<size_t>(bound)];
  if (const int status = api_.cudnnSetStream(handle_, stream)) return status;
  return one.plan->run(handle_, one.calls);
}

}  // namespace piper::cuda
